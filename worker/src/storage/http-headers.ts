/** What the headers of an answer say of the file. A header that a foreign server does not expose reads as absent. */

import type { FileIdentity } from "./manifests.js";

/** Which bytes an answer has: from `start` to before `end`, of `total`. */
export interface ContentRange {
  readonly start: number;
  readonly end: number;
  readonly total: number | null;
}

/** The value of `Range` for the bytes from `start` to before `end`. Servers need not ask a page for permission to send these forms. */
export function rangeHeader(start: number, end: number | undefined): string {
  return `bytes=${start}-${end === undefined ? "" : end - 1}`;
}

/** Undefined where the header is absent or hidden, null where it makes no sense. */
export function contentRange(response: Response): ContentRange | null | undefined {
  const header = response.headers.get("content-range");
  if (header === null) {
    return undefined;
  }
  const match = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(header.trim());
  if (match === null) {
    return null;
  }
  const total = match[3] === "*" ? null : Number(match[3]);
  return { start: Number(match[1]), end: Number(match[2]) + 1, total };
}

/** The file's size as told by the refusal of a range behind its end. */
export function totalOfRefusal(response: Response): number | null {
  const match = /^bytes \*\/(\d+)$/.exec(response.headers.get("content-range")?.trim() ?? "");
  return match === null ? null : Number(match[1]);
}

/** Bytes of the body. With a content encoding the header counts the compressed bytes, not the file's. */
export function contentLength(response: Response): number | null {
  const length = response.headers.get("content-length");
  return length === null || isEncoded(response) ? null : Number(length);
}

export function isEncoded(response: Response): boolean {
  return !/^(identity)?$/i.test(response.headers.get("content-encoding") ?? "");
}

/** Milliseconds that the server asks to wait, or 0. */
export function retryAfter(response: Response): number {
  const seconds = response.headers.get("retry-after") ?? "";
  return /^\d+$/.test(seconds) ? Number(seconds) * 1000 : 0;
}

/** The identity that a successful answer tells of, given the file's size. The ETag of compressed bytes is not the file's. */
export function identityOf(response: Response, asked: string, bytes: number | null): FileIdentity {
  return {
    url: response.url === "" ? asked : response.url,
    bytes,
    etag: isEncoded(response) ? null : response.headers.get("etag"),
    last_modified: response.headers.get("last-modified"),
  };
}

/**
 * Whether two identities are of different files. What one of them does not know never differs, and addresses
 * do not count, since a signed one is another each time. The date counts where no two ETags can be compared:
 * machines that serve the same file may each have their own.
 */
export function differs(left: FileIdentity, right: FileIdentity): boolean {
  const isOther = <T>(one: T | null, other: T | null): boolean => one !== null && other !== null && one !== other;
  if (isOther(left.bytes, right.bytes)) {
    return true;
  }
  return left.etag !== null && right.etag !== null
    ? opaque(left.etag) !== opaque(right.etag)
    : isOther(left.last_modified, right.last_modified);
}

/**
 * An ETag without its mark of weakness. Many servers have only weak ones, and proxies weaken strong ones on the way: refusing
 * to compare them would make every resumption a new download. The hashes of the segments are behind this.
 */
function opaque(etag: string): string {
  return etag.replace(/^W\//, "");
}

/** What is known after another answer about the same file. */
export function merged(known: FileIdentity | undefined, now: FileIdentity): FileIdentity {
  return {
    url: now.url,
    bytes: known?.bytes ?? now.bytes,
    etag: known?.etag ?? now.etag,
    last_modified: known?.last_modified ?? now.last_modified,
  };
}
