//! Cases of the kernel.

use super::sample_draw;
use crate::case::{Case, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::sample_adjust::sample_adjust;
use crate::kernels::sample_histogram::sample_histogram;
use crate::kernels::sampling_scene::{Scene, settings};
use crate::sampling::{Settings, Shares};

/// Ids and flags are integers. Two perturbed scores closer than their rounding would make a case undecidable;
/// of the scores of these seeds none are.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Every filter on a small and on a whole vocabulary; one id, equal logits, a share without allowed ids, a
/// finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let random = Settings { is_random: 1, seed: [1, 2], ..Settings::default() };
    let mut scenes = vec![
        ("one id", Scene::new(2300, 1, 1, random)),
        ("allowed ids", Scene::new(2301, 700, 700, Settings { has_allowed: 1, ..random })),
        ("equal logits", Scene::new(2302, 700, 700, Settings { top_k: 5, ..random })),
        ("finished session", Scene::new(2303, 700, 700, random)),
        ("whole vocabulary", Scene::new(2304, 248_070, 248_320, Settings { top_p: 0.9, ..random })),
    ];
    scenes.extend(settings().into_iter().map(|(name, s)| (name, Scene::new(2310, 700, 720, s))));
    let mut cases = Vec::new();
    for (name, mut scene) in scenes {
        (300..400).for_each(|id| scene.allow(id.min(scene.buffers.n_valid - 1)));
        if name == "equal logits" {
            scene.set_logits([2.0; 699]);
        }
        scene.run(&[sample_adjust, sample_histogram])?;
        // What must be overwritten.
        scene.words[6][Shares::WINNERS as usize..].fill(77);
        if name == "finished session" {
            scene.state.n_tokens = 0;
        }
        cases.push(scene.case(name, sample_draw, TOLERANCE)?);
    }
    Ok(cases)
}
