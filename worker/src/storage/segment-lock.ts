/**
 * A segment is written first and recorded in a manifest then. In between nothing refers to it, and a tab that
 * removes what nothing refers to must not meet it: those who write share a lock of the whole origin, and
 * those who remove hold it alone. Where browsers have no locks, a segment that is lost this way is fetched again.
 *
 * Neither function may be called within the other or itself: whoever waits to remove lets no further
 * writer in, and would wait for the first.
 */

import { locked } from "./locks.js";

const LOCK = "signbit-segments";

/** Runs `act`, which writes a segment and records it, while no tab removes any. To be held for one segment at a time. */
export function whileWriting<T>(act: () => Promise<T>): Promise<T> {
  return locked(LOCK, "shared", act);
}

/** Runs `act`, which removes segments, while no tab has one that is written and not recorded. */
export function whileRemoving<T>(act: () => Promise<T>): Promise<T> {
  return locked(LOCK, "exclusive", act);
}
