/** One worker from its start to its end: pairs requests with responses and notices its death. */

import { abortError, deserializeError, EngineError, type SerializedError } from "./errors.js";
import type { Method, Params, Request, Response, Result } from "./protocol.js";
import type { DeviceInfo, GenerationStep, Progress, SessionNotice, StorageNotice } from "./types.js";

/** What a request reports before it is answered. */
export interface CallListeners {
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: Progress) => void) | undefined;
  readonly onStep?: ((step: GenerationStep) => void) | undefined;
}

/** What a worker tells outside of its answers. */
export interface WorkerListeners {
  readonly onNotice: (notice: StorageNotice) => void;
  readonly onSession: (notice: SessionNotice, error: Error | undefined) => void;
  /** Called at most once, when the worker has failed for good after a successful start, not by `close`. */
  readonly whenDead: (error: EngineError) => void;
}

interface Pending {
  resolve(value: Result<Method>): void;
  reject(error: Error): void;
  readonly listeners: CallListeners;
}

/** A script that takes longer than this to start will not start, in milliseconds. */
const START_TIMEOUT_MS = 60_000;
/** The same for the wasm module and the device; a slow line has the module within this. */
const INIT_TIMEOUT_MS = 120_000;

export class Connection {
  readonly #worker: Worker;
  readonly #pending = new Map<number, Pending>();
  readonly #listeners: WorkerListeners;
  readonly #watch = new AbortController();
  #nextId = 1;
  #death: EngineError | undefined;

  private constructor(worker: Worker, listeners: WorkerListeners) {
    this.#worker = worker;
    this.#listeners = listeners;
  }

  /** Starts a worker and its engine. */
  static async open(
    createWorker: () => Worker,
    params: Params<"init">,
    listeners: WorkerListeners,
  ): Promise<{ readonly connection: Connection; readonly device: DeviceInfo }> {
    let worker: Worker;
    try {
      worker = createWorker();
    } catch (cause) {
      // As in a frame without an origin of its own, which may use no script of another.
      throw startError(`the worker could not be made: ${String(cause)}`, cause);
    }
    let lifeLock: string | null;
    try {
      lifeLock = await ready(worker);
    } catch (error) {
      worker.terminate();
      throw error;
    }
    let isOpen = false;
    const connection = new Connection(worker, {
      ...listeners,
      whenDead: (error) => {
        if (isOpen) {
          listeners.whenDead(error);
        }
      },
    });
    worker.addEventListener("message", (event: MessageEvent<Response>) => connection.#receive(event.data));
    worker.addEventListener("error", (event) => {
      event.preventDefault();
      connection.#die(new EngineError("internal", { detail: event.message }));
    });
    connection.#watchLife(lifeLock);
    const timer = setTimeout(
      () => connection.close(new EngineError("internal", { detail: "the engine did not start in time" })),
      INIT_TIMEOUT_MS,
    );
    try {
      connection.#watchVisibility();
      const device = await connection.call("init", params);
      isOpen = true;
      return { connection, device };
    } catch (error) {
      connection.close(new EngineError("aborted"));
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** Sends a request and resolves with its result. */
  call<M extends Method>(method: M, params: Params<M>, listeners: CallListeners = {}): Promise<Result<M>> {
    const { signal } = listeners;
    if (this.#death !== undefined) {
      return Promise.reject(this.#death);
    }
    if (signal?.aborted === true) {
      return Promise.reject(abortError());
    }
    const id = this.#nextId;
    this.#nextId += 1;
    const abort = (): void => this.#post({ id, method: "abort" });
    signal?.addEventListener("abort", abort, { once: true });
    const answer = new Promise<Result<Method>>((resolve, reject) => {
      this.#pending.set(id, { resolve, reject, listeners });
    });
    try {
      // The compiler cannot see that a method and its own parameters make one member of the union.
      this.#post({ id, method, params } as Request);
    } catch (cause) {
      this.#take(id)?.reject(new EngineError("invalid_request", { detail: `it cannot be copied: ${String(cause)}`, cause }));
    }
    return answer.finally(() => signal?.removeEventListener("abort", abort)) as Promise<Result<M>>;
  }

  /** Ends the worker; pending requests reject with `reason`. */
  close(reason: EngineError): void {
    if (this.#death !== undefined) {
      return;
    }
    this.#death = reason;
    this.#watch.abort();
    this.#worker.terminate();
    for (const { reject } of this.#pending.values()) {
      reject(reason);
    }
    this.#pending.clear();
  }

  /** Frames need a turn at the device only while somebody sees them. */
  #watchVisibility(): void {
    // Workers may own workers, and have no page to be hidden.
    if (typeof document === "undefined") {
      return;
    }
    const tell = (): void => this.#post({ method: "visibility", is_hidden: document.hidden });
    document.addEventListener("visibilitychange", tell, { signal: this.#watch.signal });
    tell();
  }

  #post(request: Request): void {
    const port = request.method === "init" ? request.params.fetch_port : null;
    this.#worker.postMessage(request, port === null ? [] : [port]);
  }

  #receive(response: Response): void {
    switch (response.type) {
      case "ready":
        return;
      case "progress":
        this.#pending.get(response.id)?.listeners.onProgress?.(response.progress);
        return;
      case "step":
        this.#pending.get(response.id)?.listeners.onStep?.(response.step);
        return;
      case "result":
        this.#take(response.id)?.resolve(response.value);
        return;
      case "error":
        this.#fail(this.#take(response.id), response.error);
        return;
      case "notice":
        this.#listeners.onNotice(response.notice);
        return;
      case "session":
        this.#listeners.onSession(response.notice, response.error === null ? undefined : deserializeError(response.error));
        return;
      case "fault":
        this.#fail(undefined, response.error);
        return;
    }
  }

  #take(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    return pending;
  }

  #fail(pending: Pending | undefined, serialized: SerializedError): void {
    const error = deserializeError(serialized);
    pending?.reject(error);
    if (serialized.fatal && error instanceof EngineError) {
      this.#die(error);
    }
  }

  #die(error: EngineError): void {
    if (this.#death === undefined) {
      this.close(error);
      this.#listeners.whenDead(error);
    }
  }

  /**
   * The worker holds the lock as long as it lives, so getting it means that the worker is gone.
   * Where there are no locks, a worker that is ended from outside goes unnoticed.
   */
  #watchLife(lock: string | null): void {
    if (lock === null) {
      return;
    }
    navigator.locks
      .request(lock, { signal: this.#watch.signal }, () => {
        this.#die(new EngineError("internal", { detail: "its worker was ended from outside" }));
      })
      .catch(() => undefined);
  }
}

function startError(detail: string, cause?: unknown): EngineError {
  return new EngineError("internal", {
    detail,
    hint: "The worker's script must be served from the page's own origin, and its content security policy must allow 'wasm-unsafe-eval'.",
    cause,
  });
}

/** Resolves when the worker's script runs, with the name of the lock it holds, if it holds one. */
function ready(worker: Worker): Promise<string | null> {
  return new Promise((resolve, reject) => {
    const fail = (detail: string): void => {
      settle();
      reject(startError(detail));
    };
    const onMessage = (event: MessageEvent<Response>): void => {
      if (event.data.type === "ready") {
        settle();
        resolve(event.data.life_lock);
      } else if (event.data.type === "fault") {
        settle();
        reject(deserializeError(event.data.error));
      }
    };
    const onError = (event: ErrorEvent): void => {
      event.preventDefault();
      fail(`the worker's script could not be started ${event.message ?? ""}`.trim());
    };
    const timer = setTimeout(() => fail("the worker's script did not start in time"), START_TIMEOUT_MS);
    const settle = (): void => {
      clearTimeout(timer);
      worker.removeEventListener("message", onMessage);
      worker.removeEventListener("error", onError);
    };
    worker.addEventListener("message", onMessage);
    worker.addEventListener("error", onError);
  });
}
