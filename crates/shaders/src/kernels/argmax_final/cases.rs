//! Cases of the kernel.

use super::argmax_final;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::{MAX_STOP_IDS, ShapeError, State};
use crate::kernels::argmax_partial::{PARTIAL_COLS, order_key};

/// Ids and the state are integers.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Largest logit, its id, smallest logit, and how many were not finite.
type Share = (f32, u32, f32, u32);

/// One share and more than there are invocations, ties, a full ring, stop ids in every slot,
/// unusable logits of each kind, a session that has ended.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let begun = State { position: 7, n_tokens: 5, step: 3, ..State::default() };
    let mut stops = State { n_stop_ids: MAX_STOP_IDS as u32, ..begun };
    for (i, id) in stops.stop_ids.iter_mut().enumerate() {
        *id = 1000 + i as u32;
    }
    let many = |at: usize, share: Share| {
        let mut shares: Vec<Share> = (0..200).map(|i| (1.0, 300 + i, -1.0, 0)).collect();
        shares[at] = share;
        shares
    };
    let specs: [(&str, State, Vec<Share>); 16] = [
        ("one share", begun, vec![(2.0, 17, -1.0, 0)]),
        ("the last share", begun, many(199, (2.0, 70_000, -1.0, 0))),
        ("a tie of all", begun, many(150, (1.0, 299, -1.0, 0))),
        ("large logits", begun, many(63, (10_000.0, 5, -10_000.0, 0))),
        ("the largest spread", begun, many(3, (f32::MAX, 5, f32::MIN, 0))),
        ("all negative", begun, vec![(-3.0, 1, -4.0, 0), (-2.0, 9, -5.0, 0)]),
        ("the ring comes round", State { step: 11, ..begun }, many(1, (2.0, 4, 0.0, 0))),
        ("first stop id", stops, many(1, (2.0, 1000, 0.0, 0))),
        ("last stop id", stops, many(1, (2.0, 1015, 0.0, 0))),
        ("stop id that does not count", State { n_stop_ids: 15, ..stops }, many(1, (2.0, 1015, 0.0, 0))),
        ("too many stop ids", State { n_stop_ids: 99, ..stops }, many(1, (2.0, 1016, 0.0, 0))),
        ("one not finite", begun, many(130, (1.0, 500, -1.0, 1))),
        ("equal logits", begun, vec![(0.5, 0, 0.5, 0); 3]),
        ("nearly equal logits", begun, vec![(0.5, 0, 0.499_999_6, 0); 3]),
        ("barely different logits", begun, vec![(0.5, 0, 0.499_998, 0); 3]),
        ("ended", State { n_tokens: 0, done: State::DONE_STOP, ..begun }, many(1, (2.0, 4, 0.0, 0))),
    ];
    let mut cases = Vec::new();
    for (i, (name, state, shares)) in specs.into_iter().enumerate() {
        let mut c = CaseBuilder::new(1200 + i as u32);
        c.state = state;
        let words: Vec<u32> = shares
            .iter()
            .flat_map(|&(top, id, bottom, bad)| {
                [order_key(top.to_bits()), id, order_key(bottom.to_bits()), bad]
            })
            .collect();
        let partials = c.words(shares.len() as u32, PARTIAL_COLS, words);
        let tokens = c.words(1, 3, vec![21, 22, 23]);
        let generated = c.words(1, 8, vec![77; 8]);
        cases.push(c.finish(
            format!("{name}, {} shares", shares.len()),
            argmax_final(partials, tokens, generated),
            TOLERANCE,
        )?);
    }
    let mut c = CaseBuilder::new(1250);
    c.state = begun;
    // A share without finite logits beside one with them, as a vocabulary below the grid leaves it.
    let partials = c.words(
        2,
        PARTIAL_COLS,
        vec![order_key(1f32.to_bits()), 6, order_key(0), 0, 0, u32::MAX, u32::MAX, 0],
    );
    let tokens = c.words(1, 1, vec![21]);
    let generated = c.words(1, 1, vec![77]);
    cases.push(c.finish("an empty share", argmax_final(partials, tokens, generated), TOLERANCE)?);
    Ok(cases)
}
