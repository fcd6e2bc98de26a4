use super::{Params, RING_ROWS};
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::activation::{sigmoid, softplus};
use crate::kernels::delta_conv::fast::{convolve, to_unit};
use crate::kernels::gated_norm::fast::norm_and_gate;

pub(super) fn delta_step(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let position = args.state.position as usize;
    let (projected, conv, ssm_a) = (args.read(0), args.read(1), args.read(2));
    let (dt_bias, norm) = (args.read(3), args.read(4));
    let (key_heads, value_heads) = (p.key_heads as usize, p.value_heads as usize);
    let (dk, dv, channels) = (p.key_dim as usize, p.value_dim as usize, p.channels as usize);

    let ring = args.write(0);
    let row_of = |position: usize| position % RING_ROWS as usize * channels;
    ring[row_of(position)..][..channels].copy_from_slice(&projected[..channels]);
    let ring = &*ring;
    let earlier = |back: usize| &ring[row_of(position + RING_ROWS as usize - back)..][..channels];
    let mut activated = vec![0.0; channels];
    convolve(conv, p.taps, earlier, &mut activated);
    let (queries, rest) = activated.split_at_mut(key_heads * dk);
    let (keys, values) = rest.split_at_mut(key_heads * dk);
    queries.chunks_exact_mut(dk).for_each(|q| to_unit(q, p.eps, 1.0 / (dk as f32).sqrt()));
    keys.chunks_exact_mut(dk).for_each(|k| to_unit(k, p.eps, 1.0));

    let (gates, alpha_beta) = projected[channels..].split_at(value_heads * dv);
    let (mut difference, mut o) = (vec![0.0; dv], vec![0.0; dv]);
    for head in 0..value_heads {
        let key_head = head % key_heads * dk;
        let (q, k) = (&queries[key_head..][..dk], &keys[key_head..][..dk]);
        let v = &values[head * dv..][..dv];
        let rate = softplus(f64::from(alpha_beta[head]) + f64::from(dt_bias[head]));
        let decay = (f64::from(ssm_a[head]) * rate).exp() as f32;
        let strength = sigmoid(f64::from(alpha_beta[value_heads + head])) as f32;
        let s = &mut args.write(1)[head * dk * dv..][..dk * dv];
        difference.fill(0.0);
        lanes::add_rows(&mut difference, k, s);
        for (d, v) in difference.iter_mut().zip(v) {
            *d = strength * (v - decay * *d);
        }
        o.fill(0.0);
        for ((row, k), q) in s.chunks_exact_mut(dv).zip(k).zip(q) {
            for ((s, d), o) in row.iter_mut().zip(&difference).zip(&mut o) {
                *s = decay * *s + k * d;
                *o += q * *s;
            }
        }
        norm_and_gate(&o, &gates[head * dv..], norm, p.eps, &mut args.write(2)[head * dv..][..dv]);
    }
}
