/** Models on their way to this machine and back from it, with everything that goes wrong. Real stores, in a profile on the disk. */

import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import type { APIRequestContext, BrowserContext, Page } from "@playwright/test";
import { expect, openHarness, test } from "./test.js";

const MODEL = "models/signbit-mini.gguf";
const BYTES = readFileSync(MODEL);
const SHA256 = createHash("sha256").update(BYTES).digest("hex");
/** Small segments, so that a small model has many. */
const SEGMENT_BYTES = 64 * 1024;
const SEGMENTS = Math.ceil(BYTES.length / SEGMENT_BYTES);
const QUESTION = [{ role: "user" as const, content: "What is the capital of France?" }];
const ANSWER = "The capital of France is Paris.";
const KINDS = ["opfs", "cache"] as const;
/** Of the tests that pick places at random. */
const SEED = 20_261_201;

/** A request as the server has seen it. */
interface Logged {
  readonly method: string;
  readonly range: string | null;
  readonly sent: number;
}

/** A file's address under an id of its own, with faults, and what the server was asked for there. */
class Served {
  readonly url: string;
  readonly #log: string;
  readonly #request: APIRequestContext;

  constructor(request: APIRequestContext, faults = "", file = MODEL) {
    const id = randomUUID();
    this.url = `/faults/${id}/${file}?${faults}`;
    this.#log = `/log/${id}`;
    this.#request = request;
  }

  async log(): Promise<Logged[]> {
    return (await this.#request.get(this.#log)).json();
  }

  /** Bytes of the file that were sent. */
  async sent(): Promise<number> {
    return (await this.log()).reduce((sum, entry) => sum + entry.sent, 0);
  }

  /** Faults are counted anew from here. */
  async forget(): Promise<void> {
    await this.#request.delete(this.#log);
  }
}

interface LoadOptions {
  readonly storage?: "auto" | "opfs" | "cache" | "none";
  readonly sha256?: string;
  readonly keep?: boolean;
  readonly asks?: boolean;
  readonly segmentBytes?: number;
}

/** Loads a model in a page with the harness, and says what came of it. */
function load(page: Page, source: string | { readonly stored: string }, { storage = "auto", asks = false, segmentBytes = SEGMENT_BYTES, ...options }: LoadOptions = {}) {
  return page.evaluate(
    async ({ source, storage, options, segmentBytes, question }) => {
      const notices: { code: string; usage: number | null; quota: number | null }[] = [];
      const progress: { seen: number; local: number; total: number | null; waiting: boolean }[] = [];
      const engine = await harness.openEngine("cpu", {
        storage,
        segmentBytes,
        downloadBackoffMs: 10,
        stallTimeoutMs: 1_000,
        onEvent: (event) => void (event.type === "storage" && notices.push(event)),
      });
      try {
        const model = await engine.load(source, {
          ...options,
          onProgress: (step) => {
            if (step.stage === "download") {
              progress.push({ seen: step.bytes_seen, local: step.bytes_local, total: step.bytes_total, waiting: step.is_waiting });
            }
          },
        });
        const reply = question && (await engine.chat.completions.create({ messages: question, temperature: 0 }));
        return {
          error: null,
          detail: "",
          file: model.files[0],
          digest: model.digest,
          answer: reply?.choices[0]?.message.content ?? null,
          models: await engine.models.list(),
          notices,
          progress,
        };
      } catch (thrown) {
        const error = thrown as { code?: string; name: string; message: string };
        const models = await engine.models.list();
        return { error: error.code ?? error.name, detail: error.message, file: undefined, digest: "", answer: null, models, notices, progress };
      } finally {
        engine.terminate();
      }
    },
    { source, storage, options, segmentBytes, question: asks ? QUESTION : null },
  );
}

/** Whole numbers below `limit`, the same for the same seed. */
function random(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

/** A page with the harness in a browser of its own. */
async function openPage(context: BrowserContext): Promise<Page> {
  const page = await context.newPage();
  await openHarness(page);
  return page;
}

for (const storage of KINDS) {
  test(`a model comes once and then from ${storage}, in a browser started anew @page`, async ({ persistentContext, request }) => {
    const source = new Served(request);
    const first = await openPage(await persistentContext());
    const fetched = await load(first, source.url, { storage, asks: true });
    expect(fetched).toMatchObject({ error: null, answer: ANSWER, file: { sha256: SHA256, bytes: BYTES.length, store: storage } });
    expect(fetched.models).toMatchObject([{ bytes: BYTES.length, is_complete: true, store: storage, sha256: [SHA256] }]);
    expect(fetched.progress.at(-1)).toMatchObject({ seen: BYTES.length, local: 0, total: BYTES.length });
    expect(await source.log()).toMatchObject([{ range: null, sent: BYTES.length }]);
    await first.context().close();

    await source.forget();
    const second = await openPage(await persistentContext());
    const kept = await load(second, source.url, { asks: true });
    expect(kept).toMatchObject({ error: null, answer: ANSWER, digest: fetched.digest, file: { sha256: SHA256, store: storage } });
    expect(kept.progress.at(-1)).toMatchObject({ seen: BYTES.length, local: BYTES.length });
    // One byte to ask whether the file is still the same.
    expect(await source.log()).toMatchObject([{ range: "bytes=0-0", sent: 1 }]);
  });

  test(`a model comes into ${storage} of a private window @page`, async ({ page, request }) => {
    const source = new Served(request);
    await openHarness(page);
    expect(await load(page, source.url, { storage, asks: true })).toMatchObject({ answer: ANSWER, file: { store: storage } });
    await source.forget();
    expect(await load(page, source.url, { storage, asks: true })).toMatchObject({ answer: ANSWER, digest: expect.stringMatching(/^[0-9a-f]{64}$/) });
    expect(await source.sent()).toBe(1);
  });
}

test("a kept model needs no connection @page", async ({ persistentContext, request }) => {
  const source = new Served(request);
  const page = await openPage(await persistentContext());
  await load(page, source.url);
  const engine = await page.evaluateHandle((segmentBytes) => harness.openEngine("cpu", { segmentBytes }), SEGMENT_BYTES);
  await page.context().setOffline(true);
  const { files } = await engine.evaluate((open, url) => open.load(url), source.url);
  expect(files).toMatchObject([{ sha256: SHA256 }]);
});

test("a download goes on where a closed page has left it @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "rate=150");
  // What a closed page costs is less than a segment, if that is much more than comes until it is closed.
  const segmentBytes = 4 * SEGMENT_BYTES;
  const context = await persistentContext();
  const below = random(SEED);
  const points = Array.from({ length: 10 }, () => below(BYTES.length)).toSorted((a, b) => a - b);
  for (const point of points) {
    const page = await openPage(context);
    let reach = (): void => undefined;
    const reached = new Promise<void>((resolve) => (reach = resolve));
    await page.exposeFunction("seen", (bytes: number) => void (bytes >= point && reach()));
    const load = page.evaluate(
      async ({ url, segmentBytes }) => {
        const { seen } = globalThis as unknown as { seen: (bytes: number) => void };
        const engine = await harness.openEngine("cpu", { segmentBytes });
        await engine.load(url, { onProgress: (step) => void (step.stage === "download" && seen(step.bytes_seen)) });
      },
      { url: source.url, segmentBytes },
    );
    const closed = load.catch(() => undefined);
    await reached;
    await page.close();
    await closed;
  }
  const page = await openPage(context);
  const last = await load(page, source.url, { asks: true, segmentBytes });
  expect(last, `closed at ${points}`).toMatchObject({ error: null, answer: ANSWER, file: { sha256: SHA256 } });
  const probes = (await source.log()).filter(({ range }) => range === "bytes=0-0").length;
  expect(await source.sent(), `closed at ${points}`).toBeLessThanOrEqual(BYTES.length + 10 * segmentBytes + probes);
});

for (const storage of KINDS) {
  test(`a segment of ${storage} that is damaged is fetched again, and nothing else @page`, async ({ persistentContext, request }) => {
    const source = new Served(request);
    const page = await openPage(await persistentContext());
    const engine = await page.evaluateHandle(
      ({ storage, segmentBytes }) => harness.openEngine("cpu", { storage, segmentBytes }),
      { storage, segmentBytes: SEGMENT_BYTES },
    );
    const again = () => engine.evaluate(async (open, url) => (await open.load(url)).files[0], source.url);
    await again();
    const below = random(SEED);
    const keys = await page.evaluate((kind) => harness.storage.listRaw(kind), storage);
    expect(keys.length).toBe(SEGMENTS);
    const flips = keys.map((key) => ({ key, damage: "flip" }));
    for (const { key, damage } of [...flips, { key: keys[0]!, damage: "cut" }, { key: keys[1]!, damage: "remove" }]) {
      await source.forget();
      const at = below(SEGMENT_BYTES);
      await page.evaluate(
        async ({ kind, key, damage, at }) => {
          const { readRaw, writeRaw, removeRaw } = harness.storage;
          const bytes = (await readRaw(kind, key)) ?? new Uint8Array();
          if (damage === "remove") {
            await removeRaw(kind, key);
          } else if (damage === "cut") {
            await writeRaw(kind, key, bytes.slice(0, -1));
          } else {
            bytes[at % bytes.length] = (bytes[at % bytes.length] ?? 0) ^ 1;
            await writeRaw(kind, key, bytes);
          }
        },
        { kind: storage, key, damage, at },
      );
      const what = `${damage} at ${at} of segment ${key}`;
      expect(await again(), what).toMatchObject({ sha256: SHA256, store: storage });
      const parts = (await source.log()).filter(({ range }) => range !== "bytes=0-0");
      expect(parts.length, what).toBe(1);
      expect(parts[0]?.sent, what).toBeLessThanOrEqual(SEGMENT_BYTES);
    }
    await source.forget();
    expect(await load(page, source.url, { storage, asks: true })).toMatchObject({ answer: ANSWER, models: [{ is_complete: true }] });
    expect(await source.sent()).toBe(1);
  });
}

test("two segments in each other's place are fetched again @page", async ({ persistentContext, request }) => {
  const source = new Served(request);
  const page = await openPage(await persistentContext());
  await load(page, source.url, { storage: "opfs" });
  await source.forget();
  await page.evaluate(async () => {
    const { listRaw, readRaw, writeRaw } = harness.storage;
    const keys = await listRaw("opfs");
    const whole: { key: string; bytes: Uint8Array<ArrayBuffer> }[] = [];
    for (const key of keys) {
      const bytes = await readRaw("opfs", key);
      if (bytes?.length === 65_536) {
        whole.push({ key, bytes });
      }
    }
    const [one, other] = whole;
    await writeRaw("opfs", one!.key, other!.bytes);
    await writeRaw("opfs", other!.key, one!.bytes);
  });
  expect(await load(page, source.url, { asks: true })).toMatchObject({ answer: ANSWER, file: { sha256: SHA256 } });
  expect(await source.sent()).toBe(1 + 2 * SEGMENT_BYTES);
});

test("segments that the browser has cleared are fetched again, and the model list tells of it @page", async ({ persistentContext, request }) => {
  const source = new Served(request);
  const page = await openPage(await persistentContext());
  await load(page, source.url);
  await source.forget();
  const found = await page.evaluate(async (segmentBytes) => {
    const { listRaw, removeRaw } = harness.storage;
    const engine = await harness.openEngine("cpu", { segmentBytes });
    const [model] = await engine.models.list();
    for (const key of (await listRaw(model!.store)).slice(0, 3)) {
      await removeRaw(model!.store, key);
    }
    const verification = await engine.models.verify(model!.id);
    const [after] = await engine.models.list();
    return { problems: verification.faults.map(({ problem }) => problem), isComplete: verification.is_complete, after };
  }, SEGMENT_BYTES);
  expect(found).toMatchObject({ problems: ["missing", "missing", "missing"], isComplete: false, after: { is_complete: false } });
  expect(await load(page, source.url, { asks: true })).toMatchObject({ answer: ANSWER, models: [{ is_complete: true }] });
  expect(await source.sent()).toBeLessThanOrEqual(1 + 3 * SEGMENT_BYTES);
});

test("a file that is another now replaces the old one @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "change=etag&after=1");
  const page = await openPage(await persistentContext());
  await load(page, source.url);
  const again = await load(page, source.url, { asks: true });
  expect(again).toMatchObject({ answer: ANSWER, models: [{ bytes: BYTES.length, is_complete: true }] });
  expect(again.progress.at(-1)).toMatchObject({ local: 0 });
  expect(await source.sent()).toBe(BYTES.length + 1 + BYTES.length);
});

test("a file that becomes another on the way is read from its start @page", async ({ persistentContext, request }) => {
  const drop = 10 * SEGMENT_BYTES + 1000;
  const source = new Served(request, `drop=${drop}&drops=1&change=etag&after=1`);
  const page = await openPage(await persistentContext());
  const model = await load(page, source.url, { asks: true });
  expect(model).toMatchObject({ error: null, answer: ANSWER, file: { sha256: SHA256 }, models: [{ bytes: BYTES.length, is_complete: true }] });
  expect((await source.log()).at(-1)).toMatchObject({ range: null, sent: BYTES.length });
});

test("a server without ranges, and one that drops the connection again and again, give the model @page", async ({ persistentContext, request }) => {
  const page = await openPage(await persistentContext());
  for (const faults of ["ranges=none&drop=700000&drops=2", "drop=150000", "length=none&etag=none&modified=none"]) {
    const source = new Served(request, faults);
    expect(await load(page, source.url, { asks: true }), faults).toMatchObject({ answer: ANSWER, file: { sha256: SHA256 } });
    expect(await load(page, source.url), faults).toMatchObject({ error: null, file: { sha256: SHA256 } });
  }
});

test("a signed address that expires half way goes on with a fresh one @page", async ({ persistentContext, request }) => {
  const source = new Served(request, `quota=${9 * SEGMENT_BYTES}&drop=${9 * SEGMENT_BYTES}&signature=1`);
  const page = await openPage(await persistentContext());
  const expired = await load(page, source.url);
  expect(expired).toMatchObject({ error: "network", models: [{ is_complete: false }] });
  expect(expired.detail).not.toContain("signature");
  // A connection that is cut takes along what the browser has not handed on yet.
  expect(expired.models[0]?.bytes).toBeGreaterThan(0);
  await source.forget();
  const fresh = source.url.replace(/quota=\d+&drop=\d+&signature=1/, "signature=2");
  expect(await load(page, fresh, { asks: true })).toMatchObject({ answer: ANSWER, file: { sha256: SHA256 } });
});

test("what is no model, or not the promised one, is not kept @page", async ({ persistentContext, request }) => {
  const page = await openPage(await persistentContext());
  const web = new Served(request, "html=0");
  expect(await load(page, web.url)).toMatchObject({ error: "weights_invalid", models: [] });
  const cut = new Served(request, "length=none&cut=500000");
  expect(await load(page, cut.url)).toMatchObject({ error: "weights_invalid", models: [] });
  const noise = new Served(request, "", "generated/300000");
  expect(await load(page, noise.url)).toMatchObject({ error: "weights_invalid", models: [] });
  const model = new Served(request);
  expect(await load(page, model.url, { sha256: "0".repeat(64) })).toMatchObject({ error: "digest_mismatch", models: [] });
  expect(await load(page, model.url, { sha256: SHA256.toUpperCase(), asks: true })).toMatchObject({ answer: ANSWER });
  await model.forget();
  // Its digest says all there is to say of a file, so the server need not be asked.
  expect(await load(page, model.url, { sha256: SHA256 })).toMatchObject({ error: null });
  expect(await model.log()).toEqual([]);
  expect(await load(page, model.url, { sha256: "1".repeat(64) })).toMatchObject({ error: "digest_mismatch", models: [] });
  expect(await page.evaluate(async () => [...(await harness.storage.listRaw("opfs")), ...(await harness.storage.listRaw("cache"))])).toEqual([]);
});

for (const storage of KINDS) {
  test(`without room in ${storage} a model runs from memory, and nothing is left behind @page`, async ({ persistentContext, request }) => {
    const source = new Served(request);
    const page = await openPage(await persistentContext());
    const devtools = await page.context().newCDPSession(page);
    const origin = new URL(page.url()).origin;
    await load(page, source.url, { storage, keep: false });
    await devtools.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1_200_000 });
    const model = await load(page, source.url, { storage, asks: true });
    expect(model).toMatchObject({ detail: "", answer: ANSWER, file: { sha256: SHA256, store: null }, models: [] });
    expect(model.notices.map(({ code }) => code)).toEqual(["storage_full"]);
    expect(model.notices[0]?.usage).toEqual(expect.any(Number));
    expect(model.notices[0]?.quota).toEqual(expect.any(Number));
    expect(await page.evaluate((kind) => harness.storage.listRaw(kind), storage)).toEqual([]);
    await devtools.send("Storage.overrideQuotaForOrigin", { origin });
    expect(await load(page, source.url, { storage })).toMatchObject({ notices: [], models: [{ is_complete: true }] });
  });
}

test("a segment that cannot be kept again costs no other @page", async ({ persistentContext, request }) => {
  const source = new Served(request);
  const page = await openPage(await persistentContext());
  await load(page, source.url, { storage: "opfs" });
  await page.evaluate(async () => {
    for (const key of (await harness.storage.listRaw("opfs")).slice(5, 7)) {
      await harness.storage.removeRaw("opfs", key);
    }
  });
  const devtools = await page.context().newCDPSession(page);
  const origin = new URL(page.url()).origin;
  await devtools.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1000 });
  await source.forget();
  const model = await load(page, source.url, { storage: "opfs", asks: true });
  expect(model).toMatchObject({ answer: ANSWER, file: { sha256: SHA256, store: null }, models: [{ is_complete: false }] });
  expect(model.notices.map(({ code }) => code)).toEqual(["storage_full"]);
  expect(await source.sent()).toBeLessThanOrEqual(1 + 2 * SEGMENT_BYTES);
  await devtools.send("Storage.overrideQuotaForOrigin", { origin });
  await source.forget();
  expect(await load(page, source.url)).toMatchObject({ file: { store: "opfs" }, models: [{ is_complete: true }] });
  expect(await source.sent()).toBeLessThanOrEqual(1 + 2 * SEGMENT_BYTES);
});

test("a login page in the middle costs nothing of what has come @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "drop=900000&drops=1&html=1");
  const page = await openPage(await persistentContext());
  const ended = await load(page, source.url);
  expect(ended).toMatchObject({ error: "weights_invalid", models: [{ is_complete: false }] });
  expect(ended.models[0]?.bytes).toBeGreaterThanOrEqual(3 * SEGMENT_BYTES);
});

test("a segment that is fetched again and is another than before is not run @page", async ({ persistentContext, request }) => {
  const page = await openPage(await persistentContext());
  // Nothing but the bytes tells this file from the next.
  const source = new Served(request, "etag=none&modified=none");
  await load(page, source.url, { storage: "opfs" });
  const id = (await page.evaluate(() => harness.openEngine("cpu").then((engine) => engine.models.list())))[0]!.id;
  // As if another model of the same size stood at the address now: the manifest has the digest of what was there before.
  await page.evaluate(async () => {
    const [key] = await harness.storage.listRaw("opfs");
    await harness.storage.removeRaw("opfs", key!);
    const manifests = await harness.storage.open().allManifests();
    const manifest = manifests[0]!;
    const segments = manifest.segments.map((segment) => (segment?.sha256 === key ? { ...segment, sha256: "0".repeat(64) } : segment));
    await harness.storage.putRecord("files", manifest.id, { ...manifest, segments });
  });
  const model = await load(page, source.url, { storage: "opfs", asks: true });
  expect(model).toMatchObject({ answer: ANSWER, file: { sha256: SHA256, store: "opfs" }, models: [{ id, is_complete: true }] });
  // Since what came was not what had been there, all of the file was read anew.
  expect(await source.sent()).toBeGreaterThan(2 * BYTES.length);
});

test("a file of one segment is downloaded once by two tabs @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "rate=2000");
  const context = await persistentContext();
  const pages = [await openPage(context), await openPage(context)];
  const models = await Promise.all(pages.map((page) => load(page, source.url, { segmentBytes: 16 * 1024 * 1024 })));
  expect(models.map(({ file }) => file?.sha256)).toEqual([SHA256, SHA256]);
  const probes = (await source.log()).filter(({ range }) => range === "bytes=0-0").length;
  expect(await source.sent()).toBe(BYTES.length + probes);
});

test("a model that is deleted while it comes is not kept @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "rate=400");
  const context = await persistentContext();
  const [first, second] = [await openPage(context), await openPage(context)];
  const loading = load(first, source.url, { asks: true });
  await expect.poll(() => source.sent()).toBeGreaterThan(6 * SEGMENT_BYTES);
  await second.evaluate(async () => {
    const { models } = await harness.openEngine("cpu");
    for (const { id } of await models.list()) {
      await models.delete(id);
    }
  });
  expect(await loading).toMatchObject({ answer: ANSWER, file: { sha256: SHA256, store: null }, models: [] });
});

test("without storage a model runs from memory @page", async ({ page, request }) => {
  const source = new Served(request);
  await openHarness(page);
  expect(await load(page, source.url, { storage: "none", asks: true })).toMatchObject({
    answer: ANSWER,
    models: [],
    notices: [],
    file: { store: null },
  });
});

test("two tabs download a model once, and both tell how far it is @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "rate=250");
  const context = await persistentContext();
  const pages = [await openPage(context), await openPage(context)];
  const models = await Promise.all(pages.map((page) => load(page, source.url, { asks: true })));
  for (const model of models) {
    expect(model).toMatchObject({ answer: ANSWER, file: { sha256: SHA256 } });
    const seen = model.progress.map((step) => step.seen);
    expect(seen).toEqual(seen.toSorted((a, b) => a - b));
    expect(seen.at(-1)).toBe(BYTES.length);
  }
  const waited = models.filter(({ progress }) => progress.some(({ waiting, seen }) => waiting && seen > 0 && seen < BYTES.length));
  expect(waited.length).toBe(1);
  const probes = (await source.log()).filter(({ range }) => range === "bytes=0-0").length;
  expect(await source.sent()).toBe(BYTES.length + probes);
});

test("a tab that waits goes on where the other was closed @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "rate=250");
  const context = await persistentContext();
  const [first, second] = [await openPage(context), await openPage(context)];
  const ended = load(first, source.url).catch(() => undefined);
  await expect.poll(() => source.sent()).toBeGreaterThan(3 * SEGMENT_BYTES);
  const waiting = load(second, source.url, { asks: true });
  await expect.poll(() => source.sent()).toBeGreaterThan(8 * SEGMENT_BYTES);
  await first.close();
  await ended;
  expect(await waiting).toMatchObject({ answer: ANSWER, file: { sha256: SHA256 } });
  expect(await source.sent()).toBeLessThanOrEqual(BYTES.length + 4 * SEGMENT_BYTES);
});

test("the browser is asked once to keep what it has, and not for what is not kept @page", async ({ persistentContext, request }) => {
  const source = new Served(request);
  const page = await openPage(await persistentContext());
  const asked = await page.evaluate(
    async ({ url, segmentBytes }) => {
      const asked: string[] = [];
      const note = async () => asked.push("persist") > 0;
      Object.defineProperty(navigator.storage, "persist", { value: note });
      const engine = await harness.openEngine("cpu", { segmentBytes });
      for (const keep of [false, true, true]) {
        await engine.load(url, { keep });
        asked.push(keep ? "kept" : "not kept");
      }
      return asked;
    },
    { url: source.url, segmentBytes: SEGMENT_BYTES },
  );
  expect(asked.filter((entry) => entry === "persist").length).toBe(1);
  expect(asked[0]).toBe("not kept");
});

test("an aborted load keeps what has come @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "rate=1000");
  const page = await openPage(await persistentContext());
  const name = await page.evaluate(
    async ({ url, segmentBytes }) => {
      const engine = await harness.openEngine("cpu", { segmentBytes });
      const controller = new AbortController();
      const onProgress = (step: { stage: string; bytes_seen?: number }): void =>
        void ((step.bytes_seen ?? 0) > 700_000 && controller.abort());
      return engine.load(url, { signal: controller.signal, onProgress }).then(
        () => "loaded",
        (error: Error) => error.name,
      );
    },
    { url: source.url, segmentBytes: SEGMENT_BYTES },
  );
  expect(name).toBe("AbortError");
  expect(await load(page, source.url, { asks: true })).toMatchObject({ answer: ANSWER, file: { sha256: SHA256 } });
  expect(await source.sent()).toBeLessThanOrEqual(BYTES.length + 4 * SEGMENT_BYTES);
});

test("a local file is read like any other, and kept on request @page", async ({ persistentContext }) => {
  const page = await openPage(await persistentContext());
  const found = await page.evaluate(
    async ({ path, segmentBytes, question }) => {
      const engine = await harness.openEngine("cpu", { segmentBytes });
      const file = new File([await (await fetch(path)).blob()], "my model.gguf", { lastModified: 1_700_000_000_000 });
      const [read] = (await engine.load(file)).files;
      const without = await engine.models.list();
      const [kept] = (await engine.load(file, { keep: true })).files;
      const models = await engine.models.list();
      const again = await engine.load({ stored: models[0]!.id });
      const reply = await engine.chat.completions.create({ messages: question, temperature: 0 });
      const [key] = await harness.storage.listRaw(models[0]!.store);
      await harness.storage.removeRaw(models[0]!.store, key!);
      const failure = (stored: string) =>
        engine.load({ stored }).then(
          () => "loaded",
          ({ code, hint }: { code: string; hint: string }) => ({ code, hint }),
        );
      const damaged = await failure(models[0]!.id);
      await engine.load(file, { keep: true });
      await engine.models.delete(models[0]!.id);
      const unknown = await failure(models[0]!.id);
      const left = await engine.models.list();
      return { read, without, kept, models, stored: again.files[0], answer: reply.choices[0].message.content, damaged, unknown, left };
    },
    { path: `/${MODEL}`, segmentBytes: SEGMENT_BYTES, question: QUESTION },
  );
  expect(found.read).toEqual({ name: "my model.gguf", bytes: BYTES.length, sha256: SHA256, store: null });
  expect(found.without).toEqual([]);
  expect(found.kept).toMatchObject({ sha256: SHA256, store: expect.stringMatching(/opfs|cache/) });
  expect(found.models).toMatchObject([{ name: "my model.gguf", is_complete: true }]);
  expect(found.stored).toMatchObject({ sha256: SHA256 });
  expect(found.answer).toBe(ANSWER);
  expect(found.damaged).toMatchObject({ code: "weights_invalid", hint: "Choose the file again." });
  expect(found.unknown).toMatchObject({ code: "not_stored" });
  expect(found.left).toEqual([]);
});

test("a split model is kept as one @page", async ({ persistentContext, request }) => {
  const source = new Served(request, "", "tests/golden/split/qwen3-q4_0-00001-of-00003.gguf");
  const page = await openPage(await persistentContext());
  const fetched = await load(page, source.url);
  expect(fetched).toMatchObject({ error: null, models: [{ parts: 3, is_complete: true }] });
  const { sha256 } = fetched.models[0]!;
  expect(new Set(sha256).size).toBe(3);
  await source.forget();
  expect(await load(page, { stored: fetched.models[0]!.id })).toMatchObject({ error: null, digest: fetched.digest });
  expect((await source.log()).map(({ range }) => range)).toEqual(["bytes=0-0", "bytes=0-0", "bytes=0-0"]);
});

test("a fetch of the page's own brings the model @page", async ({ persistentContext, request, tolerated }) => {
  tolerated.push(/ERR_CONTENT_LENGTH_MISMATCH/);
  const source = new Served(request, "drop=600000&drops=1");
  const page = await openPage(await persistentContext());
  const found = await page.evaluate(
    async ({ url, segmentBytes, question }) => {
      const asked: (string | null)[] = [];
      const engine = await harness.openEngine("cpu", {
        segmentBytes,
        downloadBackoffMs: 10,
        fetch: (input, init) => {
          const request = new Request(input, init);
          asked.push(request.headers.get("range"));
          return fetch(request);
        },
      });
      const { files } = await engine.load(url);
      const reply = await engine.chat.completions.create({ messages: question, temperature: 0 });
      return { sha256: files[0]!.sha256, answer: reply.choices[0].message.content, asked };
    },
    { url: source.url, segmentBytes: SEGMENT_BYTES, question: QUESTION },
  );
  expect(found).toMatchObject({ sha256: SHA256, answer: ANSWER });
  expect(found.asked.length).toBe(2);
});
