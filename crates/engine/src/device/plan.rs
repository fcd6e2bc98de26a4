//! A device that only counts: what a model would take on a real one, before a byte of it is allocated.
//!
//! It has another device's limits and hands out buffers that hold nothing, so that the code which
//! allocates a model is also the code which plans it.

use signbit_shaders::BufferId;

use super::gpu::params_bytes;
use super::{Counters, DeviceInfo, unknown_buffer};
use crate::error::EngineError;

/// Counts buffers instead of allocating them, ignores writes, and runs nothing.
#[derive(Debug)]
pub struct PlanDevice {
    info: DeviceInfo,
    /// Words of each buffer.
    buffers: Vec<u64>,
    counters: Counters,
    too_large: Option<EngineError>,
}

impl PlanDevice {
    /// A device without buffers and with the limits of another.
    pub fn new(info: &DeviceInfo) -> Self {
        let info = info.clone();
        Self { info, buffers: Vec::new(), counters: Counters::default(), too_large: None }
    }

    /// The first buffer, since the last call, that the device's limits do not allow.
    pub(super) fn take_too_large(&mut self) -> Option<EngineError> {
        self.too_large.take()
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Notes a buffer that is too large and counts it with the others.
    pub(super) fn note_too_large(&mut self, error: EngineError) {
        self.too_large.get_or_insert(error);
    }

    pub(super) fn create_buffer(&mut self, n_words: u64) -> BufferId {
        self.buffers.push(n_words);
        self.counters.allocated(n_words.saturating_mul(4));
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Counts what the dispatches of a plan need besides the buffers that they name.
    pub(super) fn prepare(&mut self, n_dispatches: usize) {
        if self.info.backend == "webgpu" {
            self.counters.allocated_beside(params_bytes(n_dispatches));
        }
    }

    pub(super) fn buffer_words(&self, id: BufferId) -> Result<u64, EngineError> {
        self.buffers.get(id.0 as usize).copied().ok_or_else(|| unknown_buffer(id))
    }

    pub(super) fn n_buffers(&self) -> usize {
        self.buffers.len()
    }

    pub(super) fn free_from(&mut self, mark: usize) {
        for n_words in self.buffers.drain(mark.min(self.buffers.len())..) {
            self.counters.freed(n_words.saturating_mul(4));
        }
        self.counters.freed_from(mark);
    }
}
