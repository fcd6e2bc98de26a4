/** A model file behind an address. */

import type { FileIdentity } from "./manifests.js";

/** How patient to be. */
export interface HttpOptions {
  /** In place of the browser's own. */
  readonly fetch?: typeof fetch;
  /** A connection that gives nothing for so many milliseconds is given up and made again. */
  readonly stall_ms?: number;
  /** Attempts in a row without a single byte, after which the download fails. */
  readonly attempts?: number;
  /** Milliseconds before the second attempt; doubled before each further one. */
  readonly backoff_ms?: number;
}

/** The file at the address is not the one whose reading was begun. */
export class SourceChanged extends Error {
  readonly now: FileIdentity;

  constructor(now: FileIdentity) {
    super("the file at the address has changed");
    this.name = "SourceChanged";
    this.now = now;
  }
}
