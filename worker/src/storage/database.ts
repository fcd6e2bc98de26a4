/**
 * The IndexedDB database `signbit`, opened here and nowhere else. It may be missing, refuse, or be deleted at any
 * time. A connection lives for one transaction, so that no tab keeps another from a newer version for long.
 */

import { isNamed, StoreError, toStoreError } from "./segment-store.js";

const NAME = "signbit";

/** To be raised with every change of what is kept: an old tab then gets no access instead of misreading it. */
const VERSION = 3;

/**
 * The tables: tuning under one fixed key, manifests by the id of the file, model digests by the hashes of the files,
 * snapshots by the id of the session, and their chunks by their digests.
 */
const TABLES = ["tuning", "files", "digests", "snapshots", "chunks"] as const;

export type Table = (typeof TABLES)[number];

/** How long to wait for a tab that holds an older version open. */
const PATIENCE_MS = 3000;

/** The tables of a transaction, by name. */
export type Tables<T extends Table> = Readonly<Record<T, IDBObjectStore>>;

/**
 * Runs `act` as one transaction over `tables`, and resolves when it is kept. `act` may wait for `settled` and `intact`
 * requests of these tables and for nothing else. What it throws undoes the transaction. Where the browser has lost
 * a value that `act` reads, the key is deleted and `act` runs again. Rejects with a `StoreError` where the database refuses.
 */
export async function transact<T extends Table, R>(
  tables: readonly T[],
  mode: "readonly" | "readwrite",
  act: (tables: Tables<T>) => Promise<R>,
): Promise<R> {
  let before: LostValue | undefined;
  for (;;) {
    try {
      return await attempt(tables, mode, act);
    } catch (error) {
      if (!(error instanceof LostValue)) {
        throw error;
      }
      const { table, key } = error;
      // The first time it may have been the disk.
      if (before?.table === table && before.key === key) {
        await attempt([table], "readwrite", (tables) => settled(tables[table].delete(key)));
      }
      before = error;
    }
  }
}

/** What a request gives. */
export function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? refusal());
  });
}

/** What a table has under a key, for tables with large values: see `LostValue`. */
export function intact(table: IDBObjectStore, key: IDBValidKey): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const request = table.get(key);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => {
      const isLost = isNamed(request.error, "NotReadableError") || isNamed(request.error, "UnknownError");
      reject(isLost ? new LostValue(table.name as Table, key) : (request.error ?? refusal()));
    };
  });
}

/**
 * A value that the browser no longer has. Chromium keeps large ones in files of their own, which can get lost or be cut
 * short; whatever reads such a value fails, with all else in its transaction.
 */
class LostValue extends Error {
  readonly table: Table;
  readonly key: IDBValidKey;

  constructor(table: Table, key: IDBValidKey) {
    super(`the browser has lost ${String(key)}`);
    this.table = table;
    this.key = key;
  }
}

async function attempt<T extends Table, R>(
  tables: readonly T[],
  mode: "readonly" | "readwrite",
  act: (tables: Tables<T>) => Promise<R>,
): Promise<R> {
  const database = await open();
  try {
    const transaction = database.transaction(tables, mode);
    const stores = Object.fromEntries(tables.map((table) => [table, transaction.objectStore(table)])) as Tables<T>;
    const [value] = await Promise.all([run(transaction, () => act(stores)), completion(transaction)]);
    return value;
  } catch (cause) {
    throw cause instanceof DOMException ? toStoreError(cause) : cause;
  } finally {
    database.close();
  }
}

async function run<R>(transaction: IDBTransaction, act: () => Promise<R>): Promise<R> {
  try {
    return await act();
  } catch (error) {
    if (transaction.error === null) {
      transaction.abort();
      throw error;
    }
    // It has ended already, and a request that was waiting tells of the end and not of its cause.
    throw error instanceof DOMException ? transaction.error : error;
  }
}

function completion(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? refusal());
  });
}

async function open(): Promise<IDBDatabase> {
  try {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => upgrade(request.result);
    return await inTime(settled(request));
  } catch (cause) {
    throw toStoreError(cause);
  }
}

function upgrade(database: IDBDatabase): void {
  for (const table of TABLES) {
    if (!database.objectStoreNames.contains(table)) {
      database.createObjectStore(table);
    }
  }
}

/** Waits for a connection, and closes one that comes too late. */
async function inTime(opening: Promise<IDBDatabase>): Promise<IDBDatabase> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeout = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), PATIENCE_MS);
  });
  const database = await Promise.race([opening, timeout]);
  clearTimeout(timer);
  if (database === undefined) {
    void opening.then((late) => late.close(), () => undefined);
    throw new StoreError("unavailable", "another tab holds the database");
  }
  return database;
}

function refusal(): DOMException {
  return new DOMException("the database refused", "AbortError");
}
