use super::{CHUNK, Params};
use crate::kernel::Args;
use crate::kernels::activation::{sigmoid, softplus};

pub(super) fn delta_chunk(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (y, alpha, beta) = (args.read(0), args.read(1), args.read(2));
    let (ssm_a, dt_bias) = (args.read(3), args.read(4));
    let (key_heads, value_heads, dk) = (p.key_heads as usize, p.value_heads as usize, p.key_dim as usize);
    const N: usize = CHUNK as usize;
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let mut sum = 0.0;
        for i in 0..dk {
            sum += f64::from(a[i]) * f64::from(b[i]);
        }
        sum
    };
    for first in (0..n_tokens).step_by(N) {
        let n = (n_tokens - first).min(N);
        for head in 0..value_heads {
            let key_head = head % key_heads;
            let query = |i: usize| &y[(first + i) * p.y_cols as usize + key_head * dk..][..dk];
            let key = |i: usize| &y[(first + i) * p.y_cols as usize + (key_heads + key_head) * dk..][..dk];
            let gate = |x: &[f32], i: usize, column: u32| {
                f64::from(x[(first + i) * p.gates_stride as usize + column as usize + head])
            };
            let (mut g, mut b) = ([0.0; N], [0.0; N]);
            for i in 0..n {
                let a = gate(alpha, i, p.alpha_first) + f64::from(dt_bias[head]);
                g[i] = f64::from(ssm_a[head]) * softplus(a);
                b[i] = sigmoid(gate(beta, i, p.beta_first));
            }
            // Rows of (I + A)^-1.
            let mut inverse = [[0.0; N]; N];
            let mut mixing = [[0.0; N]; N];
            for i in 0..n {
                inverse[i][i] = 1.0;
                for l in 0..=i {
                    let d = g[l + 1..=i].iter().sum::<f64>().exp();
                    mixing[i][l] = dot(query(i), key(l)) * d;
                    if l < i {
                        let a = b[i] * dot(key(i), key(l)) * d;
                        let earlier = inverse[l];
                        for (element, earlier) in inverse[i].iter_mut().zip(earlier) {
                            *element -= a * earlier;
                        }
                    }
                }
            }
            let base = (first / N * value_heads + head) * N * N;
            for l in 0..N {
                for i in 0..N {
                    args.write(0)[base + l * N + i] = (inverse[i][l] * b[l]) as f32;
                    args.write(1)[base + l * N + i] = mixing[i][l] as f32;
                }
            }
            for i in 0..n {
                let decay = &mut args.write(2)[(first + i) * 2 * value_heads..];
                decay[head] = g[..=i].iter().sum::<f64>().exp() as f32;
                decay[value_heads + head] = g[i + 1..n].iter().sum::<f64>().exp() as f32;
            }
        }
    }
}
