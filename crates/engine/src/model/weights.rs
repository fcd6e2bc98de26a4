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
    matrices: Vec<Matrix>,
    n_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    /// Norm weights and other small tensors, kept as f32.
    Vector(Tensor),
    /// Rows `first_row..first_row + rows` of a matrix, all of it unless tensors were joined.
    Rows { matrix: usize, first_row: u32, rows: u32 },
}

/// Rows are packed in runs of about this many bytes of the file.
const RUN_BYTES: usize = 1 << 20;

impl Weights {
    /// Allocates a small tensor on the device, as f32; one dimension becomes one row.
    pub fn allocate_vector(&mut self, device: &mut Device, info: &TensorInfo) -> Result<(), EngineError> {
        let (rows, cols) = dimensions(info)?;
        let buffer = device.create_buffer(&info.name, u64::from(rows) * u64::from(cols))?;
        let tensor = Tensor { buffer, rows, cols };
        self.n_bytes += tensor.n_bytes();
        self.slots.insert(info.name.clone(), Slot::Vector(tensor));
        Ok(())
    }

    /// Allocates one matrix on the device that has the rows of all tensors, in this order: what
    /// reads the same input is then one product.
    pub fn allocate_matrix(&mut self, device: &mut Device, infos: &[&TensorInfo]) -> Result<(), EngineError> {
        let mut matrix = Matrix { rows: 0, cols: 0, shards: Vec::new() };
        // Neighbours in one format lie in one run of rows.
        let mut runs: Vec<(Format, &str, u32)> = Vec::new();
        for info in infos {
            let (rows, cols) = dimensions(info)?;
            if matrix.rows > 0 && cols != matrix.cols {
                let reason = format!("{} has rows of {cols} where {} are needed", info.name, matrix.cols);
                return Err(EngineError::InvalidRequest { reason });
            }
            let slot = Slot::Rows { matrix: self.matrices.len(), first_row: matrix.rows, rows };
            self.slots.insert(info.name.clone(), slot);
            matrix.cols = cols;
            matrix.rows = matrix.rows.checked_add(rows).ok_or_else(|| EngineError::LimitTooSmall {
                what: info.name.clone(),
                needed: u64::from(matrix.rows) + u64::from(rows),
                limit: u64::from(u32::MAX),
            })?;
            let format = format_of(info)?;
            match runs.last_mut().filter(|(last, ..)| *last == format) {
                Some((_, _, n)) => *n += rows,
                None => runs.push((format, &info.name, rows)),
            }
        }
        for (format, name, rows) in runs {
            self.allocate_run(device, &mut matrix, format, name, rows)?;
        }
        self.matrices.push(matrix);
        Ok(())
    }

    /// Appends shards with `rows` rows to `matrix`, as many as the binding limit needs.
    fn allocate_run(
        &mut self,
        device: &mut Device,
        matrix: &mut Matrix,
        format: Format,
        name: &str,
        rows: u32,
    ) -> Result<(), EngineError> {
        let (quants, scales) = words_per_row(format, matrix.cols);
        let limit = device.info().limits.max_words();
        let widest = u64::from(quants.max(scales).max(1));
        let rows_per_shard = u32::try_from(limit / widest).unwrap_or(u32::MAX);
        if rows_per_shard == 0 {
            let what = format!("one row of {name}");
            return Err(EngineError::LimitTooSmall { what, needed: widest * 4, limit: limit * 4 });
        }
        let first = matrix.shards.last().map_or(0, |shard| shard.row_offset + shard.rows);
        for start in (0..rows).step_by(rows_per_shard as usize) {
            let n = rows_per_shard.min(rows - start);
            let (quants, scales) = (u64::from(n) * u64::from(quants), u64::from(n) * u64::from(scales));
            matrix.shards.push(Weight {
                format,
                rows: n,
                cols: matrix.cols,
                row_offset: first + start,
                quants: device.create_buffer(name, quants)?,
                scales: device.create_buffer(name, scales.max(1))?,
            });
            self.n_bytes += (quants + scales) * 4;
        }
        Ok(())
    }

    /// Bytes of all tensors on the device.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Whether the forward pass reads this tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.slots.contains_key(name)
    }

    /// The matrix whose first rows are the tensor's.
    pub fn matrix(&self, name: &str) -> Result<Matrix, EngineError> {
        match self.slots.get(name) {
            Some(&Slot::Rows { matrix, first_row: 0, .. }) => {
                self.matrices.get(matrix).cloned().ok_or_else(|| missing(name))
            }
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
            Some(Slot::Rows { .. }) => {
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
            Some(&Slot::Rows { matrix, first_row: offset, rows }) => {
                let matrix = self.matrices.get(matrix).ok_or_else(|| missing(&info.name))?;
                let row_bytes = (info.n_bytes / u64::from(rows).max(1)).max(1) as usize;
                write_rows(device, &info.name, matrix, offset + first_row, bytes, row_bytes)
            }
            None => Err(missing(&info.name)),
        }
    }
}

/// Writes whole rows of `row_bytes` bytes each to rows `first_row..` of the matrix.
fn write_rows(
    device: &mut Device,
    name: &str,
    matrix: &Matrix,
    first_row: u32,
    bytes: &[u8],
    row_bytes: usize,
) -> Result<(), EngineError> {
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
            .map_err(|source| EngineError::Weights { tensor: name.to_owned(), source })?;
        device.write_rows(*shard, row - shard.row_offset, &quants, &scales)?;
    }
    Ok(())
}

/// Rows and columns of a tensor.
fn dimensions(info: &TensorInfo) -> Result<(u32, u32), EngineError> {
    let narrow = |needed: u64| {
        let limit = u64::from(u32::MAX);
        u32::try_from(needed).map_err(|_| EngineError::LimitTooSmall {
            what: info.name.clone(),
            needed,
            limit,
        })
    };
    Ok((narrow(info.n_rows())?, narrow(info.shape.first().copied().unwrap_or(1))?))
}

fn format_of(info: &TensorInfo) -> Result<Format, EngineError> {
    Format::from_tensor_type(info.ty).ok_or_else(|| EngineError::InvalidRequest {
        reason: format!("{} has type {}, which no kernel reads", info.name, info.ty.name()),
    })
}

fn missing(name: &str) -> EngineError {
    EngineError::InvalidRequest { reason: format!("the model has no tensor {name}") }
}
