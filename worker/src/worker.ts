/**
 * The dedicated worker: owns the wasm engine, carries out one request at a time, and lets it be
 * aborted. Between two slices of work it gives the event loop a turn, for that is when an abort can
 * arrive.
 */

import { EngineError, isErrorCode, serializeError, throwIfAborted, type ErrorCode, type SerializedError } from "./errors.js";
import { ModelLoad } from "./model-load.js";
import { adapterName, findAdapter, requestSubgroups } from "./adapter.js";
import type { Call, Method, Params, Request, Response, Result } from "./protocol.js";
import { SessionManager } from "./sessions/session-manager.js";
import { SnapshotStore } from "./sessions/snapshot-store.js";
import { FileChanged, StorageClient } from "./storage/storage-client.js";
import { keepTuning, readTuning } from "./tuning-store.js";
import type { ModelInfo, Progress } from "./types.js";
import { turn } from "./turn.js";
import { uniqueId } from "./unique-id.js";
import { checksum, compileModule, createWasmEngine, type WasmEngine } from "./wasm-engine.js";

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

/** Milliseconds of work between turns of the event loop, so that a visible page keeps its frames. */
const VISIBLE_BUDGET_MS = 16;
const HIDDEN_BUDGET_MS = 100;

/** After these of the engine no other attempt with the same bytes can do better, so they are not kept. */
const SAYS_THE_FILE_IS_USELESS: ReadonlySet<ErrorCode> = new Set([
  "weights_invalid",
  "model_unsupported",
  "tokenizer_invalid",
  "template_invalid",
]);

const scope = globalThis as unknown as WorkerScope;
/** By the id of the request. */
const jobs = new Map<number, Job>();
/** What occupies the engine. */
let running: Job | undefined;
let isPageHidden = false;
let engine: WasmEngine | undefined;
let storage: StorageClient | undefined;
let sessions: SessionManager | undefined;
/** Set by a failure after which the module must not be touched again. */
let fault: SerializedError | undefined;

scope.addEventListener("message", ({ data }) => {
  if (data.method === "visibility") {
    isPageHidden = data.is_hidden;
    if (isPageHidden && running === undefined && fault === undefined) {
      // A hidden page may be discarded without a word.
      sessions?.hurry();
    }
  } else if (data.method !== "abort") {
    void carryOut({ call: data, controller: new AbortController() });
  } else {
    jobs.get(data.id)?.controller.abort();
  }
});

scope.addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  fault = { ...serializeError(event.reason), fatal: true };
  scope.postMessage({ type: "fault", error: fault });
});

void holdLock().then((life_lock) => scope.postMessage({ type: "ready", life_lock }));

async function carryOut(job: Job): Promise<void> {
  const { call } = job;
  const { id } = call;
  if (WITHOUT_ENGINE.has(call.method)) {
    await answer(job);
    return;
  }
  if (running !== undefined) {
    scope.postMessage({ type: "error", id, error: serializeError(new EngineError("busy")) });
    return;
  }
  if (fault !== undefined) {
    scope.postMessage({ type: "error", id, error: fault });
    return;
  }
  running = job;
  await answer(job);
}

/** Carries a request out and sends its answer. */
async function answer(job: Job): Promise<void> {
  const { call, controller } = job;
  const { id } = call;
  jobs.set(id, job);
  let response: Response;
  try {
    if (running === job) {
      await sessions?.pause();
    }
    response = { type: "result", id, value: await dispatch(call, controller.signal) };
  } catch (thrown) {
    const error = serializeError(thrown);
    if (error.fatal) {
      fault = error;
    }
    response = { type: "error", id, error };
  }
  jobs.delete(id);
  if (running === job) {
    running = undefined;
    if (fault === undefined) {
      sessions?.resume();
    }
  }
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
      return outside(signal, () => current().score(params.ids, params.chunk));
    case "tokenize":
      return current().tokenize(params.text, params.parse_special);
    case "render":
      return render(params);
    case "check_kernels":
      return outside(signal, () => current().check_kernels(params.filter));
    case "profile":
      return outside(signal, () => current().profile(params.prompt_tokens, params.runs));
    case "stats":
      return current().stats();
    case "reset":
      await currentSessions().forgetAll();
      return null;
    case "unload":
      await currentSessions().leave(signal);
      current().unload();
      currentSessions().unloaded();
      return null;
    case "list_sessions":
      return currentSessions().list();
    case "save_session":
      return currentSessions().save(params.id, params.data, signal);
    case "open_session":
      return currentSessions().open(params.id, signal);
    case "delete_session":
      await currentSessions().delete(params.id);
      return null;
    case "fork_session":
      return currentSessions().fork(params.id, params.as, signal);
    case "snapshot_session":
      return currentSessions().snapshot(params.id, signal);
    case "restore_session":
      return currentSessions().restore(params, signal);
    case "list_models":
      return currentStorage().call("list", null);
    case "verify_model":
      return currentStorage().call("verify", params, { signal });
    case "delete_model":
      return currentStorage().call("delete", params);
    case "storage_usage":
      return currentStorage().call("usage", null);
  }
}

/** What is carried out beside the request that occupies the engine; models are kept by a worker of their own. */
const WITHOUT_ENGINE: ReadonlySet<Method> = new Set(["list_models", "verify_model", "delete_model", "storage_usage", "list_sessions"]);

/**
 * Work that the module does in one piece and in caches that are empty: an abort is seen before and after it, and the
 * resident session is kept before.
 */
async function outside<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  await currentSessions().leave(signal);
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

function currentSessions(): SessionManager {
  if (sessions === undefined) {
    throw new EngineError("internal", { detail: "the worker was used before it was initialised" });
  }
  return sessions;
}

function currentStorage(): StorageClient {
  if (storage === undefined) {
    throw new EngineError("internal", { detail: "the worker was used before it was initialised" });
  }
  return storage;
}

async function init({ wasm_url, storage: storageOptions, sessions: sessionOptions, fetch_port, ...options }: Params<"init">): Promise<Result<"init">> {
  try {
    const module = await compileModule(wasm_url);
    storage = new StorageClient(module, storageOptions, fetch_port, (notice) => scope.postMessage({ type: "notice", notice }));
    const adapter = options.backend === "cpu" ? null : await findAdapter();
    const browser_subgroups = adapter !== null && requestSubgroups(adapter);
    engine = await createWasmEngine({ ...options, ...adapterName(adapter), browser_subgroups }, module);
    const snapshots = storageOptions.store === "none" ? null : new SnapshotStore(checksum);
    sessions = new SessionManager(engine, snapshots, sessionOptions, (notice, error) =>
      scope.postMessage({ type: "session", notice, error: error === undefined ? null : serializeError(error) }),
    );
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
  void engine.lost().then((reason) => {
    fault = { ...serializeError(new EngineError("device_lost", { detail: reason })), fatal: true };
    scope.postMessage({ type: "fault", error: fault });
  });
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

/**
 * Loads a model in place of the present one, which stays as long as the first bytes of the new have not come and its
 * options are not known to make sense. A file that becomes another while it is read is read again, once.
 */
async function load(id: number, params: Params<"load">, signal: AbortSignal): Promise<ModelInfo> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await loadOnce(id, params, signal);
    } catch (error) {
      if (!(error instanceof FileChanged)) {
        throw error;
      }
      if (attempt > 0) {
        throw error.cause;
      }
    }
  }
}

async function loadOnce(id: number, { options, ...source }: Params<"load">, signal: AbortSignal): Promise<ModelInfo> {
  const [engine, storage, sessions] = [current(), currentStorage(), currentSessions()];
  const model = await storage.call("open", source, { signal });
  throwIfAborted(signal);
  const loading = new ModelLoad(engine, storage, model.bytes, signal, (progress) => report(id, progress));
  const first = await loading.open(0);
  try {
    const tuning = await readTuning();
    throwIfAborted(signal);
    // Before its model is gone.
    await sessions.leave(signal);
    const { digest } = model;
    engine.begin_load({ ...options, ...(tuning && { tuning }), ...(digest !== null && { digest }) });
  } catch (error) {
    // Options that make no sense must not cost the model that is loaded.
    await first.rest.return();
    throw error;
  }
  sessions.unloaded();
  try {
    await loading.read(first);
    report(id, { stage: "prepare" });
    await turn();
    throwIfAborted(signal);
    const info = await engine.finish_load();
    const { tuning } = engine.stats();
    if (tuning !== null && tuning.products.length > 0 && options.variant === undefined) {
      void keepTuning(tuning);
    }
    const kept = await storage.call("finish", { digest: info.digest });
    await sessions.enter(info.digest);
    await turn();
    throwIfAborted(signal);
    return { ...info, ...kept };
  } catch (error) {
    const { fatal, code } = serializeError(error);
    if (!fatal || error instanceof FileChanged) {
      engine.unload();
      sessions.unloaded();
    }
    if (!loading.hasSourceFailed && SAYS_THE_FILE_IS_USELESS.has(code)) {
      await storage.call("discard", null).catch(() => undefined);
    }
    throw error;
  }
}

async function generate(id: number, request: Params<"generate">, signal: AbortSignal): Promise<void> {
  const [engine, sessions] = [current(), currentSessions()];
  const source = await sessions.before(request, signal);
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
      const reuse = { ...step.reuse, source: step.reuse.reused === 0 ? null : source };
      scope.postMessage({ type: "step", id, step: { ...step, reuse } });
      if (step.finish_reason !== null) {
        break;
      }
    }
  } catch (error) {
    if (!serializeError(error).fatal) {
      engine.finish();
      sessions.moved();
    }
    throw error;
  }
  engine.finish();
  sessions.moved();
}

function report(id: number, progress: Progress): void {
  scope.postMessage({ type: "progress", id, progress });
}
