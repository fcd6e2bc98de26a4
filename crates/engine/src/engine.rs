//! One device with at most one resident model, and generation over it, in tokens.

use signbit_shaders::sampling::{IN_PROMPT, MAX_TOP, SETTINGS_WORDS, Settings, set_words};

use signbit_shaders::kernels::delta_chunk::CHUNK;

use crate::check::probe;
use crate::clock::{Pace, now_ms};
use crate::device::{Counters, Device, DeviceInfo};
use crate::error::EngineError;
use crate::loader::{LoadedModel, Loader};
use crate::model::{MAX_STEPS_PER_SUBMIT, Model, ModelOptions};
use crate::placement::{Known, SessionId};
use crate::reuse::Reuse;
use crate::sampler::Sampling;
use crate::session::{Choice, Obstacle, Session, Step, TokenLogprobs, Want, Way};
use crate::tuning::{Choose, Tuning, tune};

/// Milliseconds that a submit should take where nothing else waits for the device.
const TIME_BUDGET_MS: f64 = 100.0;

/// A prompt is cut at whole chunks of the delta rule, so that a hybrid's result does not depend on how
/// long slices took, and a GPU is given no less, however slow it is. Only a dense model on the CPU may be read
/// in smaller slices.
const PREFILL_CUT: u32 = CHUNK;

/// Bytes that the checkpoints of a session may take in the host's memory, unless the caller says otherwise.
pub const CHECKPOINT_BYTES: u64 = 512 << 20;

/// Tokens of a prompt from one checkpoint to the next, at most, as long as the bytes last.
pub const CHECKPOINT_INTERVAL: u32 = 512;

/// A device and the model on it.
#[derive(Debug)]
pub struct Engine {
    device: Device,
    choose: Choose,
    checkpoint_bytes: u64,
    time_budget_ms: f64,
    resident: Option<Resident>,
}

#[derive(Debug)]
pub(crate) struct Resident {
    pub loaded: LoadedModel,
    tuning: Tuning,
    pub session: Session,
    pub session_id: Option<SessionId>,
    /// Sessions that are kept elsewhere.
    pub known: Vec<Known>,
    prefill_pace: Pace,
    decode_pace: Pace,
    /// Number of the generation that was started last: an earlier one cannot go on.
    pub generation: u64,
}

/// What to generate, in tokens.
#[derive(Clone, Debug, Default)]
pub struct TokenRequest {
    /// The whole prompt; what the resident session already holds of it is not read again.
    pub prompt: Vec<u32>,
    /// What there is of the reply already, as when the device that began it is gone. It is read behind
    /// the prompt and counts as generated: with the same settings the same tokens follow.
    pub generated: Vec<u32>,
    /// The most tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Give the log-probability of each token, and those of so many of the most likely ones.
    pub logprobs: Option<u32>,
    /// Ids that end the reply.
    pub stop_ids: Vec<u32>,
    /// What happens where the context is full.
    pub context_end: ContextEnd,
}

/// What happens where the context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextEnd {
    /// A longer prompt is refused, and a reply ends. A session whose window has rolled is read anew.
    #[default]
    Stop,
    /// The oldest rows of attention are dropped, but for the first `pinned`, half of the rest at a time. A
    /// recurrent state still has its impression of the dropped tokens. The dropped tokens stay in the
    /// ledger, so that a prompt which repeats them goes on.
    Roll {
        /// Tokens at the start that stay; a 4-bit cache keeps a few more.
        pinned: u32,
    },
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its reply, or a stop string appeared.
    Stop,
    /// The token limit or the end of the context was reached.
    Length,
    /// The reply calls tools.
    ToolCalls,
}

/// A generation under way. Abandoning it at any time leaves the engine usable.
#[derive(Debug)]
pub struct Generation {
    /// See `Resident::generation`.
    number: u64,
    request: TokenRequest,
    /// The most tokens that the next step may generate.
    step_limit: u32,
    /// What is to become of the session before the first step.
    begin: Option<Begin>,
    /// Prompt tokens that the session holds.
    n_read: usize,
    /// Where the reading of the prompt pauses, and whether a checkpoint is kept there.
    pauses: Vec<(u32, bool)>,
    reuse: Reuse,
    /// Tokens that a rolling window has dropped since the start.
    n_rolled: u32,
    n_generated: u32,
    max_tokens: u32,
    /// Tokens of the prompt as it was given: in `request` it is followed by what there was of the reply,
    /// or was forced into it.
    prompt_len: usize,
    choice: Choice,
    /// Only some ids may follow, which the caller says before each token.
    is_masked: bool,
    /// Of the last step's tokens, if they were asked for.
    logprobs: Vec<TokenLogprobs>,
    finished: Option<FinishReason>,
}

impl Generation {
    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_len
    }

    /// Tokens of the prompt that have been read, reused ones included.
    pub fn prefilled(&self) -> usize {
        self.n_read
    }

    /// What of the prompt did not have to be read again, and why not more.
    pub fn reuse(&self) -> &Reuse {
        &self.reuse
    }

    /// Names the session that the generation runs in, from its first step on.
    pub(crate) fn run_in(&mut self, session: SessionId) {
        if let Some(begin) = &mut self.begin {
            begin.session = Some(session);
        }
    }

    /// Tokens that a rolling window has dropped since the start.
    pub fn rolled(&self) -> u32 {
        self.n_rolled
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> u32 {
        self.n_generated
    }

    /// Whether the whole prompt has been read.
    pub fn has_read_prompt(&self) -> bool {
        self.n_read >= self.request.prompt.len()
    }

    /// Lets the next steps generate at most `n` tokens each.
    pub fn limit_steps(&mut self, n: u32) {
        self.step_limit = n.max(1);
    }

    /// Log-probabilities at the tokens of the last step, if they were asked for.
    pub fn logprobs(&self) -> &[TokenLogprobs] {
        &self.logprobs
    }

    /// Set once nothing more comes.
    pub fn finished(&self) -> Option<FinishReason> {
        self.finished
    }

    /// Ends the generation, for a reason that only the text shows.
    pub fn end(&mut self, reason: FinishReason) {
        self.finished.get_or_insert(reason);
    }
}

impl Engine {
    /// An engine without a model.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            choose: Choose::default(),
            checkpoint_bytes: CHECKPOINT_BYTES,
            time_budget_ms: TIME_BUDGET_MS,
            resident: None,
        }
    }

    /// Bytes that the checkpoints of the resident session may take.
    pub(crate) fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint_bytes
    }

    /// Says how many bytes the checkpoints of the resident session may take in the host's memory.
    pub fn set_checkpoint_bytes(&mut self, n_bytes: u64) {
        self.checkpoint_bytes = n_bytes;
    }

    /// Says how long a submit may take, as far as the device lets it be cut: a page that is to stay
    /// smooth needs a turn at every frame. Sizes adapt to it; on a GPU results do not depend on them.
    pub fn set_time_budget(&mut self, milliseconds: f64) {
        self.time_budget_ms = milliseconds;
    }

    /// Says how the next load chooses among variants of kernels.
    pub fn choose_variants(&mut self, choose: Choose) {
        self.choose = choose;
    }

    /// What the load of the resident model chose.
    pub fn tuning(&self) -> Result<&Tuning, EngineError> {
        Ok(&self.resident()?.tuning)
    }

    /// The device.
    pub fn device_info(&self) -> &DeviceInfo {
        self.device.info()
    }

    /// What the device has done.
    pub fn counters(&self) -> Counters {
        self.device.counters()
    }

    /// The device, for a loader or for checks below the level of a model.
    pub fn device_mut(&mut self) -> &mut Device {
        &mut self.device
    }

    /// Frees the resident model.
    pub fn unload(&mut self) {
        self.resident = None;
        self.device.free_from(0);
    }

    /// Makes the loader's model the resident one; frees what it allocated if it is not complete.
    pub async fn install(&mut self, loader: Loader) -> Result<&LoadedModel, EngineError> {
        let (loaded, tuning) = match self.finish(loader).await {
            Ok(finished) => finished,
            Err(error) => {
                self.unload();
                return Err(error);
            }
        };
        let most_rows = loaded.model.max_prefill_rows();
        let rounds_by_cuts = loaded.model.kept().is_recurrent();
        let least_rows = if self.device.info().backend == "cpu" && !rounds_by_cuts { 1 } else { PREFILL_CUT };
        let resident = self.resident.insert(Resident {
            loaded,
            tuning,
            session: Session::default(),
            session_id: None,
            known: Vec::new(),
            prefill_pace: Pace::new(32, least_rows, most_rows),
            decode_pace: Pace::new(1, 1, MAX_STEPS_PER_SUBMIT),
            generation: 0,
        });
        resident.session.reset(&mut self.device, &resident.loaded.model)?;
        Ok(&resident.loaded)
    }

    /// The loader's model with the kernels that are right and fast on this device.
    async fn finish(&mut self, loader: Loader) -> Result<(LoadedModel, Tuning), EngineError> {
        let mut loaded = loader.finish(&mut self.device).await?;
        // On the CPU there is no driver to doubt, and one way to compute each kernel.
        if self.device.info().backend == "cpu" {
            return Ok((loaded, Tuning::default()));
        }
        probe(&mut self.device, &loaded.model).await?;
        let tuning = tune(&mut self.device, &mut loaded.model, &self.choose).await?;
        Ok((loaded, tuning))
    }

    /// Loads a model whose parts are already in memory.
    pub async fn load_parts(
        &mut self,
        parts: &[&[u8]],
        options: ModelOptions,
    ) -> Result<&LoadedModel, EngineError> {
        self.unload();
        let mut loader = Loader::new(options);
        if let Err(error) = push_parts(&mut loader, &mut self.device, parts).await {
            self.unload();
            return Err(error);
        }
        self.install(loader).await
    }

    pub(crate) fn resident(&self) -> Result<&Resident, EngineError> {
        self.resident.as_ref().ok_or_else(no_model)
    }

    pub(crate) fn resident_mut(&mut self) -> Result<&mut Resident, EngineError> {
        self.resident.as_mut().ok_or_else(no_model)
    }

    /// The resident model.
    pub fn loaded(&self) -> Result<&LoadedModel, EngineError> {
        Ok(&self.resident()?.loaded)
    }

    /// The ids that the resident session holds.
    pub fn ledger(&self) -> Result<&[u32], EngineError> {
        Ok(self.resident()?.session.ledger())
    }

    /// The resident session.
    pub fn session(&self) -> Result<&Session, EngineError> {
        Ok(&self.resident()?.session)
    }

    /// Ends the generation that is under way, and gives the number of what follows.
    pub(crate) fn end_generation(&mut self) -> Result<u64, EngineError> {
        let resident = self.resident_mut()?;
        resident.generation += 1;
        Ok(resident.generation)
    }

    /// Whether the session holds what `generation` has read, and what it has generated, and nothing else.
    pub(crate) fn holds(&self, generation: &Generation) -> bool {
        self.resident.as_ref().is_some_and(|resident| {
            let is_current = resident.generation == generation.number;
            is_current && generation.begin.is_none() && resident.session.is_sound()
        })
    }

    /// Forgets the resident session.
    pub fn reset(&mut self) -> Result<(), EngineError> {
        self.end_generation()?;
        let resident = self.resident_mut()?;
        resident.session_id = None;
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        resident.session.reset(&mut self.device, &resident.loaded.model)
    }

    /// The device, model and session, for checks that go step by step.
    pub fn parts_mut(&mut self) -> Result<(&mut Device, &LoadedModel, &mut Session), EngineError> {
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        Ok((&mut self.device, &resident.loaded, &mut resident.session))
    }

    /// Logits after every position of `ids`, from an empty session: `chunk` tokens are read at a
    /// time, and `rows` gets each chunk's logits, [tokens, V].
    pub async fn score(
        &mut self,
        ids: &[u32],
        chunk: u32,
        mut rows: impl FnMut(&[f32]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.reset()?;
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        resident.generation += 1;
        let model = &mut resident.loaded.model;
        let (prompt_tokens, context_length) = (ids.len(), model.context_length() as usize);
        if prompt_tokens > context_length {
            return Err(EngineError::ContextFull { prompt_tokens, context_length });
        }
        model.prepare_score(&mut self.device)?;
        let most = model.plans().score.as_ref().map_or(1, |score| score.logits.rows);
        for ids in ids.chunks(chunk.clamp(1, most) as usize) {
            let step = resident.session.prefill(&mut self.device, model, ids, &[], Want::AllLogits).await?;
            rows(&step.logits)?;
        }
        Ok(())
    }

    /// Prepares a generation. Nothing is computed before the first [`Engine::step`].
    pub fn start(&mut self, mut request: TokenRequest) -> Result<Generation, EngineError> {
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        request.sampling.validate(resident.loaded.model.n_valid())?;
        if let Some(n) = request.logprobs.filter(|&n| n > MAX_TOP) {
            let reason = format!("{n} most likely tokens were asked for, and {MAX_TOP} is the most");
            return Err(EngineError::InvalidRequest { reason });
        }
        let prompt_tokens = request.prompt.len();
        if prompt_tokens == 0 {
            return Err(EngineError::InvalidRequest { reason: "the prompt is empty".to_owned() });
        }
        let n_generated = request.generated.len() as u32;
        let has_stopped = request.generated.last().is_some_and(|id| request.stop_ids.contains(id));
        request.prompt.append(&mut request.generated);
        let LoadedModel { model, .. } = &resident.loaded;
        let (head, prompt) = (resident.session.head(), &request.prompt);
        let Start { n_read, cut, reason } = Start::of(&resident.session, model, prompt, request.context_end);
        let n_kept = cut.map_or(head.ids.len() as u32, |(to, _)| to);
        let room = model.context_length().saturating_sub(head.rows(n_kept)) as usize;
        let n_missing = prompt.len() - n_kept as usize;
        let rolls = request.context_end != ContextEnd::Stop;
        // Of a reply that there is already, what does not fit need not be read: it ends there.
        if n_missing.saturating_sub(n_generated as usize) > room && !rolls {
            let context_length = model.context_length() as usize;
            return Err(EngineError::ContextFull { prompt_tokens, context_length });
        }
        resident.generation += 1;
        let most = if rolls {
            // A reply that never ends must end somewhere.
            request.max_tokens.unwrap_or(model.context_length())
        } else {
            // The last generated token need not be read, hence one more than the context has room for.
            let room = (room + 1 + n_generated as usize).saturating_sub(n_missing);
            request.max_tokens.unwrap_or(u32::MAX).min(room as u32)
        };
        let is_greedy = request.sampling.is_greedy() && request.logprobs.is_none();
        let choice = if is_greedy {
            Choice::Greedy
        } else {
            Choice::Sample { dry: request.sampling.has_dry(), logprobs: request.logprobs }
        };
        let has_all = n_read == prompt.len();
        let finished = match has_stopped {
            true => Some(FinishReason::Stop),
            // A prompt of which nothing is to follow is read all the same, for what comes later.
            false => (n_generated >= most && (has_all || n_generated > 0)).then_some(FinishReason::Length),
        };
        let pauses = self.pauses(prompt, n_kept)?;
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        let (head, request_len) = (resident.session.head(), request.prompt.len() as u32);
        let LoadedModel { tokenizer, template, .. } = &resident.loaded;
        let last_turn = template.turn_starts(tokenizer, &request.prompt).last().copied();
        let generation = Generation {
            number: resident.generation,
            reuse: Reuse::of(head, &request.prompt, n_read as u32, reason),
            step_limit: u32::MAX,
            begin: Some(Begin { cut, last_turn: last_turn.unwrap_or(request_len), session: None }),
            n_read,
            pauses,
            n_rolled: 0,
            n_generated,
            max_tokens: most,
            prompt_len: prompt_tokens,
            choice,
            is_masked: false,
            logprobs: Vec::new(),
            finished,
            request,
        };
        if choice != Choice::Greedy {
            write_sampling(&mut self.device, resident, &generation)?;
        }
        Ok(generation)
    }

    /// Where the reading of a prompt stops for a moment, from `start` on: at every turn, and so often between
    /// that no checkpoint is far. It follows from the prompt alone, so that another reading of it rounds alike.
    fn pauses(&self, prompt: &[u32], start: u32) -> Result<Vec<(u32, bool)>, EngineError> {
        let LoadedModel { model, tokenizer, template, .. } = self.loaded()?;
        let kept = model.kept();
        if !kept.is_recurrent() && !kept.is_quantised() {
            return Ok(Vec::new());
        }
        let n_affordable = self.checkpoint_bytes / kept.max_state_bytes().max(1);
        // Where memory is short, half of it goes to the turns.
        let least = prompt.len() as u64 / (n_affordable / 2).max(1);
        let mut turns = template.turn_starts(tokenizer, prompt).into_iter().peekable();
        let (mut pauses, mut last, mut last_kept) = (Vec::new(), 0, 0);
        loop {
            let next = turns.next_if(|&turn| turn <= last + CHECKPOINT_INTERVAL);
            let at = next.unwrap_or(last + CHECKPOINT_INTERVAL);
            if at as usize >= prompt.len() {
                return Ok(pauses);
            }
            let is_kept = next.is_some() || u64::from(at - last_kept) >= least;
            last_kept = if is_kept { at } else { last_kept };
            last = at;
            if at > start {
                pauses.push((at, is_kept));
            }
        }
    }

    /// One slice of work: a piece of the prompt, or a few tokens. Returns the new ids, a stop id
    /// included.
    pub async fn step(&mut self, generation: &mut Generation) -> Result<Vec<u32>, EngineError> {
        if generation.finished.is_some() {
            return Ok(Vec::new());
        }
        if self.resident()?.generation != generation.number {
            return Err(outdated());
        }
        if let Some(Begin { cut, last_turn, session: id }) = generation.begin.take() {
            let resident = self.resident.as_mut().ok_or_else(no_model)?;
            if let Some(id) = id {
                resident.session_id = Some(id);
            }
            if let Some((to, way)) = cut {
                resident.session.cut_back(&mut self.device, &resident.loaded.model, to, way).await?;
            }
            resident.session.begin(last_turn);
        }
        let step = if generation.has_read_prompt() {
            self.decode_slice(generation).await?
        } else {
            self.prefill_slice(generation).await?
        };
        generation.logprobs = step.logprobs;
        let ids = step.ids;
        generation.n_generated += ids.len() as u32;
        if ids.last().is_some_and(|id| generation.request.stop_ids.contains(id)) {
            generation.end(FinishReason::Stop);
        } else if generation.has_read_prompt() && generation.n_generated >= generation.max_tokens {
            generation.end(FinishReason::Length);
        }
        Ok(ids)
    }

    /// Makes the generation go on from `ids`, as if it had generated them. Its prompt has been read.
    pub fn force(&mut self, generation: &mut Generation, ids: &[u32]) -> Result<(), EngineError> {
        if !generation.has_read_prompt() {
            let reason = "the prompt has not been read".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        let resident = self.resident.as_ref().ok_or_else(no_model)?;
        let ledger = resident.session.ledger();
        let pending = resident.session.pending();
        generation.n_read = ledger.len();
        let prompt: Vec<u32> = ledger.iter().copied().chain(pending).chain(ids.iter().copied()).collect();
        generation.n_generated += ids.len() as u32;
        let context_length = resident.loaded.model.context_length() as usize;
        let n_rows = resident.session.position() as usize + prompt.len() - ledger.len();
        let is_full = n_rows > context_length && generation.request.context_end == ContextEnd::Stop;
        if generation.n_generated >= generation.max_tokens || is_full {
            generation.end(FinishReason::Length);
        } else if generation.choice != Choice::Greedy {
            let history = resident.loaded.model.io().sampling.history;
            let (given, reply) = prompt.split_at(generation.prompt_len.min(prompt.len()));
            for &id in ids.iter().filter(|&&id| id < history.vocab) {
                let n = reply.iter().filter(|&&other| other == id).count() as u32;
                let count = if given.contains(&id) { n | IN_PROMPT } else { n };
                self.device.write(history.buffer, (history.counts() + id).into(), &[count])?;
            }
            if n_rows <= context_length {
                let start = u64::from(history.ledger()) + (n_rows - ids.len()) as u64;
                self.device.write(history.buffer, start, ids)?;
            }
        }
        generation.request.prompt = prompt;
        Ok(())
    }

    /// Lets only some ids be sampled from now on: a bit per id, the lowest first. With such a set a step
    /// gives one token, so that the next can have another; `None` allows all again.
    pub fn set_allowed(
        &mut self,
        generation: &mut Generation,
        allowed: Option<&[u32]>,
    ) -> Result<(), EngineError> {
        let resident = self.resident.as_ref().ok_or_else(no_model)?;
        if resident.generation != generation.number {
            return Err(outdated());
        }
        let sampling = resident.loaded.model.io().sampling;
        if allowed.is_some() && generation.choice == Choice::Greedy {
            write_sampling(&mut self.device, resident, generation)?;
            generation.choice = Choice::Sample { dry: false, logprobs: None };
        }
        if let Some(words) = allowed {
            let n_words = set_words(sampling.n_valid);
            if words.len() != n_words as usize {
                let reason =
                    format!("the set of allowed ids has {} words, and {n_words} are needed", words.len());
                return Err(EngineError::InvalidRequest { reason });
            }
            let rest = sampling.n_valid % 32;
            let last = if rest == 0 { u32::MAX } else { (1 << rest) - 1 };
            let is_empty =
                words.iter().rev().enumerate().all(|(i, w)| w & if i == 0 { last } else { u32::MAX } == 0);
            if is_empty {
                let reason = "the set of allowed ids is empty, so that no token can follow".to_owned();
                return Err(EngineError::InvalidRequest { reason });
            }
            self.device.write(sampling.settings.buffer, SETTINGS_WORDS.into(), words)?;
        }
        generation.is_masked = allowed.is_some();
        if generation.choice == Choice::Greedy {
            return Ok(());
        }
        let has_allowed = std::mem::offset_of!(Settings, has_allowed) as u64 / 4;
        self.device.write(sampling.settings.buffer, has_allowed, &[generation.is_masked.into()])
    }

    async fn prefill_slice(&mut self, generation: &mut Generation) -> Result<Step, EngineError> {
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        let (start, len) = (generation.n_read, generation.request.prompt.len());
        let size = match resident.prefill_pace.size() {
            size if size < PREFILL_CUT => size as usize,
            size => (size / PREFILL_CUT * PREFILL_CUT) as usize,
        };
        if self.room()? == 0 && !self.roll(generation).await? {
            let context_length = self.loaded()?.model.context_length() as usize;
            return Err(EngineError::ContextFull { prompt_tokens: generation.prompt_len, context_length });
        }
        let pause = generation.pauses.iter().find(|(at, _)| *at as usize > start).copied();
        // A 4-bit cache cuts where its window is full, and whole chunks are counted from there again.
        let resident = self.resident()?;
        let (position, most) = (resident.session.position(), size as u32);
        let first = resident.loaded.model.piece(position, most);
        let slice = (first + (most - first) / PREFILL_CUT * PREFILL_CUT) as usize;
        let end = len.min(start + slice).min(start + self.room()? as usize);
        let end = pause.map_or(end, |(at, _)| end.min(at as usize));
        let want = match end < len {
            true => Want::Nothing,
            false if generation.n_generated >= generation.max_tokens => Want::Head,
            false => Want::Token(generation.choice),
        };
        if end == len && generation.n_rolled > 0 && generation.choice != Choice::Greedy {
            let resident = self.resident.as_ref().ok_or_else(no_model)?;
            write_sampling(&mut self.device, resident, generation)?;
        }
        let ids = &generation.request.prompt[start..end];
        let begin = now_ms();
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        let (model, session) = (&resident.loaded.model, &mut resident.session);
        let step = session.prefill(&mut self.device, model, ids, &generation.request.stop_ids, want).await?;
        if ids.len() == size {
            resident.prefill_pace.learn(now_ms() - begin, self.time_budget_ms);
        }
        generation.n_read = end;
        if pause == Some((end as u32, true)) {
            session.keep_checkpoint(&mut self.device, model, self.checkpoint_bytes).await?;
        }
        Ok(step)
    }

    async fn decode_slice(&mut self, generation: &mut Generation) -> Result<Step, EngineError> {
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        let stop_ids = &generation.request.stop_ids;
        if resident.session.pending().is_none() {
            let (model, session) = (&resident.loaded.model, &mut resident.session);
            return session.choose(&mut self.device, model, stop_ids, generation.choice).await;
        }
        if self.room()? == 0 && !self.roll(generation).await? {
            generation.end(FinishReason::Length);
            return Ok(Step::default());
        }
        let left = generation.max_tokens - generation.n_generated;
        let most = if generation.is_masked { 1 } else { generation.step_limit };
        let resident = self.resident.as_mut().ok_or_else(no_model)?;
        let size = resident.decode_pace.size();
        let start = now_ms();
        let (model, session) = (&resident.loaded.model, &mut resident.session);
        let n = size.min(left).min(most);
        let stop_ids = &generation.request.stop_ids;
        let step = session.decode(&mut self.device, model, n, stop_ids, generation.choice).await?;
        if step.ids.len() as u32 == size {
            resident.decode_pace.learn(now_ms() - start, self.time_budget_ms);
        }
        Ok(step)
    }

    /// Rows that are free.
    fn room(&self) -> Result<u32, EngineError> {
        let resident = self.resident()?;
        Ok(resident.loaded.model.context_length() - resident.session.position())
    }

    /// Makes room as the request says; returns whether there is any.
    async fn roll(&mut self, generation: &mut Generation) -> Result<bool, EngineError> {
        let ContextEnd::Roll { pinned } = generation.request.context_end else { return Ok(false) };
        let (device, loaded, session) = self.parts_mut()?;
        let n = session.roll(device, &loaded.model, pinned).await?;
        generation.n_rolled += n;
        if n > 0 && generation.has_read_prompt() && generation.choice != Choice::Greedy {
            let resident = self.resident.as_ref().ok_or_else(no_model)?;
            write_sampling(&mut self.device, resident, generation)?;
        }
        Ok(n > 0)
    }
}

/// What becomes of the session before a generation's first step.
#[derive(Clone, Debug)]
struct Begin {
    /// How it is cut back; nothing where it goes on from its pending token.
    cut: Option<(u32, Way)>,
    /// See [`crate::session::Head::last_turn`].
    last_turn: u32,
    /// What it is called from then on, if that changes.
    session: Option<SessionId>,
}

/// How a generation begins in a session.
struct Start {
    /// Tokens of the prompt that need not be read.
    n_read: usize,
    /// How the session is to be cut back; nothing where it goes on from its pending token.
    cut: Option<(u32, Way)>,
    /// Why less is reused than matches.
    reason: Option<Obstacle>,
}

impl Start {
    fn of(session: &Session, model: &Model, prompt: &[u32], context_end: ContextEnd) -> Self {
        let (head, kept) = (session.head(), model.kept());
        let (len, common) = (head.ids.len() as u32, head.common(prompt));
        if !session.is_sound() {
            let reason = (common > 0).then_some(Obstacle::Torn);
            return Self { n_read: 0, cut: Some((0, Way::Reset)), reason };
        }
        // Nobody goes on without the dropped tokens who has not asked for it, or who has asked for them to stay.
        let is_in_the_way = !head.dropped.is_empty()
            && match context_end {
                ContextEnd::Stop => true,
                ContextEnd::Roll { pinned } => kept.round_up(pinned) > head.dropped.start,
            };
        if common as usize == prompt.len() && common > len && !is_in_the_way {
            return Self { n_read: prompt.len(), cut: None, reason: None };
        }
        let common = common.min(len);
        if is_in_the_way && common > head.dropped.start {
            let (to, way) = head.reach(kept, head.dropped.start);
            return Self { n_read: to as usize, cut: Some((to, way)), reason: Some(Obstacle::Dropped) };
        }
        let is_whole = common as usize == prompt.len();
        let needs_logits = is_whole && !(common == len && session.has_logits());
        let wanted = common - u32::from(needs_logits);
        let (to, way) = head.reach(kept, wanted);
        let reason = if to < wanted {
            Some(head.obstacle(kept, wanted))
        } else {
            needs_logits.then_some(Obstacle::Logits)
        };
        Self { n_read: to as usize, cut: Some((to, way)), reason }
    }
}

/// Writes what the device needs to know of a request before it samples: at its start, and after rows were dropped.
fn write_sampling(
    device: &mut Device,
    resident: &Resident,
    generation: &Generation,
) -> Result<(), EngineError> {
    let Generation { request, prompt_len, .. } = generation;
    let (sampling, buffers) = (&request.sampling, resident.loaded.model.io().sampling);
    let head = resident.session.head();
    // Once the prompt has been read, the ledger has it and what the reply has come to.
    let has_read = generation.begin.is_none() && head.ids.len() >= request.prompt.len();
    let ids: Vec<u32> = if has_read {
        head.ids.iter().chain(&head.pending).copied().collect()
    } else {
        request.prompt.clone()
    };
    let cut = generation.begin.as_ref().and_then(|begin| begin.cut);
    let n_kept = cut.map_or(ids.len() as u32, |(to, _)| to);
    let dropped = if n_kept < head.dropped.end { 0..0 } else { head.dropped.clone() };
    let n_before = dropped.len().min(prompt_len.saturating_sub(dropped.start as usize));
    let mut settings = sampling.settings((prompt_len - n_before) as u32);
    settings.has_allowed = generation.is_masked.into();
    // Positions come again after rows were dropped; their random numbers should not.
    settings.seed[1] = settings.seed[1].wrapping_add(dropped.len() as u32);
    device.write(buffers.settings.buffer, 0, bytemuck::cast_slice(&[settings]))?;
    let vocab = buffers.history.vocab as usize;
    if !sampling.logit_bias.is_empty() {
        let mut bias = vec![0u32; vocab];
        for (&id, value) in &sampling.logit_bias {
            bias.get_mut(id as usize).into_iter().for_each(|word| *word = value.to_bits());
        }
        device.write(buffers.bias.buffer, 0, &bias)?;
    }
    if sampling.has_penalties() {
        let mut counts = vec![0u32; vocab];
        let (prompt, reply) = ids.split_at(*prompt_len.min(&ids.len()));
        for &id in prompt {
            counts.get_mut(id as usize).into_iter().for_each(|count| *count = IN_PROMPT);
        }
        for &id in reply {
            counts.get_mut(id as usize).into_iter().for_each(|count| *count += 1);
        }
        device.write(buffers.history.buffer, buffers.history.counts().into(), &counts)?;
    }
    if sampling.has_dry() {
        let mut breakers = vec![0u32; set_words(buffers.n_valid) as usize];
        for &id in sampling.dry_breakers.iter().filter(|&&id| id < buffers.n_valid) {
            breakers[id as usize / 32] |= 1 << (id % 32);
        }
        let start = SETTINGS_WORDS + set_words(buffers.n_valid);
        device.write(buffers.settings.buffer, start.into(), &breakers)?;
        device.write(buffers.repeats.buffer, 0, &vec![0; vocab])?;
        let rows: Vec<u32> =
            (0..).zip(&ids).filter(|(i, _)| !dropped.contains(i)).map(|(_, &id)| id).collect();
        // More rows than the context has come one by one, and are written when the last has come.
        if rows.len() <= resident.loaded.model.context_length() as usize {
            device.write(buffers.history.buffer, buffers.history.ledger().into(), &rows)?;
        }
    }
    Ok(())
}

pub(crate) fn outdated() -> EngineError {
    EngineError::InvalidRequest { reason: "another generation was started since".to_owned() }
}

/// Feeds whole parts to a loader: headers first where the model is split.
async fn push_parts(loader: &mut Loader, device: &mut Device, parts: &[&[u8]]) -> Result<(), EngineError> {
    if parts.len() > 1 {
        for (index, bytes) in parts.iter().enumerate() {
            loader.begin_part(index, Some(bytes.len() as u64))?;
            loader.push(device, bytes).await?;
        }
    }
    for (index, bytes) in parts.iter().enumerate() {
        loader.begin_part(index, Some(bytes.len() as u64))?;
        loader.push(device, bytes).await?;
        loader.end_part(device).await?;
    }
    Ok(())
}

fn no_model() -> EngineError {
    EngineError::InvalidRequest { reason: "no model is loaded".to_owned() }
}
