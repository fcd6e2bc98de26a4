use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::silu;

pub(super) fn silu_mul(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (gate, up) = (args.read(0), args.read(1));
    let out = args.write(0);
    for i in 0..n_tokens * p.cols as usize {
        out[i] = (silu(f64::from(gate[i])) * f64::from(up[i])) as f32;
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::silu_mul::silu_mul;

    /// By hand: SiLU(ln 3) = 3/4 ln 3, SiLU(-ln 3) = -1/4 ln 3, SiLU(1e4) = 1e4, SiLU(-1e4) = 0.
    #[test]
    fn known_products() {
        let ln3 = 3f32.ln();
        let mut c = CaseBuilder::new(1);
        let gate = c.values(1, 4, &[ln3, -ln3, 1e4, -1e4]);
        let up = c.values(1, 4, &[4.0, 4.0, -2.0, 3.0]);
        let out = c.output(1, 4);
        let wider = c.output(1, 5);
        assert!(silu_mul(wider, up, out).is_err());
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        let case = c.finish("hand", silu_mul(gate, up, out), exact).unwrap();
        let expected = [3.0 * ln3, -ln3, -2e4, 0.0];
        for (bits, expected) in run_reference(&case).0[2].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-6, "{actual}, not {expected}");
        }
    }
}
