/**
 * What is known of each model file that is kept, wholly or in part: where it came from and which segments
 * have arrived. Kept in IndexedDB, whose transactions a closed page cannot leave half done.
 */

import { isCount, isHex, isRecord, isText } from "../shapes.js";
import type { StoreKind } from "../types.js";
import { settled, transact } from "./database.js";

/** What tells one version of a file from another. A server need not say all of it. */
export interface FileIdentity {
  /** Address behind all redirects, or a local file's name. */
  readonly url: string;
  readonly bytes: number | null;
  readonly etag: string | null;
  /** As the server writes it; of a local file in the form of ISO 8601, to the millisecond. */
  readonly last_modified: string | null;
}

/** A file of which only the address is known. */
export function unknownIdentity(url: string): FileIdentity {
  return { url, bytes: null, etag: null, last_modified: null };
}

/** A segment that has arrived. Segment `i` begins at `i * segment_bytes`. */
export interface SegmentRecord {
  readonly length: number;
  /** The key in the store. */
  readonly sha256: string;
  /** XXH3 of 128 bits, in hexadecimal: checked at each reading, since it takes a tenth of the time. */
  readonly checksum: string;
}

export interface FileManifest {
  /** The address that was asked for, or the name under which a local file is kept. */
  readonly id: string;
  /** The id of the model's first file. */
  readonly model: string;
  /** Which file of the model this is, from 0, and how many there are. */
  readonly part: number;
  readonly parts: number;
  /** The file's name, for people. */
  readonly name: string;
  readonly store: StoreKind;
  readonly identity: FileIdentity;
  readonly segment_bytes: number;
  /** By index; null where a segment has not arrived. May be shorter than the file as long as its size is unknown. */
  readonly segments: readonly (SegmentRecord | null)[];
  /** SHA-256 of the file, once all of it has been read in order. */
  readonly sha256: string | null;
  /** Milliseconds since 1970. */
  readonly created_at: number;
  readonly used_at: number;
}

/** The manifest of a file, if there is one. Rejects with a `StoreError` where the database refuses, as all of these do. */
export async function readManifest(id: string): Promise<FileManifest | undefined> {
  return known(await transact(["files"], "readonly", ({ files }) => settled(files.get(id))));
}

/** The manifests of all files, in the order of their ids. */
export async function allManifests(): Promise<FileManifest[]> {
  const records: unknown[] = await transact(["files"], "readonly", ({ files }) => settled(files.getAll()));
  return records.filter(isManifest);
}

/**
 * Replaces what is known of a file by what `change` makes of it, in one transaction: what another tab has recorded
 * meanwhile is in `now`. `change` leaves everything as it is by giving undefined. Resolves with what then is known.
 */
export function updateManifest(
  id: string,
  change: (now: FileManifest | undefined) => FileManifest | undefined,
): Promise<FileManifest | undefined> {
  return transact(["files"], "readwrite", async ({ files }) => {
    const now = known(await settled(files.get(id)));
    const next = change(now);
    if (next === undefined) {
      return now;
    }
    await settled(files.put(next, id));
    return next;
  });
}

/** Forgets a file. Its segments stay until they are collected (`library.ts`). */
export async function deleteManifest(id: string): Promise<void> {
  await transact(["files"], "readwrite", ({ files }) => settled(files.delete(id)));
}

/** Bytes of the file, or null as long as nobody knows. */
export function fileBytes({ identity, segments, segment_bytes, sha256 }: FileManifest): number | null {
  const last = segments.at(-1);
  if (identity.bytes !== null || sha256 === null || last === undefined || last === null) {
    return identity.bytes;
  }
  return (segments.length - 1) * segment_bytes + last.length;
}

/** Bytes of the file that have arrived. */
export function storedBytes({ segments }: FileManifest): number {
  return segments.reduce((sum, segment) => sum + (segment?.length ?? 0), 0);
}

function known(record: unknown): FileManifest | undefined {
  return isManifest(record) ? record : undefined;
}

/** Whether a record is one that this version has written. Any other is as good as none. */
function isManifest(value: unknown): value is FileManifest {
  return (
    isRecord(value) &&
    isText(value["id"]) &&
    isText(value["model"]) &&
    isCount(value["part"]) &&
    isCount(value["parts"]) &&
    value["part"] < value["parts"] &&
    isText(value["name"]) &&
    (value["store"] === "opfs" || value["store"] === "cache") &&
    isIdentity(value["identity"]) &&
    isCount(value["segment_bytes"]) &&
    value["segment_bytes"] > 0 &&
    areSegments(value["segments"], value["segment_bytes"], value["identity"].bytes) &&
    (value["sha256"] === null || isHex(value["sha256"], 64)) &&
    isCount(value["created_at"]) &&
    isCount(value["used_at"])
  );
}

function isIdentity(value: unknown): value is FileIdentity {
  return (
    isRecord(value) &&
    isText(value["url"]) &&
    (value["bytes"] === null || isCount(value["bytes"])) &&
    (value["etag"] === null || isText(value["etag"])) &&
    (value["last_modified"] === null || isText(value["last_modified"]))
  );
}

/** Whether every segment is as long as its place in the file wants. Of a file of unknown size the last may be shorter. */
function areSegments(value: unknown, segmentBytes: number, fileBytes: number | null): boolean {
  if (!Array.isArray(value)) {
    return false;
  }
  return value.every((segment: unknown, index) => {
    if (segment === null) {
      return true;
    }
    const left = fileBytes === null ? segmentBytes : fileBytes - index * segmentBytes;
    const length = Math.min(segmentBytes, left);
    const isShorter = fileBytes === null && index === value.length - 1;
    return isSegment(segment) && segment.length > 0 && (segment.length === length || (isShorter && segment.length < length));
  });
}

function isSegment(value: unknown): value is SegmentRecord {
  return isRecord(value) && isCount(value["length"]) && isHex(value["sha256"], 64) && isHex(value["checksum"], 32);
}
