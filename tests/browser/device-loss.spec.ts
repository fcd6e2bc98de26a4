/** What becomes of every kind of request when the graphics device is lost. */

import { randomUUID } from "node:crypto";
import { statSync } from "node:fs";
import { chromium } from "@playwright/test";
import { expect, openHarness, test } from "./test.js";

const MODEL = "tests/golden/tiny-geo/model.gguf";
const SEGMENT_BYTES = 64 * 1024;
const ENDLESS = { ids: [1, 2, 3], max_tokens: 100_000, temperature: 0, ignore_stop: true };
const SHORT = { ids: [1, 2, 3], max_tokens: 24, temperature: 0, ignore_stop: true };

test("without recovery every request rejects when the device is lost, and the next one has another @webgpu", async ({ page }) => {
  await openHarness(page);
  const id = randomUUID();
  const outcomes = await page.evaluate(
    async ({ model, stalled, endless, short }) => {
      const lose = new BroadcastChannel("lose-gpu");
      const events: string[] = [];
      const delays: number[] = [];
      const engine = await harness.openEngine("webgpu", {
        recover: false,
        // Nothing comes, and nobody gives up: only the loss can end a load.
        stallTimeoutMs: 600_000,
        onEvent: (event) => void (event.type === "devicelost" && events.push(event.error.code)),
      });
      const failure = async (promise: Promise<unknown>): Promise<string> => {
        const start = performance.now();
        const code = await promise.then(
          () => "done",
          (error: { code: string; detail: string }) => `${error.code}${error.detail === "" ? "" : " with a reason"}`,
        );
        delays.push(performance.now() - start);
        return code;
      };
      const outcomes: Record<string, string> = {};

      const load = engine.load(stalled);
      // What is behind it in the queue has not met the loss, but the worker is gone.
      const queued = engine.stats();
      // When weights come, the device has compiled the kernels, which nothing interrupts.
      await new Promise<void>((resolve) =>
        engine.on("progress", ({ progress }) => progress.stage === "download" && progress.bytes_seen > 300_000 && resolve()),
      );
      lose.postMessage(null);
      outcomes["load"] = await failure(load);
      outcomes["queued"] = await failure(queued);

      await engine.load(model);
      const prompt = engine.generate({ ...short, ids: Array.from({ length: 2000 }, (_, index) => index % 500) });
      const reading = prompt.next();
      await new Promise<void>((resolve) => engine.on("progress", () => resolve()));
      lose.postMessage(null);
      outcomes["prefill"] = await failure(
        (async () => {
          await reading;
          for await (const step of prompt) {
            void step;
          }
        })(),
      );

      await engine.load(model);
      const run = engine.generate(endless);
      await run.next();
      await run.next();
      lose.postMessage(null);
      outcomes["decode"] = await failure(
        (async () => {
          for await (const step of run) {
            void step;
          }
        })(),
      );

      await engine.load(model);
      const lost = new Promise<void>((resolve) => engine.on("devicelost", () => resolve()));
      lose.postMessage(null);
      await lost;
      const ids: number[] = [];
      for await (const step of engine.generate(short)) {
        ids.push(...step.ids);
      }
      outcomes["after a loss in between"] = `${ids.length} tokens`;
      return { outcomes, events, delays };
    },
    { model: `/${MODEL}`, stalled: `/faults/${id}/${MODEL}?stall=400000`, endless: ENDLESS, short: SHORT },
  );
  expect(outcomes.outcomes).toEqual({
    load: "device_lost with a reason",
    queued: "device_lost with a reason",
    prefill: "device_lost with a reason",
    decode: "device_lost with a reason",
    "after a loss in between": "24 tokens",
  });
  expect(outcomes.events).toEqual(["device_lost", "device_lost", "device_lost", "device_lost"]);
  // What a caller is promised; it takes a few milliseconds.
  expect(Math.max(...outcomes.delays)).toBeLessThan(1000);
});

test("a load whose device is lost goes on with another, and fetches nothing twice @webgpu", async ({ page, request }) => {
  await openHarness(page);
  const id = randomUUID();
  const found = await page.evaluate(
    async ({ url, segmentBytes, short }) => {
      const lose = new BroadcastChannel("lose-gpu");
      const engine = await harness.openEngine("webgpu", { segmentBytes });
      let isLost = false;
      const { files } = await engine.load(url, {
        onProgress: (step) => {
          if (!isLost && step.stage === "download" && step.bytes_seen > 400_000) {
            isLost = true;
            lose.postMessage(null);
          }
        },
      });
      const ids: number[] = [];
      for await (const step of engine.generate(short)) {
        ids.push(...step.ids);
      }
      return { isLost, bytes: files[0]?.bytes, tokens: ids.length };
    },
    { url: `/faults/${id}/${MODEL}?rate=300`, segmentBytes: SEGMENT_BYTES, short: SHORT },
  );
  const { size } = statSync(MODEL);
  expect(found).toEqual({ isLost: true, bytes: size, tokens: 24 });
  const log = (await (await request.get(`/log/${id}`)).json()) as { readonly sent: number }[];
  // Of what was on its way at the loss, the segment that was not whole comes again.
  expect(log.reduce((sum, { sent }) => sum + sent, 0)).toBeLessThanOrEqual(size + 4 * SEGMENT_BYTES);
});

test("an answer outlives the GPU process, with the same tokens and weights from this machine @webgpu", async ({ launchOptions, baseURL, request }) => {
  const id = randomUUID();
  const browser = await chromium.launch(launchOptions);
  try {
    const page = await browser.newPage(baseURL === undefined ? {} : { baseURL });
    await openHarness(page);
    const tokens = (isFirst: boolean) =>
      page.evaluate(
        async ({ url, isFirst, segmentBytes, request }) => {
          const engine = await harness.openEngine("webgpu", { segmentBytes });
          const losses: string[] = [];
          engine.on("devicelost", ({ error }) => losses.push(error.detail));
          await engine.load(url);
          const ids: number[] = [];
          for await (const step of engine.generate(request)) {
            ids.push(...step.ids);
            if (!isFirst && ids.length >= 8 && losses.length === 0) {
              await (globalThis as unknown as { crash: () => Promise<void> }).crash();
              await new Promise<void>((resolve) => (losses.length > 0 ? resolve() : engine.on("devicelost", () => resolve())));
            }
          }
          engine.terminate();
          return { ids, losses: losses.length };
        },
        { url: `/faults/${id}/${MODEL}`, isFirst, segmentBytes: SEGMENT_BYTES, request: { ...SHORT, max_tokens: 60 } },
      );
    const undisturbed = await tokens(true);
    const devtools = await browser.newBrowserCDPSession();
    // The call itself may never return.
    await page.exposeFunction("crash", () => void devtools.send("Browser.crashGpuProcess").catch(() => undefined));
    const crashed = await tokens(false);
    expect(undisturbed).toMatchObject({ losses: 0 });
    expect(undisturbed.ids.length).toBe(60);
    expect(crashed).toEqual({ ids: undisturbed.ids, losses: 1 });
    const log = (await (await request.get(`/log/${id}`)).json()) as { readonly sent: number; readonly range: string | null }[];
    expect(log.filter(({ range }) => range !== "bytes=0-0").map(({ sent }) => sent)).toEqual([statSync(MODEL).size]);
  } finally {
    await browser.close();
  }
});
