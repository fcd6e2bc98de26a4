/** The saved sessions as tests use them, in the worker of `storage-worker.ts`. */

import { checksum } from "../../../../worker/wasm/signbit_engine.js";
import { EngineError } from "../../../../worker/dist/errors.js";
import { packArchive, unpackArchive } from "../../../../worker/dist/sessions/archive.js";
import { SnapshotStore } from "../../../../worker/dist/sessions/snapshot-store.js";
import { type ChunkSource, readBytes, type SnapshotManifest } from "../../../../worker/dist/sessions/snapshot.js";
import { bytesOf, isEqual } from "./storage.js";

/** A session for tests: its ids are the seeds from which its chunks are made, one chunk each. */
export interface Session {
  readonly id: string;
  readonly seeds: readonly number[];
  readonly isNamed?: boolean;
  readonly byHand?: boolean;
  readonly data?: unknown;
}

export interface SaveTest {
  readonly budgetBytes?: number;
  /** A session that does not make room. */
  readonly spared?: string;
  /** What happens when so many chunks have been asked for. */
  readonly at?: readonly [chunks: number, event: "abort" | "fail" | "damage" | "wait"];
}

/** Bytes of a chunk. More than Chromium keeps in the database's own files. */
export const CHUNK_BYTES = 100_000;

const store = new SnapshotStore(checksum);
let release: (() => void) | undefined;

export const snapshots = {
  /** Saves a session. The seeds of the chunks that were asked for, the tables of all writes, and who had to go. */
  async saveSession(session: Session, { budgetBytes, spared, at }: SaveTest = {}) {
    const manifest = manifestOf(session);
    const controller = new AbortController();
    const asked: number[] = [];
    const source = async (digest: string) => {
      const seed = session.seeds[manifest.chunks.findIndex((chunk) => chunk.digest === digest)] ?? Number.NaN;
      asked.push(seed);
      const event = at?.[0] === asked.length ? at[1] : undefined;
      switch (event) {
        case "abort":
          controller.abort();
          break;
        case "fail":
          throw new EngineError("device_lost");
        case "damage":
          return bytesOf(seed + 1, CHUNK_BYTES);
        case "wait":
          await new Promise<void>((resolve) => {
            release = resolve;
          });
          break;
        case undefined:
      }
      // As the engine gives it: a view of a larger memory.
      const memory = new Uint8Array(3 * CHUNK_BYTES);
      memory.set(bytesOf(seed, CHUNK_BYTES), CHUNK_BYTES);
      return memory.subarray(CHUNK_BYTES, 2 * CHUNK_BYTES);
    };
    writes.length = 0;
    const { id, isNamed = false, byHand = false } = session;
    // Absent is another thing than undefined.
    const data = "data" in session ? { data: session.data } : {};
    const options = { signal: controller.signal, spared, ...(budgetBytes === undefined ? {} : { budgetBytes }) };
    const { saved, evicted } = await store.save({ id, manifest, is_named: isNamed, by_hand: byHand, ...data }, source, options);
    return { saved, asked, writes: [...writes], evicted: evicted.map((info) => info.id) };
  },

  goOnSession(): void {
    release?.();
  },

  /** An abort while the save waits for its lock. */
  async abortWaiting(session: Session): Promise<void> {
    const controller = new AbortController();
    const { id } = session;
    const snapshot = { id, manifest: manifestOf(session), is_named: false, by_hand: false };
    const saving = store.save(snapshot, () => Promise.reject(new Error("asked")), { signal: controller.signal });
    controller.abort();
    await saving;
  },

  /** What was saved, once every chunk of it has been compared; null where there is nothing. */
  async readSession(id: string) {
    const record = await store.read(id);
    if (record === undefined) {
      return null;
    }
    const { manifest, is_named, data } = record;
    await compare(manifest, (digest) => store.chunk(digest));
    return { seeds: manifest.ids, is_named, data };
  },

  /** The same while no tab may change anything; the chunks are read when `goOnSession` is called. */
  readSlowly: (id: string) =>
    store.whileReading(async () => {
      const told = new Promise<void>((resolve) => {
        release = resolve;
      });
      const record = await store.read(id);
      await told;
      await compare(record?.manifest as SnapshotManifest, (digest) => store.chunk(digest));
      return record?.manifest.ids;
    }),

  touchSession: (id: string) => store.touch(id),
  listSessions: () => store.list(),
  deleteSession: (id: string) => store.delete(id),
  collectChunks: () => store.collect(),
  sessionUsage: () => store.usage(),

  digestOf: (seed: number) => checksum(bytesOf(seed, CHUNK_BYTES)),

  /** A saved session as a file. */
  async exportSession(id: string): Promise<Blob> {
    const record = await store.read(id);
    return packArchive(record?.manifest as SnapshotManifest, record?.data, (digest) => store.chunk(digest));
  },

  /** Saves what is in a file under `id`, and reads it back. */
  async importSession(file: Blob, id: string) {
    const { manifest, data, chunks } = await unpackArchive(file);
    await store.save({ id, manifest, data, is_named: true, by_hand: true }, async (digest) => chunks.get(digest) ?? new Blob());
    return snapshots.readSession(id);
  },

  /** Packs a session of one chunk with this data, or a text of so many letters, and with a chunk of so many bytes. */
  exportOther: ({ data, text = 0, chunkBytes = CHUNK_BYTES }: { data?: unknown; text?: number; chunkBytes?: number }) =>
    packArchive(manifestOf({ id: "", seeds: [1] }), data ?? "a".repeat(text), async () => new Uint8Array(chunkBytes)),

  /** Why a file is refused; `ok` where it is not. */
  refusedFile: (file: Blob) => reason(unpackArchive(file)),

  /** Why a save is refused. */
  refusedSave: (session: Session, test?: SaveTest) => reason(snapshots.saveSession(session, test)),

  /** Sets the clock. */
  setNow(now: number): void {
    Date.now = () => now;
  },

  /** The tab hangs within write `index` of the database (from 1), once that is under way, and says so in a channel. */
  hangAt(index: number, ms = Number.POSITIVE_INFINITY): void {
    hang = { index: writes.length + index, ms };
  },

  /** As where there is no secure context. */
  withoutLocks(): void {
    Object.defineProperty(navigator, "locks", { value: undefined });
  },

  /** The next `times` connections are refused. */
  refuseDatabase(times: number): void {
    const { open } = IDBFactory.prototype;
    let left = times;
    IDBFactory.prototype.open = function (...args) {
      left -= 1;
      if (left >= 0) {
        throw new DOMException("refused on purpose", "SecurityError");
      }
      return open.apply(this, args);
    };
  },
};

/** The tables of all writes since the last save has begun. */
const writes: string[] = [];
let hang: { readonly index: number; readonly ms: number } | undefined;

for (const method of ["put", "delete"] as const) {
  const original = IDBObjectStore.prototype[method] as (...args: unknown[]) => IDBRequest;
  IDBObjectStore.prototype[method] = function (this: IDBObjectStore, ...args: unknown[]) {
    const request = original.apply(this, args);
    writes.push(`${method} ${this.name}`);
    if (hang?.index === writes.length) {
      const channel = new BroadcastChannel("hanging");
      channel.postMessage(null);
      const end = performance.now() + hang.ms;
      while (performance.now() < end);
    }
    return request;
  };
}

function manifestOf({ seeds }: Session): SnapshotManifest {
  const digests = seeds.map((seed) => checksum(bytesOf(seed, CHUNK_BYTES)));
  return {
    format: 1,
    fingerprint: { model: "model", kv_cache: "f32", geometry: "none", rope: "none", adapters: [] },
    computed_by: { backend: "cpu", name: "", activations: null },
    ids: seeds,
    pending: null,
    dropped: null,
    turns: [],
    last_turn: 0,
    checkpoints: [],
    chunk_bytes: CHUNK_BYTES,
    chunks: digests.map((digest, index) => ({ part: { state: index }, offset: 0, bytes: CHUNK_BYTES, digest })),
    digest: "0".repeat(32),
  };
}

/** The whole error of the engine, where a promise rejects with one. */
function reason(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => "ok",
    (error: unknown) => (error instanceof EngineError ? `${error.code}: ${error.message}` : String(error)),
  );
}

/** Rejects where a chunk is not what its seed makes. */
async function compare({ ids, chunks }: SnapshotManifest, source: ChunkSource): Promise<void> {
  for (const [index, seed] of ids.entries()) {
    const bytes = await readBytes(await source(chunks[index]?.digest ?? ""));
    if (!isEqual(bytes as Uint8Array<ArrayBuffer>, bytesOf(seed, CHUNK_BYTES))) {
      throw new Error(`the chunk of seed ${seed} is another`);
    }
  }
}
