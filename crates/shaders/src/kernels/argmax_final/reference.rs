use super::Params;
use crate::kernel::Args;
use crate::kernels::argmax_partial::key_value;

pub(super) fn argmax_final(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let (mut top, mut token, mut bottom, mut n_unusable) = (0, u32::MAX, u32::MAX, 0);
    for row in args.read_u32(0).chunks_exact(4).take(p.groups as usize) {
        if row[0] > top || (row[0] == top && row[1] < token) {
            top = row[0];
            token = row[1];
        }
        bottom = bottom.min(row[2]);
        n_unusable += row[3];
    }
    if n_unusable > 0 || 0.5 * key_value(top) - 0.5 * key_value(bottom) < 0.5 * p.least_spread {
        args.state.refuse();
        return;
    }
    let slot = (args.state.step % p.n_generated) as usize;
    args.write_u32(1)[slot] = token;
    args.write_u32(0)[0] = token;
    args.state.advance(token);
}

#[cfg(test)]
mod tests {
    use crate::cpu::CpuKernels;
    use crate::kernel::{BufferId, State, Tensor};
    use crate::kernels::argmax_final::argmax_final;
    use crate::kernels::argmax_partial::argmax_partial;

    fn tensor(buffer: u32, rows: u32, cols: u32) -> Tensor {
        Tensor { buffer: BufferId(buffer), rows, cols }
    }

    /// Both halves on the given logits: the state, tokens and ring afterwards.
    fn sample(logits: &[f32], mut state: State) -> (State, Vec<u32>, Vec<u32>) {
        let words = logits.iter().map(|v| v.to_bits()).collect();
        let mut buffers = vec![words, vec![0; 12], vec![5, 6, 7], vec![0; 4]];
        let n = logits.len() as u32;
        let partials = tensor(1, 3, 4);
        let first = argmax_partial(tensor(0, 1, n), partials, n).unwrap();
        let second = argmax_final(partials, tensor(2, 1, 3), tensor(3, 1, 4)).unwrap();
        first.run(CpuKernels::Reference, &mut buffers, &mut state);
        second.run(CpuKernels::Reference, &mut buffers, &mut state);
        let generated = buffers.pop().unwrap();
        (state, buffers.pop().unwrap(), generated)
    }

    fn prefill() -> State {
        let mut state = State { position: 10, n_tokens: 3, step: 5, n_stop_ids: 2, ..State::default() };
        state.stop_ids[..3].copy_from_slice(&[40, 41, 42]);
        state
    }

    fn logits(n: usize, at: usize) -> Vec<f32> {
        let mut logits: Vec<f32> = (0..n).map(|i| -(i as f32) / n as f32).collect();
        logits[at] = 1.0;
        logits
    }

    #[test]
    fn a_token_becomes_the_next_step() {
        let (state, tokens, generated) = sample(&logits(500, 321), prefill());
        let expected = State { position: 13, n_tokens: 1, step: 6, ..prefill() };
        assert_eq!((state, tokens, generated), (expected, vec![321, 6, 7], vec![0, 321, 0, 0]));
        // The third id is not among the two that count.
        assert_eq!(sample(&logits(500, 42), prefill()).0, expected);
    }

    #[test]
    fn the_smaller_id_wins_a_tie() {
        let mut tied = logits(500, 321);
        tied[130] = 1.0;
        tied[450] = 1.0;
        assert_eq!(sample(&tied, prefill()).1[0], 130);
    }

    #[test]
    fn a_stop_id_is_kept_and_ends_the_session() {
        let (state, tokens, generated) = sample(&logits(500, 41), prefill());
        let expected = State { position: 13, n_tokens: 0, step: 6, done: State::DONE_STOP, ..prefill() };
        assert_eq!((state, tokens, generated), (expected, vec![41, 6, 7], vec![0, 41, 0, 0]));
        assert_eq!(sample(&logits(500, 7), state), (state, vec![5, 6, 7], vec![0; 4]));
    }

    #[test]
    fn unusable_logits_end_the_session_without_a_token() {
        let expected = State { n_tokens: 0, done: State::DONE_UNUSABLE_LOGITS, ..prefill() };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut logits = logits(500, 321);
            logits[77] = bad;
            assert_eq!(sample(&logits, prefill()), (expected, vec![5, 6, 7], vec![0; 4]), "{bad}");
        }
        let mut equal = vec![0.25; 500];
        equal[3] += 5e-7;
        assert_eq!(sample(&equal, prefill()).0, expected);
        equal[3] += 5e-6;
        assert_eq!(sample(&equal, prefill()).0.done, State::RUNNING);
        assert_eq!(sample(&[f32::MIN, f32::MAX], prefill()).1[0], 1);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let (partials, tokens, generated) = (tensor(0, 2, 4), tensor(1, 1, 3), tensor(2, 1, 9));
        assert!(argmax_final(partials, tokens, generated).is_ok());
        assert!(argmax_final(tensor(0, 2, 3), tokens, generated).is_err());
        assert!(argmax_final(tensor(0, 0, 4), tokens, generated).is_err());
        assert!(argmax_final(partials, tensor(1, 1, 0), generated).is_err());
        assert!(argmax_final(partials, tokens, tensor(2, 1, 0)).is_err());
        assert!(argmax_final(partials, tokens, tensor(2, 2, 9)).is_err());
    }
}
