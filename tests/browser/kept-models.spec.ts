/** What the page shows of official models and of those that are kept, from a worker that says what the test wants. */

import { readFileSync } from "node:fs";
import type { Locator, Page } from "@playwright/test";
import type { CatalogueEntry } from "../../worker/dist/catalogue.js";
import type { Params, Request } from "../../worker/dist/protocol.js";
import type { Progress, StorageUsage, StoredModel } from "../../worker/dist/types.js";
import { DIGEST, fakeWorker, installFakeWorker, type Script } from "./fake-worker.js";
import { expect, test } from "./test.js";

const CATALOGUE = JSON.parse(readFileSync("worker/catalogue.json", "utf8")) as readonly CatalogueEntry[];
const [SMALL, MEDIUM] = CATALOGUE as readonly [CatalogueEntry, CatalogueEntry];
const OTHER = "https://models.example/own.gguf";
const SHA256 = "ab".repeat(32);
const DAY_MS = 86_400_000;

const USAGE: StorageUsage = { model_bytes: 1_500_000_000, usage: 1_600_000_000, quota: 10_000_000_000, is_persisted: false };
const MODELS: readonly StoredModel[] = [
  kept(SMALL.url, { bytes: SMALL.bytes, bytes_total: SMALL.bytes, sha256: [SMALL.sha256] }),
  kept(OTHER, { bytes: 250_000_000, bytes_total: 1_000_000_000, is_complete: false, used_at: Date.now() - DAY_MS }),
  kept("file:///draft.gguf", { is_complete: false, bytes: 500, used_at: Date.now() - 3 * DAY_MS }),
];

function kept(id: string, rest: Partial<StoredModel> = {}): StoredModel {
  return {
    id,
    name: id.split("/").at(-1) ?? id,
    parts: 1,
    bytes: 1000,
    bytes_total: 1000,
    is_complete: true,
    store: "opfs",
    sha256: [SHA256],
    created_at: Date.now(),
    used_at: Date.now(),
    ...rest,
  };
}

/** Opens the page with such a worker, on a machine with so much memory, as its browser tells. */
async function openPage(page: Page, script: Script, deviceMemory?: number): Promise<void> {
  await page.addInitScript((value) => {
    Object.defineProperty(Navigator.prototype, "deviceMemory", { get: () => value });
  }, deviceMemory);
  await installFakeWorker(page, script);
  await page.goto("/");
  await expect(page.getByRole("button", { name: "What is the capital of France?" })).toBeEnabled();
}

async function openDialog(page: Page): Promise<Locator> {
  await page.locator("#model-button").click();
  return page.getByRole("dialog", { name: "Model" });
}

function rows(page: Page): Locator {
  return page.getByRole("list", { name: "On this computer" }).getByRole("listitem");
}

async function requests(page: Page): Promise<readonly Request[]> {
  return fakeWorker(page).evaluate(() => fake.requests);
}

/** How the last model was asked for, once its load has ended. */
async function lastLoad(page: Page): Promise<Params<"load">> {
  await expect(page.locator("#loading")).toBeHidden();
  const call = (await requests(page)).findLast((request) => request.method === "load");
  if (call?.method !== "load") {
    throw new Error("nothing was loaded");
  }
  return call.params;
}

test("kept models are listed with size, origin and last use @page", async ({ page }) => {
  await openPage(page, { models: MODELS, usage: USAGE });
  const dialog = await openDialog(page);
  await expect(rows(page)).toHaveCount(3);
  await expect(rows(page).nth(0)).toContainText("Bonsai 1.7B");
  await expect(rows(page).nth(0)).toContainText("248 MB, from huggingface.co, used today");
  await expect(rows(page).nth(1)).toContainText("own.gguf");
  await expect(rows(page).nth(1)).toContainText("250 MB of 1.00 GB so far, from models.example, used yesterday");
  await expect(rows(page).nth(1).getByRole("button", { name: "Continue own.gguf" })).toBeVisible();
  // What is missing of it, only the file has.
  await expect(rows(page).nth(2)).toContainText("from a file, used 3 days ago, choose the file again for the rest");
  await expect(rows(page).nth(2).getByRole("button", { name: /Load|Continue/ })).toBeHidden();
  await expect(dialog).toContainText("Models take 1.50 GB. This site uses 1.60 GB of the 10.0 GB that the browser allows.");
  await expect(dialog).toContainText("When disk space runs short, the browser may delete them.");
  const official = page.getByRole("list", { name: "Official models" }).getByRole("listitem");
  await expect(official.filter({ hasText: SMALL.name }).first()).toContainText("on this computer");
  await expect(official.filter({ hasText: MEDIUM.name }).first()).not.toContainText("on this computer");
});

test("a kept model is loaded by its id, and checked where it is official @page", async ({ page }) => {
  await openPage(page, { models: MODELS });
  await openDialog(page);
  await rows(page).getByRole("button", { name: "Load Bonsai 1.7B" }).click();
  await expect(page.getByRole("button", { name: "Bonsai 1.7B" })).toBeVisible();
  expect(await lastLoad(page)).toMatchObject({ source: { kind: "stored", id: SMALL.url }, sha256: [SMALL.sha256] });
  await openDialog(page);
  await rows(page).getByRole("button", { name: "Continue own.gguf" }).click();
  await expect(page.getByRole("button", { name: "own.gguf" })).toBeVisible();
  const load = await lastLoad(page);
  expect(load).toMatchObject({ source: { kind: "stored", id: OTHER } });
  expect(load).not.toHaveProperty("sha256");
  // The list has been asked for anew: the model is complete by now.
  await openDialog(page);
  await expect(rows(page).getByRole("button", { name: "Load own.gguf" })).toBeVisible();
});

test("a model is deleted only after a question, and the keyboard goes on from the next @page", async ({ page }) => {
  await openPage(page, { models: MODELS });
  const dialog = await openDialog(page);
  const first = rows(page).first();
  await first.getByRole("button", { name: "Delete Bonsai 1.7B" }).click();
  await expect(first).toContainText("Delete 248 MB?");
  await expect(first.getByRole("button", { name: "Keep Bonsai 1.7B" })).toBeFocused();
  await page.keyboard.press("Escape");
  await expect(first.getByRole("button", { name: "Delete Bonsai 1.7B" })).toBeFocused();
  await expect(dialog).toBeVisible();
  expect((await requests(page)).some(({ method }) => method === "delete_model")).toBe(false);

  for (const [name, heir] of [
    ["Bonsai 1.7B", "Continue own.gguf"],
    ["own.gguf", "Check draft.gguf"],
  ] as const) {
    await rows(page).getByRole("button", { name: `Delete ${name}` }).click();
    await rows(page).getByRole("button", { name: `Delete ${name} for good` }).click();
    await expect(rows(page).filter({ hasText: name })).toHaveCount(0);
    await expect(rows(page).getByRole("button", { name: heir })).toBeFocused();
    await expect(page.locator("#kept-message")).toContainText(`${name} was deleted: `);
  }
  await rows(page).getByRole("button", { name: "Delete draft.gguf" }).click();
  await rows(page).getByRole("button", { name: "Delete draft.gguf for good" }).click();
  await expect(dialog.getByRole("heading", { name: "On this computer" })).toBeFocused();
  await expect(dialog).toContainText("Models that are loaded from an address are kept");
  const deleted = (await requests(page)).flatMap((request) => (request.method === "delete_model" ? [request.params.id] : []));
  expect(deleted).toEqual([SMALL.url, OTHER, "file:///draft.gguf"]);
});

test("a model that cannot be deleted stays, with the reason @page", async ({ page }) => {
  const deleteError = { code: "busy", detail: "another tab downloads it", fatal: false } as const;
  await openPage(page, { models: MODELS, deleteError });
  await openDialog(page);
  await rows(page).getByRole("button", { name: "Delete Bonsai 1.7B" }).click();
  await rows(page).getByRole("button", { name: "Delete Bonsai 1.7B for good" }).click();
  await expect(rows(page).first().getByRole("status")).toHaveText("The engine is working on another request: another tab downloads it.");
  await expect(rows(page).first().getByRole("button", { name: "Delete Bonsai 1.7B" })).toBeFocused();
});

test("a check says what is wrong, or that nothing is @page", async ({ page }) => {
  const faults = [
    { part: 0, offset: 0, length: 16_000_000, problem: "damaged" },
    { part: 0, offset: 48_000_000, length: 16_000_000, problem: "missing" },
  ] as const;
  await openPage(page, {
    models: MODELS,
    verifications: [
      { id: SMALL.url, bytes: SMALL.bytes, is_complete: true, faults: [] },
      { id: OTHER, bytes: 218_000_000, is_complete: false, faults },
    ],
  });
  await openDialog(page);
  await rows(page).getByRole("button", { name: "Check Bonsai 1.7B" }).click();
  await expect(rows(page).nth(0).getByRole("status")).toHaveText("Nothing is wrong: all 248 MB are as they were written.");
  await rows(page).getByRole("button", { name: "Check own.gguf" }).click();
  await expect(rows(page).nth(1).getByRole("status")).toHaveText(
    "32.0 MB in 2 places are damaged or missing, and will be fetched again; 218 MB are as they were written.",
  );
});

for (const way of ["button", "key"] as const) {
  test(`a check that takes long can be stopped by ${way} @page`, async ({ page }) => {
    await openPage(page, { models: MODELS });
    await openDialog(page);
    const row = rows(page).first();
    await row.getByRole("button", { name: "Check Bonsai 1.7B" }).click();
    await expect(row.getByRole("status")).toHaveText("Reading all of it");
    await expect(row.getByRole("button", { name: "Delete Bonsai 1.7B" })).toBeDisabled();
    if (way === "button") {
      await row.getByRole("button", { name: "Stop checking Bonsai 1.7B" }).click();
    } else {
      await page.keyboard.press("Escape");
      await expect(page.getByRole("dialog")).toHaveCount(0);
      await openDialog(page);
    }
    await expect(row.getByRole("button", { name: "Check Bonsai 1.7B" })).toBeVisible();
    await expect(row.getByRole("status")).toBeEmpty();
    await expect(row.getByRole("button", { name: "Delete Bonsai 1.7B" })).toBeEnabled();
    expect((await requests(page)).filter(({ method }) => method === "abort")).toHaveLength(1);
  });
}

test("official models that fit the memory are offered, the others with the reason @page", async ({ page }) => {
  await openPage(page, {}, 2);
  const dialog = await openDialog(page);
  const official = page.getByRole("list", { name: "Official models" }).getByRole("listitem");
  await expect(official).toHaveCount(3);
  await expect(official.nth(0)).toContainText("Bonsai 1.7B");
  await expect(official.nth(0)).toContainText("248 MB, 1.7 billion parameters");
  await expect(official.nth(1)).toContainText("Bonsai 4B");
  await expect(official.nth(2)).toContainText("Ternary Bonsai 1.7B");
  const others = page.getByRole("list", { name: "5 more, too large for this device" }).getByRole("listitem");
  await expect(others).toHaveCount(0);
  await dialog.getByText("5 more, too large for this device").click();
  await expect(others).toHaveCount(5);
  await expect(others.nth(0)).toContainText("Bonsai 8B");
  await expect(others.nth(0)).toContainText("It needs 1.4 GB of memory, and may take 1.1 GB on this device.");
  await expect(others.getByRole("button")).toHaveCount(0);
  const init = (await requests(page)).find(({ method }) => method === "init");
  expect(init).toMatchObject({ params: { memory_budget_bytes: 2 ** 30 } });
});

test("where the browser does not tell the memory, the processor's limit decides @page", async ({ page }) => {
  await openPage(page, {});
  const dialog = await openDialog(page);
  await expect(page.getByRole("list", { name: "Official models" }).getByRole("listitem")).toHaveCount(6);
  await dialog.getByText("2 more, too large for this device").click();
  await expect(dialog).toContainText("It needs 4.1 GB of memory, and may take 3.2 GB on this device.");
  const init = (await requests(page)).find(({ method }) => method === "init");
  expect(init).not.toHaveProperty("params.memory_budget_bytes");
});

test("an official model is checked against its SHA-256, also by its address @page", async ({ page }) => {
  await openPage(page, {});
  expect(await lastLoad(page)).toMatchObject({ keep: false });
  await openDialog(page);
  await page.getByRole("button", { name: `Load ${MEDIUM.name}`, exact: true }).click();
  await expect(page.getByRole("button", { name: MEDIUM.name })).toBeVisible();
  expect(await lastLoad(page)).toMatchObject({ source: { kind: "urls", urls: [MEDIUM.url] }, sha256: [MEDIUM.sha256] });

  for (const [address, name, sha256] of [
    [`${SMALL.url}?download=true`, SMALL.name, [SMALL.sha256]],
    [OTHER, "own.gguf", undefined],
  ] as const) {
    await openDialog(page);
    await page.getByRole("textbox", { name: "From an address" }).fill(address);
    await page.getByRole("textbox", { name: "From an address" }).press("Enter");
    await expect(page.getByRole("button", { name })).toBeVisible();
    const load = await lastLoad(page);
    expect(load.sha256).toEqual(sha256);
    expect(load).not.toHaveProperty("keep");
  }
});

test("a local file is kept if that is asked for @page", async ({ page }) => {
  await openPage(page, {});
  for (const keep of [false, true]) {
    const dialog = await openDialog(page);
    await dialog.getByLabel("Keep a copy in this browser").setChecked(keep);
    await page.locator("#file").setInputFiles({ name: "local.gguf", mimeType: "", buffer: Buffer.from("GGUF") });
    await expect(page.getByRole("button", { name: "local.gguf" })).toBeVisible();
    const { source, keep: isKept } = await lastLoad(page);
    expect(source.kind).toBe("blobs");
    expect(isKept).toBe(keep);
    await openDialog(page);
    await expect(page.getByLabel("Loaded model")).toContainText(keep ? "KeptOn this computer" : "KeptNo");
    await expect(rows(page)).toHaveCount(keep ? 1 : 0);
    await page.keyboard.press("Escape");
  }
  // Deleted, it stays loaded.
  await openDialog(page);
  await rows(page).getByRole("button", { name: "Delete local.gguf" }).click();
  await rows(page).getByRole("button", { name: "Delete local.gguf for good" }).click();
  await expect(page.getByLabel("Loaded model")).toContainText("KeptNo");
  await expect(page.getByLabel("Loaded model")).toContainText("local.gguf");
});

test("a load says whether it downloads, reads or waits @page", async ({ page }) => {
  await openPage(page, { holdsLoads: true });
  await openDialog(page);
  await page.getByRole("button", { name: `Load ${MEDIUM.name}`, exact: true }).click();
  const line = page.locator("#loading-text");
  await expect(line).toHaveText("Opening Bonsai 4B");
  const download = { stage: "download", part: 0, parts: 1, bytes_total: 572_270_624, is_waiting: false } as const;
  for (const [progress, text] of [
    [{ ...download, bytes_seen: 0, bytes_local: 0 }, "Downloading Bonsai 4B: 0 bytes of 572 MB"],
    [{ ...download, bytes_seen: 1e8, bytes_local: 1e8 }, "Reading Bonsai 4B from this computer: 100 MB of 572 MB"],
    [{ ...download, bytes_seen: 2e8, bytes_local: 1e8, parts: 3, part: 1 }, "Downloading Bonsai 4B, file 2 of 3: 200 MB of 572 MB"],
    [{ ...download, bytes_seen: 2e8, bytes_local: 1e8, bytes_total: null }, "Downloading Bonsai 4B: 200 MB"],
    [{ ...download, bytes_seen: 3e8, bytes_local: 1e8, is_waiting: true }, "Another tab is downloading Bonsai 4B: 300 MB of 572 MB"],
    [{ stage: "prepare" }, "Preparing Bonsai 4B"],
  ] satisfies readonly (readonly [Progress, string])[]) {
    await fakeWorker(page).evaluate((progress) => fake.progress(progress), progress);
    // After a second the rate stands behind it.
    await expect(line).toHaveText(new RegExp(`^${text}(, .+/s)?$`));
  }
  let seen = 0;
  await expect(async () => {
    seen += 1e6;
    await fakeWorker(page).evaluate((progress) => fake.progress(progress), { ...download, bytes_seen: seen, bytes_local: 0 });
    await expect(line).toHaveText(/ of 572 MB, [\d.]+ [KM]B\/s$/, { timeout: 50 });
  }).toPass();
  await fakeWorker(page).evaluate(() => fake.finishLoad());
  await expect(page.locator("#loading")).toBeHidden();
});

test("a load that failed is tried again as it was @page", async ({ page }) => {
  await openPage(page, { holdsLoads: true });
  await openDialog(page);
  await page.getByRole("button", { name: `Load ${MEDIUM.name}`, exact: true }).click();
  await expect(page.locator("#loading-text")).toHaveText("Opening Bonsai 4B");
  await fakeWorker(page).evaluate(() => fake.failLoad({ code: "network", detail: "the line is down", fatal: false }));
  await expect(page.getByRole("alert")).toContainText("The model could not be downloaded.");
  await page.getByRole("alert").getByRole("button", { name: "Try again" }).click();
  await expect(page.locator("#loading-text")).toHaveText("Opening Bonsai 4B");
  await fakeWorker(page).evaluate(() => fake.finishLoad());
  await expect(page.getByRole("button", { name: MEDIUM.name })).toBeVisible();
  expect(await lastLoad(page)).toMatchObject({ source: { urls: [MEDIUM.url] }, sha256: [MEDIUM.sha256] });
  await expect(page.getByRole("alert")).toBeHidden();
});

test("a model that could not be kept is a notice, not a failure @page", async ({ page }) => {
  const notice = { code: "storage_full", message: "The model runs, but it is not kept: the storage is full.", usage: 9.8e9, quota: 1e10 } as const;
  await openPage(page, { models: MODELS, notice });
  await openDialog(page);
  await page.getByRole("button", { name: `Load ${MEDIUM.name}`, exact: true }).click();
  const line = page.getByRole("region", { name: "Storage" });
  await expect(line).toContainText("The model runs, but it is not kept: the storage is full. 9.80 GB of 10.0 GB are used.");
  await expect(page.getByRole("alert")).toBeHidden();
  await expect(page.getByRole("status")).toContainText("Bonsai 4B is ready. The model runs, but it is not kept");
  await line.getByRole("button", { name: "Kept models" }).click();
  await expect(rows(page).first()).toBeVisible();
  await page.keyboard.press("Escape");
  await line.getByRole("button", { name: "Dismiss" }).click();
  await expect(line).toBeHidden();
  await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
});

test("the dialog shows the model's digest and its file's, and copies them @page", async ({ page, context }) => {
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await openPage(page, {});
  await openDialog(page);
  const facts = page.getByLabel("Loaded model");
  await expect(facts).toContainText("01234567…89abcdef");
  await expect(facts.getByTitle(DIGEST)).toBeVisible();
  await facts.getByRole("button", { name: "Copy the model's digest" }).click();
  await expect(facts.getByRole("button", { name: "Copied" })).toBeVisible();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(DIGEST);
  await facts.getByRole("button", { name: /^Copy the SHA-256 of signbit-mini.*\.gguf$/ }).click();
  await expect.poll(() => page.evaluate(() => navigator.clipboard.readText())).toBe(SHA256);
});

test("on a narrow screen the lists of models fit, and their controls have names @page", async ({ page }) => {
  await page.setViewportSize({ width: 360, height: 640 });
  await openPage(page, { models: [...MODELS, kept(`file:///${"long-".repeat(20)}name.gguf`)], usage: USAGE }, 2);
  const dialog = await openDialog(page);
  await expect(rows(page)).toHaveCount(4);
  await rows(page).last().getByRole("button", { name: /^Delete/ }).click();
  expect(await dialog.evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)).toBeLessThanOrEqual(0);
  const names = await dialog.getByRole("button").evaluateAll((buttons) =>
    buttons.map((button) => button.ariaLabel ?? button.textContent.trim()),
  );
  // All but the one of the form, whose name is that of its field.
  expect(names.filter((name) => name === "" || name === "Delete" || name === "Check")).toEqual([]);
});
