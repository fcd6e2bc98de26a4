//! What the engine's tests share: devices, fixtures and their golden outputs.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pollster::block_on;
use serde::Deserialize;
use signbit_engine::device::{Activations, CpuDevice, CpuKernels, CpuOptions, Device, GpuDevice, GpuOptions};
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::model::ModelOptions;
use signbit_engine::tuning::{Choose, Variant};
use signbit_gguf::{GgufWriter, Header, TensorType};
use signbit_shaders::case::Rng;

/// The repository's root.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every miniature model, and the embedded one.
pub const MODELS: [&str; 14] = [
    "qwen3-f16",
    "qwen3-q1_0",
    "qwen3-q2_0",
    "qwen3-q4_0",
    "qwen3-q8_0",
    "qwen35-f16",
    "qwen35-f32",
    "qwen35-mixed",
    "qwen35-q1_0",
    "qwen35-q2_0",
    "qwen35-q4_0",
    "qwen35-q8_0",
    "qwen35-tied-q1_0",
    EMBEDDED,
];

/// The model that page and command line tool have built in.
pub const EMBEDDED: &str = "signbit-mini";

/// The software adapter computes on all cores: two tests at once only get in each other's way.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static GPU: Mutex<()> = Mutex::new(());
    GPU.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A GPU. Its absence is a failure: a test that cannot run must not pass.
pub fn gpu_with(options: GpuOptions) -> Device {
    let gpu = block_on(GpuDevice::open(options)).expect("a Vulkan adapter, for example Mesa's lavapipe");
    Device::Gpu(Box::new(gpu))
}

/// A GPU with all that the adapter has.
pub fn gpu() -> Device {
    gpu_with(GpuOptions::default())
}

/// The processor, as exact as a GPU.
pub fn cpu() -> Device {
    cpu_with(Activations::F32)
}

/// The definitions of the kernels, slow and in f64.
pub fn reference() -> Device {
    Device::Cpu(Box::new(CpuDevice::new(CpuOptions::reference())))
}

/// The processor with activations of some precision.
pub fn cpu_with(activations: Activations) -> Device {
    let kernels = CpuKernels::Fast(activations);
    Device::Cpu(Box::new(CpuDevice::new(CpuOptions { kernels, ..CpuOptions::default() })))
}

/// The bytes of a fixture's model.
pub fn model_bytes(name: &str) -> Vec<u8> {
    let path = match name {
        "tiny-geo" => root().join("tests/golden/tiny-geo/model.gguf"),
        _ => root().join(format!("tests/golden/models/{name}/model.gguf")),
    };
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// An engine with the fixture loaded.
pub fn load(device: Device, name: &str) -> Engine {
    load_bytes(device, &model_bytes(name))
}

/// An engine with a model loaded from memory.
pub fn load_bytes(device: Device, bytes: &[u8]) -> Engine {
    load_with(device, bytes, Choose::Fixed(Variant::Lanes))
}

/// An engine with a model loaded from memory, its kernels chosen in a given way. Measured choices
/// may differ from load to load, and results then differ by rounding.
pub fn load_with(device: Device, bytes: &[u8], choose: Choose) -> Engine {
    let mut engine = Engine::new(device);
    engine.choose_variants(choose);
    block_on(engine.load_parts(&[bytes], ModelOptions::default())).unwrap_or_else(|e| panic!("{e}"));
    engine
}

/// Logits after every position, [tokens, V].
pub fn score(engine: &mut Engine, ids: &[u32], chunk: u32) -> Vec<f32> {
    let mut all = Vec::new();
    block_on(engine.score(ids, chunk, |rows| {
        all.extend_from_slice(rows);
        Ok(())
    }))
    .unwrap_or_else(|e| panic!("{e}"));
    all
}

/// Greedy ids, with no stop ids.
pub fn greedy(engine: &mut Engine, prompt: &[u32], n: u32) -> Vec<u32> {
    generate(engine, TokenRequest { prompt: prompt.to_vec(), max_tokens: Some(n), ..TokenRequest::default() })
}

/// All ids of a generation.
pub fn generate(engine: &mut Engine, request: TokenRequest) -> Vec<u32> {
    let mut generation = engine.start(request).unwrap_or_else(|e| panic!("{e}"));
    let mut ids = Vec::new();
    while generation.finished().is_none() {
        ids.extend(block_on(engine.step(&mut generation)).unwrap_or_else(|e| panic!("{e}")));
    }
    ids
}

/// `golden.json` of a fixture.
#[derive(Deserialize)]
pub struct Golden {
    pub model: GoldenModel,
    pub prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub struct GoldenModel {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
}

#[derive(Deserialize)]
pub struct Prompt {
    pub name: String,
    pub ids: Vec<u32>,
    pub continuation: Vec<u32>,
    pub rows: usize,
    pub top20_first_row: usize,
    pub logit_positions: Vec<usize>,
    pub logits_first_row: usize,
    #[serde(default)]
    pub llamacpp_logit_positions: Vec<usize>,
    #[serde(default)]
    pub llamacpp_logits_first_row: usize,
}

impl Prompt {
    /// What is read when the continuation is forced: `rows` tokens.
    pub fn forced(&self) -> Vec<u32> {
        let n = self.rows - self.ids.len();
        [&self.ids[..], &self.continuation[..n]].concat()
    }
}

/// A fixture's golden outputs.
pub struct Fixture {
    pub golden: Golden,
    pub logits: Vec<f32>,
    pub top20_ids: Vec<u16>,
    pub top20_logprobs: Vec<f32>,
    pub hidden: Vec<f32>,
    /// Of llama.cpp on the same weights in float32; empty where there are none.
    llamacpp: Vec<f32>,
}

impl Fixture {
    pub fn open(name: &str) -> Self {
        let folder = root().join("tests/golden/models").join(name);
        let read = |file: &str| {
            let path = folder.join(file);
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        Self {
            golden: serde_json::from_slice(&read("golden.json")).unwrap(),
            logits: bytemuck::pod_collect_to_vec(&read("logits_hf.bin")),
            top20_ids: bytemuck::pod_collect_to_vec(&read("top20_ids.bin")),
            top20_logprobs: bytemuck::pod_collect_to_vec(&read("top20_logprobs.bin")),
            hidden: bytemuck::pod_collect_to_vec(&read("hidden_hf.bin")),
            llamacpp: std::fs::read(folder.join("logits_llamacpp.bin"))
                .map(|bytes| bytemuck::pod_collect_to_vec(&bytes))
                .unwrap_or_default(),
        }
    }

    /// llama.cpp's logits at `prompt.llamacpp_logit_positions`, in order.
    pub fn llamacpp_logits(&self, prompt: &Prompt) -> impl Iterator<Item = &[f32]> {
        self.llamacpp.chunks_exact(self.golden.model.vocab).skip(prompt.llamacpp_logits_first_row)
    }

    /// The reference's best token after each row of the prompt, and its lead over the next.
    pub fn best(&self, prompt: &Prompt, row: usize) -> (u32, f32) {
        let at = (prompt.top20_first_row + row) * 20;
        (self.top20_ids[at].into(), self.top20_logprobs[at] - self.top20_logprobs[at + 1])
    }

    /// The reference's logits at `prompt.logit_positions[i]`.
    pub fn logits_at(&self, prompt: &Prompt, i: usize) -> &[f32] {
        let vocab = self.golden.model.vocab;
        &self.logits[(prompt.logits_first_row + i) * vocab..][..vocab]
    }
}

/// Index of the largest value, the first on ties.
pub fn argmax(row: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &v) in row.iter().enumerate() {
        if v > row[best] {
            best = i;
        }
    }
    best as u32
}

/// Largest absolute difference; lengths must agree.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // A NaN must not compare as small.
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |m, d| if d <= m { m } else { d })
}

/// Ids that stand for tokens.
pub fn random_ids(engine: &Engine, seed: u32, n: usize) -> Vec<u32> {
    println!("seed {seed}");
    let n_tokens = engine.loaded().unwrap().model.n_valid();
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.next_u32() % n_tokens).collect()
}

/// Tokens of prose: the repository's own.
pub fn text_ids(engine: &Engine, n: usize) -> Vec<u32> {
    let text = ["ARCHITECTURE.md", "README.md", "docs/worker-protocol.md", "docs/cli.md"]
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap())
        .concat();
    let ids = engine.loaded().unwrap().tokenizer.encode(&text, false);
    assert!(ids.len() >= n, "{} tokens", ids.len());
    ids[..n].to_vec()
}

/// How far one way to compute logits is from another, over many positions.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Mean Kullback-Leibler divergence from the exact distribution.
    pub mean: f64,
    /// Its 99th percentile.
    pub p99: f64,
    /// The part of positions with the same best token.
    pub same: f64,
}

impl Quality {
    /// Of rows of `vocab` logits.
    pub fn of(exact: &[f32], other: &[f32], vocab: usize) -> Self {
        assert_eq!(exact.len(), other.len());
        let rows = exact.chunks(vocab).zip(other.chunks(vocab));
        let same = rows.clone().filter(|(a, b)| argmax(a) == argmax(b)).count();
        let mut divergences: Vec<f64> = rows.map(|(a, b)| divergence(a, b)).collect();
        divergences.sort_by(f64::total_cmp);
        let n = divergences.len();
        Self {
            mean: divergences.iter().sum::<f64>() / n as f64,
            p99: divergences[(n * 99 / 100).min(n - 1)],
            same: same as f64 / n as f64,
        }
    }

    /// The limits for anything that loses precision on purpose.
    pub fn passes(&self) -> bool {
        self.mean < 0.005 && self.p99 < 0.05 && self.same >= 0.965
    }
}

impl std::fmt::Display for Quality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mean, p99, same } = self;
        write!(f, "mean KL {mean:.6}, p99 {p99:.6}, same best token {:.2} %", same * 100.0)
    }
}

fn divergence(exact: &[f32], other: &[f32]) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|&v| f64::from(v - top).exp()).sum();
        row.iter().map(|&v| f64::from(v - top) - sum.ln()).collect()
    };
    let (p, q) = (log_softmax(exact), log_softmax(other));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// A dense model of about 80 MB in F16 whose weights are all zero: for what loading takes, not for what
/// it computes. Its tokenizer and heads are a fixture's.
pub fn large_model() -> Vec<u8> {
    const HIDDEN: u64 = 1024;
    const FEED_FORWARD: u64 = 4096;
    const LAYERS: u32 = 3;
    let bytes = model_bytes("qwen3-f16");
    let header = Header::parse_file(&bytes).unwrap();
    let mut writer = GgufWriter::new();
    let sizes = [
        ("qwen3.block_count", LAYERS),
        ("qwen3.embedding_length", HIDDEN as u32),
        ("qwen3.feed_forward_length", FEED_FORWARD as u32),
    ];
    for (key, value) in header.metadata.iter().filter(|(key, _)| sizes.iter().all(|(size, _)| size != key)) {
        writer.set(key, value.clone());
    }
    for (key, value) in sizes {
        writer.set(key, value);
    }
    for info in &header.tensors {
        let mut parts = info.name.split('.');
        let layer = parts.nth(1).and_then(|index| index.parse::<u32>().ok());
        if layer.is_some_and(|layer| layer >= LAYERS) {
            continue;
        }
        let old = info.shape.as_slice();
        let shape = match layer.and(parts.next()).unwrap_or(&info.name) {
            "attn_norm" | "ffn_norm" | "output_norm.weight" => vec![HIDDEN],
            "attn_q_norm" | "attn_k_norm" => old.to_vec(),
            "attn_output" => vec![old[0], HIDDEN],
            "ffn_gate" | "ffn_up" => vec![HIDDEN, FEED_FORWARD],
            "ffn_down" => vec![FEED_FORWARD, HIDDEN],
            _ => vec![HIDDEN, old[1]],
        };
        let (ty, width) = if shape.len() == 1 { (TensorType::F32, 4) } else { (TensorType::F16, 2) };
        let n_bytes = width * shape.iter().product::<u64>() as usize;
        writer.tensor(&info.name, &shape, ty, vec![0; n_bytes]);
    }
    writer.finish()
}
