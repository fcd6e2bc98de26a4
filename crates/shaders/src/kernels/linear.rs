//! A linear layer without bias: the kernel for one token or the one for many.

use super::{matmul, matvec};
use crate::kernel::{Dispatch, ShapeError, Tensor};
use crate::weights::Weight;

/// `y (+)= x W^T`: `x` [T, K], `y` [T, N of the whole matrix]. With `accumulate` the products are
/// added to `y`, else they replace it. `T` is the plan's number of rows; a plan for one row is
/// computed by `matvec`, any other by `matmul`.
pub fn linear(x: Tensor, weight: Weight, y: Tensor, accumulate: bool) -> Result<Dispatch, ShapeError> {
    match x.rows {
        1 => matvec::matvec(x, weight, y, accumulate),
        _ => matmul::matmul(x, weight, y, accumulate),
    }
}
