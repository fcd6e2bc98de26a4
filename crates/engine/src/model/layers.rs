//! The layers of both architectures, as their formulas read.
//!
//! Tensors are [T, ...] with T tokens of one step; `x` is the residual stream [T, D], to which
//! each branch adds its output. Weight names are those of the GGUF file.

use signbit_shaders::Tensor;
use signbit_shaders::kernels::attention::AttentionShape;
use signbit_shaders::kernels::delta_net::{DeltaGates, DeltaShape};
use signbit_shaders::kernels::norm_rope::HeadShape;

use super::recorder::Recorder;
use super::weights::{Matrix, Weights};
use crate::config::{Architecture, LayerType, ModelConfig};
use crate::device::Device;
use crate::error::EngineError;

type Result<T> = std::result::Result<T, EngineError>;

/// One transformer layer: `x += mixer(norm(x)); x += mlp(norm(x))`.
#[derive(Debug)]
pub struct Layer {
    name: String,
    attn_norm: Tensor,
    mixer: Mixer,
    ffn_norm: Tensor,
    mlp: Mlp,
    eps: f32,
}

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    DeltaNet(DeltaNet),
}

impl Layer {
    /// Layer `index` with its caches, which start empty.
    pub fn load(
        index: u32,
        config: &ModelConfig,
        weights: &Weights,
        caches: &mut Caches<'_>,
    ) -> Result<Self> {
        let prefix = format!("blk.{index}");
        let mixer = match config.layer_types[index as usize] {
            LayerType::Attention => Mixer::Attention(Attention::load(&prefix, config, weights, caches)?),
            LayerType::DeltaNet => Mixer::DeltaNet(DeltaNet::load(&prefix, config, weights, caches)?),
        };
        let ffn_norm = match config.architecture {
            Architecture::Qwen3 => "ffn_norm",
            Architecture::Qwen35 => "post_attention_norm",
        };
        Ok(Self {
            name: format!("layer.{index}"),
            attn_norm: weights.vector(&format!("{prefix}.attn_norm.weight"))?,
            mixer,
            ffn_norm: weights.vector(&format!("{prefix}.{ffn_norm}.weight"))?,
            mlp: Mlp::load(&prefix, weights)?,
            eps: config.rms_norm_eps,
        })
    }

    /// Adds both branches to `x` [T, D].
    pub fn forward(&self, rec: &mut Recorder<'_>, x: Tensor) -> Result<()> {
        rec.scope(&self.name);
        let h = rec.rms_norm("attn_norm", x, self.attn_norm, self.eps)?; // [T, D]
        match &self.mixer {
            Mixer::Attention(attention) => attention.forward(rec, *h, x)?,
            Mixer::DeltaNet(delta_net) => delta_net.forward(rec, *h, x)?,
        }
        let h = rec.rms_norm("ffn_norm", x, self.ffn_norm, self.eps)?; // [T, D]
        self.mlp.forward(rec, *h, x)
    }
}

/// Grouped-query attention with per-head norms; in `qwen35` with an output gate.
#[derive(Debug)]
struct Attention {
    q_proj: Matrix,
    k_proj: Matrix,
    v_proj: Matrix,
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
    fn load(prefix: &str, config: &ModelConfig, weights: &Weights, caches: &mut Caches<'_>) -> Result<Self> {
        let matrix = |name: &str| weights.matrix(&format!("{prefix}.{name}.weight"));
        let vector = |name: &str| weights.vector(&format!("{prefix}.{name}.weight"));
        let kv_dim = config.num_key_value_heads * config.head_dim;
        Ok(Self {
            q_proj: matrix("attn_q")?,
            k_proj: matrix("attn_k")?,
            v_proj: matrix("attn_v")?,
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

    fn forward(&self, rec: &mut Recorder<'_>, h: Tensor, x: Tensor) -> Result<()> {
        let AttentionShape { num_heads, num_kv_heads, head_dim } = self.shape;
        // With a gate, each head's query is followed by its gate.
        let stride = if self.gated { 2 * head_dim } else { head_dim };
        let q_heads = HeadShape { heads: num_heads, head_dim, stride, n_rot: self.n_rot };
        let k_heads = HeadShape { heads: num_kv_heads, stride: head_dim, ..q_heads };

        let q_raw = rec.linear("attn.q", h, &self.q_proj)?; // [T, Hq * stride]
        let k_raw = rec.linear("attn.k", h, &self.k_proj)?; // [T, Hkv * Dh]
        let v = rec.linear("attn.v", h, &self.v_proj)?; // [T, Hkv * Dh]
        let q = rec.norm_rope("attn.q_rope", *q_raw, self.q_norm, self.rope, q_heads, self.eps)?; // [T, Hq * Dh]
        rec.norm_rope_to_cache(
            "attn.k_rope",
            *k_raw,
            self.k_norm,
            self.rope,
            self.k_cache,
            k_heads,
            self.eps,
        )?;
        rec.append_rows("attn.v_cache", *v, self.v_cache)?;
        let o = rec.attention("attn.core", *q, self.k_cache, self.v_cache, self.shape, self.scale)?; // [T, Hq * Dh]
        if self.gated {
            rec.sigmoid_gate("attn.gate", *o, *q_raw, head_dim)?;
        }
        rec.add_linear("attn.o", *o, &self.o_proj, x) // residual
    }
}

/// Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464).
#[derive(Debug)]
struct DeltaNet {
    qkv_proj: Matrix,
    z_proj: Matrix,
    alpha_proj: Matrix,
    beta_proj: Matrix,
    out_proj: Matrix,
    conv: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    conv_state: Tensor,
    state: Tensor,
    shape: DeltaShape,
    eps: f32,
}

impl DeltaNet {
    fn load(prefix: &str, config: &ModelConfig, weights: &Weights, caches: &mut Caches<'_>) -> Result<Self> {
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
            qkv_proj: matrix("attn_qkv")?,
            z_proj: matrix("attn_gate")?,
            alpha_proj: matrix("ssm_alpha")?,
            beta_proj: matrix("ssm_beta")?,
            out_proj: matrix("ssm_out")?,
            conv: weights.vector(&format!("{prefix}.ssm_conv1d.weight"))?,
            a: weights.vector(&format!("{prefix}.ssm_a"))?,
            dt_bias: weights.vector(&format!("{prefix}.ssm_dt.bias"))?,
            norm: weights.vector(&format!("{prefix}.ssm_norm.weight"))?,
            conv_state: caches.recurrent(geometry.conv_kernel - 1, channels)?,
            state: caches.recurrent(shape.num_value_heads * shape.key_head_dim, shape.value_head_dim)?,
            shape,
            eps: config.rms_norm_eps,
        })
    }

    fn forward(&self, rec: &mut Recorder<'_>, h: Tensor, x: Tensor) -> Result<()> {
        let shape = self.shape;
        let u = rec.linear("delta.qkv", h, &self.qkv_proj)?; // [T, C]
        let z = rec.linear("delta.z", h, &self.z_proj)?; // [T, Hv * dv]
        let alpha = rec.linear("delta.alpha", h, &self.alpha_proj)?; // [T, Hv]
        let beta = rec.linear("delta.beta", h, &self.beta_proj)?; // [T, Hv]
        let y = rec.conv1d("delta.conv", *u, self.conv, self.conv_state)?; // [T, C]
        rec.l2_norm("delta.l2_norm", *y, shape.num_key_heads, shape.key_head_dim, self.eps)?;
        let gates = DeltaGates { alpha: *alpha, beta: *beta, ssm_a: self.a, dt_bias: self.dt_bias };
        let o = rec.delta_net("delta.rule", *y, gates, self.state, shape)?; // [T, Hv * dv]
        let o = rec.gated_norm("delta.norm", *o, *z, self.norm, shape.num_value_heads, self.eps)?; // [T, Hv * dv]
        rec.add_linear("delta.out", *o, &self.out_proj, x) // residual
    }
}

/// SwiGLU: `down(SiLU(gate h) * up h)`.
#[derive(Debug)]
struct Mlp {
    gate_proj: Matrix,
    up_proj: Matrix,
    down_proj: Matrix,
}

impl Mlp {
    fn load(prefix: &str, weights: &Weights) -> Result<Self> {
        let matrix = |name: &str| weights.matrix(&format!("{prefix}.{name}.weight"));
        Ok(Self {
            gate_proj: matrix("ffn_gate")?,
            up_proj: matrix("ffn_up")?,
            down_proj: matrix("ffn_down")?,
        })
    }

    fn forward(&self, rec: &mut Recorder<'_>, h: Tensor, x: Tensor) -> Result<()> {
        let gate = rec.linear("mlp.gate", h, &self.gate_proj)?; // [T, F]
        let up = rec.linear("mlp.up", h, &self.up_proj)?; // [T, F]
        let a = rec.silu_mul("mlp.silu", *gate, *up)?; // [T, F]
        rec.add_linear("mlp.down", *a, &self.down_proj, x) // residual
    }
}

/// Allocates what a session keeps between steps.
#[derive(Debug)]
pub struct Caches<'d> {
    device: &'d mut Device,
    context_length: u32,
    rope: Tensor,
    /// Recurrent states, which a fresh session starts at zero.
    pub recurrent: Vec<Tensor>,
    /// Bytes of all caches.
    pub n_bytes: u64,
}

impl<'d> Caches<'d> {
    /// Caches for `context_length` positions, all sharing one rotation table.
    pub fn new(device: &'d mut Device, context_length: u32, rope: Tensor) -> Self {
        Self { device, context_length, rope, recurrent: Vec::new(), n_bytes: 0 }
    }

    fn allocate(&mut self, label: &str, rows: u32, cols: u32) -> Result<Tensor> {
        let buffer = self.device.create_buffer(label, u64::from(rows) * u64::from(cols))?;
        let tensor = Tensor { buffer, rows, cols };
        self.n_bytes += tensor.n_bytes();
        Ok(tensor)
    }

    /// Keys or values of every position: [S, Hkv * Dh].
    fn key_value(&mut self, cols: u32) -> Result<Tensor> {
        self.allocate("kv_cache", self.context_length, cols)
    }

    /// A state that each step replaces.
    fn recurrent(&mut self, rows: u32, cols: u32) -> Result<Tensor> {
        let tensor = self.allocate("recurrent_state", rows, cols)?;
        self.recurrent.push(tensor);
        Ok(tensor)
    }
}
