//! Which kind of KV cache a model gets, and how long a context it holds.

use signbit_shaders::kernels::qkv::AttentionShape;
use signbit_shaders::kernels::{attention, kivi, kivi_attention};

use super::fit_rows;
use crate::config::ModelConfig;
use crate::device::DeviceInfo;
use crate::error::EngineError;

/// How keys and values of earlier positions are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvCache {
    /// As f32, unless the model's plan with it would exceed the device's memory budget, or the
    /// device's binding limit would cut the context that was asked for shorter than it would with
    /// the 4-bit cache. A model whose heads the 4-bit cache cannot hold gets f32 in any case.
    #[default]
    Auto,
    /// As computed.
    F32,
    /// All but the first 8 and the newest 128 at most in 4 bits; see [`signbit_shaders::kernels::kivi`].
    Kivi,
}

impl std::fmt::Display for KvCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Kivi => "kivi",
        })
    }
}

impl KvCache {
    /// The longest context, of `asked` positions, that the kind allows on a device.
    pub fn context_length(
        self,
        device: &DeviceInfo,
        config: &ModelConfig,
        shape: AttentionShape,
        asked: u32,
    ) -> Result<u32, EngineError> {
        // A software adapter may count the iterations of loops.
        let counts = device.backend == "webgpu" && device.is_fallback;
        let counted = match self {
            Self::Kivi => kivi_attention::max_counted_context(shape),
            Self::Auto | Self::F32 => attention::max_counted_context(shape),
        };
        self.fit(device, config, shape, if counts { asked.min(counted) } else { asked })
    }

    /// The longest context, of `asked` positions, whose buffers the device can bind.
    fn fit(
        self,
        device: &DeviceInfo,
        config: &ModelConfig,
        shape: AttentionShape,
        asked: u32,
    ) -> Result<u32, EngineError> {
        let (what, limit) = ("one position of the cache", device.limits.max_words());
        let rope_words = u64::from(config.rope.n_rot);
        match self {
            Self::Auto | Self::F32 => fit_rows(what, rope_words.max(shape.kv_cols().into()), limit, asked),
            Self::Kivi => {
                let most = kivi::Layout::max_context(shape.num_kv_heads, shape.head_dim, limit);
                if most == 0 {
                    let exact_words = 2 * u64::from(kivi::EXACT_SLOTS) * u64::from(shape.kv_cols());
                    return fit_rows("the exact rows of the 4-bit cache", exact_words, limit, asked);
                }
                fit_rows(what, rope_words, limit, asked.min(most))
            }
        }
    }

    /// Whether the device's binding limit decides for the 4-bit cache: half of the rule of
    /// [`KvCache::Auto`].
    pub fn limit_wants_kivi(
        device: &DeviceInfo,
        config: &ModelConfig,
        shape: AttentionShape,
        asked: u32,
    ) -> bool {
        let held = |kind: Self| kind.fit(device, config, shape, asked).unwrap_or(0);
        held(Self::F32) < asked && held(Self::F32) < held(Self::Kivi)
    }

    /// Whether the 4-bit cache can hold a model's heads.
    pub fn kivi_holds(shape: AttentionShape) -> bool {
        kivi::Layout::new(shape.num_kv_heads, shape.head_dim, 1).is_ok() && shape.group() <= kivi::MAX_QUERIES
    }
}
