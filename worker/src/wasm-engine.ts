/**
 * The wasm module as the worker uses it. wasm-bindgen can only type structured values as `any`, so
 * the contract is written down here, once, and the module is bound to it in one place.
 */

import init, { WasmEngine as ModuleEngine } from "../wasm/signbit_engine.js";
import type {
  BackendChoice,
  DeviceInfo,
  EngineStats,
  GenerationRequest,
  GenerationStep,
  KernelCheck,
  Message,
  ModelInfo,
  ModelOptions,
  Rendering,
  Tool,
} from "./types.js";

export interface EngineOptions {
  readonly backend: BackendChoice;
  readonly max_binding_bytes?: number;
  readonly max_buffer_bytes?: number;
}

/** What one `push` has reached. */
export interface PushProgress {
  readonly bytes_seen: number;
  readonly bytes_total: number | null;
}

/** One engine with at most one model and at most one generation in progress. */
export interface WasmEngine {
  device(): DeviceInfo;
  begin_load(options: ModelOptions): void;
  begin_part(index: number, file_bytes: number | undefined): void;
  push(bytes: Uint8Array): Promise<PushProgress>;
  end_part(): Promise<{ readonly parts: number }>;
  finish_load(): Promise<ModelInfo>;
  unload(): void;
  start(request: GenerationRequest): Promise<{ readonly prompt_tokens: number; readonly reused_tokens: number }>;
  step(): Promise<GenerationStep>;
  finish(): void;
  tokenize(text: string, parse_special: boolean): Uint32Array;
  render(
    messages: readonly Message[],
    options: { readonly tools?: readonly Tool[]; readonly enable_thinking?: boolean },
  ): Rendering;
  score(ids: Uint32Array, chunk: number): Promise<Float32Array>;
  reset(): void;
  stats(): EngineStats;
  check_kernels(filter: string | undefined): Promise<readonly KernelCheck[]>;
  free(): void;
}

/** Starts the module and makes an engine on the wanted backend. */
export async function createWasmEngine(options: EngineOptions, wasmUrl: string | undefined): Promise<WasmEngine> {
  await init(wasmUrl === undefined ? undefined : { module_or_path: wasmUrl });
  const engine: unknown = await ModuleEngine.create(options);
  return engine as WasmEngine;
}
