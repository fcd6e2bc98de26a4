//! The engine as a wasm module: one class, whose structured values are plain objects.
//!
//! The only code that knows wasm-bindgen. Calls must not overlap: the worker that owns the class
//! runs one at a time.

mod hash;

use std::cell::RefCell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use signbit_tokenizer::{Message, RenderOptions};
use wasm_bindgen::prelude::*;

use crate::chat::{ChatGeneration, ChatRequest};
use crate::check::check_kernels;
use crate::device::{
    Activations, CpuDevice, CpuKernels, CpuOptions, Device, DeviceInfo, GpuDevice, GpuOptions,
};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::loader::{LoadTimes, LoadedModel, Loader};
use crate::memory::{Fallback, MemoryPlan};
use crate::model::{KvCache, ModelOptions};
use crate::placement::{Placement, SessionId};
use crate::snapshot::{CHUNK_BYTES, Manifest, Restore};
use crate::tuning::{Choose, Tuning, Variant};

/// The engine for one worker.
#[wasm_bindgen]
pub struct WasmEngine {
    inner: Rc<RefCell<Inner>>,
}

/// What the class owns. It is taken out while a call runs, so that overlapping calls fail with
/// `busy` instead of corrupting each other.
#[derive(Debug)]
enum Inner {
    Busy,
    Ready(Box<Ready>),
}

#[derive(Debug)]
struct Ready {
    engine: Engine,
    fallback_reason: Option<FallbackReason>,
    loader: Option<Loader>,
    generation: Option<ChatGeneration>,
    /// Where the next generation runs.
    placement: Option<Placement>,
    /// A snapshot whose chunks are being read.
    snapshot: Option<Manifest>,
    /// A session that is being restored.
    restore: Option<(SessionId, Restore)>,
}

impl Ready {
    /// Abandons all that is under way with a session.
    fn forget_session(&mut self) {
        (self.generation, self.placement, self.snapshot, self.restore) = (None, None, None, None);
    }

    /// Ends or abandons the reply, if there is one.
    fn end_generation(&mut self) {
        if let Some(generation) = self.generation.take() {
            self.engine.end_chat(generation);
        }
    }

    /// Frees what a failed load has allocated.
    fn abandon_load(&mut self, error: EngineError) -> JsError {
        self.loader = None;
        self.engine.unload();
        error.into()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CreateOptions {
    backend: Backend,
    /// Take a software adapter for a GPU where the backend is `auto`: for tests of what follows.
    accept_software: bool,
    activations: Option<ActivationsOption>,
    max_binding_bytes: Option<u64>,
    max_buffer_bytes: Option<u64>,
    minimum_limits: bool,
    memory_budget_bytes: Option<u64>,
    fail_allocation_above_bytes: Option<u64>,
    browser_subgroups: bool,
    /// What the browser calls the adapter, and its vendor.
    adapter_name: Option<String>,
    adapter_vendor: Option<String>,
    drop_kernel: Option<String>,
    timestamps: bool,
    /// See `Engine::set_checkpoint_bytes`.
    checkpoint_bytes: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Backend {
    #[default]
    Auto,
    WebGpu,
    Cpu,
}

/// See [`Activations`].
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ActivationsOption {
    F32,
    Int10,
}

impl From<ActivationsOption> for Activations {
    fn from(option: ActivationsOption) -> Self {
        match option {
            ActivationsOption::F32 => Self::F32,
            ActivationsOption::Int10 => Self::Int10,
        }
    }
}

/// Why the CPU computes although a GPU would have been preferred.
#[derive(Debug, Serialize)]
struct FallbackReason {
    code: &'static str,
    message: String,
}

impl FallbackReason {
    fn new(error: &EngineError) -> Self {
        let code = match error {
            EngineError::WebGpuUnavailable { cause, .. } if has_webgpu() => cause.code(),
            EngineError::WebGpuUnavailable { .. } => "no_webgpu",
            other => other.code(),
        };
        Self { code, message: error.to_string() }
    }
}

/// Whether the browser knows WebGPU, be there an adapter or not.
fn has_webgpu() -> bool {
    let navigator = js_sys::Reflect::get(&js_sys::global(), &"navigator".into());
    navigator.is_ok_and(|navigator| js_sys::Reflect::has(&navigator, &"gpu".into()).unwrap_or(false))
}

/// What the engine runs on, and why.
#[derive(Serialize)]
struct DeviceReport<'d> {
    #[serde(flatten)]
    info: &'d DeviceInfo,
    fallback_reason: &'d Option<FallbackReason>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoadOptions {
    context_length: Option<u32>,
    yarn: Option<YarnOption>,
    /// The name of a kernel variant; the fastest if there is none.
    variant: Option<String>,
    /// What the engine's `tuning` gave after an earlier load, perhaps of another version.
    tuning: Option<serde_json::Value>,
    kv_cache: Option<KvCache>,
    /// The model's digest, if the caller has verified the bytes that will come.
    digest: Option<String>,
    memory_fallback: Option<Fallback>,
}

/// Whether a file's YaRN scaling is applied.
#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum YarnOption {
    File,
    None,
}

#[derive(Serialize)]
struct ModelInfo<'m> {
    name: Option<&'m str>,
    architecture: String,
    parameters: u64,
    context_length: u32,
    trained_context_length: u32,
    kv_cache: KvCache,
    vocab_size: u32,
    weight_bytes: u64,
    tensor_types: &'m std::collections::BTreeMap<String, u32>,
    layers: u32,
    has_thinking: bool,
    sampling: SamplingInfo,
    skipped: &'m [(String, String)],
    warnings: &'m [String],
    plan: &'m MemoryPlan,
    digest: &'m str,
    load: LoadTimes,
}

#[derive(Serialize)]
struct SamplingInfo {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
}

#[derive(Serialize)]
struct Started {
    prompt_tokens: usize,
    reused_tokens: usize,
}

/// The resident session.
#[derive(Serialize)]
struct SessionInfo<'s> {
    #[serde(flatten)]
    session: &'s SessionId,
    tokens: usize,
}

#[derive(Serialize)]
struct Stats<'m> {
    /// Of the loaded model.
    digest: Option<&'m str>,
    device: crate::device::Counters,
    memory: Option<&'m MemoryPlan>,
    session_tokens: usize,
    /// What one decoded token costs.
    decode: Option<crate::model::StepCost>,
    /// How the products of decode are computed, and what else was tried.
    tuning: Option<&'m Tuning>,
}

/// What measurements of the device itself give.
#[derive(Serialize)]
struct Measurements {
    copy_bandwidth_bytes_per_s: f64,
    /// Null where the device cannot time single dispatches.
    kernels: Option<crate::profile::Profile>,
}

/// The most logits that one call returns: 1 GiB.
const MAX_SCORE_VALUES: u64 = 1 << 28;

type JsResult<T> = Result<T, JsError>;

/// A JavaScript `Error` with the engine's `code`.
struct JsError(JsValue);

impl From<JsError> for JsValue {
    fn from(error: JsError) -> Self {
        error.0
    }
}

impl From<EngineError> for JsError {
    fn from(error: EngineError) -> Self {
        Self::new(error.code(), &error.to_string())
    }
}

impl From<serde_json::Error> for JsError {
    fn from(error: serde_json::Error) -> Self {
        Self::new("invalid_request", &error.to_string())
    }
}

impl JsError {
    fn new(code: &str, message: &str) -> Self {
        let error = js_sys::Error::new(message);
        // Setting a property of a fresh Error cannot fail.
        let _ = js_sys::Reflect::set(&error, &"code".into(), &code.into());
        Self(error.into())
    }
}

/// Reads a plain object. JSON in between keeps integers exact and needs no further library.
fn from_js<T: for<'de> Deserialize<'de>>(value: &JsValue) -> JsResult<T> {
    if value.is_undefined() || value.is_null() {
        return Ok(serde_json::from_str("{}")?);
    }
    // BigInts and cycles make it throw, functions make it undefined.
    let text = js_sys::JSON::stringify(value).ok().and_then(|text| JsValue::from(text).as_string());
    let text = text.ok_or_else(|| JsError::new("invalid_request", "the value cannot be written as JSON"))?;
    Ok(serde_json::from_str(&text)?)
}

fn to_js<T: Serialize>(value: &T) -> JsResult<JsValue> {
    js_sys::JSON::parse(&serde_json::to_string(value)?).map_err(JsError)
}

fn byte_count(value: Option<f64>) -> Option<u64> {
    // Sizes come as JavaScript numbers; anything that is no whole count is unknown.
    value.filter(|v| v.is_finite() && *v >= 0.0).map(|v| v as u64)
}

/// A tuning that cannot be read is as good as none.
fn tuning_from(value: Option<serde_json::Value>) -> Tuning {
    value.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

fn variant_named(name: &str) -> JsResult<Variant> {
    Variant::ALL.into_iter().find(|v| v.name() == name).ok_or_else(|| {
        let names = Variant::ALL.map(Variant::name).join(", ");
        JsError::new("invalid_request", &format!("there is no variant {name:?}: choose one of {names}"))
    })
}

/// Sends panics to the console, where the worker's error follows.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.to_string();
        let console = js_sys::Reflect::get(&js_sys::global(), &"console".into());
        let error = console.and_then(|c| js_sys::Reflect::get(&c, &"error".into()).map(|f| (c, f)));
        if let Ok((console, function)) = error
            && let Some(function) = function.dyn_ref::<js_sys::Function>()
        {
            // Nothing is left to do if even the console fails.
            let _ = function.call1(&console, &message.into());
        }
    }));
}

/// Puts the engine back when a call ends, however it ends.
struct Lease {
    inner: Rc<RefCell<Inner>>,
    ready: Option<Box<Ready>>,
}

impl Lease {
    fn ready(&mut self) -> JsResult<&mut Ready> {
        self.ready.as_deref_mut().ok_or_else(|| JsError::new("internal", "the engine is gone"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(ready) = self.ready.take() {
            *self.inner.borrow_mut() = Inner::Ready(ready);
        }
    }
}

impl WasmEngine {
    fn lease(&self) -> JsResult<Lease> {
        match self.inner.replace(Inner::Busy) {
            Inner::Ready(ready) => Ok(Lease { inner: Rc::clone(&self.inner), ready: Some(ready) }),
            Inner::Busy => Err(JsError::new("busy", "the engine is working on another call")),
        }
    }
}

#[wasm_bindgen]
impl WasmEngine {
    /// Opens a device: `{ backend: 'auto' | 'webgpu' | 'cpu', accept_software?, activations?: 'f32' | 'int10',
    /// max_binding_bytes?, max_buffer_bytes?, minimum_limits?, memory_budget_bytes?,
    /// fail_allocation_above_bytes?, browser_subgroups?, adapter_name?, adapter_vendor?, drop_kernel?,
    /// timestamps?, checkpoint_bytes? }`.
    ///
    /// `auto` is a GPU that is no software, and the CPU where there is none.
    pub async fn create(options: JsValue) -> Result<WasmEngine, JsValue> {
        let options: CreateOptions = from_js(&options)?;
        let is_auto = options.backend == Backend::Auto;
        let gpu_options = GpuOptions {
            refuse_software: is_auto && !options.accept_software,
            max_binding_bytes: options.max_binding_bytes,
            max_buffer_bytes: options.max_buffer_bytes,
            minimum_limits: options.minimum_limits,
            memory_budget_bytes: options.memory_budget_bytes,
            fail_allocation_above_bytes: options.fail_allocation_above_bytes,
            browser_subgroups: options.browser_subgroups,
            adapter_name: options.adapter_name,
            adapter_vendor: options.adapter_vendor,
            drop_kernel: options.drop_kernel,
            timestamps: options.timestamps,
            read_back_bytes: None,
        };
        let cpu_options = CpuOptions {
            kernels: CpuKernels::Fast(options.activations.map_or_else(Activations::default, Into::into)),
            max_buffer_bytes: options.max_binding_bytes.or(options.max_buffer_bytes),
            memory_budget_bytes: options.memory_budget_bytes,
            fail_allocation_above_bytes: options.fail_allocation_above_bytes,
            ..CpuOptions::default()
        };
        let cpu = || Device::Cpu(Box::new(CpuDevice::new(cpu_options)));
        let (device, fallback_reason) = match options.backend {
            Backend::Cpu => (cpu(), None),
            Backend::WebGpu | Backend::Auto => match GpuDevice::open(gpu_options).await {
                Ok(gpu) => (Device::Gpu(Box::new(gpu)), None),
                Err(error) if is_auto => (cpu(), Some(FallbackReason::new(&error))),
                Err(error) => return Err(JsError::from(error).into()),
            },
        };
        let mut engine = Engine::new(device);
        if let Some(n_bytes) = options.checkpoint_bytes {
            engine.set_checkpoint_bytes(n_bytes);
        }
        let ready = Ready {
            engine,
            fallback_reason,
            loader: None,
            generation: None,
            placement: None,
            snapshot: None,
            restore: None,
        };
        Ok(Self { inner: Rc::new(RefCell::new(Inner::Ready(Box::new(ready)))) })
    }

    /// Says how many milliseconds a submit may take.
    pub fn set_time_budget(&self, milliseconds: f64) -> Result<(), JsValue> {
        self.lease()?.ready()?.engine.set_time_budget(milliseconds);
        Ok(())
    }

    /// What the engine runs on, and why that is the CPU where a GPU would have been preferred.
    pub fn device(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let Ready { engine, fallback_reason, .. } = lease.ready()?;
        Ok(to_js(&DeviceReport { info: engine.device_info(), fallback_reason })?)
    }

    /// Resolves with the reason when the device is lost, and never where that cannot happen.
    pub fn lost(&self) -> Result<js_sys::Promise, JsValue> {
        let lost = self.lease()?.ready()?.engine.device_mut().lost();
        Ok(wasm_bindgen_futures::future_to_promise(async { Ok(lost.await.into()) }))
    }

    /// Drops the resident model and expects the bytes of another: `{ context_length?, yarn?,
    /// kv_cache?, memory_fallback?, variant?, tuning?, digest? }`. With a digest the bytes are not hashed again.
    pub fn begin_load(&self, options: JsValue) -> Result<(), JsValue> {
        let options: LoadOptions = from_js(&options)?;
        let choose = match options.variant {
            Some(name) => Choose::Fixed(variant_named(&name)?),
            None => Choose::Fastest { remembered: tuning_from(options.tuning) },
        };
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.loader = None;
        let defaults = ModelOptions::default();
        let mut loader = Loader::new(ModelOptions {
            context_length: options.context_length.unwrap_or(defaults.context_length),
            ignore_yarn: options.yarn == Some(YarnOption::None),
            kv_cache: options.kv_cache.unwrap_or(defaults.kv_cache),
            memory_fallback: options.memory_fallback.unwrap_or(defaults.memory_fallback),
        });
        if let Some(digest) = options.digest {
            loader = loader.with_digest(digest).map_err(JsError::from)?;
        }
        ready.forget_session();
        ready.engine.unload();
        ready.engine.choose_variants(choose);
        ready.loader = Some(loader);
        Ok(())
    }

    /// Starts a file of the model; `file_bytes` is its size if known.
    pub fn begin_part(&self, index: u32, file_bytes: Option<f64>) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        let loader = lease.ready()?.loader.as_mut().ok_or_else(no_load)?;
        Ok(loader.begin_part(index as usize, byte_count(file_bytes)).map_err(JsError::from)?)
    }

    /// Takes the next bytes of the current file.
    pub async fn push(&self, bytes: Vec<u8>) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        let loader = ready.loader.as_mut().ok_or_else(no_load)?;
        let pushed = loader.push(ready.engine.device_mut(), &bytes).await;
        Ok(to_js(&pushed.map_err(|error| ready.abandon_load(error))?)?)
    }

    /// Ends the current file.
    pub async fn end_part(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        let loader = ready.loader.as_mut().ok_or_else(no_load)?;
        let ended = loader.end_part(ready.engine.device_mut()).await.map(|()| loader.progress());
        Ok(to_js(&ended.map_err(|error| ready.abandon_load(error))?)?)
    }

    /// Makes the loaded model the resident one.
    pub async fn finish_load(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        let loader = ready.loader.take().ok_or_else(no_load)?;
        let loaded = ready.engine.install(loader).await.map_err(JsError::from)?;
        Ok(to_js(&model_info(loaded))?)
    }

    /// Frees the model, or abandons one that is loading.
    pub fn unload(&self) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.forget_session();
        ready.loader = None;
        ready.engine.unload();
        Ok(())
    }

    /// Prepares a reply; see `ChatRequest`.
    pub async fn start(&self, request: JsValue) -> Result<JsValue, JsValue> {
        let request: ChatRequest = from_js(&request)?;
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.end_generation();
        let placement = ready.placement.take();
        (ready.snapshot, ready.restore) = (None, None);
        let mut generation = ready.engine.start_chat(request).map_err(JsError::from)?;
        if let Some(Placement { session, .. }) = placement {
            generation.run_in(session);
        }
        let usage = generation.usage();
        ready.generation = Some(generation);
        Ok(to_js(&Started {
            prompt_tokens: usage.prompt_tokens as usize,
            reused_tokens: usage.reused_tokens as usize,
        })?)
    }

    /// One slice of work on the reply; see `ChatDelta`.
    pub async fn step(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        let generation = ready
            .generation
            .as_mut()
            .ok_or_else(|| JsError::new("invalid_request", "no reply was started"))?;
        match ready.engine.step_chat(generation).await {
            Ok(delta) => Ok(to_js(&delta)?),
            Err(error) => {
                ready.generation = None;
                Err(JsError::from(error).into())
            }
        }
    }

    /// Ends or abandons the reply.
    pub fn finish(&self) -> Result<(), JsValue> {
        self.lease()?.ready()?.end_generation();
        Ok(())
    }

    /// Decides where a reply will run, and what is to be done before `start`: see `Placement`. `fresh` is the id of
    /// a session that has no name.
    pub fn place(&self, request: JsValue, fresh: &str) -> Result<JsValue, JsValue> {
        let request: ChatRequest = from_js(&request)?;
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.end_generation();
        let placement = ready.engine.place(&request, fresh).map_err(JsError::from)?;
        let value = to_js(&placement)?;
        ready.placement = Some(placement);
        Ok(value)
    }

    /// The resident session: `{ id, is_named, tokens }`, or null where it has no id or holds nothing.
    pub fn session(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let engine = &lease.ready()?.engine;
        let sound = engine.session().ok().filter(|session| session.is_sound());
        let tokens = sound.map_or(0, |session| session.ledger().len());
        let resident = engine.session_id().filter(|_| tokens > 0);
        Ok(to_js(&resident.map(|session| SessionInfo { session, tokens }))?)
    }

    /// Gives the resident session a name.
    pub fn name_session(&self, id: String, is_named: bool) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        Ok(lease.ready()?.engine.name_session(Some(SessionId { id, is_named })).map_err(JsError::from)?)
    }

    /// Begins a snapshot of the resident session: its manifest. Chunks whose digest is not yet known are to be
    /// read with `snapshot_chunk`, then `finish_snapshot` gives the manifest that is kept.
    pub fn snapshot(&self, chunk_bytes: Option<u32>) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.end_generation();
        let manifest = ready.engine.snapshot(chunk_bytes.unwrap_or(CHUNK_BYTES)).map_err(JsError::from)?;
        let value = to_js(&manifest)?;
        ready.snapshot = Some(manifest);
        Ok(value)
    }

    /// A chunk of the snapshot: `{ digest, bytes }`.
    pub async fn snapshot_chunk(&self, index: u32) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let Ready { engine, snapshot, .. } = lease.ready()?;
        let manifest = snapshot.as_mut().ok_or_else(no_snapshot)?;
        let bytes = engine.read_chunk(manifest, index as usize).await.map_err(JsError::from)?;
        let chunk = js_sys::Object::new();
        let digest = manifest.chunks.get(index as usize).and_then(|chunk| chunk.digest.as_deref());
        js_sys::Reflect::set(&chunk, &"digest".into(), &digest.into())?;
        js_sys::Reflect::set(&chunk, &"bytes".into(), &js_sys::Uint8Array::from(&bytes[..]))?;
        Ok(chunk.into())
    }

    /// The complete manifest of the snapshot.
    pub fn finish_snapshot(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        let manifest = ready.snapshot.take().ok_or_else(no_snapshot)?;
        Ok(to_js(&ready.engine.complete_snapshot(manifest).map_err(JsError::from)?)?)
    }

    /// Begins to make a snapshot the resident session. An error leaves the resident session as it is.
    pub fn begin_restore(&self, manifest: JsValue, id: String, is_named: bool) -> Result<(), JsValue> {
        let manifest = manifest_from(&manifest)?;
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.end_generation();
        let restore = ready.engine.begin_restore(manifest).map_err(JsError::from)?;
        ready.restore = Some((SessionId { id, is_named }, restore));
        Ok(())
    }

    /// Takes a chunk of the snapshot, in any order. The first ends the resident session.
    pub async fn restore_chunk(&self, bytes: Vec<u8>) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        let Ready { engine, restore, .. } = lease.ready()?;
        let (_, restore) = restore.as_mut().ok_or_else(no_snapshot)?;
        Ok(engine.restore_chunk(restore, &bytes).await.map_err(JsError::from)?)
    }

    /// Makes the snapshot the resident session.
    pub fn finish_restore(&self) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        let (session, restore) = ready.restore.take().ok_or_else(no_snapshot)?;
        ready.engine.finish_restore(restore).map_err(JsError::from)?;
        Ok(ready.engine.name_session(Some(session)).map_err(JsError::from)?)
    }

    /// Makes a session that is kept elsewhere one that `place` may choose.
    pub fn know(&self, id: String, manifest: JsValue, is_named: bool) -> Result<(), JsValue> {
        let manifest = manifest_from(&manifest)?;
        let mut lease = self.lease()?;
        let session = SessionId { id, is_named };
        Ok(lease.ready()?.engine.know(session, &manifest).map_err(JsError::from)?)
    }

    /// Forgets what `know` was told.
    pub fn forget(&self, id: &str) -> Result<(), JsValue> {
        self.lease()?.ready()?.engine.forget(id);
        Ok(())
    }

    /// Ids of a text.
    pub fn tokenize(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, JsValue> {
        let mut lease = self.lease()?;
        let loaded = lease.ready()?.engine.loaded().map_err(JsError::from)?;
        Ok(loaded.tokenizer.encode(text, parse_special))
    }

    /// Text of ids, control tokens included.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, JsValue> {
        let mut lease = self.lease()?;
        let loaded = lease.ready()?.engine.loaded().map_err(JsError::from)?;
        Ok(loaded.tokenizer.decode(ids))
    }

    /// A conversation as the model's template renders it: `{ text, ids }`.
    pub fn render(&self, messages: JsValue, options: JsValue) -> Result<JsValue, JsValue> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Options {
            tools: Vec<serde_json::Value>,
            enable_thinking: Option<bool>,
        }
        #[derive(Serialize)]
        struct Output {
            text: String,
            ids: Vec<u32>,
        }
        let messages: Vec<Message> = from_js(&messages)?;
        let Options { tools, enable_thinking } = from_js(&options)?;
        let options = RenderOptions { tools, enable_thinking, ..RenderOptions::default() };
        let mut lease = self.lease()?;
        let rendered = lease.ready()?.engine.render(&messages, &options).map_err(JsError::from)?;
        Ok(to_js(&Output { text: rendered.text, ids: rendered.ids })?)
    }

    /// Logits after every position of `ids`, [tokens, V], from an empty session.
    pub async fn score(&self, ids: Vec<u32>, chunk: u32) -> Result<js_sys::Float32Array, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.generation = None;
        let vocab = ready.engine.loaded().map_err(JsError::from)?.model.config().vocab_size;
        let n = u64::from(vocab) * ids.len() as u64;
        if n > MAX_SCORE_VALUES {
            let (needed, limit) = (n * 4, MAX_SCORE_VALUES * 4);
            let error = EngineError::LimitTooSmall { what: "the logits".to_owned(), needed, limit };
            return Err(JsError::from(error).into());
        }
        // Chunks go straight to JavaScript's memory: the module's own never shrinks again.
        let logits = js_sys::Float32Array::new_with_length(n as u32);
        let mut offset = 0;
        let result = ready.engine.score(&ids, chunk, |rows| {
            let end = offset + rows.len() as u32;
            logits.subarray(offset, end).copy_from(rows);
            offset = end;
            Ok(())
        });
        result.await.map_err(JsError::from)?;
        Ok(logits)
    }

    /// Forgets the resident session.
    pub fn reset(&self) -> Result<(), JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.generation = None;
        Ok(ready.engine.reset().map_err(JsError::from)?)
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let engine = &lease.ready()?.engine;
        let loaded = engine.loaded().ok();
        let model = loaded.map(|loaded| &loaded.model);
        Ok(to_js(&Stats {
            digest: loaded.map(|loaded| loaded.digest.as_str()),
            device: engine.counters(),
            memory: model.map(crate::model::Model::memory),
            session_tokens: engine.ledger().map_or(0, <[u32]>::len),
            decode: model.map(crate::model::Model::step_cost),
            tuning: engine.tuning().ok(),
        })?)
    }

    /// Every kernel against its CPU reference, on the cases whose kernel's name contains `filter`.
    pub async fn check_kernels(&self, filter: Option<String>) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        // The cases overwrite the state on the device.
        ready.generation = None;
        if ready.engine.loaded().is_ok() {
            ready.engine.reset().map_err(JsError::from)?;
        }
        let device = ready.engine.device_mut();
        let reports = check_kernels(device, filter.as_deref().unwrap_or("")).await.map_err(JsError::from)?;
        Ok(to_js(&reports)?)
    }

    /// How fast the device copies, and the time of every kernel: see `Device::copy_bandwidth` and
    /// `Engine::profile`.
    pub async fn profile(&self, n_tokens: u32, runs: u32) -> Result<JsValue, JsValue> {
        let mut lease = self.lease()?;
        let ready = lease.ready()?;
        ready.generation = None;
        let kernels = ready.engine.profile(n_tokens, runs).await.map_err(JsError::from)?;
        let copied = ready.engine.device_mut().copy_bandwidth().await.map_err(JsError::from)?;
        Ok(to_js(&Measurements { copy_bandwidth_bytes_per_s: copied, kernels })?)
    }
}

fn no_snapshot() -> JsError {
    JsError::new("invalid_request", "no snapshot was begun")
}

/// A manifest that is none is a damaged one.
fn manifest_from(value: &JsValue) -> JsResult<Manifest> {
    from_js(value).map_err(|error| {
        let message =
            js_sys::Reflect::get(&error.0, &"message".into()).ok().and_then(|text| text.as_string());
        JsError::new(
            "snapshot_corrupt",
            &format!("the manifest cannot be read: {}", message.unwrap_or_default()),
        )
    })
}

fn no_load() -> JsError {
    JsError::new("invalid_request", "no load was begun")
}

fn model_info(loaded: &LoadedModel) -> ModelInfo<'_> {
    let (model, config) = (&loaded.model, loaded.model.config());
    ModelInfo {
        name: config.name.as_deref(),
        architecture: config.architecture.key().to_owned(),
        parameters: loaded.info.parameters,
        context_length: model.context_length(),
        trained_context_length: config.context_length,
        kv_cache: model.kv_cache(),
        vocab_size: config.vocab_size,
        weight_bytes: model.memory().weight_bytes,
        tensor_types: &loaded.info.tensor_types,
        layers: config.num_hidden_layers,
        has_thinking: loaded.has_thinking(),
        sampling: SamplingInfo {
            temperature: config.sampling.temperature,
            top_k: config.sampling.top_k,
            top_p: config.sampling.top_p,
            min_p: config.sampling.min_p,
        },
        skipped: &loaded.info.skipped,
        warnings: &loaded.info.warnings,
        plan: model.memory(),
        digest: &loaded.digest,
        load: loaded.load,
    }
}
