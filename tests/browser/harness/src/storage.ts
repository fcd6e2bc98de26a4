/** The local store as tests use it: through a worker, and past it, as somebody who damages it would. */

import type { StoreKind } from "../../../../worker/dist/types.js";
import type { Operations } from "./storage-worker.js";

type Remote<F> = F extends (...args: infer A) => infer R ? (...args: A) => Promise<Awaited<R>> : never;

/** The operations of `storage-worker.ts`. Rejects with an error whose message is a problem, a code, or other text. */
export type Storage = { readonly [K in keyof Operations]: Remote<Operations[K]> } & { close(): void };

/** Starts a worker. */
export function open(): Storage {
  const worker = new Worker(new URL("./storage-worker.js", import.meta.url), { type: "module" });
  const waiting = new Map<number, (answer: { readonly value?: unknown; readonly error?: string }) => void>();
  worker.onmessage = ({ data }) => {
    waiting.get(data.id)?.(data);
    waiting.delete(data.id);
  };
  let calls = 0;
  const call = (name: string, args: readonly unknown[]) =>
    new Promise((resolve, reject) => {
      calls += 1;
      waiting.set(calls, ({ value, error }) => (error === undefined ? resolve(value) : reject(new Error(error))));
      worker.postMessage({ id: calls, name, args });
    });
  const own: Readonly<Record<string, unknown>> = {
    close: () => worker.terminate(),
    // Whoever waits for this must not take it for a promise.
    then: undefined,
  };
  return new Proxy({} as Storage, {
    get: (_, name) => (String(name) in own ? own[String(name)] : (...args: readonly unknown[]) => call(String(name), args)),
  });
}

/** What becomes of a promise: `ok`, or the message of its error. */
export function outcome(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => "ok",
    (error: unknown) => (error instanceof Error ? error.message : String(error)),
  );
}

/** The same bytes for the same seed (xorshift32). */
export function bytesOf(seed: number, length: number): Uint8Array<ArrayBuffer> {
  const words = new Uint32Array(Math.ceil(length / 4));
  let state = Math.imul(seed + 1, 0x9e37_79b9) | 1;
  for (let index = 0; index < words.length; index += 1) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[index] = state;
  }
  return new Uint8Array(words.buffer, 0, length);
}

/** Whether both are there and equal. */
export function isEqual(one: Uint8Array | null, other: Uint8Array | null): boolean {
  if (one === null || other === null || one.length !== other.length) {
    return false;
  }
  for (let index = 0; index < one.length; index += 1) {
    if (one[index] !== other[index]) {
      return false;
    }
  }
  return true;
}

/** What lies under a key, past the store. */
export async function readRaw(kind: StoreKind, key: string): Promise<Uint8Array<ArrayBuffer> | null> {
  if (kind === "cache") {
    const entry = await (await caches.open("signbit-segments")).match(address(key));
    return entry === undefined ? null : new Uint8Array(await entry.arrayBuffer());
  }
  const file = await (await folder()).getFileHandle(key).catch(() => null);
  return file === null ? null : new Uint8Array(await (await file.getFile()).arrayBuffer());
}

/** Puts something under a key, past the store. An entry of the cache may claim another length than it has. */
export async function writeRaw(
  kind: StoreKind,
  key: string,
  bytes: Uint8Array<ArrayBuffer>,
  claimed: number = bytes.length,
): Promise<void> {
  if (kind === "cache") {
    const response = new Response(bytes, { headers: { "content-length": String(claimed) } });
    await (await caches.open("signbit-segments")).put(address(key), response);
    return;
  }
  const file = await (await folder()).getFileHandle(key, { create: true });
  const stream = await file.createWritable();
  await stream.write(bytes);
  await stream.close();
}

/** Removes what lies under a key, past the store. */
export async function removeRaw(kind: StoreKind, key: string): Promise<void> {
  if (kind === "cache") {
    await (await caches.open("signbit-segments")).delete(address(key));
  } else {
    await (await folder()).removeEntry(key);
  }
}

/** All keys, past the store. */
export async function listRaw(kind: StoreKind): Promise<string[]> {
  if (kind === "cache") {
    const requests = await (await caches.open("signbit-segments")).keys();
    return requests.map(({ url }) => url.slice(address("").length)).sort();
  }
  const keys: string[] = [];
  for await (const key of (await folder()).keys()) {
    keys.push(key);
  }
  return keys.sort();
}

/** What an event of IndexedDB gives. */
export function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("refused"));
  });
}

/** Puts a record into a table of the database, past the modules. */
export async function putRecord(table: string, key: string, record: unknown): Promise<void> {
  const database = await settled(indexedDB.open("signbit"));
  await settled(database.transaction(table, "readwrite").objectStore(table).put(record, key));
  database.close();
}

/** A record of a table, past the modules. */
export async function getRecord(table: string, key: string): Promise<unknown> {
  const database = await settled(indexedDB.open("signbit"));
  const record: unknown = await settled(database.transaction(table).objectStore(table).get(key));
  database.close();
  return record;
}

/** The keys of a table, past the modules. */
export async function listRecords(table: string): Promise<string[]> {
  const database = await settled(indexedDB.open("signbit"));
  const keys = await settled(database.transaction(table).objectStore(table).getAllKeys());
  database.close();
  return keys.map(String);
}

/** Deletes the database, as the browser or somebody else does. */
export async function deleteDatabase(): Promise<void> {
  await settled(indexedDB.deleteDatabase("signbit"));
}

/** Resolves when a worker hangs (`hangAt`). To be called before. */
export function hanging(): Promise<void> {
  const channel = new BroadcastChannel("hanging");
  return new Promise((resolve) => {
    channel.onmessage = () => {
      channel.close();
      resolve();
    };
  });
}

/** The database as an older version made it, open, with one tuning. */
export async function openOldDatabase(tuning: unknown, version: 1 | 2): Promise<IDBDatabase> {
  const request = indexedDB.open("signbit", version);
  request.onupgradeneeded = () => {
    for (const table of version === 1 ? ["tuning"] : ["tuning", "files", "digests"]) {
      request.result.createObjectStore(table);
    }
  };
  const database = await settled(request);
  await settled(database.transaction("tuning", "readwrite").objectStore("tuning").put(tuning, "latest"));
  return database;
}

function address(key: string): string {
  return new URL(`/signbit-segments/${key}`, location.origin).href;
}

async function folder(): Promise<FileSystemDirectoryHandle> {
  const root = await navigator.storage.getDirectory();
  return (await root.getDirectoryHandle("signbit", { create: true })).getDirectoryHandle("segments", { create: true });
}
