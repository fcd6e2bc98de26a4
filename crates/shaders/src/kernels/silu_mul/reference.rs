use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::silu;

pub(super) fn silu_mul(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let gate_up = args.read(0);
    let out = args.write(0);
    let cols = p.cols as usize;
    for (i, out) in out.iter_mut().enumerate().take(n_tokens * cols) {
        let gate = i + i / cols * cols;
        *out = (silu(f64::from(gate_up[gate])) * f64::from(gate_up[gate + cols])) as f32;
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
        let gate_up = c.values(1, 8, &[ln3, -ln3, 1e4, -1e4, 4.0, 4.0, -2.0, 3.0]);
        let out = c.output(1, 4);
        let wider = c.output(1, 5);
        assert!(silu_mul(gate_up, wider).is_err());
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        let case = c.finish("hand", silu_mul(gate_up, out), exact).unwrap();
        let expected = [3.0 * ln3, -ln3, -2e4, 0.0];
        for (bits, expected) in run_reference(&case).0[1].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-6, "{actual}, not {expected}");
        }
    }
}
