//! Cases of the kernel.

use super::sample_final;
use crate::case::{Case, Tolerance};
use crate::kernel::{ShapeError, State};
use crate::kernels::sample_adjust::sample_adjust;
use crate::kernels::sample_draw::sample_draw;
use crate::kernels::sample_histogram::sample_histogram;
use crate::kernels::sampling_scene::{CONTEXT, Scene, settings};
use crate::sampling::Settings;

/// Ids and the state are integers. A log-probability is the difference of numbers of size 10, whose logarithm
/// and sum of 64 shares round by 2^-24 a few times each.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-6 };

/// Every filter on a small and on a whole vocabulary; ties at the cut, one id, an allowed id alone, none allowed;
/// stop ids; unusable logits; the last position of the context and beyond; a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let random = Settings { is_random: 1, seed: [1, 2], ..Settings::default() };
    let masked = Settings { has_allowed: 1, ..random };
    let tied = Settings { top_k: 5, top_p: 0.7, ..random };
    let mut scenes = vec![
        ("two ids", Scene::new(2400, 2, 2, random)),
        ("one allowed id", Scene::new(2401, 700, 700, masked)),
        ("none allowed", Scene::new(2402, 700, 700, masked)),
        ("ties", Scene::new(2403, 700, 700, tied)),
        ("ties across shares", Scene::new(2404, 5000, 5000, Settings { top_k: 900, ..random })),
        ("finished session", Scene::new(2405, 700, 700, random)),
        ("stop id", Scene::new(2406, 700, 700, masked)),
        ("not finite", Scene::new(2407, 700, 700, random)),
        ("all equal", Scene::new(2408, 700, 700, random)),
        ("last position", Scene::new(2409, 700, 700, random)),
        ("beyond the context", Scene::new(2410, 700, 700, random)),
        ("whole vocabulary, all filters", Scene::new(2411, 248_070, 248_320, settings().remove(13).1)),
        (
            "whole vocabulary, wide",
            Scene::new(
                2412,
                248_070,
                248_320,
                Settings { top_k: 100_000, top_p: 0.99, inverse_temperature: 0.1, ..random },
            ),
        ),
    ];
    scenes.extend(settings().into_iter().map(|(name, s)| (name, Scene::new(2420, 700, 720, s))));
    let mut cases = Vec::new();
    for (name, mut scene) in scenes {
        match name {
            "one allowed id" => scene.allow(444),
            "stop id" => {
                scene.allow(333);
                scene.state = State { n_stop_ids: 2, ..scene.state };
                scene.state.stop_ids[1] = 333;
            }
            "ties" => scene.set_logits((0..700).map(|id| if id % 3 == 0 { 9.0 } else { 1.0 })),
            "ties across shares" => scene.set_logits((0..5000).map(|id| if id % 5 < 2 { 9.0 } else { 1.0 })),
            "not finite" => scene.set_logits([1.0, f32::NAN]),
            "all equal" => scene.set_logits([1.0; 700]),
            "last position" => scene.state.position = CONTEXT - 4,
            "beyond the context" => scene.state.position = CONTEXT - 3,
            _ => {}
        }
        scene.run(&[sample_adjust, sample_histogram, sample_draw])?;
        if name == "finished session" {
            scene.state.n_tokens = 0;
        }
        cases.push(scene.case(name, sample_final, TOLERANCE)?);
    }
    Ok(cases)
}
