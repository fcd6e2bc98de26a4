/**
 * Measures how a model comes to the page: from a server, and then from the browser's own storage, in a real Chromium
 * with a profile on the disk. Prints the rate of every stage, and how near a load from the storage comes to reading
 * that storage and nothing else, in the same run. Options:
 *
 *   --model FILE     a GGUF file; if not given, random one-bit weights of about 1.2 GB
 *   --random NAME    random weights in another geometry, as for `npm run bench`
 *   --backend LIST   of cpu and webgpu; cpu if not given
 *   --runs N         loads from the storage, of which the fastest counts: 3 if not given
 *   --hardware       the graphics device of this machine instead of the software adapter
 *   --json           one line of JSON at the end instead of tables
 */

import { benchOptions, printConditions, table, withBenchPage } from "./lib/bench.mjs";
import { main } from "./lib/run.mjs";

await main(async () => {
  const given = benchOptions({ backend: { type: "string", default: "cpu" } });
  const random = given.model === undefined ? (given.random ?? "bonsai-8b") : undefined;
  const options = { ...given, ...(random && { random }), isVisitor: true };
  const result = await withBenchPage(options, async (page, { model, runs }) => {
    const loads = {};
    for (const backend of options.backend.split(",")) {
      loads[backend] = await page.evaluate((args) => globalThis.bench.measureLoad(...args), [backend, model, runs]);
    }
    return { loads };
  });
  if (options.json) {
    console.log(JSON.stringify(result));
    return;
  }
  printConditions(result);
  for (const [backend, report] of Object.entries(result.loads)) {
    printReport(backend, report);
  }
});

function printReport(backend, { file_bytes, store, cold, warm, raw }) {
  const best = warm.reduce((one, other) => (other.first_token_ms < one.first_token_ms ? other : one));
  const rawRate = Math.max(...raw.map(({ bytes, ms }) => bytes / ms));
  console.log(`\n${backend}: ${(file_bytes / 1e6).toFixed(1)} MB, kept in ${store}`);
  const rows = [
    ["download", rate(cold.storage.bytes_fetched, cold.storage.fetch_ms), "-"],
    ["SHA-256 of the file", rate(cold.storage.bytes_fetched, cold.storage.sha256_ms), "-"],
    ["digest of the model", rate(cold.engine.bytes, cold.engine.digest_ms), "-"],
    ["read", "-", rate(best.storage.bytes_kept, best.storage.read_ms)],
    ["checksum", "-", rate(best.storage.bytes_kept, best.storage.checksum_ms)],
    ["repack", rate(cold.engine.bytes, cold.engine.repack_ms), rate(best.engine.bytes, best.engine.repack_ms)],
    ["upload", rate(cold.engine.bytes, cold.engine.upload_ms), rate(best.engine.bytes, best.engine.upload_ms)],
    ["whole load", rate(file_bytes, cold.ms), rate(file_bytes, best.ms)],
    ["to the first token", rate(file_bytes, cold.first_token_ms), rate(file_bytes, best.first_token_ms)],
  ];
  console.log(table(["MB/s", "from the server", "from the storage"], rows));
  const share = (100 * file_bytes) / best.first_token_ms / rawRate;
  console.log(`reading the storage alone: ${rate(rawRate, 1)} MB/s; the load to the first token is ${share.toFixed(0)} % of it`);
}

/** Megabytes per second. */
function rate(bytes, ms) {
  return ms > 0 ? (bytes / ms / 1e3).toFixed(0) : "-";
}
