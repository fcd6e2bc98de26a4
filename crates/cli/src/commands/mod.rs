//! The commands, one function each: arguments in, output on standard output.

pub mod bench;
pub mod chat;
pub mod check;
pub mod evaluate;
pub mod generate;
pub mod inspect;
pub mod logits;
mod memory;
pub mod random_model;
pub mod session;
mod session_bench;
pub mod text;

use pollster::block_on;
use signbit_engine::device::{
    Activations, CpuDevice, CpuKernels, CpuOptions, Device, DeviceInfo, GpuDevice, GpuOptions,
};

use crate::args::Backend;
use crate::error::CliError;

fn open_device(backend: Backend) -> Result<Device, CliError> {
    open_device_with(backend, GpuOptions::default())
}

fn open_device_with(backend: Backend, options: GpuOptions) -> Result<Device, CliError> {
    match backend {
        Backend::Gpu => Ok(Device::Gpu(Box::new(block_on(GpuDevice::open(options))?))),
        Backend::Cpu => Ok(cpu(CpuKernels::Fast(Activations::default()))),
        Backend::CpuF32 => Ok(cpu(CpuKernels::Fast(Activations::F32))),
        Backend::CpuReference => Ok(cpu(CpuKernels::Reference)),
    }
}

fn cpu(kernels: CpuKernels) -> Device {
    Device::Cpu(Box::new(CpuDevice::new(CpuOptions { kernels, ..CpuOptions::default() })))
}

/// One line about the device.
fn device_line(info: &DeviceInfo) -> String {
    let software = if info.backend != "cpu" && info.is_fallback { ", software" } else { "" };
    let driver = if info.vendor.is_empty() { String::new() } else { format!(" ({})", info.vendor) };
    let binding = crate::output::bytes(info.limits.max_binding_bytes);
    format!("{}{driver}: {}{software}, bindings up to {binding}", info.name, info.backend)
}
