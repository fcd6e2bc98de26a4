/** A model file that somebody chose on this machine. */

import { EngineError, throwIfAborted } from "../errors.js";
import { SourceChanged } from "./http-file.js";
import { differs } from "./http-headers.js";
import type { FileIdentity } from "./manifests.js";
import type { Origin } from "./origin.js";

/** Bytes that are read at a time. */
const PIECE_BYTES = 4 * 1024 * 1024;

export class BlobFile implements Origin {
  readonly identity: FileIdentity;
  readonly #known: FileIdentity;
  readonly #name: string;
  readonly #blob: Blob;

  /** `known`: what was learnt of the file before; it must still be so. */
  constructor(name: string, blob: Blob, known?: FileIdentity) {
    this.#name = name;
    this.#blob = blob;
    const last_modified = blob instanceof File ? new Date(blob.lastModified).toISOString() : null;
    this.identity = { url: name, bytes: blob.size, etag: null, last_modified };
    this.#known = known ?? this.identity;
  }

  async probe(): Promise<FileIdentity> {
    if (differs(this.#known, this.identity, true)) {
      throw new SourceChanged(this.identity);
    }
    return this.identity;
  }

  async *read(start: number, end: number | undefined, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    await this.probe();
    const stop = Math.min(end ?? this.#blob.size, this.#blob.size);
    for (let offset = start; offset < stop; offset += PIECE_BYTES) {
      let buffer: ArrayBuffer;
      try {
        buffer = await this.#blob.slice(offset, Math.min(offset + PIECE_BYTES, stop)).arrayBuffer();
      } catch (cause) {
        throw new EngineError("weights_invalid", {
          detail: `${this.#name} could not be read beyond ${offset} bytes`,
          hint: "The file may have changed or gone since it was chosen. Choose it again.",
          cause,
        });
      }
      throwIfAborted(signal);
      yield new Uint8Array(buffer);
    }
  }
}
