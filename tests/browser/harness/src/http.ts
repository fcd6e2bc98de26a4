/** Reads files over HTTP as the storage worker does, but in the page, and says how that went. */

import { EngineError } from "../../../../worker/dist/errors.js";
import { HttpFile, SourceChanged, type HttpOptions } from "../../../../worker/dist/storage/http-file.js";
import type { FileIdentity } from "../../../../worker/dist/storage/manifests.js";
import { connectFetch, serveFetch } from "../../../../worker/dist/storage/remote-fetch.js";

export interface ReadOptions extends HttpOptions {
  readonly start?: number;
  readonly end?: number;
  readonly known?: FileIdentity;
  /** After so many bytes the reader leaves, or aborts, instead of reading on. */
  readonly leave_at?: number;
  readonly abort_at?: number;
}

export interface Failure {
  readonly name: string;
  readonly code: string | null;
  readonly message: string;
  readonly hint: string | null;
  readonly cause: string | null;
  /** Of a source that has changed. */
  readonly now: FileIdentity | null;
}

export interface ReadOutcome {
  readonly bytes: number;
  /** Whether they are the bytes of the original from `start` on. */
  readonly is_true: boolean;
  readonly identity: FileIdentity | null;
  readonly failure: Failure | null;
}

/** Quick to try again; as patient as tests on a busy machine need to be. */
const OPTIONS = { backoff_ms: 10, stall_ms: 20_000 };

async function read(url: string, original: string, options: ReadOptions = {}): Promise<ReadOutcome> {
  const { start = 0, end, known, leave_at = Infinity, abort_at = Infinity } = options;
  const file = new HttpFile(url, { ...OPTIONS, ...options }, known);
  const truth = new Uint8Array(await (await fetch(original)).arrayBuffer());
  const controller = new AbortController();
  let position = start;
  let isTrue = true;
  const outcome = (failure: Failure | null): ReadOutcome => ({
    bytes: position - start,
    is_true: isTrue,
    identity: file.identity ?? null,
    failure,
  });
  try {
    for await (const piece of file.read(start, end, controller.signal)) {
      isTrue &&= piece.every((byte, index) => byte === truth[position + index]);
      position += piece.length;
      if (position - start >= leave_at) {
        break;
      }
      if (position - start >= abort_at) {
        controller.abort();
      }
    }
    return outcome(null);
  } catch (error) {
    return outcome(failureOf(error));
  }
}

async function probe(url: string, options: ReadOptions = {}): Promise<ReadOutcome> {
  const file = new HttpFile(url, { ...OPTIONS, ...options }, options.known);
  const outcome = { bytes: 0, is_true: true };
  try {
    return { ...outcome, identity: await file.probe(new AbortController().signal), failure: null };
  } catch (error) {
    return { ...outcome, identity: file.identity ?? null, failure: failureOf(error) };
  }
}

/** A `fetch` that goes over a port to the given one, as from a worker to its page. */
function remote(fetch: typeof globalThis.fetch): typeof globalThis.fetch {
  const { port1, port2 } = new MessageChannel();
  serveFetch(port1, fetch);
  return connectFetch(port2);
}

function failureOf(error: unknown): Failure {
  const isEngine = error instanceof EngineError;
  const isError = error instanceof Error || error instanceof DOMException;
  return {
    name: isError ? error.name : typeof error,
    code: isEngine ? error.code : null,
    message: isError ? error.message : String(error),
    hint: isEngine ? error.hint : null,
    cause: isError && error.cause !== undefined ? String(error.cause) : null,
    now: error instanceof SourceChanged ? error.now : null,
  };
}

export const http = { HttpFile, failureOf, probe, read, remote };
