//! Attention, as its formula reads.

use signbit_shaders::Tensor;
use signbit_shaders::kernels::attention::attention;
use signbit_shaders::kernels::attention_decode::{self, attention_decode};
use signbit_shaders::kernels::attention_merge::attention_merge;
use signbit_shaders::kernels::kivi::CacheTensors;
use signbit_shaders::kernels::kivi_append::kivi_append;
use signbit_shaders::kernels::kivi_attention::kivi_attention;
use signbit_shaders::kernels::kivi_decode::{self, kivi_decode};
use signbit_shaders::kernels::qkv::{AttentionShape, KvCache, NormRope};
use signbit_shaders::kernels::qkv_rope_append::qkv_rope_append;

use super::layers::Caches;
use super::recorder::Recorder;
use super::weights::{Matrix, Weights};
use crate::config::{Architecture, ModelConfig};
use crate::error::EngineError;

type Result<T> = std::result::Result<T, EngineError>;

/// Grouped-query attention with per-head norms; in `qwen35` with an output gate.
#[derive(Debug)]
pub struct Attention {
    norm: Tensor,
    qkv_proj: Matrix,
    o_proj: Matrix,
    norm_rope: NormRope,
    cache: Cache,
    shape: AttentionShape,
    scale: f32,
    eps: f32,
}

/// The keys and values of earlier positions.
#[derive(Clone, Copy, Debug)]
pub enum Cache {
    /// As computed.
    F32(KvCache),
    /// In 4 bits.
    Kivi(CacheTensors),
}

impl Attention {
    /// Tensors that lie side by side in `qkv_proj`.
    pub const PROJECTIONS: [&str; 3] = ["attn_q", "attn_k", "attn_v"];

    /// The layer's weights and empty caches.
    pub fn load(
        prefix: &str,
        config: &ModelConfig,
        weights: &Weights,
        caches: &mut Caches<'_>,
    ) -> Result<Self> {
        let matrix = |name: &str| weights.matrix(&format!("{prefix}.{name}.weight"));
        let vector = |name: &str| weights.vector(&format!("{prefix}.{name}.weight"));
        let shape = shape(config);
        Ok(Self {
            norm: vector("attn_norm")?,
            qkv_proj: matrix(Self::PROJECTIONS[0])?,
            o_proj: matrix("attn_output")?,
            norm_rope: NormRope {
                q_norm: vector("attn_q_norm")?,
                k_norm: vector("attn_k_norm")?,
                rope: caches.rope,
                eps: config.rms_norm_eps,
            },
            cache: caches.attention(shape)?,
            shape,
            scale: config.attention_scale,
            eps: config.rms_norm_eps,
        })
    }

    /// Adds the attention's output to `x` [T, D].
    ///
    /// A single token has too few queries to fill a device: its keys are split among workgroups.
    pub fn forward(&self, rec: &mut Recorder<'_>, x: Tensor) -> Result<()> {
        let Self { norm_rope, cache, shape, scale, .. } = *self;
        let qkv = rec.norm_linear("attn.qkv", x, self.norm, &self.qkv_proj, self.eps)?; // [T, Hq * stride + 2 * Hkv * Dh]
        let o = rec.scratch(x.rows, shape.q_cols())?; // [T, Hq * Dh]
        match cache {
            Cache::F32(cache) if x.rows == 1 => {
                let rows = shape.num_heads * attention_decode::n_splits(shape, cache.k.rows);
                let queries = rec.scratch(rows, shape.head_dim)?; // [Hq * splits, Dh]
                let partials = rec.scratch(rows, shape.head_dim + attention_decode::STATISTICS)?; // [Hq * splits, Dh + 2]
                rec.push(
                    "attn.core",
                    attention_decode(*qkv, norm_rope, cache, *queries, *partials, shape, scale),
                )?;
                rec.push("attn.merge", attention_merge(*partials, *qkv, *o, shape))?;
            }
            Cache::F32(cache) => {
                let q = rec.scratch(x.rows, shape.q_cols())?; // [T, Hq * Dh]
                rec.push("attn.rope", qkv_rope_append(*qkv, norm_rope, *q, cache, shape))?;
                rec.push("attn.core", attention(*q, *qkv, cache, *o, shape, scale))?;
            }
            Cache::Kivi(cache) if x.rows == 1 => {
                let rows = shape.num_heads * kivi_decode::n_splits(&cache.layout);
                let partials = rec.scratch(rows, shape.head_dim + attention_decode::STATISTICS)?; // [Hq * splits, Dh + 2]
                rec.push("attn.core", kivi_decode(*qkv, norm_rope, cache, *partials, shape, scale))?;
                rec.push("attn.merge", attention_merge(*partials, *qkv, *o, shape))?;
            }
            Cache::Kivi(cache) => {
                rec.push("attn.append", kivi_append(*qkv, norm_rope, cache, shape))?;
                rec.push("attn.core", kivi_attention(*qkv, norm_rope, cache, *o, shape, scale))?;
            }
        }
        rec.add_linear("attn.o", *o, &self.o_proj, x) // residual
    }
}

/// The heads of the model's attention layers.
pub fn shape(config: &ModelConfig) -> AttentionShape {
    AttentionShape {
        num_heads: config.num_attention_heads,
        num_kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        gated: config.architecture == Architecture::Qwen35,
    }
}
