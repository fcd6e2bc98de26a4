/** Builds the worker package (`worker/`) and the page (`web/dist`); with `--package` the former only. */

import { buildPage, buildWasm, buildWorker } from "./lib/build.mjs";
import { main } from "./lib/run.mjs";
import { setUpBuild } from "./lib/setup.mjs";

await main(async () => {
  await setUpBuild();
  await buildWasm();
  await buildWorker();
  if (!process.argv.includes("--package")) {
    await buildPage();
  }
});
