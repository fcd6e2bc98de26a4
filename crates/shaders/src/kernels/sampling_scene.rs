//! Buffers of the sampling kernels for their cases and tests.

use crate::case::{Case, Rng, Tolerance};
use crate::cpu::CpuKernels;
use crate::kernel::{BufferId, Dispatch, ShapeError, State, Tensor};
use crate::sampling::{
    Buffers, History, IN_PROMPT, MAX_TOP, SETTINGS_WORDS, STAT_COLS, Settings, Shares, set_words,
    settings_cols,
};

/// Ids sampled last that are kept.
const KEPT: u32 = 8;

/// Positions of the context.
pub const CONTEXT: u32 = 200;

/// Makes the dispatch of a sampling kernel.
pub(crate) type Constructor = fn(&Buffers) -> Result<Dispatch, ShapeError>;

/// A token to be sampled: what is in every buffer, and the state.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub words: Vec<Vec<u32>>,
    pub buffers: Buffers,
    pub state: State,
}

impl Scene {
    /// Logits of a bell curve around 5, some ids that occurred, everything else empty. The step reads three
    /// tokens from position 90 on, and is the fourth of its generation.
    pub fn new(seed: u32, n_valid: u32, vocab: u32, settings: Settings) -> Self {
        let mut rng = Rng::new(seed);
        let mut words = Vec::new();
        let mut tensor = |rows: u32, cols: u32| {
            words.push(vec![0; rows as usize * cols as usize]);
            Tensor { buffer: BufferId(words.len() as u32 - 1), rows, cols }
        };
        let shares = Shares::of(n_valid);
        let buffers = Buffers {
            n_valid,
            logits: tensor(2, vocab),
            settings: tensor(1, settings_cols(n_valid)),
            bias: tensor(1, vocab),
            repeats: tensor(1, vocab),
            history: History {
                buffer: tensor(1, KEPT + vocab + CONTEXT).buffer,
                n_generated: KEPT,
                vocab,
                context: CONTEXT,
            },
            stats: tensor(shares.n, STAT_COLS),
            tally: tensor(1, shares.tally_cols()),
            tokens: tensor(1, 3),
            candidates: tensor(shares.n, MAX_TOP),
            top_ids: tensor(KEPT, MAX_TOP),
            logprobs: tensor(KEPT, 1 + MAX_TOP),
        };
        // The sum of twelve uniform numbers is nearly normal.
        let mut normal = || (0..12).map(|_| rng.uniform()).sum::<f32>() / 2.0;
        for logit in &mut words[0][..vocab as usize] {
            *logit = (5.0 + 2.5 * normal()).to_bits();
        }
        for bias in &mut words[2] {
            *bias = normal().to_bits();
        }
        for (i, count) in words[4][KEPT as usize..][..vocab as usize].iter_mut().enumerate() {
            *count = [0, 0, 0, 1, IN_PROMPT, IN_PROMPT | 2, 0][i % 7];
        }
        let mut scene =
            Self { words, buffers, state: State { position: 90, n_tokens: 3, step: 4, ..State::default() } };
        scene.set(settings);
        scene
    }

    /// Replaces the settings.
    pub fn set(&mut self, settings: Settings) {
        self.words[1][..SETTINGS_WORDS as usize].copy_from_slice(bytemuck::cast_slice(&[settings]));
    }

    /// Adds an id to the allowed ones.
    pub fn allow(&mut self, id: u32) {
        self.words[1][(SETTINGS_WORDS + id / 32) as usize] |= 1 << (id % 32);
    }

    /// Lets DRY see no repetition across an id.
    pub fn add_breaker(&mut self, id: u32) {
        self.words[1][(SETTINGS_WORDS + set_words(self.buffers.n_valid) + id / 32) as usize] |=
            1 << (id % 32);
    }

    /// Replaces the first logits.
    pub fn set_logits(&mut self, logits: impl IntoIterator<Item = f32>) {
        for (word, logit) in self.words[0].iter_mut().zip(logits) {
            *word = logit.to_bits();
        }
    }

    /// Ids by position, up to the end of the step.
    pub fn set_ledger(&mut self, ids: &[u32]) {
        let start = self.buffers.history.ledger() as usize;
        self.words[4][start..][..ids.len()].copy_from_slice(ids);
        self.state.position = ids.len() as u32 - self.state.n_tokens;
    }

    /// Runs the references of these kernels.
    pub fn run(&mut self, kernels: &[Constructor]) -> Result<(), ShapeError> {
        for kernel in kernels {
            kernel(&self.buffers)?.run(CpuKernels::Reference, &mut self.words, &mut self.state);
        }
        Ok(())
    }

    /// The case of this kernel on the scene as it is.
    pub fn case(
        self,
        name: impl Into<String>,
        kernel: Constructor,
        tolerance: Tolerance,
    ) -> Result<Case, ShapeError> {
        let dispatch = kernel(&self.buffers)?;
        // Only what the kernel sees.
        let mut buffers = self.words;
        for (i, words) in buffers.iter_mut().enumerate() {
            if !dispatch.buffers.contains(&BufferId(i as u32)) {
                words.truncate(1);
            }
        }
        Ok(Case { name: name.into(), dispatch, buffers, state: self.state, tolerance })
    }
}

/// Settings to sample with, each filter alone and all together.
pub(crate) fn settings() -> Vec<(&'static str, Settings)> {
    let random = Settings { is_random: 1, seed: [7, 9], ..Settings::default() };
    let min_p = |p: f32| -p.ln();
    vec![
        ("the best", Settings::default()),
        ("temperature 1", random),
        ("top-k 1", Settings { top_k: 1, ..random }),
        ("top-k 20", Settings { top_k: 20, ..random }),
        ("top-k 300 of a hot distribution", Settings { top_k: 300, inverse_temperature: 0.25, ..random }),
        ("top-k of more than there are", Settings { top_k: 1 << 20, ..random }),
        ("top-p 0", Settings { top_p: 0.0, ..random }),
        ("top-p 0.5", Settings { top_p: 0.5, ..random }),
        ("top-p 0.95", Settings { top_p: 0.95, ..random }),
        ("top-p 0.9 of a hot distribution", Settings { top_p: 0.9, inverse_temperature: 0.25, ..random }),
        ("min-p", Settings { min_p_reach: min_p(0.1), ..random }),
        ("top-n-sigma", Settings { top_n_sigma: 1.5, ..random }),
        ("top-k and top-p", Settings { top_k: 40, top_p: 0.8, ..random }),
        (
            "all filters",
            Settings {
                top_k: 100,
                top_p: 0.9,
                top_n_sigma: 2.5,
                min_p_reach: min_p(0.02),
                inverse_temperature: 0.8,
                ..random
            },
        ),
    ]
}
