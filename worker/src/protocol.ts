/**
 * What page and worker say to each other. Every request but `abort` and `visibility` has an id and is
 * answered by any number of `progress` and `step` responses and exactly one `result` or `error`
 * with the same id. The worker carries out one request at a time and refuses a second as `busy`;
 * the client sends the next when the last is answered.
 */

import type { SerializedError } from "./errors.js";
import type { SessionOptions } from "./sessions/session-manager.js";
import type { SnapshotManifest } from "./sessions/snapshot.js";
import type { OpenParams, StorageOptions } from "./storage/messages.js";
import type {
  Activations,
  BackendChoice,
  DeviceInfo,
  EngineStats,
  GenerationRequest,
  GenerationStep,
  KernelCheck,
  Message,
  ModelInfo,
  ModelOptions,
  Profile,
  Progress,
  Rendering,
  SessionInfo,
  SessionNotice,
  SessionSnapshot,
  StorageNotice,
  StorageUsage,
  StoredModel,
  Tool,
  Verification,
} from "./types.js";

/** A model as addresses or as local files, one or all parts of a split model, or by the id under which it is kept. */
export type SourceParts =
  | { readonly kind: "urls"; readonly urls: readonly string[] }
  | { readonly kind: "blobs"; readonly blobs: readonly NamedBlob[] }
  /** A model that is kept on this machine. */
  | { readonly kind: "stored"; readonly id: string };

/** A local file. The name is kept apart because a `Blob` has none. */
export interface NamedBlob {
  readonly name: string;
  readonly blob: Blob;
}

/** Parameters and result of each method. */
export interface Methods {
  init: {
    params: {
      readonly backend: BackendChoice;
      readonly accept_software?: boolean;
      readonly activations?: Activations;
      readonly max_binding_bytes?: number;
      readonly max_buffer_bytes?: number;
      readonly memory_budget_bytes?: number;
      readonly drop_kernel?: string;
      readonly timestamps?: boolean;
      readonly checkpoint_bytes?: number;
      readonly wasm_url?: string;
      readonly storage: StorageOptions;
      readonly sessions: SessionOptions;
      readonly fetch_port: MessagePort | null;
    };
    result: DeviceInfo;
  };
  load: { params: OpenParams & { readonly options: ModelOptions }; result: ModelInfo };
  unload: { params: null; result: null };
  generate: {
    /** `generated` are the ids of the reply that there are already: the reply goes on behind them. */
    params: GenerationRequest & { readonly generated: readonly number[] };
    result: null;
  };
  tokenize: { params: { readonly text: string; readonly parse_special: boolean }; result: Uint32Array };
  render: {
    params: {
      readonly messages: readonly Message[];
      readonly tools?: readonly Tool[];
      readonly enable_thinking?: boolean;
    };
    result: Rendering;
  };
  score: { params: { readonly ids: Uint32Array; readonly chunk: number }; result: Float32Array };
  check_kernels: { params: { readonly filter?: string }; result: readonly KernelCheck[] };
  profile: { params: { readonly prompt_tokens: number; readonly runs: number }; result: Profile };
  stats: { params: null; result: EngineStats };
  list_models: { params: null; result: readonly StoredModel[] };
  verify_model: { params: { readonly id: string }; result: Verification };
  delete_model: { params: { readonly id: string }; result: null };
  storage_usage: { params: null; result: StorageUsage };
  reset: { params: null; result: null };
  list_sessions: { params: null; result: readonly SessionInfo[] };
  /** Without `data` the session keeps what was saved with it before. */
  save_session: { params: { readonly id: string; readonly data?: unknown }; result: SessionInfo };
  open_session: { params: { readonly id: string }; result: SessionInfo };
  delete_session: { params: { readonly id: string }; result: null };
  fork_session: { params: { readonly id: string; readonly as: string }; result: SessionInfo };
  /** Of the resident session where `id` is null. */
  snapshot_session: { params: { readonly id: string | null }; result: SessionSnapshot };
  restore_session: {
    params: {
      readonly manifest: SnapshotManifest;
      /** Each chunk of the manifest, in any order. */
      readonly chunks: readonly Blob[];
      readonly data?: unknown;
      /** The name that the session gets. */
      readonly session?: string;
    };
    result: SessionInfo;
  };
}

export type Method = keyof Methods;
export type Params<M extends Method> = Methods[M]["params"];
export type Result<M extends Method> = Methods[M]["result"];

/** A request for the method `M`. */
export interface Call<M extends Method> {
  readonly id: number;
  readonly method: M;
  readonly params: Params<M>;
}

/** Page to worker. */
export type Request =
  | { readonly [M in Method]: Call<M> }[Method]
  /** Ends the request with this id; nothing happens when it is already over. */
  | { readonly id: number; readonly method: "abort" }
  /** Tells whether anybody sees the page; there is no answer. */
  | { readonly method: "visibility"; readonly is_hidden: boolean };

/** Worker to page. */
export type Response =
  /**
   * The script runs; requests may be sent. The worker holds the lock `life_lock` as long as it
   * lives; it is null where there are no locks.
   */
  | { readonly type: "ready"; readonly life_lock: string | null }
  | { readonly type: "progress"; readonly id: number; readonly progress: Progress }
  | { readonly type: "step"; readonly id: number; readonly step: GenerationStep }
  | { readonly type: "result"; readonly id: number; readonly value: Result<Method> }
  | { readonly type: "error"; readonly id: number; readonly error: SerializedError }
  /** The storage has something to say that is no failure. */
  | { readonly type: "notice"; readonly notice: StorageNotice }
  /** Something has become of a session that no request was about. */
  | { readonly type: "session"; readonly notice: SessionNotice; readonly error: SerializedError | null }
  /** A failure outside any request. */
  | { readonly type: "fault"; readonly error: SerializedError };
