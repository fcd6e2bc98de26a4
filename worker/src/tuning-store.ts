/**
 * Keeps which kernels were fastest on this device, so that the next load need not measure again.
 * IndexedDB may be missing or refuse at any time; then every load measures.
 */

import type { Tuning } from "./types.js";

const DATABASE = "signbit";
const STORE = "tuning";
const KEY = "latest";

/** A database that does not answer must not keep a load waiting for longer than measuring would. */
const PATIENCE_MS = 300;

/** What was kept, or undefined. Whether it holds for this device is for the engine to say. */
export async function readTuning(): Promise<Tuning | undefined> {
  const timeout = new Promise<undefined>((resolve) => setTimeout(resolve, PATIENCE_MS));
  try {
    return await Promise.race([transact<Tuning | undefined>("readonly", (store) => store.get(KEY)), timeout]);
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
    await transact("readwrite", (store) => store.put({ ...tuning, products: [...tuning.products, ...others] }, KEY));
  } catch {
    // The next load measures again.
  }
}

async function transact<T>(mode: IDBTransactionMode, act: (store: IDBObjectStore) => IDBRequest): Promise<T> {
  const database = await open();
  try {
    const request = act(database.transaction(STORE, mode).objectStore(STORE));
    return (await settled(request)) as T;
  } finally {
    database.close();
  }
}

function open(): Promise<IDBDatabase> {
  const request = indexedDB.open(DATABASE, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE);
  return settled(request);
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("the database refused"));
  });
}
