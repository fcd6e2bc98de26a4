//! Every kernel on the GPU against its CPU reference, on the edge shapes of its cases.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::check::check_kernels;
use signbit_engine::device::GpuOptions;

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
