//! The model's tensors on the device, filled while their bytes stream in.

use std::collections::HashMap;

use signbit_gguf::{TensorInfo, dequantize};
use signbit_shaders::Tensor;
use signbit_shaders::weights::{Format, Weight, pack_rows, words_per_row};

use crate::device::Device;
use crate::error::EngineError;

/// A matrix [N, K], split by rows where one binding cannot hold it.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Output features.
    pub rows: u32,
    /// Input features.
    pub cols: u32,
    /// Runs of rows in order; together all rows.
    pub shards: Vec<Weight>,
}

impl Matrix {
    /// Bytes of all rows on the device.
    pub fn n_bytes(&self) -> u64 {
        u64::from(self.rows) * self.row_bytes()
    }

    /// Bytes of one row on the device.
    pub fn row_bytes(&self) -> u64 {
        let words = |shard: &Weight| {
            let (quants, scales) = words_per_row(shard.format, self.cols);
            u64::from(quants) + u64::from(scales)
        };
        self.shards.first().map_or(0, words) * 4
    }
}

/// Every tensor that the forward pass reads, by its name in the file.
#[derive(Debug, Default)]
pub struct Weights {
    slots: HashMap<String, Slot>,
    n_bytes: u64,
}

#[derive(Debug)]
enum Slot {
    /// Norm weights and other small tensors, kept as f32.
    Vector(Tensor),
    Matrix(Matrix),
}

/// Rows are packed in runs of about this many bytes of the file.
const RUN_BYTES: usize = 1 << 20;

impl Weights {
    /// Allocates the tensor on the device. `is_vector` tensors become f32.
    pub fn allocate(
        &mut self,
        device: &mut Device,
        info: &TensorInfo,
        is_vector: bool,
    ) -> Result<(), EngineError> {
        let dim = |i: usize| info.shape.get(i).copied().unwrap_or(1);
        let n_rows = info.n_rows();
        let too_large = |needed: u64| EngineError::LimitTooSmall {
            what: info.name.clone(),
            needed,
            limit: u64::from(u32::MAX),
        };
        let rows = u32::try_from(n_rows).map_err(|_| too_large(n_rows))?;
        let cols = u32::try_from(dim(0)).map_err(|_| too_large(dim(0)))?;
        let slot = if is_vector {
            let buffer = device.create_buffer(&info.name, u64::from(rows) * u64::from(cols))?;
            let tensor = Tensor { buffer, rows, cols };
            self.n_bytes += tensor.n_bytes();
            Slot::Vector(tensor)
        } else {
            Slot::Matrix(self.allocate_matrix(device, info, rows, cols)?)
        };
        self.slots.insert(info.name.clone(), slot);
        Ok(())
    }

    fn allocate_matrix(
        &mut self,
        device: &mut Device,
        info: &TensorInfo,
        rows: u32,
        cols: u32,
    ) -> Result<Matrix, EngineError> {
        let format = format_of(info)?;
        let (quants, scales) = words_per_row(format, cols);
        let limit = device.info().limits.max_words();
        let widest = u64::from(quants.max(scales).max(1));
        let rows_per_shard = u32::try_from(limit / widest).unwrap_or(u32::MAX);
        if rows_per_shard == 0 {
            let what = format!("one row of {}", info.name);
            return Err(EngineError::LimitTooSmall { what, needed: widest * 4, limit: limit * 4 });
        }
        let mut shards = Vec::new();
        let mut row_offset = 0;
        while row_offset < rows {
            let n = rows_per_shard.min(rows - row_offset);
            let (quants, scales) = (u64::from(n) * u64::from(quants), u64::from(n) * u64::from(scales));
            shards.push(Weight {
                format,
                rows: n,
                cols,
                row_offset,
                quants: device.create_buffer(&info.name, quants)?,
                scales: device.create_buffer(&info.name, scales.max(1))?,
            });
            self.n_bytes += (quants + scales) * 4;
            row_offset += n;
        }
        Ok(Matrix { rows, cols, shards })
    }

    /// Bytes of all tensors on the device.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Whether the forward pass reads this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.slots.contains_key(name)
    }

    /// A matrix by name.
    pub fn matrix(&self, name: &str) -> Result<Matrix, EngineError> {
        match self.slots.get(name) {
            Some(Slot::Matrix(matrix)) => Ok(matrix.clone()),
            _ => Err(missing(name)),
        }
    }

    /// A small f32 tensor by name; one dimension becomes one row.
    pub fn vector(&self, name: &str) -> Result<Tensor, EngineError> {
        match self.slots.get(name) {
            Some(Slot::Vector(tensor)) => Ok(*tensor),
            _ => Err(missing(name)),
        }
    }

    /// How many rows of the tensor to collect before [`Weights::write`]; all of it for a vector.
    pub fn rows_per_run(&self, info: &TensorInfo) -> u64 {
        let n_rows = info.n_rows();
        match self.slots.get(&info.name) {
            Some(Slot::Matrix(_)) => {
                let row_bytes = (info.n_bytes / n_rows.max(1)).max(1);
                (RUN_BYTES as u64 / row_bytes).clamp(1, n_rows.max(1))
            }
            _ => n_rows,
        }
    }

    /// Packs rows `first_row..` of the tensor from the file's bytes and writes them to the device.
    pub fn write(
        &self,
        device: &mut Device,
        info: &TensorInfo,
        first_row: u32,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        match self.slots.get(&info.name) {
            Some(Slot::Vector(tensor)) => {
                let mut values = vec![0.0; tensor.rows as usize * tensor.cols as usize];
                dequantize(info.ty, bytes, &mut values)?;
                if let Some(element) = values.iter().position(|v| !v.is_finite()) {
                    return Err(EngineError::NonFiniteWeight { tensor: info.name.clone(), element });
                }
                device.write(tensor.buffer, 0, bytemuck::cast_slice(&values))
            }
            Some(Slot::Matrix(matrix)) => write_rows(device, info, matrix, first_row, bytes),
            None => Err(missing(&info.name)),
        }
    }
}

fn write_rows(
    device: &mut Device,
    info: &TensorInfo,
    matrix: &Matrix,
    first_row: u32,
    bytes: &[u8],
) -> Result<(), EngineError> {
    let n_rows = u64::from(matrix.rows).max(1);
    let row_bytes = (info.n_bytes / n_rows).max(1) as usize;
    let mut rest = bytes;
    for shard in &matrix.shards {
        let end = shard.row_offset + shard.rows;
        let row = first_row + ((bytes.len() - rest.len()) / row_bytes) as u32;
        if rest.is_empty() || row < shard.row_offset || row >= end {
            continue;
        }
        let n = (rest.len() / row_bytes).min((end - row) as usize);
        let (head, tail) = rest.split_at(n * row_bytes);
        rest = tail;
        let (quants_per_row, scales_per_row) = words_per_row(shard.format, shard.cols);
        let mut quants = vec![0; n * quants_per_row as usize];
        let mut scales = vec![0; n * scales_per_row as usize];
        pack_rows(shard.format, shard.cols, head, &mut quants, &mut scales)
            .map_err(|source| EngineError::Weights { tensor: info.name.clone(), source })?;
        let local = u64::from(row - shard.row_offset);
        device.write(shard.quants, local * u64::from(quants_per_row), &quants)?;
        device.write(shard.scales, local * u64::from(scales_per_row), &scales)?;
    }
    Ok(())
}

fn format_of(info: &TensorInfo) -> Result<Format, EngineError> {
    Format::from_tensor_type(info.ty).ok_or_else(|| EngineError::InvalidRequest {
        reason: format!("{} has type {}, which no kernel reads", info.name, info.ty.name()),
    })
}

fn missing(name: &str) -> EngineError {
    EngineError::InvalidRequest { reason: format!("the model has no tensor {name}") }
}
