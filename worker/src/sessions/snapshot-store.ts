/**
 * The sessions that are saved in the browser: one record for each, and the chunks of all, each under its digest and
 * once. A chunk is written first and referred to then; what no record refers to is removed by whoever comes next.
 * Saving, deleting and collecting hold a lock of the whole origin, so that no tab removes what another has just written.
 * Where there are no locks, the last transaction of a save sees it and has it written again.
 */

import { EngineError, isAbortError, throwIfAborted } from "../errors.js";
import { isCount, isRecord, isText } from "../shapes.js";
import { intact, settled, type Tables, transact } from "../storage/database.js";
import type { Checksum } from "../storage/hashes.js";
import { locked } from "../storage/locks.js";
import { answered } from "../storage/segment-store.js";
import {
  type ChunkSource,
  chunkSizes,
  isSnapshotManifest,
  readBytes,
  snapshotBytes,
  type SnapshotManifest,
  sum,
} from "./snapshot.js";

const LOCK = "signbit-snapshots";

/** How often a save begins again when others have removed its chunks, which only happens without locks. */
const ATTEMPTS = 10;

/** What is told of a saved session. */
export interface SnapshotInfo {
  readonly id: string;
  /** The digest of the model that it belongs to. */
  readonly model: string;
  readonly tokens: number;
  /** Of its chunks, of which some may belong to other sessions as well. */
  readonly bytes: number;
  readonly is_named: boolean;
  /** Whether it was ever saved because somebody asked for it, or with data. */
  readonly by_hand: boolean;
  /** Milliseconds since 1970. */
  readonly saved_at: number;
  readonly used_at: number;
  /** What the page keeps with the session; undefined where there is nothing. */
  readonly data: unknown;
}

/** A saved session without its chunks. */
export interface SnapshotRecord extends Omit<SnapshotInfo, "model" | "tokens"> {
  readonly manifest: SnapshotManifest;
}

/** A session that is to be saved. Where the field `data` is absent it keeps what it had. */
export interface SnapshotToSave extends Pick<SnapshotRecord, "id" | "manifest" | "is_named" | "by_hand"> {
  readonly data?: unknown;
}

export interface SaveOptions {
  /**
   * Bytes that the chunks of all sessions may take that were never saved by hand. Without it the browser's quota is the
   * only limit.
   */
  readonly budgetBytes?: number;
  /** The id of a session that does not go for it. */
  readonly spared?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** What a save may remove. */
type Limits = Required<Pick<SaveOptions, "budgetBytes" | "spared">>;

/** What a save has done. */
export interface Saved {
  readonly saved: SnapshotInfo;
  /** The sessions that went to make room. */
  readonly evicted: readonly SnapshotInfo[];
}

export interface SnapshotUsage {
  readonly sessions: number;
  /** Of the chunks of all sessions; one that several share counts once. */
  readonly bytes: number;
}

/** A saved session as decisions need it. */
interface Entry {
  readonly info: SnapshotInfo;
  readonly sizes: ReadonlyMap<string, number>;
}

/** All of it rejects with the code `storage_unavailable` where the browser's storage does not answer. */
export class SnapshotStore {
  readonly #checksum: Checksum;

  constructor(checksum: Checksum) {
    this.#checksum = checksum;
  }

  /**
   * Saves a session in place of what was saved under its id. Asks `source` for those chunks alone that are not here,
   * one at a time, and checks them. The last step replaces the record, removes the sessions that would exceed the
   * budget and every chunk that is no longer needed, all at once: until then, and where a save rejects or is ended
   * half way, everything that was saved stays whole. In the meantime both take room, the old chunks and the new.
   *
   * Sessions without a name go first, of these the ones that were not used for longest, then the others likewise. What
   * was saved by hand stays.
   *
   * Rejects with `storage_full` where the browser's quota is exceeded or the session alone exceeds the budget, with
   * `snapshot_corrupt` where a chunk is not what its digest says, as aborts do, and as `source` does.
   */
  save(snapshot: SnapshotToSave, source: ChunkSource, options: SaveOptions = {}): Promise<Saved> {
    const { budgetBytes = Number.POSITIVE_INFINITY, spared, signal } = options;
    return answered(async () => {
      const bytes = snapshotBytes(snapshot.manifest);
      if (bytes > budgetBytes) {
        throw new EngineError("storage_full", {
          detail: `the session takes ${bytes} bytes, and all that save themselves may take ${budgetBytes}`,
          hint: "Allow saved sessions to take more, or go on with a new session.",
        });
      }
      const save = () => tidied(() => this.#save(snapshot, source, { budgetBytes, spared }, signal));
      return locked(LOCK, "exclusive", save, signal);
    });
  }

  /** The session that was saved under this id, if there is one. */
  read(id: string): Promise<SnapshotRecord | undefined> {
    return answered(async () =>
      known(await transact(["snapshots"], "readonly", ({ snapshots }) => intact(snapshots, id)), id),
    );
  }

  /**
   * The bytes of a chunk. Rejects with `snapshot_corrupt` where it is missing or is not what its digest says. It is
   * removed then, so that the next save of a session that has it writes it again.
   */
  chunk(digest: string): Promise<Uint8Array<ArrayBuffer>> {
    return answered(async () => {
      const found = await transact(["chunks"], "readonly", ({ chunks }) => intact(chunks, digest));
      if (this.#isSound(found, digest)) {
        return new Uint8Array(found);
      }
      await transact(["chunks"], "readwrite", async ({ chunks }) => {
        // Another tab may have written it again meanwhile.
        if (!this.#isSound(await intact(chunks, digest), digest)) {
          await settled(chunks.delete(digest));
        }
      });
      throw new EngineError("snapshot_corrupt", {
        detail: `the chunk ${digest} is ${found === undefined ? "missing" : "not as it was written"}`,
      });
    });
  }

  /**
   * Runs `act`, which reads a session from its record to its last chunk, while no tab saves or removes any. `act` must
   * not call what waits for that: `save`, `delete` and `collect`.
   */
  whileReading<T>(act: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    return answered(() => locked(LOCK, "shared", act, signal));
  }

  /** Notes that a session is used now. One that is not saved is no error. */
  async touch(id: string): Promise<void> {
    await answered(() =>
      transact(["snapshots"], "readwrite", async ({ snapshots }) => {
        const record = known(await intact(snapshots, id), id);
        if (record !== undefined) {
          await settled(snapshots.put({ ...record, used_at: Date.now() } satisfies SnapshotRecord, id));
        }
      }),
    );
  }

  /** All saved sessions; the one that was used last comes first. */
  list(): Promise<SnapshotInfo[]> {
    return answered(async () => {
      const all = await transact(["snapshots"], "readonly", entries);
      return all.map(({ info }) => info).sort((one, other) => other.used_at - one.used_at);
    });
  }

  /** Forgets a session and the chunks that belong to no other. Resolves with whether it was there. */
  delete(id: string): Promise<boolean> {
    return this.#change(async (tables) => {
      const isThere = (await settled(tables.snapshots.getKey(id))) !== undefined;
      await settled(tables.snapshots.delete(id));
      await collect(tables);
      return isThere;
    });
  }

  /** Removes the chunks that belong to no session, such as those of a save that was ended half way. Gives their number. */
  collect(): Promise<number> {
    return this.#change(collect);
  }

  usage(): Promise<SnapshotUsage> {
    return answered(async () => {
      const all = await transact(["snapshots"], "readonly", entries);
      return { sessions: all.length, bytes: totalBytes(all) };
    });
  }

  /** One transaction that removes something, while no tab saves or reads. */
  #change<T>(act: (tables: Tables<"snapshots" | "chunks">) => Promise<T>): Promise<T> {
    return answered(() => locked(LOCK, "exclusive", () => transact(["snapshots", "chunks"], "readwrite", act)));
  }

  async #save(
    snapshot: SnapshotToSave,
    source: ChunkSource,
    limits: Limits,
    signal: AbortSignal | undefined,
  ): Promise<Saved> {
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      await this.#writeChunks(snapshot.manifest, source, signal);
      throwIfAborted(signal);
      const saved = await transact(["snapshots", "chunks"], "readwrite", (tables) => commit(tables, snapshot, limits));
      if (saved !== undefined) {
        return saved;
      }
    }
    throw new EngineError("storage_unavailable", { detail: "other tabs remove the session's chunks while it is saved" });
  }

  /** Whether what is kept under a digest is what it says. */
  #isSound(found: unknown, digest: string): found is ArrayBuffer {
    return found instanceof ArrayBuffer && this.#checksum(new Uint8Array(found)) === digest;
  }

  /** Writes the chunks that are not here. */
  async #writeChunks(manifest: SnapshotManifest, source: ChunkSource, signal: AbortSignal | undefined): Promise<void> {
    const there = await transact(["chunks"], "readonly", keys);
    for (const [digest, bytes] of chunkSizes(manifest)) {
      if (there.has(digest)) {
        continue;
      }
      throwIfAborted(signal);
      const given = await readBytes(await source(digest));
      if (given.length !== bytes || this.#checksum(given) !== digest) {
        throw new EngineError("snapshot_corrupt", { detail: `the bytes of the chunk ${digest} are others` });
      }
      const buffer = ownBuffer(given);
      await transact(["chunks"], "readwrite", ({ chunks }) => settled(chunks.put(buffer, digest)));
    }
  }
}

/**
 * Runs a save, and removes the chunks of one that fails. After an abort they stay: the next save goes on with them.
 * Errors of the storage are told with the room that there was before.
 */
async function tidied<T>(save: () => Promise<T>): Promise<T> {
  try {
    return await answered(save);
  } catch (error) {
    if (!isAbortError(error)) {
      await transact(["snapshots", "chunks"], "readwrite", collect).catch(() => 0);
    }
    throw error;
  }
}

/**
 * Records a session whose chunks are written, and removes what has to go. Where a chunk is missing, it changes nothing
 * and gives undefined.
 */
async function commit(
  tables: Tables<"snapshots" | "chunks">,
  snapshot: SnapshotToSave,
  limits: Limits,
): Promise<Saved | undefined> {
  const { id, manifest, is_named } = snapshot;
  const sizes = chunkSizes(manifest);
  const there = await keys(tables);
  if ([...sizes.keys()].some((digest) => !there.has(digest))) {
    return undefined;
  }
  const all = await entries(tables);
  const before = all.find(({ info }) => info.id === id)?.info;
  const now = Date.now();
  const record: SnapshotRecord = {
    id,
    manifest,
    data: "data" in snapshot ? snapshot.data : before?.data,
    is_named,
    by_hand: snapshot.by_hand || before?.by_hand === true,
    bytes: sum(sizes.values()),
    saved_at: now,
    used_at: now,
  };
  await settled(tables.snapshots.put(record, id));
  const saved: Entry = { info: describe(record), sizes };
  const { kept, evicted } = divide(saved, all.filter(({ info }) => info.id !== id), limits);
  for (const { info } of evicted) {
    await settled(tables.snapshots.delete(info.id));
  }
  await sweep(tables, kept);
  return { saved: saved.info, evicted: evicted.map(({ info }) => info) };
}

/** Who of `saved` and `others` stays within the budget, and who of `others` has to go for it. */
function divide(
  saved: Entry,
  others: readonly Entry[],
  { budgetBytes, spared }: Limits,
): { readonly kept: readonly Entry[]; readonly evicted: readonly Entry[] } {
  const stays = ({ info }: Entry): boolean => info.by_hand || info.id === spared;
  const rest = others
    .filter((entry) => !stays(entry))
    .sort((one, other) => Number(one.info.is_named) - Number(other.info.is_named) || one.info.used_at - other.info.used_at);
  const staying = [saved, ...others.filter(stays)];
  const counted = staying.filter(({ info }) => !info.by_hand);
  let going = 0;
  while (going < rest.length && totalBytes([...counted, ...rest.slice(going)]) > budgetBytes) {
    going += 1;
  }
  return { kept: [...staying, ...rest.slice(going)], evicted: rest.slice(0, going) };
}

/** Removes the chunks that no session has, and gives their number. */
async function collect(tables: Tables<"snapshots" | "chunks">): Promise<number> {
  return sweep(tables, await entries(tables));
}

/** Removes the chunks that none of `all` has, and gives their number. */
async function sweep(tables: Tables<"chunks">, all: readonly Entry[]): Promise<number> {
  const wanted = new Set(all.flatMap(({ sizes }) => [...sizes.keys()]));
  let removed = 0;
  for (const digest of await keys(tables)) {
    if (!wanted.has(digest)) {
      await settled(tables.chunks.delete(digest));
      removed += 1;
    }
  }
  return removed;
}

/** The digests of the chunks that are here, needed or not. */
async function keys({ chunks }: Tables<"chunks">): Promise<Set<string>> {
  return new Set((await settled(chunks.getAllKeys())).map(String));
}

/** All sessions. One manifest at a time is in memory. */
async function entries({ snapshots }: Tables<"snapshots">): Promise<Entry[]> {
  const all: Entry[] = [];
  for (const key of await settled(snapshots.getAllKeys())) {
    const record = known(await intact(snapshots, key), key);
    if (record !== undefined) {
      all.push({ info: describe(record), sizes: chunkSizes(record.manifest) });
    }
  }
  return all;
}

/** Of the chunks of all, each once. */
function totalBytes(all: readonly Entry[]): number {
  return sum(new Map(all.flatMap(({ sizes }) => [...sizes])).values());
}

function describe({ manifest, id, bytes, is_named, by_hand, saved_at, used_at, data }: SnapshotRecord): SnapshotInfo {
  const { fingerprint, ids } = manifest;
  return { id, model: fingerprint.model, tokens: ids.length, bytes, is_named, by_hand, saved_at, used_at, data };
}

/** A record, if this version has written it. Any other is as good as none. */
function known(value: unknown, id: IDBValidKey): SnapshotRecord | undefined {
  return isSnapshotRecord(value) && value.id === id ? value : undefined;
}

function isSnapshotRecord(value: unknown): value is SnapshotRecord {
  return (
    isRecord(value) &&
    isText(value["id"]) &&
    isSnapshotManifest(value["manifest"]) &&
    typeof value["is_named"] === "boolean" &&
    typeof value["by_hand"] === "boolean" &&
    isCount(value["bytes"]) &&
    isCount(value["saved_at"]) &&
    isCount(value["used_at"])
  );
}

/** A buffer with these bytes alone: a view would be kept with all that it looks at, such as the wasm module's memory. */
function ownBuffer(bytes: Uint8Array): ArrayBuffer {
  const { buffer } = bytes;
  return buffer instanceof ArrayBuffer && buffer.byteLength === bytes.length ? buffer : bytes.slice().buffer;
}
