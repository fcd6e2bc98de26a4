//! Products of a matrix and one token's vector, for decode, with what can be had in the same pass:
//!
//! * [`matvec`]: `y[row_offset + o] (+)= sum_k W[o, k] x[k]`, adding the residual if wanted;
//! * [`norm_matvec`]: the same of `h = RMSNorm(x)`, `x` being the step's last row;
//! * [`norm_swiglu`]: `SiLU(gate h) * up h`, gate and up being the halves of one matrix.
//!
//! `K` is a multiple of 8 and of the format's block. A shard of the matrix writes its rows of `y`;
//! together the shards write all of it.
//!
//! Each product comes in [`Variant`]s that differ in how the work is spread. All are right
//! everywhere their feature exists; which one is fastest depends on the device and the shape, and
//! is measured there. They add in different orders, so results differ by rounding.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};
use crate::weights::{Format, Weight, for_each_format, words_per_row};

pub mod cases;
mod fast;
mod reference;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    Linear,
    Norm,
    Swiglu,
}

impl Op {
    const ALL: [Self; 3] = [Self::Linear, Self::Norm, Self::Swiglu];

    const fn wgsl(self) -> &'static str {
        match self {
            Self::Linear => include_str!("linear.wgsl"),
            Self::Norm => concat!(include_str!("norm.wgsl"), include_str!("norm_linear.wgsl")),
            Self::Swiglu => concat!(include_str!("norm.wgsl"), include_str!("norm_swiglu.wgsl")),
        }
    }

    const fn bindings(self) -> &'static [Binding] {
        const X: Binding = Binding::read("x");
        const NORM: Binding = Binding::read("norm");
        const QUANTS: Binding = Binding::read_u32("quants");
        const SCALES: Binding = Binding::read_u32("scales");
        const Y: Binding = Binding::write("y");
        match self {
            Self::Linear => &[X, QUANTS, SCALES, Y],
            Self::Norm | Self::Swiglu => &[X, NORM, QUANTS, SCALES, Y],
        }
    }
}

/// How the work of a product is spread over invocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// 16 invocations a row; exists for every format and needs nothing.
    Lanes,
    /// 16 invocations per 4 rows.
    Lanes4,
    /// Sums of all nibbles in workgroup memory, 16 rows a workgroup.
    Table,
    /// The same with 64 rows a workgroup.
    Table4,
    /// A subgroup per 4 rows.
    Subgroup,
}

impl Variant {
    /// Every variant.
    pub const ALL: [Self; 5] = [Self::Lanes, Self::Lanes4, Self::Table, Self::Table4, Self::Subgroup];

    const fn wgsl(self) -> &'static str {
        match self {
            Self::Lanes => concat!("const ROWS = 1u;\n", include_str!("lanes.wgsl")),
            Self::Lanes4 => concat!("const ROWS = 4u;\n", include_str!("lanes.wgsl")),
            Self::Table => concat!("const ROWS = 1u;\n", include_str!("table.wgsl")),
            Self::Table4 => concat!("const ROWS = 4u;\n", include_str!("table.wgsl")),
            Self::Subgroup => concat!("const ROWS = 4u;\n", include_str!("subgroup.wgsl")),
        }
    }

    /// The word in the names of its kernels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lanes => "lanes",
            Self::Lanes4 => "lanes4",
            Self::Table => "table",
            Self::Table4 => "table4",
            Self::Subgroup => "subgroup",
        }
    }

    /// The tables of the formats that have them.
    const fn table_wgsl(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Table | Self::Table4, Format::Q1_0) => include_str!("table_q1_0.wgsl"),
            (Self::Table | Self::Table4, Format::Q2_0G64) => {
                concat!("const WORDS_PER_SCALE = 4u;\n", include_str!("table_q2_0.wgsl"))
            }
            (Self::Table | Self::Table4, Format::Q2_0G128) => {
                concat!("const WORDS_PER_SCALE = 8u;\n", include_str!("table_q2_0.wgsl"))
            }
            _ => "",
        }
    }

    /// Sums that a workgroup computes; a sum is a row of the matrix.
    fn sums_per_workgroup(self, subgroup_width: u32) -> u32 {
        match self {
            Self::Lanes => 4,
            Self::Lanes4 | Self::Table => 16,
            Self::Table4 => 64,
            Self::Subgroup => 4 * (64 / subgroup_width.clamp(1, 64)),
        }
    }
}

/// Uniform of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    accumulate: u32,
    quants_per_row: u32,
    scales_per_row: u32,
    eps: f32,
    sums_per_workgroup: u32,
}

macro_rules! kernel {
    ($op:expr, $variant:expr, $name:literal, $format_name:literal, $format:expr) => {
        Kernel {
            name: concat!($name, "_", $format_name),
            sources: &[
                include_str!("../../common/state.wgsl"),
                include_str!("../../common/workgroups.wgsl"),
                include_str!("../../common/sigmoid.wgsl"),
                include_str!("../../common/half.wgsl"),
                include_str!("../../common/unpack_common.wgsl"),
                $format.wgsl(),
                include_str!("params.wgsl"),
                $op.wgsl(),
                $variant.table_wgsl($format),
                $variant.wgsl(),
            ],
            bindings: $op.bindings(),
            state: StateAccess::Uniform,
            workgroup_size: [64, 1, 1],
            params_size: size_of::<Params>(),
            reference: |args| reference::product(args, $op, $format),
            fast: Some(|args, activations| fast::product(args, $op, $format, activations)),
            cases: || cases::cases($op, $variant, $format),
        }
    };
}

macro_rules! linear_lanes {
    ($name:literal, $format:expr) => {
        kernel!(Op::Linear, Variant::Lanes, "matvec_lanes", $name, $format)
    };
}
macro_rules! norm_lanes {
    ($name:literal, $format:expr) => {
        kernel!(Op::Norm, Variant::Lanes, "norm_matvec_lanes", $name, $format)
    };
}
macro_rules! swiglu_lanes {
    ($name:literal, $format:expr) => {
        kernel!(Op::Swiglu, Variant::Lanes, "norm_swiglu_lanes", $name, $format)
    };
}

/// The formats that have every variant.
macro_rules! low_bit {
    ($op:expr, $variant:expr, $name:literal) => {
        [
            kernel!($op, $variant, $name, "q1_0", Format::Q1_0),
            kernel!($op, $variant, $name, "q2_0_g64", Format::Q2_0G64),
            kernel!($op, $variant, $name, "q2_0_g128", Format::Q2_0G128),
        ]
    };
}

/// By operation, then by format.
static LANES: [[Kernel; 10]; 3] =
    [for_each_format!(linear_lanes), for_each_format!(norm_lanes), for_each_format!(swiglu_lanes)];

/// By operation, then by variant from the second on, then by format from Q1_0 on.
static LOW_BIT: [[[Kernel; 3]; 4]; 3] = [
    [
        low_bit!(Op::Linear, Variant::Lanes4, "matvec_lanes4"),
        low_bit!(Op::Linear, Variant::Table, "matvec_table"),
        low_bit!(Op::Linear, Variant::Table4, "matvec_table4"),
        low_bit!(Op::Linear, Variant::Subgroup, "matvec_subgroup"),
    ],
    [
        low_bit!(Op::Norm, Variant::Lanes4, "norm_matvec_lanes4"),
        low_bit!(Op::Norm, Variant::Table, "norm_matvec_table"),
        low_bit!(Op::Norm, Variant::Table4, "norm_matvec_table4"),
        low_bit!(Op::Norm, Variant::Subgroup, "norm_matvec_subgroup"),
    ],
    [
        low_bit!(Op::Swiglu, Variant::Lanes4, "norm_swiglu_lanes4"),
        low_bit!(Op::Swiglu, Variant::Table, "norm_swiglu_table"),
        low_bit!(Op::Swiglu, Variant::Table4, "norm_swiglu_table4"),
        low_bit!(Op::Swiglu, Variant::Subgroup, "norm_swiglu_subgroup"),
    ],
];

/// All kernels.
pub fn kernels() -> impl Iterator<Item = &'static Kernel> {
    LANES.iter().flatten().chain(LOW_BIT.iter().flatten().flatten())
}

fn kernel(op: Op, variant: Variant, format: Format) -> Option<&'static Kernel> {
    if variant == Variant::Lanes {
        return LANES.get(op as usize)?.get(format as usize);
    }
    let low_bit = (format as usize).checked_sub(Format::Q1_0 as usize)?;
    LOW_BIT.get(op as usize)?.get(variant as usize - 1)?.get(low_bit)
}

/// `y (+)= W x`: `x` [1, K], `y` [1, N of the whole matrix]. With `accumulate` the products are
/// added to `y`, else they replace it.
pub fn matvec(x: Tensor, weight: Weight, y: Tensor, accumulate: bool) -> Result<Dispatch, ShapeError> {
    expect_shape("matvec", "x", x, 1, weight.cols)?;
    let params = Params { accumulate: u32::from(accumulate), ..params("matvec", weight, y)? };
    let mut dispatch = dispatch(Op::Linear, weight, params, &[x], y)?;
    if accumulate {
        dispatch.bytes_read += dispatch.bytes_written;
    }
    Ok(dispatch)
}

/// `y = W RMSNorm(x; norm)` of the step's last row: `x` [T, K], `norm` [1, K], `y` [1, N of the
/// whole matrix].
pub fn norm_matvec(
    x: Tensor,
    norm: Tensor,
    weight: Weight,
    y: Tensor,
    eps: f32,
) -> Result<Dispatch, ShapeError> {
    expect_shape("norm_matvec", "x", x, x.rows, weight.cols)?;
    expect_shape("norm_matvec", "norm", norm, 1, weight.cols)?;
    let params = Params { eps, ..params("norm_matvec", weight, y)? };
    dispatch(Op::Norm, weight, params, &[x, norm], y)
}

/// `y = SiLU(gate h) * up h` with `h = RMSNorm(x; norm)` of the step's last row: `x` [T, K], `norm`
/// [1, K], `weight` [2 F, K] with the rows of gate and then those of up, `y` [1, F].
pub fn norm_swiglu(
    x: Tensor,
    norm: Tensor,
    weight: Weight,
    y: Tensor,
    eps: f32,
) -> Result<Dispatch, ShapeError> {
    let name = "norm_swiglu";
    expect_shape(name, "x", x, x.rows, weight.cols)?;
    expect_shape(name, "norm", norm, 1, weight.cols)?;
    let whole = weight.row_offset == 0 && weight.rows == y.cols.saturating_mul(2);
    require(name, "rows of the matrix", weight.rows, whole, "twice the columns of y, in one shard")?;
    let params = Params { eps, ..params(name, weight, Tensor { cols: weight.rows, ..y })? };
    let mut dispatch = dispatch(Op::Swiglu, weight, params, &[x, norm], y)?;
    dispatch.bytes_written = y.n_bytes();
    Ok(dispatch)
}

fn params(name: &'static str, weight: Weight, y: Tensor) -> Result<Params, ShapeError> {
    weight.check(name)?;
    expect_shape(name, "y", y, 1, y.cols)?;
    let end = weight.row_offset.saturating_add(weight.rows);
    require(name, "end of the shard", end, end <= y.cols, "at most the columns of y")?;
    let (quants_per_row, scales_per_row) = words_per_row(weight.format, weight.cols);
    Ok(Params {
        rows: weight.rows,
        cols: weight.cols,
        row_offset: weight.row_offset,
        accumulate: 0,
        quants_per_row,
        scales_per_row,
        eps: 0.0,
        sums_per_workgroup: 0,
    })
}

/// The product in the variant that every format has.
fn dispatch(
    op: Op,
    weight: Weight,
    params: Params,
    inputs: &[Tensor],
    y: Tensor,
) -> Result<Dispatch, ShapeError> {
    let kernel = &LANES[op as usize][weight.format as usize];
    let sums = Variant::Lanes.sums_per_workgroup(1);
    let params = Params { sums_per_workgroup: sums, ..params };
    let tensors = [inputs, &[weight.quants_tensor(), weight.scales_tensor(), y]].concat();
    let workgroups = Workgroups::linear(kernel.name, u64::from(weight.rows.div_ceil(sums)))?;
    let mut dispatch = Dispatch::new(kernel, params, &tensors, workgroups);
    dispatch.weight = Some(weight);
    dispatch.bytes_written = u64::from(weight.rows) * 4;
    // One row of x, whatever the step's length, and the norm.
    dispatch.bytes_read = inputs.len() as u64 * u64::from(weight.cols) * 4 + weight.n_bytes();
    Ok(dispatch)
}

/// What one of these kernels does.
fn identify(wanted: &Kernel) -> Option<(Op, Variant, Format)> {
    let ops = Op::ALL.into_iter().flat_map(|op| Variant::ALL.map(|variant| (op, variant)));
    ops.flat_map(|(op, variant)| Format::ALL.map(|format| (op, variant, format)))
        .find(|&(op, variant, format)| kernel(op, variant, format).is_some_and(|k| std::ptr::eq(k, wanted)))
}

/// A product in general: dispatches that agree in this differ in nothing that speed depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    op: Op,
    format: Format,
    /// Rows of the matrix.
    pub rows: u32,
    /// Columns of the matrix.
    pub cols: u32,
}

impl Product {
    /// The product that a dispatch computes; `None` if it is none of these.
    pub fn of(dispatch: &Dispatch) -> Option<Self> {
        let (op, _, format) = identify(dispatch.kernel)?;
        let Params { rows, cols, .. } = bytemuck::try_pod_read_unaligned(&dispatch.params).ok()?;
        Some(Self { op, format, rows, cols })
    }

    /// Whether there is more than one way to compute it.
    pub fn has_variants(&self) -> bool {
        kernel(self.op, Variant::Subgroup, self.format).is_some()
    }

    /// Whether the two matrices store their weights alike.
    pub fn has_format_of(&self, other: &Self) -> bool {
        self.format == other.format
    }

    /// Whether the two differ in size alone.
    pub fn is_like(&self, other: &Self) -> bool {
        self.op == other.op && self.format == other.format
    }
}

impl std::fmt::Display for Product {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let op = match self.op {
            Op::Linear => "matvec",
            Op::Norm => "norm_matvec",
            Op::Swiglu => "norm_swiglu",
        };
        write!(f, "{op} {} {}x{}", self.format.name(), self.rows, self.cols)
    }
}

/// The same dispatch with the first rows of its matrix alone, for measuring.
pub fn with_rows(dispatch: &Dispatch, rows: u32) -> Option<Dispatch> {
    let mut params: Params = bytemuck::try_pod_read_unaligned(&dispatch.params).ok()?;
    params.rows = rows.clamp(2, params.rows.max(2)).min(params.rows);
    let sums = params.sums_per_workgroup.max(1);
    let workgroups = Workgroups::linear(dispatch.kernel.name, u64::from(params.rows.div_ceil(sums))).ok()?;
    Some(Dispatch { params: bytemuck::bytes_of(&params).to_vec(), workgroups, ..dispatch.clone() })
}

/// The same product by another variant; `None` if the dispatch is none of these products, or its
/// format has no such variant. `subgroup_width` is the widest subgroup that the device may use.
pub fn with_variant(dispatch: &Dispatch, variant: Variant, subgroup_width: u32) -> Option<Dispatch> {
    let (op, _, format) = identify(dispatch.kernel)?;
    let kernel = kernel(op, variant, format)?;
    let sums = variant.sums_per_workgroup(subgroup_width);
    let mut params: Params = bytemuck::try_pod_read_unaligned(&dispatch.params).ok()?;
    params.sums_per_workgroup = sums;
    let workgroups = Workgroups::linear(kernel.name, u64::from(params.rows.div_ceil(sums))).ok()?;
    let params = bytemuck::bytes_of(&params).to_vec();
    Some(Dispatch { kernel, params, workgroups, ..dispatch.clone() })
}
