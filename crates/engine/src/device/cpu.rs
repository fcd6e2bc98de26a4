//! The CPU executor: the kernels' functions in Rust over plain vectors.
//!
//! With the references it is slow and obvious, and what everything else is compared with; with the
//! fast kernels it answers where there is no GPU.

use signbit_shaders::cpu::{Activations, CpuKernels, tiles};
use signbit_shaders::weights::{PackError, Weight, pack_rows, words_per_row};
use signbit_shaders::{BufferId, Dispatch, State};

use super::{Counters, DeviceInfo, Limits, Read, unknown_buffer};
use crate::clock::now_ms;
use crate::error::EngineError;

/// Runs dispatches on the calling thread.
#[derive(Debug)]
pub struct CpuDevice {
    kernels: CpuKernels,
    info: DeviceInfo,
    buffers: Vec<Vec<u32>>,
    state: State,
    counters: Counters,
    fail_allocation_above_bytes: Option<u64>,
}

/// How the CPU computes, and lower limits than the host's memory, for comparing with a GPU and for tests.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// References or fast kernels.
    pub kernels: CpuKernels,
    /// Bytes of the largest buffer; 1 GiB if not given.
    pub max_buffer_bytes: Option<u64>,
    /// Bytes that a model's plan may take; see [`cpu_budget`].
    pub memory_budget_bytes: Option<u64>,
    /// Fail allocations that would take all buffers together above this, for tests.
    pub fail_allocation_above_bytes: Option<u64>,
    /// Make all the plans of a GPU that compiles quickly, to be compared with one.
    pub all_plans: bool,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            kernels: CpuKernels::Fast(Activations::default()),
            max_buffer_bytes: None,
            memory_budget_bytes: None,
            fail_allocation_above_bytes: None,
            all_plans: false,
        }
    }
}

/// The budget that was asked for, if any: with addresses of 32 bits, as in a web page, 3 GiB at most. A module addresses
/// 4 GiB; the last one is for tokenizer, header, recorded plans, pieces of files that arrive, and gaps
/// between all these.
pub fn cpu_budget(asked: Option<u64>, address_bits: u32) -> Option<u64> {
    let addressable = (address_bits <= 32).then_some(3 << 30);
    [asked, addressable].into_iter().flatten().min()
}

impl CpuOptions {
    /// The definitions of all kernels.
    pub fn reference() -> Self {
        Self { kernels: CpuKernels::Reference, ..Self::default() }
    }
}

impl CpuDevice {
    /// A device without buffers.
    pub fn new(options: CpuOptions) -> Self {
        let max = options.max_buffer_bytes.unwrap_or(1 << 30);
        let info = DeviceInfo {
            backend: "cpu",
            name: match options.kernels {
                CpuKernels::Reference => "CPU, reference kernels".to_owned(),
                CpuKernels::Fast(activations) => {
                    format!(
                        "CPU, {}, {} activations",
                        signbit_shaders::cpu::vector_unit(),
                        activations.name()
                    )
                }
            },
            vendor: String::new(),
            is_fallback: options.kernels == CpuKernels::Reference,
            compiles_slowly: !options.all_plans,
            subgroup_width: None,
            activations: Some(match options.kernels {
                CpuKernels::Reference => Activations::F32.name(),
                CpuKernels::Fast(activations) => activations.name(),
            }),
            features: Vec::new(),
            limits: Limits {
                max_buffer_bytes: max,
                max_binding_bytes: max,
                max_workgroup_bytes: 16_384,
                max_invocations: 256,
                memory_budget_bytes: cpu_budget(options.memory_budget_bytes, usize::BITS),
            },
        };
        Self {
            kernels: options.kernels,
            info,
            buffers: Vec::new(),
            state: State::default(),
            counters: Counters::default(),
            fail_allocation_above_bytes: options.fail_allocation_above_bytes,
        }
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn create_buffer(&mut self, n_words: u64) -> Result<BufferId, EngineError> {
        let out_of_memory = || EngineError::OutOfMemory { reason: format!("{n_words} words were asked for") };
        let total = self.counters.live_bytes + n_words * 4;
        if self.fail_allocation_above_bytes.is_some_and(|most| total > most) {
            return Err(out_of_memory());
        }
        let n = usize::try_from(n_words).map_err(|_| out_of_memory())?;
        let mut words = Vec::new();
        words.try_reserve_exact(n).map_err(|_| out_of_memory())?;
        words.resize(n, 0);
        let id = BufferId(self.buffers.len() as u32);
        self.buffers.push(words);
        self.counters.allocated(n_words * 4);
        Ok(id)
    }

    pub(super) fn buffer_words(&self, id: BufferId) -> Result<u64, EngineError> {
        self.buffers.get(id.0 as usize).map(|words| words.len() as u64).ok_or_else(|| unknown_buffer(id))
    }

    fn buffer(&mut self, id: BufferId) -> Result<&mut Vec<u32>, EngineError> {
        self.buffers.get_mut(id.0 as usize).ok_or_else(|| unknown_buffer(id))
    }

    pub(super) fn write(&mut self, id: BufferId, offset: u64, words: &[u32]) -> Result<(), EngineError> {
        let buffer = self.buffer(id)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(words.len());
        let target = buffer.get_mut(range).ok_or_else(|| EngineError::Device {
            reason: format!("a write of {} words at {offset} is outside buffer {}", words.len(), id.0),
        })?;
        target.copy_from_slice(words);
        Ok(())
    }

    /// Writes rows of a matrix, which come in the device layout, in the layout that the kernels read.
    pub(super) fn write_rows(
        &mut self,
        weight: Weight,
        first_row: u32,
        quants: &[u32],
        scales: &[u32],
    ) -> Result<(), EngineError> {
        let (quant_words, scale_words) = words_per_row(weight.format, weight.cols);
        if self.kernels == CpuKernels::Reference || !tiles::has_tiles(weight.format) {
            self.write(weight.quants, u64::from(first_row) * u64::from(quant_words), quants)?;
            return self.write(weight.scales, u64::from(first_row) * u64::from(scale_words), scales);
        }
        let [row_words, shape] =
            [[quant_words, scale_words], [weight.rows, first_row]].map(|pair| pair.map(|n| n as usize));
        let fits = |rows: usize| shape[1] + rows <= shape[0];
        if !fits(quants.len() / row_words[0].max(1)) || !fits(scales.len() / row_words[1].max(1)) {
            let reason = format!("rows behind the last of a matrix of {}", weight.rows);
            return Err(EngineError::Device { reason });
        }
        let mut tiled_quants = std::mem::take(self.buffer(weight.quants)?);
        let result = self.buffer(weight.scales).map(|tiled_scales| {
            tiles::write_rows(shape, row_words, [quants, scales], [&mut tiled_quants, tiled_scales]);
        });
        *self.buffer(weight.quants)? = tiled_quants;
        result
    }

    /// Packs whole rows from the file's blocks to where the kernels read them, without a copy in between.
    /// What is wrong with the blocks is the inner result.
    pub(crate) fn pack_rows(
        &mut self,
        weight: Weight,
        first_row: u32,
        bytes: &[u8],
    ) -> Result<Result<(), PackError>, EngineError> {
        let Weight { format, cols, .. } = weight;
        let (quant_words, scale_words) = words_per_row(format, cols);
        let n_rows = bytes.len() / format.file_row_bytes(cols).max(1);
        let [first, n_rows, all] = [first_row as usize, n_rows, weight.rows as usize];
        if first + n_rows > all {
            return Err(EngineError::Device { reason: format!("rows behind the last of a matrix of {all}") });
        }
        let kernels = self.kernels;
        let mut quants = std::mem::take(self.buffer(weight.quants)?);
        let result = self.buffer(weight.scales).map(|scales| {
            if kernels != CpuKernels::Reference && tiles::has_tiles(format) {
                return tiles::pack_rows(format, cols, [all, first], bytes, [&mut quants, scales]);
            }
            let rows = |words: u32| first * words as usize..(first + n_rows) * words as usize;
            pack_rows(format, cols, bytes, &mut quants[rows(quant_words)], &mut scales[rows(scale_words)])
        });
        *self.buffer(weight.quants)? = quants;
        result
    }

    pub(super) fn clear(&mut self, buffers: &[BufferId]) -> Result<(), EngineError> {
        for &id in buffers {
            self.buffer(id)?.fill(0);
        }
        Ok(())
    }

    pub(super) fn write_state(&mut self, state: &State) {
        self.state = *state;
    }

    pub(super) fn run<'a>(
        &mut self,
        dispatches: impl Iterator<Item = &'a Dispatch>,
        reads: &[Read],
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        self.counters.submits += 1;
        for dispatch in dispatches {
            if let Some(&id) = dispatch.buffers.iter().find(|id| id.0 as usize >= self.buffers.len()) {
                return Err(unknown_buffer(id));
            }
            dispatch.run(self.kernels, &mut self.buffers, &mut self.state);
            self.counters.dispatches += 1;
        }
        reads
            .iter()
            .map(|read| match read {
                Read::State => Ok(bytemuck::cast_slice(&[self.state]).to_vec()),
                Read::Words(id, range) => {
                    let range = range.start as usize..range.end as usize;
                    let words = self.buffer(*id)?.get(range.clone()).map(<[u32]>::to_vec);
                    words.ok_or_else(|| EngineError::Device {
                        reason: format!("a read of words {range:?} is outside buffer {}", id.0),
                    })
                }
            })
            .collect()
    }

    /// Runs dispatches and returns the nanoseconds that each took; nothing in a web page, whose clock
    /// is too coarse.
    pub(super) fn run_timed<'a>(
        &mut self,
        dispatches: impl Iterator<Item = &'a Dispatch>,
    ) -> Result<Option<Vec<f64>>, EngineError> {
        if cfg!(target_arch = "wasm32") {
            return Ok(None);
        }
        let mut times_ns = Vec::new();
        for dispatch in dispatches {
            let start = now_ms();
            self.run(std::iter::once(dispatch), &[])?;
            times_ns.push((now_ms() - start) * 1e6);
        }
        Ok(Some(times_ns))
    }

    /// Copies all of a buffer to another of its size, `n_times`.
    pub(super) fn copy(&mut self, from: BufferId, to: BufferId, n_times: u32) -> Result<(), EngineError> {
        let source = std::mem::take(self.buffer(from)?);
        let result = self.buffer(to).map(|target| {
            for _ in 0..n_times {
                // Without this the compiler could copy once.
                std::hint::black_box(&mut *target).clone_from(std::hint::black_box(&source));
            }
        });
        *self.buffer(from)? = source;
        result
    }

    pub(super) fn n_buffers(&self) -> usize {
        self.buffers.len()
    }

    pub(super) fn free_from(&mut self, mark: usize) {
        for buffer in self.buffers.drain(mark.min(self.buffers.len())..) {
            self.counters.freed(buffer.len() as u64 * 4);
        }
        self.counters.freed_from(mark);
    }
}
