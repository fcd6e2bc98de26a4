//! The GPU executor, through wgpu: natively and in the browser the same code.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_channel::oneshot;
use signbit_shaders::{Access, BufferId, Dispatch, Kernel, State, StateAccess};

use super::{Counters, DeviceInfo, Limits, MAX_REPORTS, Read, unknown_buffer};
use crate::clock::now_ms;
use crate::error::{EngineError, NoGpu};

/// How to open a GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Plan as if storage bindings could hold no more than this, for tests of sharding.
    pub max_binding_bytes: Option<u64>,
    /// Plan as if buffers could hold no more than this.
    pub max_buffer_bytes: Option<u64>,
    /// Open no software adapter: the CPU is faster by itself.
    pub refuse_software: bool,
    /// Ask for the limits that WebGPU guarantees instead of all that the adapter has.
    pub minimum_limits: bool,
    /// Bytes that a model's plan may take.
    pub memory_budget_bytes: Option<u64>,
    /// Run out of memory, as late as GPUs do, when buffers take more than this together: for tests.
    pub fail_allocation_above_bytes: Option<u64>,
    /// The page has arranged that a device of the browser has subgroups where its adapter does:
    /// wgpu does not ask for them there. Natively they are found without help.
    pub browser_subgroups: bool,
    /// Name and vendor of the adapter, which wgpu does not tell in a browser.
    pub adapter_name: Option<String>,
    /// See `adapter_name`.
    pub adapter_vendor: Option<String>,
    /// Run no workgroup of this kernel, as an adapter does that drops a dispatch: for tests.
    pub drop_kernel: Option<String>,
    /// Ask for timestamp queries where the adapter has them: for measurements.
    pub timestamps: bool,
    /// Read back no more bytes at once than this, instead of [`super::READ_BACK_BYTES`]: for tests.
    pub read_back_bytes: Option<u64>,
}

/// Writes wait in memory of their own until a submit takes them into their buffers. After this many
/// bytes one is made and waited for, so that a model which streams in needs no more.
pub const UPLOAD_BYTES: u64 = 16 << 20;

/// What is planned of a buffer or binding on Apple's GPUs, whatever they advertise: larger ones have
/// ended tabs on phones instead of failing.
const APPLE_BUFFER_BYTES: u64 = 128 << 20;

/// Bytes from one dispatch's parameters to the next: no device asks for a wider alignment.
const PARAMS_SLOT: u64 = 256;

/// Bytes that the parameters of a plan's dispatches take.
pub(super) fn params_bytes(n_dispatches: usize) -> u64 {
    PARAMS_SLOT * n_dispatches as u64
}

/// A dispatch with its GPU objects.
#[derive(Debug)]
pub(super) struct Bound {
    pipeline: wgpu::ComputePipeline,
    bind_group: wgpu::BindGroup,
    workgroups: [u32; 2],
}

impl Bound {
    fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.bind_group, &[]);
        pass.dispatch_workgroups(self.workgroups[0], self.workgroups[1], 1);
    }
}

/// A plan's dispatches with their GPU objects.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    bound: Vec<Bound>,
    _params: Option<Params>,
}

impl Prepared {
    pub(super) fn bound(&self) -> &[Bound] {
        &self.bound
    }
}

/// The parameters of a plan's dispatches, counted while they are alive.
#[derive(Debug)]
struct Params {
    buffer: wgpu::Buffer,
    live_bytes: Arc<AtomicU64>,
}

impl Drop for Params {
    fn drop(&mut self) {
        self.live_bytes.fetch_sub(self.buffer.size(), Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Pipeline {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// What the device said outside of any call.
#[derive(Debug, Default)]
struct Faults {
    lost: Option<String>,
    /// Who waits for the loss.
    watcher: Option<oneshot::Sender<String>>,
    error: Option<EngineError>,
}

/// A GPU with the buffers and pipelines of the resident model.
#[derive(Debug)]
pub struct GpuDevice {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: DeviceInfo,
    faults: Arc<Mutex<Faults>>,
    state: wgpu::Buffer,
    buffers: Vec<wgpu::Buffer>,
    staging: wgpu::Buffer,
    pipelines: HashMap<&'static str, Pipeline>,
    counters: Counters,
    /// Bytes of all plans' parameters.
    params_bytes: Arc<AtomicU64>,
    /// Bytes written of which it is not known that the device has taken them in.
    upload_bytes: u64,
    /// Of these, bytes that no submit has followed.
    unsubmitted_bytes: u64,
    /// Submits of writes that a page has not yet waited for.
    uploads: Vec<oneshot::Receiver<()>>,
    drop_kernel: Option<String>,
    fail_allocation_above_bytes: Option<u64>,
    /// Whether one was made to fail since this was last asked.
    has_failed_allocation: bool,
    /// Nanoseconds of one tick of the device's clock, where it may be read.
    tick_ns: Option<f64>,
    read_back_bytes: u64,
}

/// Dispatches that one query set can time, with two timestamps each.
const MAX_TIMED_DISPATCHES: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

const STATE_BYTES: u64 = size_of::<State>() as u64;

impl GpuDevice {
    /// Opens the best adapter there is.
    pub async fn open(options: GpuOptions) -> Result<Self, EngineError> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = if cfg!(target_arch = "wasm32") {
            wgpu::Backends::BROWSER_WEBGPU
        } else {
            wgpu::Backends::PRIMARY
        };
        let instance = wgpu::Instance::new(descriptor);
        let adapter = instance
            .request_adapter(&wgpu::RequestAdapterOptions {
                power_preference: wgpu::PowerPreference::HighPerformance,
                ..Default::default()
            })
            .await
            .map_err(|e| unavailable(NoGpu::NoAdapter, e.to_string()))?;
        let info = adapter.get_info();
        let is_software = info.device_type == wgpu::DeviceType::Cpu;
        if is_software && options.refuse_software {
            return Err(unavailable(NoGpu::SoftwareAdapter, "the only adapter is software".to_owned()));
        }
        // Default limits would hide what the adapter can do; 128 MiB bindings split large tensors.
        let required_limits = if options.minimum_limits { wgpu::Limits::default() } else { adapter.limits() };
        let subgroups = adapter.features() & wgpu::Features::SUBGROUP;
        let has_subgroups = !options.minimum_limits && (options.browser_subgroups || !subgroups.is_empty());
        let mut required_features = wgpu::Features::empty();
        if has_subgroups {
            required_features |= subgroups;
        }
        if options.timestamps {
            required_features |= adapter.features() & wgpu::Features::TIMESTAMP_QUERY;
        }
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("signbit"),
                required_features,
                required_limits: required_limits.clone(),
                ..Default::default()
            })
            .await
            .map_err(|e| unavailable(NoGpu::AdapterRefused, e.to_string()))?;

        let faults = Arc::new(Mutex::new(Faults::default()));
        device.on_uncaptured_error({
            let faults = Arc::clone(&faults);
            Arc::new(move |error| {
                tracing::error!("uncaptured GPU error: {error}");
                lock(&faults).error.get_or_insert(from_wgpu(error));
            })
        });
        device.set_device_lost_callback({
            let faults = Arc::clone(&faults);
            move |reason, message| {
                let mut faults = lock(&faults);
                let reason = faults.lost.get_or_insert(format!("{reason:?}: {message}")).clone();
                if let Some(watcher) = faults.watcher.take() {
                    // The receiver is gone only when nobody waits any more.
                    let _ = watcher.send(reason);
                }
            }
        });

        let vendor = options
            .adapter_vendor
            .unwrap_or_else(|| [info.driver, info.driver_info].join(" ").trim().to_owned());
        let is_apple = is_apple(&vendor, &info.name, info.vendor);
        let smaller = |advertised: u64, hook: Option<u64>| {
            let limit = planned_limit(advertised, is_apple);
            hook.map_or(limit, |hook| hook.min(limit))
        };
        let limits = Limits {
            max_buffer_bytes: smaller(required_limits.max_buffer_size, options.max_buffer_bytes),
            max_binding_bytes: smaller(
                required_limits.max_storage_buffer_binding_size,
                options.max_binding_bytes,
            ),
            max_workgroup_bytes: required_limits.max_compute_workgroup_storage_size.into(),
            max_invocations: required_limits.max_compute_invocations_per_workgroup.into(),
            memory_budget_bytes: options.memory_budget_bytes,
        };
        let info = DeviceInfo {
            backend: "webgpu",
            is_fallback: is_software,
            compiles_slowly: is_software,
            name: options.adapter_name.unwrap_or_else(|| {
                if info.name.is_empty() { "unnamed GPU".to_owned() } else { info.name.clone() }
            }),
            vendor,
            subgroup_width: has_subgroups.then_some(info.subgroup_max_size).filter(|&width| width > 0),
            features: adapter.features().iter_names().map(|(name, _)| name.to_owned()).collect(),
            activations: None,
            limits,
        };
        let state = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("state"),
            size: STATE_BYTES,
            usage: wgpu::BufferUsages::UNIFORM
                | wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let staging = create_staging(&device, 4096);
        let has_timestamps = required_features.contains(wgpu::Features::TIMESTAMP_QUERY);
        let tick_ns = has_timestamps.then(|| f64::from(queue.get_timestamp_period()));
        Ok(Self {
            device,
            queue,
            info,
            faults,
            state,
            buffers: Vec::new(),
            staging,
            pipelines: HashMap::new(),
            counters: Counters { objects_created: 2, ..Counters::default() },
            params_bytes: Arc::default(),
            upload_bytes: 0,
            unsubmitted_bytes: 0,
            uploads: Vec::new(),
            drop_kernel: options.drop_kernel,
            fail_allocation_above_bytes: options.fail_allocation_above_bytes,
            has_failed_allocation: false,
            tick_ns,
            read_back_bytes: options.read_back_bytes.unwrap_or(super::READ_BACK_BYTES),
        })
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(super) fn counters(&self) -> Counters {
        let live_bytes = self.live_bytes();
        Counters { live_bytes, peak_bytes: self.counters.peak_bytes.max(live_bytes), ..self.counters }
    }

    /// Bytes of buffers and of plans' parameters.
    fn live_bytes(&self) -> u64 {
        self.counters.live_bytes + self.params_bytes.load(Ordering::Relaxed)
    }

    /// The most bytes to read back at once.
    pub(super) fn read_back_bytes(&self) -> u64 {
        self.read_back_bytes
    }

    fn note_peak(&mut self) {
        self.counters.peak_bytes = self.counters.peak_bytes.max(self.live_bytes() + self.upload_bytes);
    }

    /// Bytes that the graphics library has allocated for buffers, pieces of blocks included, where it
    /// tells: a check on the counters.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn allocated_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_allocated_bytes)
    }

    /// Makes the device report that it ran out of memory, as a GPU may do at any time.
    pub fn run_out_of_memory(&self) {
        let reason = "an allocation failed on request".to_owned();
        lock(&self.faults).error.get_or_insert(EngineError::OutOfMemory { reason });
    }

    /// Resolves with the reason when the device is lost. Only the last caller is told.
    pub(super) fn lost(&self) -> oneshot::Receiver<String> {
        let (sender, receiver) = oneshot::channel();
        let mut faults = lock(&self.faults);
        match &faults.lost {
            // The receiver is here.
            Some(reason) => drop(sender.send(reason.clone())),
            None => faults.watcher = Some(sender),
        }
        receiver
    }

    /// Destroys the device, as a driver reset would.
    pub fn destroy(&self) {
        self.device.destroy();
    }

    pub(super) fn create_buffer(&mut self, label: &str, n_bytes: u64) -> BufferId {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: n_bytes.max(4),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.counters.allocated(buffer.size());
        self.note_peak();
        if self.fail_allocation_above_bytes.is_some_and(|most| self.live_bytes() > most) {
            self.has_failed_allocation = true;
            // As of a device that misses a buffer which is used.
            let reason = format!("buffer {label} is invalid on request");
            lock(&self.faults).error.get_or_insert(EngineError::Device { reason });
        }
        self.buffers.push(buffer);
        BufferId(self.buffers.len() as u32 - 1)
    }

    fn buffer(&self, id: BufferId) -> Result<&wgpu::Buffer, EngineError> {
        self.buffers.get(id.0 as usize).ok_or_else(|| unknown_buffer(id))
    }

    pub(super) fn buffer_words(&self, id: BufferId) -> Result<u64, EngineError> {
        Ok(self.buffer(id)?.size() / 4)
    }

    /// Begins to catch allocations that fail.
    pub(super) fn watch_allocations(&self) -> wgpu::ErrorScopeGuard {
        self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory)
    }

    /// Whether everything was allocated since the scope began.
    pub(super) async fn check_allocations(
        &mut self,
        scope: wgpu::ErrorScopeGuard,
    ) -> Result<(), EngineError> {
        let failed = scope.pop().await.map(from_wgpu);
        let failed = match std::mem::take(&mut self.has_failed_allocation) {
            true => Some(EngineError::OutOfMemory { reason: "an allocation failed on request".to_owned() }),
            false => failed,
        };
        let Some(failed) = failed else { return self.wait().await };
        // What the device says of the buffers that are missing comes from this, and must not be taken for
        // a failure of what is tried next.
        for _ in 0..MAX_REPORTS {
            match self.wait().await {
                Ok(()) => break,
                Err(lost @ EngineError::DeviceLost { .. }) => return Err(lost),
                Err(report) => tracing::warn!("after an allocation failed: {report}"),
            }
        }
        Err(failed)
    }

    /// Waits for all work, and reports what went wrong meanwhile.
    async fn wait(&mut self) -> Result<(), EngineError> {
        self.run(std::iter::empty(), &[Read::State]).await.map(|_| ())
    }

    pub(super) fn write(&mut self, id: BufferId, offset: u64, words: &[u32]) -> Result<(), EngineError> {
        self.fault()?;
        let end = offset.saturating_add(words.len() as u64).saturating_mul(4);
        if end > self.buffer(id)?.size() {
            return Err(EngineError::Device {
                reason: format!("a write of {} words at {offset} is outside buffer {}", words.len(), id.0),
            });
        }
        let mut offset = offset * 4;
        for piece in words.chunks(UPLOAD_BYTES as usize / 4) {
            self.upload(4 * piece.len() as u64)?;
            self.queue.write_buffer(self.buffer(id)?, offset, bytemuck::cast_slice(piece));
            offset += 4 * piece.len() as u64;
        }
        Ok(())
    }

    /// Counts a write that is about to begin, and first lets the device take in those under way if there
    /// would be too many. A page cannot wait here, and does so in [`GpuDevice::wait_for_uploads`].
    fn upload(&mut self, n_bytes: u64) -> Result<(), EngineError> {
        if self.unsubmitted_bytes + n_bytes > UPLOAD_BYTES {
            self.unsubmitted_bytes = 0;
            self.queue.submit([]);
            self.counters.submits += 1;
            if cfg!(target_arch = "wasm32") {
                let (sender, receiver) = oneshot::channel();
                self.queue.on_submitted_work_done(move || {
                    // The receiver is gone only with the device.
                    let _ = sender.send(());
                });
                self.uploads.push(receiver);
            }
            self.poll()?;
        }
        self.upload_bytes += n_bytes;
        self.unsubmitted_bytes += n_bytes;
        self.note_peak();
        Ok(())
    }

    /// Waits until the device has taken in the writes that were submitted because they were many.
    pub(super) async fn wait_for_uploads(&mut self) -> Result<(), EngineError> {
        // Each stays until it has ended: this may be abandoned while it waits.
        while let Some(upload) = self.uploads.last_mut() {
            // One whose end is never reported belongs to a device that is lost.
            let _ = upload.await;
            self.uploads.pop();
        }
        self.upload_bytes = self.unsubmitted_bytes;
        self.fault()
    }

    /// Waits, where that is possible, until all that was submitted is done. It follows a submit.
    fn poll(&mut self) -> Result<(), EngineError> {
        #[cfg(not(target_arch = "wasm32"))]
        {
            self.device
                .poll(wgpu::PollType::wait_indefinitely())
                .map_err(|e| EngineError::Device { reason: e.to_string() })?;
            self.end_uploads();
        }
        Ok(())
    }

    /// Notes that the device has taken in all that was written.
    fn end_uploads(&mut self) {
        (self.upload_bytes, self.unsubmitted_bytes) = (0, 0);
    }

    pub(super) fn clear(&mut self, buffers: &[BufferId]) -> Result<(), EngineError> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for &id in buffers {
            encoder.clear_buffer(self.buffer(id)?, 0, None);
        }
        self.queue.submit([encoder.finish()]);
        self.counters.submits += 1;
        Ok(())
    }

    pub(super) fn write_state(&self, state: &State) {
        self.queue.write_buffer(&self.state, 0, bytemuck::bytes_of(state));
    }

    fn pipeline(&mut self, kernel: &'static Kernel) -> &Pipeline {
        let (device, counters) = (&self.device, &mut self.counters);
        self.pipelines.entry(kernel.name).or_insert_with(|| {
            counters.objects_created += 2;
            create_pipeline(device, kernel)
        })
    }

    pub(super) fn bind(&mut self, dispatches: &[Dispatch]) -> Result<Prepared, EngineError> {
        if dispatches.is_empty() {
            return Ok(Prepared::default());
        }
        let params = self.params(dispatches)?;
        let mut bound = Vec::with_capacity(dispatches.len());
        for (i, dispatch) in dispatches.iter().enumerate() {
            let offset = params_bytes(i);
            self.pipeline(dispatch.kernel);
            let Some(Pipeline { pipeline, layout }) = self.pipelines.get(dispatch.kernel.name) else {
                continue;
            };
            let mut entries = vec![
                wgpu::BindGroupEntry {
                    binding: 0,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: &params.buffer,
                        offset,
                        size: wgpu::BufferSize::new(dispatch.params.len() as u64),
                    }),
                },
                wgpu::BindGroupEntry { binding: 1, resource: self.state.as_entire_binding() },
            ];
            for (j, &id) in dispatch.buffers.iter().enumerate() {
                let resource = self.buffer(id)?.as_entire_binding();
                entries.push(wgpu::BindGroupEntry { binding: j as u32 + 2, resource });
            }
            let bind_group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&dispatch.label),
                layout,
                entries: &entries,
            });
            let is_dropped = self.drop_kernel.as_deref() == Some(dispatch.kernel.name);
            let workgroups = if is_dropped { [0, 0] } else { [dispatch.workgroups.x, dispatch.workgroups.y] };
            bound.push(Bound { pipeline: pipeline.clone(), bind_group, workgroups });
            self.counters.objects_created += 1;
        }
        Ok(Prepared { bound, _params: Some(params) })
    }

    /// The parameters of all dispatches in one uniform buffer; each bind group points at its own slot.
    fn params(&mut self, dispatches: &[Dispatch]) -> Result<Params, EngineError> {
        let n_bytes = params_bytes(dispatches.len());
        let mut bytes = vec![0; n_bytes as usize];
        for (slot, dispatch) in bytes.chunks_exact_mut(PARAMS_SLOT as usize).zip(dispatches) {
            slot.iter_mut().zip(&dispatch.params).for_each(|(to, from)| *to = *from);
        }
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: n_bytes,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.counters.objects_created += 1;
        self.params_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        let params = Params { buffer, live_bytes: Arc::clone(&self.params_bytes) };
        self.upload(n_bytes)?;
        self.queue.write_buffer(&params.buffer, 0, &bytes);
        Ok(params)
    }

    pub(super) async fn run<'a>(
        &mut self,
        plans: impl Iterator<Item = &'a [Bound]>,
        reads: &[Read],
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        self.fault()?;
        let encode_start = now_ms();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for bound in plans.flatten() {
                bound.encode(&mut pass);
                self.counters.dispatches += 1;
            }
        }
        let n_bytes = self.copy_reads(&mut encoder, reads)?;
        let commands = encoder.finish();
        self.counters.encode_ns += ((now_ms() - encode_start).max(0.0) * 1e6) as u64;
        self.queue.submit([commands]);
        self.counters.submits += 1;
        if reads.is_empty() {
            return Ok(Vec::new());
        }
        let bytes = self.map_staging(n_bytes).await?;
        self.fault()?;
        Ok(split_reads(&bytes, reads))
    }

    /// Runs dispatches in a pass of their own each, since a pass is what can be timed, and returns
    /// their nanoseconds; nothing where the device's clock cannot be read.
    pub(super) async fn run_timed<'a>(
        &mut self,
        plans: impl Iterator<Item = &'a [Bound]>,
    ) -> Result<Option<Vec<f64>>, EngineError> {
        let Some(tick_ns) = self.tick_ns else { return Ok(None) };
        self.fault()?;
        let bound: Vec<&Bound> = plans.flatten().collect();
        let mut times_ns = Vec::with_capacity(bound.len());
        for bound in bound.chunks(MAX_TIMED_DISPATCHES) {
            let ticks = self.run_with_timestamps(bound).await?;
            times_ns
                .extend(ticks.chunks_exact(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 * tick_ns));
        }
        Ok(Some(times_ns))
    }

    /// Start and end of each dispatch in ticks of the device's clock.
    async fn run_with_timestamps(&mut self, dispatches: &[&Bound]) -> Result<Vec<u64>, EngineError> {
        let n_queries = 2 * dispatches.len() as u32;
        let queries = self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("timestamps"),
            ty: wgpu::QueryType::Timestamp,
            count: n_queries,
        });
        let n_bytes = u64::from(n_queries) * u64::from(wgpu::QUERY_SIZE);
        let resolved = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("timestamps"),
            size: n_bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        self.counters.objects_created += 2;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for (i, bound) in (0..).zip(dispatches) {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &queries,
                    beginning_of_pass_write_index: Some(2 * i),
                    end_of_pass_write_index: Some(2 * i + 1),
                }),
            });
            bound.encode(&mut pass);
        }
        self.counters.dispatches += dispatches.len() as u64;
        encoder.resolve_query_set(&queries, 0..n_queries, &resolved, 0);
        self.reserve_staging(n_bytes);
        encoder.copy_buffer_to_buffer(&resolved, 0, &self.staging, 0, n_bytes);
        self.queue.submit([encoder.finish()]);
        self.counters.submits += 1;
        let bytes = self.map_staging(n_bytes).await?;
        self.fault()?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Copies all of a buffer to another of its size, `n_times` in one submit, and waits for it.
    pub(super) async fn copy(
        &mut self,
        from: BufferId,
        to: BufferId,
        n_times: u32,
    ) -> Result<(), EngineError> {
        self.fault()?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let (source, target) = (self.buffer(from)?, self.buffer(to)?);
        for _ in 0..n_times {
            encoder.copy_buffer_to_buffer(source, 0, target, 0, source.size());
        }
        let n_bytes = self.copy_reads(&mut encoder, &[Read::State])?;
        self.queue.submit([encoder.finish()]);
        self.counters.submits += 1;
        self.map_staging(n_bytes).await?;
        self.fault()
    }

    fn reserve_staging(&mut self, n_bytes: u64) {
        if n_bytes > self.staging.size() {
            self.staging = create_staging(&self.device, n_bytes);
            self.counters.objects_created += 1;
        }
    }

    /// Copies what `reads` names into the staging buffer, back to back; returns its bytes.
    fn copy_reads(&mut self, encoder: &mut wgpu::CommandEncoder, reads: &[Read]) -> Result<u64, EngineError> {
        let total = reads.iter().map(read_bytes).sum();
        self.reserve_staging(total);
        let mut offset = 0;
        for read in reads {
            match read {
                Read::State => {
                    encoder.copy_buffer_to_buffer(&self.state, 0, &self.staging, offset, STATE_BYTES)
                }
                Read::Words(id, range) => encoder.copy_buffer_to_buffer(
                    self.buffer(*id)?,
                    range.start * 4,
                    &self.staging,
                    offset,
                    read_bytes(read),
                ),
            }
            offset += read_bytes(read);
        }
        Ok(total)
    }

    async fn map_staging(&mut self, n_bytes: u64) -> Result<Vec<u8>, EngineError> {
        let (sender, receiver) = oneshot::channel();
        self.staging.slice(..n_bytes).map_async(wgpu::MapMode::Read, move |result| {
            // The receiver is gone only when the caller no longer wants the result.
            let _ = sender.send(result);
        });
        self.poll()?;
        let mapped = receiver.await;
        if !matches!(mapped, Ok(Ok(()))) {
            // The staging buffer is in an unknown state: the next read starts with a new one.
            self.staging = create_staging(&self.device, self.staging.size());
            self.fault()?;
            return Err(EngineError::DeviceLost { reason: "a result could not be read back".to_owned() });
        }
        self.end_uploads();
        let bytes = self.staging.slice(..n_bytes).get_mapped_range().map(|view| view.to_vec());
        self.staging.unmap();
        bytes.map_err(|e| EngineError::Device { reason: e.to_string() })
    }

    /// The first thing that went wrong outside of a call, if anything did.
    fn fault(&self) -> Result<(), EngineError> {
        let mut faults = lock(&self.faults);
        if let Some(reason) = &faults.lost {
            return Err(EngineError::DeviceLost { reason: reason.clone() });
        }
        faults.error.take().map_or(Ok(()), Err)
    }

    pub(super) fn n_buffers(&self) -> usize {
        self.buffers.len()
    }

    pub(super) fn free_from(&mut self, mark: usize) {
        for buffer in self.buffers.drain(mark.min(self.buffers.len())..) {
            self.counters.freed(buffer.size());
            buffer.destroy();
        }
        self.counters.freed_from(mark);
    }
}

/// Whether the adapter is one of Apple's: by its vendor in a browser, by name or PCI id natively.
fn is_apple(vendor: &str, name: &str, pci_vendor: u32) -> bool {
    const PCI_APPLE: u32 = 0x106B;
    let starts = |text: &str| text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("apple"));
    starts(vendor) || starts(name) || pci_vendor == PCI_APPLE
}

/// The bytes of a buffer or binding that are made use of, of those that the adapter advertises.
fn planned_limit(advertised: u64, is_apple: bool) -> u64 {
    if is_apple { advertised.min(APPLE_BUFFER_BYTES) } else { advertised }
}

fn unavailable(cause: NoGpu, reason: String) -> EngineError {
    EngineError::WebGpuUnavailable { cause, reason }
}

fn lock(faults: &Mutex<Faults>) -> MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}

fn from_wgpu(error: wgpu::Error) -> EngineError {
    match error {
        wgpu::Error::OutOfMemory { source } => EngineError::OutOfMemory { reason: source.to_string() },
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            EngineError::Device { reason: description }
        }
    }
}

fn create_staging(device: &wgpu::Device, n_bytes: u64) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("staging"),
        size: n_bytes,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    })
}

fn create_pipeline(device: &wgpu::Device, kernel: &'static Kernel) -> Pipeline {
    let buffer = |binding, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let storage = |read_only| wgpu::BufferBindingType::Storage { read_only };
    let state = match kernel.state {
        StateAccess::Uniform => wgpu::BufferBindingType::Uniform,
        StateAccess::ReadWrite => storage(false),
    };
    let mut entries = vec![buffer(0, wgpu::BufferBindingType::Uniform), buffer(1, state)];
    for (i, binding) in kernel.bindings.iter().enumerate() {
        entries.push(buffer(i as u32 + 2, storage(binding.access == Access::Read)));
    }
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some(kernel.name),
        entries: &entries,
    });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(kernel.name),
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(kernel.name),
        source: wgpu::ShaderSource::Wgsl(source_text(kernel).into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(kernel.name),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        // Kernels write workgroup memory before they read it; browsers clear it nevertheless.
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    Pipeline { pipeline, layout }
}

/// The browser wants optional features to be enabled in the text, where wgpu's own compiler refuses it.
fn source_text(kernel: &Kernel) -> String {
    if cfg!(target_arch = "wasm32") && kernel.needs_subgroups() {
        return format!("enable subgroups;\n{}", kernel.wgsl());
    }
    kernel.wgsl()
}

fn read_bytes(read: &Read) -> u64 {
    match read {
        Read::State => STATE_BYTES,
        Read::Words(_, range) => range.end.saturating_sub(range.start) * 4,
    }
}

fn split_reads(bytes: &[u8], reads: &[Read]) -> Vec<Vec<u32>> {
    let mut rest = bytes;
    reads
        .iter()
        .map(|read| {
            let (head, tail) = rest.split_at(read_bytes(read) as usize);
            rest = tail;
            bytemuck::pod_collect_to_vec(head)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apple_adapters_are_planned_with_small_buffers() {
        const GIB: u64 = 1 << 30;
        for (vendor, name, pci, planned) in [
            ("apple", "metal-3", 0, APPLE_BUFFER_BYTES),
            ("Apple", "", 0, APPLE_BUFFER_BYTES),
            ("", "Apple M1", 0, APPLE_BUFFER_BYTES),
            ("", "M1", 0x106B, APPLE_BUFFER_BYTES),
            ("nvidia", "ampere", 0x10DE, GIB),
            ("intel", "pineapple lake", 0x8086, GIB),
            ("", "", 0, GIB),
        ] {
            assert_eq!(planned_limit(GIB, is_apple(vendor, name, pci)), planned, "{vendor} {name}");
        }
        assert_eq!(planned_limit(64 << 20, true), 64 << 20, "less than that stays");
    }
}
