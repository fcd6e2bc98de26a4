use super::{Params, reference};
use crate::cpu::tiles;
use crate::kernel::Args;
use crate::weights::{Format, unpack_row};

pub(super) fn embed(args: &mut Args<'_>, format: Format) {
    if !tiles::has_tiles(format) {
        return reference::embed(args, format);
    }
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.capacity) as usize;
    let (tokens, tiled) = (args.read_u32(0), [args.read_u32(1), args.read_u32(2)]);
    for (&id, out) in tokens.iter().take(n_tokens).zip(args.write(0).chunks_exact_mut(p.cols as usize)) {
        if id >= p.row_offset && id - p.row_offset < p.rows {
            let row = (id - p.row_offset) as usize;
            let [quants, scales] = tiles::read_row(format, p.cols, [p.rows as usize, row], tiled);
            unpack_row(format, p.cols, &quants, &scales, 0, out);
        }
    }
}
