//! The model on the device: weights, caches, and the plans that run it.
//!
//! [`Model::forward`] is written once, against a recorder. Recording it for one row gives the plan
//! for decode, recording it for more rows the plans for prefill.

mod attention;
mod delta_net;
pub mod kept;
mod kv_cache;
pub mod layers;
pub mod recorder;
pub mod weights;

use std::collections::HashMap;

use signbit_shaders::kernels::{
    argmax_final, argmax_partial, kivi, sample_adjust, sample_draw, sample_dry, sample_final,
    sample_histogram, top_final, top_share,
};
use signbit_shaders::sampling::{self, History, Shares};
use signbit_shaders::weights::Weight;
use signbit_shaders::{BufferId, Dispatch, Tensor};

use crate::config::{ModelConfig, RopeConfig};
use crate::device::{Device, Plan};
use crate::error::EngineError;
use crate::memory::{Fallback, MemoryPlan, Placement, staging_bytes};
pub use attention::shape as attention_shape;
pub use kept::Kept;
pub use kv_cache::KvCache;
use layers::{Caches, Layer};
use recorder::{Recorder, ScratchPool};
use weights::{Matrix, Weights};

/// The most tokens one prefill step reads.
pub const MAX_PREFILL_ROWS: u32 = 512;

/// Row capacities of the prefill plans; a step uses the narrowest that holds it. Those up to 64 are
/// the heights of `matmul`'s tiles.
const PREFILL_ROWS: [u32; 9] = [8, 16, 24, 32, 48, 64, 128, 256, MAX_PREFILL_ROWS];

/// The most tokens that one submit generates.
pub const MAX_STEPS_PER_SUBMIT: u32 = 8;

/// The most bytes of logits that scoring keeps at a time.
const MAX_SCORE_BYTES: u64 = 64 << 20;

/// Logits that one workgroup of the argmax scans, until there are enough workgroups for any GPU.
const LOGITS_PER_GROUP: u32 = 1024;
const MAX_ARGMAX_GROUPS: u32 = 256;

/// Choices made when a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions {
    /// Positions that the caches hold; bounded by what the model was trained for.
    pub context_length: u32,
    /// Leave out the file's YaRN scaling, as some engines do when they are compared.
    pub ignore_yarn: bool,
    /// How keys and values are kept.
    pub kv_cache: KvCache,
    /// How far the plan may step down where this does not fit.
    pub memory_fallback: Fallback,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            context_length: 4096,
            ignore_yarn: false,
            kv_cache: KvCache::Auto,
            memory_fallback: Fallback::Context,
        }
    }
}

/// What the plan for one decoded token declares, greedy choice included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StepCost {
    /// Dispatches.
    pub dispatches: u64,
    /// Bytes read, with a full cache.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes that no plan can do without: every weight once, states and a full KV cache.
    pub minimum_bytes: u64,
    /// The full KV cache's part in both: less while fewer positions are in use.
    pub kv_cache_bytes: u64,
}

/// A loaded model.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    /// Token ids below this can be sampled; the rows above are padding.
    n_valid: u32,
    token_embd: Matrix,
    layers: Vec<Layer>,
    output_norm: Tensor,
    lm_head: Matrix,
    rope: Tensor,
    kept: Kept,
    /// See [`Caches::kv_bytes`].
    kv_bytes: HashMap<BufferId, u64>,
    io: Io,
    pool: ScratchPool,
    memory: MemoryPlan,
    weight_bytes: u64,
    /// Bytes of the caches that a step at the end of the context reads.
    cache_read_bytes: u64,
    plans: Plans,
}

/// Buffers through which a step gets its input and gives its output.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Ids that the step reads, [1, max rows]; decode reads the first.
    pub tokens: Tensor,
    /// The residual stream, [max rows, D].
    pub hidden: Tensor,
    /// Logits of the step's last row, [1, V].
    pub logits: Tensor,
    /// Ids that the device sampled, [1, MAX_STEPS_PER_SUBMIT], by step modulo its length.
    pub generated: Tensor,
    /// What the sampling kernels read and write.
    pub sampling: sampling::Buffers,
    partials: Tensor,
}

/// What a model can be asked to run.
#[derive(Debug)]
pub struct Plans {
    /// One token: `tokens[0]` to `hidden`.
    pub decode: Plan,
    /// By row capacity, ascending: `tokens[..n]` to `hidden`.
    pub prefill: Vec<(u32, Plan)>,
    /// The last row of `hidden` to `logits`.
    pub head: Plan,
    /// `logits` to the most likely token, which moves the state on.
    pub greedy: Plan,
    /// How to sample instead.
    pub sample: SamplePlans,
    /// Every row of `hidden` to logits; made when scoring is first asked for.
    pub score: Option<Score>,
}

/// `logits` to a token that the settings on the device choose, in this order; the last moves the state on.
#[derive(Debug)]
pub struct SamplePlans {
    /// Finds repetitions for DRY.
    pub dry: Plan,
    /// Logits to scores.
    pub adjust: Plan,
    /// Log-probabilities of the most likely tokens.
    pub top: Plan,
    /// Filters and draws.
    pub draw: Plan,
}

/// The head for every row of a step.
#[derive(Debug)]
pub struct Score {
    /// The dispatches.
    pub plan: Plan,
    /// Logits, [rows, V].
    pub logits: Tensor,
}

impl Model {
    /// Builds caches and plans around weights that are allocated but perhaps not yet filled.
    ///
    /// The rotations are missing until [`Model::write_rotations`].
    pub fn build(
        device: &mut Device,
        config: ModelConfig,
        weights: &Weights,
        n_valid: u32,
        place: &Placement,
    ) -> Result<Self, EngineError> {
        let limit = device.info().limits.max_words();
        let context_length = place.context_length;
        // The longest piece of a prompt that the 4-bit cache takes at once.
        let most_rows = if place.kv_cache == KvCache::Kivi { kivi::EXACT_SLOTS } else { MAX_PREFILL_ROWS };
        let max_rows = fit_rows("one row of activations", widest_row(&config), limit, most_rows)?;
        let weights_end = device.counters().live_bytes;

        let rope = rope_table(device, &config.rope, context_length)?;
        let mut caches = Caches::new(device, place.kv_cache, context_length, rope);
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(i, &config, weights, &mut caches))
            .collect::<Result<Vec<_>, _>>()?;
        let cached_bytes = caches.n_bytes;
        let recurrent_bytes: u64 = caches.kept.recurrent.iter().map(Tensor::n_bytes).sum();
        let cache_read_bytes = recurrent_bytes + caches.kv_bytes.values().sum::<u64>();
        let (kept, kv_bytes) = (caches.kept, caches.kv_bytes);
        let caches_end = device.counters().live_bytes;

        let token_embd = weights.matrix("token_embd.weight")?;
        let lm_head =
            if config.tie_word_embeddings { token_embd.clone() } else { weights.matrix("output.weight")? };
        let output_norm = weights.vector("output_norm.weight")?;

        let mut tensor = |label: &str, rows: u32, cols: u32| -> Result<Tensor, EngineError> {
            let buffer = device.create_buffer(label, u64::from(rows) * u64::from(cols))?;
            Ok(Tensor { buffer, rows, cols })
        };
        let n_groups = config.vocab_size.div_ceil(LOGITS_PER_GROUP).min(MAX_ARGMAX_GROUPS);
        let (vocab, n_valid) = (config.vocab_size, n_valid.min(config.vocab_size));
        let tokens = tensor("tokens", 1, max_rows)?;
        let shares = Shares::of(n_valid);
        let mut history = History {
            buffer: tokens.buffer,
            n_generated: MAX_STEPS_PER_SUBMIT,
            vocab,
            context: context_length,
        };
        history.buffer = tensor("history", 1, history.tensor().cols)?.buffer;
        let sampling = sampling::Buffers {
            n_valid,
            logits: tensor("logits", 2, vocab)?,
            settings: tensor("sampling", 1, sampling::settings_cols(n_valid))?,
            bias: tensor("logit_bias", 1, vocab)?,
            repeats: tensor("repeats", 1, vocab)?,
            history,
            stats: tensor("sampling_stats", shares.n, sampling::STAT_COLS)?,
            tally: tensor("sampling_tally", 1, shares.tally_cols())?,
            tokens,
            candidates: tensor("top_candidates", shares.n, sampling::MAX_TOP)?,
            top_ids: tensor("top_ids", MAX_STEPS_PER_SUBMIT, sampling::MAX_TOP)?,
            logprobs: tensor("logprobs", MAX_STEPS_PER_SUBMIT, 1 + sampling::MAX_TOP)?,
        };
        let io = Io {
            tokens,
            hidden: tensor("hidden", max_rows, config.hidden_size)?,
            logits: Tensor { rows: 1, ..sampling.logits },
            generated: history.generated(),
            sampling,
            partials: tensor("argmax_partials", n_groups, argmax_partial::PARTIAL_COLS)?,
        };

        let empty = |device: &mut Device| device.prepare(Vec::new());
        let plans = Plans {
            decode: empty(device)?,
            prefill: Vec::new(),
            head: empty(device)?,
            greedy: empty(device)?,
            sample: SamplePlans {
                dry: empty(device)?,
                adjust: empty(device)?,
                top: empty(device)?,
                draw: empty(device)?,
            },
            score: None,
        };
        let mut model = Self {
            n_valid,
            config,
            token_embd,
            layers,
            output_norm,
            lm_head,
            rope,
            kept,
            kv_bytes,
            io,
            pool: ScratchPool::default(),
            memory: MemoryPlan {
                weight_bytes: weights.buffer_bytes(),
                cache_bytes: caches_end - weights_end,
                kv_bytes: cached_bytes - recurrent_bytes,
                state_bytes: recurrent_bytes,
                scratch_bytes: 0,
                staging_bytes: 0,
                total_bytes: 0,
                shards: weights.n_shards(),
                sharded_tensors: weights.n_sharded(),
                budget_bytes: device.info().limits.memory_budget_bytes,
                placement: place.clone(),
            },
            weight_bytes: weights.n_bytes(),
            cache_read_bytes,
            plans,
        };
        model.record_plans(device, max_rows)?;
        // The device counts what it allocates; a sum of sizes could miss something.
        let memory = &mut model.memory;
        memory.scratch_bytes = device.counters().live_bytes - caches_end;
        let resident_bytes = memory.weight_bytes + memory.cache_bytes + memory.scratch_bytes;
        memory.staging_bytes = staging_bytes(device.info(), weights, resident_bytes);
        memory.total_bytes = resident_bytes + memory.staging_bytes;
        Ok(model)
    }

    /// Fills the rotation table, and waits meanwhile as writes need it. Row `i` is for position
    /// `first_position + i`.
    pub async fn write_rotations(&self, device: &mut Device, first_position: u32) -> Result<(), EngineError> {
        const RUN: u32 = 1024;
        let Tensor { buffer, rows, cols } = self.rope;
        for start in (0..rows).step_by(RUN as usize) {
            let end = (start + RUN).min(rows);
            let positions = first_position.saturating_add(start)..first_position.saturating_add(end);
            let words = rotations(&self.config.rope, positions);
            device.write(buffer, u64::from(start) * u64::from(cols), &words)?;
            device.wait_for_uploads().await?;
        }
        Ok(())
    }

    fn record_plans(&mut self, device: &mut Device, max_rows: u32) -> Result<(), EngineError> {
        // Widest first: the narrower plans then reuse its scratch.
        let mut capacities: Vec<u32> = PREFILL_ROWS.into_iter().filter(|&rows| rows < max_rows).collect();
        capacities.push(max_rows);
        let mut prefill = Vec::new();
        for &rows in capacities.iter().rev() {
            let dispatches = self.record(device, |model, rec| model.forward(rec, rows))?;
            prefill.push((rows, device.prepare(dispatches)?));
        }
        prefill.reverse();
        let decode = self.record(device, |model, rec| model.forward(rec, 1))?;
        let head = self.record(device, Self::head)?;
        let greedy = self.record(device, Self::greedy)?;
        self.plans = Plans {
            decode: device.prepare(decode)?,
            prefill,
            head: device.prepare(head)?,
            greedy: device.prepare(greedy)?,
            sample: self.sample_plans(device)?,
            score: None,
        };
        Ok(())
    }

    fn sample_plans(&mut self, device: &mut Device) -> Result<SamplePlans, EngineError> {
        let dry = self.record(device, |model, rec| {
            rec.push("sample.dry", sample_dry::sample_dry(&model.io.sampling))
        })?;
        let adjust = self.record(device, |model, rec| {
            rec.push("sample.adjust", sample_adjust::sample_adjust(&model.io.sampling))
        })?;
        let top = self.record(device, |model, rec| {
            rec.push("top.share", top_share::top_share(&model.io.sampling))?;
            rec.push("top.final", top_final::top_final(&model.io.sampling))
        })?;
        let draw = self.record(device, |model, rec| {
            rec.push("sample.histogram", sample_histogram::sample_histogram(&model.io.sampling))?;
            rec.push("sample.draw", sample_draw::sample_draw(&model.io.sampling))?;
            rec.push("sample.final", sample_final::sample_final(&model.io.sampling))
        })?;
        Ok(SamplePlans {
            dry: device.prepare(dry)?,
            adjust: device.prepare(adjust)?,
            top: device.prepare(top)?,
            draw: device.prepare(draw)?,
        })
    }

    fn record(
        &mut self,
        device: &mut Device,
        body: impl FnOnce(&Self, &mut Recorder<'_>) -> Result<(), EngineError>,
    ) -> Result<Vec<Dispatch>, EngineError> {
        let mut pool = std::mem::take(&mut self.pool);
        let mut rec = Recorder::new(device, &mut pool);
        let result = body(self, &mut rec);
        let dispatches = rec.finish();
        self.pool = pool;
        result.map(|()| dispatches)
    }

    /// Reads up to `rows` tokens and leaves their final residual stream in `hidden`.
    fn forward(&self, rec: &mut Recorder<'_>, rows: u32) -> Result<(), EngineError> {
        let tokens = Tensor { cols: rows, ..self.io.tokens };
        let x = Tensor { rows, ..self.io.hidden };
        rec.scope("");
        rec.embed("embed", tokens, &self.token_embd, x)?; // [T, D]
        for layer in &self.layers {
            layer.forward(rec, x)?; // [T, D]
        }
        Ok(())
    }

    /// Logits of the step's last row.
    fn head(&self, rec: &mut Recorder<'_>) -> Result<(), EngineError> {
        let Io { hidden, logits, .. } = self.io;
        let eps = self.config.rms_norm_eps;
        rec.last_norm_linear("lm_head", hidden, self.output_norm, &self.lm_head, logits, eps) // [1, V]
    }

    /// The most likely next token; the device feeds it to the next step.
    fn greedy(&self, rec: &mut Recorder<'_>) -> Result<(), EngineError> {
        let Io { tokens, logits, generated, partials, .. } = self.io;
        rec.push("argmax.partial", argmax_partial::argmax_partial(logits, partials, self.n_valid))?;
        rec.push("argmax.final", argmax_final::argmax_final(partials, tokens, generated))
    }

    /// Puts other dispatches in place of those of the plans for which `other` has one that computes
    /// the same.
    pub fn replace_products(
        &mut self,
        device: &mut Device,
        other: impl Fn(&Dispatch) -> Option<Dispatch>,
    ) -> Result<(), EngineError> {
        let prefill = self.plans.prefill.iter_mut().map(|(_, plan)| plan);
        for plan in prefill.chain([&mut self.plans.decode, &mut self.plans.head]) {
            if !plan.dispatches.iter().any(|dispatch| other(dispatch).is_some()) {
                continue;
            }
            let replace = |d: &Dispatch| other(d).unwrap_or_else(|| d.clone());
            *plan = device.prepare(plan.dispatches.iter().map(replace).collect())?;
        }
        Ok(())
    }

    /// The plan that gives logits for every row, recorded when first asked for.
    pub fn prepare_score(&mut self, device: &mut Device) -> Result<(), EngineError> {
        if self.plans.score.is_some() {
            return Ok(());
        }
        let vocab = self.config.vocab_size;
        let limit = device.info().limits.max_words().min(MAX_SCORE_BYTES / 4);
        let rows = fit_rows("one row of logits", u64::from(vocab), limit, self.io.hidden.rows)?;
        let buffer = device.create_buffer("score_logits", u64::from(rows) * u64::from(vocab))?;
        let logits = Tensor { buffer, rows, cols: vocab };
        let dispatches = self.record(device, |model, rec| {
            let x = Tensor { rows, ..model.io.hidden };
            let h = rec.rms_norm("output_norm", x, model.output_norm, model.config.rms_norm_eps)?; // [T, D]
            rec.linear_into("lm_head", *h, &model.lm_head, logits) // [T, V]
        })?;
        self.plans.score = Some(Score { plan: device.prepare(dispatches)?, logits });
        Ok(())
    }

    /// The narrowest prefill plan for `n_tokens`.
    pub fn prefill_plan(&self, n_tokens: u32) -> Option<&Plan> {
        self.plans.prefill.iter().find(|(rows, _)| *rows >= n_tokens).map(|(_, plan)| plan)
    }

    /// The most tokens that one prefill step takes, in one run or, where the cache is 4-bit, in several.
    pub fn max_prefill_rows(&self) -> u32 {
        match self.kv_cache() {
            KvCache::Kivi => MAX_PREFILL_ROWS,
            KvCache::Auto | KvCache::F32 => self.io.hidden.rows,
        }
    }

    /// How many of `n_tokens` tokens from `position` on one run of a prefill plan reads.
    pub fn piece(&self, position: u32, n_tokens: u32) -> u32 {
        match self.kv_cache() {
            KvCache::Kivi => n_tokens.min(kivi::piece(position)).min(self.io.hidden.rows),
            KvCache::Auto | KvCache::F32 => n_tokens,
        }
    }

    /// How keys and values are kept: never [`KvCache::Auto`].
    pub fn kv_cache(&self) -> KvCache {
        self.memory.placement.kv_cache
    }

    /// Geometry.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Positions that the caches hold.
    pub fn context_length(&self) -> u32 {
        self.memory.placement.context_length
    }

    /// Number of ids that can be sampled.
    pub fn n_valid(&self) -> u32 {
        self.n_valid
    }

    /// Input and output buffers.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// All plans.
    pub fn plans(&self) -> &Plans {
        &self.plans
    }

    /// Bytes on the device.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// What one decoded token costs.
    pub fn step_cost(&self) -> StepCost {
        let plans = [&self.plans.decode, &self.plans.head, &self.plans.greedy];
        let dispatches = || plans.iter().flat_map(|plan| &plan.dispatches);
        // Of an embedding that is not the head as well, one row is read.
        let unread = if self.config.tie_word_embeddings {
            0
        } else {
            let shards = &self.token_embd.shards;
            let all: u64 = shards.iter().map(Weight::n_bytes).sum();
            all - shards.first().map_or(0, Weight::row_bytes)
        };
        StepCost {
            dispatches: dispatches().count() as u64,
            bytes_read: dispatches().map(|d| d.bytes_read).sum(),
            bytes_written: dispatches().map(|d| d.bytes_written).sum(),
            minimum_bytes: self.weight_bytes - unread + self.cache_read_bytes,
            kv_cache_bytes: dispatches().map(|d| self.kv_cache_bytes(d)).sum(),
        }
    }

    /// Of the bytes that a dispatch declares to read, those of the KV cache when it is full.
    pub fn kv_cache_bytes(&self, dispatch: &Dispatch) -> u64 {
        let cached = dispatch.buffers.iter().filter_map(|id| self.kv_bytes.get(id));
        // A dispatch that declares less only appends.
        cached.filter(|&&bytes| bytes <= dispatch.bytes_read).sum()
    }

    /// The buffers that a session fills.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }
}

/// Elements of the widest activation row: what a layer's first product, or its gate and up, yields.
fn widest_row(config: &ModelConfig) -> u64 {
    let (head_dim, kv_heads) = (u64::from(config.head_dim), u64::from(config.num_key_value_heads));
    let qkv = (2 * u64::from(config.num_attention_heads) + 2 * kv_heads) * head_dim;
    let delta = config.delta_net.as_ref().map_or(0, |d| {
        let values = u64::from(d.num_value_heads) * u64::from(d.value_head_dim);
        let keys = u64::from(d.num_key_heads) * u64::from(d.key_head_dim);
        2 * keys + 2 * values + 2 * u64::from(d.num_value_heads)
    });
    qkv.max(delta).max(config.hidden_size.into()).max(2 * u64::from(config.intermediate_size))
}

/// How many rows of `row_words` one buffer holds, at most `wanted`.
fn fit_rows(what: &str, row_words: u64, limit_words: u64, wanted: u32) -> Result<u32, EngineError> {
    match u32::try_from(limit_words / row_words.max(1)).unwrap_or(u32::MAX).min(wanted) {
        0 => Err(EngineError::LimitTooSmall {
            what: what.to_owned(),
            needed: row_words * 4,
            limit: limit_words * 4,
        }),
        rows => Ok(rows),
    }
}

/// A table for cosines and sines of every position, [S, n_rot].
fn rope_table(device: &mut Device, rope: &RopeConfig, context_length: u32) -> Result<Tensor, EngineError> {
    let (rows, cols) = (context_length, rope.n_rot);
    let buffer = device.create_buffer("rope", u64::from(rows) * u64::from(cols))?;
    Ok(Tensor { buffer, rows, cols })
}

/// Cosines and sines of positions, row by row: computed in f64, since an f32 angle is off by more than the
/// result's precision at large positions.
fn rotations(rope: &RopeConfig, positions: std::ops::Range<u32>) -> Vec<u32> {
    let (inv_freq, magnitude) = (rope.inv_freq(), rope.magnitude());
    let mut words = Vec::with_capacity(positions.len() * rope.n_rot as usize);
    for position in positions {
        let angles = || inv_freq.iter().map(|f| f64::from(position) * f);
        words.extend(angles().map(|a| ((a.cos() * magnitude) as f32).to_bits()));
        words.extend(angles().map(|a| ((a.sin() * magnitude) as f32).to_bits()));
    }
    words
}
