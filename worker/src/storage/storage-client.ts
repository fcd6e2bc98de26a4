/** The storage as the engine's worker uses it. */

import { abortError, deserializeError, EngineError, throwIfAborted } from "../errors.js";
import type { StorageNotice } from "../types.js";
import type {
  PartEvent,
  PartMessage,
  StorageMethod,
  StorageMethods,
  StorageOptions,
  StorageRequest,
  StorageResponse,
} from "./messages.js";

/** Pieces that may be on their way while one is used. */
const READ_AHEAD = 2;

interface Pending {
  resolve(value: StorageMethods[StorageMethod]["result"]): void;
  reject(error: unknown): void;
}

/** A file has become another while it was read: it has to be read again from its start. */
export class FileChanged extends Error {
  constructor(cause: unknown) {
    super("the file has changed", { cause });
    this.name = "FileChanged";
  }
}

export class StorageClient {
  readonly #worker: Worker;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  readonly #failure = new AbortController();

  constructor(
    module: WebAssembly.Module,
    options: StorageOptions,
    fetchPort: MessagePort | null,
    onNotice: (notice: StorageNotice) => void,
  ) {
    this.#worker = new Worker(new URL("./storage-worker.js", import.meta.url), { type: "module", name: "signbit storage" });
    this.#worker.onmessage = ({ data }: MessageEvent<StorageResponse>) => {
      switch (data.type) {
        case "notice":
          return onNotice(data.notice);
        case "result":
          return this.#take(data.id)?.resolve(data.value);
        case "error":
          return this.#take(data.id)?.reject(deserializeError(data.error));
      }
    };
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#fail(new EngineError("internal", { detail: `the storage worker failed: ${event.message ?? "its script did not load"}` }));
    };
    const init: StorageRequest = { type: "init", module, options, fetch_port: fetchPort };
    this.#worker.postMessage(init, fetchPort === null ? [] : [fetchPort]);
  }

  call<M extends StorageMethod>(
    method: M,
    params: StorageMethods[M]["params"],
    { signal, transfer = [] }: { readonly signal?: AbortSignal; readonly transfer?: Transferable[] } = {},
  ): Promise<StorageMethods[M]["result"]> {
    if (this.#failure.signal.aborted) {
      return Promise.reject(this.#failure.signal.reason);
    }
    if (signal?.aborted === true) {
      return Promise.reject(abortError());
    }
    const id = this.#nextId;
    this.#nextId += 1;
    const answer = new Promise<StorageMethods[StorageMethod]["result"]>((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
    });
    this.#worker.postMessage({ type: "call", id, method, params }, transfer);
    const abort = (): void => this.#worker.postMessage({ type: "abort", id } satisfies StorageRequest);
    signal?.addEventListener("abort", abort, { once: true });
    return answer.finally(() => signal?.removeEventListener("abort", abort)) as Promise<StorageMethods[M]["result"]>;
  }

  /**
   * The bytes of a file of the opened model, in order. A piece is valid until the next is asked for. Rejects with
   * `FileChanged` where the file has to be read again.
   */
  async *read(part: number, signal: AbortSignal): AsyncGenerator<PartEvent, void, void> {
    const { port1: port, port2 } = new MessageChannel();
    const arrived: PartMessage[] = [];
    let wake: (() => void) | undefined;
    let failure: unknown;
    const fail = (error: unknown): void => {
      failure ??= error;
      wake?.();
    };
    port.onmessage = ({ data }: MessageEvent<PartMessage>) => {
      arrived.push(data);
      wake?.();
    };
    const abort = (): void => fail(abortError());
    const die = (): void => fail(this.#failure.signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    this.#failure.signal.addEventListener("abort", die, { once: true });
    this.call("read", { part, port: port2 }, { transfer: [port2] }).catch(fail);
    const pull = (buffer: ArrayBuffer | null): void =>
      port.postMessage({ type: "pull", buffer }, buffer === null ? [] : [buffer]);
    try {
      for (let ahead = 0; ahead < READ_AHEAD; ahead += 1) {
        pull(null);
      }
      for (;;) {
        throwIfAborted(signal);
        if (failure !== undefined) {
          throw failure;
        }
        const message = arrived.shift();
        if (message === undefined) {
          await new Promise<void>((resolve) => (wake = resolve));
          continue;
        }
        if (message.type === "end") {
          return;
        }
        if (message.type === "failed") {
          const error = deserializeError(message.error);
          throw message.has_changed ? new FileChanged(error) : error;
        }
        yield message;
        pull(message.type === "piece" ? message.bytes.buffer : null);
      }
    } finally {
      signal.removeEventListener("abort", abort);
      this.#failure.signal.removeEventListener("abort", die);
      port.postMessage({ type: "cancel" });
      port.close();
    }
  }

  #take(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    return pending;
  }

  #fail(error: EngineError): void {
    this.#failure.abort(error);
    for (const { reject } of this.#pending.values()) {
      reject(error);
    }
    this.#pending.clear();
  }
}
