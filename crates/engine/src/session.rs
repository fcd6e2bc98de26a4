//! The resident session: which tokens the caches hold, and the steps that move them on.

use std::ops::RangeInclusive;

use signbit_shaders::State;
use signbit_shaders::sampling::MAX_TOP;

use crate::device::{Device, Plan, Read};
use crate::error::EngineError;
use crate::model::{MAX_STEPS_PER_SUBMIT, Model, Plans};
use crate::transcript::Transcript;

/// The tokens that the model's caches match.
#[derive(Debug, Default)]
pub struct Session {
    ledger: Vec<u32>,
    /// A token that the device has sampled but not yet read.
    pending: Option<u32>,
    /// Set while a step runs: a step that fails leaves caches that match nothing.
    torn: bool,
    /// Where replies ended.
    pub turns: Transcript,
}

/// What a prefill step should yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: more of the prompt follows.
    Nothing,
    /// The next token, which decode goes on from.
    Token(Choice),
    /// Logits of the last row.
    Logits,
    /// Logits of every row.
    AllLogits,
}

/// Which plans choose a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The most likely one.
    #[default]
    Greedy,
    /// The one that the settings on the device choose.
    Sample {
        /// Look for repetitions.
        dry: bool,
        /// Give the token's log-probability and those of so many of the most likely ones.
        logprobs: Option<u32>,
    },
}

impl Choice {
    fn plans(self, plans: &Plans) -> Vec<&Plan> {
        let sample = &plans.sample;
        match self {
            Self::Greedy => vec![&plans.greedy],
            Self::Sample { dry, logprobs } => {
                let dry = dry.then_some(&sample.dry);
                let top = logprobs.is_some_and(|n| n > 0).then_some(&sample.top);
                dry.into_iter().chain([&sample.adjust]).chain(top).chain([&sample.draw]).collect()
            }
        }
    }

    fn logprobs(self) -> Option<u32> {
        match self {
            Self::Greedy => None,
            Self::Sample { logprobs, .. } => logprobs,
        }
    }
}

/// Log-probabilities at one token, in the model's own distribution: before bias, penalties, temperature and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub id: u32,
    /// Its natural logarithm.
    pub logprob: f32,
    /// The most likely tokens, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// What a step yielded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Ids sampled on the device, a stop id included.
    pub ids: Vec<u32>,
    /// Log-probabilities at each id, if they were wanted.
    pub logprobs: Vec<TokenLogprobs>,
    /// Whether a stop id was sampled.
    pub stopped: bool,
    /// Logits, if they were wanted: [rows, V].
    pub logits: Vec<f32>,
}

impl Session {
    /// The ids that the caches match, in order.
    pub fn ledger(&self) -> &[u32] {
        &self.ledger
    }

    /// The token that the device has sampled but not yet read.
    pub fn pending(&self) -> Option<u32> {
        self.pending
    }

    /// Whether the caches hold what the ledger says.
    pub fn is_sound(&self) -> bool {
        !self.torn
    }

    /// Starts over with an empty context.
    pub fn reset(&mut self, device: &mut Device, model: &Model) -> Result<(), EngineError> {
        self.torn = true;
        device.clear(model.recurrent())?;
        self.ledger.clear();
        self.pending = None;
        self.turns.clear();
        self.torn = false;
        Ok(())
    }

    /// Reads `ids`, at most one prefill step of them, and leaves the device ready to decode.
    ///
    /// With a 4-bit cache the step is cut where the residual window is full, so that the result is
    /// that of reading the tokens one by one.
    pub async fn prefill(
        &mut self,
        device: &mut Device,
        model: &Model,
        ids: &[u32],
        stop_ids: &[u32],
        want: Want,
    ) -> Result<Step, EngineError> {
        self.check(model, ids)?;
        let (n, most) = (ids.len() as u32, model.max_prefill_rows());
        if n > most {
            let reason = format!("{n} tokens are more than one step of {most}");
            return Err(EngineError::InvalidRequest { reason });
        }
        let mut logits = Vec::new();
        let mut rest = ids;
        loop {
            let n = model.piece(self.ledger.len() as u32, rest.len() as u32);
            let (piece, after) = rest.split_at(n as usize);
            let wanted = if after.is_empty() || want == Want::AllLogits { want } else { Want::Nothing };
            let mut step = self.prefill_piece(device, model, piece, stop_ids, wanted).await?;
            logits.append(&mut step.logits);
            if after.is_empty() {
                return Ok(Step { logits, ..step });
            }
            rest = after;
        }
    }

    async fn prefill_piece(
        &mut self,
        device: &mut Device,
        model: &Model,
        ids: &[u32],
        stop_ids: &[u32],
        want: Want,
    ) -> Result<Step, EngineError> {
        let n = ids.len() as u32;
        let plans = model.plans();
        let body = model.prefill_plan(n).ok_or_else(|| EngineError::InvalidRequest {
            reason: format!("there is no plan for {n} tokens"),
        })?;
        let mut run: Vec<&Plan> = vec![body];
        let mut reads = vec![Read::State];
        match want {
            Want::Nothing => {}
            Want::Token(choice) => {
                run.push(&plans.head);
                run.extend(choice.plans(plans));
                reads.extend(chosen(model, choice));
            }
            Want::Logits => {
                run.push(&plans.head);
                reads.push(all_words(model.io().logits));
            }
            Want::AllLogits => {
                let score = plans.score.as_ref().filter(|s| s.logits.rows >= n).ok_or_else(|| {
                    EngineError::InvalidRequest { reason: format!("{n} rows are too many to score at once") }
                })?;
                run.push(&score.plan);
                reads.push(all_words(signbit_shaders::Tensor { rows: n, ..score.logits }));
            }
        }
        self.torn = true;
        device.write(model.io().tokens.buffer, 0, ids)?;
        device.write_state(&self.state(n, stop_ids)?);
        let results = device.run(&run, &reads).await?;
        let moved = match want {
            Want::Token(choice) => Some((n..=n, choice)),
            _ => None,
        };
        self.finish(ids.to_vec(), results, moved)
    }

    /// Generates up to `n` tokens on the device, going on from the one it sampled last.
    pub async fn decode(
        &mut self,
        device: &mut Device,
        model: &Model,
        n: u32,
        choice: Choice,
    ) -> Result<Step, EngineError> {
        let pending = self.pending.ok_or_else(|| EngineError::InvalidRequest {
            reason: "there is no sampled token to go on from".to_owned(),
        })?;
        self.check(model, &[pending])?;
        let room = model.context_length() - self.ledger.len() as u32;
        let n = n.clamp(1, MAX_STEPS_PER_SUBMIT).min(room);
        let plans = model.plans();
        let mut step = vec![&plans.decode, &plans.head];
        step.extend(choice.plans(plans));
        let run = step.repeat(n as usize);
        let mut reads = vec![Read::State];
        reads.extend(chosen(model, choice));
        self.torn = true;
        let results = device.run(&run, &reads).await?;
        self.finish(vec![pending], results, Some((1..=n, choice)))
    }

    /// Reads one token and gives the logits after it.
    pub async fn decode_logits(
        &mut self,
        device: &mut Device,
        model: &Model,
        id: u32,
    ) -> Result<Step, EngineError> {
        self.check(model, &[id])?;
        let plans = model.plans();
        self.torn = true;
        device.write(model.io().tokens.buffer, 0, &[id])?;
        device.write_state(&self.state(1, &[])?);
        let reads = [Read::State, all_words(model.io().logits)];
        let results = device.run(&[&plans.decode, &plans.head], &reads).await?;
        self.finish(vec![id], results, None)
    }

    fn check(&self, model: &Model, ids: &[u32]) -> Result<(), EngineError> {
        if self.torn {
            let reason = "an earlier step failed; the session must be reset".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        if ids.is_empty() {
            return Err(EngineError::InvalidRequest { reason: "there are no tokens to read".to_owned() });
        }
        let vocab = model.config().vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id >= vocab) {
            let reason = format!("token id {id} is outside the vocabulary of {vocab}");
            return Err(EngineError::InvalidRequest { reason });
        }
        let (prompt_tokens, context_length) =
            (self.ledger.len() + ids.len(), model.context_length() as usize);
        if prompt_tokens > context_length {
            return Err(EngineError::ContextFull { prompt_tokens, context_length });
        }
        Ok(())
    }

    fn state(&self, n_tokens: u32, stop_ids: &[u32]) -> Result<State, EngineError> {
        let mut state = State { position: self.ledger.len() as u32, n_tokens, ..State::default() };
        let slots = state.stop_ids.get_mut(..stop_ids.len()).ok_or_else(|| EngineError::InvalidRequest {
            reason: format!("{} stop ids are more than the device checks", stop_ids.len()),
        })?;
        slots.copy_from_slice(stop_ids);
        state.n_stop_ids = stop_ids.len() as u32;
        Ok(state)
    }

    /// Enters what was read into the ledger and takes the results apart.
    ///
    /// `moved` says by how much the device may have moved the position while it sampled, and how it
    /// chose; without it the results are logits.
    fn finish(
        &mut self,
        read: Vec<u32>,
        results: Vec<Vec<u32>>,
        moved: Option<(RangeInclusive<u32>, Choice)>,
    ) -> Result<Step, EngineError> {
        let mut results = results.into_iter();
        let state: State = results
            .next()
            .and_then(|words| bytemuck::try_pod_read_unaligned(bytemuck::cast_slice(&words)).ok())
            .ok_or_else(|| EngineError::Device { reason: "the state could not be read back".to_owned() })?;
        let words = results.next().unwrap_or_default();
        let before = self.ledger.len() as u32;
        if self.pending.take() != read.first().copied() {
            // A reply that ended with the sampled token is not part of the session any more.
            self.turns.cut(before as usize);
        }
        self.ledger.extend(read);
        if state.done == State::DONE_UNUSABLE_LOGITS {
            return Err(EngineError::UnusableLogits { position: state.position });
        }
        let n_moved = state.position.wrapping_sub(before);
        if moved.as_ref().is_some_and(|(range, _)| !range.contains(&n_moved)) {
            // A submit that the device dropped must not pass for a result.
            let reason = format!("position {} follows {before}: a submit had no effect", state.position);
            return Err(EngineError::Device { reason });
        }
        let mut step = Step { stopped: state.done == State::DONE_STOP, ..Step::default() };
        if let Some((_, choice)) = moved {
            // Every sampled token but the last has been read as well.
            let n_sampled = n_moved - (self.ledger.len() as u32 - before) + 1;
            let first = state.step.wrapping_sub(n_sampled);
            let slots = || (0..n_sampled).map(|i| first.wrapping_add(i) % MAX_STEPS_PER_SUBMIT);
            step.ids = slots().filter_map(|slot| words.get(slot as usize).copied()).collect();
            if let Some(n_top) = choice.logprobs() {
                let (found, ids) = (results.next().unwrap_or_default(), results.next().unwrap_or_default());
                step.logprobs = slots()
                    .zip(&step.ids)
                    .map(|(slot, &id)| token_logprobs(id, &found, &ids, slot as usize, n_top as usize))
                    .collect();
            }
            self.ledger.extend(step.ids.iter().take(step.ids.len().saturating_sub(1)));
            self.pending = step.ids.last().copied().filter(|_| !step.stopped);
        } else {
            step.logits = bytemuck::cast_vec(words);
        }
        self.torn = false;
        Ok(step)
    }
}

/// What to read back after tokens were chosen.
fn chosen(model: &Model, choice: Choice) -> Vec<Read> {
    let io = model.io();
    let mut reads = vec![all_words(io.generated)];
    if choice.logprobs().is_some() {
        reads.extend([all_words(io.sampling.logprobs), all_words(io.sampling.top_ids)]);
    }
    reads
}

/// The log-probabilities in row `slot` of what the device found: [G, 1 + MAX_TOP] of f32, and [G, MAX_TOP] ids.
fn token_logprobs(id: u32, found: &[u32], ids: &[u32], slot: usize, n_top: usize) -> TokenLogprobs {
    let n = MAX_TOP as usize;
    let mut row = found.iter().skip(slot * (n + 1)).map(|&word| f32::from_bits(word));
    let logprob = row.next().unwrap_or(f32::NAN);
    let top =
        ids.iter().skip(slot * n).copied().zip(row).take(n_top).filter(|&(id, _)| id != u32::MAX).collect();
    TokenLogprobs { id, logprob, top }
}

fn all_words(tensor: signbit_shaders::Tensor) -> Read {
    Read::Words(tensor.buffer, 0..u64::from(tensor.rows) * u64::from(tensor.cols))
}
