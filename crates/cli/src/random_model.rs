//! Models of real geometry with random one-bit weights, for measuring speed without a download.

use signbit_gguf::{GgufWriter, TensorType};

use crate::args::{Geometry, SizeArgs};

const BLOCK_WEIGHTS: u64 = 128;
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
    rope_theta: f32,
    delta: Option<Delta>,
}

/// Gated DeltaNet layers, three of every four.
struct Delta {
    key_heads: u64,
    value_heads: u64,
    head_dim: u64,
}

/// Builds a GGUF file in Q1_0 whose logits mean nothing.
pub fn random_model(geometry: Geometry, changed: &SizeArgs) -> Vec<u8> {
    let (arch, real) = match geometry {
        Geometry::Dense06b => (
            "qwen3",
            Sizes {
                layers: 28,
                hidden: 1024,
                ffn: 3072,
                q_heads: 16,
                kv_heads: 8,
                head_dim: 128,
                vocab: 151_936,
                rope_theta: 1e6,
                delta: None,
            },
        ),
        Geometry::Hybrid08b => (
            "qwen35",
            Sizes {
                layers: 24,
                hidden: 1024,
                ffn: 3584,
                q_heads: 8,
                kv_heads: 2,
                head_dim: 256,
                vocab: 248_320,
                rope_theta: 1e7,
                delta: Some(Delta { key_heads: 16, value_heads: 16, head_dim: 128 }),
            },
        ),
    };
    let sizes = Sizes {
        layers: changed.layers.unwrap_or(real.layers),
        hidden: changed.hidden_size.map_or(real.hidden, u64::from),
        ffn: changed.intermediate_size.map_or(real.ffn, u64::from),
        vocab: changed.vocab_size.map_or(real.vocab, u64::from),
        ..real
    };
    Builder::new(arch, changed.seed.unwrap_or(SEED)).build(geometry.name(), &sizes)
}

struct Builder {
    writer: GgufWriter,
    arch: &'static str,
    random: Random,
}

impl Builder {
    fn new(arch: &'static str, seed: u64) -> Self {
        // The generator never leaves 0.
        Self { writer: GgufWriter::new(), arch, random: Random(seed.max(1)) }
    }

    fn build(mut self, name: &str, s: &Sizes) -> Vec<u8> {
        self.metadata(name, s);
        self.matrix("token_embd.weight", s.hidden, s.vocab);
        self.vector("output_norm.weight", &[s.hidden], 1.0);
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
        self.writer.finish()
    }

    fn metadata(&mut self, name: &str, s: &Sizes) {
        let arch = self.arch;
        let key = |suffix: &str| format!("{arch}.{suffix}");
        let w = &mut self.writer;
        w.set("general.architecture", arch).set("general.name", format!("random {name}"));
        w.set(&key("block_count"), s.layers).set(&key("context_length"), 32_768u32);
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
        let n: u64 = shape.iter().product();
        let data = (0..n).flat_map(|_| value.to_le_bytes()).collect();
        self.writer.tensor(name, shape, TensorType::F32, data);
    }

    /// Random signs; the scale 1/sqrt(K) keeps activations near 1.
    fn matrix(&mut self, name: &str, cols: u64, rows: u64) {
        let scale = half::f16::from_f32(1.0 / (cols as f32).sqrt());
        let mut data = Vec::with_capacity((rows * cols / BLOCK_WEIGHTS * 18) as usize);
        for _ in 0..rows * cols / BLOCK_WEIGHTS {
            data.extend(scale.to_le_bytes());
            data.extend(self.random.next().to_le_bytes());
            data.extend(self.random.next().to_le_bytes());
        }
        self.writer.tensor(name, &[cols, rows], TensorType::Q1_0, data);
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
    use signbit_engine::device::{CpuDevice, CpuOptions, Device};
    use signbit_engine::engine::{Engine, TokenRequest};
    use signbit_engine::model::ModelOptions;

    use super::*;

    #[test]
    fn both_kinds_load_and_generate() -> Result<(), signbit_engine::EngineError> {
        let delta = Delta { key_heads: 2, value_heads: 4, head_dim: 128 };
        for (arch, delta) in [("qwen3", None), ("qwen35", Some(delta))] {
            let sizes = Sizes {
                layers: 4,
                hidden: 128,
                ffn: 256,
                q_heads: 4,
                kv_heads: 2,
                head_dim: 64,
                vocab: 512,
                rope_theta: 1e6,
                delta,
            };
            let file = Builder::new(arch, SEED).build("small", &sizes);
            let mut engine = Engine::new(Device::Cpu(Box::new(CpuDevice::new(CpuOptions::default()))));
            pollster::block_on(engine.load_parts(&[&file], ModelOptions::default()))?;
            let request =
                TokenRequest { prompt: vec![1, 2, 3], max_tokens: Some(2), ..TokenRequest::default() };
            let mut generation = engine.start(request)?;
            let mut n_ids = 0;
            while generation.finished().is_none() {
                n_ids += pollster::block_on(engine.step(&mut generation))?.len();
            }
            assert_eq!(n_ids, 2, "{arch}");
        }
        Ok(())
    }
}
