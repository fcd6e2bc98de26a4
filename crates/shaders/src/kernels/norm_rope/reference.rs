use super::Params;
use crate::kernel::Args;

pub(super) fn norm_rope(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (n_tokens, first_position) = (args.state.n_tokens.min(p.rows), args.state.position);
    let (x, weight, rope) = (args.read(0), args.read(1), args.read(2));
    let out = args.write(0);
    let (heads, head_dim, stride) = (p.heads as usize, p.head_dim as usize, p.stride as usize);
    let n_rot = p.n_rot as usize;
    let n_pairs = n_rot / 2;
    let context = p.context as usize;
    for token in 0..n_tokens as usize {
        let position = first_position as usize + token;
        if position >= context {
            continue;
        }
        let angles = &rope[position * n_rot..(position + 1) * n_rot];
        let dest_row = if p.at_position != 0 { position } else { token };
        for head in 0..heads {
            let source = token * p.x_cols as usize + p.first as usize + head * stride;
            let x = &x[source..source + head_dim];
            let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / head_dim as f64;
            let scale = 1.0 / (mean + f64::from(p.eps)).sqrt();
            let normed = |i: usize| f64::from(x[i]) * scale * f64::from(weight[i]);
            let dest = (dest_row * heads + head) * head_dim;
            for i in 0..n_pairs {
                let (cos, sin) = (f64::from(angles[i]), f64::from(angles[n_pairs + i]));
                let (a, b) = (normed(i), normed(n_pairs + i));
                out[dest + i] = (a * cos - b * sin) as f32;
                out[dest + n_pairs + i] = (a * sin + b * cos) as f32;
            }
            for i in n_rot..head_dim {
                out[dest + i] = normed(i) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::norm_rope::{HeadShape, norm_rope};

    const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// Angles at position 5 of a model with 64 rotating dimensions of 256 and theta 1e7, computed
    /// apart from this code. A head whose only large element is dimension 0, 1, 10, 20 or 31 turns
    /// into (cos a, sin a) at that dimension and its partner 32 above.
    #[test]
    fn partners_and_angles_of_a_partly_rotated_head() {
        let spots =
            [(0, 5.0), (1, 3.021_481_951_190_664_5), (10, 0.032_469_081_577_8), (20, 2.108_482_517_14e-4)];
        for (pair, angle) in spots {
            let mut c = CaseBuilder::new(1);
            c.state.position = 5;
            let mut x = vec![0.0; 256];
            // With this the root mean square of the head is 1/16, so that the norm yields 16 / 16.
            x[pair] = 1.0;
            let x = c.values(1, 256, &x);
            let weight = c.values(1, 256, &[1.0 / 16.0; 256]);
            let table: Vec<f32> = (0..6)
                .flat_map(|position| {
                    let angle = move |i: i32| f64::from(position) * 1e7f64.powf(f64::from(-2 * i) / 64.0);
                    let cosines = (0..32).map(move |i| angle(i).cos() as f32);
                    cosines.chain((0..32).map(move |i| angle(i).sin() as f32))
                })
                .collect();
            let rope = c.values(6, 64, &table);
            let out = c.output(1, 256);
            let shape = HeadShape { heads: 1, head_dim: 256, stride: 256, n_rot: 64 };
            let case = c.finish("spot", norm_rope(x, weight, rope, out, shape, 0.0, false), TOLERANCE);
            let (buffers, _) = run_reference(&case.unwrap());
            let angle: f64 = angle;
            for (i, &bits) in buffers[3].iter().enumerate() {
                let expected = match i {
                    _ if i == pair => angle.cos(),
                    _ if i == pair + 32 => angle.sin(),
                    _ => 0.0,
                };
                let actual = f64::from(f32::from_bits(bits));
                assert!(
                    (actual - expected).abs() < 1e-7,
                    "pair {pair}, element {i}: {actual} not {expected}"
                );
            }
        }
    }

    /// By hand: the head (3, 4, 0, 0) has mean square 25/4, so the norm with weights
    /// (1, 1, 1, 1) gives (1.2, 1.6, 0, 0); a quarter turn of the pair (0, 1) gives (-1.6, 1.2).
    #[test]
    fn a_quarter_turn_by_hand_at_its_row_of_the_cache() {
        let mut c = CaseBuilder::new(1);
        c.state.position = 1;
        let x = c.values(1, 8, &[3.0, 4.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0]);
        let weight = c.values(1, 4, &[1.0; 4]);
        let rope = c.values(2, 2, &[1.0, 0.0, 0.0, 1.0]);
        let cache = c.values(3, 4, &[7.0; 12]);
        let shape = HeadShape { heads: 1, head_dim: 4, stride: 8, n_rot: 2 };
        let case = c.finish("hand", norm_rope(x, weight, rope, cache, shape, 0.0, true), TOLERANCE);
        let (buffers, _) = run_reference(&case.unwrap());
        let out: Vec<f32> = buffers[3].iter().map(|&b| f32::from_bits(b)).collect();
        assert_eq!(out, [7.0, 7.0, 7.0, 7.0, -1.6, 1.2, 0.0, 0.0, 7.0, 7.0, 7.0, 7.0]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let x = c.random(2, 24, 1.0);
        let weight = c.random(1, 12, 1.0);
        let rope = c.random(4, 6, 1.0);
        let out = c.output(2, 24);
        let shape = HeadShape { heads: 2, head_dim: 12, stride: 12, n_rot: 6 };
        assert!(norm_rope(x, weight, rope, out, shape, 0.0, false).is_ok());
        for bad in [
            HeadShape { heads: 0, ..shape },
            HeadShape { heads: 3, ..shape },
            HeadShape { stride: 11, ..shape },
            HeadShape { head_dim: 11, ..shape },
            HeadShape { n_rot: 5, ..shape },
            HeadShape { n_rot: 0, ..shape },
            HeadShape { n_rot: 14, ..shape },
        ] {
            assert!(norm_rope(x, weight, rope, out, bad, 0.0, false).is_err(), "{bad:?}");
        }
        let cache = c.output(9, 24);
        assert!(norm_rope(x, weight, rope, cache, shape, 0.0, true).is_ok());
        assert!(norm_rope(x, weight, rope, cache, shape, 0.0, false).is_err());
    }
}
