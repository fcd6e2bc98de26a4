/** One request and its answer. */

import { abortError, throwIfAborted } from "../errors.js";

/** Nothing has come for too long. */
export class Stall extends Error {}

/** The body, or what it gives, is not what a `Response` has. */
export class NoByteStream extends Error {}

export interface TransferRequest {
  readonly fetch: typeof fetch;
  readonly url: string;
  /** Value of the header `Range`, or undefined for the whole file. */
  readonly range: string | undefined;
  /** Milliseconds without an answer, or without a byte, that are too long. */
  readonly stall_ms: number;
}

/**
 * An answer whose body is read piece by piece. It ends at once when the signal aborts, whatever `fetch` makes
 * of the signal; then everything rejects with the abort's error.
 */
export class Transfer {
  readonly response: Response;
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  readonly #stallMs: number;
  readonly #signal: AbortSignal;
  readonly #end: () => void;

  private constructor(response: Response, stallMs: number, signal: AbortSignal, end: () => void) {
    this.response = response;
    this.#reader = response.body?.getReader();
    this.#stallMs = stallMs;
    this.#signal = signal;
    this.#end = end;
  }

  /** Resolves when the answer's headers are there. Rejects with a `Stall`, the abort's error, or what `fetch` throws. */
  static async open(request: TransferRequest, signal: AbortSignal): Promise<Transfer> {
    throwIfAborted(signal);
    const controller = new AbortController();
    const abort = (): void => controller.abort();
    signal.addEventListener("abort", abort, { once: true });
    const end = (): void => {
      signal.removeEventListener("abort", abort);
      abort();
    };
    const { fetch } = request;
    // Only headers that need no permission of the server: it might refuse the browser's question for one.
    const answer = (async () =>
      fetch(request.url, {
        cache: "no-store",
        credentials: "omit",
        redirect: "follow",
        signal: controller.signal,
        ...(request.range === undefined ? {} : { headers: { range: request.range } }),
      }))();
    try {
      const response = await unlessLate(answer, request.stall_ms, signal);
      throwIfAborted(signal);
      const transfer = new Transfer(response, request.stall_ms, signal, end);
      controller.signal.addEventListener("abort", () => void transfer.#reader?.cancel().catch(() => undefined));
      return transfer;
    } catch (error) {
      end();
      void answer.then(({ body }) => body?.cancel()).catch(() => undefined);
      throw error;
    }
  }

  /**
   * The next bytes of the body, undefined at its end. Rejects with a `Stall`, a `NoByteStream`, the abort's error,
   * or what the stream throws.
   */
  async next(): Promise<Uint8Array | undefined> {
    if (this.#reader === undefined) {
      throw new NoByteStream();
    }
    throwIfAborted(this.#signal);
    const { done, value } = await unlessLate(this.#reader.read(), this.#stallMs, this.#signal);
    throwIfAborted(this.#signal);
    if (!done && !(value instanceof Uint8Array)) {
      throw new NoByteStream();
    }
    return value;
  }

  /** Ends the connection, unless the body has been read to its end. */
  close(): void {
    this.#end();
  }
}

/** Resolves after `ms`, or rejects when the signal aborts. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  throwIfAborted(signal);
  await unlessLate(new Promise<never>(() => undefined), ms, signal).catch((error: unknown) => {
    if (!(error instanceof Stall)) {
      throw error;
    }
  });
}

/** Settles as `work` does, unless the signal aborts before, or `ms` pass. */
function unlessLate<T>(work: Promise<T>, ms: number, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const settle = (act: () => void): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
      act();
    };
    const onAbort = (): void => settle(() => reject(abortError()));
    const timer = setTimeout(() => settle(() => reject(new Stall())), ms);
    signal.addEventListener("abort", onAbort);
    work.then(
      (value) => settle(() => resolve(value)),
      (error: unknown) => settle(() => reject(error)),
    );
  });
}
