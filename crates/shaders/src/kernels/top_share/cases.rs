//! Cases of the kernel.

use super::top_share;
use crate::case::{Case, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::sampling_scene::Scene;
use crate::sampling::Settings;

/// Ids are integers.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Fewer ids than are wanted, one share and more, a whole vocabulary, ties, padding on top, a finished session.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (name, n_valid, vocab)) in [
        ("three ids", 3, 3),
        ("one share", 256, 256),
        ("a share with less than twenty", 270, 300),
        ("whole vocabulary", 248_070, 248_320),
        ("ties", 700, 700),
        ("padding", 700, 800),
        ("finished session", 700, 700),
    ]
    .into_iter()
    .enumerate()
    {
        let mut scene = Scene::new(2500 + i as u32, n_valid, vocab, Settings::default());
        scene.words[8].fill(77);
        match name {
            "ties" => scene.set_logits((0..700).map(|id| (id % 30) as f32)),
            "padding" => scene.set_logits((0..800).map(|id| id as f32)),
            "finished session" => scene.state.n_tokens = 0,
            _ => {}
        }
        cases.push(scene.case(name, top_share, TOLERANCE)?);
    }
    Ok(cases)
}
