//! Models of real geometry with random one-bit weights, for measuring speed without a download.

use std::io::{self, Write};

use signbit_gguf::{GgufWriter, TensorType};

use crate::args::{Geometry, SizeArgs};

const BLOCK_WEIGHTS: u64 = 128;
const BLOCK_BYTES: u64 = 18;
const FILL_KEY: &str = "random.fill";
/// Of `tokenizer.ggml.token_type`.
const NORMAL_TOKEN: i32 = 1;
const CONTROL_TOKEN: i32 = 3;
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

struct Sizes {
    layers: u32,
    hidden: u64,
    ffn: u64,
    q_heads: u64,
    kv_heads: u64,
    head_dim: u64,
    vocab: u64,
    is_tied: bool,
    rope_theta: f32,
    context: u32,
    delta: Option<Delta>,
    /// Size of the file whose geometry this is; the header is filled up to reach it.
    file_bytes: Option<u64>,
}

/// Gated DeltaNet layers, three of every four.
struct Delta {
    key_heads: u64,
    value_heads: u64,
    head_dim: u64,
}

const QWEN3_06B: Sizes = Sizes {
    layers: 28,
    hidden: 1024,
    ffn: 3072,
    q_heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
    is_tied: true,
    rope_theta: 1e6,
    context: 32_768,
    delta: None,
    file_bytes: None,
};

const QWEN35_08B: Sizes = Sizes {
    layers: 24,
    hidden: 1024,
    ffn: 3584,
    q_heads: 8,
    kv_heads: 2,
    head_dim: 256,
    vocab: 248_320,
    is_tied: true,
    rope_theta: 1e7,
    context: 32_768,
    delta: Some(Delta { key_heads: 16, value_heads: 16, head_dim: 128 }),
    file_bytes: None,
};

const BONSAI_17B: Sizes =
    Sizes { hidden: 2048, ffn: 6144, vocab: 151_669, file_bytes: Some(248_302_272), ..QWEN3_06B };

const BONSAI_4B: Sizes = Sizes {
    layers: 36,
    hidden: 2560,
    ffn: 9728,
    q_heads: 32,
    rope_theta: 5e6,
    file_bytes: Some(572_270_624),
    ..BONSAI_17B
};

const BONSAI_8B: Sizes = Sizes {
    layers: 36,
    hidden: 4096,
    ffn: 12_288,
    q_heads: 32,
    is_tied: false,
    context: 65_536,
    file_bytes: Some(1_158_654_496),
    ..BONSAI_17B
};

const BONSAI_27B: Sizes = Sizes {
    layers: 64,
    hidden: 5120,
    ffn: 17_408,
    q_heads: 24,
    kv_heads: 4,
    is_tied: false,
    context: 262_144,
    delta: Some(Delta { key_heads: 16, value_heads: 48, head_dim: 128 }),
    file_bytes: Some(3_803_452_480),
    ..QWEN35_08B
};

fn sizes_of(geometry: Geometry) -> Sizes {
    match geometry {
        Geometry::Dense06b => QWEN3_06B,
        Geometry::Hybrid08b => QWEN35_08B,
        Geometry::Bonsai17b => BONSAI_17B,
        Geometry::Bonsai4b => BONSAI_4B,
        Geometry::Bonsai8b => BONSAI_8B,
        Geometry::Bonsai27b => BONSAI_27B,
    }
}

/// A GGUF file in Q1_0 whose logits mean nothing. It is made while it is written: a large one is never held.
pub struct RandomModel {
    header: Vec<u8>,
    tensors: Vec<Content>,
    /// Bytes of all tensors with their padding.
    data_bytes: u64,
    seed: u64,
}

/// What a tensor holds, and the bytes that it takes with its padding.
struct Content {
    values: Values,
    padded_bytes: u64,
}

enum Values {
    /// So many equal numbers.
    Constant { value: f32, n: u64 },
    /// Blocks of random signs with one scale.
    Signs { scale: half::f16, blocks: u64 },
}

impl RandomModel {
    /// Decides what the file will hold.
    pub fn new(geometry: Geometry, changed: &SizeArgs) -> Self {
        let real = sizes_of(geometry);
        let is_real = [changed.layers, changed.hidden_size, changed.intermediate_size, changed.vocab_size]
            .iter()
            .all(Option::is_none);
        let sizes = Sizes {
            layers: changed.layers.unwrap_or(real.layers),
            hidden: changed.hidden_size.map_or(real.hidden, u64::from),
            ffn: changed.intermediate_size.map_or(real.ffn, u64::from),
            vocab: changed.vocab_size.map_or(real.vocab, u64::from),
            file_bytes: real.file_bytes.filter(|_| is_real),
            ..real
        };
        Builder::new(&sizes).build(geometry.name(), &sizes, changed.seed.unwrap_or(SEED))
    }

    /// Bytes of the file.
    pub fn n_bytes(&self) -> u64 {
        self.header.len() as u64 + self.data_bytes
    }

    /// Writes the file.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        // The generator never leaves 0.
        let mut random = Random(self.seed.max(1));
        out.write_all(&self.header)?;
        for Content { values, padded_bytes } in &self.tensors {
            let written = match values {
                Values::Constant { value, n } => {
                    (0..*n).try_for_each(|_| out.write_all(&value.to_le_bytes()))?;
                    n * 4
                }
                Values::Signs { scale, blocks } => {
                    for _ in 0..*blocks {
                        out.write_all(&random_block(*scale, &mut random))?;
                    }
                    blocks * BLOCK_BYTES
                }
            };
            (written..*padded_bytes).try_for_each(|_| out.write_all(&[0]))?;
        }
        Ok(())
    }

    /// The file in memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.n_bytes() as usize);
        // Writing to a vector cannot fail.
        let _ = self.write(&mut bytes);
        bytes
    }
}

/// A block of Q1_0.
fn random_block(scale: half::f16, random: &mut Random) -> [u8; BLOCK_BYTES as usize] {
    let mut block = [0; BLOCK_BYTES as usize];
    let (half, signs) = block.split_at_mut(2);
    half.copy_from_slice(&scale.to_le_bytes());
    for word in signs.as_chunks_mut::<8>().0 {
        *word = random.next().to_le_bytes();
    }
    block
}

struct Builder {
    writer: GgufWriter,
    arch: &'static str,
    tensors: Vec<Content>,
}

impl Builder {
    fn new(sizes: &Sizes) -> Self {
        let arch = if sizes.delta.is_some() { "qwen35" } else { "qwen3" };
        Self { writer: GgufWriter::new(), arch, tensors: Vec::new() }
    }

    fn build(mut self, name: &str, s: &Sizes, seed: u64) -> RandomModel {
        self.metadata(name, s);
        self.matrix("token_embd.weight", s.hidden, s.vocab);
        self.vector("output_norm.weight", &[s.hidden], 1.0);
        if !s.is_tied {
            self.matrix("output.weight", s.hidden, s.vocab);
        }
        for layer in 0..s.layers {
            let b = |part: &str| format!("blk.{layer}.{part}");
            self.vector(&b("attn_norm.weight"), &[s.hidden], 1.0);
            match &s.delta {
                Some(delta) if (layer + 1) % 4 != 0 => self.delta_net(b, s, delta),
                _ => self.attention(b, s),
            }
            let norm = if s.delta.is_some() { "post_attention_norm.weight" } else { "ffn_norm.weight" };
            self.vector(&b(norm), &[s.hidden], 1.0);
            self.matrix(&b("ffn_gate.weight"), s.hidden, s.ffn);
            self.matrix(&b("ffn_up.weight"), s.hidden, s.ffn);
            self.matrix(&b("ffn_down.weight"), s.ffn, s.hidden);
        }
        let data_bytes = self.tensors.iter().map(|tensor| tensor.padded_bytes).sum();
        if let Some(file_bytes) = s.file_bytes {
            self.fill(file_bytes.saturating_sub(data_bytes));
        }
        RandomModel { header: self.writer.header(), tensors: self.tensors, data_bytes, seed }
    }

    /// Makes the header as long as that of the real file, whose vocabulary and template are longer.
    fn fill(&mut self, header_bytes: u64) {
        self.writer.set(FILL_KEY, "");
        let missing = header_bytes.saturating_sub(self.writer.header().len() as u64);
        self.writer.set(FILL_KEY, "x".repeat(missing as usize));
    }

    fn metadata(&mut self, name: &str, s: &Sizes) {
        let arch = self.arch;
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let w = &mut self.writer;
        w.set("general.architecture", arch).set("general.name", format!("random {name}"));
        w.set(&key("block_count"), s.layers).set(&key("context_length"), s.context);
        w.set(&key("embedding_length"), s.hidden as u32).set(&key("feed_forward_length"), s.ffn as u32);
        w.set(&key("attention.head_count"), s.q_heads as u32);
        w.set(&key("attention.head_count_kv"), s.kv_heads as u32);
        w.set(&key("attention.key_length"), s.head_dim as u32);
        w.set(&key("attention.value_length"), s.head_dim as u32);
        w.set(&key("attention.layer_norm_rms_epsilon"), 1e-6f32).set(&key("rope.freq_base"), s.rope_theta);
        if let Some(delta) = &s.delta {
            w.set(&key("rope.dimension_count"), (s.head_dim / 4) as u32);
            w.set(&key("rope.dimension_sections"), vec![11, 11, 10, 0]);
            w.set(&key("ssm.conv_kernel"), 4u32).set(&key("ssm.state_size"), delta.head_dim as u32);
            w.set(&key("ssm.group_count"), delta.key_heads as u32);
            w.set(&key("ssm.time_step_rank"), delta.value_heads as u32);
            w.set(&key("ssm.inner_size"), (delta.value_heads * delta.head_dim) as u32);
            w.set(&key("full_attention_interval"), 4u32);
        }
        let mut tokens: Vec<String> = byte_symbols().map(String::from).collect();
        tokens.extend((tokens.len() as u64..s.vocab).map(|id| format!("t{id}")));
        w.set("tokenizer.ggml.model", "gpt2");
        w.set("tokenizer.ggml.pre", if s.delta.is_some() { "qwen35" } else { "qwen2" });
        let mut types = vec![NORMAL_TOKEN; tokens.len()];
        if let Some(last) = types.last_mut() {
            *last = CONTROL_TOKEN;
        }
        w.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.merges", Vec::<String>::new());
        w.set("tokenizer.ggml.eos_token_id", types.len() as u32 - 1).set("tokenizer.ggml.token_type", types);
    }

    fn attention(&mut self, b: impl Fn(&str) -> String, s: &Sizes) {
        // Hybrid models have an output gate beside each query head.
        let gated = if s.delta.is_some() { 2 } else { 1 };
        self.matrix(&b("attn_q.weight"), s.hidden, s.q_heads * s.head_dim * gated);
        self.matrix(&b("attn_k.weight"), s.hidden, s.kv_heads * s.head_dim);
        self.matrix(&b("attn_v.weight"), s.hidden, s.kv_heads * s.head_dim);
        self.vector(&b("attn_q_norm.weight"), &[s.head_dim], 1.0);
        self.vector(&b("attn_k_norm.weight"), &[s.head_dim], 1.0);
        self.matrix(&b("attn_output.weight"), s.q_heads * s.head_dim, s.hidden);
    }

    fn delta_net(&mut self, b: impl Fn(&str) -> String, s: &Sizes, delta: &Delta) {
        let value_dim = delta.value_heads * delta.head_dim;
        let channels = 2 * delta.key_heads * delta.head_dim + value_dim;
        self.matrix(&b("attn_qkv.weight"), s.hidden, channels);
        self.matrix(&b("attn_gate.weight"), s.hidden, value_dim);
        self.matrix(&b("ssm_alpha.weight"), s.hidden, delta.value_heads);
        self.matrix(&b("ssm_beta.weight"), s.hidden, delta.value_heads);
        self.vector(&b("ssm_conv1d.weight"), &[4, channels], 0.25);
        self.vector(&b("ssm_a"), &[delta.value_heads], -1.0);
        self.vector(&b("ssm_dt.bias"), &[delta.value_heads], 0.0);
        self.vector(&b("ssm_norm.weight"), &[delta.head_dim], 1.0);
        self.matrix(&b("ssm_out.weight"), value_dim, s.hidden);
    }

    fn vector(&mut self, name: &str, shape: &[u64], value: f32) {
        let padded_bytes = self.writer.declare(name, shape, TensorType::F32);
        let values = Values::Constant { value, n: shape.iter().product() };
        self.tensors.push(Content { values, padded_bytes });
    }

    /// Random signs; the scale 1/sqrt(K) keeps activations near 1.
    fn matrix(&mut self, name: &str, cols: u64, rows: u64) {
        let scale = half::f16::from_f32(1.0 / (cols as f32).sqrt());
        let padded_bytes = self.writer.declare(name, &[cols, rows], TensorType::Q1_0);
        let values = Values::Signs { scale, blocks: rows * cols / BLOCK_WEIGHTS };
        self.tensors.push(Content { values, padded_bytes });
    }
}

/// The characters that stand for the 256 bytes in a byte-level vocabulary, as GPT-2 chose them: printable
/// bytes for themselves, the others from U+0100 on.
fn byte_symbols() -> impl Iterator<Item = char> {
    let mut n_other = 0;
    (0..=u8::MAX).map(move |byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            n_other += 1;
            char::from_u32(0xFF + n_other).unwrap_or_default()
        }
    })
}

/// xorshift64 (Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use signbit_engine::config::ModelConfig;
    use signbit_engine::device::{CpuDevice, CpuOptions, Device};
    use signbit_engine::engine::{Engine, TokenRequest};
    use signbit_engine::model::ModelOptions;
    use signbit_gguf::{Header, Parse, TensorInfo};

    use super::*;

    #[test]
    fn both_kinds_load_and_generate() -> Result<(), signbit_engine::EngineError> {
        let delta = Delta { key_heads: 2, value_heads: 4, head_dim: 128 };
        for (is_tied, delta) in [(true, None), (false, Some(delta))] {
            let sizes = Sizes {
                layers: 4,
                hidden: 128,
                ffn: 256,
                q_heads: 4,
                kv_heads: 2,
                head_dim: 64,
                vocab: 512,
                is_tied,
                rope_theta: 1e6,
                context: 1024,
                delta,
                file_bytes: Some(1_000_000),
            };
            let file = Builder::new(&sizes).build("small", &sizes, SEED).to_bytes();
            assert_eq!(file.len(), 1_000_000);
            let mut engine = Engine::new(Device::Cpu(Box::new(CpuDevice::new(CpuOptions::default()))));
            pollster::block_on(engine.load_parts(&[&file], ModelOptions::default()))?;
            let request =
                TokenRequest { prompt: vec![1, 2, 3], max_tokens: Some(2), ..TokenRequest::default() };
            let mut generation = engine.start(request)?;
            let mut n_ids = 0;
            while generation.finished().is_none() {
                n_ids += pollster::block_on(engine.step(&mut generation))?.len();
            }
            assert_eq!(n_ids, 2);
        }
        Ok(())
    }

    /// Sizes of the published files, to the byte, and what is in them; nothing but headers is made.
    #[test]
    fn files_are_as_large_as_the_real_ones() {
        for (geometry, n_tensors, n_f32, file_bytes) in [
            (Geometry::Bonsai17b, 310, 113, 248_302_272),
            (Geometry::Bonsai4b, 398, 145, 572_270_624),
            (Geometry::Bonsai8b, 399, 145, 1_158_654_496),
            (Geometry::Bonsai27b, 851, 353, 3_803_452_480),
        ] {
            let model = RandomModel::new(geometry, &SizeArgs::default());
            assert_eq!(model.n_bytes(), file_bytes, "{geometry:?}");
            let Ok(Parse::Complete(header)) = Header::parse(&model.header, Some(file_bytes)) else {
                panic!("{geometry:?}: the header is not complete");
            };
            assert_eq!(header.tensors.len(), n_tensors, "{geometry:?}");
            let is_f32 = |t: &&TensorInfo| t.ty == TensorType::F32;
            assert_eq!(header.tensors.iter().filter(is_f32).count(), n_f32, "{geometry:?}");
            let config = ModelConfig::from_parts(std::slice::from_ref(&header)).unwrap();
            assert_eq!(config.skipped_tensors(&header), [], "{geometry:?}");
            if geometry == Geometry::Bonsai27b {
                assert_eq!(header.data_start, 10_992_704);
                assert_eq!(header.tensors.iter().map(TensorInfo::n_elems).sum::<u64>(), 26_895_998_464);
            }
        }
    }
}
