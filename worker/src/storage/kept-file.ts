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
  /** Digests of segments that were damaged: what is fetched in their place must have them. */
  readonly #damaged = new Map<number, string>();
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
    return isWhole ? (this.#manifest?.store ?? null) : null;
  }

  get isGivenUp(): boolean {
    return this.#isGivenUp;
  }

  /** Takes note of what other tabs have done. */
  async refresh(): Promise<void> {
    await this.#attempt(async () => {
      this.#manifest = await readManifest(this.#place.id);
    });
  }

  /** A segment as it was written; undefined where it is not there any more, or was not yet. */
  async read(index: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const { stores, hashes, segmentBytes, times } = this.#tools;
    const record = this.#manifest?.segments[index];
    if (this.#manifest === undefined || record === undefined || record === null) {
      return undefined;
    }
    const segment = new Uint8Array(this.#pool.pop() ?? new ArrayBuffer(segmentBytes), 0, record.length);
    const store = stores.get(this.#manifest.store);
    const start = performance.now();
    const isThere = await store?.read(record.sha256, segment).catch(() => false);
    const afterRead = performance.now();
    const isSound = isThere === true && hashes.checksum(segment) === record.checksum;
    times.read_ms += afterRead - start;
    times.checksum_ms += performance.now() - afterRead;
    if (isSound) {
      times.bytes_kept += segment.length;
      return segment;
    }
    this.giveBack(segment.buffer);
    this.#damaged.set(index, record.sha256);
    await this.#attempt(async () => {
      this.#manifest = await updateManifest(this.#place.id, (now) => now && withSegment(now, index, null));
    });
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
    const found = this.#manifest?.segments.findIndex((record, at) => at >= index && record !== null) ?? -1;
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
    for (let start = 0; start < bytes.length && !this.#isGivenUp; ) {
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
    this.#writing = this.#attempt(() => this.#write(index, segment, identity))
      .then(() => this.#dropUnfinished())
      .finally(() => this.giveBack(segment.buffer));
    // Whoever waits for it hears of a failure; nobody may wait before it happens.
    this.#writing.catch(() => undefined);
  }

  /** Waits for the segment that is on its way into the store, whatever becomes of it. */
  async settle(): Promise<void> {
    await this.#writing.catch(() => undefined);
  }

  /** The whole file has been read, and `sha256` is its digest. */
  async complete(identity: FileIdentity, sha256: string): Promise<void> {
    await this.#writing;
    await this.#attempt(async () => {
      this.#manifest = await updateManifest(this.#place.id, (now) => now && { ...now, identity, sha256, used_at: Date.now() });
    });
  }

  /** Forgets the file. */
  async forget(): Promise<void> {
    await this.settle();
    this.#damaged.clear();
    if (this.#manifest !== undefined) {
      this.#manifest = undefined;
      await deleteFile(this.#place.id, this.#tools.stores).catch(() => undefined);
    }
  }

  async #write(index: number, segment: Uint8Array<ArrayBuffer>, identity: FileIdentity): Promise<void> {
    const { stores, hashes, segmentBytes } = this.#tools;
    const sha256 = await sha256Of(segment);
    if ((this.#damaged.get(index) ?? sha256) !== sha256) {
      throw new SourceChanged(identity);
    }
    const store = this.#manifest === undefined ? await stores.best() : stores.get(this.#manifest.store);
    if (store === undefined) {
      throw new StoreError("unavailable");
    }
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
    await whileWriting(async () => {
      await store.write(sha256, segment);
      this.#manifest = await updateManifest(this.#place.id, (kept) => withSegment(kept ?? empty, index, record));
    });
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

  /** A download that cannot be kept whole leaves nothing. A copy that was whole stays, whatever one of its segments lacks. */
  async #dropUnfinished(): Promise<void> {
    if (this.#isGivenUp && this.#manifest?.sha256 === null) {
      this.#manifest = undefined;
      await deleteFile(this.#place.id, this.#tools.stores).catch(() => undefined);
    }
  }
}

function withSegment(manifest: FileManifest, index: number, record: SegmentRecord | null): FileManifest {
  const segments = Array.from(
    { length: Math.max(manifest.segments.length, index + 1) },
    (_, at) => (at === index ? record : (manifest.segments[at] ?? null)),
  );
  return { ...manifest, segments };
}
