use super::Params;
use crate::cpu::lanes;
use crate::kernel::Args;

pub(super) fn gated_norm(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (o, z, weight) = (args.read(0), args.read(1), args.read(2));
    let head_dim = p.head_dim as usize;
    let cols = p.num_heads as usize * head_dim;
    let rows = o.chunks_exact(cols).zip(args.write(0).chunks_exact_mut(cols));
    for (t, (o, out)) in rows.take(n_tokens).enumerate() {
        let z = &z[t * p.z_stride as usize + p.z_first as usize..];
        let heads = o.chunks_exact(head_dim).zip(z.chunks_exact(head_dim));
        for ((o, z), out) in heads.zip(out.chunks_exact_mut(head_dim)) {
            norm_and_gate(o, z, weight, p.eps, out);
        }
    }
}

/// One head of one token.
pub(in crate::kernels) fn norm_and_gate(o: &[f32], z: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let factor = lanes::rms_factor(o, eps);
    for (((out, o), z), weight) in out.iter_mut().zip(o).zip(z).zip(weight) {
        *out = o * factor * weight * lanes::silu(*z);
    }
}
