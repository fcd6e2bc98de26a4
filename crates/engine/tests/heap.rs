//! What the host's heap holds while a model is loaded. Alone in its binary, for it counts every thread's
//! allocations.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]
#![expect(unsafe_code, reason = "an allocator cannot be written without")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::*;
use pollster::block_on;
use signbit_engine::device::{CpuDevice, CpuOptions, Device};
use signbit_engine::loader::Loader;
use signbit_engine::model::ModelOptions;
use signbit_engine::planner::plan_model;
use signbit_gguf::Header;

/// The system's allocator, with the bytes that are allocated and the most that were.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(n_bytes: usize) {
    let live = LIVE.fetch_add(n_bytes, Relaxed) + n_bytes;
    PEAK.fetch_max(live, Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came. What is not overridden, growing
// included, is made of these two, and so counts a moved block twice while it moves.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are the system's conditions.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the block came from `alloc` above, which had it from the system.
        unsafe { System.dealloc(block, layout) }
    }
}

/// The most bytes that `work` had allocated beyond what there was.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = work();
    (result, (PEAK.load(Relaxed) - before) as u64)
}

/// A load takes the plan, in which each weight counts once, and what planning takes: header, tokenizer,
/// recorded dispatches. These twice, since the planner is there until the model is; the piece that arrives;
/// and a page of small things.
#[test]
fn loading_holds_each_weight_once() {
    const PIECE: usize = 1 << 20;
    let file = large_model();
    let options = ModelOptions::default();
    let mut device = Device::Cpu(Box::new(CpuDevice::new(CpuOptions::default())));
    let (plan, planning) = peak_of(|| {
        let header = Header::parse_file(&file).unwrap();
        plan_model(device.info(), &[header], options).unwrap().model.memory().clone()
    });
    let (loaded, peak) = peak_of(|| {
        let mut loader = Loader::new(options);
        loader.begin_part(0, Some(file.len() as u64)).unwrap();
        for piece in file.chunks(PIECE) {
            block_on(loader.push(&mut device, piece)).unwrap();
        }
        block_on(loader.end_part(&mut device)).unwrap();
        block_on(loader.finish(&mut device)).unwrap()
    });
    let bound = plan.total_bytes + 2 * planning + 2 * PIECE as u64 + 4096;
    println!("{plan:?}\nplanning took {planning}, loading {peak}, allowed are {bound}");
    assert!(plan.weight_bytes > 64 << 20);
    assert_eq!(loaded.model.memory(), &plan);
    assert!(peak <= bound, "{peak} of {bound}");
    assert!(bound < plan.total_bytes + plan.weight_bytes / 2, "the bound would miss half a copy");
}
