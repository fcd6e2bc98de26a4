use super::Params;
use crate::kernel::Args;

pub(super) fn rms_norm(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (x, weight) = (args.read(0), args.read(1));
    let out = args.write(0);
    let cols = p.cols as usize;
    for row in 0..n_tokens {
        let x = &x[row * cols..(row + 1) * cols];
        let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / cols as f64;
        let scale = 1.0 / (mean + f64::from(p.eps)).sqrt();
        for i in 0..cols {
            out[row * cols + i] = (f64::from(x[i]) * scale * f64::from(weight[i])) as f32;
        }
    }
}
