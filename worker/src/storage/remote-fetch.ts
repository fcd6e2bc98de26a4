/**
 * A page's own `fetch`, called from a worker. Functions cannot be sent to a worker, and not every browser can send a
 * stream, so the body goes over a `MessagePort` piece by piece, each when it is asked for.
 */

import { abortError } from "../errors.js";

/** Worker to page. */
type ToPage =
  | { readonly type: "request"; readonly id: number; readonly url: string; readonly init: RemoteInit }
  /** Asks for one piece of the body. */
  | { readonly type: "pull"; readonly id: number }
  /** The request is over, wherever it stands. Has no answer. */
  | { readonly type: "cancel"; readonly id: number };

/** Page to worker. Each `pull` is answered with one `piece`, `end` or `error`, a request with `response` or `error`. */
type ToWorker =
  | { readonly type: "response"; readonly id: number; readonly head: RemoteHead }
  | { readonly type: "piece"; readonly id: number; readonly bytes: Uint8Array<ArrayBuffer> }
  | { readonly type: "end"; readonly id: number }
  | { readonly type: "error"; readonly id: number; readonly name: string; readonly message: string };

interface RemoteInit {
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly cache: RequestCache;
  readonly credentials: RequestCredentials;
  readonly redirect: RequestRedirect;
}

interface RemoteHead {
  readonly status: number;
  readonly status_text: string;
  readonly url: string;
  readonly type: ResponseType;
  readonly headers: readonly (readonly [name: string, value: string])[];
  readonly has_body: boolean;
}

/** On the page: answers what comes over the port with `fetch`. */
export function serveFetch(port: MessagePort, fetch: typeof globalThis.fetch): void {
  const requests = new Map<number, ServedRequest>();
  port.onmessage = ({ data }: MessageEvent<ToPage>) => {
    switch (data.type) {
      case "request":
        requests.set(data.id, new ServedRequest(port, data.id, fetch, data.url, data.init, () => requests.delete(data.id)));
        return;
      case "pull":
        void requests.get(data.id)?.pull();
        return;
      case "cancel":
        requests.get(data.id)?.cancel();
        return;
    }
  };
}

/** A request of the worker's, on the page. */
class ServedRequest {
  readonly #port: MessagePort;
  readonly #id: number;
  readonly #onEnd: () => void;
  readonly #controller = new AbortController();
  #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;

  constructor(port: MessagePort, id: number, fetch: typeof globalThis.fetch, url: string, init: RemoteInit, onEnd: () => void) {
    this.#port = port;
    this.#id = id;
    this.#onEnd = onEnd;
    void this.#begin(fetch, url, init);
  }

  async #begin(fetch: typeof globalThis.fetch, url: string, init: RemoteInit): Promise<void> {
    const { signal } = this.#controller;
    try {
      const response = await fetch(url, { ...init, signal });
      if (signal.aborted) {
        await response.body?.cancel();
        return;
      }
      this.#reader = response.body?.getReader();
      this.#send({ type: "response", id: this.#id, head: headOf(response) });
    } catch (error) {
      this.#fail(error);
    }
  }

  async pull(): Promise<void> {
    try {
      const next = await this.#reader?.read();
      if (next === undefined || next.done) {
        this.#send({ type: "end", id: this.#id });
        this.#onEnd();
        return;
      }
      if (!(next.value instanceof Uint8Array)) {
        throw new TypeError("the body is not a stream of bytes");
      }
      // A copy: what the stream gives may be part of something that its owner keeps.
      const bytes = next.value.slice();
      this.#send({ type: "piece", id: this.#id, bytes }, [bytes.buffer]);
    } catch (error) {
      this.#fail(error);
    }
  }

  cancel(): void {
    this.#controller.abort();
    this.#reader?.cancel().catch(() => undefined);
    this.#onEnd();
  }

  #fail(error: unknown): void {
    this.cancel();
    const isError = error instanceof Error || error instanceof DOMException;
    this.#send({
      type: "error",
      id: this.#id,
      name: isError ? error.name : "Error",
      message: isError ? error.message : String(error),
    });
  }

  #send(message: ToWorker, transfer: Transferable[] = []): void {
    this.#port.postMessage(message, transfer);
  }
}

function headOf(response: Response): RemoteHead {
  return {
    status: response.status,
    status_text: response.statusText,
    url: response.url,
    type: response.type,
    headers: [...response.headers],
    has_body: response.body !== null,
  };
}

/** In the worker: a `fetch` of GET and HEAD that is carried out by the page at the other end of the port. */
export function connectFetch(port: MessagePort): typeof fetch {
  const requests = new Map<number, RemoteRequest>();
  let lastId = 0;
  port.onmessage = ({ data }: MessageEvent<ToWorker>) => requests.get(data.id)?.settle(data);

  return async (input, init) => {
    const request = new Request(input, init);
    const { url, method, headers, cache, credentials, redirect } = request;
    const signal = init?.signal ?? request.signal;
    if (method !== "GET" && method !== "HEAD") {
      throw new TypeError(`${method} cannot be asked of the page`);
    }
    if (signal.aborted) {
      throw abortError();
    }
    lastId += 1;
    const id = lastId;
    const remote = new RemoteRequest(port, id, signal, () => requests.delete(id));
    requests.set(id, remote);
    return remote.begin(url, { method, headers: Object.fromEntries(headers), cache, credentials, redirect });
  };
}

/** A request in the worker, carried out on the page. */
class RemoteRequest {
  readonly #port: MessagePort;
  readonly #id: number;
  readonly #signal: AbortSignal;
  readonly #onEnd: () => void;
  readonly #onAbort = (): void => this.#cancel();
  /** Of the message that has not been answered yet. */
  #waiting: { resolve(answer: ToWorker): void; reject(error: Error): void } | undefined;

  constructor(port: MessagePort, id: number, signal: AbortSignal, onEnd: () => void) {
    this.#port = port;
    this.#id = id;
    this.#signal = signal;
    this.#onEnd = onEnd;
    signal.addEventListener("abort", this.#onAbort, { once: true });
  }

  async begin(url: string, init: RemoteInit): Promise<Response> {
    const answer = await this.#ask({ type: "request", id: this.#id, url, init });
    if (answer.type !== "response") {
      throw new TypeError(`the page answered a request with ${answer.type}`);
    }
    try {
      return this.#response(answer.head);
    } catch (error) {
      // Not every answer can be made again, such as one that the browser hides from the page.
      this.#cancel();
      throw error;
    }
  }

  #response({ status, status_text, url, type, headers, has_body }: RemoteHead): Response {
    if (!has_body) {
      this.#end();
    }
    const response = new Response(has_body ? this.#body() : null, {
      status,
      statusText: status_text,
      headers: headers.map(([name, value]): [string, string] => [name, value]),
    });
    // A response that a script makes has neither of its own.
    return Object.defineProperties(response, { url: { value: url }, type: { value: type } });
  }

  /** Takes the answer to the last message. */
  settle(answer: ToWorker): void {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    if (answer.type === "error") {
      this.#end();
      waiting?.reject(errorOf(answer.name, answer.message));
    } else {
      waiting?.resolve(answer);
    }
  }

  #body(): ReadableStream<Uint8Array<ArrayBuffer>> {
    return new ReadableStream(
      {
        pull: async (controller) => {
          const answer = await this.#ask({ type: "pull", id: this.#id });
          if (answer.type === "piece") {
            controller.enqueue(answer.bytes);
          } else {
            this.#end();
            controller.close();
          }
        },
        cancel: () => this.#cancel(),
      },
      // Nothing is asked for before it is read.
      { highWaterMark: 0 },
    );
  }

  #ask(message: ToPage): Promise<ToWorker> {
    return new Promise((resolve, reject) => {
      if (this.#signal.aborted) {
        reject(abortError());
        return;
      }
      this.#waiting = { resolve, reject };
      this.#port.postMessage(message);
    });
  }

  #cancel(): void {
    this.#port.postMessage({ type: "cancel", id: this.#id } satisfies ToPage);
    this.#end();
    this.#waiting?.reject(abortError());
  }

  #end(): void {
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.#onEnd();
  }
}

function errorOf(name: string, message: string): Error {
  switch (name) {
    case "AbortError":
      return abortError();
    case "TypeError":
      return new TypeError(message);
    default:
      return Object.assign(new Error(message), { name });
  }
}
