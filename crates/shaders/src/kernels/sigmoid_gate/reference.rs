use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::sigmoid;

pub(super) fn sigmoid_gate(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let qg = args.read(0);
    let x = args.write(0);
    let (cols, head_dim) = (p.cols as usize, p.head_dim as usize);
    for token in 0..n_tokens {
        for head in 0..cols / head_dim {
            for i in 0..head_dim {
                let gate =
                    qg[token * p.stride as usize + p.first as usize + head * 2 * head_dim + head_dim + i];
                let v = &mut x[token * cols + head * head_dim + i];
                *v = (f64::from(*v) * sigmoid(f64::from(gate))) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::sigmoid_gate::sigmoid_gate;

    /// By hand: the gates are the second half of each head, not of the row.
    #[test]
    fn each_head_is_followed_by_its_gate() {
        let ln3 = 3f32.ln();
        let mut c = CaseBuilder::new(1);
        let x = c.values(1, 4, &[4.0, 8.0, -4.0, 16.0]);
        let qg = c.values(1, 8, &[9.0, 9.0, ln3, -ln3, 9.0, 9.0, 0.0, 1e4]);
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        let case = c.finish("hand", sigmoid_gate(x, qg, 2), exact).unwrap();
        let expected = [3.0, 2.0, -2.0, 16.0];
        for (bits, expected) in run_reference(&case).0[0].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-6, "{actual}, not {expected}");
        }
        assert!(sigmoid_gate(x, qg, 3).is_err());
        assert!(sigmoid_gate(x, qg, 0).is_err());
        assert!(sigmoid_gate(x, x, 2).is_err());
    }
}
