import type { Checksum } from "../storage/hashes.js";
import type { ChunkSource, SnapshotManifest } from "./snapshot.js";

/** What is told of a saved snapshot without reading its manifest. */
export interface SnapshotInfo {
  readonly id: string;
  /** The model it belongs to: `fingerprint.model`. */
  readonly model: string;
  readonly tokens: number;
  /** Of its chunks; some may belong to other snapshots as well. */
  readonly bytes: number;
  readonly is_named: boolean;
  /** Milliseconds since 1970. */
  readonly saved_at: number;
  readonly used_at: number;
  /** What the page keeps with the session; undefined where there is nothing. */
  readonly data: unknown;
}

/** A snapshot as the database has it, without its chunks. */
export interface SnapshotRecord extends Omit<SnapshotInfo, "tokens" | "model"> {
  readonly manifest: SnapshotManifest;
}

/** A snapshot that is to be saved. Without `data` the session keeps what it had. */
export type SnapshotToSave = Pick<SnapshotRecord, "id" | "manifest" | "is_named"> & { readonly data?: unknown };

export interface SaveOptions {
  /** Bytes that all saved chunks may take. Without it the browser's quota is the only limit. */
  readonly budgetBytes?: number;
  readonly signal?: AbortSignal | undefined;
}

/** What a save did. */
export interface Saved {
  readonly saved: SnapshotInfo;
  /** The snapshots that went to stay within the budget. */
  readonly evicted: readonly SnapshotInfo[];
}

export interface SnapshotUsage {
  readonly snapshots: number;
  /** Of all chunks; one that several snapshots share counts once. */
  readonly bytes: number;
}

export interface SnapshotStore {
  /**
   * Keeps a snapshot in place of the one with the same id. Asks `chunk` for those chunks alone that are not kept yet,
   * one at a time, and checks them. The snapshot is replaced in one step at the end: until then, and where this is
   * ended half way or rejects, the one before stays whole. Where all snapshots would exceed the budget, those without a
   * name go first, then those with one, the least recently used before the others, in the same step.
   *
   * Rejects with `storage_full` (the browser's quota, or a snapshot larger than the budget), `storage_unavailable`,
   * `snapshot_corrupt` (a chunk is not what its digest says), as aborts do, or as `chunk` does.
   */
  save(snapshot: SnapshotToSave, chunk: ChunkSource, options?: SaveOptions): Promise<Saved>;
  /** The snapshot with that id, if there is one. */
  read(id: string): Promise<SnapshotRecord | undefined>;
  /** A chunk. Rejects with `snapshot_corrupt` where it is missing or not what its digest says; the next save then writes it again. */
  chunk(digest: string): Promise<Uint8Array<ArrayBuffer>>;
  /**
   * Runs `act` while no tab replaces or deletes a snapshot: for reading one, from its record to its last chunk. `act`
   * must not call `save`, `delete` or `collect`, which would wait for it.
   */
  whileReading<T>(act: () => Promise<T>, signal?: AbortSignal): Promise<T>;
  /** Notes that a snapshot was used now. One that is not there is no error. */
  touch(id: string): Promise<void>;
  /** All snapshots; the one that was used last comes first. */
  list(): Promise<SnapshotInfo[]>;
  /** Forgets a snapshot and the chunks that belong to no other. Resolves with whether it was there. */
  delete(id: string): Promise<boolean>;
  /** Removes chunks that belong to no snapshot, such as those of a save that was ended half way. Gives their number. */
  collect(): Promise<number>;
  usage(): Promise<SnapshotUsage>;
}

/** The store in the database `signbit`; `checksum` is the wasm module's. All of it rejects with an `EngineError`. */
export declare function openSnapshotStore(checksum: Checksum): SnapshotStore;
