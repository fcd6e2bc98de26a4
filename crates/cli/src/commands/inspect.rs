//! `inspect`: what a model is and what it takes to run it. Weights are read for digests alone, and nothing is allocated.

use serde_json::{Value, json};
use signbit_engine::EngineError;
use signbit_engine::config::{DeltaNetConfig, LayerType, ModelConfig, RopeScaling, SamplingHints};
use signbit_engine::device::{DeviceInfo, Plan};
use signbit_engine::loader::LoadedModel;
use signbit_engine::model::{Model, ModelOptions};
use signbit_engine::planner::plan_model;
use signbit_gguf::Header;
use signbit_tokenizer::{PreTokenizer, Tokenizer};

use super::{device_line, memory, open_device};
use crate::args::{Backend, InspectArgs, PlanKind};
use crate::error::CliError;
use crate::files::{Identity, ModelFiles};
use crate::output::{bytes, count, facts, print, print_json, table};

/// Describes a model.
pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let mut files = ModelFiles::open(&args.model)?;
    let headers = files.headers();
    let default = if args.plan.is_some() { Backend::Gpu } else { Backend::Cpu };
    let device = planned_device(args, args.backend.unwrap_or(default))?;
    let options = ModelOptions {
        context_length: args.context,
        kv_cache: args.kv_cache.into(),
        memory_fallback: args.memory_fallback.into(),
        ..ModelOptions::default()
    };
    let planned = plan_model(&device, &headers, options);
    if args.memory {
        return memory::print_plan(&device, planned, args.json);
    }
    let loaded = planned.map_err(EngineError::from)?;
    let header = files.header()?;
    let identity = args.digest.then(|| files.identity()).transpose()?;
    let model = &loaded.model;
    let summary = Summary { files: &files, header: &header, loaded: &loaded };
    if args.json {
        let mut value = summary.json()?;
        if let (Some(Identity { sha256, digest }), Some(fields)) = (&identity, value.as_object_mut()) {
            fields.insert("sha256".to_owned(), json!(sha256));
            fields.insert("digest".to_owned(), json!(digest));
        }
        if let (Some(kind), Some(fields)) = (args.plan, value.as_object_mut()) {
            fields.insert("device".to_owned(), json!(device));
            fields.insert("plan".to_owned(), plan_json(model, kind));
        }
        return print_json(&value);
    }
    let mut rows = summary.facts()?;
    if let Some(Identity { sha256, digest }) = identity {
        rows.extend(sha256.into_iter().map(|hash| ("SHA-256", hash)));
        rows.push(("digest", digest));
    }
    print(&facts(&rows))?;
    if let Some(kind) = args.plan {
        print(&format!("\n{}\n\n{}", device_line(&device), plan_text(model, kind)))?;
    }
    Ok(())
}

/// The device to plan for, with the limits that the arguments set.
fn planned_device(args: &InspectArgs, backend: Backend) -> Result<DeviceInfo, CliError> {
    let mut device = open_device(backend)?.info().clone();
    let limits = &mut device.limits;
    if let Some(bytes) = args.max_buffer_bytes {
        limits.max_buffer_bytes = limits.max_buffer_bytes.min(bytes);
        limits.max_binding_bytes = limits.max_binding_bytes.min(bytes);
    }
    limits.memory_budget_bytes = args.budget.or(limits.memory_budget_bytes);
    Ok(device)
}

struct Summary<'a> {
    files: &'a ModelFiles,
    header: &'a Header,
    loaded: &'a LoadedModel,
}

impl Summary<'_> {
    fn config(&self) -> &ModelConfig {
        self.loaded.model.config()
    }

    /// What is odd about the file, and what it has to do without on this device.
    fn warnings(&self) -> impl Iterator<Item = String> {
        let stepped_down = self.loaded.model.memory().placement.warning();
        self.config().warnings.iter().cloned().chain(stepped_down)
    }

    fn has_template(&self) -> Result<bool, CliError> {
        Ok(self.header.metadata.get_str("tokenizer.chat_template")?.is_some())
    }

    fn n_layers(&self, ty: LayerType) -> usize {
        self.config().layer_types.iter().filter(|&&t| t == ty).count()
    }

    fn facts(&self) -> Result<Vec<(&'static str, String)>, CliError> {
        let config = self.config();
        let mut rows = vec![
            ("name", config.name.clone().unwrap_or_else(|| "not stated".to_owned())),
            ("architecture", config.architecture.key().to_owned()),
            ("parameters", count(self.loaded.info.parameters)),
            ("file", self.file_text()),
            (
                "tensor types",
                self.loaded
                    .info
                    .tensor_types
                    .iter()
                    .map(|(ty, n)| format!("{n} {ty}"))
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
            ("layers", self.layers_text()),
            ("hidden size", config.hidden_size.to_string()),
            ("feed-forward", config.intermediate_size.to_string()),
            (
                "attention",
                format!(
                    "{} query and {} key-value heads, each of {}",
                    config.num_attention_heads, config.num_key_value_heads, config.head_dim
                ),
            ),
        ];
        if let Some(delta) = &config.delta_net {
            rows.push(("DeltaNet", delta_text(delta)));
        }
        rows.extend([
            ("rope", rope_text(config)),
            ("norm epsilon", format!("{:e}", config.rms_norm_eps)),
            (
                "context",
                format!("{} trained, {} planned", config.context_length, self.loaded.model.context_length()),
            ),
            ("KV cache", self.loaded.model.kv_cache().to_string()),
            (
                "output head",
                if config.tie_word_embeddings { "the embedding table" } else { "its own matrix" }.to_owned(),
            ),
            ("vocabulary", format!("{} rows, {} tokens", config.vocab_size, config.n_tokens)),
            ("tokenizer", self.tokenizer_text()),
            ("stop ids", self.stop_text()),
            ("chat template", if self.has_template()? { "yes" } else { "no, ChatML is used" }.to_owned()),
        ]);
        if let Some(hints) = hints_text(&config.sampling) {
            rows.push(("sampling", hints));
        }
        rows.push(("memory", memory::line(self.loaded.model.memory())));
        rows.extend(self.loaded.info.skipped.iter().map(|(name, why)| ("skipped", format!("{name}: {why}"))));
        rows.extend(self.warnings().map(|warning| ("warning", warning)));
        Ok(rows)
    }

    fn file_text(&self) -> String {
        let parts = match self.files.n_parts() {
            1 => String::new(),
            n => format!(", {n} parts"),
        };
        format!("{}, GGUF version {}{parts}", bytes(self.files.n_bytes()), self.header.version)
    }

    fn layers_text(&self) -> String {
        let (delta, attention) = (self.n_layers(LayerType::DeltaNet), self.n_layers(LayerType::Attention));
        match delta {
            0 => format!("{attention}, all attention"),
            _ => format!("{}: {delta} DeltaNet, {attention} attention", delta + attention),
        }
    }

    fn tokenizer_text(&self) -> String {
        format!(
            "byte-level BPE, {} split, {} unused ids",
            split_name(&self.loaded.tokenizer),
            self.loaded.tokenizer.unused_ids().len()
        )
    }

    fn stop_text(&self) -> String {
        let stop = |&id: &u32| format!("{id} {}", self.loaded.tokenizer.decode(&[id]));
        self.loaded.tokenizer.stop_ids().iter().map(stop).collect::<Vec<_>>().join(", ")
    }

    fn json(&self) -> Result<Value, CliError> {
        let config = self.config();
        let layers: Vec<String> = config.layer_types.iter().map(LayerType::to_string).collect();
        let delta = config.delta_net.map(|d| {
            json!({
                "num_key_heads": d.num_key_heads,
                "num_value_heads": d.num_value_heads,
                "key_head_dim": d.key_head_dim,
                "value_head_dim": d.value_head_dim,
                "conv_kernel": d.conv_kernel,
            })
        });
        let t = &self.loaded.tokenizer;
        Ok(json!({
            "name": config.name,
            "architecture": config.architecture.key(),
            "parameters": self.loaded.info.parameters,
            "file_bytes": self.files.n_bytes(),
            "n_parts": self.files.n_parts(),
            "gguf_version": self.header.version,
            "tensor_types": self.loaded.info.tensor_types,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_hidden_layers,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "layer_types": layers,
            "delta_net": delta,
            "rope": rope_json(config),
            "rms_norm_eps": config.rms_norm_eps,
            "context_length": config.context_length,
            "planned_context_length": self.loaded.model.context_length(),
            "kv_cache": self.loaded.model.kv_cache(),
            "tie_word_embeddings": config.tie_word_embeddings,
            "vocab_size": config.vocab_size,
            "n_tokens": config.n_tokens,
            "tokenizer": {
                "split": split_name(t),
                "unused_ids": t.unused_ids().len(),
                "eos_id": t.eos_id(),
                "bos_id": t.bos_id(),
                "pad_id": t.pad_id(),
                "stop_ids": t.stop_ids(),
            },
            "has_chat_template": self.has_template()?,
            "sampling": {
                "temperature": config.sampling.temperature,
                "top_k": config.sampling.top_k,
                "top_p": config.sampling.top_p,
                "min_p": config.sampling.min_p,
            },
            "memory": self.loaded.model.memory(),
            "skipped": self.loaded.info.skipped,
            "warnings": self.warnings().collect::<Vec<_>>(),
        }))
    }
}

fn split_name(tokenizer: &Tokenizer) -> &'static str {
    match tokenizer.pre_tokenizer() {
        PreTokenizer::Qwen2 => "qwen2",
        PreTokenizer::Qwen35 => "qwen35",
    }
}

fn delta_text(d: &DeltaNetConfig) -> String {
    format!(
        "{} key heads, each of {}; {} value heads, each of {}; {} convolution taps",
        d.num_key_heads, d.key_head_dim, d.num_value_heads, d.value_head_dim, d.conv_kernel
    )
}

fn rope_text(config: &ModelConfig) -> String {
    let rope = &config.rope;
    let scaling = match rope.scaling {
        RopeScaling::None => "no scaling".to_owned(),
        RopeScaling::Linear { factor } => format!("linear scaling by {factor}"),
        RopeScaling::Yarn { factor, original_context_length, attn_factor } => format!(
            "YaRN by {factor} from {original_context_length} positions, magnitude {:.4} (factor {attn_factor})",
            rope.magnitude()
        ),
    };
    format!("{} of {} dimensions, base {}, {scaling}", rope.n_rot, config.head_dim, rope.theta)
}

fn rope_json(config: &ModelConfig) -> Value {
    let rope = &config.rope;
    let scaling = match rope.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({ "type": "linear", "factor": factor }),
        RopeScaling::Yarn { factor, original_context_length, attn_factor } => json!({
            "type": "yarn",
            "factor": factor,
            "original_context_length": original_context_length,
            "attn_factor": attn_factor,
        }),
    };
    let magnitude = rope.magnitude();
    json!({ "n_rot": rope.n_rot, "theta": rope.theta, "magnitude": magnitude, "scaling": scaling })
}

fn hints_text(hints: &SamplingHints) -> Option<String> {
    let mut parts = Vec::new();
    parts.extend(hints.temperature.map(|v| format!("temperature {v}")));
    parts.extend(hints.top_k.map(|v| format!("top-k {v}")));
    parts.extend(hints.top_p.map(|v| format!("top-p {v}")));
    parts.extend(hints.min_p.map(|v| format!("min-p {v}")));
    (!parts.is_empty()).then(|| format!("the file recommends {}", parts.join(", ")))
}

/// A plan's rows and what runs for them, in order.
fn plans(model: &Model, kind: PlanKind) -> (u32, Vec<&Plan>) {
    let plans = model.plans();
    let (rows, body) = match kind {
        PlanKind::Decode => (1, Some(&plans.decode)),
        PlanKind::Prefill => plans.prefill.last().map_or((1, None), |(rows, plan)| (*rows, Some(plan))),
    };
    (rows, body.into_iter().chain([&plans.head, &plans.greedy]).collect())
}

fn plan_json(model: &Model, kind: PlanKind) -> Value {
    let (rows, plans) = plans(model, kind);
    let dispatches = || plans.iter().flat_map(|plan| &plan.dispatches);
    let list: Vec<Value> = dispatches()
        .map(|d| {
            json!({
                "label": d.label,
                "kernel": d.kernel.name,
                "workgroups": [d.workgroups.x, d.workgroups.y],
                "bytes_read": d.bytes_read,
                "bytes_written": d.bytes_written,
            })
        })
        .collect();
    json!({
        "tokens": rows,
        "bytes_read": dispatches().map(|d| d.bytes_read).sum::<u64>(),
        "bytes_written": dispatches().map(|d| d.bytes_written).sum::<u64>(),
        "dispatches": list,
    })
}

fn plan_text(model: &Model, kind: PlanKind) -> String {
    let (rows, plans) = plans(model, kind);
    let mut lines = Vec::new();
    let (mut read, mut written) = (0, 0);
    for dispatch in plans.iter().flat_map(|plan| &plan.dispatches) {
        read += dispatch.bytes_read;
        written += dispatch.bytes_written;
        let workgroups = match dispatch.workgroups.y {
            1 => dispatch.workgroups.x.to_string(),
            y => format!("{} x {y}", dispatch.workgroups.x),
        };
        let (label, kernel) = (dispatch.label.clone(), dispatch.kernel.name.to_owned());
        lines.push(vec![
            label,
            kernel,
            workgroups,
            dispatch.bytes_read.to_string(),
            dispatch.bytes_written.to_string(),
        ]);
    }
    let table = table(&["label", "kernel", "workgroups", "bytes read", "bytes written"], &lines, 2);
    let tokens = if rows == 1 { "token".to_owned() } else { format!("step of {rows} tokens") };
    let mut text = format!(
        "{table}\n{} dispatches per {tokens}: {} read, {} written, with a full context\n",
        lines.len(),
        bytes(read),
        bytes(written)
    );
    if rows > 1 {
        let rows = u64::from(rows);
        text.push_str(&format!(
            "per token: {} read, {} written\n",
            bytes(read / rows),
            bytes(written / rows)
        ));
    }
    text
}
