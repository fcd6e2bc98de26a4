/** Sets everything up, builds, and serves the page until it is interrupted. */

import { spawn } from "node:child_process";
import { buildWasm, buildWorker, npmBin } from "./lib/build.mjs";
import { main, ROOT } from "./lib/run.mjs";
import { setUpBuild } from "./lib/setup.mjs";

await main(async () => {
  await setUpBuild();
  await buildWasm();
  await buildWorker();
  const vite = spawn(npmBin("vite"), ["web", ...process.argv.slice(2)], { cwd: ROOT, stdio: "inherit" });
  for (const signal of ["SIGINT", "SIGTERM"]) {
    process.on(signal, () => vite.kill(signal));
  }
  vite.on("close", (code) => {
    process.exitCode = code ?? 0;
  });
});
