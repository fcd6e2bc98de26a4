/**
 * The values that cross between page, worker and wasm module. Field names are those of the OpenAI
 * API and of the engine, hence snake_case.
 */

import type { SnapshotManifest } from "./sessions/snapshot.js";

/**
 * Where the numbers are computed. `auto` is a graphics device through WebGPU, and the CPU where there is
 * none, only one in software, or one that cannot be relied on. `webgpu` takes one in software as well,
 * and fails where there is none.
 */
export type BackendChoice = "auto" | "webgpu" | "cpu";

/** The precision in which products of weights with few bits take their activations on the CPU. */
export type Activations = "f32" | "int10";

/** Why the CPU computes although the backend is `auto`. */
export interface FallbackReason {
  readonly code: FallbackCode;
  /** The facts, for people. */
  readonly message: string;
}

/** Stable names for why the CPU computes. */
export type FallbackCode =
  /** The browser does not have WebGPU, or not outside of secure contexts. */
  | "no_webgpu"
  /** There is no adapter. */
  | "no_adapter"
  /** The only adapter is emulated on the CPU, which is faster by itself. */
  | "software_adapter"
  /** The adapter gives no device. */
  | "adapter_refused"
  /** The graphics device computes something else than it is told. */
  | "device_unreliable"
  /** The graphics device was lost, and there was no other, or that was lost as well. */
  | "device_lost";

/** The device that the engine runs on. */
export interface DeviceInfo {
  readonly backend: "webgpu" | "cpu";
  readonly name: string;
  readonly vendor: string;
  /** A software adapter: correct, but far slower than the CPU backend. */
  readonly is_fallback: boolean;
  /** Null on a graphics device. */
  readonly activations: Activations | null;
  /** Null where the backend is the one asked for, or a graphics device. */
  readonly fallback_reason: FallbackReason | null;
  readonly features: readonly string[];
  readonly limits: Readonly<Record<string, number>>;
}

/** Sampling settings that a model file recommends. */
export interface SamplingDefaults {
  readonly temperature: number | null;
  readonly top_k: number | null;
  readonly top_p: number | null;
  readonly min_p: number | null;
}

/** Bytes that a model takes on its device, and how it came to them: made from the header alone. */
export interface MemoryPlan {
  readonly weight_bytes: number;
  /** Keys, values, recurrent states and the rotation table. */
  readonly cache_bytes: number;
  /** Of these, keys and values. */
  readonly kv_bytes: number;
  /** Of these, recurrent states. */
  readonly state_bytes: number;
  readonly scratch_bytes: number;
  /** The most that weights take on their way into their buffers. */
  readonly staging_bytes: number;
  /** All of these at once. */
  readonly total_bytes: number;
  /** Pieces in which the matrices lie. */
  readonly shards: number;
  /** Matrices that no single buffer may hold. */
  readonly sharded_tensors: number;
  readonly budget_bytes: number | null;
  /** How far the plan has stepped down: not at all, to the 4-bit cache, or to a shorter context. */
  readonly rung: "full" | "kv_cache" | "context";
  /** Why it stands no higher; null on the highest rung. */
  readonly reason: string | null;
  readonly kv_cache: "f32" | "kivi";
  readonly context_length: number;
}

/** A loaded model. */
export interface ModelInfo {
  /** Null where the file gives none. */
  readonly name: string | null;
  readonly architecture: string;
  readonly parameters: number;
  /** Tokens that memory is reserved for. */
  readonly context_length: number;
  /** Tokens that the model was trained for. */
  readonly trained_context_length: number;
  /** How keys and values of earlier tokens are kept: `kivi` is in 4 bits. */
  readonly kv_cache: "f32" | "kivi";
  readonly vocab_size: number;
  readonly weight_bytes: number;
  /** Number of tensors per weight format. */
  readonly tensor_types: Readonly<Record<string, number>>;
  readonly layers: number;
  readonly has_thinking: boolean;
  readonly sampling: SamplingDefaults;
  /** Tensors of the file that the model does not use, each with the reason. */
  readonly skipped: readonly (readonly [name: string, reason: string])[];
  readonly warnings: readonly string[];
  /** Bytes by purpose, and how far the plan had to step down. */
  readonly plan: MemoryPlan;
  /**
   * BLAKE3 over names, shapes, types and contents of the tensors and the hyperparameters: the same for every
   * file that holds the same model, and another where anything that the forward pass reads differs.
   */
  readonly digest: string;
  /** What loading the weights took, by stage. */
  readonly load: LoadTimes;
  /** What getting the files took. */
  readonly storage: StorageTimes;
  /** The files that the model was loaded from. */
  readonly files: readonly ModelFile[];
}

/** What turning a model's bytes into weights on the device took. */
export interface LoadTimes {
  /** Of the tensors in the files. */
  readonly bytes: number;
  /** Hashing; 0 where the digest was known. */
  readonly digest_ms: number;
  /** Turning the file's blocks into the device's layout. */
  readonly repack_ms: number;
  /** Handing the result to a graphics device; 0 on the CPU, where it is packed in place. */
  readonly upload_ms: number;
}

/** What getting a model's bytes took, beside the engine's work: the storage has a thread of its own. */
export interface StorageTimes {
  /** Bytes from a server, or from a local file that is not kept, and how long they were waited for. */
  readonly bytes_fetched: number;
  readonly fetch_ms: number;
  /** Bytes from the store, how long reading them took, and comparing their checksums. */
  readonly bytes_kept: number;
  readonly read_ms: number;
  readonly checksum_ms: number;
  /** Hashing files that were read whole for the first time. */
  readonly sha256_ms: number;
}

/** Where model files are kept: in the origin's private file system, or in Cache Storage. */
export type StoreKind = "opfs" | "cache";

/** A file that a model was loaded from. */
export interface ModelFile {
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
  /** Null where it is not kept. */
  readonly store: StoreKind | null;
}

/** A model that is kept on this machine, wholly or in part. */
export interface StoredModel {
  /** The address it was loaded from, or the name of a local file. */
  readonly id: string;
  readonly name: string;
  readonly parts: number;
  /** Bytes that are kept. */
  readonly bytes: number;
  /** Bytes of all files, or null where a server has not said. */
  readonly bytes_total: number | null;
  readonly is_complete: boolean;
  readonly store: StoreKind;
  /** Of each file; null where one has not been read to its end. */
  readonly sha256: readonly (string | null)[];
  /** Milliseconds since 1970. */
  readonly created_at: number;
  readonly used_at: number;
}

/** What a check of a kept model found. Segments that are not as they were written are forgotten. */
export interface Verification {
  readonly id: string;
  /** Bytes that are as they were written. */
  readonly bytes: number;
  readonly is_complete: boolean;
  readonly faults: readonly {
    readonly part: number;
    readonly offset: number;
    readonly length: number;
    readonly problem: "missing" | "damaged";
  }[];
}

/** Why a model is not kept although it could be read. */
export interface StorageNotice {
  readonly code: "storage_full" | "storage_unavailable";
  /** A sentence for people. */
  readonly message: string;
  /** Bytes that the browser counts for this origin, and how many it allows, where it says so. */
  readonly usage: number | null;
  readonly quota: number | null;
}

/** Storage of this origin. */
export interface StorageUsage {
  /** Bytes of kept models. */
  readonly model_bytes: number;
  /** Bytes that the browser counts for this origin, models included, and how many it allows. */
  readonly usage: number | null;
  readonly quota: number | null;
  /** Whether the browser has promised not to clear it by itself. */
  readonly is_persisted: boolean;
}

/** How a model is to be loaded. */
export interface ModelOptions {
  /** Tokens of context to reserve memory for; the engine chooses where it is absent. */
  readonly context_length?: number;
  /** Whether the file's own rope scaling is applied. */
  readonly yarn?: "file" | "none";
  /**
   * How keys and values of earlier tokens are kept: exactly, or in 4 bits, which takes a sixth of the
   * memory; `auto`, the default, is `f32` where that fits.
   */
  readonly kv_cache?: "auto" | "f32" | "kivi";
  /**
   * How far the memory plan may step down where the model does not fit: not at all, to the 4-bit cache, or
   * then to a shorter context, which is the default.
   */
  readonly memory_fallback?: "none" | "kv_cache" | "context";
  /** Compute the products of decode this way instead of the fastest. For measurements. */
  readonly variant?: "lanes" | "lanes4" | "table" | "table4" | "subgroup";
}

/** How the products of decode are computed on a device. */
export interface Tuning {
  /** Adapter, driver and engine version for which this holds. */
  readonly device: string;
  readonly products: readonly {
    /** Operation, weight format and shape. */
    readonly product: string;
    readonly variant: string;
    readonly candidates: readonly {
      readonly variant: string;
      /** Whether it gave the known answer on this device. */
      readonly is_right: boolean;
      /** Null if it was not measured. */
      readonly ns_per_row: number | null;
    }[];
  }[];
  /** The highest tile of prefill's products; null if it was not measured. */
  readonly tile: {
    readonly product: string;
    readonly tokens: number;
    readonly candidates: readonly (readonly [tokens: number, ns_per_token: number])[];
  } | null;
}

/** Progress of a load or of reading a prompt. */
export type Progress =
  | {
      readonly stage: "download";
      /** The part of a split model, from 0. */
      readonly part: number;
      readonly parts: number;
      /** Bytes of all parts so far. */
      readonly bytes_seen: number;
      /** Bytes of all parts, or null where a server does not say. */
      readonly bytes_total: number | null;
      /** Of `bytes_seen`, those that were on this machine already. */
      readonly bytes_local: number;
      /** Another tab downloads the file, and this one waits for it. */
      readonly is_waiting: boolean;
    }
  | { readonly stage: "prepare" }
  | { readonly stage: "prefill"; readonly tokens_done: number; readonly tokens_total: number };

/** A call of a tool in OpenAI's shape: the arguments are JSON as text. */
export interface ToolCall {
  readonly id: string;
  readonly type: "function";
  readonly function: { readonly name: string; readonly arguments: string };
}

/** A call of a tool as the engine reads it from the model's text. */
export interface GeneratedToolCall {
  readonly id?: string;
  readonly type: "function";
  readonly function: { readonly name: string; readonly arguments: unknown };
}

/** A tool that the model may call. */
export interface Tool {
  readonly type: "function";
  readonly function: {
    readonly name: string;
    readonly description?: string;
    readonly parameters?: Readonly<Record<string, unknown>>;
  };
}

/** One turn of a conversation. */
export type Message =
  | { readonly role: "system" | "user"; readonly content: string }
  | {
      readonly role: "assistant";
      readonly content: string | null;
      readonly reasoning_content?: string;
      readonly tool_calls?: readonly ToolCall[];
    }
  | { readonly role: "tool"; readonly content: string; readonly tool_call_id?: string };

/** Sampling and stopping; what is absent takes the model's or the engine's default. */
export interface GenerationOptions {
  readonly max_tokens?: number;
  /** Ends a thought after this many tokens, so that an answer comes. */
  readonly max_reasoning_tokens?: number;
  readonly temperature?: number;
  readonly top_k?: number;
  readonly top_p?: number;
  readonly min_p?: number;
  /** Keeps tokens whose logit is within this many standard deviations of the best; 0 keeps all. */
  readonly top_n_sigma?: number;
  /** Divides positive logits of tokens in prompt and answer, and multiplies negative ones; 1 does nothing. */
  readonly repetition_penalty?: number;
  readonly presence_penalty?: number;
  readonly frequency_penalty?: number;
  /** Added to the logits of token ids, each between -100 and 100. */
  readonly logit_bias?: Readonly<Record<number, number>>;
  /** What DRY subtracts from a token that would continue a repetition of the allowed length; 0 turns it off. */
  readonly dry_multiplier?: number;
  /** By how much that grows with each token of the repetition. */
  readonly dry_base?: number;
  /** The shortest repetition that is penalised. */
  readonly dry_allowed_length?: number;
  /** How many of the last tokens DRY looks at; -1 takes all. */
  readonly dry_penalty_last_n?: number;
  /** DRY sees no repetition across a token that contains one of these texts. */
  readonly dry_sequence_breakers?: readonly string[];
  /** The same seed gives the same tokens on the same device. */
  readonly seed?: number;
  /** Gives the log-probability of each token of the answer. */
  readonly logprobs?: boolean;
  /** Gives those of so many of the most likely tokens as well, at most 20. */
  readonly top_logprobs?: number;
  readonly stop?: readonly string[];
  /** Go on after the model's own end token. For measurements. */
  readonly ignore_stop?: boolean;
  /**
   * The conversation's name: the engine keeps a session for it. Without one, it looks for a session that the prompt
   * continues.
   */
  readonly session?: string;
  /**
   * What happens when the context is full: the answer ends with the reason `length`, which is the default, or the oldest
   * tokens behind the pinned ones are dropped.
   */
  readonly context_end?: "stop" | "roll";
  /** Tokens at the start that are never dropped: so many, or those of the system message, which is the default. */
  readonly pin_tokens?: number | "system";
}

/** A prompt in exactly one of three forms, and how to go on from it. */
export interface GenerationRequest extends GenerationOptions {
  readonly messages?: readonly Message[];
  readonly prompt?: string;
  readonly ids?: readonly number[] | Uint32Array;
  readonly tools?: readonly Tool[];
  readonly enable_thinking?: boolean;
}

/** Token ids around a place, and what they say. */
export interface Passage {
  readonly ids: readonly number[];
  readonly text: string;
}

/** What became of the tokens that a session held when a request came. */
export interface Reuse {
  /** Tokens that the session held. */
  readonly committed: number;
  /** Tokens of the prompt. */
  readonly prompt: number;
  /** Tokens of the prompt that did not have to be read again, and those that had to. */
  readonly reused: number;
  readonly prefilled: number;
  /** Why fewer are reused than the prompt and the session have in common; null where none is missing. */
  readonly reason: ReuseReason | null;
  /** Where the session came from; null where nothing is reused. */
  readonly source: ReuseSource | null;
  /** Where prompt and session part, null where the prompt goes on behind the session. */
  readonly divergence: {
    /** Index of the first token that differs. */
    readonly at: number;
    readonly before: Passage;
    readonly committed: Passage;
    readonly prompt: Passage;
  } | null;
  /** Tokens of the conversation that were dropped to make room, with `context_end: "roll"`. */
  readonly dropped: number;
}

/** Stable names for why tokens are read again although a session holds them. */
export type ReuseReason =
  /** A recurrent state can only go back to the last restore point. */
  | "recurrent_state"
  /** Rows in 4 bits can only be cut where they were quantised. */
  | "quantised"
  /** The last token of the prompt is read again to have its answer. */
  | "logits"
  /** The tokens before were dropped when the context was full. */
  | "dropped"
  /** An earlier step failed and left caches that match nothing. */
  | "torn";

/** On the device already, in the worker's memory, in the browser's storage, or a part of another conversation. */
export type ReuseSource = "resident" | "parked" | "saved" | "fork";

/** A session that the engine knows. */
export interface SessionInfo {
  readonly id: string;
  /** Digest of the model that it belongs to. */
  readonly model: string;
  readonly tokens: number;
  /** Of its snapshot. Sessions that begin alike share what they have in common. */
  readonly bytes: number;
  /** Whether it was given its name by the page. */
  readonly is_named: boolean;
  /** On the device, in the worker's memory, or only in the browser's storage. */
  readonly where: "resident" | "parked" | "saved";
  /** Milliseconds since 1970; null where it is not in the browser's storage. */
  readonly saved_at: number | null;
  /** What the page gave with `save`; absent where there is nothing. */
  readonly data?: unknown;
}

/** A session as a value. */
export interface SessionSnapshot {
  readonly manifest: SnapshotManifest;
  /** Each chunk once, in the order in which the manifest first names them. */
  readonly chunks: readonly Blob[];
  /** What the page has given with `save`; absent where there is nothing. */
  readonly data?: unknown;
}

/** What became of a session outside of a request for it. */
export interface SessionNotice {
  readonly code: SessionNoticeCode;
  /** The session's id. */
  readonly session: string;
  /** A sentence for people. */
  readonly message: string;
}

/** Stable names for what becomes of sessions. */
export type SessionNoticeCode =
  /** It is in the browser's storage. */
  | "saved"
  /** It could not be put there. It is still on the device or in memory, and is tried again after the next turn. */
  | "not_saved"
  /** It had to make room and is gone: its conversation will be read anew. */
  | "dropped"
  /** It was to be brought back and cannot be: its conversation is read anew. */
  | "not_restored";

/** Token counts of a generation. */
export interface EngineUsage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly reasoning_tokens: number;
  /** Prompt tokens that an earlier turn had already computed. */
  readonly reused_tokens: number;
}

/** A token and its natural log-probability in the model's own distribution, before any setting changes it. */
export interface TopLogprob {
  /** Bytes that are no whole character are replaced; `bytes` has them. */
  readonly token: string;
  readonly logprob: number;
  readonly bytes: readonly number[];
}

/** A token of the answer. */
export interface TokenLogprob extends TopLogprob {
  /** The most likely tokens, as many as were asked for. */
  readonly top_logprobs: readonly TopLogprob[];
}

/** Why a generation ended. */
export type FinishReason = "stop" | "length" | "tool_calls";

/** One slice of a generation: a piece of the prompt read, or a few tokens written. */
export interface GenerationStep {
  readonly prefilled: number;
  readonly prompt_tokens: number;
  /** Text since the last step, never half a character. */
  readonly content: string;
  readonly reasoning: string;
  readonly ids: readonly number[];
  /** Of the tokens of the answer, if they were asked for. Text that may be a stop text's beginning comes later than its tokens. */
  readonly logprobs: readonly TokenLogprob[];
  readonly finish_reason: FinishReason | null;
  readonly tool_calls: readonly GeneratedToolCall[];
  readonly usage: EngineUsage;
  readonly reuse: Reuse;
}

/** A conversation as the model reads it. */
export interface Rendering {
  readonly text: string;
  readonly ids: Uint32Array;
}

/** One kernel compared with its CPU reference on one shape. */
export interface KernelCheck {
  readonly kernel: string;
  readonly case: string;
  readonly max_error: number;
  readonly tolerance: number;
  readonly ok: boolean;
  readonly detail: string;
}

/** Counters since the engine was opened, sizes of the loaded model, and what a decoded token costs. */
export interface EngineStats {
  /** Of the loaded model. */
  readonly digest: string | null;
  readonly device: {
    readonly live_bytes: number;
    /** The most that buffers and writes under way have taken together since the device was last empty. */
    readonly peak_bytes: number;
    readonly live_buffers: number;
    /** Buffers, bind groups and pipelines; none is created after a load. */
    readonly objects_created: number;
    /** Of one command buffer each. */
    readonly submits: number;
    /** Nanoseconds spent on recording command buffers, to the milliseconds of the page's clock. */
    readonly encode_ns: number;
    readonly dispatches: number;
  };
  readonly memory: MemoryPlan | null;
  /** Tokens that the caches hold. */
  readonly session_tokens: number;
  /** As the plan for one token declares it, with a full cache. */
  readonly decode: {
    readonly dispatches: number;
    readonly bytes_read: number;
    readonly bytes_written: number;
    /** Every weight once, states and a full KV cache. */
    readonly minimum_bytes: number;
    /** The full KV cache's part in both. */
    readonly kv_cache_bytes: number;
  } | null;
  /** Empty on the CPU. */
  readonly tuning: Tuning | null;
}

/** All dispatches of one kernel in a step. */
export interface KernelTime {
  readonly kernel: string;
  readonly dispatches: number;
  readonly ns: number;
  /** Bytes read and written. */
  readonly bytes: number;
}

/** One step, kernel by kernel, the most expensive first. */
export interface StepProfile {
  readonly tokens: number;
  readonly kernels: readonly KernelTime[];
}

/** What measurements of the device itself give. */
export interface Profile {
  /** Bytes read and written per second in copies from buffer to buffer. */
  readonly copy_bandwidth_bytes_per_s: number;
  /** Null where the device cannot time single kernels. */
  readonly kernels: { readonly prefill: StepProfile; readonly decode: StepProfile } | null;
}
