//! Cases of the kernel.

use super::sample_histogram;
use crate::case::{Case, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::sample_adjust::sample_adjust;
use crate::kernels::sampling_scene::{Scene, settings};
use crate::sampling::Settings;

/// Numbers and masses are integers.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Every filter; one id, equal logits, a whole vocabulary, ids that are not allowed, a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let random = Settings { is_random: 1, top_p: 0.9, ..Settings::default() };
    let mut scenes = vec![
        ("one id", Scene::new(2200, 1, 1, random)),
        ("whole vocabulary", Scene::new(2201, 248_070, 248_320, random)),
        ("allowed ids", Scene::new(2202, 700, 700, Settings { has_allowed: 1, ..random })),
        ("equal logits", Scene::new(2203, 700, 700, random)),
        ("finished session", Scene::new(2204, 700, 700, random)),
    ];
    scenes.extend(settings().into_iter().map(|(name, s)| (name, Scene::new(2210, 700, 720, s))));
    let mut cases = Vec::new();
    for (name, mut scene) in scenes {
        (300..400).for_each(|id| scene.allow(id.min(scene.buffers.n_valid - 1)));
        if name == "equal logits" {
            scene.set_logits([2.0; 699]);
        }
        scene.run(&[sample_adjust])?;
        if name == "finished session" {
            scene.state.n_tokens = 0;
        }
        cases.push(scene.case(name, sample_histogram, TOLERANCE)?);
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use crate::sampling::mass;

    #[test]
    fn masses_are_exponentials() {
        assert_eq!(mass(0.0), 1 << 26);
        for i in 0..2_000 {
            let distance = i as f32 * 0.01;
            let expected = (-f64::from(distance)).exp() * f64::from(1 << 26);
            // A unit from the shift; the distance is a multiple of 2^-20 ln 2.
            let bound = 1.0 + expected * 2f64.powi(-20);
            assert!((f64::from(mass(distance)) - expected).abs() <= bound, "{distance}");
        }
        let falling: Vec<u32> = (0..100_000).map(|i| mass(i as f32 * 2e-4)).collect();
        assert!(falling.is_sorted_by(|a, b| a >= b));
        assert_eq!((mass(19.0), mass(1e30)), (0, 0));
    }
}
