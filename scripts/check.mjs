/** The quick part of `npm test`: format, lints and types. No test runs. */

import { buildBench, buildHarness, buildPage, buildWasm, buildWorker } from "./lib/build.mjs";
import { LINTS } from "./lib/lint.mjs";
import { heading, main, must } from "./lib/run.mjs";
import { setUpBuild, setUpLints } from "./lib/setup.mjs";

await main(async () => {
  await setUpBuild();
  await setUpLints();
  for (const [name, command, args] of LINTS) {
    heading(name);
    await must(command, args);
  }
  await buildWasm();
  await buildWorker();
  await buildPage();
  await buildHarness();
  await buildBench();
});
