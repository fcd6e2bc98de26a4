//! Where the time of a step goes: kernel by kernel, by the device's own clock.

use std::collections::BTreeMap;

use signbit_shaders::{Dispatch, State};

use crate::device::{Device, Plan, Read};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::model::Model;

/// Two steps, taken apart.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Profile {
    /// A prompt from an empty session, first token included.
    pub prefill: StepProfile,
    /// The token after it.
    pub decode: StepProfile,
}

/// One step, taken apart.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StepProfile {
    /// Tokens that the step reads.
    pub tokens: u32,
    /// All kernels, the most expensive first.
    pub kernels: Vec<KernelTime>,
}

/// All dispatches of one kernel in a step.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct KernelTime {
    /// The kernel's name.
    pub kernel: &'static str,
    /// Its dispatches.
    pub dispatches: u32,
    /// Nanoseconds that they take, the median of the runs each.
    pub ns: f64,
    /// Bytes that they read and write, as their constructors declare them for this position.
    pub bytes: u64,
}

impl Engine {
    /// Times every kernel of reading a prompt of about `n_tokens` and of the token after it: each
    /// dispatch the median of `runs`. Nothing where the device cannot time single dispatches.
    ///
    /// The prompt is as wide as the narrowest plan that holds it, since that is what the plan computes.
    /// The session starts over.
    pub async fn profile(&mut self, n_tokens: u32, runs: u32) -> Result<Option<Profile>, EngineError> {
        let result = self.measure_kernels(n_tokens, runs).await;
        // The caches hold tokens that no ledger names.
        let emptied = self.reset();
        let profile = result?;
        emptied.map(|()| profile)
    }

    async fn measure_kernels(&mut self, n_tokens: u32, runs: u32) -> Result<Option<Profile>, EngineError> {
        let mut profile = None;
        // Once more than asked for: the first run warms up.
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        for i in 0..=runs {
            self.reset()?;
            let (device, loaded, _) = self.parts_mut()?;
            let model = &loaded.model;
            let (n_rows, plan) = profiled_plan(model, n_tokens)?;
            let plans = model.plans();
            let read = [plan, &plans.head, &plans.greedy];
            let next = [&plans.decode, &plans.head, &plans.greedy];
            start(device, model, n_rows)?;
            let (Some(read_ns), Some(next_ns)) =
                (device.run_timed(&read).await?, device.run_timed(&next).await?)
            else {
                break;
            };
            expect_running(device, n_rows + 1).await?;
            if i > 0 {
                prefill.push(read_ns);
                decode.push(next_ns);
            }
            profile = (i == runs).then(|| Profile {
                prefill: summarise(model, &read, &prefill, n_rows, n_rows),
                decode: summarise(model, &next, &decode, 1, n_rows + 1),
            });
        }
        Ok(profile)
    }
}

/// The narrowest prefill plan for `n_tokens`, and how many tokens it can read with room for one more.
fn profiled_plan(model: &Model, n_tokens: u32) -> Result<(u32, &Plan), EngineError> {
    let room = model.context_length() - 1;
    let n_tokens = n_tokens.min(model.max_prefill_rows()).min(room);
    let mut plans = model.plans().prefill.iter();
    let found = plans.find(|(rows, _)| *rows >= n_tokens).filter(|_| room > 0);
    found.map(|(rows, plan)| (room.min(*rows), plan)).ok_or_else(|| EngineError::InvalidRequest {
        reason: "a context of one token has no room for a prompt and a reply".to_owned(),
    })
}

/// Ids without a pattern, from an empty context.
fn start(device: &mut Device, model: &Model, n_rows: u32) -> Result<(), EngineError> {
    let ids: Vec<u32> = (0..n_rows).map(|i| i.wrapping_mul(2_654_435_761) % model.n_valid()).collect();
    device.write(model.io().tokens.buffer, 0, &ids)?;
    device.write_state(&State { n_tokens: n_rows, ..State::default() });
    Ok(())
}

/// A generation that has ended would take no time at all.
async fn expect_running(device: &mut Device, position: u32) -> Result<(), EngineError> {
    let words = device.run(&[], &[Read::State]).await?.concat();
    let state: Option<State> = bytemuck::try_pod_read_unaligned(bytemuck::cast_slice(&words)).ok();
    match state {
        Some(state) if (state.done, state.position) == (State::RUNNING, position) => Ok(()),
        Some(state) => Err(EngineError::UnusableLogits { position: state.position }),
        None => Err(EngineError::Device { reason: "the state could not be read back".to_owned() }),
    }
}

/// Adds up by kernel. `runs` has the nanoseconds of every dispatch of `plans`, run by run.
fn summarise(model: &Model, plans: &[&Plan], runs: &[Vec<f64>], tokens: u32, n_cached: u32) -> StepProfile {
    let mut by_kernel: BTreeMap<&'static str, KernelTime> = BTreeMap::new();
    let dispatches = plans.iter().flat_map(|plan| &plan.dispatches);
    for (i, dispatch) in dispatches.enumerate() {
        let kernel = dispatch.kernel.name;
        let sum = by_kernel.entry(kernel).or_insert(KernelTime { kernel, ..KernelTime::default() });
        sum.dispatches += 1;
        sum.ns += median(runs.iter().filter_map(|times| times.get(i).copied()).collect());
        sum.bytes += bytes_moved(model, dispatch, n_cached);
    }
    let mut kernels: Vec<KernelTime> = by_kernel.into_values().collect();
    kernels.sort_by(|a, b| b.ns.total_cmp(&a.ns));
    StepProfile { tokens, kernels }
}

/// A dispatch declares the whole KV cache; what it reads are the positions in use.
fn bytes_moved(model: &Model, dispatch: &Dispatch, n_cached: u32) -> u64 {
    let unused = model.kv_cache_bytes(dispatch) * u64::from(model.context_length() - n_cached)
        / u64::from(model.context_length());
    (dispatch.bytes_read + dispatch.bytes_written).saturating_sub(unused)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
