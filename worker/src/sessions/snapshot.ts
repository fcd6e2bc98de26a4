/**
 * What a session is when it is not on the device: a manifest, and chunks of bytes that the manifest names by their
 * digests. The engine makes both and checks what they mean; everything here only carries them.
 */

import { EngineError } from "../errors.js";
import { isCount, isHex, isRecord, isText } from "../shapes.js";

/** A piece of one part of a session's caches. */
export interface SnapshotChunk {
  /** The cache rows of these tokens, or the recurrent state after so many. */
  readonly part: { readonly rows: readonly [from: number, to: number] } | { readonly state: number };
  /** Where the piece begins in its part, in bytes. */
  readonly offset: number;
  readonly bytes: number;
  /** XXH3 of 128 bits, in hexadecimal. */
  readonly digest: string;
}

/** A snapshot without its chunks. The same in memory, in the database and in a file. */
export interface SnapshotManifest {
  readonly format: number;
  /** What has to be equal where the snapshot is restored. */
  readonly fingerprint: { readonly model: string; readonly [property: string]: unknown };
  /** Which device computed it: for information. */
  readonly computed_by: unknown;
  /** The tokens that the caches hold. */
  readonly ids: readonly number[];
  /** A token that was sampled and not read. */
  readonly pending: number | null;
  /** The tokens whose rows were dropped, as indices of `ids`. */
  readonly dropped: readonly [from: number, to: number] | null;
  readonly turns: readonly unknown[];
  /** Where the last turn that is not the model's begins: a prompt that leaves the session there replaces what follows. */
  readonly last_turn: number;
  /** Lengths to which the session can go back, ascending. */
  readonly checkpoints: readonly number[];
  readonly chunk_bytes: number;
  readonly chunks: readonly SnapshotChunk[];
  /** Of the manifest without this field. */
  readonly digest: string;
}

/** The least and the most bytes that a chunk may be allowed, in steps of a number's 4 bytes. */
export const MIN_CHUNK_BYTES = 4096;
export const MAX_CHUNK_BYTES = 16_000_000;

/** Gives the bytes of the chunk with a digest. */
export type ChunkSource = (digest: string) => Promise<Blob | ArrayBuffer | Uint8Array>;

/** What a source has given, as bytes. Rejects with `snapshot_corrupt` where it is in a file that can no longer be read. */
export async function readBytes(given: Blob | ArrayBuffer | Uint8Array): Promise<Uint8Array> {
  if (given instanceof Uint8Array) {
    return given;
  }
  if (given instanceof ArrayBuffer) {
    return new Uint8Array(given);
  }
  try {
    return new Uint8Array(await given.arrayBuffer());
  } catch (cause) {
    throw new EngineError("snapshot_corrupt", { detail: `its file cannot be read: ${String(cause)}`, cause });
  }
}

/** The bytes of each chunk by its digest. What a manifest names twice is there once. */
export function chunkSizes({ chunks }: Pick<SnapshotManifest, "chunks">): Map<string, number> {
  return new Map(chunks.map(({ digest, bytes }) => [digest, bytes]));
}

/** Bytes of all chunks. */
export function snapshotBytes(manifest: SnapshotManifest): number {
  return sum(chunkSizes(manifest).values());
}

export function sum(numbers: Iterable<number>): number {
  let total = 0;
  for (const number of numbers) {
    total += number;
  }
  return total;
}

/**
 * Whether `value` can be carried as a manifest: it has the fields that are read here, and names every chunk by a
 * digest, always with the same length. Whether it means anything is for the engine to say.
 */
export function isSnapshotManifest(value: unknown): value is SnapshotManifest {
  return (
    isRecord(value) &&
    isCount(value["format"]) &&
    isRecord(value["fingerprint"]) &&
    isText(value["fingerprint"]["model"]) &&
    Array.isArray(value["ids"]) &&
    value["ids"].every(isCount) &&
    areChunks(value["chunks"]) &&
    isDigest(value["digest"])
  );
}

/** Whether `value` is XXH3 of 128 bits, in hexadecimal. */
export function isDigest(value: unknown): value is string {
  return isHex(value, 32);
}

function areChunks(value: unknown): value is readonly SnapshotChunk[] {
  if (!Array.isArray(value)) {
    return false;
  }
  const sizes = new Map<string, number>();
  return value.every((chunk: unknown) => {
    if (!isRecord(chunk) || !isDigest(chunk["digest"]) || !isCount(chunk["bytes"]) || chunk["bytes"] > MAX_CHUNK_BYTES) {
      return false;
    }
    const known = sizes.get(chunk["digest"]) ?? chunk["bytes"];
    sizes.set(chunk["digest"], known);
    return chunk["bytes"] === known;
  });
}
