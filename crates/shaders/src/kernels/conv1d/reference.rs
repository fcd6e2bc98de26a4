use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::silu;

pub(super) fn conv1d(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (u, weight) = (args.read(0), args.read(1));
    let (channels, taps) = (p.channels as usize, p.taps as usize);
    let mut window = args.write(0).to_vec();
    for t in 0..n_tokens {
        window.extend(&u[t * p.stride as usize + p.first as usize..][..channels]);
    }
    let y = args.write(1);
    for t in 0..n_tokens {
        for c in 0..channels {
            let mut sum = 0.0;
            for j in 0..taps {
                sum += f64::from(weight[c * taps + j]) * f64::from(window[(t + j) * channels + c]);
            }
            y[t * channels + c] = silu(sum) as f32;
        }
    }
    args.write(0).copy_from_slice(&window[n_tokens * channels..]);
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::conv1d::conv1d;

    /// Taps, inputs and sums before SiLU computed apart from this code, in steps of one, two and
    /// two tokens: the first two are shorter than the state.
    #[test]
    fn known_sums_however_the_tokens_are_cut() {
        let inputs = [1.0, 2.0, -1.0, 0.5, 3.0];
        let sums: [f64; 5] = [0.5, 1.3, -0.1, -0.35, 2.05];
        let mut history = vec![0.0; 3];
        let mut at = 0;
        for n in [1, 2, 2] {
            let mut c = CaseBuilder::new(1);
            c.state.n_tokens = n as u32;
            let u = c.values(n as u32, 1, &inputs[at..at + n]);
            let weight = c.values(1, 4, &[0.1, -0.2, 0.3, 0.5]);
            let state = c.values(3, 1, &history);
            let y = c.output(n as u32, 1);
            let exact = Tolerance { absolute: 0.0, relative: 0.0 };
            let case = c.finish("known", conv1d(u, weight, state, y), exact).unwrap();
            let (buffers, _) = run_reference(&case);
            for t in 0..n {
                let sum = sums[at + t];
                let expected = sum / (1.0 + (-sum).exp());
                let actual = f64::from(f32::from_bits(buffers[3][t]));
                assert!((actual - expected).abs() < 1e-7, "token {}: {actual}, not {expected}", at + t);
            }
            history = buffers[2].iter().map(|&b| f32::from_bits(b)).collect();
            at += n;
        }
        assert_eq!(history, [-1.0, 0.5, 3.0]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let (u, y) = (c.output(2, 6), c.output(2, 6));
        let (weight, state) = (c.output(6, 3), c.output(2, 6));
        assert!(conv1d(u, weight, state, y).is_ok());
        assert!(conv1d(u, weight, y, weight).is_err());
        let (one, five, long) = (c.output(6, 1), c.output(6, 5), c.output(3, 6));
        assert!(conv1d(u, one, state, y).is_err());
        assert!(conv1d(u, five, state, y).is_err());
        assert!(conv1d(u, weight, long, y).is_err());
    }
}
