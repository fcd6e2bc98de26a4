/**
 * Sets everything up and runs all that must hold before a change lands. A failed step does not
 * keep the others from running; the closing line counts the tests of cargo and of the browser, and
 * each failed step that is no test as one more failure.
 */

import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { buildBench, buildHarness, buildPage, buildWasm, buildWorker, npmBin } from "./lib/build.mjs";
import { LINTS } from "./lib/lint.mjs";
import { heading, must, ROOT, run, ScriptError } from "./lib/run.mjs";
import { chromiumPath, lavapipePath, setUpBrowser, setUpBuild, setUpLints, setUpVulkan } from "./lib/setup.mjs";

const CARGO_TEST = ["test", "--locked", "--workspace", "--no-fail-fast"];
const BROWSER_RESULTS = path.join(ROOT, "test-results", "results.json");

const counts = { passed: 0, failed: 0, skipped: 0 };
const failedSteps = [];
const timings = [];

await step("set-up", async () => {
  await setUpBuild();
  await setUpLints();
  await setUpVulkan();
  await setUpBrowser();
});
if (failedSteps.length === 0) {
  for (const [name, command, args] of LINTS) {
    await step(name, () => {
      heading(name);
      return must(command, args);
    });
  }
  const areTestsBuilt = await step("build of the tests", () => {
    heading("cargo test --no-run");
    return must("cargo", [...CARGO_TEST, "--no-run"]);
  });
  // The software GPU leaves part of the second core to what the browser needs.
  const [isBuilt] = await Promise.all([step("build", build), areTestsBuilt && step("cargo test", cargoTests)]);
  if (isBuilt) {
    await step("browser tests", browserTests);
  }
}

heading("Summary");
for (const { name, seconds, isGood } of timings) {
  console.log(`${isGood ? "ok    " : "FAILED"} ${name}, ${seconds.toFixed(0)} s`);
}
const skipped = counts.skipped > 0 ? `, ${counts.skipped} skipped` : "";
console.log(`\n${counts.passed} passed, ${counts.failed + failedSteps.length} failed${skipped}`);
process.exitCode = counts.failed + failedSteps.length > 0 || counts.passed === 0 ? 1 : 0;

/** Runs a step; `body` may resolve with false where it has counted its own failures. */
async function step(name, body) {
  const start = performance.now();
  let isGood = true;
  try {
    isGood = (await body()) !== false;
  } catch (error) {
    console.error(error instanceof ScriptError ? `\n${error.message}` : error);
    failedSteps.push(name);
    isGood = false;
  }
  timings.push({ name, seconds: (performance.now() - start) / 1000, isGood });
  return isGood;
}

/** All that the browser loads. */
async function build() {
  await buildWasm();
  await buildWorker();
  await buildPage();
  await buildHarness();
  await buildBench();
}

/** All Rust tests, with GPU work on Mesa's software Vulkan whatever hardware there is. */
async function cargoTests() {
  heading("cargo test");
  const driver = lavapipePath();
  // Where this folder is unset, the driver says so in the middle of the results.
  const runtimeFolder = process.env.XDG_RUNTIME_DIR || mkdtempSync(path.join(tmpdir(), "signbit-"));
  const { code, output } = await run("cargo", CARGO_TEST, {
    env: {
      VK_ICD_FILENAMES: driver,
      VK_DRIVER_FILES: driver,
      LIBGL_ALWAYS_SOFTWARE: "1",
      XDG_RUNTIME_DIR: runtimeFolder,
    },
  });
  let failed = 0;
  for (const [, passedHere, failedHere, ignoredHere] of output.matchAll(
    /^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored/gm,
  )) {
    counts.passed += Number(passedHere);
    failed += Number(failedHere);
    counts.skipped += Number(ignoredHere);
  }
  counts.failed += failed;
  if (code !== 0 && failed === 0) {
    throw new ScriptError("cargo test failed before or between its tests.");
  }
  return code === 0;
}

async function browserTests() {
  heading("Chromium");
  rmSync(BROWSER_RESULTS, { force: true });
  const { code } = await run(npmBin("playwright"), ["test"], {
    env: { CHROMIUM_PATH: chromiumPath(), PLAYWRIGHT_JSON_OUTPUT_FILE: BROWSER_RESULTS },
  });
  if (!existsSync(BROWSER_RESULTS)) {
    throw new ScriptError("The browser tests did not run.");
  }
  const { stats, errors } = JSON.parse(readFileSync(BROWSER_RESULTS, "utf8"));
  counts.passed += stats.expected;
  counts.failed += stats.unexpected + stats.flaky;
  counts.skipped += stats.skipped;
  if (code !== 0 && stats.unexpected + stats.flaky === 0) {
    throw new ScriptError(`The browser tests failed outside of a test. ${errors.map(({ message }) => message).join(" ")}`);
  }
  return code === 0;
}
