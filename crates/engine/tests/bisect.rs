//! The comparison of GPU and CPU finds nothing where there is nothing, and the place of a fault.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::{cpu, gpu, load, one_at_a_time};
use pollster::block_on;
use signbit_engine::bisect::{BisectReport, DEFAULT_TOLERANCE, bisect};
use signbit_engine::device::Read;
use signbit_engine::engine::Engine;
use signbit_shaders::BufferId;

const IDS: [u32; 5] = [42, 211, 604, 185, 61];

fn run(gpu: &mut Engine, cpu: &mut Engine) -> BisectReport {
    block_on(bisect(gpu, cpu, &IDS, DEFAULT_TOLERANCE)).unwrap()
}

/// The buffer of the matrix that the decode step multiplies by at `label`.
fn quants_at(engine: &mut Engine, label: &str) -> BufferId {
    let (_, loaded, _) = engine.parts_mut().unwrap();
    let plans = loaded.model.plans();
    let mut dispatches = plans.decode.dispatches.iter().chain(&plans.head.dispatches);
    let dispatch = dispatches.find(|d| d.label == label).unwrap();
    let at = dispatch.kernel.bindings.iter().position(|b| b.name == "quants").unwrap();
    dispatch.buffers[at]
}

/// The bits of the logits that the last step left.
fn logits(engine: &mut Engine) -> Vec<u32> {
    let (device, loaded, _) = engine.parts_mut().unwrap();
    let logits = loaded.model.io().logits;
    block_on(device.run(&[], &[Read::Words(logits.buffer, 0..u64::from(logits.cols))])).unwrap().concat()
}

/// Inverts the first word of a buffer.
fn invert_word(engine: &mut Engine, buffer: BufferId) {
    let device = engine.device_mut();
    let words = block_on(device.run(&[], &[Read::Words(buffer, 0..1)])).unwrap();
    device.write(buffer, 0, &[!words[0][0]]).unwrap();
}

#[test]
fn sound_models_agree_and_the_first_fault_is_named() {
    let _guard = one_at_a_time();
    for name in ["qwen3-q1_0", "qwen35-mixed"] {
        let (mut gpu, mut cpu) = (load(gpu(), name), load(cpu(), name));
        let report = run(&mut gpu, &mut cpu);
        assert!(report.first.is_none(), "{name}: {}", report.first.unwrap());
        let (_, loaded, _) = cpu.parts_mut().unwrap();
        let plans = loaded.model.plans();
        let expected = loaded.model.prefill_plan(5).unwrap().dispatches.len()
            + plans.decode.dispatches.len()
            + 2 * (plans.head.dispatches.len() + plans.greedy.dispatches.len());
        assert_eq!(report.n_dispatches, expected, "{name}");
        let largest = report.largest.expect("two devices that never round differently");
        eprintln!("{name}: {expected} dispatches, largest {largest}, allowed {}", largest.allowed);

        // The GPU went on from the reference's results all along, so nothing has added up.
        assert_eq!(logits(&mut gpu), logits(&mut cpu), "{name}");

        // Signs or values of weights at the beginning of a matrix, then the same once more.
        let gate = quants_at(&mut gpu, "layer.2.mlp.gate_up");
        invert_word(&mut gpu, gate);
        let first = run(&mut gpu, &mut cpu).first.unwrap_or_else(|| panic!("{name}: not found"));
        assert_eq!((first.step, first.label.as_str()), ("prefill", "layer.2.mlp.gate_up"), "{name}");
        assert!(first.to_string().starts_with("layer.2.mlp.gate_up (mat"), "{first}");
        invert_word(&mut gpu, gate);
        assert!(run(&mut gpu, &mut cpu).first.is_none(), "{name}: the fault is gone");

        // The head is used last, so everything before it must have agreed.
        let head = quants_at(&mut gpu, "lm_head");
        invert_word(&mut gpu, head);
        let first = run(&mut gpu, &mut cpu).first.unwrap_or_else(|| panic!("{name}: not found"));
        assert_eq!((first.step, first.label.as_str()), ("prefill", "lm_head"), "{name}");
        assert_eq!(first.element, 0, "{name}: the first row of the matrix gives the first logit");
    }
}

#[test]
fn engines_that_cannot_be_compared_are_refused() {
    let _guard = one_at_a_time();
    let (mut gpu, mut cpu) = (load(gpu(), "qwen3-q1_0"), load(cpu(), "qwen35-mixed"));
    let code = |result: Result<BisectReport, signbit_engine::EngineError>| result.unwrap_err().code();
    assert_eq!(code(block_on(bisect(&mut gpu, &mut cpu, &IDS, 1e-3))), "invalid_request");
    let mut cpu = load(common::cpu(), "qwen3-q1_0");
    assert_eq!(code(block_on(bisect(&mut gpu, &mut cpu, &[], 1e-3))), "invalid_request");
    assert_eq!(code(block_on(bisect(&mut gpu, &mut cpu, &[1, 1 << 20], 1e-3))), "invalid_request");
    assert_eq!(code(block_on(bisect(&mut gpu, &mut cpu, &[1; 5000], 1e-3))), "context_full");
    assert!(block_on(bisect(&mut gpu, &mut cpu, &IDS, 1e-3)).unwrap().first.is_none());
}
