/** Locks of the whole origin, which a tab that is closed lets go. */

import { abortError, throwIfAborted } from "../errors.js";
import { toStoreError } from "./segment-store.js";

/**
 * Runs `act` with a lock. Where the browser has none, as outside of secure contexts, it runs at once. An abort while
 * it waits rejects as aborts do; a later one is for `act` to notice. Rejects with a `StoreError` where the lock is refused.
 */
export async function locked<T>(name: string, mode: LockMode, act: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  throwIfAborted(signal);
  const { locks } = navigator as { readonly locks?: LockManager };
  if (locks === undefined) {
    return act();
  }
  return new Promise<T>((resolve, reject) => {
    // Not the signal of the request: in Chromium's workers it goes unnoticed just after the request was made.
    const stop = () => reject(abortError());
    signal?.addEventListener("abort", stop);
    const run = async () => {
      signal?.removeEventListener("abort", stop);
      if (signal?.aborted !== true) {
        await act().then(resolve, reject);
      }
    };
    locks.request(name, { mode }, run).catch((cause: unknown) => reject(toStoreError(cause)));
  });
}
