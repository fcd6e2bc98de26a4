/**
 * Where a model's bytes come from: an address or a local file, whole or split into parts. Every
 * source is read as a stream; no file is ever held in one buffer. A store of downloaded weights
 * would sit here, as one more way to open a part.
 */

import { abortError, EngineError } from "./errors.js";
import type { SourceParts } from "./protocol.js";

/** One GGUF file, opened for reading once from the start. */
export interface ModelPart {
  /** Address or file name, for messages. */
  readonly name: string;
  /** Size of the file where it is known before it is read. */
  readonly bytes: number | undefined;
  /** The file in order, in pieces of any size. */
  read(): AsyncGenerator<Uint8Array, void, void>;
  /** Ends the transfer of a file that will not be read. */
  close(): Promise<void>;
}

/** Opens the parts of a model one after the other, each when its turn comes. */
export interface ModelSource {
  readonly parts: number;
  /** Bytes of all parts where known before the first is opened. */
  readonly bytes: number | undefined;
  open(index: number, signal: AbortSignal): Promise<ModelPart>;
}

const SPLIT_NAME = /-(\d{5})-of-(\d{5})(\.gguf)$/i;

/** Puts the parts of a model in order and finds out which belong to it. */
export function openSource(source: SourceParts): ModelSource {
  switch (source.kind) {
    case "urls": {
      const urls = source.urls.length === 1 ? source.urls.flatMap(splitUrls) : source.urls;
      requireParts(urls.length);
      return { parts: urls.length, bytes: undefined, open: (index, signal) => openUrl(at(urls, index), signal) };
    }
    case "blobs": {
      requireParts(source.blobs.length);
      const blobs = orderedBlobs(source.blobs);
      const bytes = blobs.reduce((sum, { blob }) => sum + blob.size, 0);
      return {
        parts: blobs.length,
        bytes,
        open: async (index, signal) => {
          const { name, blob } = at(blobs, index);
          return {
            name,
            bytes: blob.size,
            read: () => readStream(name, blob.stream(), blob.size, signal, "file"),
            close: () => Promise.resolve(),
          };
        },
      };
    }
  }
}

function requireParts(count: number): void {
  if (count === 0) {
    throw new EngineError("invalid_request", { detail: "no model file was given" });
  }
}

function at<T>(items: readonly T[], index: number): T {
  const item = items[index];
  if (item === undefined) {
    throw new EngineError("invalid_request", { detail: `the model has no part ${index + 1}` });
  }
  return item;
}

/** All addresses of a split model from the address of its first part, or the one address. */
function splitUrls(url: string): string[] {
  const { origin, pathname, search } = new URL(url);
  const match = SPLIT_NAME.exec(pathname);
  const count = Number(match?.[2] ?? 1);
  if (match === null || count < 2) {
    return [url];
  }
  const stem = pathname.slice(0, match.index);
  return Array.from(
    { length: count },
    (_, index) => `${origin}${stem}-${padded(index + 1)}-of-${padded(count)}${match[3] ?? ""}${search}`,
  );
}

function padded(value: number): string {
  return String(value).padStart(5, "0");
}

/** The files of a split model in order; a missing or a foreign one is refused by name. */
function orderedBlobs<T extends { readonly name: string }>(blobs: readonly T[]): readonly T[] {
  if (blobs.length === 1) {
    return blobs;
  }
  const byIndex = new Map<number, T>();
  for (const blob of blobs) {
    const match = SPLIT_NAME.exec(blob.name);
    if (match === null || Number(match[2]) !== blobs.length) {
      throw new EngineError("weights_invalid", {
        detail: `${blob.name} is not one of ${blobs.length} parts of a split model`,
        hint: "Choose one GGUF file, or all parts of one split model together.",
      });
    }
    byIndex.set(Number(match[1]), blob);
  }
  return blobs.map((_, index) => {
    const blob = byIndex.get(index + 1);
    if (blob === undefined) {
      throw new EngineError("weights_invalid", { detail: `part ${index + 1} of ${blobs.length} is missing` });
    }
    return blob;
  });
}

async function openUrl(url: string, signal: AbortSignal): Promise<ModelPart> {
  let response: Response;
  try {
    response = await fetch(url, { signal });
  } catch (cause) {
    throw signal.aborted ? abortError() : unreachable(url, cause);
  }
  if (!response.ok) {
    await response.body?.cancel();
    throw new EngineError("network", { detail: `${url} answered ${response.status} ${response.statusText}`.trim() });
  }
  const type = response.headers.get("content-type") ?? "";
  if (/^text\/html\b/i.test(type) || response.body === null) {
    await response.body?.cancel();
    throw notAModel(url);
  }
  // With a content encoding the header counts the compressed bytes, not the file's.
  const length = response.headers.get("content-encoding") === null ? response.headers.get("content-length") : null;
  const bytes = length === null ? undefined : Number(length);
  const body = response.body;
  return {
    name: url,
    bytes,
    read: () => readStream(url, body, bytes, signal, "network"),
    close: () => body.cancel().catch(() => undefined),
  };
}

async function* readStream(
  name: string,
  stream: ReadableStream<Uint8Array>,
  expectedBytes: number | undefined,
  signal: AbortSignal,
  origin: "network" | "file",
): AsyncGenerator<Uint8Array, void, void> {
  const reader = stream.getReader();
  // The reader of a local file knows nothing of the signal.
  const cancel = (): void => void reader.cancel().catch(() => undefined);
  signal.addEventListener("abort", cancel, { once: true });
  let seen = 0;
  try {
    for (;;) {
      let next: ReadableStreamReadResult<Uint8Array>;
      try {
        next = await reader.read();
      } catch (cause) {
        throw signal.aborted ? abortError() : readFailure(name, origin, seen, cause);
      }
      if (signal.aborted) {
        throw abortError();
      }
      if (next.done) {
        break;
      }
      if (seen === 0 && looksLikeHtml(next.value)) {
        throw notAModel(name);
      }
      seen += next.value.length;
      yield next.value;
    }
  } finally {
    signal.removeEventListener("abort", cancel);
    cancel();
  }
  if (expectedBytes !== undefined && seen < expectedBytes) {
    throw readFailure(name, origin, seen, undefined);
  }
}

/** The commonest wrong "model": a login, consent or error page under the model's address. */
function looksLikeHtml(bytes: Uint8Array): boolean {
  const start = new TextDecoder().decode(bytes.subarray(0, 64)).trimStart().toLowerCase();
  return start.startsWith("<!doctype") || start.startsWith("<html");
}

function notAModel(name: string): EngineError {
  return new EngineError("weights_invalid", {
    detail: `${name} is a web page, not a model`,
    hint: "Use the address of the GGUF file itself; on a model site that is the download link.",
  });
}

function unreachable(url: string, cause: unknown): EngineError {
  return new EngineError("network", {
    detail: `${url} could not be reached`,
    hint: "Check the address and the connection. The server must also allow other sites to read the file (CORS).",
    cause,
  });
}

function readFailure(name: string, origin: "network" | "file", seen: number, cause: unknown): EngineError {
  return origin === "network"
    ? new EngineError("network", { detail: `the download of ${name} broke off after ${seen} bytes`, cause })
    : new EngineError("weights_invalid", {
        detail: `${name} could not be read beyond ${seen} bytes`,
        hint: "The file may have changed or gone since it was chosen. Choose it again.",
        cause,
      });
}
