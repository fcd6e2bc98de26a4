//! Cases of the kernel.

use super::top_final;
use crate::case::{Case, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::sample_adjust::sample_adjust;
use crate::kernels::sampling_scene::Scene;
use crate::kernels::top_share::top_share;
use crate::sampling::Settings;

/// Ids are integers. A log-probability is the difference of numbers of size 10, whose logarithm and sum of 64
/// shares round by 2^-24 a few times each.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-6 };

/// Fewer ids than are wanted, one share and more, a whole vocabulary, ties, each row of the ring, a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (name, n_valid, step)) in [
        ("three ids", 3, 0),
        ("one share", 256, 1),
        ("three shares", 700, 7),
        ("the ring comes round", 700, 8),
        ("ties", 700, 3),
        ("whole vocabulary", 248_070, 2),
        ("finished session", 700, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let mut scene = Scene::new(2600 + i as u32, n_valid, n_valid + 9, Settings::default());
        scene.state.step = step;
        if name == "ties" {
            scene.set_logits((0..700).map(|id| (id % 30) as f32));
        }
        scene.run(&[sample_adjust, top_share])?;
        scene.words[9].fill(77);
        if name == "finished session" {
            scene.state.n_tokens = 0;
        }
        cases.push(scene.case(name, top_final, TOLERANCE)?);
    }
    Ok(cases)
}
