/** The test function of all specs: a page in which nothing may go wrong unseen. */

import { test as base, expect, type Page } from "@playwright/test";
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
}

/** Warnings with which Chromium reports what WebGPU has refused. */
const GPU_COMPLAINT = /uncaptured|validation|is invalid|\[Invalid|device (was )?lost|GPU process/i;

export const test = base.extend<Options & Fixtures>({
  backend: ["webgpu", { option: true }],
  tolerated: async ({}, use) => use([]),
  page: async ({ page, tolerated }, use) => {
    const problems: string[] = [];
    page.on("console", (message) => {
      const isComplaint = message.type() === "warning" && GPU_COMPLAINT.test(message.text());
      if (message.type() === "error" || isComplaint) {
        problems.push(`console ${message.type()}: ${message.text()}`);
      }
    });
    page.on("pageerror", (error) => problems.push(`uncaught: ${error.message}`));
    page.on("crash", () => problems.push("the page crashed"));
    await use(page);
    expect(problems.filter((problem) => !tolerated.some((pattern) => pattern.test(problem)))).toEqual([]);
  },
});

/** A page with the client and the checks in `harness`, and an open engine in `engine`. */
export async function openHarness(page: Page): Promise<void> {
  await page.goto("/tests/browser/harness/index.html");
  await expect.poll(() => page.evaluate(() => typeof harness)).toBe("object");
}
