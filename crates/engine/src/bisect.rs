//! Finds the first dispatch in which the GPU and the CPU reference part ways.
//!
//! Both engines hold the same model in buffers of the same ids and run the same plans one dispatch
//! at a time. After each one every buffer that it may write is compared, and the GPU goes on with
//! the CPU's result. So each dispatch starts from equal inputs: an error shows in the dispatch
//! that makes it, and rounding does not add up from layer to layer.

use serde::Serialize;
use signbit_shaders::{Access, BufferId, Dispatch, Element, State};

use crate::device::{Device, Plan, Read};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::model::Model;

/// How far a result may be from the reference, relative to the results' size.
///
/// Adding K products in another order moves a sum by about eps sqrt(K) of the sum of their
/// magnitudes, which is sqrt(K) times a typical result: eps K in all, with eps = 2^-24, is 1e-3 for
/// rows of 16384. A kernel that is wrong is off by about the size of the result itself.
pub const DEFAULT_TOLERANCE: f32 = 1e-3;

/// What a comparison showed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BisectReport {
    /// Dispatches that were compared.
    pub n_dispatches: usize,
    /// The first value that is further off than allowed; nothing behind it was compared.
    pub first: Option<Difference>,
    /// The value that came closest to what is allowed, of those that kept within it.
    pub largest: Option<Difference>,
}

/// A value in which the devices differ.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// What was running: `prefill` or `decode`.
    pub step: &'static str,
    /// Where in the model, for example `layer.3.attn.q`.
    pub label: String,
    /// The kernel.
    pub kernel: &'static str,
    /// The kernel's name for the buffer.
    pub buffer: &'static str,
    /// Index of the element in the buffer.
    pub element: usize,
    /// The GPU's value.
    pub gpu: f64,
    /// The reference's value.
    pub cpu: f64,
    /// How far apart they may be; 0 for integers.
    pub allowed: f64,
}

impl Difference {
    /// The distance in units of what is allowed: above 1 is an error.
    fn error(&self) -> f64 {
        let distance = (self.gpu - self.cpu).abs();
        match distance / self.allowed {
            error if error.is_finite() => error,
            _ if distance == 0.0 => 0.0,
            _ => f64::INFINITY,
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { step, label, kernel, buffer, element, gpu, cpu, .. } = self;
        write!(f, "{label} ({kernel}) in {step}: {buffer}[{element}] is {gpu} where {cpu} is right")
    }
}

/// Reads `ids` and then makes one decode step, dispatch by dispatch, on both engines.
///
/// The engines must hold the same model, loaded with the same options and with the same limit on
/// buffers, so that their plans name the same buffers. A value may be off by `tolerance` times the
/// sum of its own size and the root mean square of what its dispatch has changed. Both sessions
/// are empty afterwards.
///
/// # Errors
/// The plans differ, `ids` is empty or does not fit, or a device fails.
pub async fn bisect(
    gpu: &mut Engine,
    cpu: &mut Engine,
    ids: &[u32],
    tolerance: f32,
) -> Result<BisectReport, EngineError> {
    gpu.reset()?;
    cpu.reset()?;
    let result = compare_steps(gpu, cpu, ids, tolerance).await;
    // The caches hold tokens that no ledger names.
    let emptied = gpu.reset().and(cpu.reset());
    let report = result?;
    emptied.map(|()| report)
}

async fn compare_steps(
    gpu: &mut Engine,
    cpu: &mut Engine,
    ids: &[u32],
    tolerance: f32,
) -> Result<BisectReport, EngineError> {
    let (gpu, gpu_loaded, _) = gpu.parts_mut()?;
    let (cpu, cpu_loaded, _) = cpu.parts_mut()?;
    let (gpu_model, cpu_model) = (&gpu_loaded.model, &cpu_loaded.model);
    check_ids(cpu_model, ids)?;
    let mut pair = Pair { gpu, cpu, tolerance: f64::from(tolerance), report: BisectReport::default() };

    let mut rest = ids;
    let mut position = 0;
    while !rest.is_empty() {
        let n_tokens = (rest.len() as u32).min(cpu_model.max_prefill_rows());
        let (chunk, after) = rest.split_at(cpu_model.piece(position, n_tokens) as usize);
        let n_tokens = chunk.len() as u32;
        let state = State { position, n_tokens, ..State::default() };
        pair.begin(&state, cpu_model.io().tokens.buffer, chunk)?;
        match (gpu_model.prefill_plan(n_tokens), cpu_model.prefill_plan(n_tokens)) {
            (Some(gpu_plan), Some(cpu_plan)) => pair.run("prefill", gpu_plan, cpu_plan).await?,
            _ => return Err(plans_differ("prefill")),
        }
        position += n_tokens;
        rest = after;
    }
    let (gpu_plans, cpu_plans) = (gpu_model.plans(), cpu_model.plans());
    // Sampling moves the state on to the decode step.
    pair.run("prefill", &gpu_plans.head, &cpu_plans.head).await?;
    pair.run("prefill", &gpu_plans.greedy, &cpu_plans.greedy).await?;
    pair.run("decode", &gpu_plans.decode, &cpu_plans.decode).await?;
    pair.run("decode", &gpu_plans.head, &cpu_plans.head).await?;
    pair.run("decode", &gpu_plans.greedy, &cpu_plans.greedy).await?;
    Ok(pair.report)
}

/// Two devices in step.
struct Pair<'a> {
    gpu: &'a mut Device,
    cpu: &'a mut Device,
    tolerance: f64,
    report: BisectReport,
}

impl Pair<'_> {
    fn begin(&mut self, state: &State, tokens: BufferId, ids: &[u32]) -> Result<(), EngineError> {
        for device in [&mut *self.gpu, &mut *self.cpu] {
            device.write(tokens, 0, ids)?;
            device.write_state(state);
        }
        Ok(())
    }

    /// Compares a plan up to the first difference; does nothing once there is one.
    async fn run(&mut self, step: &'static str, gpu_plan: &Plan, cpu_plan: &Plan) -> Result<(), EngineError> {
        if gpu_plan.dispatches.len() != cpu_plan.dispatches.len() {
            return Err(plans_differ(step));
        }
        // The GPU may have chosen other variants of the same products: it is they that are compared.
        let reference = self.cpu.prepare(gpu_plan.dispatches.clone())?;
        for (i, (ours, theirs)) in gpu_plan.dispatches.iter().zip(&cpu_plan.dispatches).enumerate() {
            if self.report.first.is_some() {
                return Ok(());
            }
            if ours.label != theirs.label || ours.buffers != theirs.buffers {
                return Err(plans_differ(&theirs.label));
            }
            let reads = self.written(ours)?;
            let before = self.cpu.run_range(&reference, i..i, &reads).await?;
            let cpu = self.cpu.run_range(&reference, i..i + 1, &reads).await?;
            let gpu = self.gpu.run_range(gpu_plan, i..i + 1, &reads).await?;
            self.compare(step, ours, &before, &gpu, &cpu);
            self.align(&reads, &cpu)?;
        }
        Ok(())
    }

    /// The state and the whole of every buffer that the dispatch may write.
    fn written(&self, dispatch: &Dispatch) -> Result<Vec<Read>, EngineError> {
        let mut reads = vec![Read::State];
        for (_, _, id) in writable(dispatch) {
            reads.push(Read::Words(id, 0..self.cpu.buffer_words(id)?));
        }
        Ok(reads)
    }

    fn compare(
        &mut self,
        step: &'static str,
        dispatch: &Dispatch,
        before: &[Vec<u32>],
        gpu: &[Vec<u32>],
        cpu: &[Vec<u32>],
    ) {
        self.report.n_dispatches += 1;
        let buffers = std::iter::once(("state", Element::U32))
            .chain(writable(dispatch).map(|(name, element, _)| (name, element)));
        for ((((buffer, kind), before), gpu), cpu) in buffers.zip(before).zip(gpu).zip(cpu) {
            let typical = match kind {
                Element::F32 => root_mean_square(changed(before, cpu)),
                Element::U32 => 0.0,
            };
            for (element, (&ours, &theirs)) in gpu.iter().zip(cpu).enumerate().filter(|(_, (a, b))| a != b) {
                let (gpu, cpu, allowed) = match kind {
                    Element::U32 => (f64::from(ours), f64::from(theirs), 0.0),
                    Element::F32 => {
                        let value = |word| f64::from(f32::from_bits(word));
                        let allowed = self.tolerance * (value(theirs).abs() + typical);
                        // GPUs may take numbers below the normal range for zero.
                        (value(ours), value(theirs), allowed.max(f64::from(f32::MIN_POSITIVE)))
                    }
                };
                let (label, kernel) = (dispatch.label.clone(), dispatch.kernel.name);
                self.note(Difference { step, label, kernel, buffer, element, gpu, cpu, allowed });
            }
        }
    }

    fn note(&mut self, difference: Difference) {
        let slot = if difference.error() > 1.0 { &mut self.report.first } else { &mut self.report.largest };
        // Of the values of one dispatch the worst is the most telling.
        if slot.as_ref().is_none_or(|known| difference.error() > known.error()) {
            *slot = Some(difference);
        }
    }

    /// Gives the GPU the CPU's results.
    fn align(&mut self, reads: &[Read], cpu: &[Vec<u32>]) -> Result<(), EngineError> {
        for (read, words) in reads.iter().zip(cpu) {
            match read {
                Read::Words(id, _) => self.gpu.write(*id, 0, words)?,
                Read::State => {
                    if let Ok(state) = bytemuck::try_pod_read_unaligned(bytemuck::cast_slice(words)) {
                        self.gpu.write_state(&state);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Name, element type and buffer of each binding that the dispatch may write.
fn writable(dispatch: &Dispatch) -> impl Iterator<Item = (&'static str, Element, BufferId)> {
    let bound = dispatch.kernel.bindings.iter().zip(&dispatch.buffers);
    bound.filter(|(b, _)| b.access == Access::ReadWrite).map(|(b, &id)| (b.name, b.element, id))
}

/// The values that are new.
fn changed<'a>(before: &'a [u32], after: &'a [u32]) -> impl Iterator<Item = f64> + 'a {
    let pairs = before.iter().zip(after);
    pairs.filter(|(before, after)| before != after).map(|(_, &after)| f64::from(f32::from_bits(after)))
}

fn root_mean_square(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut n) = (0.0, 0u32);
    for value in values.filter(|v| v.is_finite()) {
        sum += value * value;
        n += 1;
    }
    (sum / f64::from(n.max(1))).sqrt()
}

fn check_ids(model: &Model, ids: &[u32]) -> Result<(), EngineError> {
    let (vocab, context_length) = (model.config().vocab_size, model.context_length() as usize);
    if ids.is_empty() {
        return Err(EngineError::InvalidRequest { reason: "there are no tokens to read".to_owned() });
    }
    if let Some(id) = ids.iter().find(|&&id| id >= vocab) {
        let reason = format!("token id {id} is outside the vocabulary of {vocab}");
        return Err(EngineError::InvalidRequest { reason });
    }
    // The decode step needs a position of its own.
    if ids.len() >= context_length {
        return Err(EngineError::ContextFull { prompt_tokens: ids.len() + 1, context_length });
    }
    Ok(())
}

fn plans_differ(place: &str) -> EngineError {
    EngineError::InvalidRequest {
        reason: format!("the devices have different plans at {place}, so there is nothing to compare"),
    }
}
