use super::{Op, Params};
use crate::kernel::Args;
use crate::kernels::activation::silu;
use crate::weights::{Format, unpack_row};

pub(super) fn product(args: &mut Args<'_>, op: Op, format: Format) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let cols = p.cols as usize;
    let (input, quants, scales) = match op {
        Op::Linear => {
            let x = args.read(0).iter().take(cols).map(|&v| f64::from(v)).collect();
            (x, args.read_u32(1), args.read_u32(2))
        }
        Op::Norm | Op::Swiglu => {
            let last = (args.state.n_tokens as usize - 1) * cols;
            let input = rms_norm(&args.read(0)[last..last + cols], args.read(1), p.eps);
            (input, args.read_u32(2), args.read_u32(3))
        }
    };
    let mut weights = vec![0.0; cols];
    let mut sum = |row: usize| {
        unpack_row(format, p.cols, quants, scales, row, &mut weights);
        weights.iter().zip(&input).map(|(&w, x)| f64::from(w) * x).sum::<f64>()
    };
    let y = args.write(0);
    match op {
        Op::Linear | Op::Norm => {
            for o in 0..p.rows as usize {
                let at = p.row_offset as usize + o;
                let before = if p.accumulate != 0 { f64::from(y[at]) } else { 0.0 };
                y[at] = (before + sum(o)) as f32;
            }
        }
        Op::Swiglu => {
            let n = p.rows as usize / 2;
            for (o, y) in y.iter_mut().enumerate().take(n) {
                *y = (silu(sum(o)) * sum(n + o)) as f32;
            }
        }
    }
}

fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let square: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let factor = 1.0 / (square / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(&v, &w)| f64::from(v) * factor * f64::from(w)).collect()
}
