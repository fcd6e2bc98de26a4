/** What is kept of one file on this machine: its manifest, and its segments in one of the stores. */

import type { StorageTimes, StoreKind } from "../types.js";
import type { Stores } from "./choose-store.js";
import { sha256 as sha256Of } from "./hashes.js";
import { SourceChanged } from "./http-file.js";
import { deleteFile } from "./library.js";
import {
  fileBytes,
  readManifest,
  storedBytes,
  unknownIdentity,
  updateManifest,
  type FileIdentity,
  type FileManifest,
  type SegmentRecord,
} from "./manifests.js";
import { whileWriting } from "./segment-lock.js";
import { StoreError } from "./segment-store.js";
import type { WasmHashes } from "./wasm-hashes.js";

/** What the files of all models have in common. */
export interface StorageTools {
  readonly stores: Stores;
  readonly hashes: WasmHashes;
  readonly segmentBytes: number;
  /** Where the time of the present model goes. */
  readonly times: { -readonly [K in keyof StorageTimes]: StorageTimes[K] };
  /** Hears why a file cannot be kept. */
  readonly onStoreError: (error: StoreError) => void;
}

/** Of which file, and which of a model's files it is. */
export type Place = Pick<FileManifest, "id" | "model" | "part" | "parts" | "name">;

/** Segments whose memory is kept for others: one in use, one on the way, one being read. */
const MAX_POOLED = 3;

export class KeptFile {
  readonly #place: Place;
  readonly #tools: StorageTools;
  #manifest: FileManifest | undefined;
  /** Storage has refused, or nothing is to be kept. */
  #isGivenUp: boolean;
  /** Bytes of the file have been read or taken, so that no other version may take its place. */
  #hasBegun = false;
  /** Segments that have to be fetched, whatever the manifest says. */
  readonly #lacking = new Set<number>();
  /** SHA-256 of every segment where a copy that was whole is read: what is fetched must have it. */
  #expected: readonly string[] | undefined;
  /** The segment that is arriving, its index and how much of it is there. */
  #segment: Uint8Array<ArrayBuffer> | undefined;
  #index = 0;
  #filled = 0;
  /** The segment before, on its way into the store. */
  #writing: Promise<void> = Promise.resolve();
  readonly #pool: ArrayBuffer[] = [];

  private constructor(place: Place, tools: StorageTools, isKept: boolean) {
    this.#place = place;
    this.#tools = tools;
    this.#isGivenUp = !isKept;
  }

  /** With `isKept` false nothing is read from this machine and nothing is kept. */
  static async open(place: Place, tools: StorageTools, isKept: boolean): Promise<KeptFile> {
    const file = new KeptFile(place, tools, isKept);
    await file.refresh();
    return file;
  }

  get manifest(): FileManifest | undefined {
    return this.#manifest;
  }

  /** The store that has all of the file. */
  get store(): StoreKind | null {
    const isWhole = this.#manifest !== undefined && storedBytes(this.#manifest) === fileBytes(this.#manifest);
    return isWhole && this.#lacking.size === 0 ? (this.#manifest?.store ?? null) : null;
  }

  get isGivenUp(): boolean {
    return this.#isGivenUp;
  }

  /** Demands of every segment, wherever it comes from, that it be the one that is recorded now. The copy is whole. */
  expectRecorded(): void {
    this.#expected = this.#manifest?.segments.map((record) => record?.sha256 ?? "");
  }

  /** Takes note of what other tabs have done. Rejects with `SourceChanged` where they have another version of the file. */
  async refresh(): Promise<void> {
    await this.#attempt(async () => this.#adopt(await readManifest(this.#place.id)));
  }

  /** A segment as it was written; undefined where it is not there any more, or was not yet. */
  async read(index: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const { stores, hashes, segmentBytes, times } = this.#tools;
    const record = this.#manifest?.segments[index];
    if (this.#manifest === undefined || record === undefined || record === null || this.#lacking.has(index)) {
      return undefined;
    }
    this.#requireExpected(index, record.sha256);
    const segment = new Uint8Array(this.#pool.pop() ?? new ArrayBuffer(segmentBytes), 0, record.length);
    const start = performance.now();
    // Undefined where the store does not answer: the segment may be there the next time.
    const isThere = await stores
      .get(this.#manifest.store)
      ?.read(record.sha256, segment)
      .catch(() => undefined);
    const afterRead = performance.now();
    const isSound = isThere === true && hashes.checksum(segment) === record.checksum;
    times.read_ms += afterRead - start;
    times.checksum_ms += performance.now() - afterRead;
    if (isSound) {
      this.#hasBegun = true;
      times.bytes_kept += segment.length;
      return segment;
    }
    this.giveBack(segment.buffer);
    this.#lacking.add(index);
    if (isThere !== undefined) {
      await this.#attempt(async () => this.#adopt(await updateManifest(this.#place.id, (now) => struck(now, index, record))));
    }
    return undefined;
  }

  /** Memory of a segment that was used; it serves another. */
  giveBack(buffer: ArrayBuffer): void {
    if (buffer.byteLength === this.#tools.segmentBytes && this.#pool.length < MAX_POOLED) {
      this.#pool.push(buffer);
    }
  }

  /** The first segment from `index` on that is there. */
  nextKept(index: number): number | undefined {
    const segments = this.#manifest?.segments ?? [];
    const found = segments.findIndex((record, at) => at >= index && record !== null && !this.#lacking.has(at));
    return found < 0 ? undefined : found;
  }

  /** The bytes that are taken next begin at this segment. */
  begin(index: number): void {
    this.#index = index;
    this.#filled = 0;
  }

  /** Takes the next bytes of the file, which is `identity`. */
  async take(bytes: Uint8Array, identity: FileIdentity): Promise<void> {
    const { segmentBytes } = this.#tools;
    this.#hasBegun = true;
    for (let start = 0; start < bytes.length && this.#isOfUse(); ) {
      this.#segment ??= new Uint8Array(this.#pool.pop() ?? new ArrayBuffer(segmentBytes));
      const part = bytes.subarray(start, start + segmentBytes - this.#filled);
      this.#segment.set(part, this.#filled);
      this.#filled += part.length;
      start += part.length;
      if (this.#filled === segmentBytes) {
        await this.flush(identity);
      }
    }
  }

  /** Keeps the segment that is arriving as it is now: it is full, or the file's last. */
  async flush(identity: FileIdentity): Promise<void> {
    if (this.#segment === undefined || this.#filled === 0) {
      return;
    }
    const [segment, index] = [this.#segment.subarray(0, this.#filled), this.#index];
    this.#segment = undefined;
    this.#index += 1;
    this.#filled = 0;
    await this.#writing;
    this.#writing = this.#keep(index, segment, identity).finally(() => this.giveBack(segment.buffer));
    // Whoever waits for it hears of a failure; nobody may wait before it happens.
    this.#writing.catch(() => undefined);
  }

  /** Waits for the segment that is on its way into the store, whatever becomes of it. */
  async settle(): Promise<void> {
    await this.#writing.catch(() => undefined);
  }

  /**
   * The whole file has been read, and `sha256` is its digest. Rejects with `SourceChanged` where a segment that was
   * fetched is not the one that was there before.
   */
  async complete(identity: FileIdentity, sha256: string): Promise<void> {
    await this.#writing;
    await this.#attempt(async () =>
      this.#adopt(
        await updateManifest(this.#place.id, (now) => {
          return now !== undefined && this.#isOurs(now) ? { ...now, identity, sha256, used_at: Date.now() } : undefined;
        }),
      ),
    );
  }

  /** Forgets the file, if no other tab has put another version in its place; what comes next is another one. */
  async forget(): Promise<void> {
    await this.settle();
    if (this.#manifest !== undefined) {
      await this.#delete();
    }
    this.#lacking.clear();
    this.#expected = undefined;
    this.#hasBegun = false;
  }

  /** Whether the bytes that arrive are to be kept or compared. */
  #isOfUse(): boolean {
    return !this.#isGivenUp || this.#expected !== undefined;
  }

  async #keep(index: number, segment: Uint8Array<ArrayBuffer>, identity: FileIdentity): Promise<void> {
    // Without storage there may be nothing to hash with, and no need.
    const sha256 = this.#expected && (await sha256Of(segment));
    if (sha256 !== undefined) {
      this.#requireExpected(index, sha256);
    }
    await this.#attempt(() => this.#write(index, segment, identity, sha256));
    // A download that cannot be kept whole leaves nothing. A copy that was whole stays, whatever one of its segments lacks.
    if (this.#isGivenUp && this.#manifest?.sha256 === null) {
      await this.#delete();
    }
  }

  async #write(index: number, segment: Uint8Array<ArrayBuffer>, identity: FileIdentity, known: string | undefined): Promise<void> {
    const { stores, hashes, segmentBytes } = this.#tools;
    const store = this.#manifest === undefined ? await stores.best() : stores.get(this.#manifest.store);
    if (store === undefined) {
      throw new StoreError("unavailable");
    }
    const sha256 = known ?? (await sha256Of(segment));
    const record = { length: segment.length, sha256, checksum: hashes.checksum(segment) };
    const now = Date.now();
    const empty: FileManifest = {
      ...this.#place,
      store: store.kind,
      identity,
      segment_bytes: segmentBytes,
      segments: [],
      sha256: null,
      created_at: now,
      used_at: now,
    };
    const isFirst = this.#manifest === undefined;
    await whileWriting(async () => {
      await store.write(sha256, segment);
      const kept = await updateManifest(this.#place.id, (kept) => {
        const base = isFirst ? empty : kept;
        return base !== undefined && (isFirst || this.#isOurs(base)) ? { ...withSegment(base, index, record), identity } : undefined;
      });
      this.#lacking.delete(index);
      if (isFirst) {
        this.#manifest = kept;
      } else {
        this.#adopt(kept);
      }
    });
  }

  /** Goes on with what the database has now. */
  #adopt(now: FileManifest | undefined): void {
    if (now === undefined) {
      // Somebody has deleted the file: what comes now is not kept.
      this.#isGivenUp ||= this.#manifest !== undefined;
      this.#manifest = undefined;
    } else if (this.#manifest === undefined ? this.#hasBegun : !this.#isOurs(now)) {
      this.#manifest = undefined;
      this.#isGivenUp = true;
      throw new SourceChanged(now.identity);
    } else {
      this.#manifest = now;
    }
  }

  /** Whether a manifest is the one that was adopted first, with more or fewer segments. */
  #isOurs({ created_at, store, segment_bytes }: FileManifest): boolean {
    const own = this.#manifest;
    return own?.created_at === created_at && own.store === store && own.segment_bytes === segment_bytes;
  }

  #requireExpected(index: number, sha256: string): void {
    if (this.#expected !== undefined && this.#expected[index] !== sha256) {
      throw new SourceChanged(this.#manifest?.identity ?? unknownIdentity(this.#place.id));
    }
  }

  async #delete(): Promise<void> {
    const now = await readManifest(this.#place.id).catch(() => undefined);
    if (now !== undefined && this.#isOurs(now)) {
      await deleteFile(this.#place.id, this.#tools.stores).catch(() => undefined);
    }
    this.#manifest = undefined;
  }

  /** Does without the storage once it has refused. */
  async #attempt(work: () => Promise<void>): Promise<void> {
    if (this.#isGivenUp) {
      return;
    }
    try {
      await work();
    } catch (error) {
      if (!(error instanceof StoreError)) {
        throw error;
      }
      this.#isGivenUp = true;
      this.#tools.onStoreError(error);
    }
  }
}

/** The manifest without a segment that is damaged, if it still has that one. */
function struck(manifest: FileManifest | undefined, index: number, record: SegmentRecord): FileManifest | undefined {
  return manifest?.segments[index]?.sha256 === record.sha256 ? withSegment(manifest, index, null) : undefined;
}

function withSegment(manifest: FileManifest, index: number, record: SegmentRecord | null): FileManifest {
  const segments = Array.from(
    { length: Math.max(manifest.segments.length, index + 1) },
    (_, at) => (at === index ? record : (manifest.segments[at] ?? null)),
  );
  return { ...manifest, segments };
}
