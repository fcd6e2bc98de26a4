/**
 * Where the bytes of model files lie on this machine: in segments of a fixed size, each under the name
 * of its own SHA-256. What a segment is for is written in the manifests (`manifests.ts`).
 */

import { EngineError } from "../errors.js";
import type { StoreKind } from "../types.js";

/**
 * Bytes of a segment. It fits into memory twice, for browsers hash whole buffers only, and into one entry
 * of the cache of a private window, which refuses 256 MB. What is lost at most when a page is closed.
 */
export const SEGMENT_BYTES = 16 * 1024 * 1024;

/** One way to keep segments. All calls may be made from several tabs at once. */
export interface SegmentStore {
  readonly kind: StoreKind;
  /** Keeps `bytes` under `key`, in place of what is there. Rejects with a `StoreError`, and then leaves nothing there. */
  write(key: string, bytes: Uint8Array): Promise<void>;
  /**
   * Fills `target` with the segment. False where there is none, or one of another length. Rejects with a `StoreError`
   * where the store itself does not answer.
   */
  read(key: string, target: Uint8Array): Promise<boolean>;
  /** Forgets a segment; one that is not there is no error. */
  delete(key: string): Promise<void>;
  /** The keys of all segments, whole or not. */
  keys(): Promise<string[]>;
}

/** Why a store does not keep something. */
export type StoreProblem = "full" | "unavailable";

export class StoreError extends Error {
  readonly problem: StoreProblem;

  constructor(problem: StoreProblem, cause?: unknown) {
    super(problem === "full" ? "the browser's storage is full" : `the browser's storage refused: ${String(cause)}`, { cause });
    this.name = "StoreError";
    this.problem = problem;
  }
}

/** What the refusal of a browser means for a store. */
export function toStoreError(cause: unknown): StoreError {
  if (cause instanceof StoreError) {
    return cause;
  }
  return new StoreError(isNamed(cause, "QuotaExceededError") ? "full" : "unavailable", cause);
}

/** Whether `error` is the platform's error of that name. */
export function isNamed(error: unknown, name: string): boolean {
  return error instanceof DOMException && error.name === name;
}

/** Bytes that the browser counts for this origin, and how many it allows; null where it does not say. */
export async function storageEstimate(): Promise<{ readonly usage: number | null; readonly quota: number | null }> {
  const { storage } = navigator as { readonly storage?: StorageManager };
  const estimate = await storage?.estimate?.().catch(() => undefined);
  return { usage: estimate?.usage ?? null, quota: estimate?.quota ?? null };
}

/** Runs `act`, and turns a `StoreError` into the error of the engine: `storage_full` or `storage_unavailable`. */
export async function answered<T>(act: () => Promise<T>): Promise<T> {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof StoreError)) {
      throw error;
    }
    if (error.problem === "unavailable") {
      throw new EngineError("storage_unavailable", { detail: error.message, cause: error });
    }
    const { usage, quota } = await storageEstimate();
    const [counted, allowed] = [usage, quota].map((bytes) => `${bytes ?? "an unknown number of"} bytes`);
    const detail = `it counts ${counted} of this site, and tells of a quota of ${allowed}`;
    throw new EngineError("storage_full", { detail, cause: error });
  }
}
