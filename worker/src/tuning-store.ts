/**
 * Keeps which kernels were fastest on this device, so that the next load need not measure again.
 * IndexedDB may be missing or refuse at any time; then every load measures.
 */

import { settled, type Tables, transact } from "./storage/database.js";
import type { Tuning } from "./types.js";

const KEY = "latest";

/** A database that does not answer must not keep a load waiting for longer than measuring would. */
const PATIENCE_MS = 300;

/** What was kept, or undefined. Whether it holds for this device is for the engine to say. */
export async function readTuning(): Promise<Tuning | undefined> {
  const timeout = new Promise<undefined>((resolve) => setTimeout(resolve, PATIENCE_MS));
  try {
    return await Promise.race([transact(["tuning"], "readonly", read), timeout]);
  } catch {
    return undefined;
  }
}

/** Keeps a load's choices, and those of other models on the same device. */
export async function keepTuning(tuning: Tuning): Promise<void> {
  const before = await readTuning();
  const isNew = new Set(tuning.products.map(({ product }) => product));
  const others = before?.device === tuning.device ? before.products.filter(({ product }) => !isNew.has(product)) : [];
  try {
    const record = { ...tuning, products: [...tuning.products, ...others] };
    await transact(["tuning"], "readwrite", ({ tuning }) => settled(tuning.put(record, KEY)));
  } catch {
    // The next load measures again.
  }
}

function read({ tuning }: Tables<"tuning">): Promise<Tuning | undefined> {
  return settled<Tuning | undefined>(tuning.get(KEY));
}
