//! The memory plan: that it is what a device then holds, where it steps down, and what it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::EngineError;
use signbit_engine::config::MAX_CONTEXT;
use signbit_engine::device::{CpuDevice, CpuOptions, Device, GpuOptions, Limits, UPLOAD_BYTES, cpu_budget};
use signbit_engine::engine::TokenRequest;
use signbit_engine::loader::{LoadedModel, Loader};
use signbit_engine::memory::{Fallback, Ladder, MemoryPlan, Placement, Refusal, Rung};
use signbit_engine::model::{KvCache, ModelOptions};
use signbit_engine::planner::plan_model;
use signbit_gguf::{GgufWriter, Header, Parse};
use signbit_shaders::kernels::kivi;

fn cpu_of(options: CpuOptions) -> Device {
    Device::Cpu(Box::new(CpuDevice::new(options)))
}

fn plan(device: &Device, bytes: &[u8], options: ModelOptions) -> Result<MemoryPlan, Refusal> {
    let header = Header::parse_file(bytes).unwrap();
    Ok(plan_model(device.info(), &[header], options)?.model.memory().clone())
}

/// Loads as a page does, in pieces, up to where kernels would be checked.
fn stream(device: &mut Device, bytes: &[u8], options: ModelOptions) -> Result<LoadedModel, EngineError> {
    let mut loader = Loader::new(options);
    loader.begin_part(0, Some(bytes.len() as u64))?;
    for piece in bytes.chunks(1 << 20) {
        block_on(loader.push(device, piece))?;
    }
    block_on(loader.end_part(device))?;
    block_on(loader.finish(device))
}

#[test]
fn the_plan_is_what_the_device_then_holds() {
    let _gpu = one_at_a_time();
    let whole = ModelOptions::default();
    let kivi = ModelOptions { kv_cache: KvCache::Kivi, ..whole };
    let short = ModelOptions { context_length: 16, ..whole };
    // Dense and hybrid, with and without scales, in 4 bits, and cut into pieces.
    let cases = [
        ("qwen3-f16", whole, None),
        ("qwen35-mixed", whole, None),
        (EMBEDDED, kivi, None),
        ("qwen35-mixed", short, Some(64 << 10)),
        ("qwen3-q1_0", short, Some(16 << 10)),
    ];
    for (name, options, max_bytes) in cases {
        let bytes = model_bytes(name);
        let small = GpuOptions { max_binding_bytes: max_bytes, ..GpuOptions::default() };
        let cpu = CpuOptions { max_buffer_bytes: max_bytes, ..CpuOptions::default() };
        for mut device in [cpu_of(cpu), gpu_with(small)] {
            let plan = plan(&device, &bytes, options).unwrap();
            let loaded = stream(&mut device, &bytes, options).unwrap();
            let (counters, backend) = (device.counters(), device.info().backend);
            assert_eq!(loaded.model.memory(), &plan, "{name}, {backend}");
            assert_eq!(counters.live_bytes, plan.total_bytes - plan.staging_bytes, "{name}, {backend}");
            assert!(counters.peak_bytes <= plan.total_bytes, "{name}, {backend}: {counters:?} of {plan:?}");
            assert_eq!(plan.sharded_tensors > 0, max_bytes.is_some(), "{name}: {plan:?}");
            assert_eq!(plan.state_bytes > 0, name.starts_with("qwen35") || name == EMBEDDED, "{name}");
            assert_eq!(plan.placement.rung, Rung::Full);
            drop(loaded);
            device.free_from(0);
            let emptied = device.counters();
            assert_eq!((emptied.live_bytes, emptied.peak_bytes), (0, 0), "{name}, {backend}");
        }
    }
}

/// Weights that wait for a submit are bounded, by the counters and by the allocator beneath.
#[test]
fn weights_do_not_pile_up_on_their_way_to_the_gpu() {
    let _gpu = one_at_a_time();
    let bytes = large_model();
    let options = ModelOptions::default();
    let mut device = gpu();
    let plan = plan(&device, &bytes, options).unwrap();
    assert!(plan.weight_bytes > 4 * UPLOAD_BYTES && plan.staging_bytes == UPLOAD_BYTES, "{plan:?}");
    let allocated = |device: &Device| match device {
        Device::Gpu(gpu) => gpu.allocated_bytes().expect("an allocator that reports"),
        _ => panic!("a GPU was opened"),
    };
    let before = allocated(&device);
    let mut loader = Loader::new(options);
    loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
    let mut most = 0;
    for piece in bytes.chunks(1 << 20) {
        block_on(loader.push(&mut device, piece)).unwrap();
        most = most.max(allocated(&device) - before);
    }
    block_on(loader.end_part(&mut device)).unwrap();
    let _loaded = block_on(loader.finish(&mut device)).unwrap();
    let counters = device.counters();
    println!("{plan:?}\n{counters:?}, the allocator had {most}");
    assert_eq!(counters.live_bytes, plan.total_bytes - plan.staging_bytes);
    assert!(counters.peak_bytes <= plan.total_bytes, "{} of {}", counters.peak_bytes, plan.total_bytes);
    assert!(counters.peak_bytes > plan.total_bytes - UPLOAD_BYTES, "the bound is never come near");
    // Buffers are rounded up to what the driver aligns them to.
    assert!(most <= plan.total_bytes + (1 << 20), "{most} of {}", plan.total_bytes);
}

/// A model that takes `weights`, and per position 16 bytes as f32 or 4 in 4 bits, within `budget`.
fn fake(weights: u64, budget: u64) -> impl FnMut(&Placement) -> Result<MemoryPlan, Refusal> {
    move |place| {
        let width = if place.kv_cache == KvCache::Kivi { 4 } else { 16 };
        let kv_bytes = width * u64::from(place.context_length);
        let plan = MemoryPlan {
            weight_bytes: weights,
            cache_bytes: kv_bytes,
            kv_bytes,
            state_bytes: 0,
            scratch_bytes: 0,
            staging_bytes: 0,
            total_bytes: weights + kv_bytes,
            shards: 1,
            sharded_tensors: 0,
            budget_bytes: Some(budget),
            placement: place.clone(),
        };
        plan.verdict().map_err(|error| Refusal { error, plan: Some(Box::new(plan.clone())) })?;
        Ok(plan)
    }
}

type Stood = Result<(&'static str, KvCache, u32), u64>;

/// Where a plan stands, or what the smallest that was tried would have needed.
fn stood(planned: Result<MemoryPlan, Refusal>) -> Stood {
    match planned {
        Ok(MemoryPlan { placement: p, .. }) => {
            assert_eq!(p.reason.is_some(), p.rung != Rung::Full, "{p:?}");
            Ok((p.rung.name(), p.kv_cache, p.context_length))
        }
        Err(refusal) => {
            assert_eq!(refusal.error.code(), "out_of_memory");
            Err(refusal.plan.unwrap().total_bytes)
        }
    }
}

#[test]
fn the_ladder_goes_down_in_order_and_no_further_than_needed() {
    use KvCache::{Auto, F32, Kivi};
    let ladder =
        |kv_cache, fallback, context_length| Ladder { context_length, kv_cache, kivi_holds: true, fallback };
    let cases: [(KvCache, Fallback, u32, u64, Stood); 17] = [
        (Auto, Fallback::Context, 4096, 65_636, Ok(("full", F32, 4096))),
        (Auto, Fallback::Context, 4096, 65_635, Ok(("kv_cache", Kivi, 4096))),
        (Auto, Fallback::Context, 4096, 16_484, Ok(("kv_cache", Kivi, 4096))),
        (Auto, Fallback::Context, 4096, 16_483, Ok(("context", Kivi, 3840))),
        (Auto, Fallback::Context, 4096, 100 + 4 * 1024, Ok(("context", Kivi, 1024))),
        (Auto, Fallback::Context, 4096, 100 + 4 * 1024 - 1, Ok(("context", Kivi, 768))),
        (Auto, Fallback::Context, 4096, 100 + 4 * 512, Ok(("context", Kivi, 512))),
        (Auto, Fallback::Context, 4096, 100 + 4 * 512 - 1, Err(100 + 4 * 512)),
        (Auto, Fallback::Context, 1000, 100 + 4 * 999, Ok(("context", Kivi, 768))),
        // Nothing is cut that is short already.
        (Auto, Fallback::Context, 512, 100 + 4 * 511, Err(100 + 4 * 512)),
        (Auto, Fallback::Context, 300, 100 + 4 * 299, Err(100 + 4 * 300)),
        // A kind that was asked for stays.
        (F32, Fallback::Context, 4096, 65_635, Ok(("context", F32, 3840))),
        (Kivi, Fallback::Context, 4096, 65_635, Ok(("full", Kivi, 4096))),
        // The host's cap.
        (Auto, Fallback::KvCache, 4096, 16_484, Ok(("kv_cache", Kivi, 4096))),
        (Auto, Fallback::KvCache, 4096, 16_483, Err(16_484)),
        (Auto, Fallback::None, 4096, 65_635, Err(65_636)),
        (F32, Fallback::KvCache, 4096, 65_635, Err(65_636)),
    ];
    for (kv_cache, fallback, context, budget, expected) in cases {
        let ladder = ladder(kv_cache, fallback, context);
        let found = stood(ladder.highest(fake(100, budget)));
        assert_eq!(found, expected, "{ladder:?} within {budget}");
    }
    // Heads that the 4-bit cache cannot hold.
    let without = Ladder { kivi_holds: false, ..ladder(Auto, Fallback::Context, 4096) };
    assert_eq!(stood(without.highest(fake(100, 65_635))), Ok(("context", F32, 3840)));
}

#[test]
fn a_device_that_fails_to_allocate_goes_one_rung_down_at_a_time() {
    use KvCache::{Auto, F32, Kivi};
    let failure = || EngineError::OutOfMemory { reason: "no".to_owned() };
    let steps = |kv_cache, fallback, context_length| {
        let ladder = Ladder { context_length, kv_cache, kivi_holds: true, fallback };
        let mut plan = ladder.highest(fake(100, u64::MAX)).unwrap();
        let mut steps = Vec::new();
        loop {
            let next = ladder.below(&plan, failure(), fake(100, u64::MAX));
            steps.push(stood(next.as_ref().map(Clone::clone).map_err(|refusal| Refusal {
                error: EngineError::OutOfMemory { reason: refusal.error.to_string() },
                plan: refusal.plan.clone(),
            })));
            match next {
                Ok(lower) => plan = lower,
                Err(_) => return steps,
            }
        }
    };
    assert_eq!(
        steps(Auto, Fallback::Context, 3000),
        [
            Ok(("kv_cache", Kivi, 3000)),
            Ok(("context", Kivi, 1280)),
            Ok(("context", Kivi, 512)),
            Err(100 + 4 * 512)
        ]
    );
    assert_eq!(steps(F32, Fallback::Context, 600), [Ok(("context", F32, 512)), Err(100 + 16 * 512)]);
    assert_eq!(steps(Auto, Fallback::KvCache, 600), [Ok(("kv_cache", Kivi, 600)), Err(100 + 4 * 600)]);
    assert_eq!(steps(Auto, Fallback::None, 600), [Err(100 + 16 * 600)]);
}

/// What does not fit is refused with both numbers before a weight has arrived or anything was allocated.
#[test]
fn a_model_that_cannot_fit_is_refused_by_its_header() {
    let bytes = model_bytes(EMBEDDED);
    let data_start = Header::parse_file(&bytes).unwrap().data_start as usize;
    let refuse = |options: CpuOptions, fallback| {
        let mut device = cpu_of(options);
        let options = ModelOptions { memory_fallback: fallback, ..ModelOptions::default() };
        let refusal = plan(&device, &bytes, options).unwrap_err();
        let mut loader = Loader::new(options);
        loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
        let error = block_on(loader.push(&mut device, &bytes[..data_start])).unwrap_err();
        assert_eq!(device.counters(), cpu_of(CpuOptions::default()).counters(), "{error}");
        (error, *refusal.plan.unwrap())
    };
    let budget = |bytes| CpuOptions { memory_budget_bytes: Some(bytes), ..CpuOptions::default() };
    let (error, least) = refuse(budget(1_000_000), Fallback::Context);
    assert_eq!(error.code(), "out_of_memory");
    assert_eq!((least.placement.rung, least.placement.context_length), (Rung::Context, 512));
    for needle in [format!("needs {} bytes", least.total_bytes), "budget is 1000000".to_owned()] {
        assert!(error.to_string().contains(&needle), "{needle}: {error}");
    }
    // One byte more than the least is enough, one less is not.
    let (_, refused) = refuse(budget(least.total_bytes - 1), Fallback::Context);
    assert_eq!(refused.total_bytes, least.total_bytes);
    let fits = plan(&cpu_of(budget(least.total_bytes)), &bytes, ModelOptions::default()).unwrap();
    assert_eq!(fits.placement.context_length, 512);
    assert!(fits.placement.warning().unwrap().contains("512 positions"), "{fits:?}");
    // A buffer that the device does not hold, without and with a way down.
    let small = CpuOptions { max_buffer_bytes: Some(2 << 20), ..CpuOptions::default() };
    let (error, whole) = refuse(small, Fallback::None);
    assert_eq!(error.code(), "limit_too_small");
    assert!(error.to_string().contains("kv_cache needs 4194304 bytes"), "{error}");
    assert_eq!(whole.placement.rung, Rung::Full);
    let fits = plan(&cpu_of(small), &bytes, ModelOptions::default()).unwrap();
    assert_eq!(fits.placement.rung, Rung::KvCache);
    assert!(fits.placement.reason.unwrap().contains("kv_cache needs 4194304 bytes"));
}

/// Kernels refuse contexts that their loops do not reach; what fits stands below.
#[test]
fn a_context_that_kernels_refuse_is_cut() {
    let bytes = model_bytes("qwen3-q1_0");
    let original = Header::parse_file(&bytes).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in original.metadata.iter() {
        writer.set(key, value.clone());
    }
    writer.set("qwen3.context_length", MAX_CONTEXT);
    for info in &original.tensors {
        writer.declare(&info.name, &info.shape, info.ty);
    }
    let Parse::Complete(header) = Header::parse(&writer.header(), None).unwrap() else {
        panic!("the header is whole");
    };
    let device = cpu();
    let planned = |context_length, fallback| {
        let options = ModelOptions {
            context_length,
            memory_fallback: fallback,
            kv_cache: KvCache::F32,
            ..ModelOptions::default()
        };
        plan_model(device.info(), std::slice::from_ref(&header), options)
    };
    let refused = planned(MAX_CONTEXT, Fallback::None).unwrap_err();
    assert!(matches!(refused.error, EngineError::Shape(_)), "{refused:?}");
    let cut = planned(MAX_CONTEXT, Fallback::Context).unwrap();
    assert_eq!(cut.model.memory().placement.rung, Rung::Context);
    // What no context changes keeps its reason.
    let ladder = Ladder {
        context_length: 524_288,
        kv_cache: KvCache::Auto,
        kivi_holds: true,
        fallback: Fallback::Context,
    };
    let never = |_: &Placement| Err(EngineError::from(kivi::Layout::new(8, 7, 1).unwrap_err()).into());
    assert_eq!(ladder.highest(never).unwrap_err().error.code(), "model_unsupported");
}

/// Allocations fail late on a GPU, at once on the processor; the file is pushed once either way.
#[test]
fn failed_allocations_step_down_without_a_second_download() {
    let _gpu = one_at_a_time();
    let bytes = model_bytes(EMBEDDED);
    let options = ModelOptions::default();
    let device = |is_gpu, fail_allocation_above_bytes| match is_gpu {
        true => gpu_with(GpuOptions { fail_allocation_above_bytes, ..GpuOptions::default() }),
        false => cpu_of(CpuOptions { fail_allocation_above_bytes, ..CpuOptions::default() }),
    };
    for is_gpu in [false, true] {
        let resident = |options| {
            let plan = plan(&device(is_gpu, None), &bytes, options).unwrap();
            plan.total_bytes - plan.staging_bytes
        };
        let kivi = ModelOptions { kv_cache: KvCache::Kivi, ..options };
        let (exact_bytes, kivi_bytes) = (resident(options), resident(kivi));
        // The parameters of the last plans come after the last buffer.
        let room = if is_gpu { 1 << 20 } else { 1 };
        let stepped = |most, options| {
            let mut device = device(is_gpu, Some(most));
            let result = stream(&mut device, &bytes, options).map(|loaded| {
                let place = loaded.model.memory().placement.clone();
                assert_eq!(loaded.info.warnings.last(), place.warning().as_ref());
                assert!(place.reason.as_ref().unwrap().contains("ran out of memory"), "{place:?}");
                assert_eq!(loaded.model.context_length(), place.context_length);
                (place.rung, place.kv_cache, place.context_length)
            });
            if result.is_err() {
                assert_eq!(device.counters().live_bytes, 0);
            }
            result.map_err(|error| error.code())
        };
        assert_eq!(
            stepped(exact_bytes - room, options),
            Ok((Rung::KvCache, KvCache::Kivi, 4096)),
            "on a GPU: {is_gpu}"
        );
        assert_eq!(stepped(kivi_bytes - room, options), Ok((Rung::Context, KvCache::Kivi, 2048)));
        assert_eq!(stepped(1000, options), Err("out_of_memory"));
        let capped = ModelOptions { memory_fallback: Fallback::None, ..options };
        assert_eq!(stepped(exact_bytes - room, capped), Err("out_of_memory"));
    }
}

/// Memory may also run out while weights are written, after every allocation was good.
#[test]
fn memory_that_runs_out_under_the_weights_is_a_typed_error() {
    let _gpu = one_at_a_time();
    let bytes = model_bytes(EMBEDDED);
    let data_start = Header::parse_file(&bytes).unwrap().data_start as usize;
    for n_written in [0, bytes.len() - data_start] {
        let mut device = gpu();
        let mut loader = Loader::new(ModelOptions::default());
        loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
        let (head, tail) = bytes.split_at(data_start + n_written);
        block_on(loader.push(&mut device, head)).unwrap();
        let Device::Gpu(gpu) = &device else { panic!("a GPU was opened") };
        gpu.run_out_of_memory();
        let pushed = block_on(loader.push(&mut device, tail));
        let error = match pushed {
            Err(error) => error,
            Ok(_) => block_on(loader.finish(&mut device)).unwrap_err(),
        };
        assert_eq!(error.code(), "out_of_memory", "after {n_written}: {error}");
    }
}

/// A module in a page addresses 4 GiB, and not all of them are for the model.
#[test]
fn addresses_of_32_bits_have_a_budget() {
    for (asked, bits, budget) in [
        (None, 32, Some(3 << 30)),
        (Some(4 << 30), 32, Some(3 << 30)),
        (Some(1 << 30), 32, Some(1 << 30)),
        (None, 64, None),
        (Some(4 << 30), 64, Some(4 << 30)),
    ] {
        assert_eq!(cpu_budget(asked, bits), budget, "{asked:?} with {bits} bits");
    }
    let Limits { memory_budget_bytes, .. } = cpu().info().limits;
    assert_eq!(memory_budget_bytes, None);
}

/// Nothing is left behind by a reply, however it ends.
#[test]
fn a_hundred_generations_hold_what_the_first_held() {
    let _gpu = one_at_a_time();
    for device in [cpu(), gpu()] {
        let mut engine = load(device, "qwen3-q1_0");
        let ids = random_ids(&engine, 48, 40);
        greedy(&mut engine, &ids, 2);
        let first = engine.counters();
        for i in 0..100 {
            let request =
                TokenRequest { prompt: ids[..1 + i % 7].to_vec(), max_tokens: Some(2), ..Default::default() };
            match i % 4 {
                0 => drop(generate(&mut engine, request)),
                1 => {
                    // Abandoned in the middle.
                    let mut generation = engine.start(request).unwrap();
                    block_on(engine.step(&mut generation)).unwrap();
                }
                2 => {
                    let refused = TokenRequest { prompt: vec![u32::MAX], ..request };
                    let mut generation = engine.start(refused).unwrap();
                    block_on(engine.step(&mut generation)).unwrap_err();
                }
                _ => engine.reset().unwrap(),
            }
            let now = engine.counters();
            let held =
                |c: signbit_engine::device::Counters| (c.live_bytes, c.live_buffers, c.objects_created);
            assert_eq!(held(now), held(first), "after {i}");
        }
    }
}
