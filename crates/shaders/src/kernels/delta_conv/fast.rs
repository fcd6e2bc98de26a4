use super::Params;
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::delta_step::RING_ROWS;

pub(super) fn delta_conv(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let position = args.state.position as usize;
    let (u, weight) = (args.read(0), args.read(1));
    let (channels, head_dim) = (p.channels as usize, p.head_dim as usize);
    let ring_row = |position: usize| position % RING_ROWS as usize * channels;
    let input = |t: usize| &u[t * p.u_stride as usize + p.u_first as usize..][..channels];
    let ring = args.write(0).to_vec();
    for (t, y) in args.write(1).chunks_exact_mut(channels).take(n_tokens).enumerate() {
        let earlier = |back: usize| {
            if back <= t {
                input(t - back)
            } else {
                &ring[ring_row(position + t + RING_ROWS as usize - back)..][..channels]
            }
        };
        for (head, a) in y.chunks_mut(head_dim).enumerate() {
            let first = head * head_dim;
            let weight = &weight[first * p.taps as usize..];
            convolve(weight, p.taps, |back| &earlier(back)[first..], a);
            if head < p.key_heads as usize {
                to_unit(a, p.eps, 1.0 / (head_dim as f32).sqrt());
            } else if head < 2 * p.key_heads as usize {
                to_unit(a, p.eps, 1.0);
            }
        }
    }
    let ring = args.write(0);
    for t in n_tokens.saturating_sub(RING_ROWS as usize)..n_tokens {
        ring[ring_row(position + t)..][..channels].copy_from_slice(input(t));
    }
}

/// Convolution and SiLU of channels of one token; `earlier(n)` are their inputs `n` tokens before it.
pub(in crate::kernels) fn convolve<'a>(
    weight: &[f32],
    taps: u32,
    earlier: impl Fn(usize) -> &'a [f32],
    out: &mut [f32],
) {
    match taps {
        2 => convolve_taps(weight, [1, 0].map(earlier), out),
        3 => convolve_taps(weight, [2, 1, 0].map(earlier), out),
        _ => convolve_taps(weight, [3, 2, 1, 0].map(earlier), out),
    }
}

fn convolve_taps<const TAPS: usize>(weight: &[f32], rows: [&[f32]; TAPS], out: &mut [f32]) {
    out.fill(0.0);
    for (tap, row) in rows.into_iter().enumerate() {
        for ((out, weight), u) in out.iter_mut().zip(weight.as_chunks::<TAPS>().0).zip(row) {
            *out += weight[tap] * u;
        }
    }
    out.iter_mut().for_each(|a| *a = lanes::silu(*a));
}

/// Gives a vector the length `scale`, but for `eps` beside the sum of its squares.
pub(in crate::kernels) fn to_unit(a: &mut [f32], eps: f32, scale: f32) {
    lanes::scale(a, scale / (lanes::dot(a, a) + eps).sqrt());
}
