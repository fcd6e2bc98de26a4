/**
 * What is known of each model file that is kept, wholly or in part: where it came from and which segments
 * have arrived. Kept in IndexedDB, whose transactions a closed page cannot leave half done.
 */

import type { StoreKind } from "../types.js";

/** What tells one version of a file from another. A server need not say all of it. */
export interface FileIdentity {
  /** Address behind all redirects, or a local file's name. */
  readonly url: string;
  readonly bytes: number | null;
  readonly etag: string | null;
  /** Of the server, or of a local file, as an HTTP date. */
  readonly last_modified: string | null;
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
