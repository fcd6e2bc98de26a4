//! Records the forward pass as a list of dispatches.
//!
//! Layers call one method per operation; each appends a [`Dispatch`] and hands back the tensor it
//! writes. Scratch tensors return to a pool when dropped, so that the peak is what one layer
//! needs, and every plan shares the same pool.

use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;

use signbit_shaders::kernels::{
    append_rows, attention, conv1d, delta_net, embed, gated_norm, l2_norm, linear, norm_rope, rms_norm,
    sigmoid_gate, silu_mul,
};
use signbit_shaders::{BufferId, Dispatch, ShapeError, Tensor};

use super::weights::Matrix;
use crate::device::Device;
use crate::error::EngineError;

/// Free scratch buffers with their sizes in words.
type Pool = Rc<RefCell<Vec<(BufferId, u64)>>>;

/// Buffers that outlive one recording: handed from plan to plan so that they share scratch.
#[derive(Debug, Default)]
pub struct ScratchPool {
    free: Pool,
    n_words: u64,
}

impl ScratchPool {
    /// Bytes of all scratch buffers.
    pub fn n_bytes(&self) -> u64 {
        self.n_words * 4
    }
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
            None => {
                self.pool.n_words += n_words;
                (self.device.create_buffer("scratch", n_words)?, n_words)
            }
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

    /// RMSNorm of the step's last row: [T, D] -> [1, D].
    pub fn rms_norm_last(&mut self, label: &str, x: Tensor, weight: Tensor, eps: f32) -> Result<Scratch> {
        let out = self.scratch(1, x.cols)?;
        self.push(label, rms_norm::rms_norm_last(x, weight, *out, eps))?;
        Ok(out)
    }

    /// W x: [T, K] -> [T, N].
    pub fn linear(&mut self, label: &str, x: Tensor, matrix: &Matrix) -> Result<Scratch> {
        let out = self.scratch(x.rows, matrix.rows)?;
        self.linear_into(label, x, matrix, *out)?;
        Ok(out)
    }

    /// y = W x: [T, K] -> [T, N].
    pub fn linear_into(&mut self, label: &str, x: Tensor, matrix: &Matrix, y: Tensor) -> Result<()> {
        for &shard in &matrix.shards {
            self.push(label, linear::linear(x, shard, y, false))?;
        }
        Ok(())
    }

    /// y += W x, which ends a residual branch.
    pub fn add_linear(&mut self, label: &str, x: Tensor, matrix: &Matrix, y: Tensor) -> Result<()> {
        for &shard in &matrix.shards {
            self.push(label, linear::linear(x, shard, y, true))?;
        }
        Ok(())
    }

    /// Per-head norm and rotation of the queries: [T, heads * stride] -> [T, heads * head_dim].
    pub fn norm_rope(
        &mut self,
        label: &str,
        x: Tensor,
        weight: Tensor,
        rope: Tensor,
        shape: norm_rope::HeadShape,
        eps: f32,
    ) -> Result<Scratch> {
        let out = self.scratch(x.rows, shape.heads * shape.head_dim)?;
        self.push(label, norm_rope::norm_rope(x, weight, rope, *out, shape, eps, false))?;
        Ok(out)
    }

    /// Per-head norm and rotation of the keys, written to their rows of the cache.
    #[expect(clippy::too_many_arguments, reason = "each is a tensor of the formula")]
    pub fn norm_rope_to_cache(
        &mut self,
        label: &str,
        x: Tensor,
        weight: Tensor,
        rope: Tensor,
        cache: Tensor,
        shape: norm_rope::HeadShape,
        eps: f32,
    ) -> Result<()> {
        self.push(label, norm_rope::norm_rope(x, weight, rope, cache, shape, eps, true))
    }

    /// Writes rows to their positions in the cache: [T, C] into [S, C].
    pub fn append_rows(&mut self, label: &str, x: Tensor, cache: Tensor) -> Result<()> {
        self.push(label, append_rows::append_rows(x, cache))
    }

    /// Causal attention over the cache: [T, Hq * Dh] -> [T, Hq * Dh].
    pub fn attention(
        &mut self,
        label: &str,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        shape: attention::AttentionShape,
        scale: f32,
    ) -> Result<Scratch> {
        let out = self.scratch(q.rows, q.cols)?;
        self.push(label, attention::attention(q, k_cache, v_cache, *out, shape, scale))?;
        Ok(out)
    }

    /// x *= sigmoid(gate), the gate being the second half of each head of `query_gate`.
    pub fn sigmoid_gate(&mut self, label: &str, x: Tensor, query_gate: Tensor, head_dim: u32) -> Result<()> {
        self.push(label, sigmoid_gate::sigmoid_gate(x, query_gate, head_dim))
    }

    /// SiLU(gate) * up: [T, F].
    pub fn silu_mul(&mut self, label: &str, gate: Tensor, up: Tensor) -> Result<Scratch> {
        let out = self.scratch(gate.rows, gate.cols)?;
        self.push(label, silu_mul::silu_mul(gate, up, *out))?;
        Ok(out)
    }

    /// Causal convolution over time and SiLU: [T, C] -> [T, C].
    pub fn conv1d(&mut self, label: &str, u: Tensor, weight: Tensor, state: Tensor) -> Result<Scratch> {
        let out = self.scratch(u.rows, u.cols)?;
        self.push(label, conv1d::conv1d(u, weight, state, *out))?;
        Ok(out)
    }

    /// Unit length for the query and key heads of `y`, in place.
    pub fn l2_norm(&mut self, label: &str, y: Tensor, key_heads: u32, head_dim: u32, eps: f32) -> Result<()> {
        self.push(label, l2_norm::l2_norm(y, key_heads, head_dim, eps))
    }

    /// The gated delta rule: [T, C] -> [T, Hv * dv], moving the state on.
    pub fn delta_net(
        &mut self,
        label: &str,
        y: Tensor,
        gates: delta_net::DeltaGates,
        state: Tensor,
        shape: delta_net::DeltaShape,
    ) -> Result<Scratch> {
        let out = self.scratch(y.rows, shape.num_value_heads * shape.value_head_dim)?;
        self.push(label, delta_net::delta_net(y, gates, state, *out, shape))?;
        Ok(out)
    }

    /// RMSNorm per head, then * SiLU(z): [T, Hv * dv] -> [T, Hv * dv].
    pub fn gated_norm(
        &mut self,
        label: &str,
        x: Tensor,
        z: Tensor,
        weight: Tensor,
        num_heads: u32,
        eps: f32,
    ) -> Result<Scratch> {
        let out = self.scratch(x.rows, x.cols)?;
        self.push(label, gated_norm::gated_norm(x, z, weight, *out, num_heads, eps))?;
        Ok(out)
    }
}
