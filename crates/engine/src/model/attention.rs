//! Attention, as its formula reads.

use signbit_shaders::Tensor;
use signbit_shaders::kernels::append_rows::append_rows;
use signbit_shaders::kernels::attention::{AttentionShape, attention};
use signbit_shaders::kernels::norm_rope::{HeadShape, norm_rope};
use signbit_shaders::kernels::sigmoid_gate::sigmoid_gate;

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
    q_norm: Tensor,
    k_norm: Tensor,
    rope: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    gated: bool,
    n_rot: u32,
    shape: AttentionShape,
    scale: f32,
    eps: f32,
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
        let kv_dim = config.num_key_value_heads * config.head_dim;
        Ok(Self {
            norm: vector("attn_norm")?,
            qkv_proj: matrix(Self::PROJECTIONS[0])?,
            o_proj: matrix("attn_output")?,
            q_norm: vector("attn_q_norm")?,
            k_norm: vector("attn_k_norm")?,
            rope: caches.rope,
            k_cache: caches.key_value(kv_dim)?,
            v_cache: caches.key_value(kv_dim)?,
            gated: config.architecture == Architecture::Qwen35,
            n_rot: config.rope.n_rot,
            shape: AttentionShape {
                num_heads: config.num_attention_heads,
                num_kv_heads: config.num_key_value_heads,
                head_dim: config.head_dim,
            },
            scale: config.attention_scale,
            eps: config.rms_norm_eps,
        })
    }

    /// Adds the attention's output to `x` [T, D].
    pub fn forward(&self, rec: &mut Recorder<'_>, x: Tensor) -> Result<()> {
        let AttentionShape { num_heads, num_kv_heads, head_dim } = self.shape;
        // With a gate, each head's query is followed by its gate.
        let stride = if self.gated { 2 * head_dim } else { head_dim };
        let q_heads = HeadShape { heads: num_heads, head_dim, stride, n_rot: self.n_rot };
        let k_heads = HeadShape { heads: num_kv_heads, stride: head_dim, ..q_heads };
        let (q_cols, kv_cols) = (num_heads * stride, num_kv_heads * head_dim);

        let qkv = rec.norm_linear("attn.qkv", x, self.norm, &self.qkv_proj, self.eps)?; // [T, Hq * stride + 2 * Hkv * Dh]
        let q_raw = qkv.columns(0, q_cols);
        let k_raw = qkv.columns(q_cols, kv_cols);
        let v = qkv.columns(q_cols + kv_cols, kv_cols);
        let q = rec.scratch(x.rows, num_heads * head_dim)?; // [T, Hq * Dh]
        let o = rec.scratch(x.rows, num_heads * head_dim)?; // [T, Hq * Dh]
        let (rope, eps) = (self.rope, self.eps);
        rec.push("attn.q_rope", norm_rope(q_raw, self.q_norm, rope, *q, q_heads, eps, false))?;
        rec.push("attn.k_rope", norm_rope(k_raw, self.k_norm, rope, self.k_cache, k_heads, eps, true))?;
        rec.push("attn.v_cache", append_rows(v, self.v_cache))?;
        rec.push("attn.core", attention(*q, self.k_cache, self.v_cache, *o, self.shape, self.scale))?;
        if self.gated {
            rec.push("attn.gate", sigmoid_gate(*o, q_raw, head_dim))?;
        }
        rec.add_linear("attn.o", *o, &self.o_proj, x) // residual
    }
}
