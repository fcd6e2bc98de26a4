//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use signbit_engine::memory::Fallback;
use signbit_engine::model::KvCache;
use signbit_engine::tuning::Variant;

/// Runs 1-bit language models stored as GGUF.
#[derive(Debug, Parser)]
#[command(name = "signbit", version, subcommand_required = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the tool can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Describe a model and what it takes to run it, from its header alone
    Inspect(InspectArgs),
    /// Turn text into token ids
    Tokenize(TokenizeArgs),
    /// Render a conversation with the model's chat template
    Render(RenderArgs),
    /// Write the logits after every position to a file
    Logits(LogitsArgs),
    /// Generate a reply
    Generate(GenerateArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Ask questions with known answers and count the right ones
    Evaluate(EvaluateArgs),
    /// Keep what a model has read in files, and go on from there
    Session(SessionArgs),
    /// Measure prefill and decode, and what a decoded token costs
    Bench(BenchArgs),
    /// Write a model of real geometry with random one-bit weights
    RandomModel(RandomModelArgs),
    /// Compare GPU and CPU dispatch by dispatch
    Compare(CompareArgs),
    /// Compare each kernel with its CPU reference
    Kernels(KernelsArgs),
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The best adapter that WebGPU's native counterparts find
    #[default]
    Gpu,
    /// The processor; activations are rounded to 10 bits for products of at most four bits per weight
    Cpu,
    /// The processor, activations as exact as f32
    CpuF32,
    /// The definitions of the kernels; slow
    CpuReference,
}

/// How keys and values of earlier tokens are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvCacheKind {
    /// As f32 where that fits, else in 4 bits
    Auto,
    /// As computed
    F32,
    /// All but the first 8 and the newest 128 at most in 4 bits
    Kivi,
}

impl From<KvCacheKind> for KvCache {
    fn from(kind: KvCacheKind) -> Self {
        match kind {
            KvCacheKind::Auto => Self::Auto,
            KvCacheKind::F32 => Self::F32,
            KvCacheKind::Kivi => Self::Kivi,
        }
    }
}

/// How far the memory plan may step down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemoryFallback {
    /// Not at all
    None,
    /// To the 4-bit cache
    KvCache,
    /// To a shorter context
    Context,
}

impl From<MemoryFallback> for Fallback {
    fn from(fallback: MemoryFallback) -> Self {
        match fallback {
            MemoryFallback::None => Self::None,
            MemoryFallback::KvCache => Self::KvCache,
            MemoryFallback::Context => Self::Context,
        }
    }
}

/// A switch with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

/// Which plan to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PlanKind {
    /// One token
    Decode,
    /// A full step of the prompt
    Prefill,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The GGUF file, or the first part of a split model
    pub model: PathBuf,
    /// List every dispatch, as planned for the GPU
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "decode")]
    pub plan: Option<PlanKind>,
    /// Print the memory plan: what the model takes, and what it had to do without
    #[arg(long, conflicts_with = "plan")]
    pub memory: bool,
    /// Bytes of the largest buffer, if the device has no smaller ones
    #[arg(long, value_name = "BYTES")]
    pub max_buffer_bytes: Option<u64>,
    /// Bytes that the model may take in all
    #[arg(long, value_name = "BYTES")]
    pub budget: Option<u64>,
    /// How far the plan may step down where the model does not fit
    #[arg(long, value_enum, default_value = "context")]
    pub memory_fallback: MemoryFallback,
    /// Device to plan for; the CPU unless --plan is given
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// Positions of context to plan for
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// How keys and values of earlier tokens are kept
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache: KvCacheKind,
    /// Read the whole model and print its digest and the SHA-256 of each file
    #[arg(long)]
    pub digest: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What a model must be; shared by the commands that run one.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Refuse the model unless its file has this SHA-256; of a split model give one for each part, in order
    #[arg(long, value_name = "HEX", value_parser = sha256)]
    pub sha256: Vec<String>,
}

/// Arguments of `tokenize`.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// The GGUF file
    pub model: PathBuf,
    /// What to tokenize
    #[command(flatten)]
    pub input: TokenizeInput,
    /// Turn the texts of control tokens into these tokens
    #[arg(long)]
    pub parse_special: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// One text or several.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TokenizeInput {
    /// The text
    #[arg(long, allow_hyphen_values = true)]
    pub text: Option<String>,
    /// A JSON array of texts
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
}

/// Arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// The GGUF file
    pub model: PathBuf,
    /// A JSON array of messages in the shape of the OpenAI API
    #[arg(long, value_name = "FILE")]
    pub messages: PathBuf,
    /// A JSON array of tools in the shape of the OpenAI API
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Thinking on or off; the template decides if not given
    #[arg(long, value_enum)]
    pub thinking: Option<Switch>,
    /// Whether past turns keep their thoughts
    #[arg(long, value_enum, default_value = "on")]
    pub preserve_thinking: Switch,
    /// End after the last message instead of opening the model's turn
    #[arg(long)]
    pub no_generation_prompt: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The GGUF file, or the first part of a split model
    pub model: PathBuf,
    /// A JSON array of token ids
    #[arg(long, value_name = "FILE")]
    pub ids: PathBuf,
    /// Where to write: float32, little-endian, [tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// Tokens read per step
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: u32,
}

/// How to generate; shared by `generate` and `chat`.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// The most tokens to generate
    #[arg(long, default_value_t = 512)]
    pub max_tokens: u32,
    /// Thinking on or off; the template decides if not given
    #[arg(long, value_enum)]
    pub thinking: Option<Switch>,
    /// Divides the logits; 0 always takes the most likely token
    #[arg(long, allow_hyphen_values = true)]
    pub temperature: Option<f32>,
    /// Sample among this many most likely tokens; 0 keeps all
    #[arg(long)]
    pub top_k: Option<u32>,
    /// Sample among the most likely tokens that together reach this probability
    #[arg(long, allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Sample among tokens at least this likely relative to the most likely one
    #[arg(long, allow_hyphen_values = true)]
    pub min_p: Option<f32>,
    /// Sample among tokens whose logit is within this many standard deviations of the best; 0 keeps all
    #[arg(long, allow_hyphen_values = true)]
    pub top_n_sigma: Option<f32>,
    /// Divides positive logits of tokens that occurred, and multiplies negative ones; 1 does nothing
    #[arg(long, allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that the reply already has
    #[arg(long, allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits once per occurrence in the reply
    #[arg(long, allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,
    /// Add to the logit of a token; may be repeated
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Penalise tokens that would continue a repetition, by this at the allowed length; 0 does not
    #[arg(long, allow_hyphen_values = true)]
    pub dry_multiplier: Option<f32>,
    /// By how much that grows with each token of the repetition
    #[arg(long, allow_hyphen_values = true)]
    pub dry_base: Option<f32>,
    /// The shortest repetition that is penalised
    #[arg(long)]
    pub dry_allowed_length: Option<u32>,
    /// Look for repetitions in this many of the last tokens; -1 takes all
    #[arg(long, allow_hyphen_values = true)]
    pub dry_penalty_last_n: Option<i32>,
    /// A text across which there is no repetition; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// The same seed gives the same reply on the same device
    #[arg(long)]
    pub seed: Option<u64>,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// Positions of context
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// How keys and values of earlier tokens are kept
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache: KvCacheKind,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// The GGUF file, or the first part of a split model; the built-in model if not given
    pub model: Option<PathBuf>,
    /// What to go on from
    #[command(flatten)]
    pub input: GenerateInput,
    /// Go on past the model's own end of turn
    #[arg(long)]
    pub ignore_stop: bool,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// A text that ends the reply; may be repeated
    #[arg(long, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// How to generate
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// With --json: the log-probability of each token of the answer, and of this many of the most likely ones
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "0", requires = "json")]
    pub logprobs: Option<u32>,
    /// Print JSON at the end instead of text as it comes
    #[arg(long)]
    pub json: bool,
}

/// A prompt in one of three forms.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct GenerateInput {
    /// Text to go on from, without a chat template
    #[arg(long, allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// A JSON array of token ids to go on from
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,
    /// A JSON array of messages to answer, in the shape of the OpenAI API
    #[arg(long, value_name = "FILE")]
    pub messages: Option<PathBuf>,
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// The GGUF file, or the first part of a split model; the built-in model if not given
    pub model: Option<PathBuf>,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// Instructions for the model
    #[arg(long)]
    pub system: Option<String>,
    /// How to generate
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Arguments of `evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// The GGUF file, or the first part of a split model; the built-in model if not given
    pub model: Option<PathBuf>,
    /// A JSON array of questions: kind, messages, thinking, expected, and perhaps `answer_ids` of a reference
    #[arg(long, value_name = "FILE")]
    pub questions: PathBuf,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// The most tokens of an answer, thought included
    #[arg(long, default_value_t = 64)]
    pub max_tokens: u32,
    /// Fail if a smaller share of the answers is right
    #[arg(long, default_value_t = 0.0, value_parser = share)]
    pub at_least: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Real geometries that random weights can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Geometry {
    /// Qwen3-0.6B, dense, Q1_0
    #[value(name = "qwen3-0.6b")]
    Dense06b,
    /// Qwen3.5-0.8B, hybrid, Q1_0
    #[value(name = "qwen3.5-0.8b")]
    Hybrid08b,
    /// Bonsai 1.7B, dense, Q1_0
    #[value(name = "bonsai-1.7b")]
    Bonsai17b,
    /// Bonsai 4B, dense, Q1_0
    #[value(name = "bonsai-4b")]
    Bonsai4b,
    /// Bonsai 8B, dense, Q1_0
    #[value(name = "bonsai-8b")]
    Bonsai8b,
    /// Bonsai 27B, hybrid, Q1_0
    #[value(name = "bonsai-27b")]
    Bonsai27b,
}

impl Geometry {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense06b => "qwen3-0.6b",
            Self::Hybrid08b => "qwen3.5-0.8b",
            Self::Bonsai17b => "bonsai-1.7b",
            Self::Bonsai4b => "bonsai-4b",
            Self::Bonsai8b => "bonsai-8b",
            Self::Bonsai27b => "bonsai-27b",
        }
    }
}

/// Sizes of a random model that differ from its geometry's.
#[derive(Debug, Default, Args)]
#[group(id = "sizes", multiple = true)]
pub struct SizeArgs {
    /// Layers of a random model
    #[arg(long, requires = "random", value_parser = clap::value_parser!(u32).range(1..))]
    pub layers: Option<u32>,
    /// Width of the residual stream of a random model, in whole blocks of 128
    #[arg(long, requires = "random", value_parser = whole_blocks)]
    pub hidden_size: Option<u32>,
    /// Width of the MLP of a random model, in whole blocks of 128
    #[arg(long, requires = "random", value_parser = whole_blocks)]
    pub intermediate_size: Option<u32>,
    /// Tokens of a random model's vocabulary
    #[arg(long, requires = "random", value_parser = clap::value_parser!(u32).range(512..))]
    pub vocab_size: Option<u32>,
    /// Where the random weights begin
    #[arg(long, requires = "random")]
    pub seed: Option<u64>,
}

/// Arguments of `random-model`.
#[derive(Debug, Args)]
pub struct RandomModelArgs {
    /// The geometry
    #[arg(value_enum)]
    pub random: Geometry,
    /// Changes to the geometry
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// The GGUF file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// How the products of decode are computed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum VariantArg {
    /// 16 invocations a row
    Lanes,
    /// 16 invocations per 4 rows
    Lanes4,
    /// Sums of all nibbles in a table, 16 rows a workgroup
    Table,
    /// The same with 64 rows a workgroup
    Table4,
    /// A subgroup per 4 rows
    Subgroup,
}

impl From<VariantArg> for Variant {
    fn from(variant: VariantArg) -> Self {
        match variant {
            VariantArg::Lanes => Self::Lanes,
            VariantArg::Lanes4 => Self::Lanes4,
            VariantArg::Table => Self::Table,
            VariantArg::Table4 => Self::Table4,
            VariantArg::Subgroup => Self::Subgroup,
        }
    }
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The GGUF file, or the first part of a split model; the built-in model if not given
    #[arg(conflicts_with = "sizes")]
    pub model: Option<PathBuf>,
    /// Random one-bit weights in a real geometry instead of a file
    #[arg(long, value_enum, conflicts_with = "model")]
    pub random: Option<Geometry>,
    /// Changes to the geometry
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Lengths of the prompts; those that do not fit the context are left out
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub prompts: Vec<u32>,
    /// Tokens to decode
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..))]
    pub tokens: u32,
    /// Runs of which the median counts, after one to warm up
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// Compute the products of decode this way instead of the fastest
    #[arg(long, value_enum)]
    pub variant: Option<VariantArg>,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// Positions of context
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(32..))]
    pub context: u32,
    /// How keys and values of earlier tokens are kept
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache: KvCacheKind,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `session`.
#[derive(Debug, Args)]
#[command(subcommand_required = true)]
pub struct SessionArgs {
    /// What to do with a session.
    #[command(subcommand)]
    pub command: SessionCommand,
}

/// What can be done with a session.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Read a prompt, generate from it, and write what the model holds then
    Save(SessionSaveArgs),
    /// Go on from there, as if nothing had come between
    Restore(SessionRestoreArgs),
    /// Describe a snapshot and check all of its bytes; needs no model
    Inspect(SessionInspectArgs),
    /// Measure saving and restoring beside reading the same tokens again
    Bench(SessionBenchArgs),
}

/// Arguments of `session save`.
#[derive(Debug, Args)]
pub struct SessionSaveArgs {
    /// The GGUF file, or the first part of a split model
    pub model: PathBuf,
    /// A JSON array of token ids to read
    #[arg(long, value_name = "FILE")]
    pub ids: PathBuf,
    /// The folder to write, or the archive if the name ends in .tar
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The most tokens to generate first; what follows the last of them is for `restore`
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Go on past the model's own end of turn
    #[arg(long)]
    pub ignore_stop: bool,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// Positions of context
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// How keys and values of earlier tokens are kept
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache: KvCacheKind,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `session restore`.
#[derive(Debug, Args)]
pub struct SessionRestoreArgs {
    /// The GGUF file, or the first part of a split model
    pub model: PathBuf,
    /// The folder of the snapshot, or a tar archive
    #[arg(value_name = "DIR")]
    pub snapshot: PathBuf,
    /// The most tokens to generate
    #[arg(long, default_value_t = 512)]
    pub max_tokens: u32,
    /// Go on past the model's own end of turn
    #[arg(long)]
    pub ignore_stop: bool,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// Positions of context; as many as the snapshot was taken with if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// How keys and values of earlier tokens are kept; as in the snapshot if not given
    #[arg(long, value_enum)]
    pub kv_cache: Option<KvCacheKind>,
    /// Print JSON at the end instead of text as it comes
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `session inspect`.
#[derive(Debug, Args)]
pub struct SessionInspectArgs {
    /// The folder of the snapshot, or a tar archive
    #[arg(value_name = "DIR")]
    pub snapshot: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `session bench`.
#[derive(Debug, Args)]
pub struct SessionBenchArgs {
    /// The GGUF file, or the first part of a split model; the built-in model if not given
    #[arg(conflicts_with = "sizes")]
    pub model: Option<PathBuf>,
    /// Random one-bit weights in a real geometry instead of a file
    #[arg(long, value_enum, conflicts_with = "model")]
    pub random: Option<Geometry>,
    /// Changes to the geometry
    #[command(flatten)]
    pub sizes: SizeArgs,
    /// Tokens of the session
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Runs of which the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// Where the model runs
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// How keys and values of earlier tokens are kept
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache: KvCacheKind,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The GGUF file, or the first part of a split model
    pub model: PathBuf,
    /// A JSON array of token ids to read
    #[arg(long, value_name = "FILE")]
    pub ids: PathBuf,
    /// What the model must be
    #[command(flatten)]
    pub check: CheckArgs,
    /// How far results may be apart, relative to their size
    #[arg(long, default_value_t = signbit_engine::bisect::DEFAULT_TOLERANCE, value_parser = tolerance)]
    pub tolerance: f32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `kernels`.
#[derive(Debug, Args)]
pub struct KernelsArgs {
    /// Only kernels whose name contains this
    #[arg(long, default_value = "")]
    pub filter: String,
    /// Where the kernels run
    #[arg(long, value_enum, default_value = "gpu")]
    pub backend: Backend,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A number of weights that rows of Q1_0 can have.
fn whole_blocks(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(value) if value > 0 && value % 128 == 0 => Ok(value),
        _ => Err("a row is made of blocks of 128".to_owned()),
    }
}

fn sha256(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("a SHA-256 has 64 hexadecimal digits".to_owned()),
    }
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "a logit bias is a token id, =, and a number, such as 42=-1.5".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}

fn tolerance(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("a tolerance is a number above 0".to_owned()),
    }
}
