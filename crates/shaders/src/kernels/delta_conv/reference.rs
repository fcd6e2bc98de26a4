use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::silu;
use crate::kernels::delta_step::RING_ROWS;

pub(super) fn delta_conv(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let position = args.state.position as usize;
    let (u, weight) = (args.read(0), args.read(1));
    let (channels, taps, head_dim) = (p.channels as usize, p.taps as usize, p.head_dim as usize);
    let input = |t: usize| &u[t * p.u_stride as usize + p.u_first as usize..][..channels];
    // The inputs of positions before this step, and then those of the step.
    let mut window = Vec::new();
    for back in (1..RING_ROWS as usize).rev() {
        let row = (position + RING_ROWS as usize - back) % RING_ROWS as usize;
        window.push(args.write(0)[row * channels..(row + 1) * channels].to_vec());
    }
    window.extend((0..n_tokens).map(|t| input(t).to_vec()));
    let y = args.write(1);
    for t in 0..n_tokens {
        let mut row = vec![0.0; channels];
        for c in 0..channels {
            let mut sum = 0.0;
            for j in 0..taps {
                sum += f64::from(weight[c * taps + j]) * f64::from(window[t + 4 - taps + j][c]);
            }
            row[c] = silu(sum);
        }
        for head in 0..2 * p.key_heads as usize {
            let head_row = &mut row[head * head_dim..(head + 1) * head_dim];
            let mut sum = 0.0;
            for a in &*head_row {
                sum += a * a;
            }
            let mut scale = 1.0 / (sum + f64::from(p.eps)).sqrt();
            if head < p.key_heads as usize {
                scale /= (head_dim as f64).sqrt();
            }
            for a in head_row {
                *a *= scale;
            }
        }
        for c in 0..channels {
            y[t * channels + c] = row[c] as f32;
        }
    }
    let ring = args.write(0);
    for t in n_tokens.saturating_sub(RING_ROWS as usize)..n_tokens {
        let row = (position + t) % RING_ROWS as usize;
        ring[row * channels..(row + 1) * channels].copy_from_slice(input(t));
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::delta_conv::delta_conv;
    use crate::kernels::delta_net::DeltaShape;

    const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// One query, one key and one value channel.
    const SCALAR: DeltaShape =
        DeltaShape { num_key_heads: 1, num_value_heads: 1, key_head_dim: 1, value_head_dim: 1 };

    /// Taps, inputs and sums before SiLU computed apart from this code, in steps of one, two and
    /// two tokens from position 0: the first two are shorter than the ring. The value channel is
    /// not normed; the others have an input of zero.
    #[test]
    fn known_sums_however_the_tokens_are_cut() {
        let inputs = [1.0, 2.0, -1.0, 0.5, 3.0];
        let sums: [f64; 5] = [0.5, 1.3, -0.1, -0.35, 2.05];
        let mut history = vec![0.0; 12];
        let mut at = 0;
        for n in [1, 2, 2] {
            let mut c = CaseBuilder::new(1);
            (c.state.n_tokens, c.state.position) = (n as u32, at as u32);
            let rows: Vec<f32> = inputs[at..at + n].iter().flat_map(|&u| [7.0, 0.0, 0.0, u]).collect();
            let u = c.values(n as u32, 4, &rows);
            let taps = [0.1, -0.2, 0.3, 0.5];
            let weight = c.values(3, 4, &[taps, taps, taps].concat());
            let ring = c.values(4, 3, &history);
            let y = c.output(n as u32, 3);
            let dispatch = delta_conv(u.columns(1, 3), weight, ring, y, SCALAR, 1e-6);
            let (buffers, _) = run_reference(&c.finish("known", dispatch, EXACT).unwrap());
            for t in 0..n {
                let sum = sums[at + t];
                let expected = sum / (1.0 + (-sum).exp());
                let actual = f64::from(f32::from_bits(buffers[3][3 * t + 2]));
                assert!((actual - expected).abs() < 1e-7, "token {}: {actual}, not {expected}", at + t);
            }
            history = buffers[2].iter().map(|&b| f32::from_bits(b)).collect();
            at += n;
        }
        // Positions 4, 1, 2 and 3.
        let values: Vec<f32> = history.iter().skip(2).step_by(3).copied().collect();
        assert_eq!(values, [3.0, 2.0, -1.0, 0.5]);
    }

    /// The sum of squares of the head after SiLU is 5.25e-6: an eps of 1e-6 outside the root, or on
    /// the mean, would show. Queries are divided by sqrt(4) in addition, values stay.
    #[test]
    fn eps_counts_inside_the_root_and_queries_are_scaled() {
        // SiLU(x) = x / 2 + x^2 / 4 for small x: the inputs that give these numbers.
        let head = [0.001, -0.002, 0.0005, 0.0].map(|a: f64| (2.0 * a - 2.0 * a * a) as f32);
        let mut c = CaseBuilder::new(1);
        let u = c.values(1, 9, &[&head[..], &head[..], &[700.0]].concat());
        let weight = c.values(9, 2, &[0.0, 1.0].repeat(9));
        let (ring, y) = (c.values(4, 9, &[0.0; 36]), c.output(1, 9));
        let shape = DeltaShape { key_head_dim: 4, ..SCALAR };
        let case = c.finish("known", delta_conv(u, weight, ring, y, shape, 1e-6), EXACT).unwrap();
        let expected = [0.2, -0.4, 0.1, 0.0, 0.4, -0.8, 0.2, 0.0, 700.0];
        for (bits, expected) in run_reference(&case).0[3].iter().zip(expected) {
            let actual = f32::from_bits(*bits);
            assert!((actual - expected).abs() < 1e-5, "{actual}, not {expected}");
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let shape = DeltaShape { num_key_heads: 1, num_value_heads: 2, key_head_dim: 2, value_head_dim: 1 };
        let (u, y) = (c.output(2, 6), c.output(2, 6));
        let (weight, ring) = (c.output(6, 3), c.output(4, 6));
        assert!(delta_conv(u, weight, ring, y, shape, 0.0).is_ok());
        assert!(delta_conv(u, weight, y, weight, shape, 0.0).is_err());
        assert!(delta_conv(u, weight, ring, ring, shape, 0.0).is_err());
        assert!(delta_conv(u.columns(1, 5), weight, ring, y, shape, 0.0).is_err());
        let (one, five, short) = (c.output(6, 1), c.output(6, 5), c.output(3, 6));
        assert!(delta_conv(u, one, ring, y, shape, 0.0).is_err());
        assert!(delta_conv(u, five, ring, y, shape, 0.0).is_err());
        assert!(delta_conv(u, weight, short, y, shape, 0.0).is_err());
        assert!(delta_conv(u, weight, ring, y, DeltaShape { key_head_dim: 0, ..shape }, 0.0).is_err());
    }
}
