use super::Params;
use crate::kernel::Args;

pub(super) fn rms_norm(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens as usize;
    let (x, weight) = (args.read(0), args.read(1));
    let out = args.write(0);
    let cols = p.cols as usize;
    let last_only = p.last_only != 0;
    let n_rows = if last_only { n_tokens.min(1) } else { n_tokens.min(p.rows as usize) };
    for row in 0..n_rows {
        let from = if last_only { n_tokens - 1 } else { row };
        let x = &x[from * cols..(from + 1) * cols];
        let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / cols as f64;
        let scale = 1.0 / (mean + f64::from(p.eps)).sqrt();
        for i in 0..cols {
            out[row * cols + i] = (f64::from(x[i]) * scale * f64::from(weight[i])) as f32;
        }
    }
}
