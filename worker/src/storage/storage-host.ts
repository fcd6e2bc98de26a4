/**
 * Carries out what the engine's worker asks of the storage: opens models, reads their files, and lists, checks and
 * deletes what is kept. One model is open at a time, and one of its files is read at a time.
 */

import { EngineError, isAbortError, serializeError, throwIfAborted } from "../errors.js";
import type { StorageNotice, StorageTimes } from "../types.js";
import { openStores } from "./choose-store.js";
import { knownDigest, rememberDigest } from "./digests.js";
import { connectFetch } from "./remote-fetch.js";
import { SourceChanged, type HttpOptions } from "./http-file.js";
import type { StorageTools } from "./kept-file.js";
import { collectGarbage, deleteModel, listModels, usage, verifyModel } from "./library.js";
import type {
  OpenedModel,
  OpenParams,
  PartMessage,
  PartRequest,
  StorageCall,
  StorageMethod,
  StorageMethods,
  StorageRequest,
  StorageResponse,
} from "./messages.js";
import { ModelFileReader } from "./model-file-reader.js";
import { sourceFiles } from "./origin.js";
import { SEGMENT_BYTES, storageEstimate, type StoreError } from "./segment-store.js";
import { startHashes } from "./wasm-hashes.js";

/** Where calls come from: the global scope of a worker, or a port. */
export interface Endpoint {
  postMessage(message: StorageResponse): void;
  addEventListener(type: "message", listener: (event: MessageEvent<StorageRequest>) => void): void;
}

const NO_TIMES: StorageTimes = { bytes_fetched: 0, fetch_ms: 0, bytes_kept: 0, read_ms: 0, checksum_ms: 0, sha256_ms: 0 };

type Result<M extends StorageMethod> = StorageMethods[M]["result"];
type AnyCall = { [M in StorageMethod]: StorageCall<M> }[StorageMethod];

/** Serves the storage at `endpoint`, whose first message is `init`. */
export function serveStorage(endpoint: Endpoint): void {
  let host: Promise<StorageHost> | undefined;
  const controllers = new Map<number, AbortController>();
  endpoint.addEventListener("message", ({ data }) => {
    if (data.type === "init") {
      host = StorageHost.start(data, (notice) => endpoint.postMessage({ type: "notice", notice }));
      // Each call hears of a start that failed.
      host.catch(() => undefined);
      return;
    }
    const { id } = data;
    if (data.type === "abort") {
      controllers.get(id)?.abort();
      return;
    }
    const controller = new AbortController();
    controllers.set(id, controller);
    void Promise.resolve(host)
      .then((started) => {
        if (started === undefined) {
          throw new EngineError("internal", { detail: "the storage was used before it was started" });
        }
        return started.carryOut(data, controller.signal);
      })
      .then(
        (value) => endpoint.postMessage({ type: "result", id, value }),
        (error: unknown) => endpoint.postMessage({ type: "error", id, error: serializeError(error) }),
      )
      .finally(() => controllers.delete(id));
  });
}

class StorageHost {
  readonly #tools: StorageTools;
  readonly #http: HttpOptions;
  readonly #notify: (notice: StorageNotice) => void;
  #hasTold = false;
  /** Whether there is to be any storage. */
  readonly #keeps: boolean;
  #files: readonly ModelFileReader[] = [];
  /** Ends what is read now. */
  #reading: { readonly controller: AbortController; readonly end: Promise<void> } | undefined;

  private constructor(tools: StorageTools, http: HttpOptions, keeps: boolean, notify: (notice: StorageNotice) => void) {
    this.#notify = notify;
    this.#tools = tools;
    this.#http = http;
    this.#keeps = keeps;
  }

  static async start(
    { module, options, fetch_port }: Extract<StorageRequest, { type: "init" }>,
    notify: (notice: StorageNotice) => void,
  ): Promise<StorageHost> {
    const [stores, hashes] = await Promise.all([openStores(options.store), startHashes(module)]);
    const { stall_ms, attempts, backoff_ms } = options;
    const http: HttpOptions = {
      ...(fetch_port === null ? {} : { fetch: connectFetch(fetch_port) }),
      ...(stall_ms === undefined ? {} : { stall_ms }),
      ...(attempts === undefined ? {} : { attempts }),
      ...(backoff_ms === undefined ? {} : { backoff_ms }),
    };
    const onStoreError = (error: StoreError): void => host.#tell(error);
    const tools = { stores, hashes, segmentBytes: options.segment_bytes ?? SEGMENT_BYTES, times: { ...NO_TIMES }, onStoreError };
    const host: StorageHost = new StorageHost(tools, http, options.store !== "none", notify);
    return host;
  }

  /** Says once for each model why it is not kept. */
  #tell(error: StoreError): void {
    if (!this.#hasTold) {
      this.#hasTold = true;
      void storageNotice(error).then(this.#notify);
    }
  }

  carryOut(call: AnyCall, signal: AbortSignal): Promise<Result<StorageMethod>> {
    switch (call.method) {
      case "open":
        return this.#open(call.params, signal);
      case "read":
        return this.#read(call.params);
      case "finish":
        return this.#finish(call.params.digest);
      case "discard":
        return this.#discard();
      case "list":
        return listModels();
      case "verify":
        return verifyModel(call.params.id, { stores: this.#tools.stores, checksum: this.#tools.hashes.checksum, signal });
      case "delete":
        return deleteModel(call.params.id, this.#tools.stores).then(() => null);
      case "usage":
        return usage();
    }
  }

  async #open({ source, sha256, keep }: OpenParams, signal: AbortSignal): Promise<OpenedModel> {
    await this.#stopReading();
    this.#files = [];
    this.#hasTold = false;
    Object.assign(this.#tools.times, NO_TIMES);
    const sources = await sourceFiles(source, this.#http);
    if (sha256 !== undefined && sha256.length !== sources.length) {
      throw new EngineError("invalid_request", { detail: `${sources.length} files were given, and ${sha256.length} digests` });
    }
    const model = sources[0]?.id ?? "";
    const isKept = this.#keeps && (keep ?? source.kind !== "blobs");
    const open = sources.map((file, part) =>
      ModelFileReader.open(file, { model, part, parts: sources.length, sha256: sha256?.[part], isKept }, this.#tools, signal),
    );
    this.#files = await Promise.all(open);
    return {
      bytes: this.#files.map(({ bytes }) => bytes),
      digest: (await this.#knownDigest()) ?? null,
    };
  }

  /** The digest that was computed from files with the same digests as these. */
  async #knownDigest(): Promise<string | undefined> {
    const digests = this.#files.map(({ sha256 }) => sha256);
    return digests.every((digest) => digest !== undefined) ? knownDigest(digests).catch(() => undefined) : undefined;
  }

  async #read({ part, port }: StorageMethods["read"]["params"]): Promise<null> {
    await this.#stopReading();
    const file = this.#files[part];
    if (file === undefined) {
      throw new EngineError("invalid_request", { detail: `the model has no part ${part + 1}` });
    }
    const controller = new AbortController();
    this.#reading = { controller, end: send(file, port, controller) };
    return null;
  }

  async #stopReading(): Promise<void> {
    this.#reading?.controller.abort();
    await this.#reading?.end;
    this.#reading = undefined;
  }

  async #finish(digest: string): Promise<Result<"finish">> {
    await this.#stopReading();
    const files = this.#files.map((file) => file.describe());
    await rememberDigest(
      files.map(({ sha256 }) => sha256),
      digest,
    ).catch(() => undefined);
    // What a closed page has left behind in a segment is nobody's.
    void collectGarbage(this.#tools.stores).catch(() => undefined);
    return { files, storage: { ...this.#tools.times } };
  }

  async #discard(): Promise<null> {
    await this.#stopReading();
    await Promise.all(this.#files.map((file) => file.forget()));
    return null;
  }
}

/** Sends a file through a port, a piece for each that the other side asks for. */
async function send(file: ModelFileReader, port: MessagePort, controller: AbortController): Promise<void> {
  const post = (message: PartMessage): void =>
    port.postMessage(message, message.type === "piece" ? [message.bytes.buffer] : []);
  let credit = 0;
  let wake: (() => void) | undefined;
  port.onmessage = ({ data }: MessageEvent<PartRequest>) => {
    if (data.type === "cancel") {
      controller.abort();
    } else {
      credit += 1;
      if (data.buffer !== null) {
        file.giveBack(data.buffer);
      }
    }
    wake?.();
  };
  controller.signal.addEventListener("abort", () => wake?.());
  try {
    for await (const event of file.read(controller.signal)) {
      while (credit === 0 && !controller.signal.aborted) {
        await new Promise<void>((resolve) => (wake = resolve));
      }
      throwIfAborted(controller.signal);
      credit -= 1;
      post(event);
    }
    // What was left half way has no end.
    throwIfAborted(controller.signal);
    post({ type: "end" });
  } catch (error) {
    const has_changed = error instanceof SourceChanged;
    if (has_changed) {
      await file.forget();
    }
    if (!isAbortError(error) || !controller.signal.aborted) {
      post({ type: "failed", error: serializeError(has_changed ? changed(error) : error), has_changed });
    }
  }
  port.close();
}

function changed(cause: SourceChanged): EngineError {
  return new EngineError("network", {
    detail: `the file at ${cause.now.url.split(/[?#]/, 1)[0] ?? ""} changes while it is read`,
    hint: "Try again when the server has one version of it.",
    cause,
  });
}

async function storageNotice({ problem, message }: StoreError): Promise<StorageNotice> {
  return {
    code: problem === "full" ? "storage_full" : "storage_unavailable",
    message: `The model runs, but it is not kept on this machine: ${message}.`,
    ...(await storageEstimate()),
  };
}
