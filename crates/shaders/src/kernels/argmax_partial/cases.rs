//! Cases of the kernel.

use super::{PARTIAL_COLS, argmax_partial};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// Keys, ids and counts are integers.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// One logit, a share per invocation and one more, fewer logits than shares, a whole vocabulary
/// with padding, ties, large and negative logits, numbers that are not finite, a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (name, n_logits, n_valid, groups, scale, places)) in [
        ("one", 1, 1, 1, 1.0, &[][..]),
        ("one workgroup", 64, 64, 1, 1.0, &[]),
        ("one past a workgroup", 65, 65, 1, 1.0, &[]),
        ("fewer logits than shares", 100, 100, 7, 1.0, &[]),
        ("whole vocabulary, padding on top", 248_320, 248_070, 128, 10_000.0, &[(248_070, 2e4)]),
        ("ties across lanes and shares", 1000, 1000, 3, 1.0, &[(700, 3.0), (65, 3.0), (66, 3.0), (129, 3.0)]),
        ("ties of both zeros", 130, 130, 2, 0.0, &[(5, -0.0), (80, -0.0)]),
        ("all negative", 300, 300, 2, -1e-3, &[(0, -1e30), (299, -1e-40)]),
        ("not a number", 5000, 5000, 4, 1.0, &[(4711, f32::NAN)]),
        ("infinities", 5000, 5000, 4, 1.0, &[(0, f32::INFINITY), (64, f32::NEG_INFINITY), (65, -f32::NAN)]),
        ("nothing finite", 3, 3, 2, 1.0, &[(0, f32::NAN), (1, f32::NAN), (2, f32::INFINITY)]),
        ("finished session", 100, 100, 2, 1.0, &[]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(1100 + i as u32);
        c.state.n_tokens = u32::from(name != "finished session");
        let mut logits: Vec<f32> = (0..n_logits)
            .map(|_| if scale < 0.0 { scale * (c.rng.uniform() + 1.5) } else { scale * c.rng.uniform() })
            .collect();
        for &(at, value) in places {
            logits[at] = value;
        }
        let logits = c.values(1, n_logits, &logits);
        let partials = c.words(groups, PARTIAL_COLS, vec![77; (groups * PARTIAL_COLS) as usize]);
        cases.push(c.finish(
            format!("{name}: {n_valid} of {n_logits} logits in {groups} shares"),
            argmax_partial(logits, partials, n_valid),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
