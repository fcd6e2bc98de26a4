//! How fast a device moves memory: what the speed of a model is held against.

use signbit_shaders::BufferId;

use super::Device;
use crate::clock::now_ms;
use crate::error::EngineError;

/// Sizes of the buffers, smallest first: beyond the caches of a processor, and of most GPUs.
const SIZES: [u64; 3] = [16 << 20, 64 << 20, 128 << 20];
/// One measurement takes at least this long, so that submitting and waiting hardly counts.
const LEAST_MS: f64 = 50.0;
const MAX_COPIES: u32 = 1 << 14;
const RUNS: u32 = 3;

impl Device {
    /// Bytes that the device reads and writes per second while it copies one buffer to another: the
    /// best of several runs and sizes. Takes up to 256 MiB of memory for about a second.
    pub async fn copy_bandwidth(&mut self) -> Result<f64, EngineError> {
        let mark = self.mark();
        let mut best = Err(EngineError::OutOfMemory { reason: "there is no room to copy in".to_owned() });
        for n_bytes in SIZES {
            let pair = ["copy_from", "copy_to"].map(|label| self.create_buffer(label, n_bytes / 4));
            let rate = match pair {
                [Ok(from), Ok(to)] => self.copy_rate(from, to, n_bytes).await,
                [Err(error), _] | [_, Err(error)] => Err(error),
            };
            self.free_from(mark);
            // A size that does not fit leaves the smaller ones.
            best = match (best, rate) {
                (Ok(best), Ok(rate)) => Ok(f64::max(best, rate)),
                (Ok(best), Err(_)) => Ok(best),
                (Err(_), rate) => rate,
            };
        }
        best
    }

    async fn copy_rate(&mut self, from: BufferId, to: BufferId, n_bytes: u64) -> Result<f64, EngineError> {
        let (mut n_times, mut runs, mut best) = (1, 0, 0.0);
        // The first run also brings the memory in.
        self.copy(from, to, n_times).await?;
        while runs < RUNS {
            let start = now_ms();
            self.copy(from, to, n_times).await?;
            let elapsed_ms = now_ms() - start;
            if elapsed_ms < LEAST_MS && n_times < MAX_COPIES {
                n_times *= 2;
                continue;
            }
            // Every byte is read once and written once.
            let moved = 2 * n_bytes * u64::from(n_times);
            best = f64::max(best, moved as f64 / (elapsed_ms / 1e3).max(1e-6));
            runs += 1;
        }
        Ok(best)
    }

    async fn copy(&mut self, from: BufferId, to: BufferId, n_times: u32) -> Result<(), EngineError> {
        match self {
            Self::Gpu(d) => d.copy(from, to, n_times).await,
            Self::Cpu(d) => d.copy(from, to, n_times),
            Self::Plan(_) => Err(super::only_counts()),
        }
    }
}
