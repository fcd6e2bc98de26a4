//! From headers to a place on the ladder: reads what a model is, plans it without memory, allocates it.

use std::collections::HashMap;

use signbit_gguf::{Header, TensorInfo};
use signbit_tokenizer::{ChatTemplate, TokenType, Tokenizer, Vocabulary};

use crate::config::{ModelConfig, RopeScaling, SkipReason};
use crate::device::{Device, DeviceInfo, PlanDevice};
use crate::error::EngineError;
use crate::loader::{FileInfo, LoadTimes, LoadedModel};
use crate::memory::{Ladder, MemoryPlan, Placement, Refusal};
use crate::model::layers::joined_tensors;
use crate::model::weights::Weights;
use crate::model::{KvCache, Model, ModelOptions, attention_shape};

/// A model as its headers describe it, for one kind of device.
#[derive(Debug)]
pub struct Planner {
    device: DeviceInfo,
    config: ModelConfig,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    info: FileInfo,
    /// Ids below this can be sampled.
    n_valid: u32,
    /// Tensors that are used, in the order in which they are allocated; those that lie side by side as
    /// one matrix together.
    tensors: Vec<Vec<TensorInfo>>,
    ladder: Ladder,
}

/// The model that the headers describe, planned for a device and with nothing allocated: its plans
/// can be read and not run.
///
/// # Errors
/// What the headers or the device do not allow.
pub fn plan_model(
    device: &DeviceInfo,
    headers: &[Header],
    options: ModelOptions,
) -> Result<LoadedModel, Refusal> {
    let planner = Planner::new(device, headers, options)?;
    let plan = planner.highest()?;
    let (model, _) = planner.allocate(&mut planner.counting(), &plan.placement)?;
    Ok(planner.finish(model))
}

impl Planner {
    /// Reads all that the headers say.
    pub fn new(device: &DeviceInfo, headers: &[Header], options: ModelOptions) -> Result<Self, EngineError> {
        let mut config = ModelConfig::from_parts(headers)?;
        let first = headers.first().ok_or(EngineError::Truncated { part: 0, seen: 0, needed: 1 })?;
        let tokenizer = Tokenizer::new(vocabulary(first)?)?;
        let template = match first.metadata.get_str("tokenizer.chat_template")? {
            Some(source) => ChatTemplate::new(source)?,
            None => ChatTemplate::chatml()?,
        };
        let (tensors, mut info) = used_tensors(&config, headers);
        let n_valid = n_sampleable(&tokenizer);
        let n_unused = tokenizer.unused_ids().iter().filter(|&&id| id < n_valid).count();
        if n_unused > 0 {
            info.warnings
                .push(format!("{n_unused} unused ids below {n_valid} can be sampled and stand for no text"));
        }
        if options.ignore_yarn && matches!(config.rope.scaling, RopeScaling::Yarn { .. }) {
            config.rope.scaling = RopeScaling::None;
        }
        let ladder = Ladder {
            context_length: options.context_length.clamp(1, config.context_length),
            kv_cache: options.kv_cache,
            kivi_holds: KvCache::kivi_holds(attention_shape(&config)),
            fallback: options.memory_fallback,
        };
        Ok(Self { device: device.clone(), config, tokenizer, template, info, n_valid, tensors, ladder })
    }

    /// The highest rung that the device allows.
    pub fn highest(&self) -> Result<MemoryPlan, Refusal> {
        self.ladder.highest(|place| self.plan(place))
    }

    /// The next rung below a plan that the device could not allocate.
    pub fn below(&self, failed: &MemoryPlan, cause: EngineError) -> Result<MemoryPlan, Refusal> {
        self.ladder.below(failed, cause, |place| self.plan(place))
    }

    /// Allocates the model at a place, with empty weights, and records its plans.
    ///
    /// A GPU reports an allocation that failed when it is next asked.
    pub fn allocate(&self, device: &mut Device, place: &Placement) -> Result<(Model, Weights), EngineError> {
        let mut weights = Weights::default();
        for group in &self.tensors {
            match group.as_slice() {
                [tensor] if is_vector(tensor) => weights.allocate_vector(device, tensor)?,
                tensors => weights.allocate_matrix(device, &tensors.iter().collect::<Vec<_>>())?,
            }
        }
        let model = Model::build(device, self.config.clone(), &weights, self.n_valid, place)?;
        Ok((model, weights))
    }

    /// The model with the text side that belongs to it.
    pub fn finish(mut self, model: Model) -> LoadedModel {
        self.info.warnings.extend(model.memory().placement.warning());
        LoadedModel {
            model,
            tokenizer: self.tokenizer,
            template: self.template,
            info: self.info,
            digest: String::new(),
            load: LoadTimes::default(),
        }
    }

    fn counting(&self) -> Device {
        Device::Plan(Box::new(PlanDevice::new(&self.device)))
    }

    /// What the model takes at a place, and whether the device allows it.
    fn plan(&self, place: &Placement) -> Result<MemoryPlan, Refusal> {
        let mut device = self.counting();
        let (model, _) = self.allocate(&mut device, place)?;
        let plan = model.memory().clone();
        let counted = place.kv_cache.counted_context(&self.device, attention_shape(&self.config));
        let verdict = match counted {
            Some(limit) if place.context_length > limit => {
                Err(EngineError::ContextTooLong { asked: place.context_length, limit })
            }
            _ => device.verdict().and_then(|()| plan.verdict()),
        };
        match verdict {
            Ok(()) => Ok(plan),
            Err(error) => Err(Refusal { error, plan: Some(Box::new(plan)) }),
        }
    }
}

/// Tensors that the model reads, in the order in which they are allocated, and what the files say.
fn used_tensors(config: &ModelConfig, headers: &[Header]) -> (Vec<Vec<TensorInfo>>, FileInfo) {
    let expected: HashMap<String, _> = config.expected_tensors().into_iter().collect();
    let mut info = FileInfo { warnings: config.warnings.clone(), ..FileInfo::default() };
    let mut found: HashMap<&str, &TensorInfo> = HashMap::new();
    for header in headers {
        info.skipped.extend(skipped_tensors(config, header));
        for tensor in header.tensors.iter().filter(|t| expected.contains_key(&t.name)) {
            info.parameters += tensor.n_elems();
            *info.tensor_types.entry(tensor.ty.name().to_owned()).or_default() += 1;
            found.insert(&tensor.name, tensor);
        }
    }
    let mut groups: Vec<Vec<TensorInfo>> = joined_tensors(config)
        .iter()
        .map(|names| names.iter().filter_map(|name| found.remove(&**name)).cloned().collect())
        .collect();
    // In the order of the files, so that a plan does not depend on hashing.
    let rest = headers.iter().flat_map(|header| &header.tensors);
    groups.extend(rest.filter(|t| found.contains_key(&*t.name)).map(|t| vec![t.clone()]));
    (groups, info)
}

/// Tensors that the kernels read as f32: norms, the convolution, the decay parameters.
fn is_vector(tensor: &TensorInfo) -> bool {
    tensor.shape.len() < 2 || tensor.name.contains("ssm_conv1d")
}

/// The tokenizer part of a header, as plain data.
pub fn vocabulary(header: &Header) -> Result<Vocabulary, EngineError> {
    let m = &header.metadata;
    let id = |name: &str| m.get_u32(&format!("tokenizer.ggml.{name}"));
    let strings = |name: &str| -> Result<Vec<String>, EngineError> {
        let array = m.require_str_array(&format!("tokenizer.ggml.{name}"))?;
        Ok(array.iter().map(str::to_owned).collect())
    };
    Ok(Vocabulary {
        model: m.require_str("tokenizer.ggml.model")?.to_owned(),
        pre: m.get_str("tokenizer.ggml.pre")?.map(str::to_owned),
        tokens: strings("tokens")?,
        token_types: m.require_i32_array("tokenizer.ggml.token_type")?,
        merges: strings("merges")?,
        eos_id: id("eos_token_id")?,
        bos_id: id("bos_token_id")?,
        pad_id: id("padding_token_id")?,
        add_bos: m.get_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(false),
    })
}

/// Ids below this stand for tokens; the rows behind the last one only pad the vocabulary.
fn n_sampleable(tokenizer: &Tokenizer) -> u32 {
    let is_real = |id: &u32| tokenizer.token_type(*id).is_some_and(|ty| ty != TokenType::Unused);
    (0..tokenizer.vocab_size() as u32).rev().find(is_real).map_or(0, |last| last + 1)
}

fn skipped_tensors(config: &ModelConfig, header: &Header) -> Vec<(String, String)> {
    let reason = |reason| match reason {
        SkipReason::MtpBlock => "part of a next-token-prediction block",
        SkipReason::Unknown => "not part of this architecture",
    };
    config.skipped_tensors(header).into_iter().map(|(name, why)| (name, reason(why).to_owned())).collect()
}
