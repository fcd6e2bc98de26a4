/** What can be wrong with a download, in words. */

import { EngineError } from "../errors.js";

/** An address for messages: without the query and the credentials, which may be secrets. */
export function shownUrl(url: string): string {
  return url.replace(/[?#].*$/s, "").replace(/^([a-z][a-z0-9+.-]*:\/\/)[^/]*@/i, "$1");
}

/** The commonest wrong "model": a login, consent or error page under the model's address. */
export function looksLikeHtml(bytes: Uint8Array): boolean {
  const start = new TextDecoder().decode(bytes.subarray(0, 64)).trimStart().toLowerCase();
  return start.startsWith("<!doctype") || start.startsWith("<html");
}

export function notAModel(url: string): EngineError {
  return new EngineError("weights_invalid", {
    detail: `${shownUrl(url)} is a web page, not a model`,
    hint: "Use the address of the GGUF file itself; on a model site that is the download link.",
  });
}

export function unreachable(url: string, cause: unknown): EngineError {
  return new EngineError("network", {
    detail: `${shownUrl(url)} could not be reached`,
    hint: "Check the address and the connection. The server must also allow other sites to read the file (CORS).",
    cause,
  });
}

/** `seen` is how many bytes of the file have been passed on, or lie before what was asked for. */
export function brokeOff(url: string, seen: number, cause?: unknown): EngineError {
  return new EngineError("network", { detail: `the download of ${shownUrl(url)} broke off after ${seen} bytes`, cause });
}

export function stalled(url: string, seen: number, ms: number): EngineError {
  return new EngineError("network", {
    detail: `the download of ${shownUrl(url)} stood still for ${ms / 1000} s after ${seen} bytes`,
  });
}

/** A status that says no. `hasBegun`: the same address has answered before. */
export function refused(url: string, response: Response, hasBegun: boolean): EngineError {
  const mayHaveExpired = hasBegun && [401, 403, 404, 410].includes(response.status);
  return new EngineError("network", {
    detail: `${shownUrl(url)} answered ${response.status} ${response.statusText}`.trim(),
    hint: mayHaveExpired
      ? "The address may have expired. What has arrived is kept: load the model again with a fresh address."
      : undefined,
  });
}

/** A part where the whole was asked for: some cache on the way has mixed up its answers. */
export function unaskedPart(url: string): EngineError {
  return new EngineError("network", {
    detail: `${shownUrl(url)} answered with a part of the file, and the whole was asked for`,
  });
}

/** An answer that no browser gives, but a custom `fetch` may. */
export function noByteStream(url: string): EngineError {
  return new EngineError("invalid_request", {
    detail: `the answer for ${shownUrl(url)} has no stream of bytes`,
    hint: "A custom fetch must resolve to a Response whose body is a stream of Uint8Array.",
  });
}
