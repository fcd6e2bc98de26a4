/**
 * The public API: an engine in a worker of its own.
 *
 * ```ts
 * const engine = await createEngine();
 * await engine.load("/models/signbit-mini.gguf");
 * const answer = await engine.chat.completions.create({ messages: [{ role: "user", content: "Hello" }] });
 * ```
 */

import {
  chunkMapper,
  collectCompletion,
  generationRequest,
  type ChatCompletion,
  type ChatCompletionChunk,
  type ChatCompletionParams,
} from "./chat.js";
import { Connection, type CallListeners } from "./connection.js";
import { packArchive, unpackArchive } from "./sessions/archive.js";
import { chunkSizes, type SnapshotManifest } from "./sessions/snapshot.js";
import { abortError, EngineError, type ErrorCode } from "./errors.js";
import type { Method, NamedBlob, Params, Result, SourceParts } from "./protocol.js";
import { serveFetch } from "./storage/remote-fetch.js";
import { StepStream } from "./step-stream.js";
import { TaskQueue } from "./task-queue.js";
import type {
  Activations,
  BackendChoice,
  DeviceInfo,
  EngineStats,
  FallbackReason,
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
  StoreKind,
  Tool,
  Verification,
} from "./types.js";

export { fits, memoryBudget, type CatalogueEntry, type Fit } from "./catalogue.js";
export type * from "./chat.js";
export { ERROR_CODES, EngineError, isAbortError, isErrorCode, type ErrorCode } from "./errors.js";
export { readSessionData } from "./sessions/archive.js";
export type { SnapshotChunk, SnapshotManifest } from "./sessions/snapshot.js";
export type * from "./types.js";

/** How an engine is made. */
export interface CreateEngineOptions {
  /** Default `auto`. */
  readonly backend?: BackendChoice;
  /** How products on the CPU take their activations; the engine chooses where it is absent. */
  readonly activations?: Activations;
  /** Address of the worker's script, where a bundler has not placed it. */
  readonly workerUrl?: string | URL;
  /** Makes the worker; takes precedence over `workerUrl`. Called again when a worker is replaced. */
  readonly worker?: () => Worker;
  /** Address of the wasm file, where it does not lie as in the package. */
  readonly wasmUrl?: string | URL;
  /** Lower limits than the device's, in bytes. For tests of small devices. */
  readonly maxBindingBytes?: number;
  readonly maxBufferBytes?: number;
  /** The most bytes that all buffers on the device may take together. */
  readonly memoryBudgetBytes?: number;
  /** Takes a software adapter for a graphics device where the backend is `auto`. For tests of what follows. */
  readonly acceptSoftware?: boolean;
  /** Name of a kernel that is not run, for tests of what happens on a device that drops work. */
  readonly dropKernel?: string;
  /** Asks the graphics device for the clock that `profile` times kernels with. */
  readonly timestamps?: boolean;
  /**
   * Goes on after the graphics device was lost: with another device, the model from where it is kept, and the
   * answer in progress from where it was. Default true; else requests reject with `device_lost`.
   */
  readonly recover?: boolean;
  /** Where models are kept: by default in OPFS where that works and is not clearly slower than Cache Storage. */
  readonly storage?: "auto" | StoreKind | "none";
  /** Fetches models in place of the browser's own `fetch`. */
  readonly fetch?: typeof fetch;
  /** Milliseconds without a byte after which a connection is made again. */
  readonly stallTimeoutMs?: number;
  /** Attempts in a row without a byte after which a download fails, and the first pause between two. */
  readonly downloadAttempts?: number;
  readonly downloadBackoffMs?: number;
  /** Bytes of the segments in which models are kept. For tests. */
  readonly segmentBytes?: number;
  readonly sessions?: SessionsOptions;
  /** Receives every event, from the first moment on. */
  readonly onEvent?: (event: EngineEvent) => void;
}

/** How conversations are kept that are not the one on the device. */
export interface SessionsOptions {
  /** The most sessions in the worker's memory, 3 by default, and the most bytes of them, 512 MiB by default. */
  readonly parked?: number;
  readonly parkedBytes?: number;
  /**
   * Whether sessions are saved in the browser without being asked for, which is the default: those with a name when they
   * have rested for `debounceMs`, 2000 by default, and any that has to make room in memory. All saved sessions
   * together then take at most `savedBytes`, 2 GiB by default: of those that exceed it, the ones without a name go
   * first, and then the ones that were not used for longest.
   */
  readonly autosave?: boolean;
  readonly debounceMs?: number;
  readonly savedBytes?: number;
  /** The most bytes of a chunk of a snapshot, 8 MiB by default and at most 16,000,000. */
  readonly chunkBytes?: number;
  /**
   * The most bytes of the resident session's checkpoints in the worker's memory, 512 MiB by default. With fewer, more is
   * read again after an edit; 0 keeps none.
   */
  readonly checkpointBytes?: number;
}

/** An address, a local file, all parts of a split model in either form, or the id of a model that is kept. */
export type ModelSource = string | URL | Blob | readonly (string | URL)[] | readonly Blob[] | { readonly stored: string };

/** How a model is loaded. */
export interface LoadOptions extends ModelOptions {
  /** SHA-256 in hexadecimal that the file must have, or those of all files of a split model in order. */
  readonly sha256?: string | readonly string[];
  /** Whether to keep the files on this machine: by default those from addresses are kept, and local ones are not. */
  readonly keep?: boolean;
  readonly signal?: AbortSignal;
  readonly onProgress?: (progress: Progress) => void;
}

/** What happens besides the answers to requests. */
export type EngineEvent =
  | { readonly type: "progress"; readonly progress: Progress }
  /** The graphics device is gone. The request that met its loss goes on with another, or fails. */
  | { readonly type: "devicelost"; readonly error: EngineError }
  /** The engine runs on another backend than before; where that is the CPU, `device.fallback_reason` says why. */
  | { readonly type: "backend"; readonly device: DeviceInfo }
  /** Something worth knowing, such as a worker that was replaced after a fault. */
  | { readonly type: "notice"; readonly message: string; readonly error?: EngineError }
  /** A model that could be loaded is not kept. */
  | ({ readonly type: "storage" } & StorageNotice)
  /** Something has become of a session that no request was about. */
  | ({ readonly type: "session"; readonly error?: Error } & SessionNotice);

type EventOf<T extends EngineEvent["type"]> = Extract<EngineEvent, { type: T }>;

/** Makes an engine and waits until it is ready to load a model. */
export async function createEngine(options: CreateEngineOptions = {}): Promise<Engine> {
  const engine = new Engine(options);
  await engine.start();
  return engine;
}

/** An engine in a worker. Requests are carried out one at a time, in order. */
export class Engine {
  /** OpenAI's way to ask for an answer. */
  readonly chat = {
    completions: {
      create: ((params: ChatCompletionParams) => this.#complete(params)) as CreateCompletion,
    },
  };
  /** Models that are kept on this machine. These requests do not wait for others. */
  readonly models = {
    list: (): Promise<readonly StoredModel[]> => this.#ask("list_models", null),
    /** Reads all of a kept model and forgets what is damaged: the next load fetches that again. */
    verify: (id: string, options: { readonly signal?: AbortSignal } = {}): Promise<Verification> =>
      this.#ask("verify_model", { id }, options.signal),
    delete: async (id: string): Promise<void> => void (await this.#ask("delete_model", { id })),
    usage: (): Promise<StorageUsage> => this.#ask("storage_usage", null),
  };
  /** Conversations, by the name that they have in `session` of a request, or by an id that the engine gives them. */
  readonly sessions = {
    /** All sessions, those on the device and in memory first. Does not wait for other requests. */
    list: (): Promise<readonly SessionInfo[]> => this.#ask("list_sessions", null),
    /**
     * Saves a session in the browser now, and `data` with it: anything that can be cloned, such as the messages that it
     * holds. Without `data` it keeps what was saved with it before.
     */
    save: (id: string, options: { readonly data?: unknown; readonly signal?: AbortSignal } = {}): Promise<SessionInfo> =>
      this.#request("save_session", defined({ id, data: options.data }), options, false),
    /** Brings a session onto the device, so that its next request need not. */
    open: (id: string, options: { readonly signal?: AbortSignal } = {}): Promise<SessionInfo> =>
      this.#request("open_session", { id }, options),
    /** Forgets a session on the device, in memory and in the browser. */
    delete: async (id: string): Promise<void> => void (await this.#request("delete_session", { id }, {}, false)),
    /** Gives a session as it is now a second name, under which it goes on in another way. */
    fork: (id: string, as: string, options: { readonly signal?: AbortSignal } = {}): Promise<SessionInfo> =>
      this.#request("fork_session", { id, as }, options, false),
    /** A session as a value; the one on the device where there is no id. */
    snapshot: (id?: string, options: { readonly signal?: AbortSignal } = {}): Promise<SessionSnapshot> =>
      this.#request("snapshot_session", { id: id ?? null }, options, false),
    /**
     * Brings a session onto the device from a snapshot, whose chunks may come in any order, in place of what has its
     * name. Without a name it gets an id. Where it does not fit the model or is not whole, the session before stays.
     */
    restore: (snapshot: SessionValue, options: { readonly session?: string; readonly signal?: AbortSignal } = {}): Promise<SessionInfo> =>
      this.#restore(snapshot, options),
    /** A session in a file, a tar archive. `data` has to be JSON for this. */
    export: async (id: string, options: { readonly signal?: AbortSignal } = {}): Promise<Blob> => {
      const { manifest, chunks, data } = await this.sessions.snapshot(id, options);
      const blobs = new Map([...chunkSizes(manifest).keys()].map((digest, index) => [digest, chunks[index] ?? new Blob()]));
      return packArchive(manifest, data, (digest) => Promise.resolve(blobs.get(digest) ?? new Blob()));
    },
    /** Brings a session onto the device from a file that `export` has made. */
    import: async (file: Blob, options: { readonly session?: string; readonly signal?: AbortSignal } = {}): Promise<SessionInfo> => {
      const { manifest, chunks, data } = await unpackArchive(file);
      return this.#restore({ manifest, chunks: [...chunks.values()], data }, options);
    },
  };
  readonly #options: CreateEngineOptions;
  /** As asked for, until graphics devices turn out to be of no use. */
  #backend: BackendChoice;
  /** What was wrong with the last graphics device. */
  #gpuFault: FallbackReason | undefined;
  readonly #listeners = new Set<(event: EngineEvent) => void>();
  /** What is asked for. Whatever else a request needs, such as a new worker, happens in its turn. */
  readonly #queue = new TaskQueue();
  #connection: Promise<Connection> | undefined;
  #device: DeviceInfo | undefined;
  /** What the last worker ran on. */
  #lastBackend: DeviceInfo["backend"] | undefined;
  #model: ModelInfo | undefined;
  /** The last model that was loaded, for a worker that takes the place of a failed one. */
  #lastLoad: Params<"load"> | undefined;
  #isTerminated = false;
  #hasAskedToPersist = false;

  /** Use `createEngine`. */
  constructor(options: CreateEngineOptions) {
    this.#options = options;
    this.#backend = options.backend ?? "auto";
    if (options.onEvent !== undefined) {
      this.#listeners.add(options.onEvent);
    }
  }

  /** Starts the worker. `createEngine` has done so. */
  async start(): Promise<void> {
    await this.#connect();
  }

  /** The device, as long as there is a worker. */
  get device(): DeviceInfo | undefined {
    return this.#device;
  }

  /** The model that requests are answered with. */
  get model(): ModelInfo | undefined {
    return this.#model;
  }

  /**
   * Loads a model in place of the present one. A source that does not even open leaves the present
   * model as it is; after any later failure or an abort no model is loaded.
   */
  async load(source: ModelSource, options: LoadOptions = {}): Promise<ModelInfo> {
    const { signal, onProgress, sha256, keep, ...modelOptions } = options;
    const digests = sha256 === undefined ? undefined : [sha256].flat().map(checkedSha256);
    const params: Params<"load"> = defined({ source: sourceParts(source), options: modelOptions, sha256: digests, keep });
    const model = await this.#queue.add(() => this.#persist(() => this.#load(params, { signal, onProgress })), signal);
    this.#askToPersist(model);
    return model;
  }

  /** Frees the model's memory. */
  unload(): Promise<void> {
    return this.#queue.add(async () => {
      const connection = await this.#connect();
      await connection.call("unload", null);
      this.#model = undefined;
      this.#lastLoad = undefined;
    }, undefined);
  }

  /**
   * Generates from messages, text or token ids, step by step. Leaving the loop early aborts the
   * run, and so does the signal.
   */
  generate(request: GenerationRequest, options: { readonly signal?: AbortSignal } = {}): AsyncIterableIterator<GenerationStep> {
    const { ids, ...rest } = request;
    return this.#run(ids === undefined ? rest : { ...rest, ids: [...ids] }, options.signal, (step) => step);
  }

  /**
   * Teacher-forced logits at every position, row-major `[tokens, vocabulary]`, from a fresh
   * session. `chunk` is the number of tokens read at once; it changes nothing but rounding. Once
   * the calculation has begun, an abort rejects when it has ended.
   */
  score(ids: Uint32Array | readonly number[], options: { readonly chunk?: number; readonly signal?: AbortSignal } = {}): Promise<Float32Array> {
    const { chunk = 512, signal } = options;
    return this.#request("score", { ids: Uint32Array.from(ids), chunk }, { signal });
  }

  /** Token ids of a text. With `parseSpecial`, names of special tokens in it become those tokens. */
  tokenize(text: string, options: { readonly parseSpecial?: boolean } = {}): Promise<Uint32Array> {
    return this.#request("tokenize", { text, parse_special: options.parseSpecial ?? false });
  }

  /** A conversation as the model's chat template writes it. */
  render(
    messages: readonly Message[],
    options: { readonly tools?: readonly Tool[]; readonly enable_thinking?: boolean } = {},
  ): Promise<Rendering> {
    return this.#request("render", defined({ messages, ...options }));
  }

  /**
   * Every kernel against its CPU reference; `filter` picks kernels by a part of their name. Once
   * the comparison has begun, an abort rejects when it has ended.
   */
  checkKernels(filter?: string, options: { readonly signal?: AbortSignal } = {}): Promise<readonly KernelCheck[]> {
    return this.#request("check_kernels", defined({ filter }), options, false);
  }

  /**
   * Measures the device: how fast it copies and, on a device opened with `timestamps`, the time of
   * every kernel for a prompt of about `promptTokens` and for the token after it, each the median of
   * `runs`. Forgets the conversation. Once it has begun, an abort rejects when it has ended.
   */
  profile(
    options: { readonly promptTokens?: number; readonly runs?: number; readonly signal?: AbortSignal } = {},
  ): Promise<Profile> {
    const { promptTokens = 16, runs = 3, signal } = options;
    return this.#request("profile", { prompt_tokens: promptTokens, runs }, { signal });
  }

  /** Memory and counters. */
  stats(): Promise<EngineStats> {
    return this.#request("stats", null, {}, false);
  }

  /** Forgets the conversations on the device and in memory. The model stays, and so does what is saved. */
  async reset(): Promise<void> {
    await this.#request("reset", null);
  }

  /** Ends the worker and every pending request. The engine cannot be used again. */
  terminate(): void {
    const reason = new EngineError("aborted");
    this.#isTerminated = true;
    const connection = this.#connection;
    this.#forgetWorker();
    this.#lastLoad = undefined;
    this.#queue.clear(reason);
    void connection?.then(
      (open) => open.close(reason),
      () => undefined,
    );
  }

  /** Listens to events of one type; the result stops it. */
  on<T extends EngineEvent["type"]>(type: T, listener: (event: EventOf<T>) => void): () => void {
    const filtered = (event: EngineEvent): void => {
      if (event.type === type) {
        listener(event as EventOf<T>);
      }
    };
    this.#listeners.add(filtered);
    return () => void this.#listeners.delete(filtered);
  }

  async #complete(params: ChatCompletionParams): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    const { signal, stream } = params;
    const request = generationRequest(params);
    if (signal?.aborted === true) {
      throw abortError();
    }
    // Asked when the first step comes: until then another model may be loaded.
    const model = (): string => this.#model?.name ?? "";
    return stream === true
      ? this.#run(request, signal, chunkMapper(model))
      : collectCompletion(
          this.#run(request, signal, (step) => step),
          model,
        );
  }

  /** Sends a request that needs neither the model nor the device, at once. */
  async #ask<M extends Method>(method: M, params: Params<M>, signal?: AbortSignal): Promise<Result<M>> {
    return this.#persist(async () => {
      const connection = await abortable(this.#connect(), signal);
      return connection.call(method, params, { signal });
    });
  }

  async #restore(
    { manifest, chunks, data }: SessionValue,
    { session, signal }: { readonly session?: string; readonly signal?: AbortSignal },
  ): Promise<SessionInfo> {
    const blobs = chunks.map((chunk) => (chunk instanceof Blob ? chunk : new Blob([chunk as BlobPart])));
    return this.#request("restore_session", defined({ manifest, chunks: blobs, data, session }), { signal });
  }

  /** Asks the browser, once, not to clear what is kept by itself. Only pages may ask. */
  #askToPersist({ files }: ModelInfo): void {
    const storage = typeof document === "undefined" ? undefined : (navigator.storage as StorageManager | undefined);
    if (this.#hasAskedToPersist || storage?.persist === undefined || files.every(({ store }) => store === null)) {
      return;
    }
    this.#hasAskedToPersist = true;
    // A refusal changes nothing.
    void storage
      .persisted()
      .then((isPersisted) => isPersisted || storage.persist())
      .catch(() => false);
  }

  /** Starts a generation whose steps, mapped, come out of the stream; undefined ones are left out. */
  #run<T>(
    request: GenerationRequest,
    signal: AbortSignal | undefined,
    map: (step: GenerationStep) => T | undefined,
  ): StepStream<T> {
    const controller = new AbortController();
    const abort = (): void => controller.abort();
    if (signal?.aborted === true) {
      abort();
    }
    signal?.addEventListener("abort", abort, { once: true });
    const stream = new StepStream<T>(abort);
    // Grows with each step: should the device be lost, the request is sent again and goes on from here.
    const generated: number[] = [];
    this.#request("generate", defined({ ...request, generated }), {
      signal: controller.signal,
      onStep: (step) => {
        generated.push(...step.ids);
        const value = map(step);
        if (value !== undefined) {
          stream.push(value);
        }
      },
      onProgress: (progress) => this.#emit({ type: "progress", progress }),
    })
      .then(
        () => stream.close(),
        (error: unknown) => stream.fail(error),
      )
      .finally(() => signal?.removeEventListener("abort", abort));
    return stream;
  }

  /** Sends a request to a worker that has the model, starting and loading one where it is needed. */
  #request<M extends Method>(
    method: M,
    params: Params<M>,
    listeners: CallListeners = {},
    needsModel = true,
  ): Promise<Result<M>> {
    const work = async (): Promise<Result<M>> => {
      if (needsModel && this.#model === undefined && this.#lastLoad !== undefined) {
        await this.#reload(this.#lastLoad, listeners.signal);
      }
      const connection = await abortable(this.#connect(), listeners.signal);
      return connection.call(method, params, listeners);
    };
    return this.#queue.add(() => this.#persist(work), listeners.signal);
  }

  /**
   * Does `work`, and does it again where the graphics device was lost. After a second loss, or where the
   * device gives wrong results, it goes on without one, if it may.
   */
  async #persist<T>(work: () => Promise<T>): Promise<T> {
    for (let losses = 0; ; losses += 1) {
      try {
        return await work();
      } catch (error) {
        if (!(error instanceof EngineError) || !isGpuFault(error.code)) {
          throw error;
        }
        if (error.code === "device_lost" && this.#options.recover === false) {
          throw error;
        }
        const isHopeless = error.code === "device_unreliable" || losses > 0;
        if (isHopeless && this.#backend !== "auto") {
          throw error;
        }
        this.#gpuFault = { code: error.code, message: error.message };
        if (isHopeless) {
          this.#backend = "cpu";
          // A device that is lost has taken its worker along.
          const connection = await this.#connection;
          connection?.close(error);
          this.#forgetWorker();
        }
      }
    }
  }

  #connect(): Promise<Connection> {
    if (this.#isTerminated) {
      return Promise.reject(new EngineError("aborted"));
    }
    this.#connection ??= this.#open();
    return this.#connection;
  }

  async #open(): Promise<Connection> {
    const { activations, workerUrl, worker, wasmUrl, maxBindingBytes, maxBufferBytes, memoryBudgetBytes } = this.#options;
    const { acceptSoftware, dropKernel, timestamps, storage, segmentBytes } = this.#options;
    const { stallTimeoutMs, downloadAttempts, downloadBackoffMs, sessions = {} } = this.#options;
    const fetchPort = this.#options.fetch === undefined ? null : servedFetch(this.#options.fetch);
    const create =
      worker ??
      (workerUrl === undefined
        ? () => new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "signbit" })
        : () => new Worker(workerUrl, { type: "module", name: "signbit" }));
    try {
      const { connection, device } = await Connection.open(
        create,
        defined({
          backend: this.#backend,
          accept_software: acceptSoftware,
          activations,
          max_binding_bytes: maxBindingBytes,
          max_buffer_bytes: maxBufferBytes,
          memory_budget_bytes: memoryBudgetBytes,
          drop_kernel: dropKernel,
          timestamps,
          checkpoint_bytes: sessions.checkpointBytes,
          wasm_url: wasmUrl === undefined ? undefined : absoluteUrl(wasmUrl),
          storage: defined({
            store: storage ?? "auto",
            segment_bytes: segmentBytes,
            stall_ms: stallTimeoutMs,
            attempts: downloadAttempts,
            backoff_ms: downloadBackoffMs,
          }),
          sessions: defined({
            parked: sessions.parked,
            parked_bytes: sessions.parkedBytes,
            saved_bytes: sessions.savedBytes,
            autosave: sessions.autosave,
            debounce_ms: sessions.debounceMs,
            chunk_bytes: sessions.chunkBytes,
          }),
          fetch_port: fetchPort,
        }),
        {
          onNotice: (notice) => this.#emit({ type: "storage", ...notice }),
          onSession: (notice, error) => this.#emit({ type: "session", ...notice, ...(error && { error }) }),
          whenDead: (error) => this.#lose(error),
        },
      );
      if (!this.#isTerminated) {
        this.#enter(device);
      }
      return connection;
    } catch (error) {
      this.#connection = undefined;
      throw error;
    }
  }

  /** Takes note of a new worker's device. */
  #enter(opened: DeviceInfo): void {
    const { backend, fallback_reason } = opened;
    const device = { ...opened, fallback_reason: backend === "cpu" ? (this.#gpuFault ?? fallback_reason) : null };
    const hadOther = this.#lastBackend !== undefined && this.#lastBackend !== backend;
    this.#device = device;
    this.#lastBackend = backend;
    if (hadOther) {
      this.#emit({ type: "backend", device });
    }
  }

  /** Loads the last model into a worker that took another's place. */
  async #reload(params: Params<"load">, signal: AbortSignal | undefined): Promise<void> {
    try {
      await this.#load(params, { signal });
    } catch (error) {
      // A reload that failed is tried again by the next request.
      if (!this.#isTerminated) {
        this.#lastLoad = params;
      }
      throw error;
    }
  }

  async #load(params: Params<"load">, listeners: CallListeners): Promise<ModelInfo> {
    const connection = await abortable(this.#connect(), listeners.signal);
    const onProgress = (progress: Progress): void => {
      // The first report means that the old model has made room, unless another tab is waited for.
      if (progress.stage !== "download" || !progress.is_waiting) {
        this.#model = undefined;
        this.#lastLoad = undefined;
      }
      listeners.onProgress?.(progress);
      this.#emit({ type: "progress", progress });
    };
    const model = await connection.call("load", params, { signal: listeners.signal, onProgress });
    this.#model = model;
    this.#lastLoad = params;
    return model;
  }

  /** The worker is gone. The next request starts another and loads the model again. */
  #lose(error: EngineError): void {
    this.#forgetWorker();
    if (error.code === "device_lost" && this.#options.recover !== false) {
      // The request that met the loss is carried out again, before those behind it.
      this.#emit({ type: "devicelost", error });
      return;
    }
    this.#queue.clear(error);
    if (error.code === "device_lost") {
      this.#emit({ type: "devicelost", error });
      return;
    }
    this.#emit({
      type: "notice",
      message: "The engine's worker failed. The next request starts a new one and reloads the model.",
      error,
    });
  }

  #forgetWorker(): void {
    this.#connection = undefined;
    this.#device = undefined;
    this.#model = undefined;
  }

  #emit(event: EngineEvent): void {
    for (const listener of this.#listeners) {
      listener(event);
    }
  }
}

/** A snapshot that is to become a session. */
export interface SessionValue {
  readonly manifest: SnapshotManifest;
  /** Each chunk of the manifest once, in any order. */
  readonly chunks: readonly (Blob | ArrayBuffer | Uint8Array)[];
  readonly data?: unknown;
}

/** `chat.completions.create`: a stream of chunks where `stream` is true, else the whole answer. */
export interface CreateCompletion {
  (params: ChatCompletionParams & { readonly stream: true }): Promise<AsyncIterable<ChatCompletionChunk>>;
  (params: ChatCompletionParams & { readonly stream?: false }): Promise<ChatCompletion>;
  (params: ChatCompletionParams): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>>;
}

function isGpuFault(code: ErrorCode): code is "device_unreliable" | "device_lost" {
  return code === "device_unreliable" || code === "device_lost";
}

function sourceParts(source: ModelSource): SourceParts {
  if (typeof source === "object" && "stored" in source) {
    return { kind: "stored", id: source.stored };
  }
  const items: readonly (string | URL | Blob)[] =
    typeof source === "string" || source instanceof URL || source instanceof Blob ? [source] : source;
  const urls: string[] = [];
  const blobs: NamedBlob[] = [];
  for (const item of items) {
    if (item instanceof Blob) {
      blobs.push({ name: item instanceof File ? item.name : "the file", blob: item });
    } else {
      urls.push(absoluteUrl(item));
    }
  }
  return blobs.length > 0 ? { kind: "blobs", blobs } : { kind: "urls", urls };
}

function checkedSha256(text: string): string {
  if (!/^[0-9a-f]{64}$/i.test(text)) {
    throw new EngineError("invalid_request", { detail: `"${text}" is not a SHA-256 in hexadecimal` });
  }
  return text.toLowerCase();
}

/** The page's own `fetch`, for a worker that holds the other end of the port. */
function servedFetch(fetch: typeof globalThis.fetch): MessagePort {
  const { port1, port2 } = new MessageChannel();
  serveFetch(port1, fetch);
  return port2;
}

/** Relative to the page: the worker's own base is its script. */
function absoluteUrl(url: string | URL): string {
  try {
    return new URL(url, typeof document === "undefined" ? location.href : document.baseURI).href;
  } catch (cause) {
    throw new EngineError("invalid_request", { detail: `"${String(url)}" is not an address`, cause });
  }
}

/** `promise`, left early when the signal aborts. */
function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(abortError());
    if (signal.aborted) {
      abort();
    }
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

/** `T` with optional instead of undefined members: the engine tells an absent field from an empty one. */
type Defined<T> = { [K in keyof T as undefined extends T[K] ? never : K]: T[K] } & {
  [K in keyof T as undefined extends T[K] ? K : never]?: Exclude<T[K], undefined>;
};

function defined<T extends object>(value: T): Defined<T> {
  return Object.fromEntries(Object.entries(value).filter(([, member]) => member !== undefined)) as Defined<T>;
}
