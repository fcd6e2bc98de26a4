/** Reads every segment that is kept into the same memory, in the order of the files. */

import { openStores } from "../../worker/dist/storage/choose-store.js";
import { allManifests } from "../../worker/dist/storage/manifests.js";

export interface RawRead {
  readonly bytes: number;
  readonly ms: number;
}

const stores = await openStores("auto");
const files = await allManifests();
const target = new Uint8Array(Math.max(...files.map(({ segment_bytes }) => segment_bytes)));
let bytes = 0;
const start = performance.now();
for (const { store, segments } of files) {
  for (const segment of segments) {
    if (segment !== null && (await stores.get(store)?.read(segment.sha256, target.subarray(0, segment.length))) === true) {
      bytes += segment.length;
    }
  }
}
postMessage({ bytes, ms: performance.now() - start } satisfies RawRead);
