//! The layers of both architectures, as their formulas read.
//!
//! Tensors are [T, ...] with T tokens of one step; `x` is the residual stream [T, D], to which
//! each branch adds its output. Weight names are those of the GGUF file. Projections that read the
//! same input are one matrix; what follows reads its columns of the result.

use std::collections::HashMap;

use signbit_shaders::kernels::kivi;
use signbit_shaders::kernels::qkv::{self, AttentionShape};
use signbit_shaders::{BufferId, Tensor};

use super::KvCache;
use super::attention::{Attention, Cache};
use super::delta_net::DeltaNet;
use super::kept::Kept;
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
    mixer: Mixer,
    mlp: Mlp,
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
        Ok(Self { name: format!("layer.{index}"), mixer, mlp: Mlp::load(&prefix, config, weights)? })
    }

    /// Adds both branches to `x` [T, D].
    pub fn forward(&self, rec: &mut Recorder<'_>, x: Tensor) -> Result<()> {
        rec.scope(&self.name);
        match &self.mixer {
            Mixer::Attention(attention) => attention.forward(rec, x)?,
            Mixer::DeltaNet(delta_net) => delta_net.forward(rec, x)?,
        }
        self.mlp.forward(rec, x)
    }
}

/// Names of the tensors that lie side by side as one matrix, for every layer.
pub fn joined_tensors(config: &ModelConfig) -> Vec<Vec<String>> {
    let layer = |(i, layer_type): (usize, &LayerType)| {
        let mixer = match layer_type {
            LayerType::Attention => Attention::PROJECTIONS.as_slice(),
            LayerType::DeltaNet => DeltaNet::PROJECTIONS.as_slice(),
        };
        [mixer, &Mlp::PROJECTIONS].map(|names| names.iter().map(|n| format!("blk.{i}.{n}.weight")).collect())
    };
    config.layer_types.iter().enumerate().flat_map(layer).collect()
}

/// SwiGLU: `down(SiLU(gate h) * up h)`, `h = norm(x)`.
#[derive(Debug)]
struct Mlp {
    norm: Tensor,
    gate_up_proj: Matrix,
    down_proj: Matrix,
    eps: f32,
}

impl Mlp {
    const PROJECTIONS: [&str; 2] = ["ffn_gate", "ffn_up"];

    fn load(prefix: &str, config: &ModelConfig, weights: &Weights) -> Result<Self> {
        let norm = match config.architecture {
            Architecture::Qwen3 => "ffn_norm",
            Architecture::Qwen35 => "post_attention_norm",
        };
        let [gate_up, _] = Self::PROJECTIONS;
        Ok(Self {
            norm: weights.vector(&format!("{prefix}.{norm}.weight"))?,
            gate_up_proj: weights.matrix(&format!("{prefix}.{gate_up}.weight"))?,
            down_proj: weights.matrix(&format!("{prefix}.ffn_down.weight"))?,
            eps: config.rms_norm_eps,
        })
    }

    fn forward(&self, rec: &mut Recorder<'_>, x: Tensor) -> Result<()> {
        let a = rec.norm_swiglu("mlp.gate_up", x, self.norm, &self.gate_up_proj, self.eps)?; // [T, F]
        rec.add_linear("mlp.down", *a, &self.down_proj, x) // residual
    }
}

/// Allocates what a session keeps between steps.
#[derive(Debug)]
pub struct Caches<'d> {
    device: &'d mut Device,
    kv_cache: KvCache,
    context_length: u32,
    /// Cosines and sines of every position.
    pub rope: Tensor,
    /// The buffers that a session fills.
    pub kept: Kept,
    /// Bytes of all caches.
    pub n_bytes: u64,
    /// Bytes of keys and values that a layer's attention reads at the end of the context, by a buffer
    /// that only the layer's attention has.
    pub kv_bytes: HashMap<BufferId, u64>,
}

impl<'d> Caches<'d> {
    /// Caches for `context_length` positions, all sharing one rotation table.
    pub fn new(device: &'d mut Device, kv_cache: KvCache, context_length: u32, rope: Tensor) -> Self {
        Self {
            device,
            kv_cache,
            context_length,
            rope,
            kept: Kept::default(),
            n_bytes: 0,
            kv_bytes: HashMap::new(),
        }
    }

    fn allocate(&mut self, label: &str, rows: u32, cols: u32) -> Result<Tensor> {
        let buffer = self.device.create_buffer(label, u64::from(rows) * u64::from(cols))?;
        let tensor = Tensor { buffer, rows, cols };
        self.n_bytes += tensor.n_bytes();
        Ok(tensor)
    }

    /// Keys and values of every position.
    pub fn attention(&mut self, shape: AttentionShape) -> Result<Cache> {
        if self.kv_cache == KvCache::Kivi {
            let layout = kivi::Layout::new(shape.num_kv_heads, shape.head_dim, self.context_length)?;
            let mut tensor = |shape: fn(&kivi::Layout, BufferId) -> Tensor| {
                let Tensor { rows, cols, .. } = shape(&layout, BufferId(0));
                self.allocate("kv_cache", rows, cols)
            };
            let exact = tensor(kivi::Layout::exact)?;
            let codes = tensor(kivi::Layout::codes)?;
            let scales = tensor(kivi::Layout::scales)?;
            self.kv_bytes.insert(exact.buffer, layout.bytes_read(self.context_length));
            let cache = Cache::Kivi(kivi::CacheTensors { layout, exact, codes, scales });
            self.kept.attention.push(cache);
            return Ok(cache);
        }
        let k = self.allocate("kv_cache", self.context_length, shape.kv_cols())?;
        let v = self.allocate("kv_cache", self.context_length, shape.kv_cols())?;
        self.kv_bytes.insert(k.buffer, k.n_bytes() + v.n_bytes());
        let cache = Cache::F32(qkv::KvCache { k, v });
        self.kept.attention.push(cache);
        Ok(cache)
    }

    /// A state that each step replaces.
    pub fn recurrent(&mut self, rows: u32, cols: u32) -> Result<Tensor> {
        let tensor = self.allocate("recurrent_state", rows, cols)?;
        self.kept.recurrent.push(tensor);
        Ok(tensor)
    }
}
