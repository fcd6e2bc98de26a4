use super::Params;
use crate::cpu::lanes;
use crate::kernel::Args;

pub(super) fn silu_mul(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let cols = (p.cols as usize).max(1);
    let rows = args.read(0).chunks_exact(2 * cols).zip(args.write(0).chunks_exact_mut(cols));
    for (gate_up, out) in rows.take(n_tokens) {
        let (gate, up) = gate_up.split_at(cols);
        for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *out = lanes::silu(*gate) * up;
        }
    }
}
