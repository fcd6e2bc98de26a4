/** A worker in place of the engine's, for tests of what the page makes of its answers. */

import type { Page, Worker } from "@playwright/test";
import type { SerializedError } from "../../worker/dist/errors.js";
import type { Methods, Request, Response } from "../../worker/dist/protocol.js";
import type { GenerationStep, Progress, StorageNotice, StorageUsage, StoredModel, Verification } from "../../worker/dist/types.js";

/** What the worker is to say. */
export interface Script {
  /** Of every answer. */
  readonly content?: string;
  /** What else is to be different of every answer's only step. */
  readonly step?: Partial<GenerationStep>;
  readonly models?: readonly StoredModel[];
  readonly usage?: StorageUsage;
  /** Checks without an end for the models that are not here. */
  readonly verifications?: readonly Verification[];
  readonly deleteError?: SerializedError;
  /** Comes with every model but the built-in one. */
  readonly notice?: StorageNotice;
  /** Loads other than the built-in one go on until the test ends them. */
  readonly holdsLoads?: boolean;
  /** Answers go on after their step until they are stopped. */
  readonly holdsAnswers?: boolean;
}

/** What a test has of the worker that runs. */
interface Fake {
  readonly requests: readonly Request[];
  progress(progress: Progress): void;
  finishLoad(): void;
  failLoad(error: SerializedError): void;
}

declare global {
  /** In the worker. */
  var fake: Fake;
}

export const DIGEST = "0123456789abcdef".repeat(4);

/** From now on the page gets such a worker. */
export async function installFakeWorker(page: Page, script: Script): Promise<void> {
  const body = `(${String(runFakeWorker)})(${JSON.stringify(script)}, "${DIGEST}")`;
  await page.route("**/worker-*.js", (route) => route.fulfill({ contentType: "text/javascript", body }));
}

/** The worker that the page has. */
export function fakeWorker(page: Page): Worker {
  const [worker] = page.workers();
  if (worker === undefined) {
    throw new Error("the page has no worker");
  }
  return worker;
}

/** Runs as the worker, with nothing of this file but its arguments. */
function runFakeWorker(script: Script, digest: string): void {
  type Call<M extends keyof Methods> = { readonly id: number; readonly params: Methods[M]["params"] };
  type Answers = { readonly [M in keyof Methods]?: (call: Call<M>) => Methods[M]["result"] | undefined };

  const scope = globalThis as unknown as {
    fake: Fake;
    postMessage(message: Response): void;
    addEventListener(type: "message", listener: (event: { readonly data: Request }) => void): void;
  };
  const requests: Request[] = [];
  let models = script.models ?? [];
  let openLoad: Call<"load"> | undefined;
  const result = (id: number, value: Methods[keyof Methods]["result"]): void =>
    scope.postMessage({ type: "result", id, value });
  const fail = (id: number, error: SerializedError): void => scope.postMessage({ type: "error", id, error });

  const step: GenerationStep = {
    prefilled: 1,
    prompt_tokens: 1,
    content: script.content ?? "Yes.",
    reasoning: "",
    ids: [1],
    logprobs: [],
    finish_reason: "stop",
    tool_calls: [],
    usage: { prompt_tokens: 1, completion_tokens: 1, reasoning_tokens: 0, reused_tokens: 0 },
    reuse: { committed: 0, prompt: 1, reused: 0, prefilled: 1, reason: null, source: null, divergence: null, dropped: 0 },
    ...script.step,
  };

  function finishLoad({ id, params: { source, sha256 = ["ab".repeat(32)], keep } }: Call<"load">): void {
    const key = source.kind === "stored" ? source.id : source.kind === "urls" ? (source.urls[0] ?? "") : `file:///${source.blobs[0]?.name ?? ""}`;
    const name = key.split("/").pop() ?? key;
    const isKept = keep ?? source.kind !== "blobs";
    if (isKept) {
      const now = Date.now();
      const facts = { parts: 1, bytes: 1000, bytes_total: 1000, is_complete: true, store: "opfs" } as const;
      models = [...models.filter((model) => model.id !== key), { id: key, name, ...facts, sha256, created_at: now, used_at: now }];
    }
    if (keep !== false && script.notice !== undefined) {
      scope.postMessage({ type: "notice", notice: script.notice });
    }
    result(id, {
      name: null,
      architecture: "none",
      parameters: 0,
      context_length: 0,
      trained_context_length: 0,
      kv_cache: "f32",
      vocab_size: 0,
      weight_bytes: 0,
      tensor_types: {},
      layers: 0,
      has_thinking: false,
      sampling: { temperature: null, top_k: null, top_p: null, min_p: null },
      skipped: [],
      warnings: [],
      plan: {
        weight_bytes: 0,
        cache_bytes: 0,
        kv_bytes: 0,
        state_bytes: 0,
        scratch_bytes: 0,
        staging_bytes: 0,
        total_bytes: 0,
        shards: 0,
        sharded_tensors: 0,
        budget_bytes: null,
        rung: "full",
        reason: null,
        kv_cache: "f32",
        context_length: 0,
      },
      digest,
      load: { bytes: 1000, digest_ms: 1, repack_ms: 1, upload_ms: 0 },
      storage: { bytes_fetched: 1000, fetch_ms: 1, bytes_kept: 0, read_ms: 0, checksum_ms: 0, sha256_ms: 1 },
      files: sha256.map((sha256) => ({ name, bytes: 1000, sha256, store: isKept ? "opfs" : null })),
    });
  }

  /** Undefined where the answer comes later, or not at all. */
  const answers: Answers = {
    init: ({ params: { memory_budget_bytes } }) => ({
      backend: "cpu",
      name: "",
      vendor: "",
      is_fallback: false,
      activations: null,
      fallback_reason: null,
      features: [],
      // As on the processor: a model may take so much of a wasm module's memory.
      limits: { memory_budget_bytes: memory_budget_bytes ?? 3 * 2 ** 30 },
    }),
    load: (call) => {
      if (script.holdsLoads === true && call.params.keep !== false) {
        openLoad = call;
      } else {
        finishLoad(call);
      }
      return undefined;
    },
    generate: ({ id }) => {
      scope.postMessage({ type: "step", id, step: script.holdsAnswers === true ? { ...step, finish_reason: null } : step });
      return script.holdsAnswers === true ? undefined : null;
    },
    open_session: ({ id, params }) => {
      fail(id, { code: "session_unknown", detail: params.id, fatal: false });
      return undefined;
    },
    delete_session: () => null,
    list_models: () => models,
    list_sessions: () => [],
    storage_usage: () =>
      script.usage ?? { model_bytes: models.reduce((sum, { bytes }) => sum + bytes, 0), usage: null, quota: null, is_persisted: true },
    verify_model: ({ params }) => script.verifications?.find(({ id }) => id === params.id),
    delete_model: ({ id, params }) => {
      if (script.deleteError !== undefined) {
        fail(id, script.deleteError);
        return undefined;
      }
      models = models.filter((model) => model.id !== params.id);
      return null;
    },
  };

  scope.fake = {
    requests,
    progress: (progress) => scope.postMessage({ type: "progress", id: openLoad?.id ?? 0, progress }),
    finishLoad: () => openLoad !== undefined && finishLoad(openLoad),
    failLoad: (error) => fail(openLoad?.id ?? 0, error),
  };
  scope.addEventListener("message", ({ data: request }) => {
    requests.push(request);
    if (request.method === "abort") {
      fail(request.id, { code: "aborted", detail: "", fatal: false });
    } else if (request.method !== "visibility") {
      // The compiler cannot see that a method and its own parameters make one member of the union.
      const value = (answers[request.method] as ((call: Request) => Methods[keyof Methods]["result"] | undefined) | undefined)?.(request);
      if (value !== undefined) {
        result(request.id, value);
      }
    }
  });
  scope.postMessage({ type: "ready", life_lock: null });
}
