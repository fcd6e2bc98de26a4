//! Records the forward pass as a list of dispatches.
//!
//! Layers call one method per operation; each appends a [`Dispatch`] and hands back the tensor it
//! writes. Scratch tensors return to a pool when dropped, so that the peak is what one layer
//! needs, and every plan shares the same pool.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use signbit_shaders::kernels::{embed, linear, matmul, matvec, rms_norm, silu_mul};
use signbit_shaders::{BufferId, Dispatch, ShapeError, Tensor};

use super::weights::Matrix;
use crate::device::Device;
use crate::error::EngineError;

/// The tiles of `matmul` that are used where compiling takes long: SwiftShader needs a second for each.
const LOW_TILE: u32 = 16;
const HIGH_TILE: u32 = 64;

/// Free scratch buffers with their sizes in words.
type Pool = Rc<RefCell<Vec<(BufferId, u64)>>>;

/// Buffers that outlive one recording: handed from plan to plan so that they share scratch.
#[derive(Debug, Default)]
pub struct ScratchPool {
    free: Pool,
}

/// A tensor whose buffer goes back to the pool when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    tensor: Tensor,
    n_words: u64,
    pool: Pool,
}

impl Deref for Scratch {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.pool.borrow_mut().push((self.tensor.buffer, self.n_words));
    }
}

/// Appends operations to a plan.
#[derive(Debug)]
pub struct Recorder<'d> {
    device: &'d mut Device,
    pool: &'d mut ScratchPool,
    scope: String,
    dispatches: Vec<Dispatch>,
}

type Result<T> = std::result::Result<T, EngineError>;

impl<'d> Recorder<'d> {
    /// An empty recording that allocates scratch on `device` when `pool` has nothing that fits.
    pub fn new(device: &'d mut Device, pool: &'d mut ScratchPool) -> Self {
        Self { device, pool, scope: String::new(), dispatches: Vec::new() }
    }

    /// The recorded dispatches.
    pub fn finish(self) -> Vec<Dispatch> {
        self.dispatches
    }

    /// Names the part of the model that the next operations belong to, for example `layer.3`.
    pub fn scope(&mut self, name: impl Into<String>) {
        self.scope = name.into();
    }

    /// A scratch tensor of `rows` x `cols`, the smallest free one that fits.
    pub fn scratch(&mut self, rows: u32, cols: u32) -> Result<Scratch> {
        let n_words = u64::from(rows) * u64::from(cols);
        let pool = Rc::clone(&self.pool.free);
        let fitting = {
            let mut free = pool.borrow_mut();
            let best = (0..free.len()).filter(|&i| free[i].1 >= n_words).min_by_key(|&i| free[i].1);
            best.map(|i| free.swap_remove(i))
        };
        let (buffer, n_words) = match fitting {
            Some(found) => found,
            None => (self.device.create_buffer("scratch", n_words)?, n_words),
        };
        Ok(Scratch { tensor: Tensor { buffer, rows, cols }, n_words, pool })
    }

    /// Appends a dispatch under the current scope.
    pub fn push(&mut self, label: &str, dispatch: std::result::Result<Dispatch, ShapeError>) -> Result<()> {
        let mut dispatch = dispatch?;
        dispatch.label =
            if self.scope.is_empty() { label.to_owned() } else { format!("{}.{label}", self.scope) };
        self.dispatches.push(dispatch);
        Ok(())
    }

    /// out[t, :] = row tokens[t] of `table`: `tokens` [1, T], `out` [T, D].
    pub fn embed(&mut self, label: &str, tokens: Tensor, table: &Matrix, out: Tensor) -> Result<()> {
        for &shard in &table.shards {
            self.push(label, embed::embed(tokens, shard, out))?;
        }
        Ok(())
    }

    /// RMSNorm(x; weight): [T, D] -> [T, D].
    pub fn rms_norm(&mut self, label: &str, x: Tensor, weight: Tensor, eps: f32) -> Result<Scratch> {
        let out = self.scratch(x.rows, x.cols)?;
        self.push(label, rms_norm::rms_norm(x, weight, *out, eps))?;
        Ok(out)
    }

    /// W RMSNorm(x; norm): [T, K] -> [T, N].
    pub fn norm_linear(
        &mut self,
        label: &str,
        x: Tensor,
        norm: Tensor,
        matrix: &Matrix,
        eps: f32,
    ) -> Result<Scratch> {
        let out = self.scratch(x.rows, matrix.rows)?;
        if x.rows == 1 {
            self.last_norm_linear(label, x, norm, matrix, *out, eps)?;
        } else {
            let h = self.rms_norm(&format!("{label}.norm"), x, norm, eps)?;
            self.linear_into(label, *h, matrix, *out)?;
        }
        Ok(out)
    }

    /// y = W RMSNorm(x; norm) for the step's last row: [T, K] -> [1, N].
    pub fn last_norm_linear(
        &mut self,
        label: &str,
        x: Tensor,
        norm: Tensor,
        matrix: &Matrix,
        y: Tensor,
        eps: f32,
    ) -> Result<()> {
        for &shard in &matrix.shards {
            self.push(label, matvec::norm_matvec(x, norm, shard, y, eps))?;
        }
        Ok(())
    }

    /// SiLU(gate h) * up h with h = RMSNorm(x; norm): [T, K] -> [T, F]. The rows of `gate_up` are
    /// those of gate and then those of up.
    pub fn norm_swiglu(
        &mut self,
        label: &str,
        x: Tensor,
        norm: Tensor,
        gate_up: &Matrix,
        eps: f32,
    ) -> Result<Scratch> {
        let out = self.scratch(x.rows, gate_up.rows / 2)?;
        match gate_up.shards.as_slice() {
            &[whole] if x.rows == 1 => self.push(label, matvec::norm_swiglu(x, norm, whole, *out, eps))?,
            _ => {
                let products = self.norm_linear(label, x, norm, gate_up, eps)?;
                self.push(&format!("{label}.silu"), silu_mul::silu_mul(*products, *out))?;
            }
        }
        Ok(out)
    }

    /// y = W x: [T, K] -> [T, N].
    pub fn linear_into(&mut self, label: &str, x: Tensor, matrix: &Matrix, y: Tensor) -> Result<()> {
        self.push_linear(label, x, matrix, y, false)
    }

    /// y += W x, which ends a residual branch.
    pub fn add_linear(&mut self, label: &str, x: Tensor, matrix: &Matrix, y: Tensor) -> Result<()> {
        self.push_linear(label, x, matrix, y, true)
    }

    fn push_linear(&mut self, label: &str, x: Tensor, matrix: &Matrix, y: Tensor, add: bool) -> Result<()> {
        for &shard in &matrix.shards {
            let mut dispatch = linear::linear(x, shard, y, add)?;
            if self.device.info().compiles_slowly {
                // Two heights serve all plans.
                let height = if x.rows <= 2 * LOW_TILE { LOW_TILE } else { HIGH_TILE };
                dispatch = matmul::with_height(&dispatch, height).unwrap_or(dispatch);
            }
            self.push(label, Ok(dispatch))?;
        }
        Ok(())
    }
}
