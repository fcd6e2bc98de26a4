//! The gate between a file and the kernels: geometry of real and miniature models, and every
//! reason to refuse a file. Tensor lists and sizes are written down here from the models'
//! descriptions, independently of the code under test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]

use std::path::PathBuf;

use signbit_engine::config::{
    Architecture, ConfigError as E, DeltaNetConfig, LayerType, MAX_CONTEXT, ModelConfig, RopeConfig,
    RopeScaling, SamplingHints, SkipReason,
};
use signbit_gguf::{GgufError, GgufWriter, Header, SUPPORTED_TYPES, TensorInfo, TensorType, Value};

const F32: TensorType = TensorType::F32;
const Q1_0: TensorType = TensorType::Q1_0;

/// Sizes of a model: layers, D, F, Hq, Hkv, head size, rows of the embedding table.
#[derive(Clone, Copy)]
struct Sizes {
    layers: u32,
    d: u64,
    f: u64,
    q_heads: u64,
    kv_heads: u64,
    head: u64,
    vocab: u64,
    tied: bool,
}

/// Key heads, value heads, head size of the DeltaNet layers, and how many layers make a period.
#[derive(Clone, Copy)]
struct Delta {
    key_heads: u64,
    value_heads: u64,
    head: u64,
    interval: u32,
}

/// A header in the making.
#[derive(Clone)]
struct Model {
    prefix: &'static str,
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, TensorType)>,
}

impl Model {
    fn new(prefix: &'static str, s: Sizes) -> Self {
        let mut model = Self { prefix, keys: Vec::new(), tensors: Vec::new() };
        model.set("general.architecture", prefix).set("tokenizer.ggml.tokens", vec!["a", "b", "c"]);
        model.put("block_count", s.layers).put("context_length", 4096u32).put("embedding_length", s.d as u32);
        model.put("feed_forward_length", s.f as u32).put("attention.head_count", s.q_heads as u32);
        model.put("attention.head_count_kv", s.kv_heads as u32).put("attention.key_length", s.head as u32);
        model.put("attention.value_length", s.head as u32).put("attention.layer_norm_rms_epsilon", 1e-6f32);
        model.add("token_embd.weight", &[s.d, s.vocab], Q1_0).add("output_norm.weight", &[s.d], F32);
        if !s.tied {
            model.add("output.weight", &[s.d, s.vocab], Q1_0);
        }
        model
    }

    fn qwen3(s: Sizes) -> Self {
        let mut model = Self::new("qwen3", s);
        for layer in 0..s.layers {
            model.add_attention(layer, s, s.q_heads * s.head).add_ffn(layer, s, "ffn_norm.weight");
        }
        model
    }

    fn qwen35(s: Sizes, delta: Delta) -> Self {
        let mut model = Self::new("qwen35", s);
        let (dk, dv) = (delta.key_heads * delta.head, delta.value_heads * delta.head);
        model.put("rope.dimension_sections", vec![11, 11, 10, 0]).put("rope.freq_base", 1e7f32);
        model.put("rope.dimension_count", (s.head / 4) as u32).put("ssm.conv_kernel", 4u32);
        model.put("ssm.state_size", delta.head as u32).put("ssm.group_count", delta.key_heads as u32);
        model.put("ssm.time_step_rank", delta.value_heads as u32).put("ssm.inner_size", dv as u32);
        model.put("full_attention_interval", delta.interval);
        for layer in 0..s.layers {
            if (layer + 1) % delta.interval == 0 {
                model.add_attention(layer, s, 2 * s.q_heads * s.head);
            } else {
                let channels = 2 * dk + dv;
                let heads = delta.value_heads;
                let b = |part: &str| format!("blk.{layer}.{part}");
                model.add(&b("attn_norm.weight"), &[s.d], F32);
                model.add(&b("attn_qkv.weight"), &[s.d, channels], Q1_0).add(
                    &b("attn_gate.weight"),
                    &[s.d, dv],
                    Q1_0,
                );
                model.add(&b("ssm_alpha.weight"), &[s.d, heads], Q1_0).add(
                    &b("ssm_beta.weight"),
                    &[s.d, heads],
                    Q1_0,
                );
                model.add(&b("ssm_conv1d.weight"), &[4, channels], F32).add(&b("ssm_a"), &[heads], F32);
                model.add(&b("ssm_dt.bias"), &[heads], F32).add(&b("ssm_norm.weight"), &[delta.head], F32);
                model.add(&b("ssm_out.weight"), &[dv, s.d], Q1_0);
            }
            model.add_ffn(layer, s, "post_attention_norm.weight");
        }
        model
    }

    fn add_attention(&mut self, layer: u32, s: Sizes, q_rows: u64) -> &mut Self {
        let b = |part: &str| format!("blk.{layer}.{part}");
        let kv_rows = s.kv_heads * s.head;
        self.add(&b("attn_norm.weight"), &[s.d], F32).add(&b("attn_q.weight"), &[s.d, q_rows], Q1_0);
        self.add(&b("attn_k.weight"), &[s.d, kv_rows], Q1_0).add(&b("attn_v.weight"), &[s.d, kv_rows], Q1_0);
        self.add(&b("attn_q_norm.weight"), &[s.head], F32).add(&b("attn_k_norm.weight"), &[s.head], F32);
        self.add(&b("attn_output.weight"), &[s.q_heads * s.head, s.d], Q1_0)
    }

    fn add_ffn(&mut self, layer: u32, s: Sizes, norm: &str) -> &mut Self {
        let b = |part: &str| format!("blk.{layer}.{part}");
        self.add(&b(norm), &[s.d], F32).add(&b("ffn_gate.weight"), &[s.d, s.f], Q1_0);
        self.add(&b("ffn_up.weight"), &[s.d, s.f], Q1_0).add(&b("ffn_down.weight"), &[s.f, s.d], Q1_0)
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.unset(key);
        self.keys.push((key.into(), value.into()));
        self
    }

    fn unset(&mut self, key: &str) -> &mut Self {
        self.keys.retain(|(found, _)| found != key);
        self
    }

    /// Sets a key under the architecture's prefix.
    fn put(&mut self, suffix: &str, value: impl Into<Value>) -> &mut Self {
        self.set(&format!("{}.{suffix}", self.prefix), value)
    }

    /// Removes a key under the architecture's prefix.
    fn cut(&mut self, suffix: &str) -> &mut Self {
        self.unset(&format!("{}.{suffix}", self.prefix))
    }

    fn add(&mut self, name: &str, shape: &[u64], ty: TensorType) -> &mut Self {
        self.tensors.push((name.into(), shape.into(), ty));
        self
    }

    fn tensor(&mut self, name: &str) -> &mut (String, Vec<u64>, TensorType) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }

    fn drop_tensor(&mut self, name: &str) -> &mut Self {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.0 != name);
        assert_eq!(self.tensors.len() + 1, before, "{name}");
        self
    }

    /// The header as the reader would give it; the data of large models is never made.
    fn header(&self) -> Header {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        let mut header = Header::parse_file(&writer.finish()).unwrap();
        for (name, shape, ty) in &self.tensors {
            let n_elems: u64 = shape.iter().product();
            let n_bytes = n_elems / u64::from(ty.block_len()) * u64::from(ty.block_bytes());
            header.tensors.push(TensorInfo {
                name: name.clone(),
                shape: shape.clone(),
                ty: *ty,
                offset: 0,
                n_bytes,
            });
        }
        header
    }

    fn config(&self) -> Result<ModelConfig, E> {
        ModelConfig::from_header(&self.header())
    }
}

const TINY: Sizes =
    Sizes { layers: 4, d: 256, f: 384, q_heads: 6, kv_heads: 2, head: 64, vocab: 640, tied: false };
const TINY_DELTA: Delta = Delta { key_heads: 2, value_heads: 6, head: 128, interval: 4 };

fn tiny_qwen3() -> Model {
    Model::qwen3(TINY)
}

fn tiny_qwen35() -> Model {
    Model::qwen35(TINY, TINY_DELTA)
}

/// Checks that a change to the model is refused with exactly this error.
#[track_caller]
fn refused(model: fn() -> Model, change: impl FnOnce(&mut Model), expected: E) {
    let mut changed = model();
    assert!(changed.config().is_ok(), "the model must be good before it is changed");
    change(&mut changed);
    assert_eq!(changed.config(), Err(expected));
}

#[track_caller]
fn invalid(model: fn() -> Model, change: impl FnOnce(&mut Model), key: &str, value: &str) {
    let mut changed = model();
    assert!(changed.config().is_ok(), "the model must be good before it is changed");
    change(&mut changed);
    match changed.config() {
        Err(E::InvalidValue { key: found_key, value: found_value, rule }) => {
            assert_eq!((found_key.as_str(), found_value.as_str()), (key, value), "{rule}");
        }
        other => panic!("{key} = {value} gives {other:?}"),
    }
}

#[test]
fn geometry_of_a_hybrid() {
    let config = tiny_qwen35().config().unwrap();
    let expected = ModelConfig {
        architecture: Architecture::Qwen35,
        hidden_size: 256,
        num_hidden_layers: 4,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 64,
        intermediate_size: 384,
        vocab_size: 640,
        n_tokens: 3,
        context_length: 4096,
        rms_norm_eps: 1e-6,
        attention_scale: 0.125,
        rope: RopeConfig {
            n_rot: 16,
            theta: 1e7,
            scaling: RopeScaling::None,
            sections: Some([11, 11, 10, 0]),
        },
        delta_net: Some(DeltaNetConfig {
            num_key_heads: 2,
            num_value_heads: 6,
            key_head_dim: 128,
            value_head_dim: 128,
            conv_kernel: 4,
        }),
        layer_types: vec![
            LayerType::DeltaNet,
            LayerType::DeltaNet,
            LayerType::DeltaNet,
            LayerType::Attention,
        ],
        tie_word_embeddings: false,
        name: None,
        sampling: SamplingHints::default(),
        warnings: vec![],
    };
    assert_eq!(config, expected);
}

/// Matrices and small tensors of the published files: numbers and bytes. The 27B file has 851
/// tensors; the 4B and 8B files have 31,418,660 and 63,970,624 scales for 128 weights each.
#[test]
fn published_sizes() {
    let sizes = |layers, d, f, q_heads, kv_heads, head, vocab, tied| Sizes {
        layers,
        d,
        f,
        q_heads,
        kv_heads,
        head,
        vocab,
        tied,
    };
    let delta = Delta { key_heads: 16, value_heads: 48, head: 128, interval: 4 };
    let large = Model::qwen35(sizes(64, 5120, 17_408, 24, 4, 256, 248_320, false), delta);
    let models = [
        (Model::qwen3(sizes(36, 2560, 9728, 32, 8, 128, 151_669, true)), 31_418_660 * 18),
        (Model::qwen3(sizes(36, 4096, 12_288, 32, 8, 128, 151_669, false)), 63_970_624 * 18),
        (large.clone(), 3_781_877_760),
    ];
    for (model, matrix_bytes) in models {
        let header = model.header();
        let config = ModelConfig::from_header(&header).unwrap();
        let expected = config.expected_tensors();
        assert_eq!(expected.len(), header.tensors.len());
        let bytes = |wanted: TensorType| -> u64 {
            let read = header.tensors.iter().filter(|tensor| tensor.ty == wanted);
            read.filter(|tensor| {
                expected.iter().any(|(name, shape)| *name == tensor.name && *shape == tensor.shape)
            })
            .map(|tensor| tensor.n_bytes)
            .sum()
        };
        assert_eq!(bytes(Q1_0), matrix_bytes);
        if config.architecture == Architecture::Qwen35 {
            assert_eq!((expected.len(), bytes(F32)), (851, 10_582_016));
        }
        assert_eq!(config.skipped_tensors(&header), []);
    }
    let config = large.config().unwrap();
    let attention: Vec<usize> =
        (0..64).filter(|&layer| config.layer_types[layer] == LayerType::Attention).collect();
    assert_eq!(attention, (3..64).step_by(4).collect::<Vec<_>>());
    assert_eq!((config.attention_scale, config.rope.n_rot), (1.0 / 16.0, 64));
}

/// Stated in the notes of each miniature model: name, layers, D, F, Hq, Hkv, head size, theta,
/// rotated dimensions, DeltaNet (key heads, value heads, head size), rows, tied, attention layers.
type Stated =
    (&'static str, u32, u32, u32, u32, u32, u32, f32, u32, Option<[u32; 3]>, u32, bool, &'static [u32]);

const STATED: [Stated; 15] = [
    ("qwen3-f16", 3, 128, 256, 4, 2, 64, 1e6, 64, None, 640, false, &[0, 1, 2]),
    ("qwen3-q1_0", 5, 256, 512, 4, 2, 128, 1e6, 128, None, 640, true, &[0, 1, 2, 3, 4]),
    ("qwen3-q2_0", 3, 256, 512, 4, 2, 128, 1e6, 128, None, 640, false, &[0, 1, 2]),
    ("qwen3-q4_0", 5, 128, 256, 4, 2, 64, 1e6, 64, None, 640, true, &[0, 1, 2, 3, 4]),
    ("qwen3-q8_0", 3, 128, 256, 4, 2, 64, 1e6, 64, None, 640, true, &[0, 1, 2]),
    ("qwen35-f16", 4, 128, 96, 6, 2, 32, 1e7, 8, Some([2, 4, 64]), 640, true, &[3]),
    ("qwen35-f32", 4, 128, 96, 6, 2, 32, 1e7, 8, Some([2, 4, 64]), 640, true, &[3]),
    ("qwen35-mixed", 4, 256, 384, 6, 2, 64, 1e7, 16, Some([4, 4, 64]), 605, false, &[1, 3]),
    ("qwen35-q1_0", 8, 256, 384, 6, 2, 64, 1e7, 16, Some([2, 6, 128]), 640, false, &[3, 7]),
    ("qwen35-q2_0", 4, 256, 384, 6, 2, 64, 1e7, 16, Some([2, 6, 128]), 640, false, &[3]),
    ("qwen35-q4_0", 4, 128, 256, 6, 2, 64, 1e7, 16, Some([2, 6, 64]), 640, false, &[3]),
    ("qwen35-q8_0", 4, 128, 256, 6, 2, 64, 1e7, 16, Some([2, 6, 64]), 640, false, &[3]),
    ("qwen35-tied-q1_0", 8, 256, 384, 6, 2, 64, 1e7, 16, Some([2, 6, 128]), 640, true, &[3, 7]),
    ("tiny-geo", 4, 256, 768, 2, 1, 256, 1e7, 64, Some([1, 2, 128]), 4096, true, &[3]),
    ("Signbit Mini", 8, 256, 768, 2, 1, 256, 1e7, 64, Some([2, 4, 128]), 4096, true, &[3, 7]),
];

#[test]
fn miniature_models_have_the_stated_geometry() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, layers, d, f, q_heads, kv_heads, head, theta, n_rot, delta, vocab, tied, attention) in STATED {
        let path = match name {
            "tiny-geo" => root.join("tests/golden/tiny-geo/model.gguf"),
            "Signbit Mini" => root.join("models/signbit-mini.gguf"),
            _ => root.join(format!("tests/golden/models/{name}/model.gguf")),
        };
        let header = Header::parse_file(&std::fs::read(path).unwrap()).unwrap();
        let config = ModelConfig::from_header(&header).unwrap();
        assert_eq!(config.name.as_deref(), Some(name));
        let found = (config.num_hidden_layers, config.hidden_size, config.intermediate_size);
        assert_eq!(found, (layers, d, f), "{name}");
        let found = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
        assert_eq!(found, (q_heads, kv_heads, head), "{name}");
        let sections = delta.map(|_| [11, 11, 10, 0]);
        assert_eq!(config.rope, RopeConfig { n_rot, theta, scaling: RopeScaling::None, sections }, "{name}");
        let delta_net = delta.map(|[num_key_heads, num_value_heads, head]| DeltaNetConfig {
            num_key_heads,
            num_value_heads,
            key_head_dim: head,
            value_head_dim: head,
            conv_kernel: 4,
        });
        assert_eq!(config.delta_net, delta_net, "{name}");
        assert_eq!((config.vocab_size, config.tie_word_embeddings), (vocab, tied), "{name}");
        assert_eq!(config.rms_norm_eps, 1e-6, "{name}");
        let is_attention = |&layer: &u32| config.layer_types[layer as usize] == LayerType::Attention;
        assert_eq!((0..layers).filter(is_attention).collect::<Vec<_>>(), attention, "{name}");

        // Every tensor is either read, with the shape it has, or of the extra prediction block.
        let expected = config.expected_tensors();
        let skipped = config.skipped_tensors(&header);
        assert_eq!(expected.len() + skipped.len(), header.tensors.len(), "{name}");
        for (tensor, shape) in expected {
            assert_eq!(header.tensor(&tensor).unwrap().shape, shape, "{name} {tensor}");
        }
        assert_eq!(skipped.is_empty(), name != "qwen35-tied-q1_0", "{name}");
        assert!(
            skipped
                .iter()
                .all(|(name, reason)| name.starts_with("blk.8.") && *reason == SkipReason::MtpBlock)
        );
    }
}

#[test]
fn defaults() {
    let mut model = tiny_qwen3();
    model.cut("attention.head_count_kv").cut("attention.key_length").cut("attention.value_length");
    model.put("attention.head_count", 4u32).put("attention.scale", 0.0f32);
    for layer in 0..4 {
        let b = |part: &str| format!("blk.{layer}.{part}");
        for part in ["attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"] {
            model.tensor(&b(part)).1 = vec![256, 256];
        }
    }
    let config = model.config().unwrap();
    assert_eq!((config.num_key_value_heads, config.head_dim, config.rope.n_rot), (4, 64, 64));
    assert_eq!((config.rope.theta, config.rope.scaling), (10_000.0, RopeScaling::None));
    assert_eq!(config.attention_scale, 0.125);
    model.put("attention.scale", 0.25f32);
    assert_eq!(model.config().unwrap().attention_scale, 0.25);
}

#[test]
fn sampling_hints_and_name() {
    let mut model = tiny_qwen3();
    model.set("general.sampling.temp", 0.5f32).set("general.sampling.top_k", 20i32);
    model.set("general.sampling.top_p", 0.85f32).set("general.name", "Mini");
    let config = model.config().unwrap();
    let expected = SamplingHints { temperature: Some(0.5), top_k: Some(20), top_p: Some(0.85), min_p: None };
    assert_eq!((config.sampling, config.name.as_deref(), config.warnings.len()), (expected, Some("Mini"), 0));
    model.set("general.sampling.temp", f32::NAN).set("general.sampling.top_k", -1i32);
    model
        .set("general.sampling.top_p", 1.5f32)
        .set("general.sampling.min_p", "0.1")
        .set("general.name", 3u32);
    let config = model.config().unwrap();
    assert_eq!((config.sampling, config.name), (SamplingHints::default(), None));
    assert_eq!(config.warnings.len(), 4, "{:?}", config.warnings);
}

fn assert_close(found: f64, expected: f64, relative: f64) {
    assert!((found - expected).abs() <= relative * expected.abs(), "{found} is not {expected}");
}

/// Angles of the 27B model at position 5, stated to ten digits.
#[test]
fn plain_rope_angles() {
    let rope = RopeConfig { n_rot: 64, theta: 1e7, scaling: RopeScaling::None, sections: None };
    let inv_freq = rope.inv_freq();
    assert_eq!(inv_freq.len(), 32);
    for (pair, angle) in [
        (0, 5.0),
        (1, 3.021_481_951_190_664_5),
        (10, 0.032_469_081_577_8),
        (20, 2.108_482_517_14e-4),
        (31, 8.274_085_499_7e-7),
    ] {
        assert_close(5.0 * inv_freq[pair], angle, 5e-11);
    }
    assert_eq!(rope.magnitude(), 1.0);
    let linear = RopeConfig { scaling: RopeScaling::Linear { factor: 4.0 }, ..rope };
    assert_eq!(linear.inv_freq(), inv_freq.iter().map(|inv| inv / 4.0).collect::<Vec<_>>());
    assert_eq!(linear.magnitude(), 1.0);
}

/// YaRN of the 8B and 4B models: frequencies at spots, and how many pairs are kept, ramped and
/// divided. The last frequency is printed to 8 digits, the others to at least 10.
#[test]
fn yarn_frequencies() {
    let yarn = |theta, original_context_length| RopeConfig {
        n_rot: 128,
        theta,
        scaling: RopeScaling::Yarn { factor: 4.0, original_context_length, attn_factor: 1.0 },
        sections: None,
    };
    let spots_8b =
        [(20, 0.013_335_214_321_6), (25, 0.003_531_969_599_89), (30, 8.605_471_763e-4), (63, 3.102_344_4e-7)];
    let spots_4b = [(20, 0.006_048_297_391_42), (25, 0.001_208_328_019_74), (63, 6.362_699_5e-8)];
    for (rope, spots, counts) in
        [(yarn(1e6, 16_384), &spots_8b[..], [21, 16, 27]), (yarn(5e6, 8192), &spots_4b, [16, 14, 34])]
    {
        let inv_freq = rope.inv_freq();
        for &(pair, expected) in spots {
            assert_close(inv_freq[pair], expected, if pair == 63 { 2e-8 } else { 1e-10 });
        }
        let plain = RopeConfig { scaling: RopeScaling::None, ..rope.clone() }.inv_freq();
        let mut found = [0; 3];
        for (inv, plain) in inv_freq.iter().zip(plain) {
            let kind = if *inv == plain {
                0
            } else if *inv == plain / 4.0 {
                2
            } else {
                1
            };
            found[kind] += 1;
        }
        assert_eq!(found, counts);
        assert_close(rope.magnitude(), 1.138_629_436_111_989, 1e-15);
        let RopeScaling::Yarn { factor, original_context_length, .. } = rope.scaling else {
            panic!("not yarn")
        };
        let scaling = RopeScaling::Yarn { factor, original_context_length, attn_factor: 0.5 };
        assert_close(RopeConfig { scaling, ..rope }.magnitude(), 1.138_629_436_111_989 / 2.0, 1e-15);
    }
}

#[test]
fn rope_scaling_keys() {
    let scaling = |change: &dyn Fn(&mut Model)| {
        let mut model = tiny_qwen3();
        change(&mut model);
        let config = model.config().unwrap();
        (config.rope.scaling, config.warnings.len())
    };
    let (none, linear) = (RopeScaling::None, RopeScaling::Linear { factor: 4.0 });
    let yarn = |factor, original_context_length, attn_factor| RopeScaling::Yarn {
        factor,
        original_context_length,
        attn_factor,
    };
    const TYPE: &str = "rope.scaling.type";
    const FACTOR: &str = "rope.scaling.factor";
    assert_eq!(
        scaling(&|m| {
            m.put(FACTOR, 4.0f32);
        }),
        (linear, 0),
        "a factor alone is linear"
    );
    assert_eq!(
        scaling(&|m| {
            m.put("rope.scale_linear", 4.0f32);
        }),
        (linear, 0),
        "the old key"
    );
    assert_eq!(
        scaling(&|m| {
            m.put(TYPE, "linear").put(FACTOR, 4.0f32);
        }),
        (linear, 0)
    );
    assert_eq!(
        scaling(&|m| {
            m.put(TYPE, "linear");
        }),
        (none, 0),
        "a missing factor is 1"
    );
    assert_eq!(
        scaling(&|m| {
            m.put(FACTOR, 0.0f32);
        }),
        (none, 0),
        "zero is not set"
    );
    assert_eq!(
        scaling(&|m| {
            m.put(TYPE, "none").put(FACTOR, 4.0f32);
        }),
        (none, 0)
    );
    assert_eq!(
        scaling(&|m| {
            m.put(TYPE, "yarn").put(FACTOR, 4.0f32);
        }),
        (yarn(4.0, 4096, 1.0), 0)
    );
    let full = |m: &mut Model| {
        m.put(TYPE, "yarn").put(FACTOR, 4.0f32).put("rope.scaling.original_context_length", 1024u32);
        m.put("rope.scaling.attn_factor", 0.5f32).put("rope.scaling.yarn_beta_fast", 16.0f32);
        m.put("rope.scaling.yarn_ext_factor", 0.0f32).put("rope.scaling.finetuned", true);
    };
    assert_eq!(scaling(&full), (yarn(4.0, 1024, 0.5), 2), "ignored keys are reported");

    for kind in ["longrope", "dynamic", ""] {
        refused(
            tiny_qwen3,
            |m| {
                m.put(TYPE, kind);
            },
            E::UnsupportedRopeScaling { kind: kind.into() },
        );
    }
    let yarn_with = |m: &mut Model, key: &str, value: Value| {
        m.put(TYPE, "yarn").put(key, value);
    };
    invalid(tiny_qwen3, |m| yarn_with(m, FACTOR, Value::F32(0.5)), "qwen3.rope.scaling.factor", "0.5");
    invalid(tiny_qwen3, |m| yarn_with(m, FACTOR, Value::F32(f32::NAN)), "qwen3.rope.scaling.factor", "NaN");
    invalid(tiny_qwen3, |m| yarn_with(m, FACTOR, Value::F32(-1.0)), "qwen3.rope.scaling.factor", "-1");
    let original = "rope.scaling.original_context_length";
    invalid(
        tiny_qwen3,
        |m| yarn_with(m, original, Value::U32(0)),
        "qwen3.rope.scaling.original_context_length",
        "0",
    );
    let attn_factor = "rope.scaling.attn_factor";
    invalid(
        tiny_qwen3,
        |m| yarn_with(m, attn_factor, Value::F32(0.0)),
        "qwen3.rope.scaling.attn_factor",
        "0",
    );
    invalid(
        tiny_qwen3,
        |m| {
            m.put(attn_factor, 2.0f32);
        },
        "qwen3.rope.scaling.attn_factor",
        "2",
    );
}

#[test]
fn other_kinds_of_model() {
    for found in ["llama", "qwen3moe", "clip", ""] {
        let expected = E::UnsupportedArchitecture { found: found.into() };
        refused(
            tiny_qwen3,
            |m| {
                m.set("general.architecture", found);
            },
            expected,
        );
    }
    let missing = |key: &str| E::Gguf(GgufError::MissingKey { key: key.into() });
    refused(
        tiny_qwen3,
        |m| {
            m.unset("general.architecture");
        },
        missing("general.architecture"),
    );
    for key in ["prism.hadamard.version", "prism.hadamard.weight_names", "prism.other"] {
        refused(
            tiny_qwen35,
            |m| {
                m.set(key, 1u32);
            },
            E::RotatedBasis { key: key.into() },
        );
    }
    for key in ["expert_count", "expert_used_count"] {
        let found = format!("qwen35.{key}");
        refused(
            tiny_qwen35,
            |m| {
                m.put(key, 8u32);
            },
            E::MixtureOfExperts { found },
        );
        assert!(tiny_qwen35().put(key, 0u32).config().is_ok(), "zero experts are none");
    }
    for name in ["blk.0.ffn_up_exps.weight", "blk.1.ffn_gate_inp.weight", "blk.0.ffn_down_shexp.weight"] {
        let expected = E::MixtureOfExperts { found: name.into() };
        refused(
            tiny_qwen35,
            |m| {
                m.add(name, &[256, 8, 8], Q1_0);
            },
            expected,
        );
    }
    let only_mtp = |m: &mut Model| {
        m.tensors.retain(|tensor| !tensor.0.starts_with("blk."));
        m.put("block_count", 5u32).put("nextn_predict_layers", 1u32);
        m.add("blk.4.attn_norm.weight", &[256], F32).add("blk.4.nextn.eh_proj.weight", &[512, 256], Q1_0);
    };
    refused(tiny_qwen35, only_mtp, E::MtpOnly);
}

#[test]
fn companions_that_would_change_the_result() {
    for tensor in ["blk.0.ffn_up.scale", "blk.3.attn_q.bias", "output.scale", "blk.1.ssm_conv1d.bias"] {
        let expected = E::UnsupportedCompanion { tensor: tensor.into() };
        refused(
            tiny_qwen35,
            |m| {
                m.add(tensor, &[1], F32);
            },
            expected,
        );
    }
    let fused = "blk.2.attn_qkv.weight";
    let expected = E::FusedQkv { tensor: fused.into() };
    refused(
        tiny_qwen3,
        |m| {
            m.add(fused, &[256, 640], Q1_0);
        },
        expected.clone(),
    );
    let replaced = |m: &mut Model| {
        for part in ["q", "k", "v"] {
            m.drop_tensor(&format!("blk.2.attn_{part}.weight"));
        }
        m.add(fused, &[256, 640], Q1_0);
    };
    refused(tiny_qwen3, replaced, expected);
}

/// Each tensor in turn is missing, has a wrong shape, or has a type that nobody can decode.
#[test]
fn every_tensor_is_checked() {
    for model in [tiny_qwen3, tiny_qwen35] as [fn() -> Model; 2] {
        for (name, shape, ty) in model().tensors {
            // Without these a layer looks like the other kind, or the head is tied.
            if name != "output.weight" {
                let expected = E::MissingTensor { tensor: name.clone() };
                refused(
                    model,
                    |m| {
                        m.drop_tensor(&name);
                    },
                    expected.clone(),
                );
                let renamed = format!("{name}x");
                refused(model, |m| m.tensor(&name).0 = renamed, expected);
            }
            for wrong in [[shape.clone(), vec![1]].concat(), shape.iter().map(|size| size * 2).collect()] {
                let change = |m: &mut Model| m.tensor(&name).1 = wrong.clone();
                let mut changed = model();
                change(&mut changed);
                let found = changed.config().unwrap_err();
                assert!(
                    matches!(found, E::WrongShape { .. } | E::UnsupportedRowWidth { .. }),
                    "{name}: {found}"
                );
            }
            let supported = if ty == F32 { "F32, F16, BF16 for this tensor" } else { SUPPORTED_TYPES };
            let unsupported = TensorType::Q5_K;
            let expected = E::UnsupportedType { tensor: name.clone(), id: 13, ty: unsupported, supported };
            refused(model, |m| m.tensor(&name).2 = unsupported, expected);
            if ty == F32 {
                let expected = E::UnsupportedType { tensor: name.clone(), id: 41, ty: Q1_0, supported };
                refused(model, |m| m.tensor(&name).2 = Q1_0, expected);
            }
        }
    }
    let message = E::UnsupportedType {
        tensor: "blk.0.ffn_up.weight".into(),
        id: 13,
        ty: TensorType::Q5_K,
        supported: SUPPORTED_TYPES,
    };
    assert_eq!(
        message.to_string(),
        "unsupported type 13 (Q5_K) in tensor \"blk.0.ffn_up.weight\"; \
         supported types are F32, F16, BF16, Q1_0, Q2_0, Q4_0, Q8_0, Q4_K, Q6_K"
    );
}

#[test]
fn matrices_of_every_supported_type() {
    let types =
        [F32, TensorType::F16, TensorType::BF16, Q1_0, TensorType::Q2_0 { group: 128 }, TensorType::Q4_0];
    for ty in types.into_iter().chain([TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K]) {
        let mut model = tiny_qwen35();
        model.tensor("blk.0.attn_qkv.weight").2 = ty;
        assert_eq!(model.config().unwrap().warnings, Vec::<String>::new(), "{ty}");
    }
    let mut model = tiny_qwen35();
    model.tensor("blk.0.ssm_a").2 = TensorType::BF16;
    model.tensor("output_norm.weight").2 = TensorType::F16;
    let warnings = model.config().unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("2 norm or state tensors") && warnings[0].contains("output_norm.weight"));
}

#[test]
fn unknown_tensors_are_skipped_by_name() {
    let mut model = tiny_qwen35();
    model.put("block_count", 5u32).put("nextn_predict_layers", 1u32);
    model.add("rope_freqs.weight", &[32], F32).add("blk.4.nextn.enorm.weight", &[256], F32);
    model.add("blk.4.attn_q.weight", &[256, 768], TensorType::Q5_K).add("blk.1.extra.weight", &[8], F32);
    let header = model.header();
    let config = ModelConfig::from_header(&header).unwrap();
    assert_eq!(config.num_hidden_layers, 4);
    let skipped = config.skipped_tensors(&header);
    let found: Vec<(&str, SkipReason)> =
        skipped.iter().map(|(name, reason)| (name.as_str(), *reason)).collect();
    assert_eq!(
        found,
        [
            ("rope_freqs.weight", SkipReason::Unknown),
            ("blk.4.nextn.enorm.weight", SkipReason::MtpBlock),
            ("blk.4.attn_q.weight", SkipReason::MtpBlock),
            ("blk.1.extra.weight", SkipReason::Unknown),
        ]
    );
}

#[test]
fn layer_schedule() {
    use LayerType::{Attention, DeltaNet};
    // The list of layers wins over the interval.
    let mut model = tiny_qwen35();
    model.put("full_attention_interval", 2u32);
    model.put("attention.recurrent_layers", vec![true, true, true, false]);
    assert_eq!(model.config().unwrap().layer_types, [DeltaNet, DeltaNet, DeltaNet, Attention]);
    // The default interval is four.
    assert!(tiny_qwen35().cut("full_attention_interval").config().is_ok());
    let clash =
        |layer, declared, tensor: &str| E::LayerScheduleClash { layer, declared, tensor: tensor.into() };
    let interval = |m: &mut Model| {
        m.put("full_attention_interval", 2u32);
    };
    refused(tiny_qwen35, interval, clash(1, Attention, "blk.1.ssm_a"));
    let list = |m: &mut Model| {
        m.put("attention.recurrent_layers", vec![true, true, true, true]);
    };
    refused(tiny_qwen35, list, clash(3, DeltaNet, "blk.3.attn_q.weight"));
    let extra = |m: &mut Model| {
        m.add("blk.0.attn_k.weight", &[256, 128], Q1_0);
    };
    refused(tiny_qwen35, extra, clash(0, DeltaNet, "blk.0.attn_k.weight"));
    let dense = |m: &mut Model| {
        m.add("blk.0.ssm_a", &[6], F32);
    };
    refused(tiny_qwen3, dense, clash(0, Attention, "blk.0.ssm_a"));
    let short = |m: &mut Model| {
        m.put("attention.recurrent_layers", vec![true, true, true]);
    };
    invalid(tiny_qwen35, short, "qwen35.attention.recurrent_layers", "a list of 3");
    let zero = |m: &mut Model| {
        m.put("full_attention_interval", 0u32);
    };
    invalid(tiny_qwen35, zero, "qwen35.full_attention_interval", "0");
}

#[test]
fn per_layer_numbers_must_be_uniform() {
    for (suffix, value) in
        [("attention.head_count", 6u32), ("attention.head_count_kv", 2), ("feed_forward_length", 384)]
    {
        let mut model = tiny_qwen3();
        model.put(suffix, vec![value; 4]);
        assert!(model.config().is_ok(), "{suffix}");
        let key = format!("qwen3.{suffix}");
        let values = vec![value, value, value, 2 * value];
        let expected = E::NotUniform { key: key.clone(), values: values.clone() };
        refused(
            tiny_qwen3,
            |m| {
                m.put(suffix, values);
            },
            expected,
        );
        invalid(
            tiny_qwen3,
            |m| {
                m.put(suffix, vec![value; 3]);
            },
            &key,
            "an array of 3",
        );
        invalid(
            tiny_qwen3,
            |m| {
                m.put(suffix, Vec::<u32>::new());
            },
            &key,
            "an array of 0",
        );
        invalid(
            tiny_qwen3,
            |m| {
                m.put(suffix, vec![0u32; 4]);
            },
            &key,
            "0",
        );
    }
}

#[test]
fn required_keys() {
    let common = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ];
    let hybrid = [
        "rope.dimension_sections",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.group_count",
        "ssm.time_step_rank",
        "ssm.inner_size",
    ];
    for suffix in common.into_iter().chain(hybrid) {
        let missing = E::Gguf(GgufError::MissingKey { key: format!("qwen35.{suffix}") });
        refused(
            tiny_qwen35,
            |m| {
                m.cut(suffix);
            },
            missing,
        );
        let mut model = tiny_qwen35();
        model.put(suffix, "text");
        let error = model.config().unwrap_err();
        assert!(matches!(error, E::Gguf(GgufError::WrongValueType { .. })), "{suffix}: {error}");
    }
    let missing = E::Gguf(GgufError::MissingKey { key: "tokenizer.ggml.tokens".into() });
    refused(
        tiny_qwen35,
        |m| {
            m.unset("tokenizer.ggml.tokens");
        },
        missing,
    );
}

/// The longest context is far beyond any model, and still bounded.
#[test]
fn countless_positions_are_refused() {
    for (positions, is_fine) in [(1, true), (MAX_CONTEXT, true), (MAX_CONTEXT + 1, false), (u32::MAX, false)]
    {
        let mut model = tiny_qwen35();
        model.put("context_length", positions);
        assert_eq!(model.config().is_ok(), is_fine, "{positions}");
    }
}

/// Zero and the largest number in every integer key are refused, quickly.
#[test]
fn hostile_integers() {
    for suffix in [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.group_count",
        "ssm.time_step_rank",
        "ssm.inner_size",
        "full_attention_interval",
        "nextn_predict_layers",
    ] {
        for value in [0, u32::MAX, 1 << 31] {
            // No extra block is the normal case.
            let harmless = matches!((suffix, value), ("nextn_predict_layers", 0));
            let mut model = tiny_qwen35();
            model.put(suffix, value);
            assert_eq!(model.config().is_ok(), harmless, "{suffix} = {value}");
        }
        let mut model = tiny_qwen35();
        model.put(suffix, -1i32);
        let error = model.config().unwrap_err();
        assert!(matches!(error, E::Gguf(GgufError::ValueOutOfRange { .. })), "{suffix}: {error}");
    }
}

#[test]
fn geometry_beyond_the_kernels() {
    let cases: [(&str, u32); 16] = [
        ("attention.head_count_kv", 4),
        ("attention.key_length", 62),
        ("attention.key_length", 260),
        ("attention.value_length", 32),
        ("rope.dimension_count", 15),
        ("rope.dimension_count", 66),
        ("ssm.conv_kernel", 1),
        ("ssm.conv_kernel", 5),
        ("ssm.state_size", 260),
        ("ssm.state_size", 126),
        ("ssm.time_step_rank", 7),
        ("ssm.inner_size", 769),
        ("ssm.inner_size", 384),
        ("nextn_predict_layers", 4),
        ("nextn_predict_layers", 5),
        ("block_count", 1000),
    ];
    for (suffix, value) in cases {
        let key = format!("qwen35.{suffix}");
        invalid(
            tiny_qwen35,
            |m| {
                m.put(suffix, value);
            },
            &key,
            &value.to_string(),
        );
    }
    for (suffix, value) in [
        ("attention.layer_norm_rms_epsilon", 0.0f32),
        ("attention.layer_norm_rms_epsilon", f32::NAN),
        ("attention.layer_norm_rms_epsilon", 1.0),
        ("attention.scale", -1.0),
        ("attention.scale", f32::INFINITY),
        ("rope.freq_base", 1.0),
        ("rope.freq_base", f32::NAN),
    ] {
        let key = format!("qwen35.{suffix}");
        invalid(
            tiny_qwen35,
            |m| {
                m.put(suffix, value);
            },
            &key,
            &value.to_string(),
        );
    }
    for sections in [vec![11, 11, 10], vec![11, 11, 10, 0, 0]] {
        let value = format!("{sections:?}");
        invalid(
            tiny_qwen35,
            |m| {
                m.put("rope.dimension_sections", sections);
            },
            "qwen35.rope.dimension_sections",
            &value,
        );
    }
    // A feed-forward width that no kernel divides; the type could hold it.
    let narrow = |m: &mut Model| {
        m.put("feed_forward_length", 100u32);
        for layer in 0..4 {
            for (part, shape) in [("gate", [256, 100]), ("up", [256, 100]), ("down", [100, 256])] {
                let tensor = m.tensor(&format!("blk.{layer}.ffn_{part}.weight"));
                (tensor.1, tensor.2) = (shape.to_vec(), TensorType::F16);
            }
        }
    };
    let expected = E::UnsupportedRowWidth { tensor: "blk.0.ffn_down.weight".into(), width: 100 };
    refused(tiny_qwen35, narrow, expected);
    // A head width that does not come from the heads is only an error without its own key.
    let indivisible = |m: &mut Model| {
        m.cut("attention.key_length");
    };
    invalid(tiny_qwen35, indivisible, "qwen35.attention.head_count", "6");
}

#[test]
fn vocabulary() {
    let tokens = |n: usize| vec!["t"; n];
    let mut model = tiny_qwen3();
    model.set("tokenizer.ggml.tokens", tokens(605));
    let config = model.config().unwrap();
    assert_eq!((config.n_tokens, config.vocab_size), (605, 640));
    model.set("tokenizer.ggml.tokens", tokens(640)).put("vocab_size", 605u32);
    let config = model.config().unwrap();
    assert_eq!((config.n_tokens, config.vocab_size, config.warnings.len()), (640, 640, 1));
    let key = "the length of tokenizer.ggml.tokens";
    invalid(
        tiny_qwen3,
        |m| {
            m.set("tokenizer.ggml.tokens", tokens(641));
        },
        key,
        "641",
    );
    invalid(
        tiny_qwen3,
        |m| {
            m.set("tokenizer.ggml.tokens", tokens(0));
        },
        key,
        "0",
    );
}

#[test]
fn tied_and_untied_heads() {
    let mut model = tiny_qwen3();
    model.drop_tensor("output.weight");
    let config = model.config().unwrap();
    assert!(config.tie_word_embeddings);
    assert!(!config.expected_tensors().iter().any(|(name, _)| name == "output.weight"));
    let renamed = |m: &mut Model| m.tensor("output.weight").0 = "lm_head.weight".into();
    refused(tiny_qwen3, renamed, E::UnknownHead { tensor: "lm_head.weight".into() });
    // The head may have another type than the embedding, but not other rows.
    let mut model = tiny_qwen3();
    model.tensor("output.weight").2 = TensorType::Q6_K;
    assert!(!model.config().unwrap().tie_word_embeddings);
    let expected =
        E::WrongShape { tensor: "output.weight".into(), found: vec![256, 639], expected: vec![256, 640] };
    refused(tiny_qwen3, |m| m.tensor("output.weight").1 = vec![256, 639], expected);
}

#[test]
fn split_models() {
    let mut first = tiny_qwen35();
    let tensors = std::mem::take(&mut first.tensors);
    let n_tensors = tensors.len() as u32;
    let part = |base: &Model, index: u16, tensors: &[(String, Vec<u64>, TensorType)]| {
        let mut part = base.clone();
        part.set("split.no", index).set("split.count", 3u16).set("split.tensors.count", n_tensors);
        part.tensors = tensors.to_vec();
        part.header()
    };
    let others = Model { prefix: "qwen35", keys: Vec::new(), tensors: Vec::new() };
    let (a, b) = tensors.split_at(10);
    let parts = [part(&first, 0, &[]), part(&others, 1, a), part(&others, 2, b)];
    assert_eq!(ModelConfig::from_parts(&parts), tiny_qwen35().config());
    let error = ModelConfig::from_header(&parts[0]).unwrap_err();
    assert_eq!(error, E::Gguf(GgufError::WrongPartCount { declared: 3, given: 1 }));
}
