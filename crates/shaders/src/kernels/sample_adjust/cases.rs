//! Cases of the kernel.

use super::sample_adjust;
use crate::case::{Case, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::sampling_scene::Scene;
use crate::sampling::{MAX_MATCH, Settings};

/// Scores take five roundings. A share's sums take 16 additions per invocation and 8 more, and the terms of
/// the sum of exponentials an error of exp() of 3 + 2 |x| units in the last place where |x| is
/// below 16 for all that matter: less than 60 roundings of 2^-24 relative to a sum of positive terms. The scores are positive but
/// for a few. The absolute part is for scores next to 0, as small differences of numbers of size 10.
const TOLERANCE: Tolerance = Tolerance { absolute: 4e-6, relative: 4e-6 };

/// Settings that adjust, alone and together; one id, one share and more, a whole vocabulary with padding; ids that
/// are not allowed, logits that are not finite, a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut dry = Settings { has_dry: 1, ..Settings::default() };
    for length in 2..=MAX_MATCH as usize {
        dry.dry_penalties[length] = length as f32 * 0.5;
    }
    let none = Settings::default();
    let penalties = Settings {
        has_penalties: 1,
        repetition: 1.25,
        inverse_repetition: 1.0 / 1.25,
        presence: 0.5,
        frequency: 0.25,
        ..none
    };
    let all = Settings { has_bias: 1, has_allowed: 1, inverse_temperature: 1.5, ..penalties };
    let all = Settings { has_dry: 1, dry_penalties: dry.dry_penalties, ..all };
    let mut cases = Vec::new();
    for (i, (name, n_valid, vocab, settings)) in [
        ("one id", 1, 1, none),
        ("one share", 256, 256, none),
        ("one past a share", 257, 300, none),
        ("bias", 700, 700, Settings { has_bias: 1, ..none }),
        ("penalties", 700, 700, penalties),
        ("repetitions", 700, 700, dry),
        ("temperature", 700, 700, Settings { inverse_temperature: 0.25, ..none }),
        ("allowed ids", 700, 700, Settings { has_allowed: 1, ..none }),
        ("everything", 700, 720, all),
        ("everything, whole vocabulary", 248_070, 248_320, all),
        ("not finite", 700, 700, none),
        ("finished session", 700, 700, all),
    ]
    .into_iter()
    .enumerate()
    {
        let mut scene = Scene::new(2100 + i as u32, n_valid, vocab, settings);
        // Every other id of a part, so that a share has none.
        (300..n_valid).step_by(2).for_each(|id| scene.allow(id));
        for (id, length) in scene.words[3].iter_mut().enumerate() {
            *length = if id % 5 == 0 { id as u32 % 70 } else { 0 };
        }
        scene.words[6].fill(77);
        if name == "not finite" {
            scene.set_logits([f32::NAN, 2.0, f32::INFINITY, 3.0, f32::NEG_INFINITY]);
        }
        if name == "finished session" {
            scene.state.n_tokens = 0;
        }
        cases.push(scene.case(format!("{name}: {n_valid} of {vocab}"), sample_adjust, TOLERANCE)?);
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{EXCLUDED, IN_PROMPT};

    fn scores(scene: &mut Scene) -> Vec<f32> {
        scene.run(&[sample_adjust]).unwrap();
        let vocab = scene.buffers.logits.cols as usize;
        bytemuck::cast_slice(&scene.words[0][vocab..]).to_vec()
    }

    #[test]
    fn penalties_by_hand() {
        let settings = Settings {
            has_penalties: 1,
            repetition: 2.0,
            inverse_repetition: 0.5,
            presence: 1.0,
            frequency: 0.25,
            inverse_temperature: 2.0,
            ..Settings::default()
        };
        let mut scene = Scene::new(1, 6, 6, settings);
        scene.set_logits([4.0, 4.0, -4.0, 4.0, -4.0, 0.0]);
        scene.words[4][8..14].copy_from_slice(&[0, IN_PROMPT, IN_PROMPT, 2, 3, IN_PROMPT | 1]);
        // Unseen; halved; doubled; halved - 1 - 2/4; doubled - 1 - 3/4; 0 - 1 - 1/4. Then by 1/2.
        assert_eq!(scores(&mut scene), [8.0, 4.0, -16.0, 1.0, -19.5, -2.5]);
    }

    #[test]
    fn bias_comes_before_penalties_and_dry_after() {
        let mut settings = Settings {
            has_bias: 1,
            has_penalties: 1,
            repetition: 2.0,
            inverse_repetition: 0.5,
            has_dry: 1,
            has_allowed: 1,
            ..Settings::default()
        };
        settings.dry_penalties[3] = 0.75;
        let mut scene = Scene::new(1, 3, 3, settings);
        scene.set_logits([-1.0, 2.0, 2.0]);
        scene.words[2] = [4f32, 0.0, 9.0].map(f32::to_bits).to_vec();
        scene.words[3] = vec![0, 3, 0];
        scene.words[4][8..11].copy_from_slice(&[IN_PROMPT, 0, 0]);
        scene.allow(0);
        scene.allow(1);
        // (-1 + 4) / 2; 2 - 0.75; not allowed.
        assert_eq!(scores(&mut scene), [1.5, 1.25, EXCLUDED]);
        assert_eq!(scene.words[3], [0; 3]);
    }
}
