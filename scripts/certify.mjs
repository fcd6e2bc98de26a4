/**
 * Certifies this device: kernels, golden outputs and invariants, in a real Chromium through the
 * public API. Writes reports/certify.json. Options:
 *
 *   --full          all prompts of every fixture in full instead of a quick choice
 *   --backend NAME  webgpu (default) or cpu
 *   --hardware      the graphics device of this machine instead of the software adapter
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import path from "node:path";
import { parseArgs } from "node:util";
import { buildHarness, buildPage, buildWasm, buildWorker } from "./lib/build.mjs";
import { openPage } from "./lib/chromium.mjs";
import { heading, main, ROOT, ScriptError } from "./lib/run.mjs";
import { setUpBrowser, setUpBuild } from "./lib/setup.mjs";

const QUICK = { prompts: ["len-005", "len-130"], greedyTokens: 16 };
const QUICK_EMBEDDED_EVERY = 10;
const REPORT = path.join("reports", "certify.json");
const SERVER_START_MS = 10_000;

await main(async () => {
  const { values } = parseArgs({
    options: {
      full: { type: "boolean", default: false },
      backend: { type: "string", default: "webgpu" },
      hardware: { type: "boolean", default: false },
    },
  });
  await setUpBuild();
  await setUpBrowser();
  await buildWasm();
  await buildWorker();
  await buildPage();
  await buildHarness();
  heading("Certification");
  const report = await certify(values);
  mkdirSync(path.join(ROOT, "reports"), { recursive: true });
  writeFileSync(path.join(ROOT, REPORT), `${JSON.stringify(report, null, 2)}\n`);
  const failed = report.checks.filter(({ ok }) => !ok).length;
  console.log(`\n${report.device.backend}, ${report.device.vendor} ${report.device.name}, ${report.seconds.toFixed(0)} s, ${REPORT}`);
  console.log(`${report.checks.length - failed} passed, ${failed} failed`);
  process.exitCode = report.verdict === "pass" ? 0 : 1;
});

async function certify({ full, backend, hardware }) {
  const port = await freePort();
  const server = spawn(process.execPath, [path.join(ROOT, "tests/browser/server.mjs")], {
    env: { ...process.env, PORT: String(port) },
    stdio: "inherit",
  });
  let browser;
  try {
    const address = `http://127.0.0.1:${port}/tests/browser/harness/index.html`;
    await reachable(address);
    const opened = await openPage(address, { hardware });
    ({ browser } = opened);
    const names = fixtures();
    return await opened.page.evaluate((options) => globalThis.harness.certify(options), {
      backend,
      fixtures: names,
      invariants: names,
      scope: full ? {} : QUICK,
      embeddedEvery: full ? 1 : QUICK_EMBEDDED_EVERY,
    });
  } finally {
    await browser?.close();
    server.kill();
  }
}

function fixtures() {
  return readdirSync(path.join(ROOT, "tests/golden/models"), { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name)
    .sort();
}

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  return port;
}

async function reachable(address) {
  const deadline = Date.now() + SERVER_START_MS;
  while (Date.now() < deadline) {
    try {
      await fetch(address);
      return;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
  throw new ScriptError("The test server did not start.");
}
