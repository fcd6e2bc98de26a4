/** The test function of all specs: a page in which nothing may go wrong unseen. */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { test as base, type BrowserContext, chromium, expect, type Page } from "@playwright/test";
import type { Harness } from "./harness/dist/main.js";

export { expect };

declare global {
  /** In the page, once `openHarness` has been called. */
  var harness: Harness;
}

export interface Options {
  /** What the browser of the project offers. */
  backend: "webgpu" | "cpu";
}

interface Fixtures {
  /** Console errors that the test provokes; each test has a list of its own. */
  tolerated: RegExp[];
  /** What went wrong in the pages of the test. */
  problems: string[];
  /** The folder of the profile of `persistentContext`. */
  profile: string;
  /**
   * Starts the project's browser with a profile on the disk, as a visitor's is: that of `page` is private, with other
   * limits, speeds and errors. The profile is the test's own. A browser that is started when the one before it has been
   * closed finds what that has left.
   */
  persistentContext: (args?: readonly string[]) => Promise<BrowserContext>;
  /** A page of such a browser. */
  persistent: Page;
}

/** Warnings with which Chromium reports what WebGPU has refused. */
const GPU_COMPLAINT = /uncaptured|validation|is invalid|\[Invalid|device (was )?lost|GPU process/i;

export const test = base.extend<Options & Fixtures>({
  backend: ["webgpu", { option: true }],
  tolerated: async ({}, use) => use([]),
  problems: async ({ tolerated }, use) => {
    const problems: string[] = [];
    await use(problems);
    expect(problems.filter((problem) => !tolerated.some((pattern) => pattern.test(problem)))).toEqual([]);
  },
  page: async ({ page, problems }, use) => {
    watch(page, problems);
    await use(page);
  },
  profile: async ({}, use) => {
    const profile = await mkdtemp(path.join(tmpdir(), "signbit-profile-"));
    await use(profile);
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  },
  persistentContext: async ({ launchOptions, baseURL, problems, profile }, use) => {
    const contexts: BrowserContext[] = [];
    await use(async (args = []) => {
      const context = await chromium.launchPersistentContext(profile, {
        ...launchOptions,
        args: [...(launchOptions.args ?? []), ...args],
        ...(baseURL === undefined ? {} : { baseURL }),
      });
      contexts.push(context);
      context.on("page", (page) => watch(page, problems));
      for (const page of context.pages()) {
        watch(page, problems);
      }
      return context;
    });
    await Promise.all(contexts.map((context) => context.close()));
  },
  persistent: async ({ persistentContext }, use) => {
    const context = await persistentContext();
    await use(context.pages()[0] ?? (await context.newPage()));
  },
});

/** Notes what goes wrong in a page. */
function watch(page: Page, problems: string[]): void {
  page.on("console", (message) => {
    const isComplaint = message.type() === "warning" && GPU_COMPLAINT.test(message.text());
    if (message.type() === "error" || isComplaint) {
      problems.push(`console ${message.type()}: ${message.text()}`);
    }
  });
  page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
  page.on("crash", () => problems.push("the page crashed"));
}

/** A page with the client and the checks in `harness`, and an open engine in `engine`. */
export async function openHarness(page: Page): Promise<void> {
  await page.goto("/tests/browser/harness/index.html");
  await expect.poll(() => page.evaluate(() => typeof harness)).toBe("object");
}
