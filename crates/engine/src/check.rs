//! Runs kernels on a device and compares them with their CPU references.

use std::collections::BTreeMap;

use signbit_shaders::case::{Case, run_reference};
use signbit_shaders::kernels::matvec::{Variant, with_variant};
use signbit_shaders::weights::{Weight, words_per_row};
use signbit_shaders::{Access, BufferId, Element, kernels};

use crate::device::{Device, Read};
use crate::error::EngineError;
use crate::model::Model;

/// What one case showed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CaseReport {
    /// The kernel.
    pub kernel: &'static str,
    /// The case.
    pub case: String,
    /// Largest difference from the reference, in units of what is allowed: 1 is the limit.
    pub max_error: f32,
    /// What `max_error` may be.
    pub tolerance: f32,
    /// Whether the kernel is right.
    pub ok: bool,
    /// Where it is wrong.
    pub detail: String,
}

/// Runs every case whose kernel's name contains `filter`.
pub async fn check_kernels(device: &mut Device, filter: &str) -> Result<Vec<CaseReport>, EngineError> {
    let mut reports = Vec::new();
    let has_subgroups = device.info().subgroup_width.is_some();
    let can_run = |case: &Case| has_subgroups || !case.dispatch.kernel.needs_subgroups();
    let wanted = |case: &Case| case.dispatch.kernel.name.contains(filter);
    let width = device.info().subgroup_width.unwrap_or(1);
    for mut case in kernels::cases()?.into_iter().filter(can_run).filter(wanted) {
        if case.dispatch.kernel.needs_subgroups() {
            // Laid out for this device, so that every subgroup of a workgroup has work.
            let here = with_variant(&case.dispatch, Variant::Subgroup, width);
            case.dispatch = here.unwrap_or(case.dispatch);
        }
        reports.push(check_case(device, &case).await?);
    }
    Ok(reports)
}

/// Runs each kernel that the model's plans use on a small case with a known answer. A device that
/// drops a dispatch or computes something else must not answer anybody.
pub async fn probe(device: &mut Device, model: &Model) -> Result<(), EngineError> {
    let plans = model.plans();
    let prefill = plans.prefill.iter().map(|(_, plan)| plan);
    let sample = &plans.sample;
    let all = prefill.chain([&plans.decode, &plans.head, &plans.greedy]).chain([
        &sample.dry,
        &sample.adjust,
        &sample.top,
        &sample.draw,
    ]);
    let used: BTreeMap<&str, _> =
        all.flat_map(|plan| &plan.dispatches).map(|d| (d.kernel.name, d.kernel)).collect();
    let max_words = device.info().limits.max_words();
    for kernel in used.into_values() {
        let case = kernels::probe(kernel, max_words)?.ok_or_else(|| EngineError::WrongResults {
            kernel: kernel.name,
            detail: "it has no case with a known answer".to_owned(),
        })?;
        let report = check_case(device, &case).await?;
        if !report.ok {
            return Err(EngineError::WrongResults { kernel: kernel.name, detail: report.detail });
        }
    }
    Ok(())
}

/// Runs one case and leaves nothing on the device.
pub async fn check_case(device: &mut Device, case: &Case) -> Result<CaseReport, EngineError> {
    let mark = device.mark();
    let result = run_case(device, case).await;
    device.free_from(mark);
    let (outputs, state) = result?;
    let (expected, expected_state) = run_reference(case);
    let mut worst = Worst::default();
    for (name, element, id, words) in &outputs {
        let reference = &expected[id.0 as usize];
        for (i, (&ours, &theirs)) in words.iter().zip(reference).enumerate() {
            worst.compare(*element, case, || format!("{name}[{i}]"), ours, theirs);
        }
    }
    if state != bytemuck::cast_slice::<_, u32>(&[expected_state]) {
        worst.error = f32::INFINITY;
        worst.detail = format!("the state is {state:?} where {expected_state:?} is right");
    }
    Ok(CaseReport {
        kernel: case.dispatch.kernel.name,
        case: case.name.clone(),
        max_error: worst.error,
        tolerance: 1.0,
        ok: worst.error <= 1.0,
        detail: worst.detail,
    })
}

/// A writable buffer of a case after its run.
type Output = (&'static str, Element, BufferId, Vec<u32>);

async fn run_case(device: &mut Device, case: &Case) -> Result<(Vec<Output>, Vec<u32>), EngineError> {
    let mut ids = Vec::new();
    for (i, words) in case.buffers.iter().enumerate() {
        let id = device.create_buffer(&format!("case.{i}"), words.len() as u64)?;
        // The rows of a matrix come below.
        let of_weight = |weight: Weight| [weight.quants, weight.scales].contains(&BufferId(i as u32));
        if !case.dispatch.weight.is_some_and(of_weight) {
            device.write(id, 0, words)?;
        }
        ids.push(id);
    }
    device.write_state(&case.state);
    let mut dispatch = case.dispatch.with_buffers(|id| ids[id.0 as usize]);
    dispatch.label = case.name.clone();
    if let (Some(weight), Some(theirs)) = (dispatch.weight, case.dispatch.weight) {
        let [quants, scales] = [theirs.quants, theirs.scales].map(|id| &case.buffers[id.0 as usize]);
        let (quant_words, scale_words) = words_per_row(weight.format, weight.cols);
        let words = |per_row: u32| (weight.rows * per_row) as usize;
        device.write_rows(weight, 0, &quants[..words(quant_words)], &scales[..words(scale_words)])?;
    }
    let bound = case.dispatch.kernel.bindings.iter().zip(&case.dispatch.buffers);
    let written: Vec<_> = bound.filter(|(b, _)| b.access == Access::ReadWrite).collect();
    let mut reads = vec![Read::State];
    for (_, id) in &written {
        let n_words = case.buffers[id.0 as usize].len() as u64;
        reads.push(Read::Words(ids[id.0 as usize], 0..n_words));
    }
    let plan = device.prepare(vec![dispatch])?;
    let mut results = device.run(&[&plan], &reads).await?.into_iter();
    let state = results.next().unwrap_or_default();
    let outputs =
        written.iter().zip(results).map(|((b, id), words)| (b.name, b.element, **id, words)).collect();
    Ok((outputs, state))
}

#[derive(Default)]
struct Worst {
    error: f32,
    detail: String,
}

impl Worst {
    fn compare(&mut self, element: Element, case: &Case, place: impl Fn() -> String, ours: u32, theirs: u32) {
        // Bits that are the same are right even where they are no number, as in a buffer that is left alone.
        if ours == theirs {
            return;
        }
        let (ours, theirs) = match element {
            Element::U32 => {
                if self.error < f32::INFINITY {
                    self.error = f32::INFINITY;
                    self.detail = format!("{} is {ours} where {theirs} is right", place());
                }
                return;
            }
            Element::F32 => (f32::from_bits(ours), f32::from_bits(theirs)),
        };
        let allowed = case.tolerance.absolute + case.tolerance.relative * theirs.abs();
        let difference = (ours - theirs).abs();
        let error = match difference {
            0.0 => 0.0,
            d if d.is_finite() => d / allowed,
            _ => f32::INFINITY,
        };
        if error > self.error {
            self.error = error;
            self.detail = format!("{} is {ours} where {theirs} is right, within {allowed}", place());
        }
    }
}
