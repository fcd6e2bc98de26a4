//! Every kernel on the GPU against its CPU reference, on the edge shapes of its cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::check::check_kernels;
use signbit_engine::device::{Device, GpuOptions, Read};
use signbit_shaders::case::{Case, CaseBuilder, Tolerance};
use signbit_shaders::kernels::matmul::{HEIGHTS, matmul_with_height};
use signbit_shaders::weights::Format;
use signbit_shaders::weights::sample::{Scales, random_weight};
use signbit_shaders::{BufferId, Tensor};

#[test]
fn every_kernel_matches_its_reference() {
    let _gpu = one_at_a_time();
    let mut device = gpu();
    println!("{:?}", device.info());
    let reports = block_on(check_kernels(&mut device, "")).unwrap();
    let failed: Vec<_> = reports.iter().filter(|r| !r.ok).collect();
    println!("{} of {} cases right", reports.len() - failed.len(), reports.len());
    assert!(reports.len() > 100);
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(device.counters().live_buffers, 0);
}

/// The limits that WebGPU guarantees are enough for every kernel.
#[test]
fn every_kernel_runs_within_minimum_limits() {
    let _gpu = one_at_a_time();
    let mut device = gpu_with(GpuOptions { minimum_limits: true, ..GpuOptions::default() });
    let reports = block_on(check_kernels(&mut device, "")).unwrap();
    let failed: Vec<_> = reports.iter().filter(|r| !r.ok).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The words of `result` after a run of the case.
fn run(device: &mut Device, case: &Case, result: Tensor) -> Vec<u32> {
    let mark = device.mark();
    let mut ids = Vec::new();
    for words in &case.buffers {
        let id = device.create_buffer("case", words.len() as u64).unwrap();
        device.write(id, 0, words).unwrap();
        ids.push(id);
    }
    let at = |id: BufferId| ids[id.0 as usize];
    let mut dispatch = case.dispatch.clone();
    dispatch.buffers = dispatch.buffers.into_iter().map(at).collect();
    device.write_state(&case.state);
    let plan = device.prepare(vec![dispatch]).unwrap();
    let read = Read::Words(at(result.buffer), 0..result.n_bytes() / 4);
    let words = block_on(device.run(&[&plan], &[read])).unwrap().remove(0);
    device.free_from(mark);
    words
}

/// What a token's products are must not depend on how many other tokens a workgroup has.
#[test]
fn every_height_of_a_tile_gives_the_same_bits() {
    let _gpu = one_at_a_time();
    let mut device = gpu();
    for format in [Format::Q1_0, Format::Q2_0G64, Format::F16] {
        let results = HEIGHTS.map(|height| {
            let mut c = CaseBuilder::new(77);
            c.state.n_tokens = 65;
            let (weight, _) = random_weight(&mut c, format, [70, 384], 0, Scales::Usual).unwrap();
            let (x, y) = (c.random(65, 384, 1.0), c.output(65, 70));
            let dispatch = matmul_with_height(height, x, weight, y, false);
            let tolerance = Tolerance { absolute: 0.0, relative: 0.0 };
            run(&mut device, &c.finish("height", dispatch, tolerance).unwrap(), y)
        });
        for (height, result) in HEIGHTS.iter().zip(&results) {
            assert!(*result == results[0], "{}: {height} rows differ from {}", format.name(), HEIGHTS[0]);
        }
    }
}
