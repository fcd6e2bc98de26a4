/** Saved sessions: real databases, with tabs, crashes and refusals. The sessions are made up; their chunks are real bytes. */

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import type { JSHandle, Page } from "@playwright/test";
import type { Storage } from "./harness/dist/storage.js";
import { expect, openHarness, test } from "./test.js";

const MIB = 1024 * 1024;

/** So many tabs of one browser, of which the first is there. */
async function openTabs(first: Page, count: number): Promise<Page[]> {
  const pages = [first];
  while (pages.length < count) {
    pages.push(await first.context().newPage());
  }
  await Promise.all(pages.map((page) => openHarness(page)));
  return pages;
}

async function checkSaves(page: Page): Promise<void> {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const { listRecords, open } = harness.storage;
    const storage = open();
    await storage.setNow(1000);
    const first = await storage.saveSession({ id: "chat", seeds: [1, 2, 3, 3], isNamed: true, data: { title: "Titles", at: [1] } });
    await storage.setNow(2000);
    // Most of a session is the same from one save to the next.
    const second = await storage.saveSession({ id: "chat", seeds: [1, 2, 4, 5], isNamed: true });
    const read = await storage.readSession("chat");
    const info = { id: "chat", model: "model", tokens: 4, bytes: 400_000, is_named: true, saved_at: 2000, used_at: 2000 };
    await storage.saveSession({ id: "empty", seeds: [], data: null });
    const empty = await storage.readSession("empty");
    await storage.setNow(3000);
    await storage.touchSession("chat");
    await storage.touchSession("nobody");
    const list = await storage.listSessions();
    const same = await storage.saveSession({ id: "chat", seeds: [1, 2, 4, 5], data: null });
    return {
      first,
      second,
      read,
      isInfo: JSON.stringify(second.saved) === JSON.stringify({ ...info, data: { title: "Titles", at: [1] } }),
      empty,
      unknown: await storage.readSession("nobody"),
      list: list.map(({ id, saved_at, used_at, data }) => ({ id, saved_at, used_at, data })),
      same: same.writes,
      after: await storage.readSession("chat"),
      chunks: (await listRecords("chunks")).length,
      usage: await storage.sessionUsage(),
      deleted: [await storage.deleteSession("chat"), await storage.deleteSession("chat"), await storage.readSession("chat")],
      left: [await listRecords("chunks"), await listRecords("snapshots")],
    };
  });
  const data = { title: "Titles", at: [1] };
  expect(found).toEqual({
    first: {
      saved: expect.objectContaining({ id: "chat", tokens: 4, bytes: 300_000, data }),
      asked: [1, 2, 3],
      writes: ["put chunks", "put chunks", "put chunks", "put snapshots"],
      evicted: [],
    },
    second: {
      saved: expect.objectContaining({ bytes: 400_000, data }),
      asked: [4, 5],
      writes: ["put chunks", "put chunks", "put snapshots", "delete chunks"],
      evicted: [],
    },
    read: { seeds: [1, 2, 4, 5], is_named: true, data },
    isInfo: true,
    empty: { seeds: [], is_named: false, data: null },
    unknown: null,
    list: [
      { id: "chat", saved_at: 2000, used_at: 3000, data },
      { id: "empty", saved_at: 2000, used_at: 2000, data: null },
    ],
    same: ["put snapshots"],
    after: { seeds: [1, 2, 4, 5], is_named: false, data: null },
    chunks: 4,
    usage: { sessions: 2, bytes: 400_000 },
    deleted: [true, false, null],
    left: [[], ["empty"]],
  });
}

test("a save writes what is new, and a session comes back as it was @page", async ({ persistent }) => {
  await checkSaves(persistent);
});

test("a session comes back in a private window @page", async ({ page }) => {
  await checkSaves(page);
});

test("a session outlives the browser @page", async ({ persistentContext }) => {
  const before = await persistentContext();
  const first = before.pages()[0] ?? (await before.newPage());
  await openHarness(first);
  await first.evaluate(() => harness.storage.open().saveSession({ id: "chat", seeds: [1, 2, 3], isNamed: true, data: "data" }));
  await before.close();
  const after = await persistentContext();
  const page = after.pages()[0] ?? (await after.newPage());
  await openHarness(page);
  expect(await page.evaluate(() => harness.storage.open().readSession("chat"))).toEqual({
    seeds: [1, 2, 3],
    is_named: true,
    data: "data",
  });
});

test("a save that does not succeed costs nothing that was saved @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const { listRecords, open, outcome } = harness.storage;
    const storage = open();
    await storage.saveSession({ id: "chat", seeds: [1, 2, 3] });
    const next = { id: "chat", seeds: [1, 4, 5, 6] };
    const chunks = async () => (await listRecords("chunks")).length;
    const attempts: unknown[] = [];
    for (const event of ["fail", "damage", "abort"] as const) {
      const result = await outcome(storage.saveSession(next, { at: [2, event] }));
      attempts.push([event, result, await chunks(), (await storage.readSession("chat"))?.seeds]);
    }
    // What an aborted save has written need not be written again, and is removed where nobody comes for it.
    const { asked } = await storage.saveSession(next);
    await outcome(storage.saveSession({ id: "other", seeds: [7, 8, 9] }, { at: [2, "abort"] }));
    const collected = [await chunks(), await storage.collectChunks(), await chunks(), await storage.collectChunks()];
    return { attempts, asked, read: (await storage.readSession("chat"))?.seeds, collected, ids: await listRecords("snapshots") };
  });
  expect(found).toEqual({
    attempts: [
      ["fail", "device_lost", 3, [1, 2, 3]],
      ["damage", "snapshot_corrupt", 3, [1, 2, 3]],
      ["abort", expect.stringMatching(/^AbortError/), 5, [1, 2, 3]],
    ],
    asked: [6],
    read: [1, 4, 5, 6],
    collected: [6, 2, 4, 0],
    ids: ["chat"],
  });
});

/** The writes of the save below: four new chunks, the record, and one chunk that is no longer needed. */
const WRITES = 6;

for (const end of ["a worker that is ended", "a tab that is closed"] as const) {
  test(`${end} in any write of a save costs nothing that was saved @page`, async ({ persistent: page }) => {
    await openHarness(page);
    const reader = await page.evaluateHandle(() => harness.storage.open());
    for (let index = 1; index <= WRITES; index += 1) {
      await reader.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [1, 2] }));
      const tab = await page.context().newPage();
      await openHarness(tab);
      const writer = await tab.evaluateHandle(() => harness.storage.open());
      const hangs = page.evaluate(() => harness.storage.hanging());
      await writer.evaluate((storage, index) => {
        void storage.hangAt(index);
        void storage.saveSession({ id: "chat", seeds: [1, 3, 4, 5, 6], data: "new" });
      }, index);
      await hangs;
      if (end === "a tab that is closed") {
        await tab.close();
      } else {
        await writer.evaluate((storage) => storage.close());
      }

      const found = await reader.evaluate(async (storage) => {
        const read = await storage.readSession("chat");
        // The lock of the tab is gone with it.
        const collected = await storage.collectChunks();
        const again = await storage.readSession("chat");
        const { asked } = await storage.saveSession({ id: "chat", seeds: [1, 3, 4, 5, 6] });
        const whole = await storage.readSession("chat");
        return { read, collected, again, asked, whole, chunks: (await harness.storage.listRecords("chunks")).length };
      });
      const old = { seeds: [1, 2], is_named: false };
      expect(found, `write ${index}`).toEqual({
        read: old,
        // The chunk whose transaction has not ended is not there.
        collected: Math.min(index - 1, 4),
        again: old,
        asked: [3, 4, 5, 6],
        whole: { seeds: [1, 3, 4, 5, 6], is_named: false },
        chunks: 5,
      });
      await tab.close();
      await reader.evaluate((storage) => storage.deleteSession("chat"));
    }
  });
}

for (const kind of ["a profile on the disk", "a private window"] as const) {
  test(`a full disk costs nothing that was saved, in ${kind} @page`, async ({ persistentContext, page: privatePage }) => {
    const page = kind === "a private window" ? privatePage : await (await persistentContext()).newPage();
    await openHarness(page);
    const devtools = await page.context().newCDPSession(page);
    const origin = new URL(page.url()).origin;
    const storage = await page.evaluateHandle(() => harness.storage.open());
    const seeds = Array.from({ length: 100 }, (_, seed) => seed);
    // The database asks for the quota now and then, and not at every write.
    await devtools.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 3 * MIB });
    await storage.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [0, 1, 2], data: "old" }));
    const full = await storage.evaluate(async (storage, seeds) => {
      const { listRecords, outcome } = harness.storage;
      return {
        reason: await storage.refusedSave({ id: "chat", seeds, data: "new" }),
        read: await storage.readSession("chat"),
        chunks: (await listRecords("chunks")).length,
        other: await outcome(storage.saveSession({ id: "other", seeds })),
        list: (await storage.listSessions()).map(({ id }) => id),
      };
    }, seeds);
    expect(full).toEqual({
      reason: expect.stringMatching(/^storage_full: The browser's storage is full: it counts \d{7} bytes of this site, and tells of a quota of \d+ bytes$/),
      read: { seeds: [0, 1, 2], is_named: false, data: "old" },
      chunks: 3,
      other: "storage_full",
      list: ["chat"],
    });
    await devtools.send("Storage.overrideQuotaForOrigin", { origin });
    const { asked } = await storage.evaluate((storage, seeds) => storage.saveSession({ id: "chat", seeds }), seeds);
    expect(asked).toHaveLength(97);
    expect(await storage.evaluate((storage) => storage.readSession("chat"))).toEqual({ seeds, is_named: false, data: "old" });
  });
}

test("within a budget the sessions go that were not used for longest, those with a name last @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const storage = harness.storage.open();
    let now = 1000;
    const save = async (id: string, seeds: number[], isNamed: boolean, budgetBytes?: number) => {
      now += 1000;
      await storage.setNow(now);
      const { evicted } = await storage.saveSession({ id, seeds, isNamed }, budgetBytes === undefined ? {} : { budgetBytes });
      return evicted;
    };
    await save("named, old", [1, 2], true);
    await save("old", [1, 3], false);
    await save("used", [4, 5], false);
    await save("named", [6], true);
    await save("new", [7], false);
    await storage.setNow(20_000);
    await storage.touchSession("used");
    const list = async () => (await storage.listSessions()).map(({ id }) => id).sort();
    const { bytes } = await storage.sessionUsage();
    return {
      bytes,
      // One chunk more: the chunk that goes with "old" makes room for it, the one that is shared stays.
      evicted: [
        await save("a", [8], false, 700_000),
        await save("b", [4], false, 700_000),
        await save("b", [4, 9], false, 700_000),
        await save("b", [9, 10, 11], false, 500_000),
        await save("named", [6, 12, 13, 14], true, 400_000),
      ],
      list: await list(),
      tooLarge: await storage.refusedSave({ id: "named", seeds: [1, 2, 3, 4, 5] }, { budgetBytes: 499_999 }),
      fits: await save("c", [1, 2, 3, 4, 5], false, 500_000),
      rest: await list(),
      read: (await storage.readSession("c"))?.seeds,
      chunks: (await harness.storage.listRecords("chunks")).length,
    };
  });
  expect(found).toEqual({
    bytes: 700_000,
    evicted: [["old"], [], ["new"], ["a", "used", "named, old"], ["b"]],
    list: ["named"],
    tooLarge:
      "storage_full: The browser's storage is full: the session takes 500000 bytes, and all saved sessions may take 499999",
    fits: ["named"],
    rest: ["c"],
    read: [1, 2, 3, 4, 5],
    chunks: 5,
  });
});

test("chunks that two sessions share outlive one of them @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const storage = harness.storage.open();
    await storage.saveSession({ id: "one", seeds: [1, 2, 3] });
    const { asked } = await storage.saveSession({ id: "fork", seeds: [1, 2, 4] });
    const usage = await storage.sessionUsage();
    await storage.deleteSession("one");
    const read = (await storage.readSession("fork"))?.seeds;
    const chunks = (await harness.storage.listRecords("chunks")).length;
    return { asked, usage, read, chunks };
  });
  expect(found).toEqual({ asked: [4], usage: { sessions: 2, bytes: 400_000 }, read: [1, 2, 4], chunks: 3 });
});

test("a chunk that is missing, cut short or changed is told, costs no other session, and heals @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const { bytesOf, open, outcome, putRecord } = harness.storage;
    const storage = open();
    await storage.saveSession({ id: "chat", seeds: [1, 2, 3] });
    await storage.saveSession({ id: "other", seeds: [1, 3] });
    const digest = await storage.digestOf(2);
    const changed = bytesOf(2, 100_000);
    changed[77_777] = (changed[77_777] ?? 0) ^ 1;
    const results: unknown[] = [];
    for (const damaged of [changed.buffer, bytesOf(2, 99_999).slice().buffer, new ArrayBuffer(0), bytesOf(2, 100_000), "text", null]) {
      await putRecord("chunks", digest, damaged);
      const first = await outcome(storage.readSession("chat"));
      const second = await outcome(storage.readSession("chat"));
      const other = (await storage.readSession("other"))?.seeds;
      const { asked } = await storage.saveSession({ id: "chat", seeds: [1, 2, 3] });
      results.push([first, second, other, asked, (await storage.readSession("chat"))?.seeds]);
    }
    return results;
  });
  expect(found).toEqual(Array.from({ length: 6 }, () => ["snapshot_corrupt", "snapshot_corrupt", [1, 3], [2], [1, 2, 3]]));
});

for (const damage of ["lost", "cut short"] as const) {
  test(`files of the database that are ${damage} cost the sessions in them and no other @page`, async ({ persistentContext, profile }) => {
    const before = await persistentContext();
    const first = before.pages()[0] ?? (await before.newPage());
    await openHarness(first);
    await first.evaluate(async () => {
      const storage = harness.storage.open();
      await storage.saveSession({ id: "chat", seeds: [1, 2, 3] });
      await storage.saveSession({ id: "large", seeds: [], data: harness.storage.bytesOf(9, 200_000) });
    });
    await before.close();
    // Large values have files of their own: three chunks, and the record with the large data.
    const files = readdirSync(profile, { recursive: true, withFileTypes: true })
      .filter((file) => file.isFile() && file.parentPath.includes("indexeddb.blob"))
      .map((file) => path.join(file.parentPath, file.name));
    expect(files).toHaveLength(4);
    for (const file of files) {
      if (damage === "lost") {
        rmSync(file);
      } else {
        truncateSync(file, 50_000);
      }
    }

    const after = await persistentContext();
    const page = after.pages()[0] ?? (await after.newPage());
    await openHarness(page);
    const found = await page.evaluate(async () => {
      const storage = harness.storage.open();
      return {
        chat: await harness.storage.outcome(storage.readSession("chat")),
        large: await storage.readSession("large"),
        list: (await storage.listSessions()).map(({ id }) => id),
        saved: (await storage.saveSession({ id: "new", seeds: [4] })).asked,
        deleted: [await storage.deleteSession("chat"), await storage.deleteSession("large")],
        asked: (await storage.saveSession({ id: "chat", seeds: [1, 2, 3] })).asked,
        again: (await storage.readSession("chat"))?.seeds,
      };
    });
    expect(found).toEqual({
      chat: "snapshot_corrupt",
      large: null,
      list: ["chat"],
      saved: [4],
      // What cannot be read is gone already.
      deleted: [true, false],
      asked: [1, 2, 3],
      again: [1, 2, 3],
    });
  });
}

test("a record of another shape is as good as none @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const { getRecord, open, putRecord } = harness.storage;
    const storage = open();
    await storage.saveSession({ id: "good", seeds: [1] });
    const good = (await getRecord("snapshots", "good")) as { manifest: { chunks: object[] } };
    const { manifest } = good;
    const [chunk] = manifest.chunks;
    const shapes: Record<string, unknown> = {
      text: "text",
      nothing: null,
      empty: {},
      id: good,
      time: { ...good, id: "time", used_at: "now" },
      name: { ...good, id: "name", is_named: 1 },
      manifest: { ...good, id: "manifest", manifest: null },
      model: { ...good, id: "model", manifest: { ...manifest, fingerprint: { model: 5 } } },
      ids: { ...good, id: "ids", manifest: { ...manifest, ids: [-1] } },
      chunks: { ...good, id: "chunks", manifest: { ...manifest, chunks: {} } },
      digest: { ...good, id: "digest", manifest: { ...manifest, chunks: [{ ...chunk, digest: "../../etc" }] } },
      unread: { ...good, id: "unread", manifest: { ...manifest, chunks: [{ ...chunk, digest: null }] } },
      bytes: { ...good, id: "bytes", manifest: { ...manifest, chunks: [{ ...chunk, bytes: 16_000_001 }] } },
      lengths: { ...good, id: "lengths", manifest: { ...manifest, chunks: [chunk, { ...chunk, bytes: 1 }] } },
    };
    for (const [key, record] of Object.entries(shapes)) {
      await putRecord("snapshots", key, record);
    }
    const read = await Promise.all(Object.keys(shapes).map(async (key) => [key, await storage.readSession(key)] as const));
    const list = (await storage.listSessions()).map(({ id }) => id);
    await storage.saveSession({ id: "empty", seeds: [2] });
    return {
      read: read.filter(([, record]) => record !== null),
      list,
      again: (await storage.readSession("empty"))?.seeds,
      good: (await storage.readSession("good"))?.seeds,
    };
  });
  expect(found).toEqual({ read: [], list: ["good"], again: [2], good: [1] });
});

for (const locks of ["with", "without"] as const) {
  test(`tabs save one session at once and collect meanwhile, ${locks} locks @page`, async ({ persistent }) => {
    const pages = await openTabs(persistent, 3);
    const outcomes = await Promise.all(
      pages.map((page, tab) =>
        page.evaluate(
          async ({ tab, locks }) => {
            const { open, outcome } = harness.storage;
            const storage = open();
            if (locks === "without") {
              await storage.withoutLocks();
            }
            const outcomes: string[] = [];
            for (let time = 0; time < 15; time += 1) {
              const session = { id: "chat", seeds: [0, 1, 100 * tab + time + 2, 100 * tab + time + 3, 100 * tab + time + 4] };
              outcomes.push(await outcome(tab === 2 ? storage.collectChunks() : storage.saveSession(session)));
              const read = await outcome(storage.readSession("chat"));
              // While one tab reads, the other may replace what it reads; only a lock keeps it from that.
              if (read !== "ok" && read !== "snapshot_corrupt") {
                outcomes.push(read);
              }
            }
            return outcomes;
          },
          { tab, locks },
        ),
      ),
    );
    const all = new Set(outcomes.flat());
    expect([...all].filter((outcome) => outcome !== "ok" && (locks === "with" || outcome !== "storage_unavailable"))).toEqual([]);
    const found = await persistent.evaluate(async () => {
      const storage = harness.storage.open();
      await storage.collectChunks();
      const seeds = (await storage.readSession("chat"))?.seeds ?? [];
      return { seeds, chunks: (await harness.storage.listRecords("chunks")).length };
    });
    const [, , first = Number.NaN] = found.seeds;
    expect(found).toEqual({ seeds: [0, 1, first, first + 1, first + 2], chunks: 5 });
  });
}

test("a save without locks writes again what another tab has collected @page", async ({ persistent }) => {
  const [, other = persistent] = await openTabs(persistent, 2);
  const writer = await persistent.evaluateHandle(() => harness.storage.open());
  await writer.evaluate((storage) => storage.withoutLocks());
  const saving = writer.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [1, 2, 3] }, { at: [3, "wait"] }));
  await expect.poll(() => other.evaluate(async () => (await indexedDB.databases()).length)).toBe(1);
  await expect.poll(() => other.evaluate(async () => (await harness.storage.listRecords("chunks")).length)).toBe(2);
  expect(await other.evaluate(() => harness.storage.open().collectChunks())).toBe(2);
  await writer.evaluate((storage) => storage.goOnSession());
  expect((await saving).asked).toEqual([1, 2, 3, 1, 2]);
  expect((await writer.evaluate((storage) => storage.readSession("chat")))?.seeds).toEqual([1, 2, 3]);
});

test("nothing changes while a session is read, and who waits can be aborted @page", async ({ persistent }) => {
  const [, other = persistent] = await openTabs(persistent, 2);
  const reader = await persistent.evaluateHandle(() => harness.storage.open());
  await reader.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [1, 2, 3] }));
  const reading = reader.evaluate((storage) => storage.readSlowly("chat"));
  const pending = () => other.evaluate(async () => (await navigator.locks.query()).pending?.map(({ mode }) => mode));
  const held = () => other.evaluate(async () => (await navigator.locks.query()).held?.map(({ mode }) => mode));
  await expect.poll(held).toEqual(["shared"]);
  const saving = other.evaluate(() => harness.storage.open().saveSession({ id: "chat", seeds: [4] }));
  await expect.poll(pending).toEqual(["exclusive"]);
  const { outcome } = await other.evaluate(async () => ({
    outcome: await harness.storage.outcome(harness.storage.open().abortWaiting({ id: "chat", seeds: [5] })),
  }));
  expect(outcome).toMatch(/^AbortError/);
  await reader.evaluate((storage) => storage.goOnSession());
  expect(await reading).toEqual([1, 2, 3]);
  await saving;
  expect((await reader.evaluate((storage) => storage.readSession("chat")))?.seeds).toEqual([4]);
});

test("a database that is deleted or refused is told, and later saves work @page", async ({ persistent: page }) => {
  await openHarness(page);
  const storage = await page.evaluateHandle(() => harness.storage.open());
  const found = await storage.evaluate(async (storage) => {
    const { deleteDatabase, listRecords, outcome } = harness.storage;
    const session = { id: "chat", seeds: [1, 2, 3] };
    await storage.saveSession(session);
    await deleteDatabase();
    const gone = [await storage.readSession("chat"), await storage.listSessions(), await storage.collectChunks()];
    const { asked } = await storage.saveSession(session);

    // In the middle of a save.
    const saving = storage.saveSession({ id: "chat", seeds: [1, 4, 5] }, { at: [2, "wait"] });
    while ((await listRecords("chunks")).length < 4);
    await deleteDatabase();
    await storage.goOnSession();
    const whole = [(await saving).asked, (await storage.readSession("chat"))?.seeds];

    const refused: string[] = [];
    for (const act of [
      () => storage.saveSession(session),
      () => storage.readSession("chat"),
      () => storage.touchSession("chat"),
      () => storage.listSessions(),
      () => storage.deleteSession("chat"),
      () => storage.collectChunks(),
      () => storage.sessionUsage(),
    ]) {
      await storage.refuseDatabase(1);
      refused.push(await outcome(act()));
    }
    return { gone, asked, whole, refused, after: await outcome(storage.saveSession(session)) };
  });
  expect(found).toEqual({
    gone: [null, [], 0],
    asked: [1, 2, 3],
    whole: [[4, 5, 1, 4], [1, 4, 5]],
    refused: Array.from({ length: 7 }, () => "storage_unavailable"),
    after: "ok",
  });
});

test("storage that a visitor clears within a transaction is told, and later saves work @page", async ({ persistent: page }) => {
  await openHarness(page);
  const devtools = await page.context().newCDPSession(page);
  const origin = new URL(page.url()).origin;
  const storage = await page.evaluateHandle(() => harness.storage.open());
  await storage.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [1, 2] }));
  const hangs = page.evaluate(() => harness.storage.hanging());
  const saving = storage.evaluate((storage) => {
    void storage.hangAt(2, 2000);
    return harness.storage.outcome(storage.saveSession({ id: "chat", seeds: [3, 4, 5] }));
  });
  await hangs;
  await devtools.send("Storage.clearDataForOrigin", { origin, storageTypes: "indexeddb" });
  expect(await saving).toBe("storage_unavailable");
  expect(await storage.evaluate((storage) => storage.readSession("chat"))).toBeNull();
  await storage.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [3, 4, 5] }));
  expect((await storage.evaluate((storage) => storage.readSession("chat")))?.seeds).toEqual([3, 4, 5]);
});

test("a session goes into a file and comes back from it @page", async ({ persistent: page }) => {
  await openHarness(page);
  const found = await page.evaluate(async () => {
    const { open, outcome } = harness.storage;
    const storage = open();
    const data = { title: "Übung 🙂", list: [null, 1.5, true] };
    await storage.saveSession({ id: "chat", seeds: [1, 2, 2, 3], data });
    await storage.saveSession({ id: "plain", seeds: [] });
    const files = [await storage.exportSession("chat"), await storage.exportSession("plain")] as const;
    await storage.deleteSession("chat");
    // Of a file that lies: the bytes are not those of the digest.
    const bytes = new Uint8Array(await files[0].arrayBuffer());
    const forged = bytes.slice();
    forged[forged.length - 2000] = (forged[forged.length - 2000] ?? 0) ^ 1;
    return {
      forged: await outcome(storage.importSession(new Blob([forged]), "chat")),
      chunks: (await harness.storage.listRecords("chunks")).length,
      read: await storage.importSession(files[0], "copy"),
      plain: await storage.importSession(files[1], "plain copy"),
      type: files[0].type,
      size: bytes.length,
      notJson: await outcome(storage.exportOther({ data: 1n })),
      tooLarge: await outcome(storage.exportOther({ text: 64 << 20 })),
      wrongChunk: await outcome(storage.exportOther({ chunkBytes: 99_999 })),
    };
  });
  expect(found).toEqual({
    forged: "snapshot_corrupt",
    chunks: 0,
    read: { seeds: [1, 2, 2, 3], is_named: true, data: { title: "Übung 🙂", list: [null, 1.5, true] } },
    plain: { seeds: [], is_named: true },
    type: "application/x-tar",
    size: expect.any(Number),
    notJson: "invalid_request",
    tooLarge: "invalid_request",
    wrongChunk: "snapshot_corrupt",
  });
  expect(found.size % 512).toBe(0);
});

/** A session as a file, in this process. */
async function exported(storage: JSHandle<Storage>, id: string): Promise<Buffer> {
  const base64 = await storage.evaluate(async (storage, id) => {
    const file = await storage.exportSession(id);
    return new Promise<string>((resolve) => {
      const reader = new FileReader();
      reader.onload = () => resolve(String(reader.result).replace(/^.*,/, ""));
      reader.readAsDataURL(file);
    });
  }, id);
  return Buffer.from(base64, "base64");
}

/** What becomes of a file that is imported, or why it is not. It may consist of `bytes` many times. */
async function imported(storage: JSHandle<Storage>, bytes: Buffer, times = 1): Promise<unknown> {
  return storage.evaluate(
    async (storage, { base64, times }) => {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const file = new Blob(Array.from({ length: times }, () => bytes));
      const refusal = await storage.refusedFile(file);
      return refusal === "ok" ? storage.importSession(file, "imported") : refusal;
    },
    { base64: bytes.toString("base64"), times },
  );
}

test("the file of a session is one that tar unpacks, and tar packs others that come back @page", async ({ persistent: page }) => {
  await openHarness(page);
  const storage = await page.evaluateHandle(() => harness.storage.open());
  await storage.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [1, 2, 3], data: { title: "Übung" } }));
  const file = await exported(storage, "chat");
  const folder = mkdtempSync(path.join(tmpdir(), "signbit-archive-"));
  try {
    const unpacked = path.join(folder, "unpacked");
    mkdirSync(unpacked);
    writeFileSync(path.join(folder, "chat.tar"), file);
    const tar = (...args: string[]) => execFileSync("tar", args, { cwd: unpacked, encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    tar("xf", "../chat.tar");
    expect(readdirSync(unpacked).sort()).toEqual(["chunks", "data.json", "manifest.json"]);
    const manifest = JSON.parse(readFileSync(path.join(unpacked, "manifest.json"), "utf8"));
    expect(manifest).toMatchObject({ format: 1, ids: [1, 2, 3] });
    expect(JSON.parse(readFileSync(path.join(unpacked, "data.json"), "utf8"))).toEqual({ title: "Übung" });
    const digests: string[] = manifest.chunks.map(({ digest }: { digest: string }) => digest);
    expect(readdirSync(path.join(unpacked, "chunks")).sort()).toEqual([...digests].sort());
    const chunks = digests.map((digest) => readFileSync(path.join(unpacked, "chunks", digest)).toString("base64"));
    const areEqual = await page.evaluate(
      (chunks) =>
        chunks.map((base64, index) => {
          const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
          return harness.storage.isEqual(bytes, harness.storage.bytesOf(index + 1, 100_000));
        }),
      chunks,
    );
    expect(areEqual).toEqual([true, true, true]);

    for (const format of ["ustar", "gnu", "posix"]) {
      for (const what of [["."], ["manifest.json", "data.json", "chunks"]]) {
        tar("cf", "../again.tar", `--format=${format}`, ...what);
        const packed = readFileSync(path.join(folder, "again.tar"));
        const again = await imported(storage, packed);
        expect(again, `${format} ${what}`).toEqual({ seeds: [1, 2, 3], is_named: true, data: { title: "Übung" } });
        const data = await page.evaluate(
          (bytes) => harness.signbit.readSessionData(new Blob([new Uint8Array(bytes)])),
          [...packed],
        );
        expect(data).toEqual({ title: "Übung" });
      }
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});

/** An entry of a tar archive: its name, what is in it, and what is unusual in its header. */
interface Entry {
  readonly name: string;
  readonly content?: Buffer | string;
  readonly type?: string;
  readonly size?: string;
  readonly prefix?: string;
  readonly checksum?: string;
}

/** An archive as somebody else writes it. */
function archive(entries: readonly Entry[], end: Buffer = Buffer.alloc(1024)): Buffer {
  const blocks = entries.flatMap(({ name, content = "", type = "0", size, prefix = "", checksum }) => {
    const bytes = Buffer.from(content as string);
    const header = Buffer.alloc(512);
    header.write(name, 0);
    header.write("0000644\0" + "0000000\0" + "0000000\0", 100);
    header.write(size ?? bytes.length.toString(8).padStart(11, "0"), 124, "latin1");
    header.write("00000000000\0" + " ".repeat(8) + type, 136);
    header.write("ustar\u000000", 257);
    header.write(prefix, 345);
    header.write(checksum ?? header.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, "0") + "\0 ", 148);
    return [header, bytes, Buffer.alloc(-bytes.length & 511)];
  });
  return Buffer.concat([...blocks, end]);
}

test("a file that is damaged, forged or something else is refused with a reason @page", async ({ persistent: page }) => {
  await openHarness(page);
  const storage = await page.evaluateHandle(() => harness.storage.open());
  await storage.evaluate((storage) => storage.saveSession({ id: "chat", seeds: [1, 2] }));
  const file = await exported(storage, "chat");
  const size = Number.parseInt(file.toString("latin1", 124, 135), 8);
  const json = file.toString("utf8", 512, 512 + size);
  const manifest: Entry = { name: "manifest.json", content: json };
  const chunks: Entry[] = JSON.parse(json).chunks.map(({ digest, bytes }: { digest: string; bytes: number }, index: number) => {
    const from = file.length - 1024 - (2 - index) * 100_352;
    return { name: `chunks/${digest}`, content: file.subarray(from, from + bytes) };
  });
  const good = [manifest, ...chunks];
  const [first, second] = chunks as [Entry, Entry];
  const described = (change: object): Entry => ({ ...manifest, content: JSON.stringify({ ...JSON.parse(json), ...change }) });

  // Whatever order and whatever folders.
  const folders = [{ name: "./", type: "5" }, { name: "./chunks/", type: "5" }];
  const whole = { seeds: [1, 2], is_named: true };
  expect(await imported(storage, archive(good))).toEqual(whole);
  const prefixed = chunks.map((chunk) => ({ ...chunk, name: `./${chunk.name}`, type: "\0" }));
  expect(await imported(storage, archive([...folders, ...prefixed, manifest]))).toEqual(whole);

  const cases: Record<string, readonly [Buffer, string]> = {
    nothing: [Buffer.alloc(0), "the file is not a tar archive"],
    text: [Buffer.from("a chat\n".repeat(200)), "the file is not a tar archive"],
    zeros: [Buffer.alloc(10_240), "the file is not a tar archive"],
    "cut within the first header": [file.subarray(0, 511), "the file is not a tar archive"],
    "cut within the manifest": [file.subarray(0, 600), 'the file ends early, within "manifest.json"'],
    "cut within a chunk": [file.subarray(0, file.length - 50_000), "the file ends early, within"],
    "cut after a chunk": [file.subarray(0, file.length - 1024), "the file ends early"],
    "cut after the manifest": [archive([manifest], Buffer.alloc(0)), "the file ends early"],
    "cut by entries": [archive([manifest, first]), `the chunk ${second.name.slice(7)} is missing`],
    "a header that was changed": [archive([manifest, { ...first, checksum: "001234\0 " }, second]), "is damaged"],
    "a header without a sum": [archive([manifest, { ...first, checksum: " ".repeat(8) }, second]), "is damaged"],
    "a size beyond the file": [archive([manifest, { ...first, size: "00000777777" }]), "the file ends early, within"],
    "a size that wraps": [archive([manifest, { ...first, size: "77777777777" }]), "is larger than a file of a session can be"],
    "a size in base 256": [archive([manifest, { ...first, size: "\x80\0\0\0\0\0\0\0\0\0\0\x10" }]), "is larger than"],
    "a negative size": [archive([manifest, { ...first, size: "-0000000001" }]), "is larger than"],
    "no manifest": [archive(chunks), "there is no manifest.json"],
    "no files": [archive(folders), "there is no manifest.json"],
    "two manifests": [archive([...good, manifest]), "manifest.json is there twice"],
    "one chunk twice": [archive([...good, { ...first, name: `./${first.name}` }]), "is there twice"],
    "a path upwards": [archive([...good, { name: "../manifest.json", content: json }]), '"../manifest.json" is nothing that belongs'],
    "a path from the root": [archive([{ name: "/manifest.json", content: json }]), '"/manifest.json" is nothing that belongs'],
    "a path through chunks": [archive([...good, { name: "chunks/../data.json" }]), "is nothing that belongs"],
    "a path in the prefix": [archive([{ ...manifest, prefix: ".." }]), '"../manifest.json" is nothing that belongs'],
    "a chunk by another name": [archive([manifest, { ...first, name: first.name.toUpperCase() }]), "is nothing that belongs"],
    "another file": [archive([...good, { name: "readme.txt" }]), '"readme.txt" is nothing that belongs'],
    "a link": [archive([{ name: "manifest.json", type: "2" }]), '"manifest.json" is neither a file nor a folder'],
    "a hard link": [archive([manifest, { ...first, type: "1" }]), "is neither a file nor a folder"],
    "a long name": [archive([{ name: "././@LongLink", type: "L" }, ...good]), "is neither a file nor a folder"],
    "a manifest that is not JSON": [archive([{ ...manifest, content: json.slice(1) }]), "manifest.json is not JSON"],
    "a manifest that is not text": [archive([{ ...manifest, content: Buffer.from([34, 0xff, 34]) }]), "manifest.json is not JSON"],
    "an empty manifest": [archive([{ ...manifest, content: "" }]), "manifest.json is not JSON"],
    "a manifest of a list": [archive([{ ...manifest, content: "[]" }, ...chunks]), "does not describe a session"],
    "a manifest without ids": [archive([described({ ids: undefined }), ...chunks]), "does not describe a session"],
    "a manifest with odd ids": [archive([described({ ids: [0.5] }), ...chunks]), "does not describe a session"],
    "a manifest with odd chunks": [archive([described({ chunks: [{ digest: "x", bytes: 1 }] })]), "does not describe a session"],
    "a manifest of 64 MiB": [archive([{ ...manifest, size: (64 * MIB + 1).toString(8).padStart(11, "0") }]), "is larger than"],
    "data that is not JSON": [archive([...good, { name: "data.json", content: "{" }]), "data.json is not JSON"],
    "a chunk of another length": [archive([manifest, first, { ...second, content: "short" }]), "has another length"],
  };
  for (const [name, [bytes, reason]] of Object.entries(cases)) {
    const refusal = await imported(storage, bytes);
    expect(refusal, name).toMatch(/^snapshot_corrupt: The saved session is damaged: /);
    expect(refusal, name).toContain(reason);
  }
  const folder = archive([{ name: "chunks/", type: "5" }], Buffer.alloc(0));
  expect(await imported(storage, folder, 65_537)).toContain("the archive has more than 65536 entries");
  expect(await storage.evaluate((storage) => storage.readSession("imported"))).toEqual(whole);
});
