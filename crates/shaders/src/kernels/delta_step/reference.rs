use super::{Params, RING_ROWS};
use crate::kernel::Args;
use crate::kernels::activation::{sigmoid, silu, softplus};

pub(super) fn delta_step(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let position = args.state.position as usize;
    let (projected, conv, ssm_a) = (args.read(0), args.read(1), args.read(2));
    let (dt_bias, norm) = (args.read(3), args.read(4));
    let (key_heads, value_heads) = (p.key_heads as usize, p.value_heads as usize);
    let (dk, dv, taps) = (p.key_dim as usize, p.value_dim as usize, p.taps as usize);
    let (channels, eps) = (p.channels as usize, f64::from(p.eps));
    let (n_keys, n_values) = (key_heads * dk, value_heads * dv);

    let ring = args.write(0);
    let row_of = |position: usize| position % RING_ROWS as usize * channels;
    ring[row_of(position)..][..channels].copy_from_slice(&projected[..channels]);
    let activated: Vec<f64> = (0..channels)
        .map(|c| {
            let tap = |i: usize| {
                let at = position + 2 * RING_ROWS as usize + 1 + i - taps;
                f64::from(conv[c * taps + i]) * f64::from(ring[row_of(at) + c])
            };
            silu((0..taps).map(tap).sum())
        })
        .collect();

    for head in 0..value_heads {
        let key_head = head % key_heads;
        let unit = |first: usize| {
            let x = &activated[first + key_head * dk..][..dk];
            let length = (x.iter().map(|v| v * v).sum::<f64>() + eps).sqrt();
            x.iter().map(|v| v / length).collect::<Vec<f64>>()
        };
        let (q, k) = (unit(0), unit(n_keys));
        let gates = channels + n_values + head;
        let bias = f64::from(projected[gates]) + f64::from(dt_bias[head]);
        let decay = (f64::from(ssm_a[head]) * softplus(bias)).exp();
        let strength = sigmoid(f64::from(projected[gates + value_heads]));
        let s = &mut args.write(1)[head * dk * dv..][..dk * dv];
        let mut o = vec![0.0; dv];
        for c in 0..dv {
            let mut recalled = 0.0;
            for i in 0..dk {
                recalled += decay * f64::from(s[i * dv + c]) * k[i];
            }
            let d = strength * (activated[2 * n_keys + head * dv + c] - recalled);
            for i in 0..dk {
                let element = decay * f64::from(s[i * dv + c]) + k[i] * d;
                s[i * dv + c] = element as f32;
                o[c] += element * q[i] / (dk as f64).sqrt();
            }
        }
        let factor = 1.0 / (o.iter().map(|v| v * v).sum::<f64>() / dv as f64 + eps).sqrt();
        let out = &mut args.write(2)[head * dv..][..dv];
        for c in 0..dv {
            let gate = silu(f64::from(projected[channels + head * dv + c]));
            out[c] = (o[c] * factor * f64::from(norm[c]) * gate) as f32;
        }
    }
}
