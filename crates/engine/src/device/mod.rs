//! Where a plan runs: a GPU through wgpu, or the CPU through the kernels' functions in Rust.
//!
//! Both execute the same [`Dispatch`] lists over the same buffers, so the rest of the engine does
//! not know which one it has. Buffers hold 32-bit words and are zero when created. A third kind
//! only counts what the others would allocate.

mod copy;
mod cpu;
mod gpu;
mod plan;

use std::ops::Range;

use signbit_shaders::weights::{Weight, words_per_row};
use signbit_shaders::{BufferId, Dispatch, State};

pub use cpu::{CpuDevice, CpuOptions, cpu_budget};
pub use gpu::{GpuDevice, GpuOptions, UPLOAD_BYTES};
pub use plan::PlanDevice;
pub use signbit_shaders::cpu::{Activations, CpuKernels};

use crate::error::EngineError;

/// An executor.
#[derive(Debug)]
pub enum Device {
    /// WebGPU, or Vulkan, Metal or Direct3D natively.
    Gpu(Box<GpuDevice>),
    /// The calling thread.
    Cpu(Box<CpuDevice>),
    /// Nothing: buffers are counted.
    Plan(Box<PlanDevice>),
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

/// The most errors that a device reports for one cause.
pub const MAX_REPORTS: u32 = 8;

/// Counts of what a device has done, for reports and leak tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Bytes of the buffers that are alive, and of the parameters of plans.
    pub live_bytes: u64,
    /// The most that these and writes under way have taken together since the device was last empty.
    pub peak_bytes: u64,
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

impl Counters {
    fn allocated(&mut self, n_bytes: u64) {
        // What is only counted may be more than there are numbers for.
        self.live_bytes = self.live_bytes.saturating_add(n_bytes);
        self.live_buffers += 1;
        self.objects_created += 1;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// Counts memory that is in no buffer of its own name.
    fn allocated_beside(&mut self, n_bytes: u64) {
        self.live_bytes += n_bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// Forgets the peak where nothing is left.
    fn freed_from(&mut self, mark: usize) {
        if mark == 0 {
            self.peak_bytes = self.live_bytes;
        }
    }

    fn freed(&mut self, n_bytes: u64) {
        self.live_bytes = self.live_bytes.saturating_sub(n_bytes);
        self.live_buffers -= 1;
    }
}

/// A range of the words of a buffer.
pub type Words = (BufferId, Range<u64>);

/// The most bytes that [`Device::read`] reads back at once.
pub const READ_BACK_BYTES: u64 = 4 << 20;

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
    gpu: gpu::Prepared,
}

impl Device {
    /// What this device is.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            Self::Gpu(d) => d.info(),
            Self::Cpu(d) => d.info(),
            Self::Plan(d) => d.info(),
        }
    }

    /// What this device has done.
    pub fn counters(&self) -> Counters {
        match self {
            Self::Gpu(d) => d.counters(),
            Self::Cpu(d) => d.counters(),
            Self::Plan(d) => d.counters(),
        }
    }

    /// Whether this device only counts buffers.
    pub fn only_counts(&self) -> bool {
        matches!(self, Self::Plan(_))
    }

    /// A zeroed buffer of `n_words` 32-bit words, one at least. Where the allocation fails late, the
    /// next [`Device::check`] or the end of an [`Allocations`] says so.
    pub fn create_buffer(&mut self, label: &str, n_words: u64) -> Result<BufferId, EngineError> {
        let n_words = n_words.max(1);
        let (needed, limit) = (n_words.saturating_mul(4), self.info().limits.max_words() * 4);
        if needed > limit {
            let error = EngineError::LimitTooSmall { what: label.to_owned(), needed, limit };
            match self {
                Self::Plan(d) => d.note_too_large(error),
                Self::Gpu(_) | Self::Cpu(_) => return Err(error),
            }
        }
        let total = self.counters().live_bytes.saturating_add(needed);
        // Whoever reads a plan compares all of it with the budget.
        let budget = self.info().limits.memory_budget_bytes.filter(|_| !self.only_counts());
        if let Some(budget) = budget.filter(|&budget| total > budget) {
            let reason = format!("{label} would take the total to {total} bytes, and {budget} are allowed");
            return Err(EngineError::OutOfMemory { reason });
        }
        match self {
            Self::Gpu(d) => Ok(d.create_buffer(label, needed)),
            Self::Cpu(d) => d.create_buffer(n_words),
            Self::Plan(d) => Ok(d.create_buffer(n_words)),
        }
    }

    /// Begins to watch for allocations that fail.
    pub fn watch_allocations(&self) -> Allocations {
        Allocations(match self {
            Self::Gpu(d) => Some(d.watch_allocations()),
            Self::Cpu(_) | Self::Plan(_) => None,
        })
    }

    /// Whether all that was allocated since [`Device::watch_allocations`] is there.
    pub async fn check_allocations(&mut self, watched: Allocations) -> Result<(), EngineError> {
        match (self, watched.0) {
            (Self::Gpu(d), Some(scope)) => d.check_allocations(scope).await,
            _ => Ok(()),
        }
    }

    /// Waits until no more than a bounded amount of what was written is still under way. Natively a write
    /// itself does.
    pub async fn wait_for_uploads(&mut self) -> Result<(), EngineError> {
        match self {
            Self::Gpu(d) => d.wait_for_uploads().await,
            Self::Cpu(_) | Self::Plan(_) => Ok(()),
        }
    }

    /// Whether the limits allow the buffers that were only counted; without counting they were checked.
    pub fn verdict(&mut self) -> Result<(), EngineError> {
        match self {
            Self::Plan(d) => d.take_too_large().map_or(Ok(()), Err),
            Self::Gpu(_) | Self::Cpu(_) => Ok(()),
        }
    }

    /// The number of words that a buffer holds.
    pub fn buffer_words(&self, buffer: BufferId) -> Result<u64, EngineError> {
        match self {
            Self::Gpu(d) => d.buffer_words(buffer),
            Self::Cpu(d) => d.buffer_words(buffer),
            Self::Plan(d) => d.buffer_words(buffer),
        }
    }

    /// Writes `words` at `offset_words`.
    pub fn write(&mut self, buffer: BufferId, offset_words: u64, words: &[u32]) -> Result<(), EngineError> {
        match self {
            Self::Gpu(d) => d.write(buffer, offset_words, words),
            Self::Cpu(d) => d.write(buffer, offset_words, words),
            Self::Plan(_) => Ok(()),
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

    /// Reads ranges one behind the other. Staging memory is bounded, however much that is.
    pub async fn read(&mut self, ranges: &[Words]) -> Result<Vec<u32>, EngineError> {
        let most = match self {
            Self::Gpu(d) => (d.read_back_bytes() / 4).max(1),
            Self::Cpu(_) | Self::Plan(_) => u64::MAX,
        };
        let n_all: u64 = ranges.iter().map(|(_, range)| range.end - range.start).sum();
        let mut words = Vec::with_capacity(n_all as usize);
        let (mut reads, mut n_words) = (Vec::new(), 0);
        for (buffer, range) in ranges {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start.saturating_add(most - n_words));
                reads.push(Read::Words(*buffer, start..end));
                n_words += end - start;
                start = end;
                if n_words == most {
                    words.extend(self.run(&[], &std::mem::take(&mut reads)).await?.concat());
                    n_words = 0;
                }
            }
        }
        if !reads.is_empty() {
            words.extend(self.run(&[], &reads).await?.concat());
        }
        Ok(words)
    }

    /// Writes words to ranges one behind the other, and waits meanwhile as writes need it.
    pub async fn write_all(&mut self, ranges: &[Words], words: &[u32]) -> Result<(), EngineError> {
        let mut rest = words;
        for (buffer, range) in ranges {
            let n = ((range.end - range.start) as usize).min(rest.len());
            let (these, after) = rest.split_at(n);
            self.write(*buffer, range.start, these)?;
            self.wait_for_uploads().await?;
            rest = after;
        }
        Ok(())
    }

    /// Sets a buffer to zero.
    pub fn clear(&mut self, buffers: &[BufferId]) -> Result<(), EngineError> {
        match self {
            Self::Gpu(d) => d.clear(buffers),
            Self::Cpu(d) => d.clear(buffers),
            Self::Plan(_) => Ok(()),
        }
    }

    /// Replaces the state.
    pub fn write_state(&mut self, state: &State) {
        match self {
            Self::Gpu(d) => d.write_state(state),
            Self::Cpu(d) => d.write_state(state),
            Self::Plan(_) => {}
        }
    }

    /// Makes dispatches ready to run: pipelines and bind groups are created here and never later.
    pub fn prepare(&mut self, dispatches: Vec<Dispatch>) -> Result<Plan, EngineError> {
        match self {
            Self::Gpu(d) => {
                let gpu = d.bind(&dispatches)?;
                Ok(Plan { dispatches, gpu })
            }
            Self::Cpu(_) => Ok(Plan { dispatches, gpu: gpu::Prepared::default() }),
            Self::Plan(d) => {
                d.prepare(dispatches.len());
                Ok(Plan { dispatches, gpu: gpu::Prepared::default() })
            }
        }
    }

    /// Runs plans in order as one submit, waits, and returns what `reads` names.
    ///
    /// With no reads it does not wait.
    pub async fn run(&mut self, plans: &[&Plan], reads: &[Read]) -> Result<Vec<Vec<u32>>, EngineError> {
        match self {
            Self::Gpu(d) => d.run(plans.iter().map(|p| p.gpu.bound()), reads).await,
            Self::Cpu(d) => d.run(plans.iter().flat_map(|p| &p.dispatches), reads),
            Self::Plan(_) => Err(only_counts()),
        }
    }

    /// Runs plans in order, dispatch by dispatch, and returns the nanoseconds that each dispatch took;
    /// nothing where the device has no clock for that: a GPU has one if it was opened with
    /// [`GpuOptions::timestamps`] and the adapter can.
    pub async fn run_timed(&mut self, plans: &[&Plan]) -> Result<Option<Vec<f64>>, EngineError> {
        match self {
            Self::Gpu(d) => d.run_timed(plans.iter().map(|p| p.gpu.bound())).await,
            Self::Cpu(d) => d.run_timed(plans.iter().flat_map(|p| &p.dispatches)),
            Self::Plan(_) => Err(only_counts()),
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
            Self::Gpu(d) => {
                d.run([plan.gpu.bound().get(range).ok_or_else(outside)?].into_iter(), reads).await
            }
            Self::Cpu(d) => d.run(plan.dispatches.get(range).ok_or_else(outside)?.iter(), reads),
            Self::Plan(_) => Err(only_counts()),
        }
    }

    /// Resolves with the reason when the device is lost, and never otherwise. Only the last caller is told:
    /// what earlier ones were given never resolves.
    pub fn lost(&self) -> impl Future<Output = String> + use<> {
        let receiver = match self {
            Self::Gpu(d) => Some(d.lost()),
            Self::Cpu(_) | Self::Plan(_) => None,
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
            Self::Plan(d) => d.n_buffers(),
        }
    }

    /// Frees every buffer made since `mark`. Plans that use them must not be run again.
    pub fn free_from(&mut self, mark: usize) {
        match self {
            Self::Gpu(d) => d.free_from(mark),
            Self::Cpu(d) => d.free_from(mark),
            Self::Plan(d) => d.free_from(mark),
        }
    }
}

/// Allocations that are watched; see [`Device::watch_allocations`].
#[derive(Debug)]
#[must_use = "failures are lost unless they are asked for"]
pub struct Allocations(Option<wgpu::ErrorScopeGuard>);

fn only_counts() -> EngineError {
    EngineError::Device { reason: "this device only counts buffers and runs nothing".to_owned() }
}

/// The error for an id that this device never gave out.
fn unknown_buffer(id: BufferId) -> EngineError {
    EngineError::Device { reason: format!("there is no buffer {}", id.0) }
}
