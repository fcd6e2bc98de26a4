//! Cases of the kernel.

use super::sample_dry;
use crate::case::{Case, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::sampling_scene::Scene;
use crate::sampling::Settings;

/// Lengths are integers.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Runs of every length up to beyond the longest that counts, a window, a breaker, nothing generated yet,
/// everything generated, DRY off, a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    let on = Settings { has_dry: 1, first_generated: 40, ..Settings::default() };
    for (i, (name, settings, period, breaker, n_tokens)) in [
        ("period of 3", on, 3, None, 1),
        ("period of 70", on, 70, None, 1),
        ("all equal", on, 1, None, 3),
        ("last 30", Settings { dry_last_n: 30, ..on }, 7, None, 1),
        ("no last ids", Settings { dry_last_n: 0, ..on }, 7, None, 1),
        ("breaker", on, 7, Some(5), 1),
        ("all in the prompt", Settings { first_generated: 199, ..on }, 7, None, 1),
        ("nothing in the prompt", Settings { first_generated: 0, ..on }, 7, None, 1),
        ("off", Settings { has_dry: 0, ..on }, 7, None, 1),
        ("finished session", on, 7, None, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut scene = Scene::new(2000 + i as u32, 100, 120, settings);
        scene.state.n_tokens = n_tokens;
        let ledger: Vec<u32> = (0..150).map(|p| if p == 60 { 99 } else { p % period }).collect();
        scene.set_ledger(&ledger);
        breaker.into_iter().for_each(|id| scene.add_breaker(id));
        cases.push(scene.case(name, sample_dry, TOLERANCE)?);
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of the ids 0..10 would continue.
    fn repeats(ledger: &[u32], settings: Settings, breakers: &[u32]) -> Vec<u32> {
        let mut scene = Scene::new(1, 10, 10, Settings { has_dry: 1, ..settings });
        scene.state.n_tokens = 1;
        scene.set_ledger(ledger);
        breakers.iter().for_each(|&id| scene.add_breaker(id));
        scene.run(&[sample_dry]).unwrap();
        scene.words[3].clone()
    }

    #[test]
    fn repetitions_by_hand() {
        let whole = Settings::default();
        // 1 2 3 again would be followed by 4; the lone 3 by 5.
        let ledger = [1, 2, 3, 4, 3, 5, 1, 2, 3];
        assert_eq!(repeats(&ledger, whole, &[]), [0, 0, 0, 0, 3, 1, 0, 0, 0, 0]);
        // 2 breaks the run.
        assert_eq!(repeats(&ledger, whole, &[2]), [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]);
        assert_eq!(repeats(&ledger, whole, &[3]), [0; 10]);
        // The window begins at the first 3.
        assert_eq!(
            repeats(&ledger, Settings { dry_last_n: 7, ..whole }, &[]),
            [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
        );
        assert_eq!(
            repeats(&ledger, Settings { dry_last_n: 5, ..whole }, &[]),
            [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn what_only_the_prompt_says_does_not_count() {
        let ledger = [1, 2, 3, 4, 3, 5, 1, 2, 3];
        let prompt = |n| Settings { first_generated: n, ..Settings::default() };
        // 1 2 3 ends with a generated token if the prompt has two, and lies in it if it has three.
        assert_eq!(repeats(&ledger, prompt(2), &[])[4], 3);
        assert_eq!(repeats(&ledger, prompt(3), &[])[4], 0);
        // The lone 3 at position 4.
        assert_eq!(repeats(&ledger, prompt(4), &[])[5], 1);
        assert_eq!(repeats(&ledger, prompt(5), &[])[5], 0);
    }

    #[test]
    fn long_runs_count_as_the_longest() {
        let ledger: Vec<u32> = (0..160).map(|p| p % 8).collect();
        assert_eq!(repeats(&ledger, Settings::default(), &[])[0], 63);
    }
}
