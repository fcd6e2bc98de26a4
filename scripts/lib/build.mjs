/** The build steps, each of which does nothing when its result is up to date. */

import { readFileSync } from "node:fs";
import path from "node:path";
import { heading, must, ROOT } from "./run.mjs";

/** A program of the installed npm packages. */
export function npmBin(name) {
  return path.join(ROOT, "node_modules", ".bin", name);
}

/** Engine to `worker/wasm`. */
export async function buildWasm() {
  heading("Wasm module");
  await must("cargo", ["run", "--quiet", "--locked", "--package", "signbit-xtask", "--", "wasm"]);
  const module = readFileSync(path.join(ROOT, "worker", "wasm", "signbit_engine_bg.wasm"));
  const start = performance.now();
  await WebAssembly.compile(module);
  console.log(`compiles in ${(performance.now() - start).toFixed(0)} ms in Node`);
}

/** Worker package to `worker/dist`. */
export async function buildWorker() {
  heading("Worker package");
  await must(npmBin("tsc"), ["--project", "worker"]);
}

/** Page to `web/dist`. */
export async function buildPage() {
  heading("Page");
  await must(npmBin("tsc"), ["--project", "web"]);
  await must(npmBin("vite"), ["build", "web", "--logLevel", "warn"]);
}

/** What the browser tests run inside their own page. */
export async function buildHarness() {
  heading("Browser tests");
  await must(npmBin("tsc"), ["--project", "tests/browser/harness"]);
  await must(npmBin("tsc"), ["--project", "tests/browser"]);
}

/** What the benchmarks run inside their own page. */
export async function buildBench() {
  heading("Benchmark page");
  await must(npmBin("tsc"), ["--project", "bench"]);
}
