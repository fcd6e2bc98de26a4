use super::Params;
use crate::kernel::Args;
use crate::weights::{Format, unpack_row};

pub(super) fn embed(args: &mut Args<'_>, format: Format) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.capacity) as usize;
    let (tokens, quants, scales) = (args.read_u32(0), args.read_u32(1), args.read_u32(2));
    let out = args.write(0);
    let cols = p.cols as usize;
    for t in 0..n_tokens {
        let id = tokens[t];
        if id >= p.row_offset && id - p.row_offset < p.rows {
            let row = (id - p.row_offset) as usize;
            unpack_row(format, p.cols, quants, scales, row, &mut out[t * cols..(t + 1) * cols]);
        }
    }
}
