import type { ChunkSource, SnapshotManifest } from "./snapshot.js";

/** A snapshot in a file. */
export interface UnpackedArchive {
  readonly manifest: SnapshotManifest;
  /** Undefined where there is none. */
  readonly data: unknown;
  /** All chunks of the manifest, each as long as that says and otherwise unchecked; still in the file. */
  readonly chunks: ReadonlyMap<string, Blob>;
}

/** Packs a snapshot, a chunk at a time. `invalid_request` where `data` cannot be written as JSON, and rejects as `chunk` does. */
export declare function packArchive(manifest: SnapshotManifest, data: unknown, chunk: ChunkSource): Promise<Blob>;

/** Reads an archive without trusting it. Rejects with `snapshot_corrupt`. */
export declare function unpackArchive(file: Blob): Promise<UnpackedArchive>;
