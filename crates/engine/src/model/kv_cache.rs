//! The kinds of KV cache.

use signbit_shaders::kernels::qkv::AttentionShape;
use signbit_shaders::kernels::{attention, kivi, kivi_attention};

use crate::device::DeviceInfo;

/// How keys and values of earlier positions are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvCache {
    /// As f32 where that fits, else in 4 bits if these can hold the model's heads: the first step
    /// down of [`crate::memory`].
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
    /// The longest context whose loops end on a device, where it counts them: a software adapter may.
    pub fn counted_context(self, device: &DeviceInfo, shape: AttentionShape) -> Option<u32> {
        let counts = device.backend == "webgpu" && device.is_fallback;
        counts.then(|| match self {
            Self::Kivi => kivi_attention::max_counted_context(shape),
            Self::Auto | Self::F32 => attention::max_counted_context(shape),
        })
    }

    /// Whether the 4-bit cache can hold a model's heads.
    pub fn kivi_holds(shape: AttentionShape) -> bool {
        kivi::Layout::new(shape.num_kv_heads, shape.head_dim, 1).is_ok() && shape.group() <= kivi::MAX_QUERIES
    }
}
