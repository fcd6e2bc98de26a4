//! The recurrent layer, as its formula reads.

use signbit_shaders::Tensor;
use signbit_shaders::kernels::delta_chunk::{CHUNK, DeltaChunks, delta_chunk};
use signbit_shaders::kernels::delta_conv::delta_conv;
use signbit_shaders::kernels::delta_net::{DeltaGates, DeltaShape, delta_net};
use signbit_shaders::kernels::delta_step::{DeltaWeights, RING_ROWS, delta_step};
use signbit_shaders::kernels::gated_norm::gated_norm;

use super::layers::Caches;
use super::recorder::Recorder;
use super::weights::{Matrix, Weights};
use crate::config::ModelConfig;
use crate::error::EngineError;

type Result<T> = std::result::Result<T, EngineError>;

/// Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464).
#[derive(Debug)]
pub struct DeltaNet {
    norm: Tensor,
    in_proj: Matrix,
    out_proj: Matrix,
    weights: DeltaWeights,
    ring: Tensor,
    state: Tensor,
    shape: DeltaShape,
    eps: f32,
}

impl DeltaNet {
    /// Tensors that lie side by side in `in_proj`.
    pub const PROJECTIONS: [&str; 4] = ["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"];

    /// The layer's weights and empty states.
    pub fn load(
        prefix: &str,
        config: &ModelConfig,
        weights: &Weights,
        caches: &mut Caches<'_>,
    ) -> Result<Self> {
        let matrix = |name: &str| weights.matrix(&format!("{prefix}.{name}.weight"));
        let geometry = config.delta_net.as_ref().ok_or_else(|| EngineError::InvalidRequest {
            reason: "a recurrent layer needs the DeltaNet geometry".to_owned(),
        })?;
        let shape = DeltaShape {
            num_key_heads: geometry.num_key_heads,
            num_value_heads: geometry.num_value_heads,
            key_head_dim: geometry.key_head_dim,
            value_head_dim: geometry.value_head_dim,
        };
        let channels =
            2 * shape.num_key_heads * shape.key_head_dim + shape.num_value_heads * shape.value_head_dim;
        Ok(Self {
            norm: weights.vector(&format!("{prefix}.attn_norm.weight"))?,
            in_proj: matrix(Self::PROJECTIONS[0])?,
            out_proj: matrix("ssm_out")?,
            weights: DeltaWeights {
                conv: weights.vector(&format!("{prefix}.ssm_conv1d.weight"))?,
                ssm_a: weights.vector(&format!("{prefix}.ssm_a"))?,
                dt_bias: weights.vector(&format!("{prefix}.ssm_dt.bias"))?,
                norm: weights.vector(&format!("{prefix}.ssm_norm.weight"))?,
            },
            ring: caches.recurrent(RING_ROWS, channels)?,
            state: caches.recurrent(shape.num_value_heads * shape.key_head_dim, shape.value_head_dim)?,
            shape,
            eps: config.rms_norm_eps,
        })
    }

    /// Adds the mixer's output to `x` [T, D].
    ///
    /// A single token is one dispatch between the projections; of many tokens all that does not
    /// depend on the state is computed in parallel.
    pub fn forward(&self, rec: &mut Recorder<'_>, x: Tensor) -> Result<()> {
        let Self { weights, ring, state, shape, eps, .. } = *self;
        let p = rec.norm_linear("delta.in", x, self.norm, &self.in_proj, eps)?; // [T, C + Hv * dv + 2 * Hv]
        let o = rec.scratch(x.rows, shape.num_value_heads * shape.value_head_dim)?; // [T, Hv * dv]
        if x.rows == 1 {
            rec.push("delta.rule", delta_step(*p, weights, ring, state, *o, shape, eps))?;
        } else {
            self.forward_many(rec, *p, *o)?;
        }
        rec.add_linear("delta.out", *o, &self.out_proj, x) // residual
    }

    /// From the projections `p` of many tokens to the input of the last one.
    fn forward_many(&self, rec: &mut Recorder<'_>, p: Tensor, out: Tensor) -> Result<()> {
        let (shape, eps, DeltaWeights { conv, ssm_a, dt_bias, norm }) = (self.shape, self.eps, self.weights);
        let (channels, values, value_heads) = (self.ring.cols, out.cols, shape.num_value_heads);
        let u = p.columns(0, channels);
        let z = p.columns(channels, values);
        let alpha = p.columns(channels + values, value_heads);
        let beta = p.columns(channels + values + value_heads, value_heads);
        let gates = DeltaGates { alpha, beta, ssm_a, dt_bias };
        let y = rec.scratch(p.rows, channels)?; // [T, C]
        let o = rec.scratch(p.rows, values)?; // [T, Hv * dv]
        let matrix_rows = DeltaChunks::matrix_rows(p.rows, shape);
        let solve = rec.scratch(matrix_rows, CHUNK)?; // [chunks * Hv * 32, 32]
        let mixing = rec.scratch(matrix_rows, CHUNK)?; // [chunks * Hv * 32, 32]
        let decay = rec.scratch(p.rows, 2 * value_heads)?; // [T, 2 * Hv]
        let chunks = DeltaChunks { solve: *solve, mixing: *mixing, decay: *decay };
        rec.push("delta.conv", delta_conv(u, conv, self.ring, *y, shape, eps))?;
        rec.push("delta.chunk", delta_chunk(*y, gates, chunks, shape))?;
        rec.push("delta.rule", delta_net(*y, chunks, self.state, *o, shape))?;
        rec.push("delta.norm", gated_norm(*o, z, norm, out, value_heads, eps))
    }
}
