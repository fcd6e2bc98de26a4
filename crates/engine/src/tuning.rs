//! Chooses among the variants of the decode products on the device at hand.
//!
//! A variant may be chosen once it has given a known answer at the very row length in use; among
//! those that have, the fastest one measured wins. Measuring has a budget, so that it costs a load
//! little on any device, and its result can be kept for the next load on the same device.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
pub use signbit_shaders::kernels::matvec::Variant;
use signbit_shaders::kernels::matvec::{Product, cases::known_answer, with_rows, with_variant};
use signbit_shaders::{Dispatch, State};

use crate::check::check_case;
use crate::clock::now_ms;
use crate::device::{Device, Read};
use crate::error::EngineError;
use crate::model::Model;

/// Milliseconds that all timed runs of a load may take together.
const BUDGET_MS: f64 = 300.0;

/// A submit that takes less says more about submitting than about the kernel.
const LEAST_RUN_MS: f64 = 2.0;

/// Every candidate is timed this often, in turn, and its least time counts: what else the device
/// does then only rarely decides.
const ROUNDS: u32 = 3;

/// The most times that one submit repeats a dispatch.
const MAX_REPEATS: u32 = 64;

/// How variants are chosen when a model is loaded.
#[derive(Clone, Debug)]
pub enum Choose {
    /// By measuring, except for products that were measured before, on this device by this version.
    Fastest {
        /// What was found then.
        remembered: Tuning,
    },
    /// This one wherever it exists and gives the known answer.
    Fixed(Variant),
}

impl Default for Choose {
    fn default() -> Self {
        Self::Fastest { remembered: Tuning::default() }
    }
}

/// What was chosen, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// Adapter, driver and engine version for which this holds.
    pub device: String,
    /// Every product of the decode plan that has variants.
    pub products: Vec<Chosen>,
}

/// The variant of one product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// Operation, format and shape.
    pub product: String,
    /// The variant that runs.
    pub variant: String,
    /// What was tried.
    pub candidates: Vec<Candidate>,
}

/// What one variant showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub variant: String,
    /// Whether it gave the known answer.
    pub is_right: bool,
    /// Nanoseconds per row of the matrix; none if it was not measured.
    pub ns_per_row: Option<f64>,
}

/// Replaces the products of the model's decode plan by the chosen variants.
pub async fn tune(device: &mut Device, model: &mut Model, choose: &Choose) -> Result<Tuning, EngineError> {
    let mut tuning = Tuning { device: device_key(device), products: Vec::new() };
    let products = products(model);
    let mut chosen: HashMap<Product, Variant> = HashMap::new();
    let mut clock = Budget { left_ms: BUDGET_MS, products_left: products.len() as u32 };
    device.write_state(&State { n_tokens: 1, ..State::default() });
    for dispatch in products {
        let Some(product) = Product::of(&dispatch) else { continue };
        let mut entry =
            Chosen { product: product.to_string(), variant: String::new(), candidates: Vec::new() };
        let wanted = match choose {
            Choose::Fixed(variant) => vec![*variant],
            Choose::Fastest { remembered } => worth_trying(remembered, &tuning.device, &entry.product),
        };
        let mut right = Vec::new();
        for variant in wanted {
            let Some(candidate) = candidate(device, &dispatch, variant) else { continue };
            let is_right = gives_known_answer(device, &candidate).await?;
            entry.candidates.push(Candidate {
                variant: variant.name().to_owned(),
                is_right,
                ns_per_row: None,
            });
            if is_right {
                right.push((variant, candidate, entry.candidates.len() - 1));
            }
        }
        let fastest = if let [(variant, ..)] = right.as_slice() {
            Some(*variant)
        } else if clock.left_ms > 0.0 {
            let mut timer = clock.timer(right.len() as u32);
            for (_, candidate, at) in right.iter().cycle().take(right.len() * ROUNDS as usize) {
                let ns = timer.ns_per_row(device, candidate, &product).await?;
                let least = entry.candidates[*at].ns_per_row.map_or(ns, |least| least.min(ns));
                entry.candidates[*at].ns_per_row = Some(least);
            }
            clock.left_ms -= timer.spent_ms;
            let times = right.iter().filter_map(|(v, _, at)| Some((entry.candidates[*at].ns_per_row?, *v)));
            times.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, variant)| variant)
        } else {
            // As the product of the same kind that was measured.
            let like = chosen.iter().find(|(other, _)| other.is_like(&product)).map(|(_, v)| *v);
            like.filter(|like| right.iter().any(|(variant, ..)| variant == like))
        };
        clock.products_left -= 1;
        // What the plan was recorded with has passed the probe of every kernel in use.
        let variant = fastest.unwrap_or(Variant::Lanes);
        entry.variant = variant.name().to_owned();
        chosen.insert(product, variant);
        tuning.products.push(entry);
    }
    let width = device.info().subgroup_width.unwrap_or(1);
    model.replace_products(device, |dispatch| {
        let variant = *chosen.get(&Product::of(dispatch)?)?;
        with_variant(dispatch, variant, width)
    })?;
    Ok(tuning)
}

/// One dispatch per product that has variants, the most bytes first.
fn products(model: &Model) -> Vec<Dispatch> {
    let mut found: Vec<(u64, Product, &Dispatch)> = Vec::new();
    let plans = model.plans();
    for dispatch in plans.decode.dispatches.iter().chain(&plans.head.dispatches) {
        let Some(product) = Product::of(dispatch).filter(Product::has_variants) else { continue };
        match found.iter_mut().find(|(_, other, _)| *other == product) {
            Some((bytes, ..)) => *bytes += dispatch.bytes_read,
            None => found.push((dispatch.bytes_read, product, dispatch)),
        }
    }
    found.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
    found.into_iter().map(|(_, _, dispatch)| dispatch.clone()).collect()
}

/// The product in a variant that this device can run.
fn candidate(device: &Device, dispatch: &Dispatch, variant: Variant) -> Option<Dispatch> {
    let width = device.info().subgroup_width;
    let candidate = with_variant(dispatch, variant, width.unwrap_or(1))?;
    (width.is_some() || !candidate.kernel.needs_subgroups()).then_some(candidate)
}

/// Whether the variant computes the product. One that the device's compiler refuses does not.
async fn gives_known_answer(device: &mut Device, candidate: &Dispatch) -> Result<bool, EngineError> {
    let width = device.info().subgroup_width.unwrap_or(1);
    let Some(case) = known_answer(candidate, width) else { return Ok(false) };
    match check_case(device, &case).await {
        Ok(report) => {
            if !report.ok {
                tracing::warn!("{} is wrong on this device: {}", report.kernel, report.detail);
            }
            Ok(report.ok)
        }
        Err(error @ EngineError::DeviceLost { .. }) => Err(error),
        Err(error) => {
            tracing::warn!("{} does not run on this device: {error}", candidate.kernel.name);
            Ok(false)
        }
    }
}

/// The variant that was chosen before; all if that does not hold here.
fn worth_trying(before: &Tuning, device: &str, product: &str) -> Vec<Variant> {
    let entry = before.products.iter().find(|p| before.device == device && p.product == product);
    let variant = entry.and_then(|p| Variant::ALL.into_iter().find(|v| v.name() == p.variant));
    variant.map_or(Vec::from(Variant::ALL), |variant| vec![variant])
}

/// What a choice depends on.
fn device_key(device: &Device) -> String {
    let info = device.info();
    let width = info.subgroup_width.unwrap_or(0);
    format!("{} | {} | subgroups {width} | {}", info.name, info.vendor, env!("CARGO_PKG_VERSION"))
}

struct Budget {
    left_ms: f64,
    products_left: u32,
}

impl Budget {
    /// A timer for the candidates of the next product.
    fn timer(&self, candidates: u32) -> Timer {
        let share = self.left_ms / f64::from(self.products_left.max(1) * candidates.max(1) * ROUNDS);
        Timer { share_ms: share, spent_ms: 0.0, rows: 0, repeats: 0 }
    }
}

/// Times the candidates of a product on equal terms: as many rows, as often.
struct Timer {
    share_ms: f64,
    spent_ms: f64,
    rows: u32,
    repeats: u32,
}

impl Timer {
    async fn ns_per_row(
        &mut self,
        device: &mut Device,
        candidate: &Dispatch,
        product: &Product,
    ) -> Result<f64, EngineError> {
        if self.rows == 0 {
            self.calibrate(device, candidate, product).await?;
        }
        let whole = self.run(device, candidate, self.rows, self.repeats).await?;
        Ok(whole * 1e6 / f64::from(self.rows) / f64::from(self.repeats))
    }

    /// Finds how many rows, and how often, take a fair share of the time: all of them on a fast
    /// device, and again until they can be measured; a few of them on a slow one.
    async fn calibrate(
        &mut self,
        device: &mut Device,
        candidate: &Dispatch,
        product: &Product,
    ) -> Result<(), EngineError> {
        let target = LEAST_RUN_MS.min(self.share_ms.max(0.1));
        (self.rows, self.repeats) = (product.rows.min(64), 1);
        loop {
            let ms = self.run(device, candidate, self.rows, self.repeats).await?.max(0.01);
            let room = target / ms;
            if room < 2.0 || (self.rows == product.rows && self.repeats == MAX_REPEATS) {
                return Ok(());
            }
            if self.rows < product.rows {
                self.rows = (f64::from(self.rows) * room.min(16.0)).min(f64::from(product.rows)) as u32;
            } else {
                self.repeats = (f64::from(self.repeats) * room).min(f64::from(MAX_REPEATS)) as u32;
            }
        }
    }

    /// Milliseconds of one submit; the pipeline exists, since the known answer was asked of it.
    async fn run(
        &mut self,
        device: &mut Device,
        candidate: &Dispatch,
        rows: u32,
        repeats: u32,
    ) -> Result<f64, EngineError> {
        let dispatch = with_rows(candidate, rows).unwrap_or_else(|| candidate.clone());
        let plan = device.prepare(vec![dispatch])?;
        let plans: Vec<_> = (0..repeats).map(|_| &plan).collect();
        let start = now_ms();
        device.run(&plans, &[Read::State]).await?;
        let elapsed = now_ms() - start;
        self.spent_ms += elapsed;
        Ok(elapsed)
    }
}
