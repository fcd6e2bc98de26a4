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
  const length = response.headers.get("content-length") ?? "";
  return /^\d+$/.test(length) && !isEncoded(response) ? Number(length) : null;
}

export function isEncoded(response: Response): boolean {
  return !/^(identity)?$/i.test(response.headers.get("content-encoding") ?? "");
}

/**
 * Whether the answer may be encoded without showing it: the page may read the length that another site gives, but
 * not the encoding. Browsers ask for parts without an encoding, so this is about whole files.
 */
export function mayBeEncoded(response: Response): boolean {
  return response.type === "cors" && response.headers.get("content-encoding") === null;
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
 * machines that serve the same file may each have their own. A size that may be that of the compressed file counts
 * only where there is nothing better.
 */
export function differs(left: FileIdentity, right: FileIdentity, areSizesSure: boolean): boolean {
  const areSame =
    left.etag !== null && right.etag !== null
      ? opaque(left.etag) === opaque(right.etag)
      : agree(left.last_modified, right.last_modified);
  return areSame === false || (agree(left.bytes, right.bytes) === false && (areSizesSure || areSame === undefined));
}

/** Undefined where one of the two is not known. */
function agree<T>(left: T | null, right: T | null): boolean | undefined {
  return left === null || right === null ? undefined : left === right;
}

/**
 * An ETag without its mark of weakness. Many servers have only weak ones, and proxies weaken strong ones on the way: refusing
 * to compare them would make every resumption a new download. The hashes of the segments are behind this.
 */
function opaque(etag: string): string {
  return etag.replace(/^W\//, "");
}
