//! Turns a stream of GGUF bytes into a model on the device.
//!
//! Bytes arrive in file order in pieces of any size. The header alone decides whether the model
//! can run and what is allocated; weights then go row by row into their device layout, so that
//! the host never holds a whole file, nor a whole large tensor.

use std::collections::BTreeMap;

use signbit_gguf::split::SplitInfo;
use signbit_gguf::{Header, Parse, TensorInfo};
use signbit_tokenizer::{ChatTemplate, Message, RenderOptions, Role, Tokenizer};

use crate::device::Device;
use crate::digest::{ModelDigest, is_digest};
use crate::error::EngineError;
pub use crate::model::weights::LoadTimes;
use crate::model::weights::{Packing, Weights, timed};
use crate::model::{Model, ModelOptions};
use crate::planner::Planner;

/// A model with the text side that belongs to it.
#[derive(Debug)]
pub struct LoadedModel {
    /// Weights, caches and plans.
    pub model: Model,
    /// The file's tokenizer.
    pub tokenizer: Tokenizer,
    /// The file's chat template, or ChatML.
    pub template: ChatTemplate,
    /// What the file says about itself.
    pub info: FileInfo,
    /// See [`crate::digest`]; empty until all weights have arrived.
    pub digest: String,
    /// What loading took.
    pub load: LoadTimes,
}

impl LoadedModel {
    /// Whether the model's template can switch thinking on and off.
    pub fn has_thinking(&self) -> bool {
        let prompt = |on| {
            let options = RenderOptions { enable_thinking: Some(on), ..RenderOptions::default() };
            let messages = [Message::new(Role::User, "Hi")];
            self.template.render(&self.tokenizer, &messages, &options).map(|r| r.text)
        };
        matches!((prompt(true), prompt(false)), (Ok(on), Ok(off)) if on != off)
    }
}

/// What a file says about itself.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct FileInfo {
    /// Number of weights.
    pub parameters: u64,
    /// Number of tensors by type name.
    pub tensor_types: BTreeMap<String, u32>,
    /// Tensors that are not used, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Things in the file that deserve a word.
    pub warnings: Vec<String>,
}

/// How far a part has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Progress {
    /// Whether the part's header is known.
    pub header_complete: bool,
    /// Number of parts of the model, once the first header is known.
    pub n_parts: u32,
    /// Bytes of this part that have arrived.
    pub bytes_seen: u64,
    /// Bytes of this part that are needed, once its header is known.
    pub bytes_total: Option<u64>,
}

/// Receives a model's bytes.
///
/// A file that is not split is pushed once. For a split model the headers of all parts are needed
/// before any weights: push each part until its header is complete, then push every part again
/// from its start.
#[derive(Debug)]
pub struct Loader {
    options: ModelOptions,
    known_digest: Option<String>,
    headers: Vec<Option<Header>>,
    part: usize,
    /// Bytes of the header that is arriving.
    prefix: Vec<u8>,
    /// How long the prefix must be before parsing it again is worth it.
    parse_at: u64,
    file_bytes: Option<u64>,
    bytes_seen: u64,
    stage: Option<Stage>,
    /// Parts whose weights have arrived.
    filled: Vec<bool>,
    /// Whether a call ended with an error, or was abandoned.
    has_failed: bool,
}

/// A model whose weights are arriving.
#[derive(Debug)]
struct Stage {
    weights: Weights,
    model: LoadedModel,
    /// The part whose weights are arriving.
    part: Option<usize>,
    /// Tensors of that part in file order.
    queue: Vec<TensorInfo>,
    next: usize,
    rows_done: u64,
    /// Bytes of the tensor at `next` that are not yet written: the beginning of a run of rows.
    pending: Vec<u8>,
    /// None where it is known.
    digest: Option<ModelDigest>,
    packing: Packing,
}

impl Loader {
    /// A loader that expects the first part.
    pub fn new(options: ModelOptions) -> Self {
        Self {
            options,
            known_digest: None,
            headers: Vec::new(),
            part: 0,
            prefix: Vec::new(),
            parse_at: 0,
            file_bytes: None,
            bytes_seen: 0,
            stage: None,
            filled: Vec::new(),
            has_failed: false,
        }
    }

    /// Takes over the model's digest from a caller who has verified by other means that these are the bytes
    /// it was computed from: they are not hashed again.
    pub fn with_digest(mut self, digest: String) -> Result<Self, EngineError> {
        if !is_digest(&digest) {
            let reason = format!("{digest:?} is no digest: it has 64 lower-case hexadecimal digits");
            return Err(EngineError::InvalidRequest { reason });
        }
        self.known_digest = Some(digest);
        Ok(self)
    }

    /// Starts part `index` from its first byte. `file_bytes` is its size if it is known.
    ///
    /// # Errors
    /// The model has no such part.
    pub fn begin_part(&mut self, index: usize, file_bytes: Option<u64>) -> Result<(), EngineError> {
        let known = self.n_parts();
        if index > 0 && index >= known {
            let reason = format!("part {index} was given, and the model has {known}");
            return Err(EngineError::InvalidRequest { reason });
        }
        self.part = index;
        self.prefix.clear();
        self.parse_at = 0;
        self.file_bytes = file_bytes;
        self.bytes_seen = 0;
        if let (Some(stage), Some(Some(header))) = (&mut self.stage, self.headers.get(index)) {
            stage.begin_part(index, header);
            if let Some(filled) = self.filled.get_mut(index) {
                *filled = false;
            }
        }
        Ok(())
    }

    fn n_parts(&self) -> usize {
        self.headers.len()
    }

    /// Takes the next bytes of the current part.
    ///
    /// What completes the headers waits for the model's memory; see [`crate::memory`].
    ///
    /// # Errors
    /// What the file, the model or the device does not allow. The loader takes nothing afterwards and is to
    /// be dropped. What it allocated is freed if that was the failure, else with [`Device::free_from`].
    pub async fn push(&mut self, device: &mut Device, bytes: &[u8]) -> Result<Progress, EngineError> {
        self.begin_call()?;
        self.take(device, bytes).await?;
        self.has_failed = false;
        Ok(self.progress())
    }

    /// Counts a call as failed until it has ended well.
    fn begin_call(&mut self) -> Result<(), EngineError> {
        if std::mem::replace(&mut self.has_failed, true) {
            let reason = "this load has failed: begin another".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        Ok(())
    }

    async fn take(&mut self, device: &mut Device, bytes: &[u8]) -> Result<(), EngineError> {
        let start = self.bytes_seen;
        self.bytes_seen += bytes.len() as u64;
        if self.header().is_none() {
            self.push_header(device, bytes).await?;
        } else if let Some(stage) = self.stage.as_mut().filter(|stage| stage.part == Some(self.part)) {
            stage.push(device, start, bytes, self.headers.get(self.part).and_then(Option::as_ref))?;
        }
        device.wait_for_uploads().await
    }

    fn header(&self) -> Option<&Header> {
        self.headers.get(self.part).and_then(Option::as_ref)
    }

    /// What is known of the current part.
    pub fn progress(&self) -> Progress {
        let header = self.header();
        Progress {
            header_complete: header.is_some(),
            n_parts: self.n_parts() as u32,
            bytes_seen: self.bytes_seen,
            bytes_total: header.map(needed_bytes),
        }
    }

    async fn push_header(&mut self, device: &mut Device, bytes: &[u8]) -> Result<(), EngineError> {
        self.prefix.extend_from_slice(bytes);
        if (self.prefix.len() as u64) < self.parse_at {
            return Ok(());
        }
        let header = match Header::parse(&self.prefix, self.file_bytes)? {
            Parse::NeedMore { at_least } => {
                // Doubling keeps the work of parsing again in proportion to the header's size.
                self.parse_at =
                    at_least.max(self.prefix.len() as u64 * 2).min(self.file_bytes.unwrap_or(u64::MAX));
                return Ok(());
            }
            Parse::Complete(header) => header,
        };
        let prefix = std::mem::take(&mut self.prefix);
        if self.headers.is_empty() {
            let count = SplitInfo::from_metadata(&header.metadata)?.map_or(1, |split| split.count.max(1));
            self.headers.resize_with(count as usize, || None);
            self.filled = vec![false; count as usize];
        }
        if let Some(slot) = self.headers.get_mut(self.part) {
            *slot = Some(header);
        }
        if self.headers.iter().any(Option::is_none) {
            return Ok(());
        }
        let headers: Vec<Header> = self.headers.iter_mut().filter_map(Option::take).collect();
        let allocated = self.allocate(device, &headers).await;
        self.headers = headers.into_iter().map(Some).collect();
        allocated?;
        // The bytes behind the header are weights, unless this is a later part of a split model,
        // whose earlier parts have to come first.
        if let (Some(stage), [Some(header)]) = (&mut self.stage, self.headers.as_slice()) {
            stage.push(device, 0, &prefix, Some(header))?;
        }
        Ok(())
    }

    /// Decides from the headers alone whether and how the model runs, and allocates it.
    async fn allocate(&mut self, device: &mut Device, headers: &[Header]) -> Result<(), EngineError> {
        let planner = Planner::new(device.info(), headers, self.options)?;
        let mut plan = planner.highest()?;
        let digest = match (&self.known_digest, headers.first()) {
            (None, Some(first)) => Some(ModelDigest::new(&first.metadata)?),
            _ => None,
        };
        let mark = device.mark();
        let (model, weights) = loop {
            let watched = device.watch_allocations();
            let allocated = planner.allocate(device, &plan.placement);
            // What failed late is the cause of what failed after it.
            match device.check_allocations(watched).await.and(allocated) {
                Ok(allocated) => break allocated,
                Err(cause) => {
                    device.free_from(mark);
                    let EngineError::OutOfMemory { .. } = cause else { return Err(cause) };
                    plan = planner.below(&plan, cause)?;
                }
            }
        };
        if let Err(error) = model.write_rotations(device, 0).await {
            device.free_from(mark);
            return Err(error);
        }
        let model = planner.finish(model);
        let mut stage = Stage {
            weights,
            model,
            digest,
            packing: Packing::default(),
            part: None,
            queue: Vec::new(),
            next: 0,
            rows_done: 0,
            pending: Vec::new(),
        };
        if let [header] = headers {
            stage.begin_part(0, header);
        }
        self.stage = Some(stage);
        Ok(())
    }

    /// Ends the current part.
    ///
    /// # Errors
    /// Bytes are missing, or what [`Loader::push`] may say where this completes the headers. The loader is
    /// to be dropped as there.
    pub async fn end_part(&mut self, device: &mut Device) -> Result<(), EngineError> {
        self.begin_call()?;
        self.complete_part(device).await?;
        self.has_failed = false;
        Ok(())
    }

    async fn complete_part(&mut self, device: &mut Device) -> Result<(), EngineError> {
        if self.header().is_none() {
            // The size is known now, and with it how long the header can be.
            self.file_bytes = Some(self.bytes_seen);
            self.parse_at = 0;
            self.push_header(device, &[]).await?;
        }
        let Some(header) = self.header() else {
            let needed = self.parse_at.max(self.bytes_seen + 1);
            return Err(EngineError::Truncated { part: self.part, seen: self.bytes_seen, needed });
        };
        let needed = needed_bytes(header);
        // Without a stage, or with one that waits for another part, this was a header alone.
        let Some(stage) = self.stage.as_ref().filter(|stage| stage.part == Some(self.part)) else {
            return Ok(());
        };
        if stage.next < stage.queue.len() || self.bytes_seen < needed {
            return Err(EngineError::Truncated { part: self.part, seen: self.bytes_seen, needed });
        }
        if let Some(filled) = self.filled.get_mut(self.part) {
            *filled = true;
        }
        Ok(())
    }

    /// The loaded model, once every part has ended.
    ///
    /// # Errors
    /// A part has not ended, or the device failed; what was allocated is then to be freed with
    /// [`Device::free_from`].
    pub async fn finish(self, device: &mut Device) -> Result<LoadedModel, EngineError> {
        device.check().await?;
        if let Some(part) = self.filled.iter().position(|filled| !filled) {
            return Err(EngineError::Truncated { part, seen: self.bytes_seen, needed: self.bytes_seen + 1 });
        }
        let Some(Stage { mut model, digest, packing, .. }) = self.stage else {
            let (part, seen) = (self.part, self.bytes_seen);
            return Err(EngineError::Truncated { part, seen, needed: seen + 1 });
        };
        model.digest = digest.map(|digest| digest.finish()).or(self.known_digest).unwrap_or_default();
        model.load = packing.times;
        Ok(model)
    }
}

impl Stage {
    fn begin_part(&mut self, part: usize, header: &Header) {
        self.part = Some(part);
        let used = |t: &&TensorInfo| self.weights.contains(&t.name);
        self.queue = header.tensors.iter().filter(used).cloned().collect();
        self.queue.sort_by_key(|t| t.offset);
        self.next = 0;
        self.rows_done = 0;
        self.pending.clear();
        if let Some(digest) = &mut self.digest {
            digest.restart_tensor();
        }
    }

    /// Takes `bytes`, which stand at `start` in the part.
    fn push(
        &mut self,
        device: &mut Device,
        start: u64,
        bytes: &[u8],
        header: Option<&Header>,
    ) -> Result<(), EngineError> {
        let Some(header) = header else { return Ok(()) };
        while let Some(tensor) = self.queue.get(self.next) {
            let n_rows = tensor.n_rows().max(1);
            let row_bytes = tensor.n_bytes / n_rows;
            let run_rows = self.weights.rows_per_run(tensor).min(n_rows - self.rows_done);
            let run_start = header.data_start + tensor.offset + self.rows_done * row_bytes;
            let wanted = run_start + self.pending.len() as u64;
            let skipped = wanted.checked_sub(start).and_then(|skipped| usize::try_from(skipped).ok());
            let Some(arrived) = skipped.and_then(|skipped| bytes.get(skipped..)) else { return Ok(()) };
            let missing = (run_rows * row_bytes) as usize - self.pending.len();
            let Some(piece) = arrived.get(..missing) else {
                self.pending.extend_from_slice(arrived);
                return Ok(());
            };
            let mut pending = std::mem::take(&mut self.pending);
            // A run that lies in one piece is not copied.
            let run = match pending.is_empty() {
                true => piece,
                false => {
                    pending.extend_from_slice(piece);
                    &pending
                }
            };
            if let Some(digest) = &mut self.digest {
                timed(&mut self.packing.times.digest_ms, || digest.update(run));
            }
            self.weights.write(device, tensor, self.rows_done as u32, run, &mut self.packing)?;
            pending.clear();
            self.pending = pending;
            self.rows_done += run_rows;
            if self.rows_done == n_rows {
                if let Some(digest) = &mut self.digest {
                    digest.end_tensor(tensor);
                }
                self.next += 1;
                self.rows_done = 0;
            }
        }
        Ok(())
    }
}

/// Bytes of the part up to the end of its last tensor.
fn needed_bytes(header: &Header) -> u64 {
    header.data_start + header.tensors.iter().map(|t| t.offset + t.n_bytes).max().unwrap_or(0)
}
