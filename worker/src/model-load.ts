/** The way of a model's bytes from the storage into the engine, file by file. */

import { EngineError, throwIfAborted } from "./errors.js";
import type { PartEvent } from "./storage/messages.js";
import type { StorageClient } from "./storage/storage-client.js";
import { turn } from "./turn.js";
import type { Progress } from "./types.js";
import type { PartProgress, WasmEngine } from "./wasm-engine.js";

/** Progress is worth a message this often, in milliseconds. */
const PROGRESS_INTERVAL_MS = 50;
/** The engine takes so many bytes at a time: between two pieces an abort is heard. */
const PUSH_BYTES = 4 * 1024 * 1024;

type Piece = Extract<PartEvent, { type: "piece" }>;

/** A file of the model whose first bytes have come. */
export interface OpenFile {
  readonly first: Piece | undefined;
  readonly rest: AsyncGenerator<Piece, void, void>;
}

export class ModelLoad {
  readonly #engine: WasmEngine;
  readonly #storage: StorageClient;
  readonly #signal: AbortSignal;
  readonly #onProgress: (progress: Progress) => void;
  /** Bytes of each file, null where a server does not say. */
  readonly #sizes: (number | null)[];
  /** Bytes of the files before the present one, and of it. */
  #bytesBefore = 0;
  #bytesSeen = 0;
  #bytesLocal = 0;
  #hasSourceFailed = false;
  /** The most bytes that were reported: what another tab has downloaded is read here later. */
  #reported = 0;
  #reportedAt = Number.NEGATIVE_INFINITY;

  constructor(
    engine: WasmEngine,
    storage: StorageClient,
    sizes: readonly (number | null)[],
    signal: AbortSignal,
    onProgress: (progress: Progress) => void,
  ) {
    this.#engine = engine;
    this.#storage = storage;
    this.#sizes = [...sizes];
    this.#signal = signal;
    this.#onProgress = onProgress;
  }

  /** Whether the bytes did not come: then nothing is known of what they are. */
  get hasSourceFailed(): boolean {
    return this.#hasSourceFailed;
  }

  /** Opens a file and waits for its first bytes. */
  async open(part: number): Promise<OpenFile> {
    const rest = this.#pieces(part);
    const { value } = await rest.next();
    return { first: value ?? undefined, rest };
  }

  /**
   * Gives all files to the engine; the first is open already. The headers of a model of several files are read before
   * everything else, so that one that cannot run is refused before its weights are fetched.
   */
  async read(first: OpenFile): Promise<void> {
    const parts = this.#sizes.length;
    this.#tell(0, 0, false);
    if (parts > 1) {
      for (let part = 0; part < parts; part += 1) {
        await this.#readHeader(part, part === 0 ? first : await this.open(part));
      }
    }
    for (let part = 0; part < parts; part += 1) {
      await this.#readFile(part, parts === 1 ? first : await this.open(part));
    }
  }

  async #readHeader(part: number, file: OpenFile): Promise<void> {
    for await (const { bytes } of this.#begin(part, file)) {
      const { header_complete } = await this.#push(bytes);
      if (header_complete) {
        return;
      }
    }
    // The file ended first, and the engine says so.
    await this.#engine.end_part();
  }

  async #readFile(part: number, file: OpenFile): Promise<void> {
    this.#bytesSeen = 0;
    for await (const { bytes, is_local } of this.#begin(part, file)) {
      await this.#push(bytes);
      this.#bytesSeen += bytes.length;
      this.#bytesLocal += is_local ? bytes.length : 0;
      if (performance.now() - this.#reportedAt >= PROGRESS_INTERVAL_MS) {
        this.#tell(part, this.#bytesBefore + this.#bytesSeen, false);
        await turn();
      }
      throwIfAborted(this.#signal);
    }
    await this.#engine.end_part();
    this.#bytesBefore += this.#bytesSeen;
    this.#tell(part, this.#bytesBefore, false);
  }

  async #push(bytes: Uint8Array): Promise<PartProgress> {
    const progress = await this.#engine.push(bytes);
    const given = this.#sizes.length;
    // The first header tells of how many files the model consists.
    if (progress.n_parts > 0 && progress.n_parts !== given) {
      throw new EngineError("weights_invalid", {
        detail: `the model consists of ${progress.n_parts} files, and ${given} were given`,
        hint: "Choose all files of the model together.",
      });
    }
    return progress;
  }

  /** A file from its start, in pieces that the engine can take. */
  async *#begin(part: number, { first, rest }: OpenFile): AsyncGenerator<Piece, void, void> {
    try {
      this.#engine.begin_part(part, this.#sizes[part] ?? undefined);
      if (first !== undefined) {
        yield* cut(first);
      }
      for await (const piece of rest) {
        yield* cut(piece);
      }
    } finally {
      await rest.return();
    }
  }

  async *#pieces(part: number): AsyncGenerator<Piece, void, void> {
    const events = this.#storage.read(part, this.#signal);
    try {
      for (let event = await this.#next(events); event !== undefined; event = await this.#next(events)) {
        this.#sizes[part] = event.file_bytes;
        if (event.type === "waiting") {
          this.#tell(part, this.#bytesBefore + event.bytes_seen, true);
        } else {
          yield event;
        }
      }
    } finally {
      await events.return();
    }
  }

  async #next(events: AsyncGenerator<PartEvent, void, void>): Promise<PartEvent | undefined> {
    try {
      return (await events.next()).value ?? undefined;
    } catch (error) {
      this.#hasSourceFailed = true;
      throw error;
    }
  }

  #tell(part: number, bytes_seen: number, is_waiting: boolean): void {
    this.#reported = Math.max(this.#reported, bytes_seen);
    this.#reportedAt = performance.now();
    this.#onProgress({
      stage: "download",
      part,
      parts: this.#sizes.length,
      bytes_seen: this.#reported,
      bytes_total: this.#sizes.reduce((sum, bytes) => (sum === null || bytes === null ? null : sum + bytes), 0),
      bytes_local: this.#bytesLocal,
      is_waiting,
    });
  }
}

function* cut(piece: Piece): Generator<Piece, void, void> {
  for (let start = 0; start < piece.bytes.length; start += PUSH_BYTES) {
    yield { ...piece, bytes: piece.bytes.subarray(start, start + PUSH_BYTES) };
  }
}
