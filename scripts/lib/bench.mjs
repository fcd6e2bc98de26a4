/** What the benchmarks share: their options, the page they run in, and how results are printed. */

import { createReadStream, mkdtempSync, rmSync, statSync } from "node:fs";
import { once } from "node:events";
import { createServer } from "node:http";
import { loadavg, tmpdir } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { buildBench, buildWasm, buildWorker } from "./build.mjs";
import { openPage } from "./chromium.mjs";
import { heading, must, ROOT, ScriptError } from "./run.mjs";
import { setUpBrowser, setUpBuild } from "./setup.mjs";

const EMBEDDED = path.join(ROOT, "models/signbit-mini.gguf");
const SIZES = ["layers", "hidden-size", "intermediate-size", "vocab-size", "seed"];
/** Kernels often take less than the 100 microseconds to which Chromium rounds timestamps for pages. */
const EXACT_TIMESTAMPS = "--disable-dawn-features=timestamp_quantization";

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".wasm": "application/wasm" };

/** The options that both benchmarks take, and `more`. */
export function benchOptions(more) {
  const { values } = parseArgs({
    options: {
      model: { type: "string" },
      random: { type: "string" },
      ...Object.fromEntries(SIZES.map((name) => [name, { type: "string" }])),
      prompts: { type: "string", default: "1,8,32,128" },
      tokens: { type: "string", default: "32" },
      runs: { type: "string", default: "3" },
      context: { type: "string", default: "1024" },
      hardware: { type: "boolean", default: false },
      json: { type: "boolean", default: false },
      ...more,
    },
  });
  if (values.model !== undefined && values.random !== undefined) {
    throw new ScriptError("Either --model or --random.");
  }
  if (values.random === undefined && SIZES.some((name) => values[name] !== undefined)) {
    throw new ScriptError("Sizes are those of a --random model.");
  }
  return values;
}

/** Builds, opens the page, and calls `body` with it and the workload that the options describe. */
export async function withBenchPage(options, body) {
  await setUpBuild();
  await setUpBrowser();
  await buildWasm();
  await buildWorker();
  await buildBench();
  const folder = mkdtempSync(path.join(tmpdir(), "signbit-bench-"));
  let server;
  let browser;
  try {
    const model = await modelFile(options, folder);
    server = serve(model);
    await once(server, "listening");
    const address = `http://127.0.0.1:${server.address().port}/bench/index.html`;
    const profile = options.isVisitor === true ? path.join(folder, "profile") : undefined;
    const opened = await openPage(address, { hardware: options.hardware, flags: [EXACT_TIMESTAMPS], profile });
    ({ browser } = opened);
    heading("Benchmark");
    const workload = {
      model: "/model.gguf",
      prompts: options.prompts.split(",").map(positive),
      tokens: positive(options.tokens),
      runs: positive(options.runs),
      context: positive(options.context),
    };
    const [load] = loadavg();
    const started = new Date().toISOString();
    const version = (opened.page.context().browser() ?? browser).version();
    const result = await body(opened.page, workload);
    return { started, browser: `Chromium ${version}`, load_average: load, model_file: describe(options, model), ...result };
  } finally {
    await browser?.close();
    server?.close();
    rmSync(folder, { recursive: true });
  }
}

function positive(text) {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) {
    throw new ScriptError(`"${text}" is not a whole number above 0.`);
  }
  return value;
}

/** The file to measure with; one with random weights is written first. */
async function modelFile(options, folder) {
  if (options.random === undefined) {
    return path.resolve(options.model ?? EMBEDDED);
  }
  heading("Random model");
  const out = path.join(folder, "random.gguf");
  const sizes = SIZES.filter((name) => options[name] !== undefined).flatMap((name) => [`--${name}`, options[name]]);
  const command = ["run", "--quiet", "--locked", "--package", "signbit-cli", "--", "random-model", options.random, ...sizes];
  await must("cargo", [...command, "--out", out]);
  return out;
}

function describe(options, model) {
  const name = options.random === undefined ? path.basename(model) : `random ${options.random}`;
  return `${name}, ${(statSync(model).size / 1e6).toFixed(1)} MB`;
}

/** Serves the page, the worker package, wllama and the model, isolated so that there may be threads. */
function serve(model) {
  const folders = {
    bench: path.join(ROOT, "bench"),
    worker: path.join(ROOT, "worker"),
    wllama: path.join(ROOT, "node_modules/@wllama/wllama/esm"),
  };
  const find = (pathname) => {
    const [, first, ...rest] = path.posix.normalize(decodeURIComponent(pathname)).split("/");
    return pathname === "/model.gguf" ? model : folders[first] && path.join(folders[first], ...rest);
  };
  const server = createServer((request, response) => {
    const file = find(new URL(request.url ?? "/", "http://localhost").pathname);
    const stats = file && statSync(file, { throwIfNoEntry: false });
    if (!stats?.isFile()) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, {
      "content-type": TYPES[path.extname(file)] ?? "application/octet-stream",
      "content-length": stats.size,
      "cache-control": "no-store",
      "cross-origin-opener-policy": "same-origin",
      "cross-origin-embedder-policy": "require-corp",
    });
    createReadStream(file).pipe(response);
  });
  return server.listen(0, "127.0.0.1");
}

/** Columns as wide as their widest cell, all but the first aligned to the right. */
export function table(head, rows) {
  const all = [head, ...rows].map((row) => row.map(String));
  const widths = head.map((_, column) => Math.max(...all.map((row) => row[column].length)));
  const line = (row) => row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0]) : cell.padStart(widths[column])));
  return all.map((row) => line(row).join("  ").trimEnd()).join("\n");
}

/** Prints the lines that say what was measured, where and when. */
export function printConditions({ started, browser, load_average, model_file }) {
  console.log(`${model_file}; ${browser}; ${started}; load average ${load_average.toFixed(1)} at the start`);
}
