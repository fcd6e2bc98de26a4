//! What a kernel is and what one run of it is: plain data, no GPU types.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use crate::case::Case;
use crate::cpu::{Activations, CpuKernels};
use crate::weights::Weight;

/// The most ids on which the device itself ends a generation.
pub const MAX_STOP_IDS: usize = 16;

/// The largest number of workgroups WebGPU guarantees per axis. A dispatch above it is dropped
/// without an error by real implementations, so nothing may reach it.
pub const MAX_WORKGROUPS_PER_AXIS: u32 = 65_535;

/// The most iterations that the loops of one invocation may have in all. Mesa's llvmpipe, which
/// Firefox uses where there is no GPU, leaves every loop once its count is used up, without an error.
pub const MAX_LOOP_ITERATIONS: u32 = 65_535;

/// The device-side state of a session; the Rust side of `common/state.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct State {
    /// Position of the first token of this step, which is also its row in the KV cache.
    pub position: u32,
    /// Rows this step computes; 0 once `done` is set.
    pub n_tokens: u32,
    /// See the `DONE_*` constants.
    pub done: u32,
    /// Tokens sampled since the generation began.
    pub step: u32,
    /// How many entries of `stop_ids` count.
    pub n_stop_ids: u32,
    /// Keeps `stop_ids` at the offset WGSL gives it.
    pub padding: [u32; 3],
    /// Ids that end a generation.
    pub stop_ids: [u32; MAX_STOP_IDS],
}

impl State {
    /// The generation goes on.
    pub const RUNNING: u32 = 0;
    /// A stop id was sampled.
    pub const DONE_STOP: u32 = 1;
    /// The logits were not finite, or all equal.
    pub const DONE_UNUSABLE_LOGITS: u32 = 2;

    /// The logits are not usable; the Rust side of `refuse` in `common/advance.wgsl`.
    pub(crate) fn refuse(&mut self) {
        self.done = Self::DONE_UNUSABLE_LOGITS;
        self.n_tokens = 0;
    }

    /// `token` was sampled: it is the only one of the next step, unless it ends the session. The Rust
    /// side of `advance` in `common/advance.wgsl`.
    pub(crate) fn advance(&mut self, token: u32) {
        self.step += 1;
        self.position += self.n_tokens;
        self.n_tokens = 1;
        let n_stop_ids = (self.n_stop_ids as usize).min(MAX_STOP_IDS);
        if self.stop_ids[..n_stop_ids].contains(&token) {
            self.done = Self::DONE_STOP;
            self.n_tokens = 0;
        }
    }
}

/// Names a device buffer of the executor that runs the dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A whole buffer seen as a row-major matrix of 32-bit elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Where the elements are.
    pub buffer: BufferId,
    /// Number of rows, usually tokens.
    pub rows: u32,
    /// Elements per row; rows are contiguous.
    pub cols: u32,
}

impl Tensor {
    /// Bytes that the elements take.
    pub fn n_bytes(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols) * 4
    }
}

/// Some columns of every row of a tensor, for example one projection's part of a row in which several
/// projections lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The whole rows.
    pub tensor: Tensor,
    /// The first of the columns.
    pub first: u32,
    /// How many there are.
    pub cols: u32,
}

impl Tensor {
    /// Columns `first..first + cols` of every row.
    pub fn columns(self, first: u32, cols: u32) -> Columns {
        Columns { tensor: self, first, cols }
    }
}

impl Columns {
    /// Bytes that the elements take.
    pub fn n_bytes(&self) -> u64 {
        Tensor { cols: self.cols, ..self.tensor }.n_bytes()
    }
}

impl From<Tensor> for Columns {
    fn from(tensor: Tensor) -> Self {
        tensor.columns(0, tensor.cols)
    }
}

/// How a kernel uses a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    ReadWrite,
}

/// Element type of a storage binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `array<f32>`, or a vector of f32.
    F32,
    /// `array<u32>`, or a vector of u32.
    U32,
}

/// One storage binding of a kernel; binding numbers start at 2 and follow the list's order.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The variable's name in the WGSL.
    pub name: &'static str,
    /// How it is bound.
    pub access: Access,
    /// What it holds.
    pub element: Element,
}

impl Binding {
    /// A read-only array of f32.
    pub const fn read(name: &'static str) -> Self {
        Self { name, access: Access::Read, element: Element::F32 }
    }

    /// A read-only array of u32.
    pub const fn read_u32(name: &'static str) -> Self {
        Self { name, access: Access::Read, element: Element::U32 }
    }

    /// A writable array of f32.
    pub const fn write(name: &'static str) -> Self {
        Self { name, access: Access::ReadWrite, element: Element::F32 }
    }

    /// A writable array of u32.
    pub const fn write_u32(name: &'static str) -> Self {
        Self { name, access: Access::ReadWrite, element: Element::U32 }
    }
}

/// How a kernel sees the [`State`], always at binding 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateAccess {
    /// `var<uniform>`.
    Uniform,
    /// `var<storage, read_write>`: the kernel moves the session on.
    ReadWrite,
}

/// A WGSL program with its Rust twin.
///
/// Binding 0 is the `Params` uniform, binding 1 the state, then [`Kernel::bindings`].
#[derive(Debug)]
pub struct Kernel {
    /// Unique name.
    pub name: &'static str,
    /// WGSL files, joined in this order.
    pub sources: &'static [&'static str],
    /// Storage bindings in order.
    pub bindings: &'static [Binding],
    /// How the state is bound.
    pub state: StateAccess,
    /// The `@workgroup_size` of the WGSL.
    pub workgroup_size: [u32; 3],
    /// Bytes of the `Params` uniform.
    pub params_size: usize,
    /// The definition of what the kernel computes.
    pub reference: fn(&mut Args<'_>),
    /// The same within the cases' tolerances, quickly; `None` where the reference is quick enough.
    /// Matrices lie in [`crate::cpu::tiles`] where their format has them.
    pub fast: Option<Fast>,
    /// Shapes and contents on which the WGSL is compared with the reference.
    pub cases: fn() -> Result<Vec<Case>, ShapeError>,
}

impl Kernel {
    /// The complete WGSL text.
    pub fn wgsl(&self) -> String {
        self.sources.join("\n")
    }

    /// Whether it uses subgroup operations, which not every device has.
    pub fn needs_subgroups(&self) -> bool {
        self.sources.iter().any(|source| source.contains("@builtin(subgroup_size)"))
    }
}

/// A kernel of the CPU executor, with the precision that products may use.
pub type Fast = fn(&mut Args<'_>, Activations);

/// What a kernel on the CPU works on: the buffers of one dispatch, in binding order.
#[derive(Debug)]
pub struct Args<'a> {
    /// Bytes of the `Params` uniform.
    pub params: &'a [u8],
    /// The session's state.
    pub state: &'a mut State,
    /// Read-only bindings in order.
    pub reads: Vec<&'a [u32]>,
    /// Writable bindings in order.
    pub writes: Vec<&'a mut [u32]>,
}

impl<'a> Args<'a> {
    /// The kernel's parameters.
    pub fn params<P: Pod>(&self) -> P {
        bytemuck::pod_read_unaligned(self.params)
    }

    /// The `i`-th read-only binding as f32.
    pub fn read(&self, i: usize) -> &'a [f32] {
        bytemuck::cast_slice(self.reads[i])
    }

    /// The `i`-th read-only binding as u32.
    pub fn read_u32(&self, i: usize) -> &'a [u32] {
        self.reads[i]
    }

    /// The `i`-th writable binding as f32.
    pub fn write(&mut self, i: usize) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.writes[i])
    }

    /// The `i`-th writable binding as u32.
    pub fn write_u32(&mut self, i: usize) -> &mut [u32] {
        self.writes[i]
    }
}

/// A workgroup count that every WebGPU device accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workgroups {
    /// Groups along x.
    pub x: u32,
    /// Groups along y.
    pub y: u32,
}

impl Workgroups {
    /// A grid of at least `n` workgroups, folded over x and y so that neither axis exceeds
    /// [`MAX_WORKGROUPS_PER_AXIS`]. The kernel finds its index with `linear_workgroup` and leaves
    /// when the index is past the end.
    pub fn linear(kernel: &'static str, n: u64) -> Result<Self, ShapeError> {
        let max = u64::from(MAX_WORKGROUPS_PER_AXIS);
        let too_many = ShapeError::TooManyWorkgroups { kernel, needed: n, most: max * max };
        let y = n.div_ceil(max).max(1);
        if y > max {
            return Err(too_many);
        }
        match (u32::try_from(n.div_ceil(y).max(1)), u32::try_from(y)) {
            (Ok(x), Ok(y)) => Ok(Self { x, y }),
            _ => Err(too_many),
        }
    }
}

/// One run of a kernel, as plain data.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// What runs.
    pub kernel: &'static Kernel,
    /// Where in the model this is, for example `layer.3.attn.q`.
    pub label: String,
    /// Bytes of the `Params` uniform.
    pub params: Vec<u8>,
    /// A buffer per storage binding, in order.
    pub buffers: Vec<BufferId>,
    /// The matrix that it reads, if it reads one.
    pub weight: Option<Weight>,
    /// How many workgroups run.
    pub workgroups: Workgroups,
    /// Bytes this run must read at full width, for cost accounting.
    pub bytes_read: u64,
    /// Bytes this run writes at full width.
    pub bytes_written: u64,
}

impl Dispatch {
    /// A run of `kernel` over `tensors`, which are its storage bindings in order.
    ///
    /// The byte counts start as the sizes of the tensors; a constructor whose kernel touches less
    /// (one embedding row, the used part of a cache) corrects them.
    pub fn new<P: Pod>(
        kernel: &'static Kernel,
        params: P,
        tensors: &[Tensor],
        workgroups: Workgroups,
    ) -> Self {
        let bytes = |access| {
            kernel
                .bindings
                .iter()
                .zip(tensors)
                .filter(|(b, _)| b.access == access)
                .map(|(_, t)| t.n_bytes())
                .sum()
        };
        Self {
            kernel,
            label: String::new(),
            params: bytemuck::bytes_of(&params).to_vec(),
            buffers: tensors.iter().map(|t| t.buffer).collect(),
            weight: None,
            workgroups,
            bytes_read: bytes(Access::Read),
            bytes_written: bytes(Access::ReadWrite),
        }
    }

    /// The same for other buffers.
    pub fn with_buffers(&self, id: impl Fn(BufferId) -> BufferId) -> Self {
        let move_weight = |w: Weight| Weight { quants: id(w.quants), scales: id(w.scales), ..w };
        Self {
            buffers: self.buffers.iter().map(|&buffer| id(buffer)).collect(),
            weight: self.weight.map(move_weight),
            ..self.clone()
        }
    }

    /// Runs it on the CPU on `buffers`, indexed by [`BufferId`].
    pub fn run(&self, kernels: CpuKernels, buffers: &mut [Vec<u32>], state: &mut State) {
        let slots = || self.kernel.bindings.iter().zip(&self.buffers);
        let index = |id: &BufferId| id.0 as usize;
        // Writable buffers are taken out while the kernel runs; WebGPU forbids binding a buffer
        // both ways in one dispatch, so none of them is read through another binding.
        let mut taken: Vec<Vec<u32>> = slots()
            .filter(|(b, _)| b.access == Access::ReadWrite)
            .map(|(_, id)| std::mem::take(&mut buffers[index(id)]))
            .collect();
        let mut args = Args {
            params: &self.params,
            state,
            reads: slots()
                .filter(|(b, _)| b.access == Access::Read)
                .map(|(_, id)| buffers[index(id)].as_slice())
                .collect(),
            writes: taken.iter_mut().map(Vec::as_mut_slice).collect(),
        };
        match (kernels, self.kernel.fast) {
            (CpuKernels::Fast(activations), Some(fast)) => fast(&mut args, activations),
            _ => (self.kernel.reference)(&mut args),
        }
        for ((_, id), buffer) in slots().filter(|(b, _)| b.access == Access::ReadWrite).zip(taken) {
            buffers[index(id)] = buffer;
        }
    }
}

/// Arguments that do not fit a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// A tensor has another shape than the other arguments imply.
    #[error("{kernel}: {argument} is {actual_rows} x {actual_cols} where {rows} x {cols} is needed")]
    Mismatch {
        /// The kernel.
        kernel: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// Rows needed.
        rows: u32,
        /// Columns needed.
        cols: u32,
        /// Rows given.
        actual_rows: u32,
        /// Columns given.
        actual_cols: u32,
    },
    /// A dimension that the kernel cannot handle.
    #[error("{kernel}: {dimension} is {actual}, which must be {requirement}")]
    Dimension {
        /// The kernel.
        kernel: &'static str,
        /// The dimension's name.
        dimension: &'static str,
        /// What it is.
        actual: u64,
        /// What it must be.
        requirement: &'static str,
    },
    /// More workgroups than two axes can hold.
    #[error("{kernel}: {needed} workgroups are needed and {most} is the most a dispatch can have")]
    TooManyWorkgroups {
        /// The kernel.
        kernel: &'static str,
        /// Workgroups needed.
        needed: u64,
        /// Workgroups that fit.
        most: u64,
    },
}

/// Refuses a tensor that is not `rows` x `cols`.
pub(crate) fn expect_shape(
    kernel: &'static str,
    argument: &'static str,
    tensor: Tensor,
    rows: u32,
    cols: u32,
) -> Result<(), ShapeError> {
    if (tensor.rows, tensor.cols) == (rows, cols) {
        return Ok(());
    }
    Err(ShapeError::Mismatch {
        kernel,
        argument,
        rows,
        cols,
        actual_rows: tensor.rows,
        actual_cols: tensor.cols,
    })
}

/// Refuses columns that are not `rows` x `cols`, or not inside their tensor.
pub(crate) fn expect_columns(
    kernel: &'static str,
    argument: &'static str,
    columns: Columns,
    rows: u32,
    cols: u32,
) -> Result<(), ShapeError> {
    let seen = Tensor { cols: columns.cols, ..columns.tensor };
    expect_shape(kernel, argument, seen, rows, cols)?;
    let end = columns.first.saturating_add(columns.cols);
    require(kernel, argument, end, end <= columns.tensor.cols, "within the row")
}

/// Refuses a dimension that does not satisfy `holds`.
pub(crate) fn require(
    kernel: &'static str,
    dimension: &'static str,
    actual: u32,
    holds: bool,
    requirement: &'static str,
) -> Result<(), ShapeError> {
    if holds {
        return Ok(());
    }
    Err(ShapeError::Dimension { kernel, dimension, actual: u64::from(actual), requirement })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workgroups_cover_and_stay_below_the_axis_limit() {
        for n in [0, 1, 2, 65_534, 65_535, 65_536, 65_537, 131_070, 131_071, 248_320, 65_535 * 65_535] {
            let w = Workgroups::linear("test", n).unwrap();
            assert!(w.x <= MAX_WORKGROUPS_PER_AXIS && w.y <= MAX_WORKGROUPS_PER_AXIS, "{n}: {w:?}");
            assert!(u64::from(w.x) * u64::from(w.y) >= n, "{n}: {w:?}");
            assert!(w.x > 0 && w.y > 0, "{n}: {w:?}");
        }
        assert_eq!(Workgroups::linear("test", 65_535).unwrap(), Workgroups { x: 65_535, y: 1 });
        assert_eq!(Workgroups::linear("test", 65_536).unwrap(), Workgroups { x: 32_768, y: 2 });
        assert!(Workgroups::linear("test", 65_535 * 65_535 + 1).is_err());
        assert!(Workgroups::linear("test", u64::MAX).is_err());
    }
}
