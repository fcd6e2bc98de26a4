//! `compare` and `kernels`: is the GPU right?

use pollster::block_on;
use serde_json::json;
use signbit_engine::EngineError;
use signbit_engine::bisect::bisect;
use signbit_engine::check::{CaseReport, check_kernels};
use signbit_engine::device::{CpuDevice, CpuOptions, Device};
use signbit_engine::engine::Engine;
use signbit_engine::model::ModelOptions;

use super::{device_line, open_device};
use crate::args::{Backend, CompareArgs, KernelsArgs};
use crate::error::CliError;
use crate::files::{ModelFiles, read_ids};
use crate::output::{print, print_json, print_line, table};

/// Runs the model on both devices and says where they first part ways.
pub fn compare(args: &CompareArgs) -> Result<(), CliError> {
    let ids = read_ids(&args.ids)?;
    let mut files = ModelFiles::open(&args.model)?.expecting(&args.check.sha256)?;
    let gpu = open_device(Backend::Gpu)?;
    if !args.json {
        print_line(&device_line(gpu.info()))?;
    }
    // The same limit divides the tensors into the same buffers, the same plans share the same scratch.
    let cpu = Device::Cpu(Box::new(CpuDevice::new(CpuOptions {
        max_buffer_bytes: Some(gpu.info().limits.max_words() * 4),
        all_plans: !gpu.info().compiles_slowly,
        ..CpuOptions::reference()
    })));
    let (mut gpu, mut cpu) = (Engine::new(gpu), Engine::new(cpu));
    // One position behind the prompt for the decode step.
    let context_length = u32::try_from(ids.len()).unwrap_or(u32::MAX).saturating_add(1);
    let options = ModelOptions { context_length, ..ModelOptions::default() };
    files.load(&mut gpu, options)?;
    files.load(&mut cpu, options)?;
    let report = block_on(bisect(&mut gpu, &mut cpu, &ids, args.tolerance))?;
    if args.json {
        print_json(&report)?;
    }
    if let Some(first) = report.first {
        return Err(CliError::ModelDiffers(first.to_string()));
    }
    if args.json {
        return Ok(());
    }
    let largest = report.largest.map_or_else(
        || "no value differs".to_owned(),
        |d| format!("closest to the limit: {d}, within {:.3e}", d.allowed),
    );
    print_line(&format!("{} dispatches agree; {largest}", report.n_dispatches))
}

/// Runs the cases of every kernel.
pub fn kernels(args: &KernelsArgs) -> Result<(), CliError> {
    let mut device = open_device(args.backend)?;
    if !args.json {
        print_line(&device_line(device.info()))?;
    }
    let reports = block_on(check_kernels(&mut device, &args.filter))?;
    if reports.is_empty() {
        let reason = format!("no kernel's name contains {:?}", args.filter);
        return Err(EngineError::InvalidRequest { reason }.into());
    }
    if args.json {
        print_json(&json!({ "device": device.info(), "cases": reports }))?;
    } else {
        print(&kernel_table(&reports))?;
    }
    match reports.iter().filter(|r| !r.ok).count() {
        0 => Ok(()),
        failed => Err(CliError::KernelsDiffer { failed, total: reports.len() }),
    }
}

/// A line per kernel, in the order of the cases: how many passed, the largest error, what failed.
fn kernel_table(reports: &[CaseReport]) -> String {
    let mut kernels: Vec<&str> = Vec::new();
    for report in reports {
        if !kernels.contains(&report.kernel) {
            kernels.push(report.kernel);
        }
    }
    let row = |kernel: &&str| {
        let of_kernel: Vec<&CaseReport> = reports.iter().filter(|r| r.kernel == *kernel).collect();
        let passed = of_kernel.iter().filter(|r| r.ok).count();
        let largest = of_kernel.iter().map(|r| r.max_error / r.tolerance).fold(0.0, f32::max);
        let verdict = match of_kernel.iter().find(|r| !r.ok) {
            None => "ok".to_owned(),
            Some(report) => format!("FAILED {}: {}", report.case, report.detail),
        };
        vec![(*kernel).to_owned(), format!("{passed}/{}", of_kernel.len()), format!("{largest:.3}"), verdict]
    };
    let rows: Vec<Vec<String>> = kernels.iter().map(row).collect();
    table(&["kernel", "passed", "error/allowed", "verdict"], &rows, usize::MAX)
}
