/**
 * Keeps the sessions that are not on the device: parked in memory, or saved in the browser's storage. Nothing here
 * overlaps: the worker carries out one request at a time, and ends the save under way before it begins the next.
 */

import { EngineError, isAbortError, serializeError, throwIfAborted, type ErrorCode } from "../errors.js";
import type { Params } from "../protocol.js";
import { turn } from "../turn.js";
import type { ReuseSource, SessionInfo, SessionNotice, SessionNoticeCode, SessionSnapshot } from "../types.js";
import { uniqueId } from "../unique-id.js";
import type { OpenSnapshot, ResidentSession, WasmEngine } from "../wasm-engine.js";
import { ParkedSessions, type ParkedSession, type StoredSession } from "./parked.js";
import type { SnapshotInfo, SnapshotStore } from "./snapshot-store.js";
import {
  type ChunkSource,
  chunkSizes,
  isSnapshotManifest,
  MAX_CHUNK_BYTES,
  readBytes,
  snapshotBytes,
  type SnapshotManifest,
  sum,
} from "./snapshot.js";

/** How sessions are kept, for as long as the worker lives. */
export interface SessionOptions {
  /** Sessions in memory, and bytes that they may take together. */
  readonly parked?: number;
  readonly parked_bytes?: number;
  /** Bytes of what is saved without being asked for. */
  readonly saved_bytes?: number;
  /** Whether anything is saved without being asked for. */
  readonly autosave?: boolean;
  /** How long a session has to rest before it is saved. */
  readonly debounce_ms?: number;
  /** The most bytes of a chunk; the engine chooses where it is absent. */
  readonly chunk_bytes?: number;
}

/** What must not be left half done. */
const NEVER = new AbortController().signal;

const MIB = 1024 * 1024;
const DEFAULTS = {
  parked: 3,
  parked_bytes: 512 * MIB,
  saved_bytes: 2048 * MIB,
  autosave: true,
  debounce_ms: 2000,
} as const satisfies SessionOptions;

/** What a save holds of a session at most; bytes beyond are read from the device a second time. */
const HELD_BYTES = 64 * MIB;

/** After these of the engine a snapshot will never be restored here. */
const IS_USELESS: ReadonlySet<ErrorCode> = new Set(["snapshot_corrupt", "snapshot_mismatch"]);

const MESSAGES: Readonly<Record<SessionNoticeCode, string>> = {
  saved: "The session is saved.",
  not_saved: "The session is not saved. Answers go on, and it is tried again after the next one.",
  dropped: "The session had to make room for others. Its conversation is read anew when it goes on.",
  not_restored: "The session could not be brought back. Its conversation is read anew.",
};

/** Hears what becomes of sessions, and of the error where there was one. */
export type TellSession = (notice: SessionNotice, error: unknown) => void;

/** Gives the bytes of a chunk. */
type Piece = () => Promise<Uint8Array>;

interface SavingOptions {
  /** What the page keeps with the session. Where it is undefined, what it kept before. */
  readonly data?: unknown;
  /** Nobody has asked for it. */
  readonly isAutomatic?: boolean;
  /** A session that must not make room for it. */
  readonly spared?: string | undefined;
  readonly signal: AbortSignal;
}

export class SessionManager {
  readonly #engine: WasmEngine;
  /** Null where nothing may be kept. */
  readonly #store: SnapshotStore | null;
  readonly #options: SessionOptions & Required<Omit<SessionOptions, "chunk_bytes">>;
  readonly #tell: TellSession;
  readonly #parked: ParkedSessions;
  /** Digest of the model that is loaded. */
  #model: string | null = null;
  /** As it was after the last request: while one is carried out, the engine answers no questions. */
  #resident: (ResidentSession & { readonly bytes: number }) | null = null;
  #hasStorageAnswered = false;
  /** Sessions to be saved when there is time. */
  readonly #unsaved = new Set<string>();
  /** When that is, on the clock of `performance`. */
  #dueAt = 0;
  /** What came with a session and is to be saved with it; undefined where nothing did, in place of what was there. */
  readonly #data = new Map<string, unknown>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #saving: { readonly controller: AbortController; readonly end: Promise<void> } | undefined;

  constructor(engine: WasmEngine, store: SnapshotStore | null, options: SessionOptions, tell: TellSession) {
    this.#engine = engine;
    this.#store = store;
    this.#options = { ...DEFAULTS, ...options };
    this.#tell = tell;
    this.#parked = new ParkedSessions({ sessions: this.#options.parked, bytes: this.#options.parked_bytes });
  }

  /** Ends the save under way, between two chunks. To be called before the engine is used. */
  async pause(): Promise<void> {
    clearTimeout(this.#timer);
    this.#saving?.controller.abort();
    await this.#saving?.end;
  }

  /** Takes saving up again. To be called when the engine is free. */
  resume(): void {
    this.#note();
    if (this.#unsaved.size > 0 && this.#saving === undefined) {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#startSaving(), Math.max(0, this.#dueAt - performance.now()));
    }
  }

  /** Saves without waiting any longer: the page may be gone soon. To be called when the engine is free. */
  hurry(): void {
    if (this.#unsaved.size > 0 && this.#saving === undefined) {
      clearTimeout(this.#timer);
      this.#startSaving();
    }
  }

  /** A model was loaded: tells the engine which of its sessions there are. */
  async enter(model: string): Promise<void> {
    this.#model = model;
    this.#note();
    const saved = await this.#saved();
    for (const id of new Set([...this.#parked.entries().map(([id]) => id), ...saved.map(({ id }) => id)])) {
      await this.#introduce(id);
    }
  }

  /** Keeps the resident session before something that it does not outlive. */
  async leave(signal: AbortSignal): Promise<void> {
    await this.#parkIfPossible(undefined, signal);
    await this.#makeRoom(null, signal);
  }

  /** There is no model any more. */
  unloaded(): void {
    this.#model = null;
    this.#note();
  }

  /** Makes the session resident that a request goes on with. Resolves with where what it reuses was, if it does. */
  async before(request: Params<"generate">, signal: AbortSignal): Promise<ReuseSource> {
    const { session } = request;
    if (session !== undefined && session !== this.#resident?.id) {
      // Another tab may have saved it, or deleted it, and it may belong to another model.
      const reason = await this.#introduce(session);
      // Without the storage nobody knows whether there is such a session.
      if (reason !== undefined && serializeError(reason).code !== "storage_unavailable") {
        this.#notify("not_restored", session, reason);
      }
    }
    const { id, park, bring } = this.#engine.place(request, uniqueId());
    let source: ReuseSource = id === this.#resident?.id ? "resident" : "fork";
    if (park) {
      await this.#parkIfPossible(bring ?? undefined, signal);
    }
    if (bring !== null) {
      const broughtFrom = await this.#bringIfPossible(bring, signal);
      source = bring === id && broughtFrom !== null ? broughtFrom : "fork";
    }
    await this.#makeRoom(id, signal);
    return source;
  }

  /** The resident session has moved on. */
  moved(): void {
    this.#note();
    if (this.#resident !== null) {
      const { id, is_named } = this.#resident;
      // What is parked or saved of it is the past.
      this.#engine.forget(id);
      if (is_named) {
        this.#saveLater(id);
      }
    }
  }

  /** Forgets all sessions that are not saved. */
  async forgetAll(): Promise<void> {
    this.#engine.reset();
    this.#unsaved.clear();
    this.#data.clear();
    const ids = this.#parked.entries().map(([id]) => id);
    this.#parked.clear();
    for (const id of this.#resident === null ? ids : [...ids, this.#resident.id]) {
      await this.#introduce(id);
    }
  }

  /** Those on the device and in memory first, each once. Only these where the storage does not answer. */
  async list(): Promise<readonly SessionInfo[]> {
    const saved = await this.#saved();
    const infos = new Map<string, SessionInfo>();
    const add = (info: Omit<SessionInfo, "saved_at" | "data">): void => {
      if (!infos.has(info.id)) {
        const { saved_at = null, data: savedData } = saved.find(({ id }) => id === info.id) ?? {};
        const data = this.#data.has(info.id) ? this.#data.get(info.id) : savedData;
        infos.set(info.id, { ...info, saved_at, ...(data === undefined ? {} : { data }) });
      }
    };
    if (this.#resident !== null && this.#model !== null) {
      add({ ...this.#resident, model: this.#model, where: "resident" });
    }
    for (const [id, { manifest, is_named }] of this.#parked.entries().toReversed()) {
      const { fingerprint, ids } = manifest;
      add({ id, model: fingerprint.model, tokens: ids.length, bytes: snapshotBytes(manifest), is_named, where: "parked" });
    }
    for (const { id, model, tokens, bytes, is_named } of saved) {
      add({ id, model, tokens, bytes, is_named, where: "saved" });
    }
    return [...infos.values()];
  }

  /** Saves a session now, whatever there is. */
  async save(id: string, data: unknown, signal: AbortSignal): Promise<SessionInfo> {
    await this.#save(id, id, { data, signal });
    return this.#info(id);
  }

  /** Makes a session resident. Where that fails, the one before is resident again. */
  async open(id: string, signal: AbortSignal): Promise<SessionInfo> {
    if (this.#resident?.id !== id) {
      await this.#exchange(id, () => this.#bring(id, signal).then(() => undefined), signal);
    }
    return this.#info(id);
  }

  /** Forgets a session wherever it is. */
  async delete(id: string): Promise<void> {
    const isResident = this.#resident?.id === id;
    const wasHere = isResident || this.#parked.get(id) !== undefined;
    this.#parked.delete(id);
    this.#unsaved.delete(id);
    this.#data.delete(id);
    this.#forget(id);
    if (isResident) {
      this.#engine.reset();
      this.#note();
    }
    let wasSaved = false;
    try {
      wasSaved = (await this.#store?.delete(id)) ?? false;
    } catch (error) {
      // Where the storage has never answered, this page has saved nothing.
      if (!wasHere || this.#hasStorageAnswered) {
        throw error;
      }
    }
    if (!wasSaved && !wasHere) {
      throw unknownSession(id);
    }
  }

  /** Gives a session as it is now a second name, under which it can go on in another way. */
  async fork(id: string, as: string, signal: AbortSignal): Promise<SessionInfo> {
    if ((await this.list()).some((info) => info.id === as)) {
      throw new EngineError("invalid_request", {
        detail: `there is a session "${as}" already`,
        hint: "Choose another name, or delete that session first.",
      });
    }
    const data = await this.#dataOf(id);
    const parked = await this.#parkedCopy(id);
    let isHeld = false;
    if (this.#resident?.id === id) {
      isHeld = await this.#hold(as, true, signal);
    } else if (parked !== undefined) {
      this.#parked.put(as, { ...parked, is_named: true, parked_at: Date.now() }, new Map());
      await this.#introduce(as);
      isHeld = true;
    }
    if (isHeld) {
      if (data !== undefined) {
        this.#data.set(as, data);
      }
      this.#saveLater(as);
      await this.#makeRoom(this.#resident?.id ?? null, signal);
    } else {
      await this.#save(id, as, { data, signal });
      await this.#introduce(as);
    }
    return this.#info(as);
  }

  /** A session with all of its bytes; the resident one where there is no id. */
  async snapshot(wanted: string | null, signal: AbortSignal): Promise<SessionSnapshot> {
    const id = wanted ?? this.#resident?.id;
    if (id === undefined) {
      throw new EngineError("session_unknown", { detail: "no session is resident" });
    }
    const data = await this.#dataOf(id);
    const blobs = new Map<string, Blob>();
    const keep = (digest: string, bytes: Uint8Array<ArrayBuffer>): void => void blobs.set(digest, new Blob([bytes]));
    const complete = async (manifest: SnapshotManifest): Promise<SnapshotManifest> => {
      for (const digest of chunkSizes(manifest).keys()) {
        throwIfAborted(signal);
        if (!blobs.has(digest)) {
          keep(digest, await this.#chunk(digest));
        }
      }
      return manifest;
    };
    const manifest =
      this.#resident?.id === id
        ? await complete(await this.#read(this.#engine.snapshot(this.#options.chunk_bytes), this.#isHeld, keep, signal))
        : await this.#withStored(id, signal, ({ manifest }) => complete(manifest));
    const chunks = [...chunkSizes(manifest).keys()].flatMap((digest) => blobs.get(digest) ?? []);
    return { manifest, chunks, ...(data === undefined ? {} : { data }) };
  }

  /** Makes a session of a snapshot, and makes it resident. Where that fails, the one before is resident again. */
  async restore({ manifest, chunks, data, session }: Params<"restore_session">, signal: AbortSignal): Promise<SessionInfo> {
    if (!isSnapshotManifest(manifest)) {
      throw new EngineError("snapshot_corrupt", { detail: "its manifest is none" });
    }
    const large = chunks.find(({ size }) => size > MAX_CHUNK_BYTES);
    if (large !== undefined) {
      throw new EngineError("snapshot_corrupt", { detail: `a chunk has ${large.size} bytes, and ${MAX_CHUNK_BYTES} at most belong to one` });
    }
    const id = session ?? uniqueId();
    const isNamed = session !== undefined;
    await this.#exchange(id, () => this.#install(id, isNamed, manifest, chunks.map((chunk) => () => readBytes(chunk)), signal), signal);
    // What may have had this name has given way.
    this.#parked.delete(id);
    this.#data.set(id, data);
    this.moved();
    return this.#info(id);
  }

  /** Reads the chunks of the resident session but those that `isKnown` by their digests, and gives them to `keep`. */
  async #read(
    { chunks }: OpenSnapshot,
    isKnown: (digest: string) => boolean,
    keep: (digest: string, bytes: Uint8Array<ArrayBuffer>) => void,
    signal: AbortSignal,
  ): Promise<SnapshotManifest> {
    for (const [index, { digest }] of chunks.entries()) {
      if (digest === null || !isKnown(digest)) {
        await turn();
        throwIfAborted(signal);
        const chunk = await this.#engine.snapshot_chunk(index);
        keep(chunk.digest, chunk.bytes);
      }
    }
    return this.#engine.finish_snapshot();
  }

  /** Whether a chunk is in memory. */
  readonly #isHeld = (digest: string): boolean => this.#parked.chunk(digest) !== undefined;

  /** A chunk of a session in memory or in the storage. */
  readonly #chunk = async (digest: string): Promise<Uint8Array<ArrayBuffer>> => {
    const chunk = this.#parked.chunk(digest) ?? (await this.#store?.chunk(digest));
    if (chunk === undefined) {
      throw new EngineError("snapshot_corrupt", { detail: `the chunk ${digest} is missing` });
    }
    return chunk;
  };

  /** Holds a copy of the resident session in memory under the name `as`. False where it is too large for that. */
  async #hold(as: string, isNamed: boolean, signal: AbortSignal): Promise<boolean> {
    const open = this.#engine.snapshot(this.#options.chunk_bytes);
    if (sum(open.chunks.map(({ bytes }) => bytes)) > this.#options.parked_bytes) {
      return false;
    }
    const chunks = new Map<string, Uint8Array<ArrayBuffer>>();
    const manifest = await this.#read(open, this.#isHeld, (digest, bytes) => void chunks.set(digest, bytes), signal);
    this.#parked.put(as, { manifest, is_named: isNamed, parked_at: Date.now() }, chunks);
    await this.#introduce(as);
    return true;
  }

  /** What is in memory of a session, unless it was saved since as another: then that counts, and this is given up. */
  async #parkedCopy(id: string): Promise<ParkedSession | undefined> {
    const parked = this.#parked.get(id);
    if (parked === undefined) {
      return undefined;
    }
    const saved = await this.#store?.read(id).catch(() => undefined);
    if (saved === undefined || saved.saved_at <= parked.parked_at || saved.manifest.digest === parked.manifest.digest) {
      return parked;
    }
    this.#parked.delete(id);
    return undefined;
  }

  /**
   * Tells the engine of a session that is parked or saved, or that it is neither. Resolves with the reason where there
   * is such a session and it cannot be used.
   */
  async #introduce(id: string): Promise<unknown> {
    if (this.#model === null) {
      return undefined;
    }
    try {
      const session = (await this.#parkedCopy(id)) ?? (await this.#store?.read(id));
      this.#engine.forget(id);
      if (session !== undefined) {
        this.#engine.know(id, session.manifest, session.is_named);
      }
      return undefined;
    } catch (error) {
      rethrowIfFinal(error);
      return error;
    }
  }

  /** Keeps the resident session in memory, or in the storage where it is too large; `spared` is to be brought next. */
  async #park(spared: string | undefined, signal: AbortSignal): Promise<void> {
    const session = this.#engine.session();
    if (session !== null && !(await this.#hold(session.id, session.is_named, signal))) {
      await this.#saveResident(session.id, { isAutomatic: true, spared, signal });
      await this.#introduce(session.id);
    }
  }

  /** A session that cannot be kept is told of, and given up. */
  async #parkIfPossible(spared: string | undefined, signal: AbortSignal): Promise<void> {
    try {
      await this.#park(spared, signal);
    } catch (error) {
      rethrowIfFinal(error);
      const session = this.#engine.session();
      if (session !== null) {
        await this.#drop(session.id, error);
      }
    }
  }

  /**
   * Moves sessions from memory to the storage until the others are within the limits. The copy of the session that is
   * to be resident goes first, and needs no saving.
   */
  async #makeRoom(resident: string | null, signal: AbortSignal): Promise<void> {
    for (let id = this.#parked.excess(); id !== undefined; id = this.#parked.excess()) {
      if (resident !== null && this.#parked.get(resident) !== undefined) {
        this.#parked.delete(resident);
      } else {
        await this.#spill(id, signal);
      }
    }
  }

  async #spill(id: string, signal: AbortSignal): Promise<void> {
    try {
      await this.#saveStored(id, id, { isAutomatic: true, signal });
    } catch (error) {
      rethrowIfFinal(error);
      this.#parked.delete(id);
      await this.#drop(id, error);
    }
    this.#parked.delete(id);
  }

  /** A session is given up as it is now; what is saved of it may be older, and has to do. */
  async #drop(id: string, error: unknown): Promise<void> {
    this.#unsaved.delete(id);
    this.#data.delete(id);
    this.#notify("dropped", id, error);
    await this.#introduce(id);
  }

  /** Makes a known session resident. */
  async #bring(id: string, signal: AbortSignal | undefined): Promise<ReuseSource> {
    const source = (await this.#parkedCopy(id)) === undefined ? "saved" : "parked";
    await this.#withStored(id, signal, ({ manifest, is_named }) => {
      const pieces = [...chunkSizes(manifest).keys()].map((digest) => () => this.#chunk(digest));
      return this.#install(id, is_named, manifest, pieces, signal);
    });
    this.#parked.touch(id);
    if (source === "saved") {
      await this.#store?.touch(id).catch(() => undefined);
    }
    return source;
  }

  /** Tells of a session that cannot be brought back, and goes on without it. */
  async #bringIfPossible(id: string, signal: AbortSignal): Promise<ReuseSource | null> {
    try {
      return await this.#bring(id, signal);
    } catch (error) {
      rethrowIfFinal(error);
      if (IS_USELESS.has(serializeError(error).code)) {
        this.#parked.delete(id);
        this.#forget(id);
      }
      this.#notify("not_restored", id, error);
      return null;
    }
  }

  /** A session in memory or in the storage, for as long as `act` runs. */
  async #withStored<T>(
    id: string,
    signal: AbortSignal | undefined,
    act: (session: StoredSession) => Promise<T>,
  ): Promise<T> {
    const store = this.#store;
    const parked = await this.#parkedCopy(id);
    if (parked !== undefined) {
      return act(parked);
    }
    if (store === null) {
      throw unknownSession(id);
    }
    return store.whileReading(async () => {
      const record = await store.read(id);
      if (record === undefined) {
        this.#forget(id);
        throw unknownSession(id);
      }
      return act(record);
    }, signal);
  }

  /** Makes a snapshot the resident session. */
  async #install(
    id: string,
    isNamed: boolean,
    manifest: SnapshotManifest,
    pieces: readonly Piece[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    this.#engine.begin_restore(manifest, id, isNamed);
    for (const piece of pieces) {
      await turn();
      throwIfAborted(signal);
      await this.#engine.restore_chunk(await piece());
    }
    this.#engine.finish_restore();
  }

  /** Lets `act` make the session `id` resident in place of the present one, which comes back where that fails. */
  async #exchange(id: string, act: () => Promise<void>, signal: AbortSignal): Promise<void> {
    const before = this.#engine.session();
    await this.#park(id, signal);
    try {
      await act();
    } catch (error) {
      if (before !== null && !serializeError(error).fatal && this.#engine.session() === null) {
        await this.#bringIfPossible(before.id, NEVER);
      }
      this.#note();
      throw error;
    }
    this.#note();
    await this.#makeRoom(id, signal);
  }

  /** Saves the session `id` as it is now under the name `as`. */
  async #save(id: string, as: string, options: SavingOptions): Promise<void> {
    if (this.#resident?.id === id) {
      await this.#saveResident(as, options);
    } else {
      await this.#saveStored(id, as, options);
    }
  }

  /** Saves a session that is in memory, or once more one that is saved. */
  async #saveStored(id: string, as: string, options: SavingOptions): Promise<void> {
    const session = (await this.#parkedCopy(id)) ?? (await this.#store?.read(id));
    if (session === undefined) {
      throw unknownSession(id);
    }
    await this.#write(as, session, this.#chunk, options);
  }

  /** Saves the resident session, and holds no more of it than a part. */
  async #saveResident(as: string, options: SavingOptions): Promise<void> {
    const { signal } = options;
    const held = new Map<string, Uint8Array<ArrayBuffer>>();
    let room = HELD_BYTES;
    const keep = (digest: string, bytes: Uint8Array<ArrayBuffer>): void => {
      if (bytes.length <= room) {
        held.set(digest, bytes);
        room -= bytes.length;
      }
    };
    const chunk = async (digest: string): Promise<Uint8Array> => {
      const bytes = held.get(digest) ?? this.#parked.chunk(digest);
      held.delete(digest);
      if (bytes !== undefined) {
        return bytes;
      }
      await turn();
      throwIfAborted(signal);
      return (await this.#engine.snapshot_chunk(manifest.chunks.findIndex((chunk) => chunk.digest === digest))).bytes;
    };
    const is_named = this.#engine.session()?.is_named ?? false;
    const manifest = await this.#read(this.#engine.snapshot(this.#options.chunk_bytes), () => true, keep, signal);
    // For chunks that are read a second time.
    this.#engine.snapshot(this.#options.chunk_bytes);
    await this.#write(as, { manifest, is_named }, chunk, options);
  }

  async #write(as: string, session: StoredSession, chunk: ChunkSource, options: SavingOptions): Promise<void> {
    const { isAutomatic = false, spared, signal } = options;
    const store = this.#store;
    const { manifest, is_named } = session;
    const isUnchanged = isAutomatic && !this.#unsaved.has(as) && !this.#data.has(as);
    if (isUnchanged && (await store?.read(as))?.manifest.digest === manifest.digest) {
      return;
    }
    if (store === null || (isAutomatic && !this.#options.autosave)) {
      throw new EngineError("storage_unavailable", {
        detail: `the engine was made with ${store === null ? 'storage: "none"' : "autosave: false"}`,
        hint: "Create the engine with other options.",
      });
    }
    const { data = this.#data.get(as) } = options;
    const snapshot = {
      id: as,
      manifest,
      is_named: is_named || !isAutomatic,
      by_hand: !isAutomatic || data !== undefined,
      ...(data !== undefined || this.#data.has(as) ? { data } : {}),
    };
    const budget = isAutomatic ? { budgetBytes: this.#options.saved_bytes } : {};
    const { evicted } = await store.save(snapshot, chunk, { ...budget, spared, signal });
    this.#data.delete(as);
    this.#unsaved.delete(as);
    for (const { id } of evicted) {
      this.#evicted(id);
    }
  }

  /** Another session has taken the room of this one in the storage. */
  #evicted(id: string): void {
    if (this.#resident?.id === id || this.#parked.get(id) !== undefined) {
      this.#notify("not_saved", id, new EngineError("storage_full", { detail: "the session had to make room for others" }));
    } else {
      this.#forget(id);
      this.#notify("dropped", id, undefined);
    }
  }

  #saveLater(id: string): void {
    if (this.#store !== null && this.#options.autosave) {
      this.#unsaved.add(id);
      this.#dueAt = performance.now() + this.#options.debounce_ms;
    }
  }

  #startSaving(): void {
    const controller = new AbortController();
    const work = this.#saveAll(controller.signal).finally(() => (this.#saving = undefined));
    // A fault of the module reaches the worker as an unhandled rejection, which `work` becomes; whoever waits for the end
    // need not hear of it as well.
    void work.then(() => undefined);
    this.#saving = { controller, end: work.catch(() => undefined) };
  }

  async #saveAll(signal: AbortSignal): Promise<void> {
    for (const id of [...this.#unsaved]) {
      if (this.#resident?.id !== id && this.#parked.get(id) === undefined) {
        this.#unsaved.delete(id);
        continue;
      }
      try {
        await this.#save(id, id, { isAutomatic: true, signal });
        this.#notify("saved", id, undefined);
      } catch (error) {
        if (isAbortError(error)) {
          return;
        }
        rethrowIfFinal(error);
        this.#unsaved.delete(id);
        this.#notify("not_saved", id, error);
      }
    }
  }

  #forget(id: string): void {
    if (this.#model !== null) {
      this.#engine.forget(id);
    }
  }

  /** Takes note of the resident session. */
  #note(): void {
    const session = this.#model === null ? null : this.#engine.session();
    if (session === null) {
      this.#resident = null;
    } else if (session.id !== this.#resident?.id || session.tokens !== this.#resident.tokens) {
      this.#resident = { ...session, bytes: this.#residentBytes() };
    }
  }

  #residentBytes(): number {
    try {
      return sum(this.#engine.snapshot(this.#options.chunk_bytes).chunks.map(({ bytes }) => bytes));
    } catch (error) {
      // After a step that has failed there is nothing to take a snapshot of.
      rethrowIfFinal(error);
      return 0;
    }
  }

  #notify(code: SessionNoticeCode, id: string, error: unknown): void {
    this.#tell({ code, session: id, message: MESSAGES[code] }, error);
  }

  /** What the page keeps with a session. */
  async #dataOf(id: string): Promise<unknown> {
    return this.#data.has(id) ? this.#data.get(id) : (await this.#store?.read(id).catch(() => undefined))?.data;
  }

  /** What is saved; nothing where the storage does not answer: what is in memory needs none. */
  async #saved(): Promise<readonly SnapshotInfo[]> {
    try {
      const saved = (await this.#store?.list()) ?? [];
      this.#hasStorageAnswered = true;
      return saved;
    } catch (error) {
      rethrowIfFinal(error);
      return [];
    }
  }

  async #info(id: string): Promise<SessionInfo> {
    const info = (await this.list()).find((info) => info.id === id);
    if (info === undefined) {
      throw unknownSession(id);
    }
    return info;
  }
}

function unknownSession(id: string): EngineError {
  return new EngineError("session_unknown", { detail: `"${id}" is neither in memory nor saved` });
}

/** An abort ends what is going on, and after a fault of the module nothing can go on. */
function rethrowIfFinal(error: unknown): void {
  if (isAbortError(error) || serializeError(error).fatal) {
    throw error;
  }
}
