/**
 * The wasm module as the worker uses it. wasm-bindgen can only type structured values as `any`, so
 * the contract is written down here, once, and the module is bound to it in one place.
 */

import init, { checksum, WasmEngine as ModuleEngine } from "../wasm/signbit_engine.js";
import type { Params } from "./protocol.js";
import type { SnapshotChunk, SnapshotManifest } from "./sessions/snapshot.js";
import type {
  Activations,
  BackendChoice,
  DeviceInfo,
  EngineStats,
  GenerationStep,
  KernelCheck,
  Message,
  ModelInfo,
  ModelOptions,
  Profile,
  Reuse,
  Tool,
  Tuning,
} from "./types.js";

export interface EngineOptions {
  readonly backend: BackendChoice;
  readonly accept_software?: boolean;
  readonly activations?: Activations;
  readonly max_binding_bytes?: number;
  readonly max_buffer_bytes?: number;
  readonly memory_budget_bytes?: number;
  /** Allocations fail above this, as late as a GPU says so: for tests. */
  readonly fail_allocation_above_bytes?: number;
  /** Devices of this worker have subgroups where the adapter does. */
  readonly browser_subgroups?: boolean;
  /** What the browser tells about the adapter and the graphics library does not. */
  readonly adapter_name?: string;
  readonly adapter_vendor?: string;
  readonly drop_kernel?: string;
  readonly timestamps?: boolean;
  readonly checkpoint_bytes?: number;
}

/** How far the current file has come. */
export interface PartProgress {
  readonly header_complete: boolean;
  /** Number of files of the model, once the first header is known. */
  readonly n_parts: number;
  readonly bytes_seen: number;
  /** Bytes of this file that are needed, once its header is known. */
  readonly bytes_total: number | null;
}

/** The session on the device. */
export interface ResidentSession {
  readonly id: string;
  readonly is_named: boolean;
  readonly tokens: number;
}

/** Where a generation runs. */
export interface Placement {
  /** The session that it is the next turn of. */
  readonly id: string;
  readonly is_named: boolean;
  /** Whether the resident session has to be kept first, because it would lose something. */
  readonly park: boolean;
  /** A known session that has to become resident first. Where it has another id, the new one begins with a copy of it. */
  readonly bring: string | null;
}

/** A snapshot some of whose chunks have not been read yet. */
export interface OpenSnapshot extends Omit<SnapshotManifest, "chunks" | "digest"> {
  /** A digest is null as long as it is not known. */
  readonly chunks: readonly (Omit<SnapshotChunk, "digest"> & { readonly digest: string | null })[];
}

/**
 * One engine with at most one model and at most one generation in progress. The files of a
 * split model are pushed twice: each until its header is complete, then each from start to end.
 */
export interface WasmEngine {
  device(): DeviceInfo;
  /** Resolves with the reason when the graphics device is lost. */
  lost(): Promise<string>;
  /** With the digest of bytes that have been verified by other means they are not hashed again. */
  begin_load(options: ModelOptions & { readonly tuning?: Tuning; readonly digest?: string }): void;
  begin_part(index: number, file_bytes: number | undefined): void;
  push(bytes: Uint8Array): Promise<PartProgress>;
  end_part(): Promise<PartProgress>;
  finish_load(): Promise<Omit<ModelInfo, "files" | "storage">>;
  unload(): void;
  start(request: Params<"generate">): Promise<{ readonly prompt_tokens: number; readonly reused_tokens: number }>;
  /** Milliseconds that a slice of work may take; what `step` does adapts to it. */
  set_time_budget(milliseconds: number): void;
  step(): Promise<Omit<GenerationStep, "reuse"> & { readonly reuse: Omit<Reuse, "source"> }>;
  finish(): void;
  tokenize(text: string, parse_special: boolean): Uint32Array;
  render(
    messages: readonly Message[],
    options: { readonly tools?: readonly Tool[]; readonly enable_thinking?: boolean },
  ): { readonly text: string; readonly ids: readonly number[] };
  score(ids: Uint32Array, chunk: number): Promise<Float32Array>;
  reset(): void;
  /** Null where there is none, or one without an id. */
  session(): ResidentSession | null;
  /** Decides where a generation runs, of which `start` makes use; `fresh` is the id of a new session without a name. */
  place(request: Params<"generate">, fresh: string): Placement;
  /** Tells of a session that is not resident, and that `place` may choose. Throws where it does not fit the model. */
  know(id: string, manifest: SnapshotManifest, is_named: boolean): void;
  forget(id: string): void;
  /** Begins a snapshot of the resident session, which must not change before its last chunk is read. */
  snapshot(chunk_bytes: number | undefined): OpenSnapshot;
  snapshot_chunk(index: number): Promise<{ readonly digest: string; readonly bytes: Uint8Array<ArrayBuffer> }>;
  /** Ends the snapshot, once every chunk without a digest has been read, and gives its whole manifest. */
  finish_snapshot(): SnapshotManifest;
  /** Checks everything that can be checked without the chunks; where it rejects, the resident session stays. */
  begin_restore(manifest: SnapshotManifest, id: string, is_named: boolean): void;
  /** Takes the chunks in any order. The first ends the resident session: until the last there is none. */
  restore_chunk(bytes: Uint8Array): Promise<void>;
  /** Makes the session resident, once every chunk is there. */
  finish_restore(): void;
  stats(): EngineStats;
  check_kernels(filter: string | undefined): Promise<readonly KernelCheck[]>;
  profile(prompt_tokens: number, runs: number): Promise<Profile>;
  free(): void;
}

export { checksum };

/** Compiles the wasm module, from where the package has it if no address is given. */
export async function compileModule(url: string | undefined): Promise<WebAssembly.Module> {
  const response = await fetch(url ?? new URL("../wasm/signbit_engine_bg.wasm", import.meta.url));
  if (!response.ok) {
    throw new Error(`${response.url} answered ${response.status}`);
  }
  // Browsers compile while they read only what is called wasm.
  return response.headers.get("content-type") === "application/wasm"
    ? WebAssembly.compileStreaming(response)
    : WebAssembly.compile(await response.arrayBuffer());
}

/** Starts the module and makes an engine on the wanted backend. */
export async function createWasmEngine(options: EngineOptions, module: WebAssembly.Module): Promise<WasmEngine> {
  await init({ module_or_path: module });
  const engine: unknown = await ModuleEngine.create(options);
  return engine as WasmEngine;
}
