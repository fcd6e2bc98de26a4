/**
 * Reads a model's file in order: from this machine as far as it is there, from its origin where it is not.
 * What arrives is kept, segment by segment; what turns out to be damaged is fetched again, and nothing else.
 */

import { abortError, EngineError, throwIfAborted } from "../errors.js";
import type { ModelFile } from "../types.js";
import { SourceChanged } from "./http-file.js";
import { KeptFile, type StorageTools } from "./kept-file.js";
import { unknownIdentity, type FileIdentity, type FileManifest } from "./manifests.js";
import type { PartEvent } from "./messages.js";
import type { Origin, SourceFile } from "./origin.js";
import type { StreamHash } from "./wasm-hashes.js";

/** A file's place in its model, and what is asked of it. */
export interface FileRequest {
  /** Id of the model's first file. */
  readonly model: string;
  readonly part: number;
  readonly parts: number;
  /** SHA-256 that the file must have. */
  readonly sha256: string | undefined;
  readonly isKept: boolean;
}

/** A server that does not say within this whether its file has changed is not waited for, in milliseconds. */
const PROBE_PATIENCE_MS = 3_000;
/** How often to look how far another tab has come, in milliseconds. */
const WAIT_INTERVAL_MS = 200;

export class ModelFileReader {
  readonly #file: SourceFile;
  readonly #request: FileRequest;
  readonly #tools: StorageTools;
  readonly #kept: KeptFile;
  #origin: Origin | undefined;
  /** Bytes of the file, once its end was reached. */
  #end: number | undefined;
  #sha256: string | undefined;

  private constructor(file: SourceFile, request: FileRequest, tools: StorageTools, kept: KeptFile) {
    this.#file = file;
    this.#request = request;
    this.#tools = tools;
    this.#kept = kept;
    this.#origin = file.origin(kept.manifest?.identity);
  }

  /** Finds what there is of the file on this machine, and forgets it where it is not what is asked for. */
  static async open(file: SourceFile, request: FileRequest, tools: StorageTools, signal: AbortSignal): Promise<ModelFileReader> {
    const { id, name } = file;
    const { model, part, parts, isKept } = request;
    const kept = await KeptFile.open({ id, model, part, parts, name }, tools, isKept);
    const reader = new ModelFileReader(file, request, tools, kept);
    if (kept.manifest !== undefined && !(await reader.#isCurrent(kept.manifest, signal))) {
      if (reader.#origin === undefined) {
        // The copy is all there is.
        throw new EngineError("digest_mismatch", { detail: `the copy of ${name} on this machine is another file` });
      }
      await reader.forget();
    }
    return reader;
  }

  /** Bytes of the file where they are known. */
  get bytes(): number | null {
    return this.#end ?? this.#origin?.identity?.bytes ?? this.#kept.manifest?.identity.bytes ?? null;
  }

  /** SHA-256 of the file where all of it has been read, now or earlier. */
  get sha256(): string | undefined {
    return this.#sha256 ?? this.#kept.manifest?.sha256 ?? undefined;
  }

  describe(): ModelFile {
    return { name: this.#file.name, bytes: this.bytes ?? 0, sha256: this.sha256 ?? "", store: this.#kept.store };
  }

  /** Forgets what is kept of the file; it is read anew from its origin. */
  async forget(): Promise<void> {
    await this.#kept.forget();
    this.#end = undefined;
    this.#sha256 = undefined;
    this.#origin = this.#file.origin(undefined);
  }

  /** Memory of a piece that was used. */
  giveBack(buffer: ArrayBuffer): void {
    this.#kept.giveBack(buffer);
  }

  /** All bytes of the file, in order, and word of another tab while that downloads it. */
  async *read(signal: AbortSignal): AsyncGenerator<PartEvent, void, void> {
    // A copy that is whole is known by the digests of its segments; what replaces one has to have the same.
    const known = this.sha256;
    const isWhole = known !== undefined && this.#kept.store !== null;
    const hash = isWhole ? undefined : this.#tools.hashes.sha256();
    if (isWhole) {
      this.#kept.expectRecorded();
    }
    this.#end = undefined;
    let offset = 0;
    while (this.#end === undefined) {
      throwIfAborted(signal);
      const segment = await this.#kept.read(offset / this.#tools.segmentBytes);
      if (segment === undefined) {
        offset = yield* this.#download(offset, hash, signal);
      } else {
        this.#hash(hash, segment);
        offset += segment.length;
        yield { type: "piece", bytes: segment, file_bytes: this.bytes, is_local: true };
      }
      if (this.bytes !== null && offset >= this.bytes) {
        this.#end = offset;
      }
    }
    const sha256 = hash?.finish() ?? known ?? "";
    if (known !== undefined && known !== sha256) {
      throw new SourceChanged(this.#known());
    }
    await this.#conclude(sha256);
  }

  /** Whether what is kept is the file that is asked for and that its origin has now. */
  async #isCurrent(manifest: FileManifest, signal: AbortSignal): Promise<boolean> {
    const { sha256 } = this.#request;
    if (manifest.segment_bytes !== this.#tools.segmentBytes) {
      return false;
    }
    if (sha256 !== undefined && manifest.sha256 !== null) {
      return sha256 === manifest.sha256;
    }
    const { etag, last_modified } = manifest.identity;
    if (this.#file.isLocal && last_modified === null) {
      // Nothing tells two local files of one size apart.
      return this.#origin === undefined;
    }
    if (this.#origin === undefined) {
      return true;
    }
    if (manifest.sha256 === null) {
      // The rest is compared when it is fetched, if there is anything to compare.
      return sha256 !== undefined || etag !== null || last_modified !== null;
    }
    try {
      await this.#origin.probe(AbortSignal.any([signal, AbortSignal.timeout(PROBE_PATIENCE_MS)]));
      return true;
    } catch (error) {
      throwIfAborted(signal);
      // Without a connection the copy is as good as it was.
      return !(error instanceof SourceChanged);
    }
  }

  /**
   * Fetches what is missing from `offset` on, up to the next segment that is there, and keeps it. Returns how far that
   * goes. One tab at a time downloads a file; the others wait, and then find it on this machine.
   */
  async *#download(offset: number, hash: StreamHash | undefined, signal: AbortSignal): AsyncGenerator<PartEvent, number, void> {
    const lock = new FileLock(this.#file.id, signal);
    try {
      if (!this.#kept.isGivenUp) {
        yield* this.#wait(lock);
        await this.#kept.refresh();
        this.#origin = this.#origin?.identity === undefined ? this.#file.origin(this.#kept.manifest?.identity) : this.#origin;
        if (this.#kept.nextKept(offset / this.#tools.segmentBytes) === offset / this.#tools.segmentBytes) {
          return offset;
        }
      }
      return yield* this.#fetch(offset, hash, signal);
    } finally {
      lock.release();
    }
  }

  /** Waits for the file's lock, and tells meanwhile how far its holder has come. */
  async *#wait(lock: FileLock): AsyncGenerator<PartEvent, void, void> {
    while (!(await lock.acquire(WAIT_INTERVAL_MS))) {
      await this.#kept.refresh();
      const { manifest } = this.#kept;
      const arrived = manifest?.segments.reduce((sum, record) => sum + (record?.length ?? 0), 0) ?? 0;
      yield { type: "waiting", bytes_seen: arrived, file_bytes: manifest?.identity.bytes ?? this.bytes };
    }
  }

  async *#fetch(start: number, hash: StreamHash | undefined, signal: AbortSignal): AsyncGenerator<PartEvent, number, void> {
    const origin = this.#origin;
    if (origin === undefined) {
      throw new EngineError("weights_invalid", {
        detail: `the copy of ${this.#file.name} on this machine is damaged`,
        hint: "Choose the file again.",
      });
    }
    const { segmentBytes } = this.#tools;
    const next = this.#kept.nextKept(start / segmentBytes);
    const end = next === undefined ? undefined : next * segmentBytes;
    let offset = start;
    this.#kept.begin(start / segmentBytes);
    const { times } = this.#tools;
    let askedAt = performance.now();
    try {
      for await (const bytes of origin.read(start, end, signal)) {
        times.fetch_ms += performance.now() - askedAt;
        times.bytes_fetched += bytes.length;
        this.#hash(hash, bytes);
        await this.#kept.take(bytes, this.#known());
        offset += bytes.length;
        // Nobody shares this memory with other threads.
        yield { type: "piece", bytes: bytes as Uint8Array<ArrayBuffer>, file_bytes: this.bytes, is_local: this.#file.isLocal };
        askedAt = performance.now();
      }
      if (end === undefined) {
        this.#end = offset;
      }
      await this.#kept.flush(this.#known());
    } finally {
      // What has come is kept, also where the rest does not come, and before another tab may download.
      await this.#kept.settle();
    }
    return offset;
  }

  #hash(hash: StreamHash | undefined, bytes: Uint8Array): void {
    const start = performance.now();
    hash?.update(bytes);
    this.#tools.times.sha256_ms += performance.now() - start;
  }

  /** What is known of the file. */
  #known(): FileIdentity {
    return this.#origin?.identity ?? this.#kept.manifest?.identity ?? unknownIdentity(this.#file.id);
  }

  /** All bytes are there: compares their digest with the one that was promised. */
  async #conclude(sha256: string): Promise<void> {
    const promised = this.#request.sha256;
    if (promised !== undefined && promised !== sha256) {
      await this.forget();
      throw new EngineError("digest_mismatch", { detail: `${this.#file.name} has the SHA-256 ${sha256}, not ${promised}` });
    }
    this.#sha256 = sha256;
    await this.#kept.complete({ ...this.#known(), bytes: this.bytes }, sha256);
  }
}

/** The right to download a file, of all tabs of this origin. Without locks, as outside of secure contexts, everybody has it. */
class FileLock {
  readonly #name: string;
  readonly #controller = new AbortController();
  /** Rejects when whoever waits gives up. */
  readonly #aborted: Promise<never>;
  #request: Promise<true> | undefined;
  #release: (() => void) | undefined;

  constructor(id: string, signal: AbortSignal) {
    this.#name = `signbit-file ${id}`;
    this.#aborted = aborted(signal);
    this.#aborted.catch(() => undefined);
  }

  /** Resolves with false where another has the lock for longer than `patience_ms`; asked again it goes on waiting. */
  async acquire(patience_ms: number): Promise<boolean> {
    const { locks } = navigator as { readonly locks?: LockManager };
    if (locks === undefined) {
      return true;
    }
    this.#request ??= this.#ask(locks);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const patience = new Promise<false>((resolve) => (timer = setTimeout(() => resolve(false), patience_ms)));
    try {
      return await Promise.race([this.#request, patience, this.#aborted]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Gives the lock back, or stops asking for it. */
  release(): void {
    this.#release?.();
    this.#controller.abort();
  }

  #ask(locks: LockManager): Promise<true> {
    const request = new Promise<true>((resolve, reject) => {
      locks
        .request(this.#name, { signal: this.#controller.signal }, () => {
          resolve(true);
          return new Promise<void>((release) => (this.#release = release));
        })
        .catch(reject);
    });
    request.catch(() => undefined);
    return request;
  }
}

function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const abort = (): void => reject(abortError());
    if (signal.aborted) {
      abort();
    }
    signal.addEventListener("abort", abort, { once: true });
  });
}
