use super::Params;
use crate::kernel::Args;

pub(super) fn l2_norm(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let y = args.write(0);
    let (cols, key_heads, head_dim) = (p.cols as usize, p.key_heads as usize, p.head_dim as usize);
    for token in 0..n_tokens {
        for head in 0..2 * key_heads {
            let base = token * cols + head * head_dim;
            let mut sum = 0.0;
            for i in 0..head_dim {
                sum += f64::from(y[base + i]) * f64::from(y[base + i]);
            }
            let mut scale = 1.0 / (sum + f64::from(p.eps)).sqrt();
            if head < key_heads {
                scale /= (head_dim as f64).sqrt();
            }
            for i in 0..head_dim {
                y[base + i] = (f64::from(y[base + i]) * scale) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::l2_norm::l2_norm;

    /// The head's sum of squares is 5.25e-6: an eps of 1e-6 outside the root, or on the mean,
    /// would show. Queries are divided by sqrt(4) in addition, the value stays.
    #[test]
    fn eps_counts_inside_the_root_and_queries_are_scaled() {
        let head = [0.001, -0.002, 0.0005, 0.0];
        let mut c = CaseBuilder::new(1);
        let y = c.values(1, 9, &[&head[..], &head[..], &[7.0]].concat());
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        assert!(l2_norm(y, 1, 5, 0.0).is_err());
        assert!(l2_norm(y, 0, 4, 0.0).is_err());
        assert!(l2_norm(y, 1, 0, 0.0).is_err());
        let case = c.finish("known", l2_norm(y, 1, 4, 1e-6), exact).unwrap();
        let expected = [0.2, -0.4, 0.1, 0.0, 0.4, -0.8, 0.2, 0.0, 7.0];
        for (bits, expected) in run_reference(&case).0[0].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-7, "{actual}, not {expected}");
        }
    }
}
