//! Chooses among the variants of the decode products on the device at hand.
//!
//! A variant may be chosen once it has given a known answer at the very row length in use; among
//! those that have, the fastest one measured wins. Measuring has a budget, so that it costs a load
//! little on any device, and its result can be kept for the next load on the same device.

use serde::{Deserialize, Serialize};
use signbit_shaders::kernels::matmul;
pub use signbit_shaders::kernels::matvec::Variant;
use signbit_shaders::kernels::matvec::{Product, cases::known_answer, with_rows, with_variant};
use signbit_shaders::{Dispatch, State};

use crate::check::check_case;
use crate::clock::now_ms;
use crate::device::{Device, MAX_REPORTS, Read};
use crate::error::EngineError;
use crate::model::Model;

/// Milliseconds that all timed runs of a load may take together.
const BUDGET_MS: f64 = 300.0;

/// No variant is compiled for trial after this many milliseconds: what is left runs as what is like it.
/// Where compiling takes long only the first product of a format is tried.
const MAX_TRYING_MS: f64 = 3000.0;

/// A submit that takes less says more about submitting than about the kernel.
const LEAST_RUN_MS: f64 = 2.0;

/// Every candidate is timed this often, in turn, and its least time counts: what else the device
/// does then only rarely decides.
const ROUNDS: u32 = 3;

/// Where an empty submit takes longer than this, tiles are not measured: Firefox answers every 100 ms.
const MAX_OVERHEAD_MS: f64 = 20.0;

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
    /// The highest tile of prefill's products; none if it was not measured.
    #[serde(default)]
    pub tile: Option<ChosenTile>,
}

/// The highest tile that prefill uses. Heights do not change a bit of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenTile {
    /// Format and shape of the product that was measured, the largest of the model.
    pub product: String,
    /// Tokens of the tile.
    pub tokens: u32,
    /// Nanoseconds per token of each height.
    pub candidates: Vec<(u32, f64)>,
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
///
/// # Errors
/// [`EngineError::WrongResults`] if a product has no variant that is right on this device.
pub async fn tune(device: &mut Device, model: &mut Model, choose: &Choose) -> Result<Tuning, EngineError> {
    let mut tuning = Tuning { device: device_key(device), ..Tuning::default() };
    let products = products(model);
    let mut chosen: Vec<(Product, Variant, bool)> = Vec::new();
    let mut clock = Budget::start(device, products.len() as u32).await?;
    for dispatch in products {
        let Some(product) = Product::of(&dispatch) else { continue };
        // Of the products of the same format that were measured, one of the same kind if there is one.
        let measured = || chosen.iter().filter(|(other, _, timed)| *timed && other.has_format_of(&product));
        let like = measured().find(|(other, ..)| other.is_like(&product)).or_else(|| measured().next());
        let like = like.map(|(_, variant, _)| *variant);
        let (wanted, known) = match choose {
            Choose::Fixed(variant) => (vec![*variant], None),
            Choose::Fastest { remembered } => {
                match find_remembered(remembered, &tuning.device, &product.to_string()) {
                    Some((variant, entry)) => (vec![variant], Some(entry)),
                    None if like.is_none() || clock.allows_trying() => (Vec::from(Variant::ALL), None),
                    None => (like.into_iter().collect(), None),
                }
            }
        };
        let mut tried = try_variants(device, &dispatch, &wanted).await?;
        if tried.iter().all(|t| !t.is_right) && !wanted.contains(&Variant::Lanes) {
            tried.extend(try_variants(device, &dispatch, &[Variant::Lanes]).await?);
        }
        let n_right = tried.iter().filter(|t| t.is_right).count() as u32;
        if n_right > 1 && clock.allows_timing(n_right) {
            clock.time(device, &mut tried, &product).await?;
        }
        clock.products_left -= 1;
        let timed = tried.iter().filter_map(|t| Some((t.ns_per_row?, t.variant)));
        let fastest = timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, variant)| variant);
        let is_right = |variant: &Variant| tried.iter().any(|t| t.is_right && t.variant == *variant);
        let fallback = like.into_iter().chain([Variant::Lanes]).chain(tried.iter().map(|t| t.variant));
        let variant = fastest.or_else(|| fallback.into_iter().find(is_right)).ok_or_else(|| {
            let detail = format!("no variant of {product} gives the known answer");
            EngineError::WrongResults { kernel: dispatch.kernel.name, detail }
        })?;
        let candidates = match known.filter(|entry| entry.variant == variant.name()) {
            Some(entry) => entry.candidates.clone(),
            None => tried.iter().map(Trial::report).collect(),
        };
        let is_timed = candidates.iter().any(|c| c.variant == variant.name() && c.ns_per_row.is_some());
        let entry = Chosen { product: product.to_string(), variant: variant.name().to_owned(), candidates };
        tuning.products.push(entry);
        chosen.push((product, variant, is_timed));
    }
    tuning.tile = match choose {
        Choose::Fixed(_) => None,
        Choose::Fastest { remembered } => {
            let remembered = remembered.tile.as_ref().filter(|_| remembered.device == tuning.device);
            choose_tile(device, model, &mut clock, remembered).await?
        }
    };
    let most_tokens = tuning.tile.as_ref().map_or(u32::MAX, |tile| tile.tokens);
    let width = device.info().subgroup_width.unwrap_or(1);
    model.replace_products(device, |dispatch| {
        if matmul::height_of(dispatch).is_some_and(|height| height > most_tokens) {
            return matmul::with_height(dispatch, most_tokens);
        }
        let product = Product::of(dispatch)?;
        let (_, variant, _) = chosen.iter().find(|(other, ..)| *other == product)?;
        with_variant(dispatch, *variant, width)
    })?;
    Ok(tuning)
}

/// Times the heights that the prefill plans have been recorded with on the model's largest product. A
/// high tile reads weights less often, a low one leaves more registers and more workgroups.
async fn choose_tile(
    device: &mut Device,
    model: &Model,
    clock: &mut Budget,
    remembered: Option<&ChosenTile>,
) -> Result<Option<ChosenTile>, EngineError> {
    let plans = &model.plans().prefill;
    let products = || plans.iter().flat_map(|(_, plan)| &plan.dispatches);
    if clock.overhead_ms > MAX_OVERHEAD_MS {
        return Ok(None);
    }
    let Some((rows, widest)) = plans.last() else { return Ok(None) };
    let largest = widest.dispatches.iter().filter(|d| matmul::height_of(d).is_some());
    let Some(largest) = largest.max_by_key(|d| d.bytes_read) else { return Ok(None) };
    let mut heights: Vec<u32> = products().filter_map(matmul::height_of).collect();
    heights.sort_unstable();
    heights.dedup();
    let tokens = (*rows).min(64);
    let Some((product, part)) =
        matmul::with_outputs(largest, if device.info().compiles_slowly { 64 } else { u32::MAX })
    else {
        return Ok(None);
    };
    if let Some(known) = remembered.filter(|tile| tile.product == product && heights.contains(&tile.tokens)) {
        return Ok(Some(known.clone()));
    }
    let mut candidates: Vec<(u32, f64)> = heights.iter().map(|&height| (height, f64::INFINITY)).collect();
    let mut repeats = 1;
    for _ in 0..ROUNDS {
        for (height, least) in &mut candidates {
            let Some(dispatch) = matmul::with_height(&part, *height) else { continue };
            let mut ms = clock.run(device, &dispatch, tokens, repeats).await?;
            while ms < LEAST_RUN_MS.max(clock.overhead_ms) && repeats < MAX_REPEATS {
                repeats *= 2;
                *least = f64::INFINITY;
                ms = clock.run(device, &dispatch, tokens, repeats).await?;
            }
            *least = least.min(ms * 1e6 / f64::from(repeats) / f64::from(tokens));
        }
    }
    let fastest = candidates.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|&(height, _)| height);
    Ok(fastest.map(|tokens| ChosenTile { product, tokens, candidates }))
}

/// A variant of one product on this device.
struct Trial {
    variant: Variant,
    dispatch: Dispatch,
    is_right: bool,
    ns_per_row: Option<f64>,
}

impl Trial {
    fn report(&self) -> Candidate {
        Candidate {
            variant: self.variant.name().to_owned(),
            is_right: self.is_right,
            ns_per_row: self.ns_per_row,
        }
    }
}

/// Asks those of the variants that the device can run for the known answer.
async fn try_variants(
    device: &mut Device,
    dispatch: &Dispatch,
    variants: &[Variant],
) -> Result<Vec<Trial>, EngineError> {
    let mut trials = Vec::new();
    for &variant in variants {
        let Some(dispatch) = candidate(device, dispatch, variant) else { continue };
        let is_right = gives_known_answer(device, &dispatch).await?;
        trials.push(Trial { variant, dispatch, is_right, ns_per_row: None });
    }
    Ok(trials)
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
            // A refusal may be reported more than once; none of it concerns what comes next.
            for _ in 0..MAX_REPORTS {
                if device.check().await.is_ok() {
                    break;
                }
            }
            Ok(false)
        }
    }
}

/// What was measured before, on the same device.
fn find_remembered<'t>(before: &'t Tuning, device: &str, product: &str) -> Option<(Variant, &'t Chosen)> {
    let entry = before.products.iter().find(|p| before.device == device && p.product == product)?;
    let variant = Variant::ALL.into_iter().find(|v| v.name() == entry.variant)?;
    let is_timed = |c: &Candidate| c.variant == entry.variant && c.ns_per_row.is_some();
    entry.candidates.iter().any(is_timed).then_some((variant, entry))
}

/// What a choice depends on.
fn device_key(device: &Device) -> String {
    let info = device.info();
    let width = info.subgroup_width.unwrap_or(0);
    format!("{} | {} | subgroups {width} | {}", info.name, info.vendor, env!("CARGO_PKG_VERSION"))
}

/// What a load may spend on choosing.
struct Budget {
    started_ms: f64,
    compiles_slowly: bool,
    /// Of the timed runs.
    left_ms: f64,
    /// What a submit takes that does nothing.
    overhead_ms: f64,
    products_left: u32,
}

impl Budget {
    async fn start(device: &mut Device, products: u32) -> Result<Self, EngineError> {
        let mut overhead_ms = f64::INFINITY;
        for _ in 0..ROUNDS {
            let start = now_ms();
            device.check().await?;
            overhead_ms = overhead_ms.min(now_ms() - start);
        }
        let compiles_slowly = device.info().compiles_slowly;
        let started_ms = now_ms();
        Ok(Self { started_ms, compiles_slowly, left_ms: BUDGET_MS, overhead_ms, products_left: products })
    }

    /// Whether there is time to compile what may not be chosen in the end.
    fn allows_trying(&self) -> bool {
        !self.compiles_slowly && now_ms() - self.started_ms < MAX_TRYING_MS
    }

    /// What one timed run of one of so many candidates may take.
    fn share_ms(&self, candidates: u32) -> f64 {
        self.left_ms / f64::from(self.products_left.max(1) * candidates.max(1) * ROUNDS)
    }

    /// Whether a run may be long enough to stand out against the submit that it comes with.
    fn allows_timing(&self, candidates: u32) -> bool {
        self.share_ms(candidates) > self.overhead_ms
    }

    /// Times the right ones of the trials on equal terms: as many rows, as often.
    async fn time(
        &mut self,
        device: &mut Device,
        trials: &mut [Trial],
        product: &Product,
    ) -> Result<(), EngineError> {
        let n_right = trials.iter().filter(|t| t.is_right).count() as u32;
        let share_ms = self.share_ms(n_right);
        let Some(first) = trials.iter().find(|t| t.is_right) else { return Ok(()) };
        let (rows, repeats) = self.calibrate(device, &first.dispatch, product, share_ms).await?;
        for _ in 0..ROUNDS {
            for trial in trials.iter_mut().filter(|t| t.is_right) {
                let part = with_rows(&trial.dispatch, rows).unwrap_or_else(|| trial.dispatch.clone());
                let ms = self.run(device, &part, 1, repeats).await?;
                let ns = ms * 1e6 / f64::from(rows) / f64::from(repeats);
                trial.ns_per_row = Some(trial.ns_per_row.map_or(ns, |least| least.min(ns)));
            }
            if self.left_ms <= 0.0 {
                break;
            }
        }
        Ok(())
    }

    /// Finds how many rows, and how often, take a fair share of the time: all of them on a fast
    /// device, and again until they can be measured; a few of them on a slow one.
    async fn calibrate(
        &mut self,
        device: &mut Device,
        dispatch: &Dispatch,
        product: &Product,
        share_ms: f64,
    ) -> Result<(u32, u32), EngineError> {
        let target_ms = share_ms.min(LEAST_RUN_MS.max(2.0 * self.overhead_ms));
        let (mut rows, mut repeats) = (product.rows.min(64), 1);
        loop {
            let part = with_rows(dispatch, rows).unwrap_or_else(|| dispatch.clone());
            let room = target_ms / self.run(device, &part, 1, repeats).await?;
            if room < 2.0 || (rows == product.rows && repeats == MAX_REPEATS) {
                return Ok((rows, repeats));
            }
            if rows < product.rows {
                rows = (f64::from(rows) * room.min(16.0)).min(f64::from(product.rows)) as u32;
            } else {
                repeats = (f64::from(repeats) * room).min(f64::from(MAX_REPEATS)) as u32;
            }
        }
    }

    /// Milliseconds that the dispatches of a submit take; the pipeline exists, since the known
    /// answer was asked of it.
    async fn run(
        &mut self,
        device: &mut Device,
        dispatch: &Dispatch,
        n_tokens: u32,
        repeats: u32,
    ) -> Result<f64, EngineError> {
        let plan = device.prepare(vec![dispatch.clone()])?;
        let plans: Vec<_> = (0..repeats).map(|_| &plan).collect();
        device.write_state(&State { n_tokens, ..State::default() });
        let start = now_ms();
        device.run(&plans, &[Read::State]).await?;
        let elapsed = now_ms() - start;
        self.left_ms -= elapsed;
        Ok((elapsed - self.overhead_ms).max(0.01))
    }
}
