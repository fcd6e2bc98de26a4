/** Conversations that take turns on the device, outlive the page, and come back as they were. */

import type { BrowserContext, Page } from "@playwright/test";
import { expect, openHarness, test } from "./test.js";

const DENSE = "tiny-geo";
const HYBRID = "models/qwen35-q1_0";
const KINDS = [
  { model: DENSE, kv_cache: "f32" },
  { model: DENSE, kv_cache: "kivi" },
  { model: HYBRID, kv_cache: "f32" },
  { model: HYBRID, kv_cache: "kivi" },
] as const;
const GREEDY = { temperature: 0 };
/** Drawn, and with everything that looks back at earlier tokens. */
const DRAWN = { temperature: 0.9, seed: 11, repetition_penalty: 1.1, frequency_penalty: 0.2, dry_multiplier: 0.5 };
/** So small that every session has many chunks. */
const CHUNK_BYTES = 4096;
/** New tokens of a turn whose answer is compared with another's. */
const NEW = 10;
/** Tokens that such a turn reads: the last one that was chosen as well. */
const READ = NEW + 1;
/** Only what is asked for is written. */
const BY_HAND = { autosave: false, chunkBytes: CHUNK_BYTES };
/** At once, for tests that wait for it. */
const AT_ONCE = { debounceMs: 0, chunkBytes: CHUNK_BYTES };
const MIB = 1024 * 1024;

/** A page on the same origin as another, with what the other has stored. */
async function openPage(context: BrowserContext): Promise<Page> {
  const page = await context.newPage();
  await openHarness(page);
  return page;
}

for (const { model, kv_cache } of KINDS) {
  test(`ten turns of ${model} with the ${kv_cache} cache read only what is new @page`, async ({ page, backend }) => {
    await openHarness(page);
    const read = await page.evaluate(
      async ({ backend, model, kv_cache }) => {
        const { load, Talk } = harness.sessions;
        const engine = await harness.openEngine(backend);
        await load(engine, model, { kv_cache });
        const talk = new Talk(1, "chat");
        const read: (readonly [number, string | null, boolean])[] = [];
        for (let turn = 0; turn < 10; turn += 1) {
          const { reuse } = await talk.turn(engine, 6);
          read.push([reuse.prefilled, reuse.source, reuse.divergence === null]);
        }
        return read;
      },
      { backend, model, kv_cache },
    );
    // The last token of each answer was chosen, but not read.
    expect(read).toEqual([[6, null, true], ...Array.from({ length: 9 }, () => [7, "resident", true])]);
  });
}

for (const model of [DENSE, HYBRID]) {
  for (const names of ["with", "without"] as const) {
    test(`chats of ${model} ${names} names take turns and read nothing twice @page`, async ({ page, backend }) => {
      await openHarness(page);
      const { read, alone, together, where } = await page.evaluate(
        async ({ backend, model, isNamed }) => {
          const { load, places, Talk } = harness.sessions;
          const talks = () => [1, 2, 3].map((seed) => new Talk(seed, isNamed ? `chat ${seed}` : undefined));
          const engine = await harness.openEngine(backend, { sessions: { autosave: false } });
          await load(engine, model);
          const together = talks();
          const read: (readonly [number, string | null])[] = [];
          for (let turn = 0; turn < 4; turn += 1) {
            for (const talk of together) {
              const { reuse } = await talk.turn(engine, 20);
              read.push([reuse.prefilled, reuse.source]);
            }
          }
          const where = Object.values(places(await engine.sessions.list()));
          const alone = talks();
          for (const talk of alone) {
            await engine.reset();
            for (let turn = 0; turn < 4; turn += 1) {
              await talk.turn(engine, 20);
            }
          }
          return { read, alone: alone.map(({ ids }) => ids), together: together.map(({ ids }) => ids), where };
        },
        { backend, model, isNamed: names === "with" },
      );
      const first = Array.from({ length: 3 }, () => [20, null]);
      expect(read).toEqual([...first, ...Array.from({ length: 9 }, () => [21, "parked"])]);
      expect(together).toEqual(alone);
      expect(where).toEqual(["resident", "parked", "parked"]);
    });
  }
}

test("a title and an unrelated question between two turns cost the chat nothing @page", async ({ page, backend }) => {
  await openHarness(page);
  const { disturbed, alone } = await page.evaluate(
    async ({ backend, model }) => {
      const talk = async (isDisturbed: boolean) => {
        const engine = await harness.openEngine(backend, { sessions: { autosave: false } });
        await harness.sessions.load(engine, model);
        const { create } = engine.chat.completions;
        type Messages = Parameters<typeof create>[0]["messages"];
        const chat: Messages[number][] = [];
        const turns: { readonly answer: string | null; readonly prefilled: number; readonly source: string | null }[] = [];
        for (const question of ["What is the capital of France?", "Which currency is used in Japan?", "Where is Egypt?"]) {
          chat.push({ role: "user", content: question });
          const { choices, reuse } = await create({ messages: chat, session: "chat", temperature: 0 });
          const { content } = choices[0].message;
          turns.push({ answer: content, prefilled: reuse.prefilled, source: reuse.source });
          chat.push({ role: "assistant", content });
          if (isDisturbed) {
            await create({ messages: [...chat, { role: "user", content: "Give this a title." }], temperature: 0, max_tokens: 8 });
            await create({ messages: [{ role: "user", content: "Name a river." }], temperature: 0, max_tokens: 8 });
          }
        }
        engine.terminate();
        return turns;
      };
      return { disturbed: await talk(true), alone: await talk(false) };
    },
    { backend, model: DENSE },
  );
  expect(alone.map(({ source }) => source)).toEqual([null, "resident", "resident"]);
  expect(disturbed).toEqual(alone.map((turn) => ({ ...turn, source: turn.source === null ? null : "parked" })));
  // A question of so many tokens, and what the template puts around it.
  expect(Math.max(...alone.slice(1).map(({ prefilled }) => prefilled))).toBeLessThan(30);
});

test("sessions that exceed what memory may hold move to the browser and come back @page", async ({ page, backend }) => {
  await openHarness(page);
  const { outcomes, left } = await page.evaluate(
    async ({ backend, model }) => {
      const { load, places, Talk } = harness.sessions;
      const outcomes: unknown[] = [];
      for (const limits of [{ parked: 1 }, { parkedBytes: 1 }, { parked: 0 }]) {
        const codes: string[] = [];
        const engine = await harness.openEngine(backend, { sessions: { ...limits, debounceMs: 600_000 } });
        engine.on("session", ({ code }) => codes.push(code));
        await load(engine, model);
        const talks = [1, 2, 3].map((seed) => new Talk(seed, `chat ${seed}`));
        for (const talk of talks) {
          await talk.turn(engine, 6);
        }
        const where = places(await engine.sessions.list());
        const turns: unknown[] = [];
        for (const talk of talks) {
          const { reuse } = await talk.turn(engine, 6);
          turns.push([reuse.prefilled, reuse.source]);
        }
        outcomes.push({ where, turns, codes });
        for (const { id } of await engine.sessions.list()) {
          await engine.sessions.delete(id);
        }
        engine.terminate();
      }
      return { outcomes, left: (await (await harness.openEngine(backend)).sessions.list()).length };
    },
    { backend, model: DENSE },
  );
  const turns = Array.from({ length: 3 }, () => [7, "saved"]);
  const elsewhere = { where: { "chat 3": "resident", "chat 2": "saved", "chat 1": "saved" }, turns, codes: [] };
  expect(outcomes).toEqual([{ ...elsewhere, where: { ...elsewhere.where, "chat 2": "parked" } }, elsewhere, elsewhere]);
  expect(left).toBe(0);
});

test("what can neither stay in memory nor be saved is told of, and answers go on @page", async ({ page, backend }) => {
  await openHarness(page);
  const { dropped, where, reuse, where2 } = await page.evaluate(
    async ({ backend, model }) => {
      const { load, nextEvent, places, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { storage: "none", sessions: { parked: 1 } });
      await load(engine, model);
      const talks = [1, 2, 3].map((seed) => new Talk(seed, `chat ${seed}`));
      const event = nextEvent(engine, "dropped");
      for (const talk of talks) {
        await talk.turn(engine, 6);
      }
      const dropped = await event;
      const where = places(await engine.sessions.list());
      const { reuse } = await (talks[0] ?? new Talk(0)).turn(engine, 6);
      return { dropped, where, reuse, where2: places(await engine.sessions.list()) };
    },
    { backend, model: DENSE },
  );
  expect(dropped).toEqual({ session: "chat 1", error: "storage_unavailable" });
  expect(where).toEqual({ "chat 3": "resident", "chat 2": "parked" });
  // Six new ones, behind everything that was said before.
  expect(reuse).toMatchObject({ prefilled: 20, reused: 0, source: null });
  expect(where2).toEqual({ "chat 1": "resident", "chat 3": "parked" });
});

for (const { model, kv_cache } of KINDS) {
  for (const [way, sampling] of [["greedy", GREEDY], ["drawn", DRAWN]] as const) {
    test(`a ${way} answer of ${model} with the ${kv_cache} cache goes on in another page as in the first @page`, async ({
      persistentContext,
      backend,
    }) => {
      const params = { backend, model, kv_cache, sampling, sessions: BY_HAND, count: NEW };
      const before = await persistentContext();
      const first = await openPage(before);
      const { ids, uninterrupted } = await first.evaluate(async ({ backend, model, kv_cache, sampling, sessions, count }) => {
        const { load, Talk } = harness.sessions;
        const engine = await harness.openEngine(backend, { sessions });
        await load(engine, model, { kv_cache, context_length: 512 });
        const talk = new Talk(5, "chat");
        await talk.turn(engine, 90, sampling);
        await talk.turn(engine, 60, sampling);
        await engine.sessions.save("chat", { data: { title: "One" } });
        const ids = [...talk.ids];
        const { answer } = await talk.turn(engine, count, { ...sampling, max_tokens: 64 });
        return { ids, uninterrupted: answer };
      }, params);
      await before.close();

      const second = await openPage(await persistentContext());
      const found = await second.evaluate(
        async ({ backend, model, kv_cache, sampling, sessions, count, ids }) => {
          const { load, Talk, generate } = harness.sessions;
          const engine = await harness.openEngine(backend, { sessions });
          const listed = await engine.sessions.list();
          await load(engine, model, { kv_cache, context_length: 512 });
          // Something else in between leaves nothing behind.
          await generate(engine, [3, 1, 4, 1, 5]);
          const opened = await engine.sessions.open("chat");
          const talk = new Talk(5, "chat", ids);
          talk.skip(2);
          const { answer, reuse } = await talk.turn(engine, count, { ...sampling, max_tokens: 64 });
          return { listed: listed.map(({ id, where, data }) => ({ id, where, data })), where: opened.where, answer, reuse };
        },
        { ...params, ids },
      );
      expect(found.listed).toEqual([{ id: "chat", where: "saved", data: { title: "One" } }]);
      expect(found.where).toBe("resident");
      expect(found.reuse.prefilled).toBe(READ);
      expect(found.answer).toHaveLength(64);
      expect(found.answer).toEqual(uninterrupted);
    });
  }
}

test("a chat that was saved by itself is found without being opened @page", async ({ persistent, backend }) => {
  const params = { backend, model: HYBRID, sessions: AT_ONCE };
  await openHarness(persistent);
  const ids = await persistent.evaluate(async ({ backend, model, sessions }) => {
    const { load, nextEvent, Talk } = harness.sessions;
    const engine = await harness.openEngine(backend, { sessions });
    await load(engine, model);
    const talk = new Talk(6, "chat");
    for (let turn = 0; turn < 3; turn += 1) {
      const saved = nextEvent(engine, "saved");
      await talk.turn(engine, 6);
      await saved;
    }
    return talk.ids;
  }, params);
  await openHarness(persistent);
  const reuse = await persistent.evaluate(
    async ({ backend, model, sessions, ids }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      // By what it holds, and then by its name.
      const unnamed = await new Talk(8, undefined, ids).turn(engine, 6);
      const named = await new Talk(7, "chat", ids).turn(engine, 6);
      return [unnamed.reuse, named.reuse];
    },
    { ...params, ids },
  );
  expect(reuse.map(({ prefilled }) => prefilled)).toEqual([7, 7]);
  expect(reuse.map(({ source }) => source)).toEqual(["fork", "saved"]);
});

for (const { model, kv_cache } of KINDS) {
  test(`a snapshot of ${model} with the ${kv_cache} cache may come back in any order @page`, async ({ page, backend }) => {
    await openHarness(page);
    const { expected, answers, chunks, seed } = await page.evaluate(
      async ({ backend, model, kv_cache, sessions, count }) => {
        const { load, generate, randomIds, Talk } = harness.sessions;
        const engine = await harness.openEngine(backend, { sessions });
        await load(engine, model, { kv_cache });
        const talk = new Talk(9);
        await talk.turn(engine, 120);
        const snapshot = await engine.sessions.snapshot();
        const prompt = [...talk.ids, ...randomIds(10, count)];
        const expected = await generate(engine, prompt, { max_tokens: 64 });
        const seed = crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
        const order = randomIds(seed, snapshot.chunks.length);
        const shuffled = [...snapshot.chunks.entries()].sort(([one], [other]) => (order[one] ?? 0) - (order[other] ?? 0));
        const answers: unknown[] = [];
        for (const chunks of [snapshot.chunks, snapshot.chunks.toReversed(), shuffled.map(([, chunk]) => chunk)]) {
          await engine.reset();
          await generate(engine, [3, 1, 4, 1, 5]);
          await engine.reset();
          const asBuffers = await Promise.all(chunks.map((chunk) => chunk.arrayBuffer()));
          const info = await engine.sessions.restore({ manifest: snapshot.manifest, chunks: asBuffers }, { session: "again" });
          const { answer, reuse } = await generate(engine, prompt, { max_tokens: 64, session: "again" });
          answers.push({ answer, prefilled: reuse.prefilled, id: info.id, where: info.where });
        }
        return { expected: expected.answer, answers, chunks: snapshot.chunks.length, seed };
      },
      { backend, model, kv_cache, sessions: BY_HAND, count: NEW },
    );
    expect(chunks).toBeGreaterThan(3);
    const one = { answer: expected, prefilled: READ, id: "again", where: "resident" };
    expect(answers, `seed ${seed}`).toEqual([one, one, one]);
  });
}

test("a snapshot that is not whole or does not fit is refused with the reason, and the chat goes on @page", async ({ page, backend }) => {
  await openHarness(page);
  const { refusals, where, read, ids, expected } = await page.evaluate(
    async ({ backend, model, other, sessions }) => {
      const { load, outcome, places, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      const taken = async (model: string, kv_cache: "f32" | "kivi", seed: number) => {
        await load(engine, model, { kv_cache });
        await engine.reset();
        await new Talk(seed).turn(engine, 60);
        return engine.sessions.snapshot();
      };
      const foreign = await taken(other, "f32", 1);
      const quantised = await taken(model, "kivi", 2);
      const mixed = await taken(model, "f32", 3);
      const { manifest, chunks } = await taken(model, "f32", 4);
      const [chunk = new Blob(), ...rest] = chunks;
      const bytes = new Uint8Array(await chunk.arrayBuffer());
      const flipped = bytes.map((byte, index) => (index === 7 ? byte ^ 1 : byte));
      const bad = {
        "a chunk is cut short": { manifest, chunks: [...rest, chunk.slice(0, chunk.size - 4)] },
        "the first chunk is cut short": { manifest, chunks: [chunk.slice(0, chunk.size - 4), ...rest] },
        "a chunk is longer": { manifest, chunks: [...rest, new Blob([chunk, "more"])] },
        "a bit of the last chunk is another": { manifest, chunks: [...rest, flipped] },
        "a chunk is empty": { manifest, chunks: [...rest, new Blob()] },
        "a chunk is missing": { manifest, chunks: rest },
        "there are no chunks": { manifest, chunks: [] },
        "chunks of two snapshots": { manifest, chunks: [...rest, ...mixed.chunks.slice(0, 1)] },
        "the chunks of another snapshot": { manifest, chunks: mixed.chunks },
        "another model": foreign,
        "another kind of cache": quantised,
        "an id is another": { manifest: { ...manifest, ids: manifest.ids.map((id, at) => (at === 3 ? id + 1 : id)) }, chunks },
        "ids are missing": { manifest: { ...manifest, ids: manifest.ids.slice(0, -1) }, chunks },
        "the format is another": { manifest: { ...manifest, format: 2 }, chunks },
        "the digest is another": { manifest: { ...manifest, digest: "0".repeat(32) }, chunks },
        "a part of a chunk is another": {
          manifest: { ...manifest, chunks: manifest.chunks.map((chunk) => ({ ...chunk, offset: chunk.offset + 4 })) },
          chunks,
        },
        "the manifest is none": { manifest: {} as typeof manifest, chunks },
      };
      const talk = new Talk(20, "chat");
      await talk.turn(engine, 30);
      const begun = await engine.sessions.snapshot("chat");
      const refusals: Record<string, string> = {};
      const where: Record<string, string | undefined> = {};
      const read: number[] = [];
      for (const [name, snapshot] of Object.entries(bad)) {
        refusals[name] = await outcome(engine.sessions.restore(snapshot, { session: "other" }));
        where[name] = places(await engine.sessions.list())["chat"];
        const { reuse } = await talk.turn(engine, 0, { max_tokens: 2 });
        read.push(reuse.prefilled);
      }
      // The same turns, of which nothing was refused in between.
      await engine.sessions.restore(begun, { session: "steady" });
      const steady = new Talk(20, "steady", talk.ids.slice(0, 38));
      steady.skip(1);
      while (steady.ids.length < talk.ids.length) {
        await steady.turn(engine, 0, { max_tokens: 2 });
      }
      return { refusals, where, read, ids: talk.ids, expected: steady.ids };
    },
    { backend, model: HYBRID, other: "models/qwen35-q8_0", sessions: BY_HAND },
  );
  const corrupt = /^snapshot_corrupt: \S/;
  const mismatch = /^snapshot_mismatch: \S/;
  const others = ["another model", "another kind of cache", "the format is another"];
  for (const [name, refusal] of Object.entries(refusals)) {
    expect(refusal, name).toMatch(others.includes(name) ? mismatch : corrupt);
    expect(where[name], name).toBe("resident");
  }
  expect(refusals["another model"]).toContain("model");
  expect(refusals["another kind of cache"]).toMatch(/kivi.*f32/);
  expect(read).toEqual(read.map(() => 0));
  expect(ids).toEqual(expected);
});

test("sessions are asked for at any time, and each request waits for those before it @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, other, sessions }) => {
      const { load, generate, outcome, randomIds, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const prompt = randomIds(30, 40);
      const alone = await generate(engine, prompt, { max_tokens: 60 });
      await engine.reset();

      // During a generation.
      const run = generate(engine, prompt, { max_tokens: 60, session: "chat" });
      const during = engine.sessions.snapshot("chat");
      const list = await engine.sessions.list();
      const disturbed = await run;
      const snapshot = await during;

      // During a load, of the same model and of another.
      const restored = await Promise.all([load(engine, model), engine.sessions.restore(snapshot, { session: "again" })]);
      const { reuse } = await new Talk(31, "again", [...prompt, ...disturbed.answer]).turn(engine, 3);
      const [, refused] = await Promise.all([load(engine, other), outcome(engine.sessions.restore(snapshot))]);
      return {
        isSame: alone.answer.join() === disturbed.answer.join(),
        ids: snapshot.manifest.ids.length,
        listed: list.length <= 1,
        where: restored[1].where,
        prefilled: reuse.prefilled,
        refused: refused.split(":")[0],
      };
    },
    { backend, model: DENSE, other: HYBRID, sessions: BY_HAND },
  );
  expect(found).toEqual({ isSame: true, ids: 99, listed: true, where: "resident", prefilled: 4, refused: "snapshot_mismatch" });
});

test("a session outlives scores, kernel checks and another model @page", async ({ page, backend }) => {
  await openHarness(page);
  const read = await page.evaluate(
    async ({ backend, model, other, sessions }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(40, "chat");
      const steps = [
        () => engine.score([1, 2, 3]),
        () => engine.checkKernels("rms_norm"),
        async () => {
          await load(engine, other);
          await new Talk(41, "other chat").turn(engine, 4);
          await load(engine, model);
        },
        async () => {
          await engine.unload();
          await load(engine, model);
        },
        // Options that make no sense leave everything as it is.
        () => load(engine, model, { variant: "none" as never }).catch(() => undefined),
      ];
      const read = [(await talk.turn(engine, 4)).reuse.prefilled];
      for (const step of steps) {
        await step();
        read.push((await talk.turn(engine, 4)).reuse.prefilled);
      }
      return read;
    },
    { backend, model: DENSE, other: HYBRID, sessions: BY_HAND },
  );
  expect(read).toEqual([4, 5, 5, 5, 5, 5]);
});

test("a worker that dies takes only what was not saved @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, nextEvent, places, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const saved = new Talk(50, "saved");
      const lost = new Talk(51);
      await saved.turn(engine, 6);
      await engine.sessions.save("saved");
      await lost.turn(engine, 6);
      const dead = new Promise<void>((resolve) => engine.on("notice", () => resolve()));
      harness.workers.at(-1)?.terminate();
      await dead;
      const where = places(await engine.sessions.list());
      const again = await saved.turn(engine, 6);
      const anew = await lost.turn(engine, 6);
      const event = nextEvent(engine, "saved");
      return { where, again: again.reuse.prefilled, source: again.reuse.source, anew: anew.reuse.prefilled, event: await event };
    },
    { backend, model: DENSE, sessions: AT_ONCE },
  );
  expect(found).toEqual({ where: { saved: "saved" }, again: 7, source: "saved", anew: 20, event: { session: "saved", error: undefined } });
});

test("a device that is lost takes only what was not saved @webgpu", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(52, "chat");
      await talk.turn(engine, 20);
      await engine.sessions.save("chat");
      const lost = new Promise<void>((resolve) => engine.on("devicelost", () => resolve()));
      new BroadcastChannel("lose-gpu").postMessage(null);
      await lost;
      const { reuse } = await talk.turn(engine, 6);
      return { prefilled: reuse.prefilled, source: reuse.source };
    },
    { backend, model: DENSE, sessions: BY_HAND },
  );
  expect(found).toEqual({ prefilled: 7, source: "saved" });
});

test("a request ends a save that nobody asked for, which is taken up again @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, nextEvent, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(60, "chat");
      const read: number[] = [];
      const codes: string[] = [];
      engine.on("session", ({ code }) => codes.push(code));
      for (let turn = 0; turn < 12; turn += 1) {
        read.push((await talk.turn(engine, 6)).reuse.prefilled);
        await new Promise((resolve) => setTimeout(resolve, turn));
      }
      const saved = codes.includes("saved") ? undefined : nextEvent(engine, "saved");
      await engine.stats();
      await saved;
      await engine.sessions.save("chat");
      const [info] = await engine.sessions.list();
      return { read, failures: codes.filter((code) => code !== "saved"), tokens: info?.tokens, isSaved: info?.saved_at !== null };
    },
    { backend, model: HYBRID, sessions: AT_ONCE },
  );
  expect(found).toEqual({ read: [6, ...Array.from({ length: 11 }, () => 7)], failures: [], tokens: 12 * 14 - 1, isSaved: true });
});

test("an abort in the middle of a save leaves what was saved before @page", async ({ page, context, backend }) => {
  await openHarness(page);
  const first = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, outcome, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(70, "chat");
      await talk.turn(engine, 40);
      await engine.sessions.save("chat");
      const ids = [...talk.ids];
      await talk.turn(engine, 60);
      const outcomes: string[] = [];
      for (const delay of [0, 1, 2, 4, 8]) {
        const controller = new AbortController();
        const save = outcome(engine.sessions.save("chat", { signal: controller.signal }));
        if (delay > 0) {
          await new Promise((resolve) => setTimeout(resolve, delay));
        }
        controller.abort();
        outcomes.push(await save);
        if (outcomes.at(-1) === "ok") {
          break;
        }
      }
      const { reuse } = await talk.turn(engine, 4);
      return { ids, outcomes, prefilled: reuse.prefilled, engine: outcomes.includes("ok") };
    },
    { backend, model: HYBRID, sessions: BY_HAND },
  );
  expect(first.outcomes[0]).toBe("AbortError");
  expect(first.outcomes.slice(0, -1)).toEqual(first.outcomes.slice(0, -1).map(() => "AbortError"));
  expect(first.prefilled).toBe(5);
  const second = await openPage(context);
  const found = await second.evaluate(
    async ({ backend, model, sessions, ids }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const [info] = await engine.sessions.list();
      const { reuse } = await new Talk(71, "chat", ids).turn(engine, 4);
      return { tokens: info?.tokens, prefilled: reuse.prefilled };
    },
    { backend, model: HYBRID, sessions: BY_HAND, ids: first.ids },
  );
  if (!first.engine) {
    expect(found).toEqual({ tokens: 47, prefilled: 5 });
  } else {
    expect(found.tokens).toBe(115);
  }
});

test("two tabs save the same chat, and one of the two is there in the end @page", async ({ persistent, backend }) => {
  const context = persistent.context();
  const pages = [await openPage(context), await openPage(context)];
  const lengths = await Promise.all(
    pages.map((page, tab) =>
      page.evaluate(
        async ({ backend, model, sessions, tab }) => {
          const { load, Talk } = harness.sessions;
          const engine = await harness.openEngine(backend, { sessions });
          await load(engine, model);
          const talk = new Talk(80, "chat");
          await talk.turn(engine, 40);
          const lengths: number[] = [];
          for (let turn = 0; turn < 6; turn += 1) {
            await talk.turn(engine, 6 + tab);
            const { tokens } = await engine.sessions.save("chat", { data: { ids: talk.ids } });
            lengths.push(tokens);
          }
          return lengths;
        },
        { backend, model: HYBRID, sessions: BY_HAND, tab },
      ),
    ),
  );
  const last = await openPage(context);
  const found = await last.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const saved = await engine.sessions.list();
      const { ids } = saved[0]?.data as { readonly ids: readonly number[] };
      const { reuse } = await new Talk(81, "chat", ids).turn(engine, 4);
      return { sessions: saved.length, tokens: saved[0]?.tokens, prefilled: reuse.prefilled };
    },
    { backend, model: HYBRID, sessions: BY_HAND },
  );
  expect(found).toMatchObject({ sessions: 1, prefilled: 5 });
  expect(lengths.map((tab) => tab.at(-1))).toContain(found.tokens);
});

test("a full disk costs the save and nothing else @page", async ({ persistent, backend }) => {
  const context = persistent.context();
  await openHarness(persistent);
  const devtools = await context.newCDPSession(persistent);
  const origin = new URL(persistent.url()).origin;
  // The database asks for the quota now and then: not again before it is exceeded.
  await devtools.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 3 * MIB });
  const params = { backend, model: HYBRID, sessions: AT_ONCE };
  const ids = await persistent.evaluate(async ({ backend, model, sessions }) => {
    const { load, nextEvent, Talk } = harness.sessions;
    const engine = await harness.openEngine(backend, { sessions });
    await load(engine, model);
    const talk = new Talk(90, "chat");
    const saved = nextEvent(engine, "saved");
    await talk.turn(engine, 20);
    await saved;
    Object.assign(globalThis, { engine, talk });
    return [...talk.ids];
  }, params);

  const full = await persistent.evaluate(async () => {
    const { nextEvent, outcome } = harness.sessions;
    const { engine, talk } = globalThis as unknown as { engine: import("../../worker/dist/client.js").Engine; talk: InstanceType<typeof harness.sessions.Talk> };
    const event = nextEvent(engine, "not_saved");
    await talk.turn(engine, 800);
    const { session, error } = await event;
    const byHand = await outcome(engine.sessions.save("chat"));
    const { reuse } = await talk.turn(engine, 4);
    return { session, error, byHand, prefilled: reuse.prefilled };
  });
  expect(full).toMatchObject({ session: "chat", error: "storage_full", prefilled: 5 });
  expect(full.byHand).toMatch(/^storage_full: \S/);

  // What was saved before is whole.
  const second = await openPage(context);
  const before = await second.evaluate(
    async ({ backend, model, sessions, ids }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const { reuse } = await new Talk(91, "chat", ids).turn(engine, 4);
      engine.terminate();
      return reuse.prefilled;
    },
    { ...params, sessions: BY_HAND, ids },
  );
  expect(before).toBe(5);

  await devtools.send("Storage.overrideQuotaForOrigin", { origin });
  const after = await persistent.evaluate(async () => {
    const { engine } = globalThis as unknown as { engine: import("../../worker/dist/client.js").Engine };
    const { saved_at, tokens } = await engine.sessions.save("chat");
    return { isSaved: saved_at !== null, tokens };
  });
  expect(after).toEqual({ isSaved: true, tokens: 20 + 8 + 800 + 8 + 4 + 8 - 1 });
});

test("a database that is deleted under the page is made again @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, nextEvent, places, Talk } = harness.sessions;
      const remove = () =>
        new Promise<void>((resolve, reject) => {
          const request = indexedDB.deleteDatabase("signbit");
          request.onsuccess = () => resolve();
          request.onerror = () => reject(request.error ?? new Error("not deleted"));
        });
      const engine = await harness.openEngine(backend, { sessions: { ...sessions, parked: 1 } });
      await load(engine, model);
      const talks = [1, 2, 3].map((seed) => new Talk(seed, `chat ${seed}`));
      for (const talk of talks) {
        await talk.turn(engine, 6);
        await engine.sessions.save(`chat ${talks.indexOf(talk) + 1}`);
      }
      await remove();
      const afterwards = places(await engine.sessions.list());
      const event = nextEvent(engine, "saved");
      // The first was in the browser alone; the third is on the device.
      const first = await (talks[0] ?? new Talk(0)).turn(engine, 6);
      const third = await (talks[2] ?? new Talk(0)).turn(engine, 6);
      const saved = await event;
      return { afterwards, first: first.reuse.prefilled, third: third.reuse.prefilled, saved: saved.error };
    },
    { backend, model: DENSE, sessions: AT_ONCE },
  );
  expect(found).toEqual({ afterwards: { "chat 3": "resident", "chat 2": "parked" }, first: 20, third: 7, saved: undefined });
});

test("a file has everything that a session needs in another browser @page", async ({ page, browser, backend, baseURL }) => {
  await openHarness(page);
  const { file, ids, expected } = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(100, "chat");
      await talk.turn(engine, 40);
      await engine.sessions.save("chat", { data: { title: "Prüfung" } });
      const file = await engine.sessions.export("chat");
      const ids = [...talk.ids];
      const { answer } = await talk.turn(engine, 0, { max_tokens: 64 });
      return { file: Array.from(new Uint8Array(await file.arrayBuffer())), ids, expected: answer };
    },
    { backend, model: HYBRID, sessions: BY_HAND },
  );
  const context = await browser.newContext(baseURL === undefined ? {} : { baseURL });
  const other = await openPage(context);
  const found = await other.evaluate(
    async ({ backend, model, sessions, file, ids }) => {
      const { load, outcome, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(100, "copy", ids);
      talk.skip(1);
      const cut = await outcome(engine.sessions.import(new Blob([new Uint8Array(file.slice(0, 20_000))]), { session: "copy" }));
      const { data, where } = await engine.sessions.import(new Blob([new Uint8Array(file)]), { session: "copy" });
      const { answer, reuse } = await talk.turn(engine, 0, { max_tokens: 64 });
      return { cut: cut.split(":")[0], data, where, answer, prefilled: reuse.prefilled };
    },
    { backend, model: HYBRID, sessions: BY_HAND, file, ids },
  );
  await context.close();
  expect(found).toEqual({ cut: "snapshot_corrupt", data: { title: "Prüfung" }, where: "resident", answer: expected, prefilled: 0 });
});

test("a fork goes its own way, and the session that it came from as well @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, generate, outcome, places, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(110, "main");
      await talk.turn(engine, 30);
      // Of a session on the device, in memory, and in the browser alone.
      await engine.sessions.fork("main", "of resident");
      await generate(engine, [3, 1, 4], { session: "else" });
      await engine.sessions.fork("main", "of parked");
      await engine.sessions.save("main", { data: "kept" });
      await engine.reset();
      const { data } = await engine.sessions.fork("main", "of saved");
      const where = places(await engine.sessions.list());
      const read: number[] = [];
      for (const name of ["of saved", "main"]) {
        read.push((await new Talk(111, name, talk.ids).turn(engine, 4)).reuse.prefilled);
      }
      const refusals = [
        await outcome(engine.sessions.fork("nobody", "new")),
        await outcome(engine.sessions.fork("main", "of saved")),
        await outcome(engine.sessions.open("nobody")),
        await outcome(engine.sessions.save("nobody")),
        await outcome(engine.sessions.delete("nobody")),
        await outcome(engine.sessions.snapshot("nobody")),
        await outcome(engine.sessions.export("nobody")),
      ];
      return { data, where, read, refusals: refusals.map((refusal) => refusal.split(":")[0]) };
    },
    { backend, model: HYBRID, sessions: BY_HAND },
  );
  expect(found).toEqual({
    data: "kept",
    where: { main: "saved", "of saved": "saved" },
    read: [5, 5],
    refusals: ["session_unknown", "invalid_request", ...Array.from({ length: 5 }, () => "session_unknown")],
  });
});

test("a deleted session is nowhere any more @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, nextEvent, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talks = [1, 2].map((seed) => new Talk(seed, `chat ${seed}`));
      for (const talk of talks) {
        await talk.turn(engine, 6);
      }
      // One in memory, one on the device, both about to be saved.
      await engine.sessions.delete("chat 1");
      await engine.sessions.delete("chat 2");
      const left = await engine.sessions.list();
      const saved = nextEvent(engine, "saved");
      const read: number[] = [];
      for (const talk of talks) {
        read.push((await talk.turn(engine, 6)).reuse.prefilled);
      }
      await saved;
      return { left: left.length, read };
    },
    { backend, model: DENSE, sessions: { ...AT_ONCE, debounceMs: 50 } },
  );
  expect(found).toEqual({ left: 0, read: [20, 20] });
});

test("an edit of the last message is cheap after a restore as well @page", async ({ page, backend }) => {
  await openHarness(page);
  const read = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, outcome } = harness.sessions;
      const edit = async (isRestored: boolean) => {
        const engine = await harness.openEngine(backend, { sessions });
        await load(engine, model);
        const { create } = engine.chat.completions;
        type Messages = Parameters<typeof create>[0]["messages"];
        const chat: Messages[number][] = [];
        for (let turn = 0; turn < 4; turn += 1) {
          chat.push({ role: "user", content: `Question ${turn}: ${"tell me more about this and that, ".repeat(4)}` });
          const { choices } = await create({ messages: chat, session: "chat", temperature: 0, max_tokens: 8 });
          chat.push({ role: "assistant", content: choices[0].message.content ?? "" });
        }
        if (isRestored) {
          const snapshot = await engine.sessions.snapshot("chat");
          await engine.sessions.delete("chat");
          await engine.sessions.restore(snapshot, { session: "chat" });
        }
        const edited = [...chat.slice(0, -2), { role: "user" as const, content: "Something else." }];
        const { reuse, usage } = await create({ messages: edited, session: "chat", temperature: 0, max_tokens: 8 });
        await outcome(engine.sessions.delete("chat"));
        engine.terminate();
        return { prefilled: reuse.prefilled, prompt: usage.prompt_tokens };
      };
      return [await edit(false), await edit(true)];
    },
    { backend, model: HYBRID, sessions: BY_HAND },
  );
  expect(read[1]).toEqual(read[0]);
  expect(read[0]?.prefilled).toBeLessThan((read[0]?.prompt ?? 0) / 2);
});

test("without storage everything but saving works @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model }) => {
      const { load, outcome, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { storage: "none" });
      await load(engine, model);
      const talks = [1, 2].map((seed) => new Talk(seed, `chat ${seed}`));
      const read: number[] = [];
      for (const talk of [...talks, ...talks]) {
        read.push((await talk.turn(engine, 6)).reuse.prefilled);
      }
      return { read, save: await outcome(engine.sessions.save("chat 1")), kept: (await indexedDB.databases()).length };
    },
    { backend, model: DENSE },
  );
  expect(found.read).toEqual([6, 6, 7, 7]);
  expect(found.save).toMatch(/^storage_unavailable: .*none/);
});

test("a session that was only looked at is kept when the model goes @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, places, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions: { ...sessions, parked: 1 } });
      await load(engine, model);
      const first = new Talk(1, "chat 1");
      await first.turn(engine, 60);
      await new Talk(2, "chat 2").turn(engine, 60);
      await engine.sessions.open("chat 1");
      await engine.unload();
      await load(engine, model);
      const where = places(await engine.sessions.list());
      const { reuse } = await first.turn(engine, 6);
      return { where, prefilled: reuse.prefilled };
    },
    { backend, model: DENSE, sessions: BY_HAND },
  );
  expect(found).toEqual({ where: { "chat 1": "parked" }, prefilled: 7 });
});

test("what counts of a session is its newest copy, in memory or in the browser @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      const talk = new Talk(1, "chat");
      await talk.turn(engine, 60);
      await new Talk(2, "else").turn(engine, 6);
      // In memory as it was, in the browser as it is.
      await talk.turn(engine, 6);
      await engine.sessions.save("chat");
      await engine.unload();
      await load(engine, model);
      const { tokens } = await engine.sessions.open("chat");
      // The other way round.
      await talk.turn(engine, 6);
      await engine.sessions.open("else");
      const again = await engine.sessions.open("chat");
      return [tokens, again.tokens];
    },
    { backend, model: DENSE, sessions: BY_HAND },
  );
  expect(found).toEqual([60 + 8 + 6 + 8 - 1, 60 + 8 + 6 + 8 + 6 + 8 - 1]);
});

test("a session whose saved copy another tab has removed is kept when the model goes @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, places, Talk } = harness.sessions;
      const [engine, other] = [await harness.openEngine(backend, { sessions }), await harness.openEngine(backend, { sessions })];
      await load(engine, model);
      await new Talk(1, "chat").turn(engine, 60);
      await engine.sessions.save("chat");
      await other.sessions.delete("chat");
      await engine.unload();
      await load(engine, model);
      return places(await engine.sessions.list());
    },
    { backend, model: DENSE, sessions: BY_HAND },
  );
  expect(found).toEqual({ chat: "parked" });
});

test("without a database sessions in memory work, and only saving is refused @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model }) => {
      const { load, outcome, places, Talk } = harness.sessions;
      // What no older version of the page can open.
      await new Promise<void>((resolve, reject) => {
        const request = indexedDB.open("signbit", 99);
        request.onsuccess = () => resolve(request.result.close());
        request.onerror = () => reject(request.error ?? new Error("not opened"));
      });
      const engine = await harness.openEngine(backend, { sessions: { debounceMs: 600_000 } });
      const codes: string[] = [];
      engine.on("session", ({ code }) => codes.push(code));
      await load(engine, model);
      const talk = new Talk(1, "chat 1");
      await talk.turn(engine, 20);
      await new Talk(2, "chat 2").turn(engine, 20);
      const snapshot = await engine.sessions.snapshot("chat 2");
      const outcomes = [
        await outcome(engine.sessions.open("chat 1")),
        await outcome(engine.sessions.fork("chat 1", "fork")),
        await outcome(engine.sessions.restore(snapshot, { session: "copy" })),
        await outcome(engine.sessions.delete("chat 2")),
        await outcome(engine.sessions.delete("copy")),
      ];
      const save = await outcome(engine.sessions.save("fork"));
      const where = places(await engine.sessions.list());
      const { reuse } = await talk.turn(engine, 6);
      return { outcomes, save: save.split(":")[0], where, source: reuse.source, codes };
    },
    { backend, model: DENSE },
  );
  expect(found).toEqual({
    outcomes: ["ok", "ok", "ok", "ok", "ok"],
    save: "storage_unavailable",
    where: { fork: "parked", "chat 1": "parked" },
    source: "parked",
    codes: [],
  });
});

test("what makes room is never the session that is opened, nor what was saved by hand @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model }) => {
      const { load, outcome, places, Talk } = harness.sessions;
      const first = await harness.openEngine(backend, { sessions: { autosave: false } });
      await load(first, model);
      await new Talk(9).turn(first, 100);
      const bytes = (await first.sessions.list())[0]?.bytes ?? 0;
      first.terminate();
      // One session has room in the browser, none in memory.
      const engine = await harness.openEngine(backend, { sessions: { parkedBytes: 1, savedBytes: 1.5 * bytes, debounceMs: 600_000 } });
      await load(engine, model);
      await new Talk(1, "chat 1").turn(engine, 100);
      await new Talk(2, "chat 2").turn(engine, 100);
      const opened = await outcome(engine.sessions.open("chat 1"));
      await engine.sessions.save("chat 2", { data: "kept" });
      for (const seed of [3, 4]) {
        await new Talk(seed, `chat ${seed}`).turn(engine, 100);
      }
      const infos = await engine.sessions.list();
      return { opened, where: places(infos), data: infos.find(({ id }) => id === "chat 2")?.data };
    },
    { backend, model: HYBRID },
  );
  expect(found).toEqual({ opened: "ok", where: { "chat 4": "resident", "chat 3": "saved", "chat 2": "saved" }, data: "kept" });
});

test("what is restored takes the place of a session and of its data @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      await load(engine, model);
      await new Talk(1, "chat").turn(engine, 20);
      await engine.sessions.save("chat", { data: "of the old chat" });
      await new Talk(2, "other").turn(engine, 60);
      const { manifest, chunks } = await engine.sessions.snapshot("other");
      const restored = await engine.sessions.restore({ manifest, chunks }, { session: "chat" });
      const saved = await engine.sessions.save("chat");
      return [restored, saved].map(({ tokens, data }) => ({ tokens, data }));
    },
    { backend, model: DENSE, sessions: BY_HAND },
  );
  expect(found).toEqual([{ tokens: 67, data: undefined }, { tokens: 67, data: undefined }]);
});

test("what is no name, no snapshot and no size of chunks is refused, and the chat goes on @page", async ({ page, backend }) => {
  await openHarness(page);
  const { names, values, sizes, prefilled, notices } = await page.evaluate(
    async ({ backend, model, sessions }) => {
      const { load, generate, outcome, Talk } = harness.sessions;
      const engine = await harness.openEngine(backend, { sessions });
      const notices: string[] = [];
      engine.on("notice", ({ message }) => notices.push(message));
      await load(engine, model);
      const talk = new Talk(1, "chat");
      await talk.turn(engine, 20);
      const { manifest } = await engine.sessions.snapshot("chat");
      const names: string[] = [];
      for (const name of [5, null, {}, "\ud800"] as unknown as string[]) {
        const { save, open, delete: remove, fork, snapshot, restore, export: pack } = engine.sessions;
        const generation = generate(engine, [3, 1, 4], { session: name });
        const calls = [save(name), open(name), remove(name), fork("chat", name), fork(name, "new"), snapshot(name), pack(name)];
        const restored = restore({ manifest, chunks: [] }, { session: name });
        for (const call of [generation, ...calls, restored]) {
          names.push((await outcome(call)).split(":")[0] ?? "");
        }
      }
      names.push((await outcome(engine.sessions.open(undefined as never))).split(":")[0] ?? "");
      const values: string[] = [];
      for (const value of [undefined, {}, { manifest: null, chunks: [] }, { manifest }, { manifest, chunks: ["text"] }]) {
        values.push((await outcome(engine.sessions.restore(value as never))).split(":")[0] ?? "");
      }
      values.push((await outcome(engine.sessions.import("text" as never))).split(":")[0] ?? "");
      const large = new Blob([new Uint8Array(16_000_001)]);
      values.push(await outcome(engine.sessions.restore({ manifest, chunks: [large] })));
      const sizes: string[] = [];
      for (const chunkBytes of [0, 3, 4092, 4098, 16_000_004, Number.NaN]) {
        sizes.push((await outcome(harness.openEngine(backend, { sessions: { chunkBytes } }))).split(":")[0] ?? "");
      }
      const { reuse } = await talk.turn(engine, 6);
      return { names, values, sizes, prefilled: reuse.prefilled, notices };
    },
    { backend, model: DENSE, sessions: BY_HAND },
  );
  expect(new Set([...names, ...values.slice(0, -1), ...sizes])).toEqual(new Set(["invalid_request"]));
  expect(values.at(-1)).toMatch(/^snapshot_corrupt: a chunk has 16000001 bytes/);
  expect(prefilled).toBe(7);
  expect(notices).toEqual([]);
});

test("sessions that save themselves keep to their bytes, and those without a name go first @page", async ({ page, backend }) => {
  await openHarness(page);
  const found = await page.evaluate(
    async ({ backend, model }) => {
      const { load, places, Talk } = harness.sessions;
      const first = await harness.openEngine(backend, { sessions: { autosave: false } });
      await load(first, model);
      await new Talk(9).turn(first, 100);
      const bytes = (await first.sessions.list())[0]?.bytes ?? 0;
      first.terminate();
      // Two sessions of this size have room.
      const sessions = { parkedBytes: 1, savedBytes: 2.5 * bytes, debounceMs: 600_000 };
      const engine = await harness.openEngine(backend, { sessions });
      const dropped: string[] = [];
      engine.on("session", (event) => event.code === "dropped" && dropped.push(event.session));
      await load(engine, model);
      const ids: (string | undefined)[] = [];
      for (const [seed, name] of ["named", undefined, undefined, undefined].entries()) {
        await new Talk(seed, name).turn(engine, 100);
        ids.push((await engine.sessions.list())[0]?.id);
      }
      const where = places(await engine.sessions.list());
      return { where: ids.map((id = "") => where[id]), dropped: dropped.map((id) => ids.indexOf(id)) };
    },
    { backend, model: HYBRID },
  );
  expect(found).toEqual({ where: ["saved", undefined, "saved", "resident"], dropped: [1] });
});
