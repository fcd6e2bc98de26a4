/**
 * The dedicated worker: owns the wasm engine, carries out one request at a time, and lets it be
 * aborted. Between two slices of work it gives the event loop a turn, for that is when an abort can
 * arrive.
 */

import { abortError, EngineError, isErrorCode, serializeError, type SerializedError } from "./errors.js";
import { openSource, type ModelPart } from "./model-source.js";
import { adapterName, findAdapter, requestSubgroups } from "./adapter.js";
import type { Call, Method, Params, Request, Response, Result } from "./protocol.js";
import { keepTuning, readTuning } from "./tuning-store.js";
import type { ModelInfo, Progress } from "./types.js";
import { uniqueId } from "./unique-id.js";
import { createWasmEngine, type PartProgress, type WasmEngine } from "./wasm-engine.js";

/** The part of the worker's global scope that is used; TypeScript's DOM types know windows only. */
interface WorkerScope {
  postMessage(message: Response, transfer?: Transferable[]): void;
  addEventListener(type: "message", listener: (event: MessageEvent<Request>) => void): void;
  addEventListener(type: "unhandledrejection", listener: (event: PromiseRejectionEvent) => void): void;
}

interface Job {
  readonly call: Call<Method>;
  readonly controller: AbortController;
}

/** Progress of a download is worth a message this often, in milliseconds. */
const PROGRESS_INTERVAL_MS = 50;

/** Milliseconds of work between turns of the event loop, so that a visible page keeps its frames. */
const VISIBLE_BUDGET_MS = 16;
const HIDDEN_BUDGET_MS = 100;

const scope = globalThis as unknown as WorkerScope;
let running: Job | undefined;
let isPageHidden = false;
let engine: WasmEngine | undefined;
/** Set by a failure after which the module must not be touched again. */
let fault: SerializedError | undefined;

scope.addEventListener("message", ({ data }) => {
  if (data.method === "visibility") {
    isPageHidden = data.is_hidden;
  } else if (data.method !== "abort") {
    void carryOut({ call: data, controller: new AbortController() });
  } else if (running?.call.id === data.id) {
    running.controller.abort();
  }
});

scope.addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  fault = { ...serializeError(event.reason), fatal: true };
  scope.postMessage({ type: "fault", error: fault });
});

void holdLock().then((life_lock) => scope.postMessage({ type: "ready", life_lock }));

async function carryOut(job: Job): Promise<void> {
  const { call, controller } = job;
  const { id } = call;
  if (running !== undefined) {
    scope.postMessage({ type: "error", id, error: serializeError(new EngineError("busy")) });
    return;
  }
  if (fault !== undefined) {
    scope.postMessage({ type: "error", id, error: fault });
    return;
  }
  running = job;
  let response: Response;
  try {
    response = { type: "result", id, value: await dispatch(call, controller.signal) };
  } catch (thrown) {
    const error = serializeError(thrown);
    if (error.fatal) {
      fault = error;
    }
    response = { type: "error", id, error };
  }
  running = undefined;
  scope.postMessage(response, response.type === "result" ? transferables(response.value) : []);
}

/** Big arrays move to the page instead of being copied. */
function transferables(value: Result<Method>): Transferable[] {
  return value instanceof Float32Array ? [value.buffer] : [];
}

/** `call` as the union that `method` discriminates. */
type AnyCall = { [M in Method]: Call<M> }[Method];

async function dispatch(call: Call<Method>, signal: AbortSignal): Promise<Result<Method>> {
  const { id, method, params } = call as AnyCall;
  switch (method) {
    case "init":
      return init(params);
    case "load":
      return load(id, params, signal);
    case "generate":
      await generate(id, params, signal);
      return null;
    case "score":
      return whole(signal, () => current().score(params.ids, params.chunk));
    case "tokenize":
      return current().tokenize(params.text, params.parse_special);
    case "render":
      return render(params);
    case "check_kernels":
      return whole(signal, () => current().check_kernels(params.filter));
    case "profile":
      return whole(signal, () => current().profile(params.prompt_tokens, params.runs));
    case "stats":
      return current().stats();
    case "reset":
      current().reset();
      return null;
    case "unload":
      current().unload();
      return null;
  }
}

/** Work that the module does in one piece: an abort is seen before and after it. */
async function whole<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  await turn();
  throwIfAborted(signal);
  const value = await work();
  await turn();
  throwIfAborted(signal);
  return value;
}

function render(params: Params<"render">): Result<"render"> {
  const { text, ids } = current().render(params.messages, params);
  return { text, ids: Uint32Array.from(ids) };
}

function current(): WasmEngine {
  if (engine === undefined) {
    throw new EngineError("internal", { detail: "the worker was used before it was initialised" });
  }
  return engine;
}

async function init({ wasm_url, ...options }: Params<"init">): Promise<Result<"init">> {
  try {
    const adapter = options.backend === "cpu" ? null : await findAdapter();
    const browser_subgroups = adapter !== null && requestSubgroups(adapter);
    engine = await createWasmEngine({ ...options, ...adapterName(adapter), browser_subgroups }, wasm_url);
  } catch (cause) {
    // Errors of the engine have a code; others come from fetching or compiling the module.
    if (cause instanceof Error && "code" in cause && isErrorCode(cause.code)) {
      throw cause;
    }
    throw new EngineError("internal", {
      detail: `the wasm module could not be started: ${String(cause)}`,
      hint: "The wasm file must be served where wasmUrl says, and the content security policy must allow 'wasm-unsafe-eval'.",
      cause,
    });
  }
  return engine.device();
}

/**
 * Takes a lock and never gives it back. No event tells a page that its worker is gone, but the
 * browser releases the lock at that moment, and the page waits for it. Resolves with null where
 * there are no locks: outside of secure contexts, and in frames without an origin of their own.
 */
function holdLock(): Promise<string | null> {
  const { locks } = navigator as { readonly locks?: LockManager };
  if (locks === undefined) {
    return Promise.resolve(null);
  }
  const name = `signbit-${uniqueId()}`;
  return new Promise((resolve) => {
    locks
      .request(name, () => {
        resolve(name);
        return new Promise<never>(() => undefined);
      })
      .catch(() => resolve(null));
  });
}

async function load(id: number, { source, options }: Params<"load">, signal: AbortSignal): Promise<ModelInfo> {
  const engine = current();
  const files = openSource(source);
  // An address that does not answer must not cost the model that is loaded.
  const first = await files.open(0, signal);
  try {
    const tuning = await readTuning();
    throwIfAborted(signal);
    engine.begin_load(tuning === undefined ? options : { ...options, tuning });
  } catch (error) {
    // Options that make no sense must not cost it either.
    await first.close();
    throw error;
  }
  try {
    report(id, downloadProgress(0, files.parts, 0, files.bytes ?? null));
    let bytesBefore = 0;
    let lastReport = 0;
    if (files.parts > 1) {
      // The whole model is planned before the first weight is read.
      for (let part = 0; part < files.parts; part += 1) {
        await pushHeader(engine, part, part === 0 ? first : await files.open(part, signal), files.parts);
        throwIfAborted(signal);
      }
    }
    for (let part = 0; part < files.parts; part += 1) {
      const file = files.parts === 1 ? first : await files.open(part, signal);
      engine.begin_part(part, file.bytes);
      const total = files.bytes ?? (files.parts === 1 ? (file.bytes ?? null) : null);
      let seen = 0;
      for await (const bytes of file.read()) {
        requireParts(await engine.push(bytes), files.parts);
        seen += bytes.length;
        const now = performance.now();
        if (now - lastReport >= PROGRESS_INTERVAL_MS) {
          lastReport = now;
          report(id, downloadProgress(part, files.parts, bytesBefore + seen, total));
          await turn();
        }
        throwIfAborted(signal);
      }
      engine.end_part();
      bytesBefore += seen;
      report(id, downloadProgress(part, files.parts, bytesBefore, total));
    }
    report(id, { stage: "prepare" });
    await turn();
    throwIfAborted(signal);
    const info = await engine.finish_load();
    const { tuning } = engine.stats();
    if (tuning !== null && tuning.products.length > 0 && options.variant === undefined) {
      void keepTuning(tuning);
    }
    await turn();
    throwIfAborted(signal);
    return info;
  } catch (error) {
    if (!serializeError(error).fatal) {
      engine.unload();
    }
    throw error;
  }
}

/** Reads a file up to the end of its header and leaves the rest. */
async function pushHeader(engine: WasmEngine, part: number, file: ModelPart, parts: number): Promise<void> {
  engine.begin_part(part, file.bytes);
  for await (const bytes of file.read()) {
    const progress = await engine.push(bytes);
    requireParts(progress, parts);
    if (progress.header_complete) {
      return;
    }
  }
  // The file ended first, and the engine says so.
  engine.end_part();
}

/** The first header tells of how many files the model consists. */
function requireParts({ n_parts }: PartProgress, given: number): void {
  if (n_parts > 0 && n_parts !== given) {
    throw new EngineError("weights_invalid", {
      detail: `the model consists of ${n_parts} files, and ${given} were given`,
      hint: "Choose all files of the model together.",
    });
  }
}

function downloadProgress(part: number, parts: number, bytes_seen: number, bytes_total: number | null): Progress {
  return { stage: "download", part, parts, bytes_seen, bytes_total };
}

async function generate(id: number, request: Params<"generate">, signal: AbortSignal): Promise<void> {
  const engine = current();
  try {
    await engine.start(request);
    let isReading = true;
    for (;;) {
      await turn();
      throwIfAborted(signal);
      engine.set_time_budget(isPageHidden ? HIDDEN_BUDGET_MS : VISIBLE_BUDGET_MS);
      const step = await engine.step();
      if (isReading) {
        report(id, { stage: "prefill", tokens_done: step.prefilled, tokens_total: step.prompt_tokens });
        isReading = step.prefilled < step.prompt_tokens;
      }
      scope.postMessage({ type: "step", id, step });
      if (step.finish_reason !== null) {
        break;
      }
    }
  } catch (error) {
    if (!serializeError(error).fatal) {
      engine.finish();
    }
    throw error;
  }
  engine.finish();
}

function report(id: number, progress: Progress): void {
  scope.postMessage({ type: "progress", id, progress });
}

function throwIfAborted(signal: AbortSignal): void {
  if (signal.aborted) {
    throw abortError();
  }
}

const turnChannel = new MessageChannel();
let resumeTurn: (() => void) | undefined;
turnChannel.port1.onmessage = () => resumeTurn?.();

/** One turn of the event loop. A timer would be clamped to milliseconds, or to seconds in a hidden tab. */
function turn(): Promise<void> {
  return new Promise((resolve) => {
    resumeTurn = resolve;
    turnChannel.port2.postMessage(null);
  });
}
