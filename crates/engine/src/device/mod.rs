//! Where a plan runs: a GPU through wgpu, or the CPU through the kernels' functions in Rust.
//!
//! Both execute the same [`Dispatch`] lists over the same buffers, so the rest of the engine does
//! not know which one it has. Buffers hold 32-bit words and are zero when created.

mod copy;
mod cpu;
mod gpu;

use std::ops::Range;

use signbit_shaders::weights::{Weight, words_per_row};
use signbit_shaders::{BufferId, Dispatch, State};

pub use cpu::{CpuDevice, CpuOptions};
pub use gpu::{GpuDevice, GpuOptions};
pub use signbit_shaders::cpu::{Activations, CpuKernels};

use crate::error::EngineError;

/// An executor.
#[derive(Debug)]
pub enum Device {
    /// WebGPU, or Vulkan, Metal or Direct3D natively.
    Gpu(Box<GpuDevice>),
    /// The calling thread.
    Cpu(Box<CpuDevice>),
}

/// What a device is and allows.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DeviceInfo {
    /// `webgpu` or `cpu`.
    pub backend: &'static str,
    /// The adapter's name.
    pub name: String,
    /// The adapter's vendor or driver.
    pub vendor: String,
    /// Whether this is a software adapter, or the reference kernels.
    pub is_fallback: bool,
    /// Whether compiling takes so long that a model should do with few kernels.
    pub compiles_slowly: bool,
    /// The widest subgroup that the device may use, if its kernels may use subgroups at all.
    pub subgroup_width: Option<u32>,
    /// On the CPU the precision in which products take their activations, by [`Activations::name`].
    pub activations: Option<&'static str>,
    /// Optional features that the adapter has.
    pub features: Vec<String>,
    /// Sizes that the device allows.
    pub limits: Limits,
}

/// Sizes that a plan must respect.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Limits {
    /// Bytes of the largest buffer.
    pub max_buffer_bytes: u64,
    /// Bytes of the largest storage binding.
    pub max_binding_bytes: u64,
    /// Workgroup memory in bytes.
    pub max_workgroup_bytes: u64,
    /// Invocations of the largest workgroup.
    pub max_invocations: u64,
    /// Bytes that all buffers together may take, if there is such a limit.
    pub memory_budget_bytes: Option<u64>,
}

impl Limits {
    /// The most 32-bit words that one bindable buffer may hold.
    pub fn max_words(&self) -> u64 {
        self.max_binding_bytes.min(self.max_buffer_bytes) / 4
    }
}

/// Counts of what a device has done, for reports and leak tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Bytes of the buffers that are alive.
    pub live_bytes: u64,
    /// Buffers that are alive.
    pub live_buffers: u64,
    /// Buffers, bind groups and pipelines created since the start.
    pub objects_created: u64,
    /// Submits, of one command buffer each.
    pub submits: u64,
    /// Nanoseconds spent on recording command buffers; none on the CPU.
    pub encode_ns: u64,
    /// Dispatches run.
    pub dispatches: u64,
}

/// Something to read back after a run.
#[derive(Clone, Debug)]
pub enum Read {
    /// The whole state.
    State,
    /// Words of a buffer.
    Words(BufferId, Range<u64>),
}

/// Dispatches made ready for one device.
#[derive(Debug)]
pub struct Plan {
    /// The dispatches as recorded.
    pub dispatches: Vec<Dispatch>,
    gpu: Vec<gpu::Bound>,
}

impl Device {
    /// What this device is.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            Self::Gpu(d) => d.info(),
            Self::Cpu(d) => d.info(),
        }
    }

    /// What this device has done.
    pub fn counters(&self) -> Counters {
        match self {
            Self::Gpu(d) => d.counters(),
            Self::Cpu(d) => d.counters(),
        }
    }

    /// A zeroed buffer of `n_words` 32-bit words. A failed allocation is reported by the next
    /// [`Device::check`].
    pub fn create_buffer(&mut self, label: &str, n_words: u64) -> Result<BufferId, EngineError> {
        let (needed, limit) = (n_words.saturating_mul(4), self.info().limits.max_words() * 4);
        if needed > limit {
            return Err(EngineError::LimitTooSmall { what: label.to_owned(), needed, limit });
        }
        let total = self.counters().live_bytes.saturating_add(needed);
        if let Some(budget) = self.info().limits.memory_budget_bytes.filter(|&budget| total > budget) {
            let reason = format!("{label} would take the total to {total} bytes, and {budget} are allowed");
            return Err(EngineError::OutOfMemory { reason });
        }
        match self {
            Self::Gpu(d) => Ok(d.create_buffer(label, needed)),
            Self::Cpu(d) => d.create_buffer(n_words),
        }
    }

    /// The number of words that a buffer holds.
    pub fn buffer_words(&self, buffer: BufferId) -> Result<u64, EngineError> {
        match self {
            Self::Gpu(d) => d.buffer_words(buffer),
            Self::Cpu(d) => d.buffer_words(buffer),
        }
    }

    /// Writes `words` at `offset_words`.
    pub fn write(&mut self, buffer: BufferId, offset_words: u64, words: &[u32]) -> Result<(), EngineError> {
        match self {
            Self::Gpu(d) => d.write(buffer, offset_words, words),
            Self::Cpu(d) => d.write(buffer, offset_words, words),
        }
    }

    /// Writes whole rows of a matrix from row `first_row` of the shard on. They come in the device layout
    /// ([`signbit_shaders::weights`]) and lie in the one that this device's kernels read.
    pub fn write_rows(
        &mut self,
        weight: Weight,
        first_row: u32,
        quants: &[u32],
        scales: &[u32],
    ) -> Result<(), EngineError> {
        if let Self::Cpu(d) = self {
            return d.write_rows(weight, first_row, quants, scales);
        }
        let (quant_words, scale_words) = words_per_row(weight.format, weight.cols);
        self.write(weight.quants, u64::from(first_row) * u64::from(quant_words), quants)?;
        self.write(weight.scales, u64::from(first_row) * u64::from(scale_words), scales)
    }

    /// Sets a buffer to zero.
    pub fn clear(&mut self, buffers: &[BufferId]) -> Result<(), EngineError> {
        match self {
            Self::Gpu(d) => d.clear(buffers),
            Self::Cpu(d) => d.clear(buffers),
        }
    }

    /// Replaces the state.
    pub fn write_state(&mut self, state: &State) {
        match self {
            Self::Gpu(d) => d.write_state(state),
            Self::Cpu(d) => d.write_state(state),
        }
    }

    /// Makes dispatches ready to run: pipelines and bind groups are created here and never later.
    pub fn prepare(&mut self, dispatches: Vec<Dispatch>) -> Result<Plan, EngineError> {
        match self {
            Self::Gpu(d) => {
                let gpu = d.bind(&dispatches)?;
                Ok(Plan { dispatches, gpu })
            }
            Self::Cpu(_) => Ok(Plan { dispatches, gpu: Vec::new() }),
        }
    }

    /// Runs plans in order as one submit, waits, and returns what `reads` names.
    ///
    /// With no reads it does not wait.
    pub async fn run(&mut self, plans: &[&Plan], reads: &[Read]) -> Result<Vec<Vec<u32>>, EngineError> {
        match self {
            Self::Gpu(d) => d.run(plans.iter().map(|p| p.gpu.as_slice()), reads).await,
            Self::Cpu(d) => d.run(plans.iter().flat_map(|p| &p.dispatches), reads),
        }
    }

    /// Runs plans in order, dispatch by dispatch, and returns the nanoseconds that each dispatch took;
    /// nothing where the device has no clock for that: a GPU has one if it was opened with
    /// [`GpuOptions::timestamps`] and the adapter can.
    pub async fn run_timed(&mut self, plans: &[&Plan]) -> Result<Option<Vec<f64>>, EngineError> {
        match self {
            Self::Gpu(d) => d.run_timed(plans.iter().map(|p| p.gpu.as_slice())).await,
            Self::Cpu(d) => d.run_timed(plans.iter().flat_map(|p| &p.dispatches)),
        }
    }

    /// Runs part of a plan, for comparing step by step.
    pub async fn run_range(
        &mut self,
        plan: &Plan,
        range: Range<usize>,
        reads: &[Read],
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let outside = || EngineError::InvalidRequest { reason: "the plan has no such step".to_owned() };
        match self {
            Self::Gpu(d) => d.run([plan.gpu.get(range).ok_or_else(outside)?].into_iter(), reads).await,
            Self::Cpu(d) => d.run(plan.dispatches.get(range).ok_or_else(outside)?.iter(), reads),
        }
    }

    /// Resolves with the reason when the device is lost, and never otherwise. Only the last caller is told.
    pub fn lost(&self) -> impl Future<Output = String> + use<> {
        let receiver = match self {
            Self::Gpu(d) => Some(d.lost()),
            Self::Cpu(_) => None,
        };
        async {
            if let Some(receiver) = receiver
                && let Ok(reason) = receiver.await
            {
                return reason;
            }
            std::future::pending().await
        }
    }

    /// Waits for outstanding work and reports an error that the device raised meanwhile.
    pub async fn check(&mut self) -> Result<(), EngineError> {
        self.run(&[], &[Read::State]).await.map(|_| ())
    }

    /// How many buffers there are; buffers made later can be freed with [`Device::free_from`].
    pub fn mark(&self) -> usize {
        match self {
            Self::Gpu(d) => d.n_buffers(),
            Self::Cpu(d) => d.n_buffers(),
        }
    }

    /// Frees every buffer made since `mark`. Plans that use them must not be run again.
    pub fn free_from(&mut self, mark: usize) {
        match self {
            Self::Gpu(d) => d.free_from(mark),
            Self::Cpu(d) => d.free_from(mark),
        }
    }
}

/// The error for an id that this device never gave out.
fn unknown_buffer(id: BufferId) -> EngineError {
    EngineError::Device { reason: format!("there is no buffer {}", id.0) }
}
