/**
 * wllama, llama.cpp in WebAssembly, on the processor. Its package has declarations that need Node's
 * types; the few calls that are used are declared here.
 */

import { measure, type Speeds, type Workload } from "./measure.js";

interface WllamaModule {
  readonly Wllama: {
    new (paths: { readonly default: string }, config: { readonly suppressNativeLog: boolean; readonly logger: Logger }): WllamaEngine;
    getLibllamaVersion(): string;
  };
}

type Logger = Pick<Console, "debug" | "log" | "warn" | "error">;

interface WllamaEngine {
  loadModel(
    files: readonly Blob[],
    params: {
      readonly n_gpu_layers: number;
      readonly n_threads: number;
      readonly n_ctx: number;
      readonly n_parallel: number;
    },
  ): Promise<void>;
  isMultithread(): boolean;
  createCompletion(params: CompletionParams): Promise<{
    /** The server's own; `predicted_ms` is the time after the first token. */
    readonly timings?: { readonly prompt_n: number; readonly predicted_n: number; readonly predicted_ms: number };
  }>;
  exit(): Promise<void>;
}

/** As llama.cpp's server takes them. */
interface CompletionParams {
  readonly prompt: string;
  readonly max_tokens: number;
  readonly temperature: number;
  readonly ignore_eos: boolean;
  readonly cache_prompt: boolean;
}

const MODULE_URL = "/wllama/index.js";
const WASM_URL = "/wllama/wasm/wllama.wasm";

/** Loads the model and times it; with more than one thread only where the page is isolated. */
export async function timeWllama(threads: number, workload: Workload): Promise<Speeds & { readonly engine: string }> {
  const { Wllama } = (await import(MODULE_URL)) as WllamaModule;
  const wllama = new Wllama({ default: WASM_URL }, { suppressNativeLog: true, logger: { ...console, debug: () => undefined } });
  const file = await (await fetch(workload.model)).blob();
  await wllama.loadModel([file], { n_gpu_layers: 0, n_threads: threads, n_ctx: workload.context, n_parallel: 1 });
  if (wllama.isMultithread() !== threads > 1) {
    throw new Error(`wllama does not run ${threads} threads here`);
  }
  const runner = {
    async generate(prompt: string, prompt_tokens: number, n_tokens: number): Promise<number> {
      const params = { max_tokens: n_tokens, temperature: 0, ignore_eos: true, cache_prompt: false };
      const { timings } = await wllama.createCompletion({ prompt, ...params });
      if (timings?.prompt_n !== prompt_tokens || timings.predicted_n !== n_tokens) {
        throw new Error(`wllama read ${timings?.prompt_n} and wrote ${timings?.predicted_n} tokens, not ${prompt_tokens} and ${n_tokens}`);
      }
      return timings.predicted_ms;
    },
  };
  const speeds = await measure(runner, workload);
  await wllama.exit();
  return { engine: `wllama, llama.cpp ${Wllama.getLibllamaVersion()}, cpu, ${threads} thread${threads > 1 ? "s" : ""}`, ...speeds };
}
