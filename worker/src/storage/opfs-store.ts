/** Segments as files of the origin's private file system. */

import { isNamed, type SegmentStore, StoreError, toStoreError } from "./segment-store.js";

const FOLDERS = ["signbit", "segments"];

/** Bytes of one call: browsers that keep files outside of the worker's process copy every call once more. */
const CALL_BYTES = 4 * 1024 * 1024;

/** A file has one handle at a time, or several that read. Others hold theirs for as long as one segment takes. */
const PATIENCE_MS = 5000;
const RETRY_MS = 4;

/** What TypeScript knows in its library for workers only, which excludes the one for pages. */
interface SyncAccessHandle {
  read(target: Uint8Array, options: { readonly at: number }): number;
  write(bytes: Uint8Array, options: { readonly at: number }): number;
  truncate(bytes: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

interface SyncFile {
  /** Browsers that do not know modes give every handle alone. */
  createSyncAccessHandle?(options?: { readonly mode: "readwrite" | "read-only" }): Promise<SyncAccessHandle>;
}

/** Opens the store, in a dedicated worker. Rejects with a `StoreError` where there is none. */
export async function openOpfsStore(): Promise<SegmentStore> {
  try {
    if (!("createSyncAccessHandle" in FileSystemFileHandle.prototype)) {
      throw new Error("files have no synchronous handles");
    }
    return new OpfsStore(await openFolder());
  } catch (cause) {
    throw toStoreError(cause);
  }
}

async function openFolder(): Promise<FileSystemDirectoryHandle> {
  let folder = await navigator.storage.getDirectory();
  for (const name of FOLDERS) {
    folder = await folder.getDirectoryHandle(name, { create: true });
  }
  return folder;
}

class OpfsStore implements SegmentStore {
  readonly kind = "opfs";
  #folder: FileSystemDirectoryHandle;

  constructor(folder: FileSystemDirectoryHandle) {
    this.#folder = folder;
  }

  async write(key: string, bytes: Uint8Array): Promise<void> {
    try {
      fill(await this.#open(key), bytes);
    } catch (cause) {
      // The handle is closed: a file with a handle cannot be removed.
      await this.delete(key).catch(() => undefined);
      throw toStoreError(cause);
    }
  }

  async read(key: string, target: Uint8Array): Promise<boolean> {
    try {
      const file = await this.#folder.getFileHandle(key);
      return take(await openHandle(file, "read-only"), target);
    } catch (cause) {
      if (isNamed(cause, "NotFoundError")) {
        return false;
      }
      throw toStoreError(cause);
    }
  }

  async delete(key: string): Promise<void> {
    try {
      await whenFree(() => this.#folder.removeEntry(key));
    } catch (cause) {
      if (!isNamed(cause, "NotFoundError")) {
        throw toStoreError(cause);
      }
    }
  }

  async keys(): Promise<string[]> {
    const keys: string[] = [];
    try {
      for await (const key of this.#folder.keys()) {
        keys.push(key);
      }
    } catch (cause) {
      if (!isNamed(cause, "NotFoundError")) {
        throw toStoreError(cause);
      }
    }
    return keys;
  }

  /** The file under `key`, made where it is missing, for this worker alone. */
  async #open(key: string): Promise<SyncAccessHandle> {
    try {
      return await openHandle(await this.#folder.getFileHandle(key, { create: true }), "readwrite");
    } catch (error) {
      if (!isNamed(error, "NotFoundError")) {
        throw error;
      }
      // The folder is gone: somebody has cleared the data of this site.
      this.#folder = await openFolder();
      return openHandle(await this.#folder.getFileHandle(key, { create: true }), "readwrite");
    }
  }
}

/**
 * Makes `bytes` the content of a file. What is there is written over rather than removed first: under a key of
 * its content it is most likely the same, for which there is room, and whoever ends this half way does no harm.
 */
function fill(handle: SyncAccessHandle, bytes: Uint8Array): void {
  try {
    for (let at = 0; at < bytes.length; at += CALL_BYTES) {
      const piece = bytes.subarray(at, at + CALL_BYTES);
      // Private windows of Chromium report a full disk by a number of bytes that nobody has written.
      if (handle.write(piece, { at }) !== piece.length) {
        throw new StoreError("full");
      }
    }
    handle.truncate(bytes.length);
    handle.flush();
    if (handle.getSize() !== bytes.length) {
      throw new StoreError("full");
    }
  } finally {
    handle.close();
  }
}

/** Fills `target` from a file. False where the file is not as long. */
function take(handle: SyncAccessHandle, target: Uint8Array): boolean {
  try {
    if (handle.getSize() !== target.length) {
      return false;
    }
    for (let at = 0; at < target.length; at += CALL_BYTES) {
      const piece = target.subarray(at, at + CALL_BYTES);
      if (handle.read(piece, { at }) !== piece.length) {
        return false;
      }
    }
    return true;
  } finally {
    handle.close();
  }
}

function openHandle(file: FileSystemFileHandle & SyncFile, mode: "readwrite" | "read-only"): Promise<SyncAccessHandle> {
  const { createSyncAccessHandle } = file as Required<SyncFile>;
  return whenFree(() => createSyncAccessHandle.call(file, { mode }));
}

/** Does what nobody may do while another holds a handle of the same file. */
async function whenFree<T>(act: () => Promise<T>): Promise<T> {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await act();
    } catch (error) {
      // WebKit uses the second name, the specification the first.
      const isHeld = isNamed(error, "NoModificationAllowedError") || isNamed(error, "InvalidStateError");
      if (!isHeld || performance.now() > end) {
        throw error;
      }
    }
    // Two that wait for each other's file must not keep step.
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS * (0.5 + Math.random())));
  }
}
