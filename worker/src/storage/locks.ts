/** Locks of the whole origin, which a tab that is closed lets go. */

import { throwIfAborted } from "../errors.js";
import { toStoreError } from "./segment-store.js";

/**
 * Runs `act` with a lock. Where the browser has none, as outside of secure contexts, it runs at once. An abort while
 * it waits rejects as aborts do, and later is for `act` to notice.
 */
export async function locked<T>(name: string, mode: LockMode, act: () => Promise<T>, signal?: AbortSignal): Promise<T> {
  throwIfAborted(signal);
  const { locks } = navigator as { readonly locks?: LockManager };
  if (locks === undefined) {
    return act();
  }
  let hasBegun = false;
  try {
    return await locks.request(name, signal === undefined ? { mode } : { mode, signal }, () => {
      hasBegun = true;
      return act();
    });
  } catch (error) {
    if (hasBegun) {
      throw error;
    }
    throwIfAborted(signal);
    throw toStoreError(error);
  }
}
