/**
 * Runs the model checks and the page's answer in a real Firefox on the processor, as the tests in
 * Chromium do. A command of its own, since it needs a second browser.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync } from "node:fs";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { buildHarness, buildPage, buildWasm, buildWorker } from "./lib/build.mjs";
import { heading, main, ROOT, ScriptError } from "./lib/run.mjs";
import { firefoxPath, setUpBuild, setUpFirefox } from "./lib/setup.mjs";

const PORT = 41_731;
const ADDRESS = `http://127.0.0.1:${PORT}`;
/** Of the embedded model's 200 questions. */
const EVERY = 25;
const QUESTION = "What is the capital of France?";
const ANSWER = "The capital of France is Paris.";

await main(async () => {
  await setUpBuild();
  await setUpFirefox();
  await buildWasm();
  await buildWorker();
  await buildPage();
  await buildHarness();
  const server = spawn(process.execPath, ["tests/browser/server.mjs"], {
    cwd: ROOT,
    env: { ...process.env, PORT: String(PORT) },
    stdio: "inherit",
  });
  let browser;
  try {
    await answers(server);
    // Puppeteer is there only after the set-up.
    const { launch } = await import("puppeteer-core");
    browser = await launch({ browser: "firefox", executablePath: firefoxPath(), protocolTimeout: 0 });
    const { QUICK } = await import("../tests/browser/harness/dist/golden.js");
    heading(await browser.version());
    await runTests(browser, QUICK);
  } finally {
    await browser?.close();
    server.kill();
  }
});

/** Waits for the web server. */
async function answers(server) {
  const isOver = once(server, "exit").then(([code]) => {
    throw new ScriptError(`The web server ended with exit code ${code}.`);
  });
  const isThere = async () => {
    while (!(await fetch(ADDRESS).catch(() => undefined))) {
      await sleep(100);
    }
  };
  await Promise.race([isThere(), isOver]);
}

async function runTests(browser, scope) {
  const fixtures = readdirSync(path.join(ROOT, "tests/golden/models"), { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name)
    .sort();
  const tests = [
    ...fixtures.map((fixture) => [`${fixture} agrees with the reference`, (page) => check(page, "checkGolden", fixture, scope)]),
    ["tiny-geo gives the reference's answers", (page) => check(page, "checkAnswers")],
    ["the embedded model gives the reference's answers", (page) => check(page, "checkEmbedded", EVERY)],
    ["the page answers", pageAnswers],
  ];
  let n_failed = 0;
  for (const [name, body] of tests) {
    const start = performance.now();
    const problems = await problemsOf(browser, body);
    const seconds = ((performance.now() - start) / 1000).toFixed(1);
    console.log(`${problems.length === 0 ? "ok    " : "FAILED"} ${name}, ${seconds} s`);
    problems.forEach((problem) => console.log(`       ${problem}`));
    n_failed += problems.length === 0 ? 0 : 1;
  }
  console.log(`\n${tests.length - n_failed} passed, ${n_failed} failed`);
  process.exitCode = n_failed > 0 ? 1 : 0;
}

/** What goes wrong in a test that has a page of its own, on the page's console too. */
async function problemsOf(browser, body) {
  const page = await browser.newPage();
  const problems = [];
  page.on("console", (message) => {
    if (message.type() === "error") {
      problems.push(`console: ${message.text()}`);
    }
  });
  page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
  try {
    problems.push(...(await body(page)));
  } catch (error) {
    problems.push(error.message);
  }
  await page.close();
  return problems;
}

/** Failed checks of one of the harness's functions. */
async function check(page, name, ...args) {
  await page.goto(`${ADDRESS}/tests/browser/harness/index.html`);
  await page.waitForFunction(() => typeof harness === "object");
  return page.evaluate(
    async (name, args) => {
      // The tolerances are those of float32.
      const engine = await harness.openEngine("cpu", { activations: "f32" });
      const checks = await harness[name](engine, ...args);
      engine.terminate();
      return checks.filter(({ ok }) => !ok).map(harness.line);
    },
    name,
    args,
  );
}

/** Asks in the page and reads what it shows. */
async function pageAnswers(page) {
  await page.goto(ADDRESS);
  await page.locator(`#examples button ::-p-text(${QUESTION})`).setTimeout(60_000).click();
  await page.waitForFunction(
    (answer) => document.querySelector(".turn.assistant .answer")?.textContent.trim() === answer,
    { timeout: 60_000 },
    ANSWER,
  );
  return [];
}
