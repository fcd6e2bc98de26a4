/** Segments as entries of Cache Storage, where there is no private file system, or a slower one. */

import { type SegmentStore, toStoreError } from "./segment-store.js";

const CACHE = "signbit-segments";

/** Entries need addresses with the scheme of a web page. Nothing is ever fetched from these. */
const PATH = "/signbit-segments/";

/** Opens the store. Rejects with a `StoreError` where there is none. */
export async function openCacheStore(): Promise<SegmentStore> {
  const store = new CacheStore();
  await store.keys();
  return store;
}

class CacheStore implements SegmentStore {
  readonly kind = "cache";

  async write(key: string, bytes: Uint8Array): Promise<void> {
    const headers = { "content-type": "application/octet-stream", "content-length": String(bytes.length) };
    try {
      const cache = await caches.open(CACHE);
      // Bytes in shared memory are refused with an error.
      await cache.put(address(key), new Response(bytes as Uint8Array<ArrayBuffer>, { headers }));
    } catch (cause) {
      await this.delete(key).catch(() => undefined);
      throw toStoreError(cause);
    }
  }

  async read(key: string, target: Uint8Array): Promise<boolean> {
    const entry = await this.#match(key);
    if (entry === undefined) {
      return false;
    }
    const length = entry.headers.get("content-length");
    if (length !== String(target.length)) {
      await entry.body?.cancel();
      return false;
    }
    return entry.body === null ? target.length === 0 : take(entry.body, target);
  }

  async delete(key: string): Promise<void> {
    try {
      const cache = await caches.open(CACHE);
      await cache.delete(address(key));
    } catch (cause) {
      throw toStoreError(cause);
    }
  }

  async keys(): Promise<string[]> {
    try {
      const cache = await caches.open(CACHE);
      return (await cache.keys()).map(({ url }) => new URL(url).pathname.slice(PATH.length));
    } catch (cause) {
      throw toStoreError(cause);
    }
  }

  async #match(key: string): Promise<Response | undefined> {
    try {
      const cache = await caches.open(CACHE);
      return await cache.match(address(key));
    } catch (cause) {
      throw toStoreError(cause);
    }
  }
}

function address(key: string): string {
  return new URL(PATH + key, location.origin).href;
}

/** Fills `target` piece by piece. False where the body is not as long, or breaks off. */
async function take(body: ReadableStream<Uint8Array>, target: Uint8Array): Promise<boolean> {
  const reader = body.getReader();
  let offset = 0;
  try {
    for (;;) {
      const { value } = await reader.read();
      if (value === undefined) {
        return offset === target.length;
      }
      if (value.length > target.length - offset) {
        await reader.cancel();
        return false;
      }
      target.set(value, offset);
      offset += value.length;
    }
  } catch {
    return false;
  }
}
