use super::Params;
use crate::cpu::Activations;
use crate::cpu::products::Matrix;
use crate::kernel::Args;
use crate::weights::Format;

pub(super) fn matmul(args: &mut Args<'_>, format: Format, activations: Activations) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.capacity) as usize;
    let (rows, cols) = (p.rows as usize, p.cols as usize);
    let (x, quants, scales) = (args.read(0), args.read_u32(1), args.read_u32(2));
    let y = args.write(0);
    let matrix = Matrix { format, rows, cols, quants, scales };
    matrix.multiply(&x[..n_tokens * cols], activations, |token, row, sums| {
        let at = token * p.y_cols as usize + p.row_offset as usize + row;
        store(&mut y[at..at + sums.len()], sums, p.accumulate != 0);
    });
}

/// Adds the products to `y`, or puts them there.
pub(in crate::kernels) fn store(y: &mut [f32], sums: &[f32], accumulate: bool) {
    if accumulate {
        for (y, sum) in y.iter_mut().zip(sums) {
            *y += sum;
        }
    } else {
        y.copy_from_slice(sums);
    }
}
