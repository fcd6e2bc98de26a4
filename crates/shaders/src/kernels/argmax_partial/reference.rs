use super::{Params, order_key};
use crate::kernel::Args;

pub(super) fn argmax_partial(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let logits = args.read(0);
    let partials = args.write_u32(0);
    let groups = p.groups as usize;
    for row in partials[..groups * 4].chunks_exact_mut(4) {
        row.copy_from_slice(&[0, u32::MAX, u32::MAX, 0]);
    }
    for (i, logit) in logits[..p.n_valid as usize].iter().enumerate() {
        let row = &mut partials[i / 64 % groups * 4..][..4];
        if !logit.is_finite() {
            row[3] += 1;
            continue;
        }
        let key = order_key(logit.to_bits());
        if key > row[0] {
            row[0] = key;
            row[1] = i as u32;
        }
        row[2] = row[2].min(key);
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::argmax_partial::{argmax_partial, key_value};

    /// 130 logits in two shares: 0..64 with 128..130, and 64..128. Id 130 is padding.
    #[test]
    fn shares_by_hand() {
        let mut logits = vec![0.5; 131];
        logits[3] = -7.0;
        logits[9] = f32::NAN;
        logits[10] = f32::INFINITY;
        logits[40] = 2.0;
        logits[129] = 2.0;
        logits[100] = -0.25;
        logits[130] = 99.0;
        let mut c = CaseBuilder::new(1);
        let logits = c.values(1, 131, &logits);
        let partials = c.words(2, 4, vec![9; 8]);
        assert!(argmax_partial(logits, partials, 0).is_err());
        assert!(argmax_partial(logits, partials, 132).is_err());
        assert!(argmax_partial(partials, partials, 1).is_err());
        assert!(argmax_partial(logits, logits, 1).is_err());
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        let case = c.finish("hand", argmax_partial(logits, partials, 130), exact).unwrap();
        let found = &run_reference(&case).0[1];
        assert_eq!((key_value(found[0]), found[1], key_value(found[2]), found[3]), (2.0, 40, -7.0, 2));
        assert_eq!((key_value(found[4]), found[5], key_value(found[6]), found[7]), (0.5, 64, -0.25, 0));
    }
}
