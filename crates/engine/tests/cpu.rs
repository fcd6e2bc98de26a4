//! The fast kernels of the CPU: against their references, and what 8-bit activations cost in quality.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::check::check_kernels;
use signbit_engine::device::Activations;

#[test]
fn every_fast_kernel_matches_its_reference() {
    let mut device = cpu();
    println!("{:?}", device.info());
    let reports = block_on(check_kernels(&mut device, "")).unwrap();
    let failed: Vec<_> = reports.iter().filter(|r| !r.ok).collect();
    assert!(reports.len() > 100);
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(device.counters().live_buffers, 0);
}

/// What is on by default must pass the gate on every model, trained or random.
#[test]
fn rounded_activations_pass_the_gate() {
    let rounding = Activations::default();
    assert_eq!(rounding, Activations::Int10);
    for name in
        [EMBEDDED, "tiny-geo", "qwen3-q1_0", "qwen35-q1_0", "qwen35-q2_0", "qwen3-q4_0", "qwen35-q4_0"]
    {
        let is_trained = [EMBEDDED, "tiny-geo"].contains(&name);
        let mut engine = load(cpu(), name);
        let ids = if is_trained { text_ids(&engine, 300) } else { random_ids(&engine, 31, 200) };
        let exact = score(&mut engine, &ids, 512);
        let rounded = score(&mut load(cpu_with(rounding), name), &ids, 512);
        assert!(exact != rounded, "{name}: nothing is rounded");
        let quality = Quality::of(&exact, &rounded, exact.len() / ids.len());
        println!("{name}: {quality}");
        assert!(quality.passes(), "{name}: {quality}");
    }
}
