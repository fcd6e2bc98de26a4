/**
 * Sessions in the worker's memory, within limits. A chunk that several of them have in common is held once, under its
 * digest.
 */

import { chunkSizes, type SnapshotManifest } from "./snapshot.js";

/** A session that can become resident again, but for its chunks. */
export interface StoredSession {
  readonly manifest: SnapshotManifest;
  readonly is_named: boolean;
}

/** One that needs no storage for that. */
export interface ParkedSession extends StoredSession {
  /** Milliseconds since 1970. */
  readonly parked_at: number;
}

export interface ParkedLimits {
  readonly sessions: number;
  readonly bytes: number;
}

/** A chunk and the number of sessions that have it. */
interface HeldChunk {
  readonly bytes: Uint8Array<ArrayBuffer>;
  holders: number;
}

export class ParkedSessions {
  readonly #limits: ParkedLimits;
  /** By id, the least recently used first. */
  readonly #sessions = new Map<string, ParkedSession>();
  readonly #chunks = new Map<string, HeldChunk>();
  #bytes = 0;

  constructor(limits: ParkedLimits) {
    this.#limits = limits;
  }

  /** Holds a session, in place of one with the same id. `chunks` has those of its chunks that are not held yet. */
  put(id: string, session: ParkedSession, chunks: ReadonlyMap<string, Uint8Array<ArrayBuffer>>): void {
    for (const digest of chunkSizes(session.manifest).keys()) {
      const held = this.#chunks.get(digest);
      const bytes = chunks.get(digest);
      if (held !== undefined) {
        held.holders += 1;
      } else if (bytes !== undefined) {
        this.#chunks.set(digest, { bytes, holders: 1 });
        this.#bytes += bytes.length;
      }
    }
    // Only now, so that what both have in common stays.
    this.delete(id);
    this.#sessions.set(id, session);
  }

  get(id: string): ParkedSession | undefined {
    return this.#sessions.get(id);
  }

  /** Takes note that a session is used now. */
  touch(id: string): void {
    const session = this.#sessions.get(id);
    if (session !== undefined) {
      this.#sessions.delete(id);
      this.#sessions.set(id, session);
    }
  }

  delete(id: string): void {
    const session = this.#sessions.get(id);
    if (session === undefined) {
      return;
    }
    this.#sessions.delete(id);
    for (const digest of chunkSizes(session.manifest).keys()) {
      const held = this.#chunks.get(digest);
      if (held !== undefined) {
        held.holders -= 1;
        if (held.holders === 0) {
          this.#chunks.delete(digest);
          this.#bytes -= held.bytes.length;
        }
      }
    }
  }

  clear(): void {
    this.#sessions.clear();
    this.#chunks.clear();
    this.#bytes = 0;
  }

  chunk(digest: string): Uint8Array<ArrayBuffer> | undefined {
    return this.#chunks.get(digest)?.bytes;
  }

  /** All sessions, the least recently used first. */
  entries(): readonly (readonly [id: string, session: ParkedSession])[] {
    return [...this.#sessions];
  }

  /** The session that has to go next; undefined as soon as the others are within the limits. */
  excess(): string | undefined {
    const isOver = this.#sessions.size > this.#limits.sessions || this.#bytes > this.#limits.bytes;
    return isOver ? this.#sessions.keys().next().value : undefined;
  }
}
