/** Which of the stores are there, and which of them is to be written to. */

import type { StoreKind } from "../types.js";
import { uniqueId } from "../unique-id.js";
import { openCacheStore } from "./cache-store.js";
import { openOpfsStore } from "./opfs-store.js";
import { whileWriting } from "./segment-lock.js";
import type { SegmentStore } from "./segment-store.js";

/** Where segments are to be kept: `auto` is where that is fastest, `none` is nowhere. */
export type StorePreference = "auto" | StoreKind | "none";

export interface Stores {
  /** To read what is there, whichever store is preferred; undefined where the browser does not have it. */
  get(kind: StoreKind): SegmentStore | undefined;
  /**
   * The store to write to: the fastest of those preferred that give back what they were given, or undefined if
   * there is none, the file system before the cache unless that is much slower. Measured when it is first asked for, which takes the lock of writers. Rejects as the last of them
   * did where all refuse.
   */
  best(): Promise<SegmentStore | undefined>;
}

/** Enough to tell the stores apart; browsers take it in a few milliseconds. */
const PROBE_BYTES = 1024 * 1024;

/** How many times as fast the second store must be: in a busy moment a megabyte says little. */
const CLEARLY = 2;

/** The first time includes what opening takes. */
const ROUNDS = 2;

/** As much as a browser gives at a time. */
const RANDOM_BYTES = 65_536;

/** Opens what the browser has. Never rejects: with no store nothing is kept. */
export async function openStores(preference: StorePreference): Promise<Stores> {
  const opened = preference === "none" ? [] : await Promise.allSettled([openOpfsStore(), openCacheStore()]);
  const stores = opened.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
  const preferred = stores.filter(({ kind }) => preference === "auto" || preference === kind);
  let choice: Promise<SegmentStore | undefined> | undefined;
  return {
    get: (kind) => stores.find((store) => store.kind === kind),
    best: async () => {
      choice ??= fastest(preferred);
      const store = await choice.catch((error: unknown) => {
        choice = undefined;
        throw error;
      });
      if (store === undefined) {
        // There may be room the next time.
        choice = undefined;
      }
      return store;
    },
  };
}

async function fastest(stores: readonly SegmentStore[]): Promise<SegmentStore | undefined> {
  let best: { readonly store: SegmentStore; readonly ms: number } | undefined;
  let refusal: unknown;
  for (const store of stores) {
    try {
      const ms = await whileWriting(() => measure(store));
      if (best === undefined ? ms < Number.POSITIVE_INFINITY : ms * CLEARLY < best.ms) {
        best = { store, ms };
      }
    } catch (error) {
      refusal = error;
    }
  }
  if (best === undefined && refusal !== undefined) {
    throw refusal;
  }
  return best?.store;
}

/** Milliseconds to write a segment and read it; infinitely many where another comes back. */
async function measure(store: SegmentStore): Promise<number> {
  const key = `probe-${uniqueId()}`;
  const bytes = randomBytes();
  const back = new Uint8Array(PROBE_BYTES);
  try {
    let best = Number.POSITIVE_INFINITY;
    for (let round = 0; round < ROUNDS; round += 1) {
      const start = performance.now();
      await store.write(key, bytes);
      if (!(await store.read(key, back)) || bytes.some((byte, index) => byte !== back[index])) {
        return Number.POSITIVE_INFINITY;
      }
      best = Math.min(best, performance.now() - start);
    }
    return best;
  } finally {
    await store.delete(key).catch(() => undefined);
  }
}

function randomBytes(): Uint8Array {
  const bytes = new Uint8Array(PROBE_BYTES);
  for (let at = 0; at < bytes.length; at += RANDOM_BYTES) {
    crypto.getRandomValues(bytes.subarray(at, at + RANDOM_BYTES));
  }
  return bytes;
}
