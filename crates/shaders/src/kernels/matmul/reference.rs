use super::Params;
use crate::kernel::Args;
use crate::weights::{Format, unpack_row};

pub(super) fn matmul(args: &mut Args<'_>, format: Format) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.capacity) as usize;
    let (x, quants, scales) = (args.read(0), args.read_u32(1), args.read_u32(2));
    let y = args.write(0);
    let cols = p.cols as usize;
    let mut w = vec![0.0; cols];
    for o in 0..p.rows as usize {
        unpack_row(format, p.cols, quants, scales, o, &mut w);
        for t in 0..n_tokens {
            let x = &x[t * cols..(t + 1) * cols];
            let mut sum = 0.0;
            for k in 0..cols {
                sum += f64::from(w[k]) * f64::from(x[k]);
            }
            let at = t * p.y_cols as usize + p.row_offset as usize + o;
            if p.accumulate != 0 {
                sum += f64::from(y[at]);
            }
            y[at] = sum as f32;
        }
    }
}
