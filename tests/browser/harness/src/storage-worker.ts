/** The modules of the local store in a worker of their own, which does what the page tells it by name. */

import init, { checksum } from "../../../../worker/wasm/signbit_engine.js";
import { EngineError } from "../../../../worker/dist/errors.js";
import { openStores, type StorePreference, type Stores } from "../../../../worker/dist/storage/choose-store.js";
import { knownDigest, rememberDigest } from "../../../../worker/dist/storage/digests.js";
import { sha256 } from "../../../../worker/dist/storage/hashes.js";
import * as library from "../../../../worker/dist/storage/library.js";
import {
  allManifests,
  deleteManifest,
  type FileManifest,
  readManifest,
  updateManifest,
} from "../../../../worker/dist/storage/manifests.js";
import { whileWriting } from "../../../../worker/dist/storage/segment-lock.js";
import { type SegmentStore, StoreError } from "../../../../worker/dist/storage/segment-store.js";
import { keepTuning, readTuning } from "../../../../worker/dist/tuning-store.js";
import type { StoreKind } from "../../../../worker/dist/types.js";
import { snapshots } from "./snapshots.js";

/** A file to be kept as a load would. */
export interface KeptFile {
  readonly id: string;
  readonly model?: string;
  readonly part?: number;
  readonly parts?: number;
  readonly store: StoreKind;
  readonly segment_bytes: number;
  readonly used_at?: number;
}

/** What a browser may do to a store. */
export type Fault =
  | "no folder"
  | "no handles"
  | "no modes"
  | "short write"
  | "wrong read"
  | "slow write"
  | "no cache"
  | "slow cache"
  | "no database";

let stores: Promise<Stores> | undefined;
let aborter = new AbortController();
let release: (() => void) | undefined;

/** A sync access handle, as far as the faults need it. */
interface Handle {
  write(bytes: Uint8Array, options: unknown): number;
  read(target: Uint8Array, options: unknown): number;
}

const operations = {
  ...snapshots,

  /** Opens the stores and says which are there. */
  async open(preference: StorePreference): Promise<StoreKind[]> {
    stores = openStores(preference);
    const opened = await stores;
    return (["opfs", "cache"] as const).filter((kind) => opened.get(kind) !== undefined);
  },

  async best(): Promise<StoreKind | null> {
    return (await (await opened()).best())?.kind ?? null;
  },

  async write(kind: StoreKind, key: string, bytes: Uint8Array): Promise<void> {
    await (await store(kind)).write(key, bytes);
  },

  /** The segment, or null where it is not there in this length. */
  async read(kind: StoreKind, key: string, length: number): Promise<Uint8Array | null> {
    const target = new Uint8Array(length);
    return (await (await store(kind)).read(key, target)) ? target : null;
  },

  /** How often one of several readings in a row found the segment. */
  async readAgain(kind: StoreKind, key: string, length: number, times: number): Promise<number> {
    const target = new Uint8Array(length);
    let found = 0;
    for (let time = 0; time < times; time += 1) {
      found += Number(await (await store(kind)).read(key, target));
    }
    return found;
  },

  async remove(kind: StoreKind, key: string): Promise<void> {
    await (await store(kind)).delete(key);
  },

  async keys(kind: StoreKind): Promise<string[]> {
    return (await (await store(kind)).keys()).sort();
  },

  /** Keeps a file segment by segment. */
  async keep(file: KeptFile, bytes: Uint8Array): Promise<FileManifest> {
    const indices = Array.from({ length: Math.ceil(bytes.length / file.segment_bytes) }, (_, index) => index);
    for (const index of indices) {
      await whileWriting(() => keepSegment(file, bytes, index));
    }
    return (await readManifest(file.id)) as FileManifest;
  },

  /** Writes the only segment of a file at once, and records it when `goOn` is called. */
  async keepSlowly(file: KeptFile, bytes: Uint8Array): Promise<void> {
    const told = new Promise<void>((resolve) => {
      release = resolve;
    });
    await whileWriting(() => keepSegment(file, bytes, 0, told));
  },

  goOn(): void {
    release?.();
  },

  /** Adds that many records to a file's manifest, one after the other. */
  async addRecords(id: string, record: FileManifest, times: number): Promise<void> {
    for (let time = 0; time < times; time += 1) {
      await updateManifest(id, (now) => {
        const file = now ?? { ...record, segments: [] };
        return { ...file, segments: [...file.segments, record.segments[0] ?? null] };
      });
    }
  },

  /** Changes nothing, and gives what is there. */
  lookUp: (id: string) => updateManifest(id, () => undefined),

  /** A change that throws. */
  async failToChange(id: string): Promise<void> {
    await updateManifest(id, () => {
      throw new Error("on purpose");
    });
  },

  readManifest,
  allManifests,
  deleteManifest,
  rememberDigest,
  knownDigest,
  readTuning,
  keepTuning,
  sha256,
  checksum,
  usage: library.usage,
  listModels: library.listModels,

  async deleteModel(id: string): Promise<void> {
    await library.deleteModel(id, await opened());
  },

  async collectGarbage(): Promise<number> {
    return library.collectGarbage(await opened());
  },

  /** The verification with its progress; aborted after so many segments. */
  async verifyModel(id: string, abortAfter = Number.POSITIVE_INFINITY) {
    const progress: [done: number, total: number][] = [];
    aborter = new AbortController();
    const verification = await library.verifyModel(id, {
      stores: await opened(),
      checksum,
      signal: aborter.signal,
      onProgress: (done, total) => {
        progress.push([done, total]);
        if (progress.length >= abortAfter) {
          aborter.abort();
        }
      },
    });
    return { ...verification, progress };
  },

  /** Makes the browser of this worker worse. */
  inject(fault: Fault): void {
    const handles = (globalThis as unknown as { FileSystemSyncAccessHandle: { prototype: Handle } }).FileSystemSyncAccessHandle;
    const files = FileSystemFileHandle.prototype as unknown as { createSyncAccessHandle?: () => Promise<Handle> };
    const { write, read } = handles.prototype;
    const { createSyncAccessHandle } = files;
    const { put } = Cache.prototype;
    const refuse = () => Promise.reject(new DOMException("refused on purpose", "SecurityError"));
    switch (fault) {
      case "no folder":
        StorageManager.prototype.getDirectory = refuse;
        break;
      case "no handles":
        delete files.createSyncAccessHandle;
        break;
      case "no modes":
        // As WebKit does, with an error of its own.
        files.createSyncAccessHandle = async function () {
          try {
            return await (createSyncAccessHandle as () => Promise<Handle>).call(this);
          } catch (error) {
            const isHeld = error instanceof DOMException && error.name === "NoModificationAllowedError";
            throw isHeld ? new DOMException("held", "InvalidStateError") : error;
          }
        };
        break;
      case "short write":
        handles.prototype.write = function (bytes, options) {
          return write.call(this, bytes, options) - 1;
        };
        break;
      case "wrong read":
        handles.prototype.read = function (target, options) {
          const length = read.call(this, target, options);
          target[length >> 1] = (target[length >> 1] ?? 0) ^ 1;
          return length;
        };
        break;
      case "slow write":
        handles.prototype.write = function (bytes, options) {
          const end = performance.now() + SLOW_MS;
          while (performance.now() < end);
          return write.call(this, bytes, options);
        };
        break;
      case "no cache":
        CacheStorage.prototype.open = refuse;
        break;
      case "slow cache":
        Cache.prototype.put = async function (request, response) {
          await new Promise((resolve) => setTimeout(resolve, SLOW_MS));
          return put.call(this, request, response);
        };
        break;
      case "no database":
        IDBFactory.prototype.open = () => {
          throw new DOMException("refused on purpose", "SecurityError");
        };
        break;
    }
  },
};

/** So much slower that nothing else decides. */
const SLOW_MS = 2000;

export type Operations = typeof operations;

async function opened(): Promise<Stores> {
  stores ??= openStores("auto");
  return stores;
}

async function store(kind: StoreKind): Promise<SegmentStore> {
  const found = (await opened()).get(kind);
  if (found === undefined) {
    throw new Error(`there is no ${kind} here`);
  }
  return found;
}

/** Writes one segment of a file, and records it when `recordable` resolves. */
async function keepSegment(file: KeptFile, bytes: Uint8Array, index: number, recordable?: Promise<void>): Promise<void> {
  const { id, segment_bytes } = file;
  const segment = bytes.slice(index * segment_bytes, (index + 1) * segment_bytes);
  const key = await sha256(segment);
  await (await store(file.store)).write(key, segment);
  await recordable;
  await updateManifest(id, (now) => {
    const segments = [...(now?.segments ?? Array.from({ length: Math.ceil(bytes.length / segment_bytes) }, () => null))];
    segments[index] = { length: segment.length, sha256: key, checksum: checksum(segment) };
    return {
      model: id,
      part: 0,
      parts: 1,
      name: id.slice(id.lastIndexOf("/") + 1),
      identity: { url: id, bytes: bytes.length, etag: null, last_modified: null },
      sha256: null,
      created_at: 1000,
      used_at: 1000,
      ...file,
      segments,
    };
  });
}

/** An error as tests compare it: what a store or the engine calls it, else as text. */
function nameOf(error: unknown): string {
  if (error instanceof StoreError) {
    return error.problem;
  }
  return error instanceof EngineError ? error.code : String(error);
}

interface Call {
  readonly id: number;
  readonly name: keyof Operations;
  readonly args: readonly unknown[];
}

const scope = globalThis as unknown as {
  onmessage: (event: MessageEvent<Call>) => void;
  postMessage(message: unknown): void;
};

const started = init();

scope.onmessage = async ({ data: { id, name, args } }) => {
  try {
    await started;
    const act = operations[name] as (...args: readonly unknown[]) => unknown;
    scope.postMessage({ id, value: await act(...args) });
  } catch (error) {
    scope.postMessage({ id, error: nameOf(error) });
  }
};
