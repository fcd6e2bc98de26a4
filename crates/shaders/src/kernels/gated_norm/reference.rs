use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::silu;

pub(super) fn gated_norm(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (o, z, weight) = (args.read(0), args.read(1), args.read(2));
    let out = args.write(0);
    let (num_heads, head_dim) = (p.num_heads as usize, p.head_dim as usize);
    for head in 0..n_tokens * num_heads {
        let base = head * head_dim;
        let (token, index) = (head / num_heads, head % num_heads);
        let gates = token * p.z_stride as usize + p.z_first as usize + index * head_dim;
        let mut sum = 0.0;
        for i in 0..head_dim {
            sum += f64::from(o[base + i]) * f64::from(o[base + i]);
        }
        let scale = 1.0 / (sum / head_dim as f64 + f64::from(p.eps)).sqrt();
        for i in 0..head_dim {
            let normed = f64::from(o[base + i]) * scale * f64::from(weight[i]);
            out[base + i] = (normed * silu(f64::from(z[gates + i]))) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::gated_norm::gated_norm;

    /// By hand: (3, 4) has mean square 12.5, to which eps adds 3.125; SiLU(ln 3) = 3/4 ln 3 and SiLU(-ln 3) = -1/4 ln 3.
    #[test]
    fn norm_then_gate_by_hand() {
        let ln3 = 3f32.ln();
        let mut c = CaseBuilder::new(1);
        let o = c.values(1, 4, &[3.0, 4.0, 0.0, 0.0]);
        let z = c.values(1, 4, &[ln3, -ln3, 5.0, 5.0]);
        let weight = c.values(1, 2, &[2.0, 10.0]);
        let out = c.output(1, 4);
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        assert!(gated_norm(o, z, weight, out, 3, 0.0).is_err());
        assert!(gated_norm(o, z, weight, out, 0, 0.0).is_err());
        assert!(gated_norm(o, weight, weight, out, 2, 0.0).is_err());
        let case = c.finish("hand", gated_norm(o, z, weight, out, 2, 3.125), exact).unwrap();
        // sqrt(12.5 + 3.125) = sqrt(15.625); 3 * 2 * 3/4 = 4.5 and 4 * 10 / -4 = -10.
        let root = 15.625f32.sqrt();
        let expected = [4.5 * ln3 / root, -10.0 * ln3 / root, 0.0, 0.0];
        for (bits, expected) in run_reference(&case).0[3].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-6, "{actual}, not {expected}");
        }
    }
}
