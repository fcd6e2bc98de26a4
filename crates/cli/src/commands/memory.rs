//! The memory plan in words.

use serde_json::json;
use signbit_engine::EngineError;
use signbit_engine::device::DeviceInfo;
use signbit_engine::loader::LoadedModel;
use signbit_engine::memory::{MemoryPlan, Refusal, Rung};

use super::device_line;
use crate::error::CliError;
use crate::output::{bytes, facts, print, print_json};

/// Prints a plan; of a refusal the plan that would be needed, and the reason as the error.
pub fn print_plan(
    device: &DeviceInfo,
    planned: Result<LoadedModel, Refusal>,
    as_json: bool,
) -> Result<(), CliError> {
    let (plan, error) = match planned {
        Ok(loaded) => (Some(Box::new(loaded.model.memory().clone())), None),
        Err(Refusal { error, plan }) => (plan, Some(error)),
    };
    if as_json {
        print_json(&json!({ "device": device, "fits": error.is_none(), "memory": plan }))?;
    } else if let Some(plan) = plan {
        print(&text(device, &plan, error.as_ref()))?;
    }
    error.map_or(Ok(()), |error| Err(error.into()))
}

fn text(device: &DeviceInfo, plan: &MemoryPlan, error: Option<&EngineError>) -> String {
    let size = |n: u64| format!("{n:>12}  {}", bytes(n));
    let rope_bytes = plan.cache_bytes - plan.kv_bytes - plan.state_bytes;
    let place = &plan.placement;
    let shards = match plan.sharded_tensors {
        0 => format!("{}, one for each matrix and format", plan.shards),
        n => format!("{}; {n} matrices take more than one buffer holds", plan.shards),
    };
    let verdict = match (error, place.rung) {
        (Some(_), _) => "does not fit",
        (None, Rung::Full) => "fits",
        (None, _) => "fits after stepping down",
    };
    let mut rows = vec![
        ("device", device_line(device)),
        ("weights", size(plan.weight_bytes)),
        ("KV cache", size(plan.kv_bytes)),
        ("state", size(plan.state_bytes)),
        ("rotations", size(rope_bytes)),
        ("scratch", size(plan.scratch_bytes)),
        ("staging", size(plan.staging_bytes)),
        ("total", size(plan.total_bytes)),
        ("budget", plan.budget_bytes.map_or_else(|| "none".to_owned(), size)),
        ("shards", shards),
        ("context", format!("{} positions, keys and values as {}", place.context_length, place.kv_cache)),
        ("rung", place.rung.name().to_owned()),
        ("verdict", verdict.to_owned()),
    ];
    rows.extend(place.reason.clone().map(|reason| ("reason", reason)));
    facts(&rows)
}

/// The plan in one line.
pub fn line(plan: &MemoryPlan) -> String {
    format!(
        "{}: {} weights, {} caches, {} scratch, {} staging while it loads",
        bytes(plan.total_bytes),
        bytes(plan.weight_bytes),
        bytes(plan.cache_bytes),
        bytes(plan.scratch_bytes),
        bytes(plan.staging_bytes)
    )
}
