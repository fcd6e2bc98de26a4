//! Geometry of a model, read from its header and checked before any weight is read.
//!
//! [`ModelConfig::from_header`] is the gate between a file and the kernels: what passes has every
//! tensor the forward pass reads, with the right shape and a type that can be decoded, and no key
//! or tensor that would change the result and that no kernel honours. Everything else is refused here,
//! by name, because a model that runs with a wrong geometry talks nonsense without an error.
//!
//! Shapes are in the file's order, contiguous dimension first: a matrix with `out` rows and `in`
//! columns is `[in, out]`.
//!
//! Key and tensor names: `src/llama-arch.cpp`, `src/models/qwen3.cpp` and `src/models/qwen35.cpp`
//! of llama.cpp (<https://github.com/ggml-org/llama.cpp>).

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::fmt;

use signbit_gguf::{GgufError, Header, Metadata, SUPPORTED_TYPES, TensorInfo, TensorType, Value, split};

/// Largest attention head or DeltaNet head that the kernels hold.
pub const MAX_HEAD_DIM: u32 = 256;
/// Largest number of convolution taps.
pub const MAX_CONV_KERNEL: u32 = 4;
/// No model has been trained for so many positions; sums with more could exceed 32 bits.
pub const MAX_CONTEXT: u32 = 1 << 26;
/// Row widths of matrices are multiples of this.
pub const ROW_MULTIPLE: u64 = 8;

/// Why a file cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant explains its fields")]
#[non_exhaustive]
pub enum ConfigError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("architecture {found:?} is not supported, only \"qwen3\" and \"qwen35\" are")]
    UnsupportedArchitecture { found: String },
    #[error("mixture-of-experts models are not supported (found {found:?})")]
    MixtureOfExperts { found: String },
    #[error("the weights are in a rotated basis, which is not supported (found key {key:?})")]
    RotatedBasis { key: String },
    #[error("the file holds only the next-token-prediction block of a model, not the model")]
    MtpOnly,
    #[error("{key} is {value}, but {rule}")]
    InvalidValue { key: String, value: String, rule: String },
    #[error("{key} differs between layers, which is not supported: {values:?}")]
    NotUniform { key: String, values: Vec<u32> },
    #[error("rope scaling {kind:?} is not supported, only \"none\", \"linear\" and \"yarn\" are")]
    UnsupportedRopeScaling { kind: String },
    #[error("layer {layer} is declared as {declared}, but the file holds {tensor:?}")]
    LayerScheduleClash { layer: u32, declared: LayerType, tensor: String },
    #[error("tensor {tensor:?} is missing")]
    MissingTensor { tensor: String },
    #[error("tensor {tensor:?} has shape {found:?}, expected {expected:?}")]
    WrongShape { tensor: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("unsupported type {id} ({ty}) in tensor {tensor:?}; supported types are {supported}")]
    UnsupportedType { tensor: String, id: u32, ty: TensorType, supported: &'static str },
    #[error("the rows of tensor {tensor:?} have {width} values, not a multiple of {ROW_MULTIPLE}")]
    UnsupportedRowWidth { tensor: String, width: u64 },
    #[error("tensor {tensor:?} would change the result of a matrix, which is not supported")]
    UnsupportedCompanion { tensor: String },
    #[error("tensor {tensor:?} has the shape of an output head, but the head is called \"output.weight\"")]
    UnknownHead { tensor: String },
    #[error("tensor {tensor:?} fuses query, key and value, which is not supported")]
    FusedQkv { tensor: String },
}

type Result<T> = std::result::Result<T, ConfigError>;

/// The two model families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Dense: every layer is attention.
    Qwen3,
    /// Hybrid: gated DeltaNet layers with a gated attention layer now and then.
    Qwen35,
}

impl Architecture {
    /// The name in `general.architecture`, which is also the prefix of the other keys.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen35 => "qwen35",
        }
    }
}

/// How a layer mixes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    /// Softmax attention with a KV cache.
    Attention,
    /// Gated DeltaNet with a recurrent state.
    DeltaNet,
}

impl fmt::Display for LayerType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attention => "attention",
            Self::DeltaNet => "DeltaNet",
        })
    }
}

/// How rotary frequencies are stretched beyond the original context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// Stretch, above zero.
        factor: f32,
    },
    /// Low frequencies are divided by `factor`, high ones are kept, and the result is magnified
    /// (YaRN, <https://arxiv.org/abs/2309.00071>).
    Yarn {
        /// Stretch, at least one.
        factor: f32,
        /// Context length before stretching, in tokens.
        original_context_length: u32,
        /// Extra multiplier of the magnitude.
        attn_factor: f32,
    },
}

/// Rotary position embedding: pair `p` is dimensions `p` and `p + n_rot / 2` of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Rotated dimensions of a head, even; the others pass through.
    pub n_rot: u32,
    /// Base of the frequencies.
    pub theta: f32,
    /// Stretching.
    pub scaling: RopeScaling,
    /// Pairs per position stream (time, height, width, unused). All streams are equal for text,
    /// where this has no effect.
    pub sections: Option<[u32; 4]>,
}

/// Turns per original context below which YaRN divides, and above which it keeps, a frequency.
/// The files have keys for them, but the reference implementation ignores those for these models.
const YARN_BETA_FAST: f64 = 32.0;
const YARN_BETA_SLOW: f64 = 1.0;

impl RopeConfig {
    /// Angle per position of each pair, `n_rot / 2` numbers.
    ///
    /// `theta^(-2p / n_rot)`, stretched. For YaRN with stretch `s`, original context `N` and
    /// `dim(r) = n_rot ln(N / (2 pi r)) / (2 ln theta)`:
    ///
    /// ```text
    /// low  = max(0, floor(dim(32)))       high = min(n_rot - 1, ceil(dim(1)))
    /// keep = 1 - clamp((p - low) / max(0.001, high - low), 0, 1)
    /// inv' = inv / s (1 - keep) + inv keep
    /// ```
    #[must_use]
    pub fn inv_freq(&self) -> Vec<f64> {
        let (n_rot, theta) = (f64::from(self.n_rot), f64::from(self.theta));
        let plain = (0..self.n_rot / 2).map(|p| (f64::from(p), theta.powf(-2.0 * f64::from(p) / n_rot)));
        match self.scaling {
            RopeScaling::None => plain.map(|(_, inv)| inv).collect(),
            RopeScaling::Linear { factor } => plain.map(|(_, inv)| inv / f64::from(factor)).collect(),
            RopeScaling::Yarn { factor, original_context_length, .. } => {
                let dim = |turns: f64| {
                    n_rot * (f64::from(original_context_length) / (2.0 * PI * turns)).ln()
                        / (2.0 * theta.ln())
                };
                let low = dim(YARN_BETA_FAST).floor().max(0.0);
                let high = dim(YARN_BETA_SLOW).ceil().min(n_rot - 1.0);
                plain
                    .map(|(p, inv)| {
                        let keep = 1.0 - ((p - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                        inv / f64::from(factor) * (1.0 - keep) + inv * keep
                    })
                    .collect()
            }
        }
    }

    /// Multiplier of both cosine and sine, on queries and on keys: `attn_factor (1 + 0.1 ln s)`
    /// for YaRN, at every position, else 1.
    #[must_use]
    pub fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
            RopeScaling::Yarn { factor, attn_factor, .. } => {
                f64::from(attn_factor) * (1.0 + 0.1 * f64::from(factor).ln())
            }
        }
    }
}

/// Geometry of the DeltaNet layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetConfig {
    /// Query and key heads, `Hk`.
    pub num_key_heads: u32,
    /// Value heads, `Hv`, a multiple of `Hk`; value head `j` reads key head `j mod Hk`.
    pub num_value_heads: u32,
    /// Size of a query or key head.
    pub key_head_dim: u32,
    /// Size of a value head; equal to `key_head_dim` in these models.
    pub value_head_dim: u32,
    /// Taps of the causal convolution.
    pub conv_kernel: u32,
}

impl DeltaNetConfig {
    /// Width of all query (or key) heads together.
    #[must_use]
    pub fn key_dim(&self) -> u64 {
        u64::from(self.num_key_heads) * u64::from(self.key_head_dim)
    }

    /// Width of all value heads together.
    #[must_use]
    pub fn value_dim(&self) -> u64 {
        u64::from(self.num_value_heads) * u64::from(self.value_head_dim)
    }

    /// Channels of the convolution: queries, keys, values.
    #[must_use]
    pub fn conv_channels(&self) -> u64 {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Sampler settings that the file recommends.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingHints {
    /// Temperature.
    pub temperature: Option<f32>,
    /// Number of best tokens kept.
    pub top_k: Option<u32>,
    /// Probability mass kept.
    pub top_p: Option<f32>,
    /// Smallest probability kept, relative to the best.
    pub min_p: Option<f32>,
}

/// Why the forward pass does not read a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// It belongs to a next-token-prediction block behind the last layer.
    MtpBlock,
    /// The architecture has no use for it.
    Unknown,
}

/// Geometry of a model that can be run. Sizes are in elements.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Model family.
    pub architecture: Architecture,
    /// Width of the residual stream, `D`.
    pub hidden_size: u32,
    /// Layers of the forward pass, without next-token-prediction blocks.
    pub num_hidden_layers: u32,
    /// Query heads, `Hq`.
    pub num_attention_heads: u32,
    /// Key and value heads, `Hkv`; divides `Hq`.
    pub num_key_value_heads: u32,
    /// Size of an attention head; `Hq * head_dim` need not be `hidden_size`.
    pub head_dim: u32,
    /// Width of the feed-forward part, `F`.
    pub intermediate_size: u32,
    /// Rows of the embedding table, `V`.
    pub vocab_size: u32,
    /// Entries of the tokenizer; rows from here to `vocab_size` stand for no token.
    pub n_tokens: u32,
    /// Trained context length in tokens.
    pub context_length: u32,
    /// Epsilon of every norm.
    pub rms_norm_eps: f32,
    /// Multiplier of the attention scores.
    pub attention_scale: f32,
    /// Rotary embedding of the attention layers.
    pub rope: RopeConfig,
    /// Geometry of the DeltaNet layers; present exactly for [`Architecture::Qwen35`].
    pub delta_net: Option<DeltaNetConfig>,
    /// Kind of each layer.
    pub layer_types: Vec<LayerType>,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// Name of the model, for display.
    pub name: Option<String>,
    /// Recommended sampler settings.
    pub sampling: SamplingHints,
    /// Remarks about keys that were ignored.
    pub warnings: Vec<String>,
}

/// A tensor that the forward pass reads.
struct Expected {
    name: String,
    shape: Vec<u64>,
    kind: TensorKind,
}

#[derive(Clone, Copy, PartialEq)]
enum TensorKind {
    /// Multiplied or looked up by a kernel that decodes blocks: any supported type.
    Matrix,
    /// Norm weights and DeltaNet parameters: F32, F16 or BF16, widened when loaded.
    Vector,
}

impl ModelConfig {
    /// Reads and checks the geometry of a model in one file.
    ///
    /// # Errors
    /// Whatever makes the file one that cannot be run, see [`ConfigError`].
    pub fn from_header(header: &Header) -> Result<Self> {
        Self::from_parts(std::slice::from_ref(header))
    }

    /// Reads and checks the geometry of a model that is split over several files, given in order.
    ///
    /// # Errors
    /// As [`ModelConfig::from_header`], and for parts that do not belong together.
    pub fn from_parts(parts: &[Header]) -> Result<Self> {
        split::check_parts(parts)?;
        let Some(first) = parts.first() else { return Err(GgufError::NoParts.into()) };
        let tensors =
            parts.iter().flat_map(|part| &part.tensors).map(|tensor| (tensor.name.as_str(), tensor));
        let tensors = Tensors(tensors.collect());

        let architecture = match first.metadata.require_str("general.architecture")? {
            "qwen3" => Architecture::Qwen3,
            "qwen35" => Architecture::Qwen35,
            other => return Err(ConfigError::UnsupportedArchitecture { found: other.into() }),
        };
        let mut keys = Keys { metadata: &first.metadata, prefix: architecture.key(), warnings: Vec::new() };
        refuse_other_kinds(&keys, &tensors)?;
        let mut config = read_geometry(architecture, &mut keys, &tensors)?;
        config.check_head(&tensors)?;
        config.check_layer_schedule(&tensors)?;
        if let Some(warning) = config.check_tensors(&tensors)? {
            keys.warnings.push(warning);
        }
        config.warnings = keys.warnings;
        Ok(config)
    }

    /// Every tensor that the forward pass reads, with its shape in the file's order.
    #[must_use]
    pub fn expected_tensors(&self) -> Vec<(String, Vec<u64>)> {
        self.expected().map(|tensor| (tensor.name, tensor.shape)).collect()
    }

    /// The tensors of `header` that the forward pass does not read.
    #[must_use]
    pub fn skipped_tensors(&self, header: &Header) -> Vec<(String, SkipReason)> {
        let expected: BTreeMap<String, ()> = self.expected().map(|tensor| (tensor.name, ())).collect();
        let unread = header.tensors.iter().filter(|tensor| !expected.contains_key(&tensor.name));
        unread
            .map(|tensor| {
                let reason = match block_of(&tensor.name) {
                    Some(block) if block >= self.num_hidden_layers => SkipReason::MtpBlock,
                    _ => SkipReason::Unknown,
                };
                (tensor.name.clone(), reason)
            })
            .collect()
    }

    fn expected(&self) -> impl Iterator<Item = Expected> {
        let (d, v) = (u64::from(self.hidden_size), u64::from(self.vocab_size));
        let head = (!self.tie_word_embeddings).then(|| matrix("output.weight".into(), [d, v]));
        let model = [matrix("token_embd.weight".into(), [d, v]), vector("output_norm.weight".into(), d)];
        let layers = (0u32..).zip(&self.layer_types).flat_map(|(layer, &ty)| self.layer_tensors(layer, ty));
        model.into_iter().chain(head).chain(layers)
    }

    /// The tensors of one layer, in the order of the forward pass.
    fn layer_tensors(&self, layer: u32, ty: LayerType) -> Vec<Expected> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (d, f, hd) =
            (u64::from(self.hidden_size), u64::from(self.intermediate_size), u64::from(self.head_dim));
        let q_dim = u64::from(self.num_attention_heads) * hd;
        let kv_dim = u64::from(self.num_key_value_heads) * hd;
        let mut out = vec![vector(name("attn_norm.weight"), d)];
        match (ty, self.delta_net) {
            (LayerType::DeltaNet, Some(delta)) => {
                let (channels, value_dim) = (delta.conv_channels(), delta.value_dim());
                let heads = u64::from(delta.num_value_heads);
                out.extend([
                    matrix(name("attn_qkv.weight"), [d, channels]),
                    matrix(name("attn_gate.weight"), [d, value_dim]),
                    matrix(name("ssm_alpha.weight"), [d, heads]),
                    matrix(name("ssm_beta.weight"), [d, heads]),
                    Expected {
                        name: name("ssm_conv1d.weight"),
                        shape: vec![delta.conv_kernel.into(), channels],
                        kind: TensorKind::Vector,
                    },
                    vector(name("ssm_a"), heads),
                    vector(name("ssm_dt.bias"), heads),
                    vector(name("ssm_norm.weight"), delta.value_head_dim.into()),
                    matrix(name("ssm_out.weight"), [value_dim, d]),
                ]);
            }
            _ => {
                // A gated query head is followed by its gate, of the same size.
                let q_rows = match self.architecture {
                    Architecture::Qwen3 => q_dim,
                    Architecture::Qwen35 => 2 * q_dim,
                };
                out.extend([
                    matrix(name("attn_q.weight"), [d, q_rows]),
                    matrix(name("attn_k.weight"), [d, kv_dim]),
                    matrix(name("attn_v.weight"), [d, kv_dim]),
                    vector(name("attn_q_norm.weight"), hd),
                    vector(name("attn_k_norm.weight"), hd),
                    matrix(name("attn_output.weight"), [q_dim, d]),
                ]);
            }
        }
        let ffn_norm = match self.architecture {
            Architecture::Qwen3 => "ffn_norm.weight",
            Architecture::Qwen35 => "post_attention_norm.weight",
        };
        out.extend([
            vector(name(ffn_norm), d),
            matrix(name("ffn_gate.weight"), [d, f]),
            matrix(name("ffn_up.weight"), [d, f]),
            matrix(name("ffn_down.weight"), [f, d]),
        ]);
        out
    }

    /// A file without `output.weight` uses the embedding table as its head. One whose head merely
    /// has another name would run all the same and talk nonsense.
    fn check_head(&self, tensors: &Tensors<'_>) -> Result<()> {
        let shape = [u64::from(self.hidden_size), u64::from(self.vocab_size)];
        let looks_like_head = |tensor: &&TensorInfo| {
            tensor.shape == shape && tensor.name != "token_embd.weight" && block_of(&tensor.name).is_none()
        };
        match tensors.0.values().copied().find(looks_like_head) {
            Some(tensor) if self.tie_word_embeddings => {
                Err(ConfigError::UnknownHead { tensor: tensor.name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Compares the declared kind of each layer with the tensors it has.
    fn check_layer_schedule(&self, tensors: &Tensors<'_>) -> Result<()> {
        const ATTENTION_ONLY: [&str; 4] =
            ["attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"];
        const DELTA_NET_ONLY: [&str; 4] = ["ssm_a", "ssm_conv1d.weight", "ssm_out.weight", "ssm_dt.bias"];
        for (layer, &declared) in (0u32..).zip(&self.layer_types) {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let foreign = match declared {
                LayerType::Attention => DELTA_NET_ONLY,
                LayerType::DeltaNet => ATTENTION_ONLY,
            };
            if let Some(tensor) = foreign.into_iter().map(name).find(|tensor| tensors.has(tensor)) {
                return Err(ConfigError::LayerScheduleClash { layer, declared, tensor });
            }
            let fused = name("attn_qkv.weight");
            if declared == LayerType::Attention && tensors.has(&fused) {
                return Err(ConfigError::FusedQkv { tensor: fused });
            }
        }
        Ok(())
    }

    /// Checks presence, shape and type of each tensor that is read. Gives a remark about small
    /// tensors that are not F32.
    fn check_tensors(&self, tensors: &Tensors<'_>) -> Result<Option<String>> {
        let mut n_widened = 0;
        let mut widened = None;
        for Expected { name, shape, kind } in self.expected() {
            let tensor = tensors.require(&name)?;
            if tensor.shape != shape {
                return Err(ConfigError::WrongShape {
                    tensor: name,
                    found: tensor.shape.clone(),
                    expected: shape,
                });
            }
            let ty = tensor.ty;
            let unsupported =
                |supported| ConfigError::UnsupportedType { tensor: name.clone(), id: ty.id(), ty, supported };
            match kind {
                TensorKind::Matrix if !ty.is_supported() => return Err(unsupported(SUPPORTED_TYPES)),
                TensorKind::Matrix => {
                    let width = tensor.shape.first().copied().unwrap_or(0);
                    if !width.is_multiple_of(ROW_MULTIPLE) {
                        return Err(ConfigError::UnsupportedRowWidth { tensor: name, width });
                    }
                }
                TensorKind::Vector => match ty {
                    TensorType::F32 => {}
                    TensorType::F16 | TensorType::BF16 => {
                        n_widened += 1;
                        widened.get_or_insert((name.clone(), ty));
                    }
                    _ => return Err(unsupported("F32, F16, BF16 for this tensor")),
                },
            }
            if let Some(stem) = name.strip_suffix(".weight") {
                for suffix in ["scale", "bias"] {
                    let tensor = format!("{stem}.{suffix}");
                    if tensors.has(&tensor) {
                        return Err(ConfigError::UnsupportedCompanion { tensor });
                    }
                }
            }
        }
        Ok(widened.map(|(name, ty)| {
            format!("{n_widened} norm or state tensors are not F32 and are widened, first {name:?} ({ty})")
        }))
    }
}

fn matrix(name: String, shape: [u64; 2]) -> Expected {
    Expected { name, shape: shape.into(), kind: TensorKind::Matrix }
}

fn vector(name: String, size: u64) -> Expected {
    Expected { name, shape: vec![size], kind: TensorKind::Vector }
}

/// The block number of a tensor called `blk.N.something`.
fn block_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// The tensors of all parts by name.
struct Tensors<'a>(BTreeMap<&'a str, &'a TensorInfo>);

impl<'a> Tensors<'a> {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn names(&self) -> impl Iterator<Item = &'a str> {
        self.0.keys().copied()
    }

    fn require(&self, name: &str) -> Result<&'a TensorInfo> {
        self.0.get(name).copied().ok_or_else(|| ConfigError::MissingTensor { tensor: name.into() })
    }
}

/// The metadata under the prefix of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
    warnings: Vec<String>,
}

impl Keys<'_> {
    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }

    fn invalid(&self, suffix: &str, value: impl ToString, rule: impl Into<String>) -> ConfigError {
        ConfigError::InvalidValue { key: self.key(suffix), value: value.to_string(), rule: rule.into() }
    }

    fn u32(&self, suffix: &str) -> Result<Option<u32>> {
        Ok(self.metadata.get_u32(&self.key(suffix))?)
    }

    fn f32(&self, suffix: &str) -> Result<Option<f32>> {
        Ok(self.metadata.get_f32(&self.key(suffix))?)
    }

    /// An integer above zero that must be present.
    fn count(&self, suffix: &str) -> Result<u32> {
        let value = self.metadata.require_u32(&self.key(suffix))?;
        self.positive(suffix, value)
    }

    fn positive(&self, suffix: &str, value: u32) -> Result<u32> {
        if value == 0 { Err(self.invalid(suffix, value, "it must be above zero")) } else { Ok(value) }
    }

    /// An integer above zero, or an array of one such integer per block, all the same.
    fn uniform_count(&self, suffix: &str, n_blocks: u32) -> Result<Option<u32>> {
        let key = self.key(suffix);
        let value = match self.metadata.get(&key) {
            None => return Ok(None),
            Some(Value::Array(_)) => {
                let values = self.metadata.get_u32_array(&key)?.unwrap_or_default();
                if values.len() as u64 != u64::from(n_blocks) {
                    let rule = format!("it must be one number or one per block ({n_blocks})");
                    return Err(self.invalid(suffix, format!("an array of {}", values.len()), rule));
                }
                let first = values.first().copied().unwrap_or(0);
                if values.iter().any(|&value| value != first) {
                    return Err(ConfigError::NotUniform { key, values });
                }
                first
            }
            Some(_) => self.metadata.require_u32(&key)?,
        };
        self.positive(suffix, value).map(Some)
    }

    fn require_uniform_count(&self, suffix: &str, n_blocks: u32) -> Result<u32> {
        let missing = || GgufError::MissingKey { key: self.key(suffix) };
        Ok(self.uniform_count(suffix, n_blocks)?.ok_or_else(missing)?)
    }

    /// A recommendation: a value of the wrong type is ignored with a warning.
    fn hint<T>(
        &mut self,
        key: &str,
        value: signbit_gguf::Result<Option<T>>,
        valid: impl Fn(&T) -> bool,
    ) -> Option<T> {
        match value {
            Ok(value) => {
                let usable = value.filter(&valid);
                if usable.is_none() && self.metadata.contains(key) {
                    self.warnings.push(format!("{key} is out of range and ignored"));
                }
                usable
            }
            Err(error) => {
                self.warnings.push(format!("{error}; ignored"));
                None
            }
        }
    }
}

/// Refuses files that look like one of the two architectures but need more than this engine does.
fn refuse_other_kinds(keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<()> {
    if let Some((key, _)) = keys.metadata.iter().find(|(key, _)| key.starts_with("prism.")) {
        return Err(ConfigError::RotatedBasis { key: key.into() });
    }
    for suffix in ["expert_count", "expert_used_count"] {
        if keys.u32(suffix)?.is_some_and(|count| count > 0) {
            return Err(ConfigError::MixtureOfExperts { found: keys.key(suffix) });
        }
    }
    let expert_parts = ["_exps.", "_shexp.", "ffn_gate_inp"];
    if let Some(name) = tensors.names().find(|name| expert_parts.iter().any(|part| name.contains(part))) {
        return Err(ConfigError::MixtureOfExperts { found: name.into() });
    }
    if !tensors.has("blk.0.attn_norm.weight") && tensors.names().any(|name| name.contains(".nextn.")) {
        return Err(ConfigError::MtpOnly);
    }
    Ok(())
}

fn read_geometry(
    architecture: Architecture,
    keys: &mut Keys<'_>,
    tensors: &Tensors<'_>,
) -> Result<ModelConfig> {
    let n_blocks = keys.count("block_count")?;
    // Each block has tensors; this bounds the work for a file that claims billions of them.
    if n_blocks as usize > tensors.0.len() {
        return Err(keys.invalid("block_count", n_blocks, "the file has fewer tensors than that"));
    }
    let n_mtp = match architecture {
        Architecture::Qwen3 => 0,
        Architecture::Qwen35 => keys.u32("nextn_predict_layers")?.unwrap_or(0),
    };
    let num_hidden_layers = n_blocks.checked_sub(n_mtp).filter(|&n| n > 0).ok_or_else(|| {
        keys.invalid("nextn_predict_layers", n_mtp, format!("it must be below block_count ({n_blocks})"))
    })?;

    let hidden_size = keys.count("embedding_length")?;
    let context_length = keys.count("context_length")?;
    if context_length > MAX_CONTEXT {
        return Err(keys.invalid(
            "context_length",
            context_length,
            format!("it must be {MAX_CONTEXT} at most"),
        ));
    }
    let intermediate_size = keys.require_uniform_count("feed_forward_length", n_blocks)?;
    let num_attention_heads = keys.require_uniform_count("attention.head_count", n_blocks)?;
    let num_key_value_heads =
        keys.uniform_count("attention.head_count_kv", n_blocks)?.unwrap_or(num_attention_heads);
    if !num_attention_heads.is_multiple_of(num_key_value_heads) {
        let rule = format!("it must divide attention.head_count ({num_attention_heads})");
        return Err(keys.invalid("attention.head_count_kv", num_key_value_heads, rule));
    }
    let head_dim = read_head_dim(keys, hidden_size, num_attention_heads)?;
    let rms_norm_eps = keys.metadata.require_f32(&keys.key("attention.layer_norm_rms_epsilon"))?;
    if !(rms_norm_eps > 0.0 && rms_norm_eps < 1.0) {
        return Err(keys.invalid(
            "attention.layer_norm_rms_epsilon",
            rms_norm_eps,
            "it must be between 0 and 1",
        ));
    }
    let attention_scale = match keys.f32("attention.scale")? {
        None | Some(0.0) => (1.0 / f64::from(head_dim).sqrt()) as f32,
        Some(scale) if scale > 0.0 && scale.is_finite() => scale,
        Some(scale) => {
            return Err(keys.invalid("attention.scale", scale, "it must be finite and not negative"));
        }
    };
    let rope = read_rope(architecture, keys, head_dim, context_length)?;
    let (delta_net, layer_types) = match architecture {
        Architecture::Qwen3 => (None, vec![LayerType::Attention; num_hidden_layers as usize]),
        Architecture::Qwen35 => {
            (Some(read_delta_net(keys)?), read_layer_types(keys, n_blocks, num_hidden_layers)?)
        }
    };
    let (vocab_size, n_tokens) = read_vocab(keys, tensors)?;
    let name = keys.metadata.get_str("general.name").ok().flatten().map(str::to_owned);
    Ok(ModelConfig {
        architecture,
        hidden_size,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        intermediate_size,
        vocab_size,
        n_tokens,
        context_length,
        rms_norm_eps,
        attention_scale,
        rope,
        delta_net,
        layer_types,
        tie_word_embeddings: !tensors.has("output.weight"),
        name,
        sampling: read_sampling(keys),
        warnings: Vec::new(),
    })
}

/// The size of an attention head; the same for queries, keys and values in these models.
fn read_head_dim(keys: &Keys<'_>, hidden_size: u32, num_attention_heads: u32) -> Result<u32> {
    let head_dim = match keys.u32("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_attention_heads) => hidden_size / num_attention_heads,
        None => {
            let rule =
                format!("without attention.key_length it must divide embedding_length ({hidden_size})");
            return Err(keys.invalid("attention.head_count", num_attention_heads, rule));
        }
    };
    if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(4) {
        let rule = format!("it must be a multiple of 4 up to {MAX_HEAD_DIM}");
        return Err(keys.invalid("attention.key_length", head_dim, rule));
    }
    match keys.u32("attention.value_length")? {
        Some(value) if value != head_dim => {
            let rule = format!("it must be the same as attention.key_length ({head_dim})");
            Err(keys.invalid("attention.value_length", value, rule))
        }
        _ => Ok(head_dim),
    }
}

fn read_rope(
    architecture: Architecture,
    keys: &mut Keys<'_>,
    head_dim: u32,
    context_length: u32,
) -> Result<RopeConfig> {
    let n_rot = keys.u32("rope.dimension_count")?.unwrap_or(head_dim);
    if n_rot == 0 || n_rot > head_dim || !n_rot.is_multiple_of(2) {
        let rule = format!("it must be even and at most the head size ({head_dim})");
        return Err(keys.invalid("rope.dimension_count", n_rot, rule));
    }
    let theta = keys.f32("rope.freq_base")?.unwrap_or(10_000.0);
    if !(theta > 1.0 && theta.is_finite()) {
        return Err(keys.invalid("rope.freq_base", theta, "it must be finite and above 1"));
    }
    let sections = match architecture {
        Architecture::Qwen3 => None,
        Architecture::Qwen35 => {
            let key = keys.key("rope.dimension_sections");
            let missing = || GgufError::MissingKey { key: key.clone() };
            let sections = keys.metadata.get_u32_array(&key)?.ok_or_else(missing)?;
            let four = <[u32; 4]>::try_from(sections.as_slice());
            Some(four.map_err(|_| {
                keys.invalid("rope.dimension_sections", format!("{sections:?}"), "it must be four numbers")
            })?)
        }
    };
    let scaling = read_rope_scaling(keys, context_length)?;
    Ok(RopeConfig { n_rot, theta, scaling, sections })
}

fn read_rope_scaling(keys: &mut Keys<'_>, context_length: u32) -> Result<RopeScaling> {
    const FACTOR: &str = "rope.scaling.factor";
    const ATTN_FACTOR: &str = "rope.scaling.attn_factor";
    let ignored = keys.key("rope.scaling.yarn_");
    for (key, _) in keys.metadata.iter().filter(|(key, _)| key.starts_with(&ignored)) {
        keys.warnings.push(format!("{key} is ignored for this architecture"));
    }
    let factor = match keys.f32(FACTOR)? {
        Some(factor) => Some(factor),
        None => keys.f32("rope.scale_linear")?,
    };
    // Zero stands for "not set".
    let factor = factor.filter(|&factor| factor != 0.0).unwrap_or(1.0);
    if !(factor > 0.0 && factor.is_finite()) {
        return Err(keys.invalid(FACTOR, factor, "it must be finite and not negative"));
    }
    let attn_factor = keys.f32(ATTN_FACTOR)?.unwrap_or(1.0);
    if !(attn_factor > 0.0 && attn_factor.is_finite()) {
        return Err(keys.invalid(ATTN_FACTOR, attn_factor, "it must be finite and above zero"));
    }
    let scaling = match keys.metadata.get_str(&keys.key("rope.scaling.type"))? {
        Some("yarn") => {
            if factor < 1.0 {
                return Err(keys.invalid(FACTOR, factor, "it must be at least 1 for yarn"));
            }
            const ORIGINAL: &str = "rope.scaling.original_context_length";
            let original = keys.u32(ORIGINAL)?.unwrap_or(context_length);
            let original_context_length = keys.positive(ORIGINAL, original)?;
            return Ok(RopeScaling::Yarn { factor, original_context_length, attn_factor });
        }
        Some("none") => RopeScaling::None,
        None | Some("linear") if factor == 1.0 => RopeScaling::None,
        None | Some("linear") => RopeScaling::Linear { factor },
        Some(other) => return Err(ConfigError::UnsupportedRopeScaling { kind: other.into() }),
    };
    if attn_factor != 1.0 {
        return Err(keys.invalid(ATTN_FACTOR, attn_factor, "it is only supported with yarn"));
    }
    Ok(scaling)
}

fn read_delta_net(keys: &Keys<'_>) -> Result<DeltaNetConfig> {
    let conv_kernel = keys.count("ssm.conv_kernel")?;
    if !(2..=MAX_CONV_KERNEL).contains(&conv_kernel) {
        let rule = format!("it must be 2 to {MAX_CONV_KERNEL}");
        return Err(keys.invalid("ssm.conv_kernel", conv_kernel, rule));
    }
    let state_size = keys.count("ssm.state_size")?;
    if state_size > MAX_HEAD_DIM || !state_size.is_multiple_of(4) {
        let rule = format!("it must be a multiple of 4 up to {MAX_HEAD_DIM}");
        return Err(keys.invalid("ssm.state_size", state_size, rule));
    }
    let num_key_heads = keys.count("ssm.group_count")?;
    let num_value_heads = keys.count("ssm.time_step_rank")?;
    if !num_value_heads.is_multiple_of(num_key_heads) {
        let rule = format!("it must be a multiple of ssm.group_count ({num_key_heads})");
        return Err(keys.invalid("ssm.time_step_rank", num_value_heads, rule));
    }
    let delta_net = DeltaNetConfig {
        num_key_heads,
        num_value_heads,
        key_head_dim: state_size,
        value_head_dim: state_size,
        conv_kernel,
    };
    let inner_size = keys.count("ssm.inner_size")?;
    if u64::from(inner_size) != delta_net.value_dim() {
        let rule = format!("it must be ssm.time_step_rank times ssm.state_size ({})", delta_net.value_dim());
        return Err(keys.invalid("ssm.inner_size", inner_size, rule));
    }
    Ok(delta_net)
}

/// The list of recurrent layers decides; without it, every `full_attention_interval`-th layer is
/// attention.
fn read_layer_types(keys: &Keys<'_>, n_blocks: u32, num_hidden_layers: u32) -> Result<Vec<LayerType>> {
    const RECURRENT: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    let kind = |recurrent| if recurrent { LayerType::DeltaNet } else { LayerType::Attention };
    if let Some(recurrent) = keys.metadata.get_bool_array(&keys.key(RECURRENT))? {
        if recurrent.len() != n_blocks as usize {
            let rule = format!("it must have one entry per block ({n_blocks})");
            return Err(keys.invalid(RECURRENT, format!("a list of {}", recurrent.len()), rule));
        }
        return Ok(recurrent.iter().take(num_hidden_layers as usize).map(|&r| kind(r)).collect());
    }
    let interval = keys.positive(INTERVAL, keys.u32(INTERVAL)?.unwrap_or(4))?;
    Ok((1..=num_hidden_layers).map(|number| kind(!number.is_multiple_of(interval))).collect())
}

/// Rows of the embedding table, and entries of the tokenizer.
fn read_vocab(keys: &mut Keys<'_>, tensors: &Tensors<'_>) -> Result<(u32, u32)> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let embedding = tensors.require("token_embd.weight")?;
    let rows = embedding.shape.get(1).copied().unwrap_or(0);
    let invalid = |key: &str, value: u64, rule: String| {
        Err(ConfigError::InvalidValue { key: key.into(), value: value.to_string(), rule })
    };
    let Ok(vocab_size) = u32::try_from(rows) else {
        return invalid("the number of rows of token_embd.weight", rows, "it must fit 32 bits".into());
    };
    let n_tokens = keys.metadata.require_str_array(TOKENS)?.len() as u64;
    let n_tokens = match u32::try_from(n_tokens) {
        Ok(n) if n > 0 && n <= vocab_size => n,
        _ => {
            let rule = format!("it must be between 1 and the rows of token_embd.weight ({vocab_size})");
            return invalid("the length of tokenizer.ggml.tokens", n_tokens, rule);
        }
    };
    if let Some(declared) = keys.u32("vocab_size")?
        && declared != vocab_size
    {
        let key = keys.key("vocab_size");
        keys.warnings.push(format!("{key} is {declared}, but the embedding table has {vocab_size} rows"));
    }
    Ok((vocab_size, n_tokens))
}

fn read_sampling(keys: &mut Keys<'_>) -> SamplingHints {
    let metadata = keys.metadata;
    let mut f32_hint = |name: &str, max: f32| {
        let key = format!("general.sampling.{name}");
        keys.hint(&key, metadata.get_f32(&key), |value| (0.0..=max).contains(value))
    };
    let (temperature, top_p, min_p) =
        (f32_hint("temp", 100.0), f32_hint("top_p", 1.0), f32_hint("min_p", 1.0));
    let key = "general.sampling.top_k";
    SamplingHints { temperature, top_k: keys.hint(key, metadata.get_u32(key), |_| true), top_p, min_p }
}
