use super::Params;
use crate::kernel::Args;

pub(super) fn append_rows(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (n_tokens, position) = (args.state.n_tokens.min(p.rows) as usize, args.state.position as usize);
    let x = args.read(0);
    let cache = args.write(0);
    let cols = p.cols as usize;
    for token in 0..n_tokens {
        let row = position + token;
        if row < p.context as usize {
            cache[row * cols..(row + 1) * cols]
                .copy_from_slice(&x[token * p.stride as usize + p.first as usize..][..cols]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::append_rows::append_rows;

    #[test]
    fn rows_land_behind_the_position_and_never_past_the_end() {
        let mut c = CaseBuilder::new(1);
        c.state.position = 2;
        c.state.n_tokens = 3;
        let x = c.words(3, 2, vec![1, 2, 3, 4, 5, 6]);
        let cache = c.words(4, 2, vec![9; 8]);
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        let case = c.finish("hand", append_rows(x, cache), exact).unwrap();
        assert_eq!(run_reference(&case).0[1], [9, 9, 9, 9, 1, 2, 3, 4]);
    }

    #[test]
    fn widths_must_agree() {
        let mut c = CaseBuilder::new(1);
        let (x, cache) = (c.output(3, 2), c.output(4, 3));
        assert!(append_rows(x, cache).is_err());
    }
}
