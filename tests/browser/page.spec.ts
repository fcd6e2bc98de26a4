/** The page as a person uses it. */

import { readFileSync } from "node:fs";
import type { Locator, Page } from "@playwright/test";
import { installFakeWorker } from "./fake-worker.js";
import { expect, test } from "./test.js";

/** Random weights that chose no stop token within 1200 tokens, whatever was asked, greedily or not. */
const LONG_MODEL = "tests/golden/models/qwen3-q8_0/model.gguf";
const BUILT_IN = "Signbit Mini";
const PARIS = "The capital of France is Paris.";

test.beforeEach(async ({ page, backend }) => {
  if (backend === "webgpu") {
    // The page would rather take the processor than an adapter in software.
    await page.addInitScript(() => {
      localStorage.setItem("signbit.settings", localStorage.getItem("signbit.settings") ?? '{ "backend": "webgpu" }');
    });
  }
});

/** Opens the page and waits for the built-in model. */
async function openPage(page: Page, query = ""): Promise<void> {
  await page.goto(`/${query}`);
  await expect(page.getByRole("button", { name: BUILT_IN })).toBeVisible();
  await expect(page.getByRole("button", { name: "What is the capital of France?" })).toBeEnabled();
}

async function ask(page: Page, question: string): Promise<void> {
  await page.getByRole("textbox", { name: "Message" }).fill(question);
  await page.getByRole("button", { name: "Send" }).click();
}

function answers(page: Page): Locator {
  return page.locator(".turn.assistant");
}

/** Goes back to the built-in model. */
async function chooseBuiltIn(page: Page): Promise<void> {
  await page.locator("#model-button").click();
  await page.getByRole("dialog", { name: "Model" }).getByRole("button", { name: `Load ${BUILT_IN}` }).click();
  await expect(page.getByRole("button", { name: BUILT_IN })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
}

async function chooseBackend(page: Page, backend: string): Promise<void> {
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Run on").selectOption(backend);
  await page.getByRole("button", { name: "Close" }).click();
}

/** Begins to load a model that takes seconds. */
async function loadSlowly(page: Page, baseURL: string | undefined): Promise<void> {
  await page.locator("#model-button").click();
  await page.getByRole("textbox", { name: "From an address" }).fill(`${baseURL}/faults/slow`);
  await page.getByRole("textbox", { name: "From an address" }).press("Enter");
  await expect(page.getByText(/Downloading slow: .+ of 834 KB/)).toBeVisible();
}

/** Begins an answer that lasts until it is stopped. */
async function startEndless(page: Page): Promise<void> {
  await loadLongModel(page);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer, in tokens").fill("32768");
  await page.getByRole("button", { name: "Close" }).click();
  await ask(page, "Think about it.");
  await expect(page.locator("#status")).toHaveText(/\d+ tokens/);
}

/** Loads a model of random weights, which thinks without an end. */
async function loadLongModel(page: Page): Promise<void> {
  await page.locator("#file").setInputFiles(LONG_MODEL);
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
}

test("the built-in model says what the capital of France is @smoke", async ({ page }) => {
  await openPage(page);
  await page.getByRole("button", { name: "What is the capital of France?" }).click();
  await expect(answers(page).locator(".answer")).toHaveText(PARIS);
  await expect(answers(page)).toContainText(/\d+ tokens/);
  await expect(page.getByRole("status")).toHaveText(PARIS);
});

test("the page names its device, or says why it is the processor", async ({ page, backend }) => {
  await openPage(page);
  const line = page.locator(".device-line");
  await expect(line).toContainText(
    backend === "webgpu" ? "Runs on WebGPU: google swiftshader" : "Runs on the processor: WebGPU found no graphics device.",
  );
  if (backend === "webgpu") {
    // What the address asks for goes before what is set.
    await openPage(page, "?backend=auto");
    await expect(line).toContainText("Runs on the processor: there is no graphics device but one in software.");
  }
});

test("a conversation goes on over several turns @page", async ({ page }) => {
  await openPage(page);
  await ask(page, "What is the capital of France?");
  await expect(answers(page).last()).toContainText(PARIS);
  await ask(page, "And its currency?");
  await expect(answers(page).last()).toContainText("The currency of France is the euro.");
  await expect(page.locator(".turn.user")).toHaveCount(2);

  await page.getByRole("button", { name: "New chat" }).click();
  await expect(page.locator(".turn")).toHaveCount(0);
  await expect(page.getByRole("heading", { name: "A language model in this tab" })).toBeVisible();
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("an answer can be given once more, and only the last @page", async ({ page }) => {
  await openPage(page);
  await ask(page, "What is the capital of France?");
  await expect(answers(page).last()).toContainText(PARIS);
  await ask(page, "And its currency?");
  await expect(answers(page).last()).toContainText("euro");
  await expect(page.getByRole("button", { name: "Regenerate" })).toHaveCount(1);
  await page.getByRole("button", { name: "Regenerate" }).click();
  await expect(page.getByRole("button", { name: "Regenerate" })).toHaveCount(1);
  await expect(answers(page)).toHaveCount(2);
  await expect(answers(page).last()).toContainText("The currency of France is the euro.");
});

test("an answer can be copied @page", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await openPage(page);
  await ask(page, "What is the capital of France?");
  await page.getByRole("button", { name: "Copy" }).click();
  await expect(page.getByRole("button", { name: "Copied" })).toBeVisible();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(PARIS);
});

for (const way of ["button", "key"] as const) {
  test(`an answer can be stopped by ${way}, and the keyboard stays where it is of use`, async ({ page }) => {
    await openPage(page);
    await startEndless(page);
    if (way === "button") {
      // The button that was pressed is gone.
      await expect(page.getByRole("button", { name: "Stop" })).toBeFocused();
      await page.getByRole("button", { name: "Stop" }).click();
    } else {
      await page.keyboard.press("Escape");
    }
    await expect(answers(page)).toContainText(/stopped/i);
    await expect(page.getByRole("button", { name: "Send" })).toBeVisible();
    await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
    await page.getByRole("button", { name: "Regenerate" }).click();
    await expect(page.getByRole("button", { name: "Stop" })).toBeFocused();
    await page.keyboard.press("Enter");
    await expect(answers(page)).toContainText(/stopped/i);
    await chooseBuiltIn(page);
    await ask(page, "Where is Egypt?");
    await expect(answers(page).last()).toContainText("Egypt is in Africa.");
  });
}

test("an example that was chosen hands the keyboard on @page", async ({ page }) => {
  await openPage(page);
  await page.getByRole("button", { name: "Where is Egypt?" }).focus();
  await page.keyboard.press("Enter");
  await expect(answers(page)).toContainText("Egypt is in Africa.");
  await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
});

test("another backend can be chosen while a model loads", async ({ page, baseURL }) => {
  await openPage(page);
  await loadSlowly(page, baseURL);
  await chooseBackend(page, "cpu");
  await expect(page.locator(".device-line")).toContainText("Runs on the processor, as set.");
  await expect(page.getByRole("alert")).toBeHidden();
  // The model that was asked for comes on the other backend.
  await expect(page.getByText(/Downloading slow: /)).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await expect(page.getByRole("button", { name: "slow" })).toBeVisible();
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("another backend can be chosen while an answer is given", async ({ page }) => {
  await openPage(page);
  await startEndless(page);
  await chooseBackend(page, "cpu");
  await expect(answers(page)).toContainText(/stopped/i);
  await expect(page.locator(".device-line")).toContainText("Runs on the processor, as set.");
  await expect(page.getByRole("alert")).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await chooseBuiltIn(page);
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("an engine that does not start leaves no model on show", async ({ page, backend }) => {
  test.skip(backend === "webgpu", "This browser has WebGPU.");
  await openPage(page);
  await chooseBackend(page, "webgpu");
  await expect(page.getByRole("alert")).toContainText("WebGPU is not available here.");
  await expect(page.getByRole("button", { name: "No model" })).toBeVisible();
  await expect(page.locator(".device-line")).toContainText("The engine is not running");
  await chooseBackend(page, "auto");
  await expect(page.getByRole("button", { name: BUILT_IN })).toBeVisible();
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("a load that ends an answer keeps its bar @page", async ({ page, baseURL }) => {
  await openPage(page);
  await startEndless(page);
  // Each report of progress shows the bar again, so looking now and then would miss that it goes.
  const hides = await page.locator("#loading").evaluateHandle((bar) => {
    const hides: number[] = [];
    let wasHidden = (bar as HTMLElement).hidden;
    new MutationObserver(() => {
      const { hidden } = bar as HTMLElement;
      if (hidden && !wasHidden) {
        hides.push(performance.now());
      }
      wasHidden = hidden;
    }).observe(bar, { attributeFilter: ["hidden"] });
    return hides;
  });
  await loadSlowly(page, baseURL);
  await expect(answers(page)).toContainText(/stopped/i);
  await expect(page.locator("#loading")).toBeHidden();
  expect(await hides.evaluate(({ length }) => length)).toBe(1);
  await expect(page.getByRole("button", { name: "slow" })).toBeVisible();
});

test("without a model no answer is thrown away @page", async ({ page, baseURL }) => {
  await openPage(page);
  await ask(page, "What is the capital of France?");
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
  await loadSlowly(page, baseURL);
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(page.getByRole("button", { name: "No model" })).toBeVisible();
  await page.getByRole("button", { name: "Regenerate" }).click();
  await expect(answers(page)).toContainText(PARIS);
  await chooseBuiltIn(page);
  await page.getByRole("button", { name: "Regenerate" }).click();
  await expect(answers(page)).toHaveCount(1);
  await expect(answers(page)).toContainText(PARIS);
});

for (const levels of [100, 20_000]) {
  test(`an answer of ${levels} levels, too many to be formatted, is shown as it is @page`, async ({ page }) => {
    // What the page gets is up to a worker that says what the test wants.
    const content = `${">".repeat(levels)} deep`;
    await installFakeWorker(page, { content });
    await openPage(page);
    await ask(page, "Anything");
    await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
    await expect(answers(page).locator(".answer")).toHaveText(content);
  });
}

test("the keyboard suffices @page", async ({ page }) => {
  await openPage(page);
  await page.getByRole("textbox", { name: "Message" }).focus();
  await page.keyboard.type("What is the capital");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.press("Backspace");
  await page.keyboard.type(" of France?");
  await page.keyboard.press("Enter");
  await expect(answers(page).locator(".answer")).toHaveText(PARIS);
  await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
  await expect(page.getByRole("textbox", { name: "Message" })).toHaveValue("");

  await page.getByRole("button", { name: "Settings" }).focus();
  await page.keyboard.press("Enter");
  await expect(page.getByRole("dialog", { name: "Settings" })).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toHaveCount(0);
  await expect(page.getByRole("button", { name: "Settings" })).toBeFocused();
});

test("every control has a name @page", async ({ page }) => {
  await openPage(page);
  const nameless = await page.locator("button, input, textarea, select, progress").evaluateAll((controls) =>
    controls
      .filter((control) => {
        const labels = (control as HTMLInputElement).labels;
        const text = [control.textContent, control.getAttribute("aria-label"), ...[...(labels ?? [])].map((label) => label.textContent)];
        return !control.hasAttribute("aria-labelledby") && !text.some((part) => (part ?? "").trim() !== "");
      })
      .map((control) => control.outerHTML),
  );
  expect(nameless).toEqual([]);
});

test("the notices of the built-in model's sources are a click away @page", async ({ page, request }) => {
  await openPage(page);
  await page.getByRole("button", { name: BUILT_IN }).click();
  const address = await page.getByRole("link", { name: "Sources and licences" }).getAttribute("href");
  const notice = await (await request.get(new URL(address ?? "", page.url()).href)).text();
  expect(notice).toContain("WordNet 3.0 Copyright");
});

test("a local file loads by the picker and by drag and drop @page", async ({ page }) => {
  await openPage(page);
  await page.getByRole("button", { name: BUILT_IN }).click();
  const chooser = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Choose a file" }).click();
  await (await chooser).setFiles("tests/golden/models/qwen3-q1_0/model.gguf");
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await page.getByRole("button", { name: "model.gguf" }).click();
  await expect(page.getByLabel("Loaded model")).toContainText("qwen3, ");
  await page.keyboard.press("Escape");

  const bytes = readFileSync("tests/golden/tiny-geo/model.gguf").toString("base64");
  const transfer = await page.evaluateHandle(async (bytes) => {
    const transfer = new DataTransfer();
    const content = Uint8Array.from(atob(bytes), (character) => character.charCodeAt(0));
    transfer.items.add(new File([content], "dropped.gguf"));
    return transfer;
  }, bytes);
  await page.dispatchEvent("body", "dragenter", { dataTransfer: transfer });
  await expect(page.getByText("Drop the GGUF file to load it")).toBeVisible();
  await page.dispatchEvent("body", "drop", { dataTransfer: transfer });
  await expect(page.getByText("Drop the GGUF file to load it")).toBeHidden();
  await expect(page.getByRole("button", { name: "dropped.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("a model loads from an address @page", async ({ page, baseURL }) => {
  await openPage(page);
  await page.getByRole("button", { name: BUILT_IN }).click();
  await page.getByRole("textbox", { name: "From an address" }).fill(`${baseURL}/tests/golden/tiny-geo/model.gguf`);
  await page.getByRole("textbox", { name: "From an address" }).press("Enter");
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("a bad address and a bad file say what to do, and the page goes on @page", async ({ page, baseURL, tolerated }) => {
  tolerated.push(/Failed to load resource/);
  await openPage(page);
  const alert = page.getByRole("alert");
  for (const [path, sentence] of [
    ["/faults/html", "This is not a usable model file."],
    ["/faults/missing", "The model could not be downloaded."],
  ] as const) {
    await page.locator("#model-button").click();
    await page.getByRole("textbox", { name: "From an address" }).fill(`${baseURL}${path}`);
    await page.getByRole("textbox", { name: "From an address" }).press("Enter");
    await expect(alert).toContainText(sentence);
    await expect(alert.getByRole("button", { name: "Try again" })).toBeVisible();
  }
  await page.locator("#file").setInputFiles({ name: "notes.gguf", mimeType: "", buffer: Buffer.from("not a model at all") });
  await expect(alert).toContainText("This is not a usable model file.");
  await alert.getByRole("button", { name: "Choose another model" }).click();
  await page.getByRole("dialog", { name: "Model" }).getByRole("button", { name: `Load ${BUILT_IN}` }).click();
  await expect(page.getByRole("button", { name: BUILT_IN })).toBeVisible();
  await expect(alert).toBeHidden();
  await ask(page, "Where is Egypt?");
  await expect(answers(page).last()).toContainText("Egypt is in Africa.");
});

test("a load can be cancelled @page", async ({ page, baseURL }) => {
  await openPage(page);
  await page.getByRole("button", { name: BUILT_IN }).click();
  await page.getByRole("textbox", { name: "From an address" }).fill(`${baseURL}/faults/slow`);
  await page.getByRole("textbox", { name: "From an address" }).press("Enter");
  await expect(page.getByText(/Downloading slow: .+ of 834 KB/)).toBeVisible();
  await expect(page.getByRole("progressbar")).toHaveAttribute("value", /0\.\d+/);
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(page.locator("#loading")).toBeHidden();
  await expect(page.getByRole("alert")).toBeHidden();
  await page.locator("#model-button").click();
  await page.getByRole("dialog", { name: "Model" }).getByRole("button", { name: `Load ${BUILT_IN}` }).click();
  await ask(page, "Where is Egypt?");
});

test("thinking can be switched on and is folded away @page", async ({ page }) => {
  await openPage(page);
  await loadLongModel(page);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer, in tokens").fill("24");
  await page.getByRole("button", { name: "Close" }).click();
  await page.getByLabel("Think first").check();
  await ask(page, "Think about it.");
  await expect(page.locator(".thinking-text")).not.toBeEmpty();
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
  await expect(page.locator("details.thinking")).not.toHaveAttribute("open");
  await expect(page.locator(".thinking summary")).toHaveText("Thoughts");
});

test("settings hold over a reload and reach the engine @page", async ({ page }) => {
  await openPage(page);
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer, in tokens").fill("3");
  await page.getByLabel("Appearance").selectOption("dark");
  await page.getByRole("button", { name: "Close" }).click();
  const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.reload();
  await openPage(page);
  expect(await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).toBe(dark);
  await ask(page, "What is the capital of France?");
  await expect(answers(page)).toContainText("3 tokens");
  await expect(answers(page)).toContainText("ended at the longest allowed length");

  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByRole("button", { name: "Restore defaults" }).click();
  await page.getByLabel("Appearance").selectOption("light");
  expect(await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).not.toBe(dark);
});

test("a narrow screen shows everything without scrolling sideways @page", async ({ page }) => {
  await page.setViewportSize({ width: 360, height: 640 });
  await openPage(page);
  await ask(page, "What is the capital of France?");
  await expect(answers(page).locator(".answer")).toHaveText(PARIS);
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(360);
  await expect(page.getByRole("button", { name: "New chat" })).toBeInViewport();
  await expect(page.getByRole("textbox", { name: "Message" })).toBeInViewport();
});

test("the page works under a strict policy, without isolation, and asks nobody else", async ({ page, baseURL }) => {
  const violations: string[] = [];
  await page.exposeFunction("reportViolation", (violation: string) => violations.push(violation));
  await page.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      const report = (globalThis as unknown as { reportViolation(violation: string): void }).reportViolation;
      report(`${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  const requests: string[] = [];
  page.on("request", (request) => requests.push(request.url()));
  const response = await page.goto("/");
  const policy = response?.headers()["content-security-policy"] ?? "";
  expect(policy).toContain("default-src 'none'");
  expect(policy).not.toMatch(/unsafe-inline|'unsafe-eval'|blob:/);
  await page.getByRole("button", { name: "What is the capital of France?" }).click();
  await expect(answers(page).last()).toContainText(PARIS);
  expect(await page.evaluate(() => crossOriginIsolated)).toBe(false);
  expect(violations).toEqual([]);
  expect(requests.length).toBeGreaterThan(3);
  expect(requests.filter((url) => !url.startsWith(`${baseURL}/`) && !url.startsWith("data:"))).toEqual([]);
});

test("a hidden page goes on answering", async ({ page, context }) => {
  await openPage(page);
  await ask(page, "What can you do?");
  const other = await context.newPage();
  await other.goto("about:blank");
  await other.bringToFront();
  await expect(answers(page).locator(".answer")).toContainText("I can tell you about countries");
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeAttached();
});
