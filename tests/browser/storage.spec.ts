/** What is kept on this machine: stores, manifests, and the models made of both. Real stores, in a profile on the disk. */

import type { BrowserContext, Page } from "@playwright/test";
import { expect, openHarness, test } from "./test.js";

const KINDS = ["opfs", "cache"] as const;
const KIB = 1024;
const MIB = 1024 * KIB;

/** Everything that the browser must take from a store, and give back. */
async function checkRoundTrips(page: Page): Promise<void> {
  await openHarness(page);
  const outcome = await page.evaluate(
    async ({ kinds, sizes }) => {
      const { bytesOf, isEqual, listRaw, readRaw } = harness.storage;
      const storage = harness.storage.open();
      const faults: string[] = [];
      for (const kind of kinds) {
        const expectThat = (name: string, is: boolean) => is || faults.push(`${kind}: ${name}`);
        for (const size of sizes) {
          const bytes = bytesOf(size, size);
          await storage.write(kind, "key", bytes);
          expectThat(`${size} bytes come back`, isEqual(await storage.read(kind, "key", size), bytes));
          expectThat(`${size} bytes lie there`, isEqual(await readRaw(kind, "key"), bytes));
          expectThat(`${size} bytes are not one more`, (await storage.read(kind, "key", size + 1)) === null);
          expectThat(`${size} bytes are not one less`, size === 0 || (await storage.read(kind, "key", size - 1)) === null);
        }
        // The last was the longest; a shorter one in its place leaves nothing of it.
        await storage.write(kind, "key", bytesOf(1, 1000));
        expectThat("a shorter one takes the place", isEqual(await readRaw(kind, "key"), bytesOf(1, 1000)));
        await storage.write(kind, "other", bytesOf(2, 1000));
        expectThat("the keys are listed", (await storage.keys(kind)).join() === "key,other");
        expectThat("what is missing is not there", (await storage.read(kind, "third", 1000)) === null);
        await storage.remove(kind, "key");
        await storage.remove(kind, "key");
        expectThat("what is deleted is not there", (await storage.read(kind, "key", 1000)) === null);
        expectThat("the rest stays", isEqual(await storage.read(kind, "other", 1000), bytesOf(2, 1000)));
        expectThat("only the rest stays", (await listRaw(kind)).join() === "other");
      }
      return faults;
    },
    { kinds: KINDS, sizes: [0, 1, 65_536, 16 * MIB] },
  );
  expect(outcome).toEqual([]);
}

test("stores give back what they were given @page", async ({ persistent }) => {
  await checkRoundTrips(persistent);
});

test("stores of a private window give back what they were given @page", async ({ page }) => {
  await checkRoundTrips(page);
});

test("a segment that was cut short or made longer by others is not there @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async (kinds) => {
    const { bytesOf, writeRaw } = harness.storage;
    const storage = harness.storage.open();
    const found: string[] = [];
    for (const kind of kinds) {
      await storage.write(kind, "key", bytesOf(1, 70_000));
      for (const [length, claimed] of [[69_999, 69_999], [70_001, 70_001], [69_999, 70_000], [70_001, 70_000], [0, 0]] as const) {
        if (kind === "opfs" && length !== claimed) {
          continue;
        }
        await writeRaw(kind, "key", bytesOf(1, length), claimed);
        if ((await storage.read(kind, "key", 70_000)) !== null) {
          found.push(`${kind}: ${length} bytes that claim to be ${claimed}`);
        }
      }
      await storage.write(kind, "key", bytesOf(1, 70_000));
      if ((await storage.read(kind, "key", 70_000)) === null) {
        found.push(`${kind}: not written again`);
      }
    }
    return found;
  }, KINDS);
  expect(found).toEqual([]);
});

/** Fills a store until the browser refuses, and looks at what is left. */
async function checkQuota(page: Page, context: BrowserContext): Promise<void> {
  await openHarness(page);
  const devtools = await context.newCDPSession(page);
  const origin = new URL(page.url()).origin;
  for (const kind of KINDS) {
    await devtools.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 12 * MIB });
    const filled = await page.evaluate(async (kind) => {
      const { bytesOf, isEqual, listRaw, outcome } = harness.storage;
      const storage = harness.storage.open();
      let kept = 0;
      let refusal = "ok";
      while (refusal === "ok" && kept < 8) {
        refusal = await outcome(storage.write(kind, `key-${kept}`, bytesOf(kept, 3 << 20)));
        kept += Number(refusal === "ok");
      }
      const keys = await listRaw(kind);
      const areWhole = await Promise.all(
        keys.map(async (key, index) => isEqual(await storage.read(kind, key, 3 << 20), bytesOf(index, 3 << 20))),
      );
      return { refusal, isSome: kept > 0, isAll: keys.length === kept, areWhole: !areWhole.includes(false) };
    }, kind);
    expect(filled, kind).toEqual({ refusal: "full", isSome: true, isAll: true, areWhole: true });

    await devtools.send("Storage.overrideQuotaForOrigin", { origin });
    const after = await page.evaluate(async (kind) => {
      const { bytesOf, outcome } = harness.storage;
      const storage = harness.storage.open();
      const written = await outcome(storage.write(kind, "more", bytesOf(1, 12 << 20)));
      for (const key of await storage.keys(kind)) {
        await storage.remove(kind, key);
      }
      return { written, keys: await storage.keys(kind) };
    }, kind);
    expect(after, kind).toEqual({ written: "ok", keys: [] });
  }
}

test("a full disk is a full store, and nothing half-written stays @page", async ({ persistent }) => {
  await checkQuota(persistent, persistent.context());
});

test("the limit of a private window is a full store, and nothing half-written stays @page", async ({ page, context }) => {
  await checkQuota(page, context);
});

for (const modes of ["with", "without"] as const) {
  test(`tabs read and write one segment at once ${modes} modes of handles @page`, async ({ persistent }) => {
    const pages = [persistent, await persistent.context().newPage(), await persistent.context().newPage()];
    await Promise.all(pages.map((page) => openHarness(page)));
    await persistent.evaluate(async () => {
      await harness.storage.open().write("opfs", "key", harness.storage.bytesOf(1, 4 << 20));
    });
    const found = await Promise.all(
      pages.map((page, index) =>
        page.evaluate(
          async ({ modes, isWriter }) => {
            const storage = harness.storage.open();
            if (modes === "without") {
              await storage.inject("no modes");
            }
            const bytes = harness.storage.bytesOf(1, 4 << 20);
            for (let time = 0; isWriter && time < 10; time += 1) {
              await storage.write("opfs", "key", bytes);
            }
            return storage.readAgain("opfs", "key", 4 << 20, 20);
          },
          { modes, isWriter: index === 0 },
        ),
      ),
    );
    expect(found).toEqual([20, 20, 20]);
  });
}

test("the store to write to is the fastest that works @page", async ({ persistent: page }) => {
  await openHarness(page);
  const choices = await page.evaluate(async () => {
    const { listRaw } = harness.storage;
    const choose = async (preference: "auto" | "opfs" | "cache" | "none", ...faults: Parameters<Storage["inject"]>[0][]) => {
      const storage = harness.storage.open();
      for (const fault of faults) {
        await storage.inject(fault);
      }
      const kinds = await storage.open(preference);
      const best = await storage.best().catch(({ message }: Error) => message);
      storage.close();
      return `${kinds.join()} -> ${best}`;
    };
    type Storage = ReturnType<typeof harness.storage.open>;
    return {
      asItIs: await choose("auto"),
      slowOpfs: await choose("auto", "slow write"),
      slowCache: await choose("auto", "slow cache"),
      noFolder: await choose("auto", "no folder"),
      noHandles: await choose("auto", "no handles"),
      shortWrite: await choose("auto", "short write"),
      wrongRead: await choose("auto", "wrong read"),
      noCache: await choose("auto", "no cache"),
      opfsWanted: await choose("opfs"),
      cacheWanted: await choose("cache"),
      brokenWanted: await choose("opfs", "short write"),
      noneWanted: await choose("none"),
      left: [await listRaw("opfs"), await listRaw("cache")],
    };
  });
  expect(choices).toEqual({
    asItIs: expect.stringMatching(/^opfs,cache -> (opfs|cache)$/),
    slowOpfs: "opfs,cache -> cache",
    slowCache: "opfs,cache -> opfs",
    noFolder: "cache -> cache",
    noHandles: "cache -> cache",
    shortWrite: "opfs,cache -> cache",
    wrongRead: "opfs,cache -> cache",
    noCache: "opfs -> opfs",
    opfsWanted: "opfs,cache -> opfs",
    cacheWanted: "opfs,cache -> cache",
    brokenWanted: "opfs,cache -> full",
    noneWanted: " -> null",
    left: [[], []],
  });
});

test("without a secure context there is no store, and that is no error @page", async ({ page, baseURL }) => {
  await page.goto(`${(baseURL ?? "").replace("127.0.0.1", "insecure.test")}/tests/browser/harness/index.html`);
  await expect.poll(() => page.evaluate(() => typeof harness)).toBe("object");
  const outcome = await page.evaluate(async () => {
    const storage = harness.storage.open();
    return {
      isSecureContext,
      kinds: await storage.open("auto"),
      best: await storage.best(),
      models: await storage.listModels(),
      removed: await storage.collectGarbage(),
      usage: await storage.usage(),
    };
  });
  expect(outcome).toEqual({
    isSecureContext: false,
    kinds: [],
    best: null,
    models: [],
    removed: 0,
    usage: { model_bytes: 0, usage: null, quota: null, is_persisted: false },
  });
});

/** A manifest of one file with one segment, for tests of manifests alone. */
const MANIFEST = {
  id: "file",
  model: "file",
  part: 0,
  parts: 1,
  name: "file",
  store: "opfs" as const,
  identity: { url: "file", bytes: null, etag: null, last_modified: null },
  segment_bytes: 10,
  segments: [{ length: 10, sha256: "a".repeat(64), checksum: "b".repeat(32) }],
  sha256: null,
  created_at: 1,
  used_at: 1,
};

test("two tabs that change one manifest lose nothing @page", async ({ persistent }) => {
  const pages = [persistent, await persistent.context().newPage()];
  await Promise.all(pages.map((page) => openHarness(page)));
  await Promise.all(
    pages.map((page) => page.evaluate((manifest) => harness.storage.open().addRecords("file", manifest, 40), MANIFEST)),
  );
  const outcome = await persistent.evaluate(async () => {
    const storage = harness.storage.open();
    const manifest = await storage.readManifest("file");
    const failure = await harness.storage.outcome(storage.failToChange("file"));
    const isKept = (await storage.lookUp("file"))?.segments.length;
    await storage.deleteManifest("file");
    await storage.rememberDigest(["a", "b"], "digest");
    return {
      segments: manifest?.segments.length,
      failure,
      isKept,
      after: await storage.allManifests(),
      digests: [await storage.knownDigest(["a", "b"]), await storage.knownDigest(["b", "a"])],
    };
  });
  expect(outcome).toEqual({ segments: 80, failure: "Error: on purpose", isKept: 80, after: [], digests: ["digest", undefined] });
});

for (const version of [1, 2] as const) {
  test(`a database of version ${version} keeps its tuning, also while an old tab holds it @page`, async ({ persistent: page }) => {
    await openHarness(page);
    const outcome = await page.evaluate(async (version) => {
      const old = await harness.storage.openOldDatabase({ device: "this one", products: [], tile: null }, version);
      // An old tab ends its connection only after the new one was told to wait.
      const wasAsked = new Promise<void>((resolve) => {
        old.onversionchange = () => setTimeout(() => resolve(old.close()), 200);
      });
      const storage = harness.storage.open();
      const models = await storage.listModels();
      await wasAsked;
      const tuning = await storage.readTuning();
      await storage.keepTuning({ device: "another", products: [], tile: null });
      const next = await storage.readTuning();
      const now = await harness.storage.settled(indexedDB.open("signbit"));
      now.close();
      return { models, device: tuning?.device, next: next?.device, version: now.version };
    }, version);
    expect(outcome).toEqual({ models: [], device: "this one", next: "another", version: 3 });
  });
}

test("a database that another tab holds for good is not there @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async () => {
    const old = await harness.storage.openOldDatabase({ device: "this one", products: [], tile: null }, 2);
    const storage = harness.storage.open();
    const { outcome } = harness.storage;
    const results = await Promise.all([outcome(storage.readManifest("file")), outcome(storage.listModels()), storage.usage()]);
    old.close();
    const broken = harness.storage.open();
    await broken.inject("no database");
    return {
      held: results.slice(0, 2),
      bytes: results[2].model_bytes,
      after: await outcome(storage.listModels()),
      refused: [await outcome(broken.readManifest("file")), await outcome(broken.listModels()), await broken.readTuning()],
    };
  });
  expect(outcome).toEqual({
    held: ["unavailable", "storage_unavailable"],
    bytes: 0,
    after: "ok",
    refused: ["unavailable", "storage_unavailable", undefined],
  });
});

test("a manifest of another shape is as good as none @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async (manifest) => {
    const storage = harness.storage.open();
    await storage.addRecords("good", { ...manifest, id: "good", model: "good" }, 1);
    const long = { ...manifest.segments[0], length: 11 };
    const shapes: Record<string, unknown> = {
      text: "text",
      nothing: null,
      number: 7,
      list: [manifest],
      empty: {},
      store: { ...manifest, store: "floppy" },
      segments: { ...manifest, segments: "none" },
      segment: { ...manifest, segments: [{ ...manifest.segments[0], sha256: "../../etc" }] },
      checksum: { ...manifest, segments: [{ ...manifest.segments[0], checksum: 5 }] },
      length: { ...manifest, segments: [long] },
      early: { ...manifest, segments: [{ ...manifest.segments[0], length: 9 }, ...manifest.segments] },
      end: { ...manifest, identity: { ...manifest.identity, bytes: 5 } },
      part: { ...manifest, part: 1 },
      identity: { ...manifest, identity: null },
      hash: { ...manifest, sha256: "A".repeat(64) },
      time: { ...manifest, used_at: "now" },
    };
    for (const [key, record] of Object.entries(shapes)) {
      await harness.storage.putRecord("files", key, record);
    }
    const read = await Promise.all(Object.keys(shapes).map(async (key) => [key, await storage.readManifest(key)] as const));
    await storage.addRecords("store", { ...manifest, id: "store" }, 2);
    return {
      taken: read.flatMap(([key, found]) => (found === undefined ? [] : [key])),
      models: (await storage.listModels()).map(({ id }) => id).sort(),
      replaced: (await storage.readManifest("store"))?.segments.length,
    };
  }, MANIFEST);
  expect(outcome).toEqual({ taken: [], models: ["file", "good"], replaced: 2 });
});

test("what is deleted under us is made again @page", async ({ persistent: page }) => {
  await openHarness(page);
  const deleted = await page.evaluate(async (manifest) => {
    const { bytesOf, outcome, settled } = harness.storage;
    const storage = harness.storage.open();
    const results = await Promise.all([
      ...Array.from({ length: 10 }, (_, index) => outcome(storage.addRecords(`file-${index}`, { ...manifest, id: `file-${index}` }, 3))),
      outcome(settled(indexedDB.deleteDatabase("signbit"))),
    ]);
    await storage.write("opfs", "key", bytesOf(1, 1000));
    await storage.write("cache", "key", bytesOf(1, 1000));
    await storage.addRecords("after", { ...manifest, id: "after" }, 1);
    Object.assign(globalThis, { storage });
    return { results: [...new Set(results)], after: (await storage.readManifest("after"))?.segments.length };
  }, MANIFEST);
  expect(deleted).toEqual({ results: ["ok"], after: 1 });

  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Storage.clearDataForOrigin", { origin: new URL(page.url()).origin, storageTypes: "all" });
  const cleared = await page.evaluate(async (manifest) => {
    const { bytesOf, isEqual } = harness.storage;
    const { storage } = globalThis as unknown as { storage: ReturnType<typeof harness.storage.open> };
    const before = [
      (await storage.readManifest("after")) ?? null,
      await storage.read("opfs", "key", 1000),
      await storage.read("cache", "key", 1000),
      ...(await storage.keys("opfs")),
      ...(await storage.keys("cache")),
    ];
    await storage.write("opfs", "key", bytesOf(2, 1000));
    await storage.write("cache", "key", bytesOf(2, 1000));
    await storage.addRecords("after", { ...manifest, id: "after" }, 2);
    return {
      before,
      opfs: isEqual(await storage.read("opfs", "key", 1000), bytesOf(2, 1000)),
      cache: isEqual(await storage.read("cache", "key", 1000), bytesOf(2, 1000)),
      keys: [...(await storage.keys("opfs")), ...(await storage.keys("cache"))],
      records: (await storage.readManifest("after"))?.segments.length,
    };
  }, MANIFEST);
  expect(cleared).toEqual({ before: [null, null, null], opfs: true, cache: true, keys: ["key", "key"], records: 2 });
});

test("models are listed by when they were used, with what is there of each @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async () => {
    const { bytesOf } = harness.storage;
    const storage = harness.storage.open();
    const file = { store: "opfs" as const, segment_bytes: 65_536 };
    await storage.keep({ ...file, id: "https://a.test/old.gguf", used_at: 5000 }, bytesOf(1, 100_000));
    const split = { ...file, model: "https://a.test/1.gguf", parts: 2 };
    await storage.keep({ ...split, id: "https://a.test/2.gguf", part: 1, used_at: 7000 }, bytesOf(2, 65_536));
    const half = await storage.listModels();
    await storage.keep({ ...split, id: "https://a.test/1.gguf", part: 0, store: "cache" }, bytesOf(3, 10));
    return { half, whole: await storage.listModels(), usage: await storage.usage() };
  });
  const old = {
    id: "https://a.test/old.gguf",
    name: "old.gguf",
    parts: 1,
    bytes: 100_000,
    bytes_total: 100_000,
    is_complete: true,
    store: "opfs",
    sha256: [null],
    created_at: 1000,
    used_at: 5000,
  };
  const half = {
    id: "https://a.test/1.gguf",
    name: "2.gguf",
    parts: 2,
    bytes: 65_536,
    bytes_total: null,
    is_complete: false,
    store: "opfs",
    sha256: [null, null],
    created_at: 1000,
    used_at: 7000,
  };
  const whole = { ...half, name: "1.gguf", bytes: 65_546, bytes_total: 65_546, is_complete: true, store: "cache" };
  expect(outcome.half).toEqual([half, old]);
  expect(outcome.whole).toEqual([whole, old]);
  expect(outcome.usage.model_bytes).toBe(165_546);
  expect(outcome.usage.usage).toBeGreaterThan(165_546);
  expect(outcome.usage.quota).toBeGreaterThan(outcome.usage.usage ?? Number.NaN);
  expect(outcome.usage.is_persisted).toBe(false);
});

test("verification finds every kind of damage, and forgets what is damaged @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async (kinds) => {
    const { bytesOf, isEqual, readRaw, removeRaw, writeRaw } = harness.storage;
    const storage = harness.storage.open();
    const outcomes = [];
    for (const store of kinds) {
      const file = { id: `https://a.test/${store}.gguf`, store, segment_bytes: 65_536 };
      const bytes = bytesOf(3, 7 * 65_536 + 100);
      const { segments } = await storage.keep(file, bytes);
      const keys = segments.map((segment) => segment?.sha256 ?? "");
      const raw = await Promise.all(keys.map((key) => readRaw(store, key)));
      const untouched = await storage.verifyModel(file.id);

      const [, one, two, three, four, five] = keys as [string, string, string, string, string, string];
      const flipped = Uint8Array.from(raw[1] ?? []);
      flipped[40_000] = (flipped[40_000] ?? 0) ^ 1;
      await writeRaw(store, one, flipped);
      await writeRaw(store, two, Uint8Array.from(raw[2] ?? []).slice(0, 65_535));
      await writeRaw(store, three, Uint8Array.from(raw[4] ?? []));
      await writeRaw(store, four, Uint8Array.from(raw[3] ?? []));
      await removeRaw(store, five);
      const damaged = await storage.verifyModel(file.id);
      const known = (await storage.readManifest(file.id))?.segments.map((segment) => segment !== null);
      const there = await Promise.all(keys.map(async (key, index) => isEqual(await readRaw(store, key), raw[index] ?? null)));

      const again = await storage.verifyModel(file.id);
      await storage.keep(file, bytes);
      const healed = await storage.verifyModel(file.id);
      outcomes.push({ untouched, damaged, known, there, again, healed });
    }
    return outcomes;
  }, KINDS);
  const SEGMENT = 65_536;
  const total = 7 * SEGMENT + 100;
  for (const [index, kind] of KINDS.entries()) {
    const id = `https://a.test/${kind}.gguf`;
    const whole = [1, 2, 3, 4, 5, 6, 7].map((n) => [n * SEGMENT, total]).concat([[total, total]]);
    const sound = { id, bytes: total, is_complete: true, faults: [], progress: whole };
    const rest = 2 * SEGMENT + 100;
    const is = [true, false, false, false, false, false, true, true];
    expect(outcome[index]).toEqual({
      untouched: sound,
      damaged: {
        id,
        bytes: rest,
        is_complete: false,
        faults: [1, 2, 3, 4, 5].map((n) => ({
          part: 0,
          offset: n * SEGMENT,
          length: SEGMENT,
          problem: n === 5 ? "missing" : "damaged",
        })),
        progress: whole,
      },
      known: is,
      there: is,
      again: { id, bytes: rest, is_complete: false, faults: [], progress: [[SEGMENT, rest], [2 * SEGMENT, rest], [rest, rest]] },
      healed: sound,
    });
  }
});

test("a damaged segment is struck from every model that has it @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async () => {
    const { bytesOf, writeRaw } = harness.storage;
    const storage = harness.storage.open();
    const file = { store: "opfs" as const, segment_bytes: 65_536 };
    const { segments } = await storage.keep({ ...file, id: "one" }, bytesOf(1, 100_000));
    await storage.keep({ ...file, id: "other" }, bytesOf(1, 100_000));
    await storage.keep({ ...file, id: "elsewhere", store: "cache" }, bytesOf(1, 100_000));
    await writeRaw("opfs", segments[0]?.sha256 ?? "", bytesOf(2, 65_536));
    const { faults } = await storage.verifyModel("one");
    const is = async (id: string) => (await storage.readManifest(id))?.segments.map((segment) => segment !== null);
    return { faults: faults.length, one: await is("one"), other: await is("other"), elsewhere: await is("elsewhere") };
  });
  expect(outcome).toEqual({ faults: 1, one: [false, true], other: [false, true], elsewhere: [true, true] });
});

test("a checksum or a key that does not fit is damage as well @page", async ({ persistent: page }) => {
  await openHarness(page);
  const problems = await page.evaluate(async () => {
    const { bytesOf, putRecord } = harness.storage;
    const storage = harness.storage.open();
    const keep = (id: string) => storage.keep({ id, store: "opfs", segment_bytes: 65_536 }, bytesOf(1, 1000));
    const checksum = await keep("checksum");
    const [segment] = checksum.segments;
    await putRecord("files", "checksum", { ...checksum, segments: [{ ...segment, checksum: "0".repeat(32) }] });
    const first = await storage.verifyModel("checksum");

    // Bytes with a checksum that fits under a key that does not.
    const key = await keep("key");
    await storage.write("opfs", "0".repeat(64), bytesOf(1, 1000));
    await putRecord("files", "key", { ...key, segments: [{ ...segment, sha256: "0".repeat(64) }] });
    const second = await storage.verifyModel("key");
    return [...first.faults, ...second.faults].map(({ problem }) => problem);
  });
  expect(problems).toEqual(["damaged", "damaged"]);
});

test("a verification can be aborted, and unknown models are named @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async () => {
    const { bytesOf, outcome, removeRaw } = harness.storage;
    const storage = harness.storage.open();
    const { segments } = await storage.keep({ id: "model", store: "opfs", segment_bytes: 65_536 }, bytesOf(1, 300_000));
    await removeRaw("opfs", segments[0]?.sha256 ?? "");
    const broken = harness.storage.open();
    await broken.inject("no folder");
    return {
      aborted: await outcome(storage.verifyModel("model", 2)),
      known: (await storage.readManifest("model"))?.segments.map((segment) => segment !== null),
      unknown: [await outcome(storage.verifyModel("other")), await outcome(storage.deleteModel("other"))],
      // Where its store cannot be opened, a model must not be taken for a damaged one.
      closed: await outcome(broken.verifyModel("model")),
      after: (await storage.readManifest("model"))?.segments.map((segment) => segment !== null),
    };
  });
  const known = [false, true, true, true, true];
  expect(outcome).toEqual({
    aborted: expect.stringMatching(/^AbortError/),
    known,
    unknown: ["not_stored", "not_stored"],
    closed: "storage_unavailable",
    after: known,
  });
});

test("deletion leaves segments that another model has @page", async ({ persistent: page }) => {
  await openHarness(page);
  const outcome = await page.evaluate(async (kinds) => {
    const { bytesOf, listRaw } = harness.storage;
    const storage = harness.storage.open();
    const outcomes = [];
    for (const store of kinds) {
      const bytes = bytesOf(1, 4 * 65_536);
      const file = { store, segment_bytes: 65_536 };
      // The first two segments are the same.
      await storage.keep({ ...file, id: "one" }, bytes);
      await storage.keep({ ...file, id: "other" }, Uint8Array.from([...bytes.subarray(0, 2 * 65_536), ...bytesOf(2, 65_536)]));
      const before = (await listRaw(store)).length;
      const { model_bytes } = await storage.usage();
      await storage.deleteModel("one");
      const rest = (await listRaw(store)).length;
      const verification = await storage.verifyModel("other");
      await storage.deleteModel("other");
      const { is_complete, faults } = verification;
      outcomes.push({ before, model_bytes, rest, is_complete, faults, left: [await listRaw(store), await storage.listModels()] });
    }
    return outcomes;
  }, KINDS);
  const expected = { before: 5, model_bytes: 5 * 65_536, rest: 3, is_complete: true, faults: [], left: [[], []] };
  expect(outcome).toEqual([expected, expected]);
});

test("garbage is what no manifest has, not what another tab is about to record @page", async ({ persistent }) => {
  const other = await persistent.context().newPage();
  await openHarness(persistent);
  await openHarness(other);
  const writer = await persistent.evaluateHandle(() => harness.storage.open());
  const collector = await other.evaluateHandle(() => harness.storage.open());
  await collector.evaluate(async (storage) => {
    await storage.write("opfs", "a".repeat(64), harness.storage.bytesOf(8, 100));
    await storage.write("cache", "b".repeat(64), harness.storage.bytesOf(9, 100));
  });

  const written = writer.evaluate((storage) =>
    storage.keepSlowly({ id: "model", store: "opfs", segment_bytes: 65_536 }, harness.storage.bytesOf(1, 1000)),
  );
  await expect.poll(() => other.evaluate(async () => (await harness.storage.listRaw("opfs")).length)).toBe(2);
  const removed = collector.evaluate((storage) => storage.collectGarbage());
  const waiting = () => other.evaluate(async () => (await navigator.locks.query()).pending?.map(({ mode }) => mode));
  await expect.poll(waiting).toEqual(["exclusive"]);
  await writer.evaluate((storage) => storage.goOn());
  await written;
  expect(await removed).toBe(2);
  const { faults, is_complete } = await writer.evaluate((storage) => storage.verifyModel("model"));
  expect({ faults, is_complete }).toEqual({ faults: [], is_complete: true });

  // A tab that ends half way leaves a segment and no lock.
  void writer.evaluate((storage) =>
    storage.keepSlowly({ id: "next", store: "opfs", segment_bytes: 65_536 }, harness.storage.bytesOf(2, 1000)),
  ).catch(() => undefined);
  await expect.poll(() => other.evaluate(async () => (await harness.storage.listRaw("opfs")).length)).toBe(2);
  await persistent.close();
  expect(await collector.evaluate((storage) => storage.collectGarbage())).toBe(1);
  expect(await collector.evaluate(async (storage) => (await storage.verifyModel("model")).is_complete)).toBe(true);
});
