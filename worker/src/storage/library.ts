/**
 * The models that are kept on this machine: which there are, whether they are as they were written, and how to
 * get rid of them. To be given stores that were opened without a preference, so that nothing is overlooked. All
 * reject with an `EngineError` of the code `storage_unavailable` where the browser's storage does not answer.
 */

import { EngineError, throwIfAborted } from "../errors.js";
import type { StorageUsage, StoredModel, StoreKind, Verification } from "../types.js";
import type { Stores } from "./choose-store.js";
import { type Checksum, sha256 } from "./hashes.js";
import {
  allManifests,
  deleteManifest,
  fileBytes,
  type FileManifest,
  type SegmentRecord,
  storedBytes,
  updateManifest,
} from "./manifests.js";
import { whileRemoving } from "./segment-lock.js";
import { answered, type SegmentStore, storageEstimate } from "./segment-store.js";

const STORE_KINDS = ["opfs", "cache"] as const satisfies readonly StoreKind[];

export interface VerifyOptions {
  readonly stores: Stores;
  readonly checksum: Checksum;
  /** Called after each segment with the bytes that were looked at, and with all that are kept. */
  readonly onProgress?: (bytes_done: number, bytes_total: number) => void;
  readonly signal?: AbortSignal;
}

type Fault = Verification["faults"][number];

/** All models, wholly or partly kept; the one that was used last comes first. */
export function listModels(): Promise<StoredModel[]> {
  return answered(async () => {
    const manifests = await allManifests();
    const ids = [...new Set(manifests.map(({ model }) => model))];
    return ids
      .map((id) => describe(id, manifests.filter(({ model }) => model === id).sort(byPart)))
      .sort((one, other) => other.used_at - one.used_at);
  });
}

/**
 * Reads every segment of a model that has arrived and compares length, checksum and key. One that is not as it was
 * written is forgotten, so that the next load fetches it again. Holds two segments in memory. Rejects with the
 * code `not_stored` for an unknown id, and as aborts do.
 */
export function verifyModel(id: string, options: VerifyOptions): Promise<Verification> {
  return answered(async () => {
    const files = await filesOf(id);
    const total = files.reduce((sum, file) => sum + storedBytes(file), 0);
    const buffer = new Uint8Array(Math.max(...files.map((file) => Math.min(file.segment_bytes, storedBytes(file)))));
    const faults: Fault[] = [];
    let done = 0;
    let good = 0;
    for (const file of files) {
      const store = requireStore(options.stores, file.store);
      for (const [index, segment] of file.segments.entries()) {
        if (segment === null) {
          continue;
        }
        throwIfAborted(options.signal);
        const bytes = buffer.subarray(0, segment.length);
        const problem = await check(store, segment, bytes, options.checksum);
        if (problem === null) {
          good += segment.length;
        } else {
          faults.push({ part: file.part, offset: index * file.segment_bytes, length: segment.length, problem });
        }
        done += segment.length;
        options.onProgress?.(done, total);
      }
    }
    return { id, bytes: good, is_complete: faults.length === 0 && isComplete(files), faults };
  });
}

/**
 * Forgets a model and removes the segments that belong to no other. Where this is ended half way, the rest is
 * removed by `collectGarbage`. Rejects with the code `not_stored` for an unknown id.
 */
export function deleteModel(id: string, stores: Stores): Promise<void> {
  return answered(() =>
    whileRemoving(async () => {
      for (const file of await filesOf(id)) {
        await deleteManifest(file.id);
      }
      await sweep(stores);
    }),
  );
}

/** Forgets one file of a model, and removes the segments that belong to no other. Rejects with a `StoreError`. */
export function deleteFile(id: string, stores: Stores): Promise<void> {
  return whileRemoving(async () => {
    await deleteManifest(id);
    await sweep(stores);
  });
}

/** Removes segments that belong to no model, such as one whose page was closed before it was recorded. Gives their number. */
export function collectGarbage(stores: Stores): Promise<number> {
  return answered(() => whileRemoving(() => sweep(stores)));
}

/** How much is kept. Never rejects: what the browser does not say is null. */
export async function usage(): Promise<StorageUsage> {
  const { storage } = navigator as { readonly storage?: StorageManager };
  const isPersisted = await storage?.persisted?.().catch(() => false);
  return {
    model_bytes: await modelBytes().catch(() => 0),
    ...(await storageEstimate()),
    is_persisted: isPersisted ?? false,
  };
}

/** Of all models; a segment that several share counts once. */
async function modelBytes(): Promise<number> {
  const lengths = new Map<string, number>();
  for (const { store, segments } of await allManifests()) {
    for (const segment of segments) {
      if (segment !== null) {
        lengths.set(`${store} ${segment.sha256}`, segment.length);
      }
    }
  }
  return [...lengths.values()].reduce((sum, length) => sum + length, 0);
}

/** The files of a model, in their order. */
async function filesOf(id: string): Promise<FileManifest[]> {
  const files = (await allManifests()).filter(({ model }) => model === id);
  if (files.length === 0) {
    throw new EngineError("not_stored", { detail: id });
  }
  return files.sort(byPart);
}

function byPart(one: FileManifest, other: FileManifest): number {
  return one.part - other.part;
}

function describe(id: string, files: readonly FileManifest[]): StoredModel {
  const { name, parts, store } = files[0] as FileManifest;
  return {
    id,
    name,
    parts,
    bytes: files.reduce((sum, file) => sum + storedBytes(file), 0),
    bytes_total: files.length < parts ? null : totalBytes(files),
    is_complete: isComplete(files),
    store,
    sha256: Array.from({ length: parts }, (_, part) => files.find((file) => file.part === part)?.sha256 ?? null),
    created_at: Math.min(...files.map(({ created_at }) => created_at)),
    used_at: Math.max(...files.map(({ used_at }) => used_at)),
  };
}

/** Of all files, or null where the size of one is not known. */
function totalBytes(files: readonly FileManifest[]): number | null {
  return files.map(fileBytes).reduce((sum, bytes) => (sum === null || bytes === null ? null : sum + bytes), 0);
}

/** Whether all files are there, and all of each. */
function isComplete(files: readonly FileManifest[]): boolean {
  const parts = new Set(files.map(({ part }) => part));
  return files.every((file) => parts.size === file.parts && storedBytes(file) === fileBytes(file));
}

function requireStore(stores: Stores, kind: StoreKind): SegmentStore {
  const store = stores.get(kind);
  if (store === undefined) {
    throw new EngineError("storage_unavailable", { detail: `the model is kept in ${kind}, which cannot be opened now` });
  }
  return store;
}

/** What is wrong with a segment, which then is forgotten, or null. `bytes` is as long as the segment, and is overwritten. */
async function check(
  store: SegmentStore,
  segment: SegmentRecord,
  bytes: Uint8Array,
  checksum: Checksum,
): Promise<Fault["problem"] | null> {
  if (await isSound(store, segment, bytes, checksum)) {
    return null;
  }
  return whileRemoving(async () => {
    // Another tab may have fetched it again meanwhile.
    if (await isSound(store, segment, bytes, checksum)) {
      return null;
    }
    const isThere = (await store.keys()).includes(segment.sha256);
    await forget(store, segment.sha256);
    return isThere ? "damaged" : "missing";
  });
}

async function isSound(store: SegmentStore, segment: SegmentRecord, bytes: Uint8Array, checksum: Checksum): Promise<boolean> {
  return (
    (await store.read(segment.sha256, bytes)) &&
    checksum(bytes) === segment.checksum &&
    (await sha256(bytes)) === segment.sha256
  );
}

/** Removes a segment, and strikes it from all files that have it. */
async function forget(store: SegmentStore, key: string): Promise<void> {
  await store.delete(key);
  for (const { id } of await allManifests()) {
    await updateManifest(id, (now) => {
      if (now?.store !== store.kind || !now.segments.some((segment) => segment?.sha256 === key)) {
        return undefined;
      }
      return { ...now, segments: now.segments.map((segment) => (segment?.sha256 === key ? null : segment)) };
    });
  }
}

/** Removes segments of no manifest. What cannot be removed, because a tab reads it, is for the next time. */
async function sweep(stores: Stores): Promise<number> {
  const manifests = await allManifests();
  let removed = 0;
  for (const kind of STORE_KINDS) {
    const store = stores.get(kind);
    if (store === undefined) {
      continue;
    }
    const wanted = new Set(
      manifests.filter((file) => file.store === kind).flatMap(({ segments }) => segments.map((segment) => segment?.sha256)),
    );
    for (const key of await store.keys()) {
      if (!wanted.has(key)) {
        removed += await store.delete(key).then(
          () => 1,
          () => 0,
        );
      }
    }
  }
  return removed;
}
