//! Test cases as data: a dispatch with the contents of its buffers.
//!
//! The same cases run natively, in the browser and on a user's device; each compares the GPU with
//! the CPU reference. Random contents come from a seeded generator, so a case is the same anywhere.

use crate::cpu::CpuKernels;
use crate::kernel::{BufferId, Dispatch, ShapeError, State, Tensor};

/// How far the GPU may be from the reference: `|gpu - cpu| <= absolute + relative * |cpu|`.
/// Integer outputs must be equal.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Allowed at any magnitude.
    pub absolute: f32,
    /// Allowed per unit of the reference's magnitude.
    pub relative: f32,
}

/// One dispatch with everything it reads.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is special about it.
    pub name: String,
    /// What runs; buffer `i` is `buffers[i]`.
    pub dispatch: Dispatch,
    /// Contents of each buffer before the run.
    pub buffers: Vec<Vec<u32>>,
    /// State before the run.
    pub state: State,
    /// How close the results must be.
    pub tolerance: Tolerance,
}

/// Collects the buffers of a case.
#[derive(Debug)]
pub struct CaseBuilder {
    buffers: Vec<Vec<u32>>,
    /// The generator for contents.
    pub rng: Rng,
    /// State before the run; one token at position 0 unless changed.
    pub state: State,
}

impl CaseBuilder {
    /// An empty case whose random contents follow from `seed`.
    pub fn new(seed: u32) -> Self {
        Self { buffers: Vec::new(), rng: Rng::new(seed), state: State { n_tokens: 1, ..State::default() } }
    }

    /// A buffer of the given words, seen as `rows` x `cols`.
    pub fn words(&mut self, rows: u32, cols: u32, words: Vec<u32>) -> Tensor {
        debug_assert_eq!(words.len(), rows as usize * cols as usize);
        let buffer = BufferId(self.buffers.len() as u32);
        self.buffers.push(words);
        Tensor { buffer, rows, cols }
    }

    /// A buffer of the given values.
    pub fn values(&mut self, rows: u32, cols: u32, values: &[f32]) -> Tensor {
        self.words(rows, cols, values.iter().map(|v| v.to_bits()).collect())
    }

    /// A buffer of random values, uniform in `[-scale, scale)`.
    pub fn random(&mut self, rows: u32, cols: u32, scale: f32) -> Tensor {
        let n = rows as usize * cols as usize;
        let values: Vec<f32> = (0..n).map(|_| self.rng.uniform() * scale).collect();
        self.values(rows, cols, &values)
    }

    /// A buffer for results. Filled with a number no kernel yields, so that an element that was
    /// not written, or was written although it should not have been, shows.
    pub fn output(&mut self, rows: u32, cols: u32) -> Tensor {
        self.values(rows, cols, &vec![-12345.0; rows as usize * cols as usize])
    }

    /// The finished case.
    pub fn finish(
        self,
        name: impl Into<String>,
        dispatch: Result<Dispatch, ShapeError>,
        tolerance: Tolerance,
    ) -> Result<Case, ShapeError> {
        Ok(Case {
            name: name.into(),
            dispatch: dispatch?,
            buffers: self.buffers,
            state: self.state,
            tolerance,
        })
    }
}

/// A small seeded generator (xorshift32, Marsaglia 2003): only for test contents.
#[derive(Clone, Debug)]
pub struct Rng(u32);

impl Rng {
    /// A generator that yields the same sequence for the same seed.
    pub fn new(seed: u32) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9) | 1)
    }

    /// The next 32 bits.
    pub fn next_u32(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    /// Uniform in `[-1, 1)` with 24 random bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0
    }
}

/// Runs a case through its CPU reference and returns the buffers and state afterwards.
pub fn run_reference(case: &Case) -> (Vec<Vec<u32>>, State) {
    let mut buffers = case.buffers.clone();
    let mut state = case.state;
    case.dispatch.run(CpuKernels::Reference, &mut buffers, &mut state);
    (buffers, state)
}
