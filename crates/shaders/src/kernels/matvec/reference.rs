use super::Params;
use crate::kernel::Args;
use crate::weights::{Format, unpack_row};

pub(super) fn matvec(args: &mut Args<'_>, format: Format) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let (x, quants, scales) = (args.read(0), args.read_u32(1), args.read_u32(2));
    let y = args.write(0);
    let mut w = vec![0.0; p.cols as usize];
    for o in 0..p.rows as usize {
        unpack_row(format, p.cols, quants, scales, o, &mut w);
        let mut sum = 0.0;
        for k in 0..w.len() {
            sum += f64::from(w[k]) * f64::from(x[k]);
        }
        let at = p.row_offset as usize + o;
        if p.accumulate != 0 {
            sum += f64::from(y[at]);
        }
        y[at] = sum as f32;
    }
}
