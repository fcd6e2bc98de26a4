use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::sigmoid;
use crate::kernels::attention_decode::STATISTICS;

pub(super) fn attention_merge(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let (partials, qkv) = (args.read(0), args.read(1));
    let out = args.write(0);
    let (head_dim, n_splits) = (p.head_dim as usize, p.n_splits as usize);
    let cols = head_dim + STATISTICS as usize;
    for head in 0..p.num_heads as usize {
        let rows = partials[head * n_splits * cols..][..n_splits * cols].chunks(cols);
        let used: Vec<_> = rows.filter(|row| row[head_dim + 1] != 0.0).collect();
        let mut top = f32::MIN;
        for row in &used {
            top = top.max(row[head_dim]);
        }
        let mut total = 0.0;
        let mut sums = vec![0.0; head_dim];
        for row in used {
            let shrink = (f64::from(row[head_dim]) - f64::from(top)).exp();
            total += shrink * f64::from(row[head_dim + 1]);
            for i in 0..head_dim {
                sums[i] += shrink * f64::from(row[i]);
            }
        }
        for i in 0..head_dim {
            let gate = if p.gated != 0 { sigmoid(qkv[(2 * head + 1) * head_dim + i].into()) } else { 1.0 };
            out[head * head_dim + i] = (sums[i] / total * gate) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::attention_merge::attention_merge;
    use crate::kernels::qkv::AttentionShape;

    const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// By hand: splits with maxima 0 and ln 3 count 1 to 3, an empty one not at all whatever else it
    /// holds; gates of ln 3 and -ln 3 let three quarters and one quarter through.
    #[test]
    fn two_splits_and_an_empty_one_by_hand() {
        let ln3 = 3f32.ln();
        let shape = AttentionShape { num_heads: 1, num_kv_heads: 1, head_dim: 4, gated: true };
        let mut c = CaseBuilder::new(1);
        let rows = [
            [4.0, 0.0, 1.0, 2.0, 0.0, 2.0],
            [f32::NAN, 1e9, 1e9, 1e9, 1e9, 0.0],
            [0.0, 4.0, 1.0, 2.0, ln3, 1.0],
        ];
        let partials = c.values(3, 6, &rows.concat());
        let qkv = c.values(1, 16, &[[9.0; 4], [ln3, -ln3, 0.0, 1e4], [9.0; 4], [9.0; 4]].concat());
        let out = c.output(1, 4);
        let case = c.finish("hand", attention_merge(partials, qkv, out, shape), TOLERANCE).unwrap();
        // The sums of weights are 1 * 2 + 3 * 1.
        let expected = [4.0 / 5.0 * 0.75, 12.0 / 5.0 * 0.25, 4.0 / 5.0 * 0.5, 8.0 / 5.0];
        for (bits, expected) in run_reference(&case).0[2].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-6, "{actual}, not {expected}");
        }
        assert!(attention_merge(out, qkv, out, shape).is_err());
        assert!(attention_merge(partials, out, out, shape).is_err());
        assert!(attention_merge(partials, qkv, qkv, shape).is_err());
    }
}
