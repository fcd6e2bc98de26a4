use super::{Op, Params};
use crate::cpu::products::Matrix;
use crate::cpu::{Activations, lanes};
use crate::kernel::Args;
use crate::kernels::matmul::store;
use crate::weights::Format;

pub(super) fn product(args: &mut Args<'_>, op: Op, format: Format, activations: Activations) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let (rows, cols) = (p.rows as usize, p.cols as usize);
    let x = args.read(0);
    let normed;
    let (input, first) = match op {
        Op::Linear => (&x[..cols], 1),
        Op::Norm | Op::Swiglu => {
            let last = (args.state.n_tokens as usize - 1) * cols;
            let x = &x[last..last + cols];
            let factor = lanes::rms_factor(x, p.eps);
            normed = x.iter().zip(args.read(1)).map(|(x, norm)| x * factor * norm).collect::<Vec<f32>>();
            (normed.as_slice(), 2)
        }
    };
    let matrix =
        Matrix { format, rows, cols, quants: args.read_u32(first), scales: args.read_u32(first + 1) };
    let y = args.write(0);
    match op {
        Op::Linear | Op::Norm => {
            let y = &mut y[p.row_offset as usize..];
            matrix.multiply(input, activations, |_, row, sums| {
                store(&mut y[row..row + sums.len()], sums, p.accumulate != 0);
            });
        }
        Op::Swiglu => {
            let mut products = vec![0.0; rows];
            matrix.multiply(input, activations, |_, row, sums| {
                products[row..row + sums.len()].copy_from_slice(sums);
            });
            let (gate, up) = products.split_at(rows / 2);
            for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                *y = lanes::silu(*gate) * up;
            }
        }
    }
}
