/**
 * What the engine's worker and the storage worker say to each other. A call has an id and is answered by one
 * `result` or `error` with the same id. A file's bytes come through a port of their own (`PartRequest`,
 * `PartMessage`): each `pull` lets one more piece come, and gives back the memory of one that was used.
 */

import type { SerializedError } from "../errors.js";
import type { SourceParts } from "../protocol.js";
import type { ModelInfo, StorageNotice, StorageUsage, StoredModel, StoreKind, Verification } from "../types.js";

/** How the storage worker works, for as long as it lives. */
export interface StorageOptions {
  /** Where to keep files. `auto` is OPFS where that works and is not clearly slower than the cache. */
  readonly store: "auto" | StoreKind | "none";
  readonly segment_bytes?: number;
  readonly stall_ms?: number;
  readonly attempts?: number;
  readonly backoff_ms?: number;
}

/** A model about to be read. */
export interface OpenParams {
  readonly source: SourceParts;
  /** SHA-256 that the files must have, in order. */
  readonly sha256?: readonly string[];
  /** Whether to keep the files. Files from addresses are kept unless this is false, local ones if it is true. */
  readonly keep?: boolean;
}

export interface OpenedModel {
  /** Bytes of each file where they are known. */
  readonly bytes: readonly (number | null)[];
  /** The model's digest, where the bytes on this machine are known to be those it was computed from. */
  readonly digest: string | null;
}

export interface StorageMethods {
  open: { params: OpenParams; result: OpenedModel };
  /** Reads a file of the opened model from its start, through `port`. */
  read: { params: { readonly part: number; readonly port: MessagePort }; result: null };
  /** All files have been read to their ends, and the engine has made this model of them. */
  finish: { params: { readonly digest: string }; result: Pick<ModelInfo, "files" | "storage"> };
  /** The engine can do nothing with the opened model: what is kept of it is forgotten. */
  discard: { params: null; result: null };
  list: { params: null; result: readonly StoredModel[] };
  verify: { params: { readonly id: string }; result: Verification };
  delete: { params: { readonly id: string }; result: null };
  usage: { params: null; result: StorageUsage };
}

export type StorageMethod = keyof StorageMethods;
export type StorageCall<M extends StorageMethod> = {
  readonly type: "call";
  readonly id: number;
  readonly method: M;
  readonly params: StorageMethods[M]["params"];
};

export type StorageRequest =
  | {
      readonly type: "init";
      readonly module: WebAssembly.Module;
      readonly options: StorageOptions;
      /** Where a `fetch` of the page's own is served (`remote-fetch.ts`). */
      readonly fetch_port: MessagePort | null;
    }
  | { readonly [M in StorageMethod]: StorageCall<M> }[StorageMethod]
  /** Ends the call with this id, if it is not over. */
  | { readonly type: "abort"; readonly id: number };

export type StorageResponse =
  | { readonly type: "result"; readonly id: number; readonly value: StorageMethods[StorageMethod]["result"] }
  | { readonly type: "error"; readonly id: number; readonly error: SerializedError }
  | { readonly type: "notice"; readonly notice: StorageNotice };

/** From the reader of a file. */
export type PartRequest =
  | { readonly type: "pull"; readonly buffer: ArrayBuffer | null }
  | { readonly type: "cancel" };

/** Bytes of a file, or word of another tab that downloads it. */
export type PartEvent =
  | {
      readonly type: "piece";
      readonly bytes: Uint8Array<ArrayBuffer>;
      /** Size of the file where it is known. */
      readonly file_bytes: number | null;
      /** Whether they were on this machine already. */
      readonly is_local: boolean;
    }
  | { readonly type: "waiting"; readonly bytes_seen: number; readonly file_bytes: number | null };

/** To the reader of a file. */
export type PartMessage =
  | PartEvent
  | { readonly type: "end" }
  /** With `has_changed` the file is another than the one whose reading began; it must be read from its start. */
  | { readonly type: "failed"; readonly error: SerializedError; readonly has_changed: boolean };
