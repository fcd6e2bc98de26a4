//! The resident session: which tokens the caches hold, the steps that extend it, and the way back.

use std::ops::{Range, RangeInclusive};

use signbit_shaders::State;
use signbit_shaders::kernels::kivi::Cursors;
use signbit_shaders::sampling::MAX_TOP;

use crate::device::{Device, Plan, Read};
use crate::error::EngineError;
use crate::model::kept::{Kept, count};
use crate::model::{MAX_STEPS_PER_SUBMIT, Model, Plans};
use crate::snapshot::ChunkDigests;
use crate::transcript::Transcript;

/// What is known of a session without its data: enough to tell what of a prompt it would save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The ids that the caches match, in order: the ledger.
    pub ids: Vec<u32>,
    /// A token that was sampled but not yet read.
    pub pending: Option<u32>,
    /// Tokens of the ledger whose rows attention no longer has, since a window rolled over them.
    pub dropped: Range<u32>,
    /// Ends of the checkpoints, ascending.
    pub checkpoints: Vec<u32>,
    /// Where replies ended.
    pub turns: Transcript,
    /// Where the last turn that was not the model's began, or the reply to a prompt without such turns: a
    /// prompt that leaves the session there takes the place of what follows.
    pub last_turn: u32,
}

impl Head {
    /// Rows that the first `n` tokens have in the caches.
    pub fn rows(&self, n: u32) -> u32 {
        if n <= self.dropped.start { n } else { n.max(self.dropped.end) - self.dropped.len() as u32 }
    }

    /// How many of the first ids a prompt begins with as well, the pending one included.
    pub fn common(&self, prompt: &[u32]) -> u32 {
        let ids = self.ids.iter().chain(&self.pending);
        ids.zip(prompt).take_while(|(ours, theirs)| ours == theirs).count() as u32
    }

    /// The most of the first `n` tokens that the session can be cut back to, and how.
    ///
    /// * Rows that attention no longer has cannot be had again: the cut lies before or behind them.
    /// * Rows as computed can be cut anywhere.
    /// * Quantised rows can be cut where a sequence of that length has as many of them, which is within the
    ///   window at the end or within the window that a checkpoint has.
    /// * A recurrent state is there at the end and at checkpoints only.
    pub fn reach(&self, kept: &Kept, n: u32) -> (u32, Way) {
        let len = self.ids.len() as u32;
        let n = match n.min(len) {
            n if self.dropped.contains(&n) => self.dropped.start,
            n => n,
        };
        let quantised = |n: u32| Cursors::at(self.rows(n)).quantised;
        let is_free =
            |at: u32| !kept.is_recurrent() && (!kept.is_quantised() || quantised(at) == quantised(n));
        let checkpoints = self.checkpoints.iter().map(|&at| (at, Way::Checkpoint(at)));
        let mut best = (0, Way::Reset);
        for (at, way) in std::iter::once((len, Way::Cut)).chain(checkpoints) {
            let to = if at > n && is_free(at) { n } else { at };
            if best.0 < to && to <= n {
                best = (to, way);
            }
        }
        best
    }

    /// Why fewer than the first `n` tokens can be kept.
    pub fn obstacle(&self, kept: &Kept, n: u32) -> Obstacle {
        if self.dropped.contains(&n) {
            Obstacle::Dropped
        } else if kept.is_recurrent() {
            Obstacle::RecurrentState
        } else {
            Obstacle::Quantised
        }
    }
}

/// How a session is cut back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What is behind is forgotten.
    Cut,
    /// From the state of the checkpoint at so many tokens.
    Checkpoint(u32),
    /// It starts over.
    Reset,
}

/// Why less of a session was reused than matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// A recurrent state cannot be cut back, and the checkpoint before lies further back.
    RecurrentState,
    /// Quantised rows cannot be made exact again.
    Quantised,
    /// A rolling window has dropped rows that the prompt needs.
    Dropped,
    /// The last token of the prompt is read again for its logits.
    Logits,
    /// A step has failed, so that the caches match nothing.
    Torn,
}

/// The state after so many tokens, in the memory of the host.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub len: u32,
    pub words: Vec<u32>,
}

/// Takes checkpoints, each with its bytes, out of a list until the rest takes no more than `budget_bytes`:
/// between its neighbours the one in the middle of the smallest span is missed least. The first and the
/// last go at the end.
pub(crate) fn thin_out(checkpoints: &mut Vec<(u32, u64)>, budget_bytes: u64) {
    while checkpoints.iter().map(|(_, bytes)| bytes).sum::<u64>() > budget_bytes {
        let spans = checkpoints.windows(3).map(|span| span[2].0 - span[0].0).enumerate();
        let least = spans.min_by_key(|&(_, span)| span).map_or(0, |(i, _)| i + 1);
        checkpoints.remove(least);
    }
}

/// What the rotation table on the device has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rotations {
    /// The position of its first row.
    first_position: u32,
    /// Whether it is being written.
    is_partial: bool,
}

/// The tokens that the model's caches match.
#[derive(Debug, Default)]
pub struct Session {
    head: Head,
    /// Those whose ends are in `head`.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// What is known of the chunks of the last snapshot.
    pub(crate) digests: ChunkDigests,
    /// Whether the device has the logits after the last token.
    has_logits: bool,
    /// Whether the device's own state goes on from the pending token.
    follows: bool,
    rotations: Rotations,
    /// Set while a step runs: a step that fails leaves caches that match nothing.
    torn: bool,
}

/// What a prefill step should yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: more of the prompt follows.
    Nothing,
    /// Nothing yet, but a token may be chosen next.
    Head,
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
    /// What is known of the session without its data.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The ids that the caches match, in order.
    pub fn ledger(&self) -> &[u32] {
        &self.head.ids
    }

    /// The row of the caches that the next token takes.
    pub fn position(&self) -> u32 {
        self.head.rows(self.head.ids.len() as u32)
    }

    /// The token that the device has sampled but not yet read.
    pub fn pending(&self) -> Option<u32> {
        self.head.pending
    }

    /// Whether the caches hold what the ledger says.
    pub fn is_sound(&self) -> bool {
        !self.torn
    }

    /// Whether a token can be chosen without reading one first.
    pub fn has_logits(&self) -> bool {
        self.has_logits
    }

    /// Starts over with an empty context.
    pub fn reset(&mut self, device: &mut Device, model: &Model) -> Result<(), EngineError> {
        let rotations = self.rotations;
        *self = Self { torn: true, rotations, ..Self::default() };
        device.clear(&model.kept().recurrent_buffers())?;
        self.torn = false;
        Ok(())
    }

    /// Forgets all but the first `to` tokens, in the way that [`Head::reach`] gave.
    pub async fn cut_back(
        &mut self,
        device: &mut Device,
        model: &Model,
        to: u32,
        way: Way,
    ) -> Result<(), EngineError> {
        self.torn = true;
        match way {
            Way::Reset => return self.reset(device, model),
            Way::Cut => {}
            Way::Checkpoint(at) => {
                let found = self.checkpoints.iter().find(|checkpoint| checkpoint.len == at);
                let checkpoint = found.ok_or_else(|| EngineError::InvalidRequest {
                    reason: format!("there is no checkpoint at {at} tokens"),
                })?;
                let state = model.kept().state(self.head.rows(at));
                device.write_all(&state, &checkpoint.words).await?;
            }
        }
        let head = &mut self.head;
        self.has_logits &= head.ids.len() == to as usize;
        self.follows = false;
        let settled = model.kept().settled(head.rows(to));
        head.ids.truncate(to as usize);
        head.turns.cut(to as usize);
        head.pending = None;
        if to <= head.dropped.start {
            head.dropped = 0..0;
        }
        head.checkpoints.retain(|&at| at <= to);
        self.checkpoints.retain(|checkpoint| checkpoint.len <= to);
        self.digests.forget_behind(settled, to);
        self.torn = false;
        Ok(())
    }

    /// Keeps the present state, to come back to it. Of checkpoints that take more than `budget_bytes`
    /// together those go that are closest to another, but for the first and the last.
    pub async fn keep_checkpoint(
        &mut self,
        device: &mut Device,
        model: &Model,
        budget_bytes: u64,
    ) -> Result<(), EngineError> {
        let len = self.head.ids.len() as u32;
        let state = model.kept().state(self.position());
        if self.head.checkpoints.last() == Some(&len) || 4 * count(&state) > budget_bytes {
            return Ok(());
        }
        let words = device.read(&state).await?;
        self.checkpoints.push(Checkpoint { len, words });
        let mut left: Vec<_> = self.checkpoints.iter().map(|c| (c.len, 4 * c.words.len() as u64)).collect();
        thin_out(&mut left, budget_bytes);
        self.checkpoints.retain(|checkpoint| left.iter().any(|&(len, _)| len == checkpoint.len));
        self.head.checkpoints = self.checkpoints.iter().map(|c| c.len).collect();
        Ok(())
    }

    /// Drops the oldest rows behind the first `pinned` ones, so that there is room for more tokens; later
    /// rows move up and keep their rotations. Returns how many were dropped: none where too few would
    /// be left to drop.
    ///
    /// A recurrent state keeps what it has of the dropped tokens.
    pub async fn roll(
        &mut self,
        device: &mut Device,
        model: &Model,
        pinned: u32,
    ) -> Result<u32, EngineError> {
        let kept = model.kept();
        let (rows, granule) = (self.position(), kept.granule());
        let dropped = self.head.dropped.clone();
        let pinned = if dropped.is_empty() { kept.round_up(pinned) } else { dropped.start };
        let movable = kept.settled(rows).saturating_sub(pinned);
        let n = (movable / 2).next_multiple_of(granule);
        // The newest token is to be seen.
        if n == 0 || n > movable || pinned + n >= rows {
            return Ok(0);
        }
        self.torn = true;
        for block in kept.blocks(kept.settled(rows)) {
            let block = block.start.max(pinned + n)..block.end;
            if !block.is_empty() {
                let words = device.read(&kept.rows(block.clone())).await?;
                device.write_all(&kept.rows(block.start - n..block.end - n), &words).await?;
            }
        }
        let head = &mut self.head;
        head.dropped = pinned..pinned + dropped.len() as u32 + n;
        // The window of the one at the end of what was dropped is of tokens that are dropped.
        let is_left = |at: u32| at <= pinned || at > head.dropped.end;
        head.checkpoints.retain(|&at| is_left(at));
        self.checkpoints.retain(|checkpoint| is_left(checkpoint.len));
        self.digests.forget_behind(pinned, u32::MAX);
        (self.follows, self.torn) = (false, false);
        Ok(n)
    }

    /// Says that the caches are about to be overwritten.
    pub(crate) fn tear(&mut self) {
        *self = Self { torn: true, rotations: self.rotations, ..Self::default() };
    }

    /// Makes this the session that the caches have been filled with.
    pub(crate) fn replace(&mut self, head: Head, checkpoints: Vec<Checkpoint>, digests: ChunkDigests) {
        let rotations = self.rotations;
        *self = Self { head, checkpoints, digests, rotations, ..Self::default() };
    }

    /// Where replies ended.
    pub(crate) fn turns(&mut self) -> &mut Transcript {
        &mut self.head.turns
    }

    /// Says that another generation begins, with a last turn from `last_turn` on: the device's own state is
    /// not that.
    pub(crate) fn begin(&mut self, last_turn: u32) {
        (self.follows, self.head.last_turn) = (false, last_turn);
    }

    /// Makes the rotations those of the positions that the next rows are at.
    async fn rotate(&mut self, device: &mut Device, model: &Model) -> Result<(), EngineError> {
        let by = self.head.dropped.len() as u32;
        if self.rotations != (Rotations { first_position: by, is_partial: false }) {
            self.rotations.is_partial = true;
            model.write_rotations(device, by).await?;
            self.rotations = Rotations { first_position: by, is_partial: false };
        }
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
            let n = model.piece(self.position(), rest.len() as u32);
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
            Want::Head => run.push(&plans.head),
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
        self.rotate(device, model).await?;
        self.torn = true;
        device.write(model.io().tokens.buffer, 0, ids)?;
        device.write_state(&self.state(n, stop_ids)?);
        let results = device.run(&run, &reads).await?;
        let moved = match want {
            Want::Token(choice) => Some((n..=n, choice)),
            _ => None,
        };
        let step = self.finish(ids.to_vec(), results, moved)?;
        self.has_logits = matches!(want, Want::Head | Want::Logits | Want::Token(_));
        Ok(step)
    }

    /// Chooses a token from the logits after the last one, without reading any.
    pub async fn choose(
        &mut self,
        device: &mut Device,
        model: &Model,
        stop_ids: &[u32],
        choice: Choice,
    ) -> Result<Step, EngineError> {
        let last = self.position().checked_sub(1).filter(|_| self.has_logits && !self.torn);
        let position = last.ok_or_else(|| EngineError::InvalidRequest {
            reason: "there are no logits to choose from".to_owned(),
        })?;
        let run = choice.plans(model.plans());
        let mut reads = vec![Read::State];
        reads.extend(chosen(model, choice));
        self.torn = true;
        // As if the last token had just been read.
        device.write_state(&State { position, ..self.state(1, stop_ids)? });
        let results = device.run(&run, &reads).await?;
        self.finish(Vec::new(), results, Some((0..=0, choice)))
    }

    /// Generates up to `n` tokens on the device, going on from the one it sampled last.
    pub async fn decode(
        &mut self,
        device: &mut Device,
        model: &Model,
        n: u32,
        stop_ids: &[u32],
        choice: Choice,
    ) -> Result<Step, EngineError> {
        let pending = self.head.pending.ok_or_else(|| EngineError::InvalidRequest {
            reason: "there is no sampled token to go on from".to_owned(),
        })?;
        self.check(model, &[pending])?;
        let room = model.context_length() - self.position();
        let n = n.clamp(1, MAX_STEPS_PER_SUBMIT).min(room);
        let plans = model.plans();
        let mut step = vec![&plans.decode, &plans.head];
        step.extend(choice.plans(plans));
        let run = step.repeat(n as usize);
        let mut reads = vec![Read::State];
        reads.extend(chosen(model, choice));
        self.rotate(device, model).await?;
        self.torn = true;
        if !self.follows {
            device.write(model.io().tokens.buffer, 0, &[pending])?;
            device.write_state(&self.state(1, stop_ids)?);
        }
        let results = device.run(&run, &reads).await?;
        let step = self.finish(vec![pending], results, Some((1..=n, choice)))?;
        self.has_logits = true;
        Ok(step)
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
        self.rotate(device, model).await?;
        device.write(model.io().tokens.buffer, 0, &[id])?;
        device.write_state(&self.state(1, &[])?);
        let reads = [Read::State, all_words(model.io().logits)];
        let results = device.run(&[&plans.decode, &plans.head], &reads).await?;
        let step = self.finish(vec![id], results, None)?;
        self.has_logits = true;
        Ok(step)
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
            (self.position() as usize + ids.len(), model.context_length() as usize);
        if prompt_tokens > context_length {
            return Err(EngineError::ContextFull { prompt_tokens, context_length });
        }
        Ok(())
    }

    fn state(&self, n_tokens: u32, stop_ids: &[u32]) -> Result<State, EngineError> {
        let mut state = State { position: self.position(), n_tokens, ..State::default() };
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
        let (before, n_read) = (self.position(), read.len() as u32);
        let len = self.head.ids.len();
        if self.head.pending.take() != read.first().copied() && n_read > 0 {
            // A reply that ended with the sampled token is not part of the session any more.
            self.head.turns.cut(len);
        }
        self.follows = false;
        self.head.ids.extend(read);
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
            let n_sampled = n_moved - n_read + 1;
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
            self.head.ids.extend(step.ids.iter().take(step.ids.len().saturating_sub(1)));
            self.head.pending = step.ids.last().copied().filter(|_| !step.stopped);
            self.follows = self.head.pending.is_some();
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
