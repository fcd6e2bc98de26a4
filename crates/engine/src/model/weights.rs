//! The model's tensors on the device, filled while their bytes stream in.

use std::collections::HashMap;

use signbit_gguf::{TensorInfo, dequantize};
use signbit_shaders::Tensor;
use signbit_shaders::cpu::tiles::ROWS;
use signbit_shaders::weights::{Format, Weight, pack_rows, words_per_row};

use crate::clock::now_ms;
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

/// Every tensor that the forward pass reads, by its name in the file.
#[derive(Debug, Default)]
pub struct Weights {
    slots: HashMap<String, Slot>,
    matrices: Vec<Matrix>,
    n_bytes: u64,
    buffer_bytes: u64,
    run_bytes: u64,
    n_shards: u32,
    n_sharded: u32,
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

/// What loading took, by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct LoadTimes {
    /// Bytes of the tensors in the files.
    pub bytes: u64,
    /// Milliseconds of hashing; none where the digest was known.
    pub digest_ms: f64,
    /// Milliseconds of turning the file's blocks into the device's layout.
    pub repack_ms: f64,
    /// Milliseconds of handing the result to the device; none on the CPU, where it is packed in place. A page
    /// hands over without waiting, and its waits between pieces are not counted.
    pub upload_ms: f64,
}

/// Adds the milliseconds that `work` takes to `total_ms`. Pages have a coarse clock, whose errors cancel
/// over many runs of rows.
pub(crate) fn timed<T>(total_ms: &mut f64, work: impl FnOnce() -> T) -> T {
    let start = now_ms();
    let result = work();
    *total_ms += now_ms() - start;
    result
}

/// Memory that one run of rows after the other is packed in, and what that takes.
#[derive(Debug, Default)]
pub struct Packing {
    quants: Vec<u32>,
    scales: Vec<u32>,
    /// So far.
    pub times: LoadTimes,
}

impl Weights {
    /// Allocates a small tensor on the device, as f32; one dimension becomes one row.
    pub fn allocate_vector(&mut self, device: &mut Device, info: &TensorInfo) -> Result<(), EngineError> {
        let (rows, cols) = dimensions(info)?;
        let buffer = device.create_buffer(&info.name, u64::from(rows) * u64::from(cols))?;
        let tensor = Tensor { buffer, rows, cols };
        self.n_bytes += tensor.n_bytes();
        self.buffer_bytes += tensor.n_bytes().max(4);
        self.slots.insert(info.name.clone(), Slot::Vector(tensor));
        self.note_run(info, tensor.n_bytes() / u64::from(rows).max(1));
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
            let (quants, scales) = words_per_row(format, cols);
            self.note_run(info, 4 * (u64::from(quants) + u64::from(scales)));
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
        let n_shards = rows.div_ceil(rows_per_shard);
        self.n_shards += n_shards;
        self.n_sharded += u32::from(n_shards > 1);
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
                scales: device.create_buffer(name, scales)?,
            });
            self.n_bytes += (quants + scales) * 4;
            self.buffer_bytes += (quants.max(1) + scales.max(1)) * 4;
        }
        Ok(())
    }

    /// Bytes of all tensors on the device.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Bytes of the buffers in which they lie, of which none is empty.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// The most bytes that the host holds of a tensor while it is written.
    pub fn run_bytes(&self) -> u64 {
        self.run_bytes
    }

    /// Pieces in which the matrices lie.
    pub fn n_shards(&self) -> u32 {
        self.n_shards
    }

    /// Of the tensors, or what is joined of them in one format, those that lie in several pieces.
    pub fn n_sharded(&self) -> u32 {
        self.n_sharded
    }

    /// Counts a run of rows as it arrives and as it is packed, at `row_bytes` a row. The vector in which it
    /// arrives may have grown to twice its length.
    fn note_run(&mut self, info: &TensorInfo, row_bytes: u64) {
        let file_bytes = info.n_bytes / info.n_rows().max(1);
        self.run_bytes = self.run_bytes.max(self.rows_per_run(info) * (2 * file_bytes + row_bytes));
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
                let rows = RUN_BYTES as u64 / row_bytes;
                // Runs of whole tiles, which the CPU packs fastest.
                let tiles = rows / ROWS as u64 * ROWS as u64;
                tiles.max(rows.min(ROWS as u64)).clamp(1, n_rows.max(1))
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
        packing: &mut Packing,
    ) -> Result<(), EngineError> {
        packing.times.bytes += bytes.len() as u64;
        match self.slots.get(&info.name) {
            Some(Slot::Vector(tensor)) => {
                let times = &mut packing.times;
                let values = timed(&mut times.repack_ms, || vector_values(info, *tensor, bytes))?;
                timed(&mut times.upload_ms, || device.write(tensor.buffer, 0, bytemuck::cast_slice(&values)))
            }
            Some(&Slot::Rows { matrix, first_row: offset, rows }) => {
                let matrix = self.matrices.get(matrix).ok_or_else(|| missing(&info.name))?;
                let row_bytes = (info.n_bytes / u64::from(rows).max(1)).max(1) as usize;
                let mut rest = bytes;
                for shard in &matrix.shards {
                    let end = shard.row_offset + shard.rows;
                    let row = offset + first_row + ((bytes.len() - rest.len()) / row_bytes) as u32;
                    if rest.is_empty() || row < shard.row_offset || row >= end {
                        continue;
                    }
                    let n = (rest.len() / row_bytes).min((end - row) as usize);
                    let (head, tail) = rest.split_at(n * row_bytes);
                    rest = tail;
                    packing.write_rows(device, &info.name, *shard, row - shard.row_offset, head)?;
                }
                Ok(())
            }
            None => Err(missing(&info.name)),
        }
    }
}

fn vector_values(info: &TensorInfo, tensor: Tensor, bytes: &[u8]) -> Result<Vec<f32>, EngineError> {
    let mut values = vec![0.0; tensor.rows as usize * tensor.cols as usize];
    dequantize(info.ty, bytes, &mut values)?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(element) => Err(EngineError::NonFiniteWeight { tensor: info.name.clone(), element }),
        None => Ok(values),
    }
}

impl Packing {
    /// Writes whole rows of the file to rows `first_row..` of the shard.
    fn write_rows(
        &mut self,
        device: &mut Device,
        tensor: &str,
        shard: Weight,
        first_row: u32,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let wrong = |source| EngineError::Weights { tensor: tensor.to_owned(), source };
        let Self { quants, scales, times } = self;
        if let Device::Cpu(cpu) = device {
            return timed(&mut times.repack_ms, || cpu.pack_rows(shard, first_row, bytes))?.map_err(wrong);
        }
        let Weight { format, cols, .. } = shard;
        let n = bytes.len() / format.file_row_bytes(cols).max(1);
        let (quants_per_row, scales_per_row) = words_per_row(format, cols);
        quants.resize(n * quants_per_row as usize, 0);
        scales.resize(n * scales_per_row as usize, 0);
        timed(&mut times.repack_ms, || pack_rows(format, cols, bytes, quants, scales)).map_err(wrong)?;
        timed(&mut times.upload_ms, || device.write_rows(shard, first_row, quants, scales))
    }
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
