//! The memory plan: what a model takes on a device, and how far it steps down where that is too much.
//!
//! The plan is made by the code that allocates, on a device that only counts, from the header alone:
//! the verdict is there before the first weight. What was asked for is tried first, then down a ladder:
//!
//! 1. `full`: the context asked for (the model's own at most), keys and values as f32 or as asked for.
//! 2. `kv_cache`: keys and values in 4 bits. Only where the kind was left open and the heads fit.
//! 3. `context`: the longest context that fits, a multiple of [`CONTEXT_STEP`] positions and no less than
//!    [`LEAST_CONTEXT`], with keys and values as on the rung above.
//! 4. Refusal, with what is needed and what there is.
//!
//! A rung is too high where the plan exceeds the device's budget, a buffer its limits, or a loop what a
//! kernel or software adapter counts. Where the device fails to allocate a plan that looked right, the next rung is
//! tried, contexts then in halves. Memory that runs out while weights are written ends the load with an
//! error: bytes that have gone by would have to come again, which only the host can arrange. The host may say where the ladder ends ([`Fallback`]), not reorder it.

use crate::device::{DeviceInfo, UPLOAD_BYTES};
use crate::error::EngineError;
use crate::model::KvCache;
use crate::model::weights::Weights;

/// Contexts that are tried are multiples of this.
pub const CONTEXT_STEP: u32 = 256;

/// No context is cut below this.
pub const LEAST_CONTEXT: u32 = 512;

/// How far a plan has stepped down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Not at all.
    #[default]
    Full,
    /// To the 4-bit cache.
    KvCache,
    /// To a shorter context.
    Context,
}

impl Rung {
    /// The name that plans and callers use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::KvCache => "kv_cache",
            Self::Context => "context",
        }
    }
}

/// How far a plan may step down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Not at all: what was asked for or nothing.
    None,
    /// To the 4-bit cache.
    KvCache,
    /// To a shorter context.
    #[default]
    Context,
}

/// Where on the ladder a plan stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Placement {
    /// How far it has stepped down.
    pub rung: Rung,
    /// Why it stands no higher; nothing on the highest rung.
    pub reason: Option<String>,
    /// How keys and values are kept: never [`KvCache::Auto`].
    pub kv_cache: KvCache,
    /// Positions that the caches hold.
    pub context_length: u32,
}

/// Bytes that a model takes on its device, and how it came to them.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryPlan {
    /// All tensors of the model.
    pub weight_bytes: u64,
    /// Keys, values, recurrent states and the rotation table.
    pub cache_bytes: u64,
    /// Of these, keys and values.
    pub kv_bytes: u64,
    /// Of these, recurrent states.
    pub state_bytes: u64,
    /// Intermediate results, logits, what sampling needs, and parameters of the dispatches.
    pub scratch_bytes: u64,
    /// The most that weights take on their way into their buffers, which afterwards serves the checks
    /// of the kernels.
    pub staging_bytes: u64,
    /// All of these at once: the most that the device holds.
    pub total_bytes: u64,
    /// Pieces in which the matrices lie, each with one buffer of quants and one of scales.
    pub shards: u32,
    /// Tensors, or what is joined of them, that no single buffer may hold.
    pub sharded_tensors: u32,
    /// What the device may hold, where there is such a limit.
    pub budget_bytes: Option<u64>,
    /// Context, kind of cache, and where on the ladder they stand.
    #[serde(flatten)]
    pub placement: Placement,
}

impl MemoryPlan {
    /// Whether the budget allows it.
    pub fn verdict(&self) -> Result<(), EngineError> {
        match self.budget_bytes {
            Some(budget) if self.total_bytes > budget => Err(EngineError::OverBudget {
                context_length: self.placement.context_length,
                needed: self.total_bytes,
                budget,
            }),
            _ => Ok(()),
        }
    }
}

/// What weights may take on their way, and afterwards the checks of the kernels; `others` is the rest of
/// the plan, since no more is on its way than is written.
pub fn staging_bytes(device: &DeviceInfo, weights: &Weights, others: u64) -> u64 {
    /// Above [`signbit_shaders::kernels::probe`]'s largest case.
    const CHECK_BYTES: u64 = 1 << 20;
    match device.backend {
        "cpu" => weights.run_bytes(),
        _ => UPLOAD_BYTES.min(others).max(CHECK_BYTES),
    }
}

/// A model that does not run on a device.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub error: EngineError,
    /// What the lowest rung that was tried would take, where that could be planned.
    pub plan: Option<Box<MemoryPlan>>,
}

impl Refusal {
    /// Whether a smaller plan may be allowed.
    fn is_of_size(&self) -> bool {
        matches!(
            self.error,
            EngineError::LimitTooSmall { .. }
                | EngineError::ContextTooLong { .. }
                | EngineError::OverBudget { .. }
                // Kernels refuse contexts that their loops or indices do not reach. What no context
                // changes is refused again on the lowest rung.
                | EngineError::Shape(_)
        )
    }

    /// Of two refusals the one whose plan takes less.
    fn or_smaller(self, other: Self) -> Self {
        let total = |refusal: &Self| refusal.plan.as_ref().map_or(u64::MAX, |plan| plan.total_bytes);
        if total(&other) <= total(&self) { other } else { self }
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        Self { error, plan: None }
    }
}

impl From<Refusal> for EngineError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

/// What was asked for, and what is allowed instead.
#[derive(Clone, Copy, Debug)]
pub struct Ladder {
    /// Positions asked for, the model's own at most.
    pub context_length: u32,
    /// The kind of cache asked for.
    pub kv_cache: KvCache,
    /// Whether the 4-bit cache can hold the model's heads.
    pub kivi_holds: bool,
    /// Where the ladder ends.
    pub fallback: Fallback,
}

impl Ladder {
    /// The highest rung that the device allows. `plan` plans the model at a place.
    pub fn highest(
        &self,
        mut plan: impl FnMut(&Placement) -> Result<MemoryPlan, Refusal>,
    ) -> Result<MemoryPlan, Refusal> {
        let mut place = self.top();
        let mut refusal = match plan(&place) {
            Err(refusal) if refusal.is_of_size() => refusal,
            decided => return decided,
        };
        let reason = refusal.error.to_string();
        if self.may_take_kivi() {
            place = place.with_kivi(&reason);
            refusal = match plan(&place) {
                Err(lower) if lower.is_of_size() => refusal.or_smaller(lower),
                decided => return decided,
            };
        }
        if self.fallback != Fallback::Context {
            return Err(refusal);
        }
        // In steps of context: the fewest that may still fit, and the fewest that do not.
        let (mut low, mut high) = (LEAST_CONTEXT / CONTEXT_STEP, self.context_length.div_ceil(CONTEXT_STEP));
        let mut longest = None;
        // The least first: if it does not fit, nothing does.
        let mut steps = low;
        while low < high {
            match plan(&place.shortened(steps * CONTEXT_STEP, &reason)) {
                Ok(plan) => {
                    longest = Some(plan);
                    low = steps + 1;
                }
                Err(smaller) if smaller.is_of_size() => {
                    high = steps;
                    refusal = refusal.or_smaller(smaller);
                }
                Err(refusal) => return Err(refusal),
            }
            steps = low.midpoint(high);
        }
        longest.ok_or(refusal)
    }

    /// The next rung below a plan that the device could not allocate.
    pub fn below(
        &self,
        failed: &MemoryPlan,
        cause: EngineError,
        mut plan: impl FnMut(&Placement) -> Result<MemoryPlan, Refusal>,
    ) -> Result<MemoryPlan, Refusal> {
        let reason = cause.to_string();
        let mut place = failed.placement.clone();
        if self.may_take_kivi() && place.kv_cache != KvCache::Kivi {
            place = place.with_kivi(&reason);
            if let Some(plan) = plan(&place).ok().filter(|plan| plan.total_bytes < failed.total_bytes) {
                return Ok(plan);
            }
        }
        let half = (place.context_length / 2 / CONTEXT_STEP * CONTEXT_STEP).max(LEAST_CONTEXT);
        if self.fallback == Fallback::Context && half < place.context_length {
            return plan(&place.shortened(half, &reason));
        }
        let said = match cause {
            EngineError::OutOfMemory { reason } => reason,
            other => other.to_string(),
        };
        let error = EngineError::OutOfMemory {
            reason: format!("{said}; the smallest plan needs {} bytes", failed.total_bytes),
        };
        Err(Refusal { error, plan: Some(Box::new(failed.clone())) })
    }

    /// What was asked for.
    fn top(&self) -> Placement {
        let kv_cache = if self.kv_cache == KvCache::Kivi { KvCache::Kivi } else { KvCache::F32 };
        Placement { rung: Rung::Full, reason: None, kv_cache, context_length: self.context_length }
    }

    fn may_take_kivi(&self) -> bool {
        self.fallback != Fallback::None && self.kv_cache == KvCache::Auto && self.kivi_holds
    }
}

impl Placement {
    fn with_kivi(&self, reason: &str) -> Self {
        Self {
            rung: if self.rung == Rung::Full { Rung::KvCache } else { self.rung },
            reason: Some(reason.to_owned()),
            kv_cache: KvCache::Kivi,
            ..*self
        }
    }

    fn shortened(&self, context_length: u32, reason: &str) -> Self {
        Self { rung: Rung::Context, reason: Some(reason.to_owned()), context_length, ..*self }
    }

    /// What the host should be told of a rung below the highest.
    pub fn warning(&self) -> Option<String> {
        let reason = self.reason.as_ref()?;
        let Self { context_length, kv_cache, .. } = self;
        Some(match self.rung {
            Rung::Context => format!("the context is cut to {context_length} positions: {reason}"),
            Rung::Full | Rung::KvCache => format!("keys and values are kept as {kv_cache}: {reason}"),
        })
    }
}
