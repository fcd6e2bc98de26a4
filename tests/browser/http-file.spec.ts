/** Files read over HTTP from servers that behave, and from such as are met in the world (`faults.mjs`). */

import type { Page } from "@playwright/test";
import type { ReadOptions, ReadOutcome } from "./harness/dist/http.js";
import { expect, openHarness, test as base } from "./test.js";

const SIZE = 300_000;
const SEED = 7;
const FILE = `/generated/${SIZE}`;
const ORIGINAL = `${FILE}?seed=${SEED}`;
/** A file of which no connection can hold all that nobody reads. */
const HUGE = 64_000_000;
const WHOLE = { bytes: SIZE, is_true: true, failure: null };

type Faults = Readonly<Record<string, string | number>>;
type Plain = Omit<ReadOptions, "fetch">;

/** A request as the server has seen it. */
interface Logged {
  readonly method: string;
  readonly host: string;
  readonly range: string | null;
  readonly status: number;
  readonly sent: number;
  readonly state: "open" | "ended" | "broken";
}

/** A file with faults, and the server's log of the requests for it. */
interface Faulty {
  /** Of the page's own origin, or of the other one. */
  address(faults?: Faults, at?: { readonly isForeign?: boolean; readonly file?: string }): string;
  log(): Promise<readonly Logged[]>;
}

const test = base.extend<{ faulty: Faulty }>({
  faulty: async ({ request, baseURL }, use) => {
    const id = crypto.randomUUID();
    const { port } = new URL(baseURL ?? "");
    await use({
      address: (faults = {}, { isForeign = false, file = FILE } = {}) => {
        const origin = `http://127.0.0.1:${Number(port) + (isForeign ? 1 : 0)}`;
        return `${origin}/faults/${id}${file}?${query({ seed: SEED, ...faults })}`;
      },
      log: async () => (await request.get(`/log/${id}`)).json(),
    });
  },
});

test.beforeEach(async ({ page, tolerated }) => {
  // Chromium reports on the console what the tests ask for.
  tolerated.push(/Failed to load resource/, /blocked by CORS policy/);
  await openHarness(page);
});

function query(values: Faults): string {
  return new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)])).toString();
}

function read(page: Page, url: string, options: Plain = {}, original = ORIGINAL): Promise<ReadOutcome> {
  return page.evaluate(([url, original, options]) => harness.http.read(url, original, options), [url, original, options] as const);
}

function probe(page: Page, url: string, options: Plain = {}): Promise<ReadOutcome> {
  return page.evaluate(([url, options]) => harness.http.probe(url, options), [url, options] as const);
}

function ranges(log: readonly Logged[]): (string | null)[] {
  return log.map(({ range }) => range);
}

async function expectAllClosed(faulty: Faulty): Promise<void> {
  await expect.poll(async () => (await faulty.log()).map(({ state }) => state)).not.toContain("open");
}

const IDENTITY = { bytes: SIZE, etag: `"${SEED}-${SIZE}"`, last_modified: "Thu, 08 Jan 2026 00:00:00 GMT" };

test("a whole file is one plain request @page", async ({ page, faulty }) => {
  const url = faulty.address();
  expect(await read(page, url)).toEqual({ ...WHOLE, identity: { url, ...IDENTITY } });
  expect(await faulty.log()).toMatchObject([{ method: "GET", range: null, status: 200, sent: SIZE, state: "ended" }]);
});

test("a part of a file is a request for that part @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address(), { start: 1000 })).toMatchObject({ bytes: SIZE - 1000, is_true: true, failure: null });
  expect(await read(page, faulty.address(), { start: 1000, end: 3000 })).toMatchObject({ bytes: 2000, is_true: true });
  expect(await read(page, faulty.address(), { start: 0, end: 10 })).toMatchObject({ bytes: 10, is_true: true });
  // To an end behind that of the file.
  expect(await read(page, faulty.address(), { start: SIZE - 5, end: SIZE + 5 })).toMatchObject({ bytes: 5, failure: null });
  expect(await read(page, faulty.address(), { start: 9, end: 9 })).toMatchObject({ bytes: 0, failure: null });
  const log = await faulty.log();
  expect(ranges(log)).toEqual(["bytes=1000-", "bytes=1000-2999", "bytes=0-9", `bytes=${SIZE - 5}-${SIZE + 4}`]);
  expect(log.map(({ sent }) => sent)).toEqual([SIZE - 1000, 2000, 10, 5]);
});

test("a probe reads the identity and nothing else @page", async ({ page, faulty }) => {
  const url = faulty.address();
  expect(await probe(page, url)).toMatchObject({ identity: { url, ...IDENTITY }, failure: null });
  expect(await faulty.log()).toMatchObject([{ range: "bytes=0-0", status: 206, sent: 1 }]);

  // Where the whole file is the answer, it is not waited for.
  const huge = faulty.address({ ranges: "none" }, { file: `/generated/${HUGE}` });
  expect(await probe(page, huge)).toMatchObject({ identity: { bytes: HUGE }, failure: null });
  await expectAllClosed(faulty);
  const sent = (await faulty.log()).at(-1)?.sent;
  expect(sent).toBeLessThan(HUGE);
});

test("an empty file is empty @page", async ({ page, faulty }) => {
  const url = faulty.address({}, { file: "/generated/0" });
  expect(await read(page, url)).toMatchObject({ bytes: 0, identity: { bytes: 0 }, failure: null });
  expect(await probe(page, url)).toMatchObject({ identity: { bytes: 0 }, failure: null });
});

test("a connection that ends every N bytes is made again where it ended @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address({ drop: 70_000 }))).toMatchObject(WHOLE);
  const log = await faulty.log();
  expect(log.length).toBeGreaterThanOrEqual(Math.ceil(SIZE / 70_000));
  const starts = log.map(({ range }) => Number(/^bytes=(\d+)-$/.exec(range ?? "bytes=0-")?.[1]));
  for (const [index, start] of starts.entries()) {
    const before = starts[index - 1] ?? 0;
    // A browser may drop what has arrived together with the connection, and then nothing has come.
    expect(start).toBeGreaterThanOrEqual(before);
    expect(start).toBeLessThanOrEqual(before + 70_000);
  }
});

test("reading that is cut short at ten places goes on at each, and gets every byte once @page", async ({ page, faulty }) => {
  const seed = Date.now() % 1_000_000;
  console.log(`seed ${seed}`);
  const outcome = await page.evaluate(
    async ([url, original, seed]) => {
      const truth = new Uint8Array(await (await fetch(original)).arrayBuffer());
      let state = seed;
      let known: Awaited<ReturnType<typeof harness.http.read>>["identity"] = null;
      const got: number[] = [];
      for (let round = 0; got.length < truth.length; round += 1) {
        const file = new harness.http.HttpFile(url, {}, known ?? undefined);
        const controller = new AbortController();
        state = (state * 48_271 + 11) % 0x7fff_ffff;
        const enough = round < 10 ? state % (truth.length / 10) : Infinity;
        let inRound = 0;
        try {
          for await (const piece of file.read(got.length, undefined, controller.signal)) {
            for (const byte of piece) {
              got.push(byte);
            }
            inRound += piece.length;
            if (inRound > enough) {
              controller.abort();
            }
          }
        } catch (error) {
          if (!(error instanceof DOMException && error.name === "AbortError")) {
            throw error;
          }
        }
        known = file.identity ?? null;
      }
      return { bytes: got.length, isTrue: got.every((byte, index) => byte === truth[index]) };
    },
    // Slowly, or the first rounds would get all of it.
    [faulty.address({ rate: 400 }), ORIGINAL, seed] as const,
  );
  expect(outcome).toEqual({ bytes: SIZE, isTrue: true });
  const log = await faulty.log();
  expect(log.length).toBeGreaterThan(2);
  expect(new Set(ranges(log)).size).toBe(log.length);
});

test("a server without ranges is read by plain answers, of which the known part is passed over @page", async ({ page, faulty }) => {
  const url = faulty.address({ ranges: "none", drop: 100_000, drops: 1 });
  expect(await read(page, url)).toMatchObject(WHOLE);
  expect(await read(page, url, { start: 123_456 })).toMatchObject({ bytes: SIZE - 123_456, is_true: true, failure: null });
  expect(await read(page, url, { start: 200, end: 700 })).toMatchObject({ bytes: 500, is_true: true, failure: null });
  expect((await faulty.log()).map(({ status }) => status)).toEqual([200, 200, 200, 200]);
});

test("a server without ranges that never comes far is given up @page", async ({ page, faulty }) => {
  const outcome = await read(page, faulty.address({ ranges: "none", drop: 100_000 }), { attempts: 3 });
  expect(outcome).toMatchObject({ is_true: true, failure: { code: "network" } });
  expect(outcome.failure?.message).toMatch(/broke off after \d+ bytes/);
});

test("a part that tells another total is not taken @page", async ({ page, faulty }) => {
  const outcome = await read(page, faulty.address({ drop: 100_000, total: SIZE + 1 }));
  expect(outcome).toMatchObject({ is_true: true, failure: { name: "SourceChanged", now: { bytes: SIZE + 1 } } });
  expect(outcome.bytes).toBeLessThanOrEqual(100_000);
});

test("a part that begins elsewhere is not taken, and the whole file is @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address({ shift: 10 }), { start: 1000 })).toMatchObject({ bytes: SIZE - 1000, is_true: true, failure: null });
  expect(ranges(await faulty.log())).toEqual(["bytes=1000-", null]);
});

test("a part that answers a plain request is refused @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address({ part: 1 }))).toMatchObject({ bytes: 0, failure: { code: "network" } });
  expect(await faulty.log()).toHaveLength(1);
});

test("416 is the end of the file, a shorter file, or a server that refuses ranges @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address(), { start: SIZE })).toMatchObject({ bytes: 0, identity: { bytes: SIZE }, failure: null });
  const known = { url: "", bytes: SIZE + 9, etag: null, last_modified: null };
  expect(await read(page, faulty.address(), { start: SIZE, known })).toMatchObject({
    failure: { name: "SourceChanged", now: { bytes: SIZE } },
  });
  expect(await read(page, faulty.address({ ranges: "416" }), { start: 1000 })).toMatchObject({
    bytes: SIZE - 1000,
    is_true: true,
    failure: null,
  });
  expect((await faulty.log()).map(({ status }) => status)).toEqual([416, 416, 416, 200]);
});

for (const html_type of ["text/html; charset=utf-8", "application/octet-stream"]) {
  test(`a web page of the type ${html_type} is no model, and no other version of one @page`, async ({ page, faulty }) => {
    const failure = { code: "weights_invalid", message: expect.stringContaining("is a web page, not a model") };
    expect(await read(page, faulty.address({ html: 0, html_type }))).toMatchObject({ bytes: 0, failure });
    expect(await probe(page, faulty.address({ html: 0, html_type }))).toMatchObject({ failure });
    // In the middle of a file.
    const known = { url: "", bytes: SIZE, etag: '"known"', last_modified: null };
    expect(await read(page, faulty.address({ html: 0, html_type }), { start: 1000, known })).toMatchObject({ bytes: 0, failure });
    expect(await faulty.log()).toHaveLength(3);
  });
}

test("a redirect to another origin is asked for anew, and signed anew, each time @page", async ({ page, faulty }) => {
  const url = faulty.address({ redirect: query({ seed: SEED, drop: 100_000, uses: 1 }) });
  const outcome = await read(page, url);
  expect(outcome).toMatchObject(WHOLE);
  expect(outcome.identity?.url).toContain("&signature=");
  const log = await faulty.log();
  expect(log.filter(({ status }) => status === 302)).toHaveLength(log.length / 2);
  expect(log.filter(({ status }) => status === 403)).toEqual([]);
  expect(log.filter(({ method }) => method === "OPTIONS")).toEqual([]);
});

for (const expiry of [{ uses: 1 }, { quota: 100_000 }] as const) {
  test(`a signed address that expires half way says so, and keeps its secret (${Object.keys(expiry).join()}) @page`, async ({ page, faulty }) => {
    const outcome = await read(page, faulty.address({ drop: 100_000, signature: "secret", ...expiry }));
    expect(outcome).toMatchObject({ is_true: true, failure: { code: "network" } });
    expect(outcome.failure?.message).toMatch(/answered 403 Forbidden$/);
    expect(outcome.failure?.hint).toMatch(/expired.+kept.+fresh address/);
    expect(JSON.stringify(outcome.failure)).not.toContain("secret");
    // An expired address does not get better by asking.
    expect((await faulty.log()).filter(({ status }) => status === 403)).toHaveLength(1);
  });
}

test("a redirect to a server that other sites may not read names the reason @page", async ({ page, faulty }) => {
  const outcome = await read(page, faulty.address({ redirect: query({ seed: SEED, cors: "none" }) }), { attempts: 2 });
  expect(outcome).toMatchObject({ bytes: 0, failure: { code: "network", hint: expect.stringContaining("CORS") } });
  expect(outcome.failure?.message).toContain("could not be reached");
});

test("a server that refuses ranges to other sites is read by plain answers @page", async ({ page, faulty }) => {
  const url = faulty.address({ ranges: "hidden" }, { isForeign: true });
  const rest = { bytes: SIZE - 1000, is_true: true, failure: null };
  expect(await read(page, url, { start: 1000, attempts: 1 })).toMatchObject(rest);
  // The part, the whole, once more the part to be sure; then the whole that was there already.
  expect(ranges(await faulty.log())).toEqual(["bytes=1000-", null, "bytes=1000-"]);
  expect(await probe(page, url)).toMatchObject({ identity: { bytes: SIZE }, failure: null });
  const dropping = faulty.address({ ranges: "hidden", drop: 100_000, drops: 9 }, { isForeign: true });
  expect(await read(page, dropping, { attempts: 9 })).toMatchObject(WHOLE);
});

test("a browser that asks for permission to send ranges, and is refused it, reads plain answers @page", async ({ page, faulty }) => {
  const outcome = await page.evaluate(
    ([url, original]) => {
      // As browsers did to which a range was a header like any other.
      const asking: typeof fetch = (input, init) => {
        const headers = new Headers(init?.headers);
        if (headers.has("range")) {
          headers.set("x-asks", "1");
        }
        return fetch(input, { ...init, headers });
      };
      return harness.http.read(url, original, { fetch: asking, start: 1000 });
    },
    [faulty.address({ preflight: "refused" }, { isForeign: true }), ORIGINAL] as const,
  );
  expect(outcome).toMatchObject({ bytes: SIZE - 1000, is_true: true, failure: null });
  expect((await faulty.log()).map(({ method }) => method)).toEqual(["OPTIONS", "GET", "OPTIONS"]);
});

test("an outage at the first request for a part does not give up parts @page", async ({ page, faulty }) => {
  const outcome = await page.evaluate(
    ([url, original]) => {
      let calls = 0;
      const failing: typeof fetch = (input, init) => {
        calls += 1;
        return calls === 1 ? Promise.reject(new TypeError("offline")) : fetch(input, init);
      };
      return harness.http.read(url, original, { fetch: failing, start: 1000 });
    },
    [faulty.address(), ORIGINAL] as const,
  );
  expect(outcome).toMatchObject({ bytes: SIZE - 1000, is_true: true, failure: null });
  expect(ranges(await faulty.log())).toEqual([null, "bytes=1000-"]);
});

test("a server that hides its headers from other sites is read, and resumed, all the same @page", async ({ page, faulty }) => {
  const at = { isForeign: true };
  const outcome = await read(page, faulty.address({ expose: "none", drop: 100_000 }, at));
  expect(outcome).toMatchObject({ ...WHOLE, identity: { bytes: SIZE, etag: null, last_modified: IDENTITY.last_modified } });
  expect(await probe(page, faulty.address({ expose: "none" }, at))).toMatchObject({ identity: { bytes: SIZE, etag: null } });
  const changed = faulty.address({ expose: "none", change: "size", after: 0 }, at);
  expect(await read(page, changed, { start: 1000, known: { url: "", bytes: SIZE, etag: null, last_modified: null } })).toMatchObject({
    bytes: 0,
    failure: { name: "SourceChanged", now: { bytes: SIZE - 1 } },
  });
});

test("a connection that stands still is made again @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address({ stall: 100_000, stalls: 1 }), { stall_ms: 300 })).toMatchObject(WHOLE);
  await expectAllClosed(faulty);
});

test("a server that is silent at first is asked again @page", async ({ page, faulty }) => {
  expect(await read(page, faulty.address({ silent: 2 }), { stall_ms: 300 })).toMatchObject(WHOLE);
  await expectAllClosed(faulty);
});

test("a server that never gives anything is given up @page", async ({ page, faulty }) => {
  const outcome = await read(page, faulty.address({ stall: 0 }), { stall_ms: 200, attempts: 3 });
  expect(outcome).toMatchObject({ bytes: 0, failure: { code: "network" } });
  expect(outcome.failure?.message).toContain("stood still for 0.2 s after 0 bytes");
  expect(await faulty.log()).toHaveLength(3);
  await expectAllClosed(faulty);
});

test("a slow server is waited for as long as it lives @page", async ({ page, faulty }) => {
  // A piece of 16 KiB each eighth of a second, and all of it in longer than is waited for one.
  expect(await read(page, faulty.address({ rate: 128 }), { stall_ms: 2000 })).toMatchObject(WHOLE);
  expect(await faulty.log()).toHaveLength(1);
});

test("a reader that takes its time is not taken for a server that stands still @page", async ({ page, faulty }) => {
  const bytes = await page.evaluate(async (url) => {
    const file = new harness.http.HttpFile(url, { stall_ms: 300 });
    let bytes = 0;
    for await (const piece of file.read(0, undefined, new AbortController().signal)) {
      if (bytes === 0) {
        await new Promise((resolve) => setTimeout(resolve, 600));
      }
      bytes += piece.length;
    }
    return bytes;
  }, faulty.address());
  expect(bytes).toBe(SIZE);
  expect(await faulty.log()).toHaveLength(1);
});

test("a busy server is asked again when it says @page", async ({ page, faulty }) => {
  const start = performance.now();
  expect(await read(page, faulty.address({ status: 503, first: 1, retry_after: 1 }))).toMatchObject(WHOLE);
  // Sooner would be against the server's word, however fast the machine.
  expect(performance.now() - start).toBeGreaterThan(1000);
  expect((await faulty.log()).map(({ status }) => status)).toEqual([503, 200]);
});

test("statuses that pass are met with further attempts, others are taken at their word @page", async ({ page, faulty }) => {
  for (const { status, requests } of [
    { status: 425, requests: 3 },
    { status: 429, requests: 3 },
    { status: 500, requests: 3 },
    { status: 503, requests: 3 },
    { status: 401, requests: 1 },
    { status: 403, requests: 1 },
    { status: 404, requests: 1 },
    { status: 410, requests: 1 },
  ]) {
    const before = (await faulty.log()).length;
    const { bytes, failure } = await read(page, faulty.address({ status, signature: "secret" }), { attempts: 3 });
    expect({ bytes, code: failure?.code }).toEqual({ bytes: 0, code: "network" });
    expect(failure?.message).toContain(`${FILE} answered ${status} `);
    expect(JSON.stringify(failure)).not.toContain("secret");
    expect((await faulty.log()).length - before, `${status}`).toBe(requests);
  }
});

for (const { change, faults, now } of [
  { change: "etag", faults: {}, now: { etag: '"another"' } },
  { change: "etag,content", faults: { modified: "none" }, now: { etag: '"another"' } },
  { change: "modified", faults: { etag: "none" }, now: { etag: null, last_modified: "Mon, 01 Jun 2026 00:00:00 GMT" } },
  { change: "size", faults: { etag: "none", modified: "none" }, now: { bytes: SIZE - 1 } },
]) {
  test(`a file whose ${change} changes on the way is not mixed with the old one @page`, async ({ page, faulty }) => {
    const outcome = await read(page, faulty.address({ ...faults, change, drop: 100_000 }));
    expect(outcome).toMatchObject({ is_true: true, failure: { name: "SourceChanged", now } });
    expect(outcome.bytes).toBeLessThanOrEqual(100_000);
    const whole = await read(page, faulty.address({ ...faults, change, drop: 100_000, ranges: "none" }), {
      start: 1000,
      known: { url: "", ...IDENTITY },
    });
    expect(whole).toMatchObject({ bytes: 0, failure: { name: "SourceChanged", now } });
  });
}

test("a file is compared with what was known of it before the first byte @page", async ({ page, faulty }) => {
  const url = faulty.address();
  for (const start of [0, 1000]) {
    expect(await read(page, url, { start, known: { url: "", ...IDENTITY, etag: '"older"' } })).toMatchObject({
      bytes: 0,
      failure: { name: "SourceChanged", now: { url, ...IDENTITY } },
    });
  }
  expect(await probe(page, url, { known: { url: "", ...IDENTITY, bytes: 5 } })).toMatchObject({ failure: { name: "SourceChanged" } });
  // Another address or another date is no other file where the ETags agree, and weak ones agree with strong ones.
  const known = { url: "http://elsewhere.test/", bytes: null, etag: `W/${IDENTITY.etag}`, last_modified: "Fri, 01 Jan 2016 00:00:00 GMT" };
  expect(await read(page, url, { start: 1000, known })).toMatchObject({ bytes: SIZE - 1000, failure: null });
  expect(await read(page, faulty.address({ etag: "weak" }), { known: { url: "", ...IDENTITY } })).toMatchObject(WHOLE);
});

test("without a length a proper end is the end, and an early one is not where the size is known @page", async ({ page, faulty }) => {
  const url = faulty.address({ length: "none" });
  expect(await read(page, url)).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
  const cut = faulty.address({ length: "none", cut: 200_000 });
  expect(await read(page, cut)).toMatchObject({ bytes: 200_000, identity: { bytes: 200_000 }, failure: null });
  expect(await read(page, cut, { known: { url: "", ...IDENTITY } })).toMatchObject(WHOLE);
  expect(await read(page, url, { known: { url: "", ...IDENTITY, bytes: 200_000 } })).toMatchObject({
    failure: { name: "SourceChanged" },
  });
});

test("the one byte of a probe never becomes the file @page", async ({ page, faulty }) => {
  const url = faulty.address({ length: "none", etag: "none", expose: "none" }, { isForeign: true });
  expect(await probe(page, url)).toMatchObject({ identity: { bytes: null }, failure: null });
  expect(await read(page, url)).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
  expect((await faulty.log()).map(({ range }) => range)).toEqual(["bytes=0-0", null, null]);
});

test("a compressed answer is the file, and resumed where it breaks off @page", async ({ page, faulty }) => {
  const packed = faulty.address({ encoding: "gzip", drop: 100_000, drops: 1 });
  expect(await read(page, packed)).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
  const log = await faulty.log();
  expect(log.length).toBe(2);
  // Parts of a compressed file are of no use.
  const always = faulty.address({ encoding: "always" });
  expect(await read(page, always, { start: 1000 })).toMatchObject({ bytes: SIZE - 1000, is_true: true, failure: null });
  expect(await read(page, always)).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
});

test("the length of a file that another site compresses unseen is not the file's size @page", async ({ page, faulty }) => {
  const at = { isForeign: true };
  const packed = { encoding: "gzip", expose: "none" };
  // Noise gets longer. The date says that it is the same file when its size turns out to be another.
  expect(await read(page, faulty.address(packed, at))).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
  expect(await read(page, faulty.address({ ...packed, ranges: "none" }, at))).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
  expect(await read(page, faulty.address({ ...packed, drop: 100_000 }, at))).toMatchObject({ ...WHOLE, identity: { bytes: SIZE } });
  // Text gets shorter.
  const text = "/tests/golden/tiny-geo/answers.json";
  const bytes = (await (await page.request.get(text)).body()).length;
  const whole = { bytes, is_true: true, failure: null, identity: { bytes } };
  expect(await read(page, faulty.address(packed, { ...at, file: text }), {}, text)).toMatchObject(whole);
  expect(await read(page, faulty.address({ ...packed, modified: "none" }, { ...at, file: text }), {}, text)).toMatchObject(whole);
});

for (const { where, faults, abort_at } of [
  { where: "before the answer", faults: { silent: 9 }, abort_at: -1 },
  { where: "while nothing comes", faults: { stall: 100_000 }, abort_at: -1 },
  { where: "before another attempt", faults: { status: 503 }, abort_at: -1 },
  { where: "between two pieces", faults: {}, abort_at: 1 },
]) {
  test(`an abort ${where} rejects at once and ends the transfer @page`, async ({ page, faulty }) => {
    const url = faulty.address(faults, { file: `/generated/${HUGE}` });
    if (abort_at > 0) {
      expect(await read(page, url, { abort_at })).toMatchObject({ failure: { name: "AbortError" } });
    } else {
      await page.evaluate((url) => {
        const controller = new AbortController();
        const file = new harness.http.HttpFile(url, { stall_ms: 1e9, backoff_ms: 1e9 });
        const reading = (async () => {
          for await (const piece of file.read(0, undefined, controller.signal)) {
            void piece;
          }
        })().then(() => "read", (error: unknown) => harness.http.failureOf(error).name);
        Object.assign(globalThis, { abortNow: () => (controller.abort(), reading) });
      }, url);
      await expect.poll(async () => (await faulty.log()).length).toBe(1);
      await expect.poll(async () => (await faulty.log())[0]?.sent).toBe(faults.stall ?? 0);
      expect(await page.evaluate(() => (globalThis as unknown as { abortNow(): Promise<string> }).abortNow())).toBe("AbortError");
    }
    await expectAllClosed(faulty);
    const log = await faulty.log();
    expect(log).toHaveLength(1);
    expect(log[0]?.sent).toBeLessThan(HUGE);
  });
}

test("an abort that no read is waiting for ends the transfer as well @page", async ({ page, faulty }) => {
  const state = await page.evaluate(async (url) => {
    const controller = new AbortController();
    const pieces = new harness.http.HttpFile(url, {}).read(0, undefined, controller.signal);
    await pieces.next();
    controller.abort();
    Object.assign(globalThis, { pieces });
    return "aborted";
  }, faulty.address({}, { file: `/generated/${HUGE}` }));
  expect(state).toBe("aborted");
  await expectAllClosed(faulty);
  const name = await page.evaluate(() =>
    (globalThis as unknown as { pieces: AsyncGenerator }).pieces.next().then(() => "read", (error: unknown) => harness.http.failureOf(error).name),
  );
  expect(name).toBe("AbortError");
});

test("a signal that is aborted already asks for nothing @page", async ({ page, faulty }) => {
  const name = await page.evaluate(
    (url) =>
      new harness.http.HttpFile(url, {})
        .read(0, undefined, AbortSignal.abort())
        .next()
        .then(() => "read", (error: unknown) => harness.http.failureOf(error).name),
    faulty.address(),
  );
  expect(name).toBe("AbortError");
  expect(await faulty.log()).toEqual([]);
});

test("leaving the loop ends the transfer @page", async ({ page, faulty }) => {
  const url = faulty.address({}, { file: `/generated/${HUGE}` });
  expect(await read(page, url, { leave_at: 1 })).toMatchObject({ failure: null });
  await expectAllClosed(faulty);
  const log = await faulty.log();
  expect(log[0]?.sent).toBeLessThan(HUGE);
});

test("what cannot be reached is tried again, then named without its query @page", async ({ page, tolerated }) => {
  tolerated.push(/Content Security Policy/, /Refused to connect/);
  const outcome = await read(page, "http://127.0.0.1:9/model.gguf?token=secret", { attempts: 2 });
  expect(outcome).toMatchObject({ bytes: 0, failure: { code: "network", cause: expect.stringContaining("TypeError") } });
  expect(outcome.failure?.message).toContain("http://127.0.0.1:9/model.gguf could not be reached");
  expect(JSON.stringify(outcome.failure)).not.toContain("secret");
});

test("a custom fetch is called as fetch is, and what it throws is a failure of the network @page", async ({ page, faulty }) => {
  const outcome = await page.evaluate(
    async ([url, original]) => {
      const calls: { readonly url: unknown; readonly init: Record<string, unknown> }[] = [];
      const custom: typeof fetch = (input, init) => {
        const { signal, ...rest } = init ?? {};
        calls.push({ url: input, init: { ...rest, hasSignal: signal instanceof AbortSignal } });
        return calls.length < 2 ? Promise.reject(new Error("no luck")) : fetch(input, init);
      };
      const read = await harness.http.read(url, original, { fetch: custom });
      const part = await harness.http.read(url, original, { fetch: custom, start: 7, end: 9 });
      const thrower = (): never => {
        throw new Error("broken");
      };
      const thrown = await harness.http.read(url, original, { fetch: thrower, attempts: 1 });
      return { calls, read, part, thrown };
    },
    [faulty.address(), ORIGINAL] as const,
  );
  const init = { cache: "no-store", credentials: "omit", redirect: "follow", hasSignal: true };
  const url = faulty.address();
  expect(outcome.calls).toEqual([
    { url, init },
    { url, init },
    { url, init: { ...init, headers: { range: "bytes=7-8" } } },
  ]);
  expect(outcome.read).toMatchObject(WHOLE);
  expect(outcome.part).toMatchObject({ bytes: 2, is_true: true, failure: null });
  expect(outcome.thrown).toMatchObject({ failure: { code: "network", cause: "Error: broken" } });
});

test("a custom fetch whose answers are no streams of bytes is refused, and a made-up answer is taken @page", async ({ page }) => {
  const outcome = await page.evaluate(async (original) => {
    const answers: Record<string, () => Response> = {
      none: () => new Response(null),
      text: () => new Response(new ReadableStream({ start: (controller) => controller.enqueue("text") })),
      short: () => new Response("GGUF", { headers: { "content-length": "9" } }),
      hidden: () => Response.error(),
      made: () => new Response("GGUF"),
    };
    const results: Record<string, string> = {};
    for (const [name, answer] of Object.entries(answers)) {
      const { bytes, failure } = await harness.http.read("made://up/model.gguf?x=1", original, {
        fetch: () => Promise.resolve(answer()),
        attempts: 2,
      });
      results[name] = failure === null ? `${bytes} bytes` : `${failure.code}: ${failure.message}`;
    }
    return results;
  }, ORIGINAL);
  expect(outcome).toEqual({
    none: expect.stringMatching(/^invalid_request.+made:\/\/up\/model\.gguf has no stream of bytes/),
    text: expect.stringMatching(/^invalid_request.+has no stream of bytes/),
    short: expect.stringMatching(/^network.+broke off after 4 bytes/),
    hidden: expect.stringMatching(/^invalid_request.+has no stream of bytes/),
    made: "4 bytes",
  });
});

test("a custom fetch that does not heed the signal is left behind, and its late answer ended @page", async ({ page }) => {
  const outcome = await page.evaluate(async () => {
    const controller = new AbortController();
    let answer = (_: Response): void => undefined;
    let isCancelled = false;
    const deaf = (): Promise<Response> => new Promise((resolve) => (answer = resolve));
    const reading = new harness.http.HttpFile("made://up", { fetch: deaf }).read(0, undefined, controller.signal).next();
    await Promise.resolve();
    controller.abort();
    const name = await reading.then(() => "read", (error: unknown) => harness.http.failureOf(error).name);
    answer(new Response(new ReadableStream({ cancel: () => void (isCancelled = true) })));
    await new Promise((resolve) => setTimeout(resolve));
    return { name, isCancelled };
  });
  expect(outcome).toEqual({ name: "AbortError", isCancelled: true });
});

test.describe("fetch over a port", () => {
  test("gives what fetch gives, errors as well @page", async ({ page, faulty }) => {
    const outcome = await page.evaluate(
      async ([url, original, missing, redirected]) => {
        const remote = harness.http.remote(fetch);
        const failing = harness.http.remote(() => Promise.reject(new RangeError("broken")));
        return {
          whole: await harness.http.read(url, original, { fetch: remote }),
          part: await harness.http.read(url, original, { fetch: remote, start: 1000, end: 3000 }),
          both: await Promise.all([1, 2].map((start) => harness.http.read(url, original, { fetch: remote, start }))),
          missing: await harness.http.read(missing, original, { fetch: remote }),
          redirected: await harness.http.read(redirected, original, { fetch: remote }),
          failing: await failing("made://up").then(() => "answered", String),
          thrown: await harness.http.read(url, original, { fetch: failing, attempts: 1 }),
          hidden: await harness.http.remote(() => Promise.resolve(Response.error()))(url).then(() => "answered", String),
          posted: await remote(url, { method: "POST" }).then(() => "answered", String),
          empty: (await harness.http.remote(() => Promise.resolve(new Response(null, { status: 204 })))(url)).status,
        };
      },
      [
        faulty.address({ drop: 100_000 }),
        ORIGINAL,
        "/faults/missing",
        faulty.address({ redirect: query({ seed: SEED }) }),
      ] as const,
    );
    expect(outcome).toMatchObject({
      whole: WHOLE,
      part: { bytes: 2000, is_true: true, failure: null },
      both: [{ bytes: SIZE - 1, is_true: true }, { bytes: SIZE - 2, is_true: true }],
      missing: { failure: { code: "network", message: expect.stringContaining("answered 404 Not Found") } },
      redirected: { ...WHOLE, identity: { url: expect.stringContaining("signature=1"), ...IDENTITY } },
      failing: "RangeError: broken",
      thrown: { failure: { code: "network", cause: "RangeError: broken" } },
      hidden: expect.stringContaining("RangeError"),
      posted: expect.stringContaining("POST"),
      empty: 204,
    });
  });

  test("asks for a piece only when it is read, and leaves the page its buffers @page", async ({ page }) => {
    const outcome = await page.evaluate(async () => {
      const kept = new Uint8Array(8).subarray(2, 4);
      let pulls = 0;
      const source = (): ReadableStream<Uint8Array> =>
        new ReadableStream(
          {
            pull: (controller) => {
              pulls += 1;
              controller.enqueue(kept);
            },
          },
          { highWaterMark: 0 },
        );
      const response = await harness.http.remote(() => Promise.resolve(new Response(source())))("made://up");
      const reader = (response.body as ReadableStream<Uint8Array>).getReader();
      await new Promise((resolve) => setTimeout(resolve, 50));
      const before = pulls;
      const { value } = await reader.read();
      await reader.read();
      await new Promise((resolve) => setTimeout(resolve, 50));
      return { before, pulls, piece: value?.length, kept: kept.length };
    });
    expect(outcome).toEqual({ before: 0, pulls: 2, piece: 2, kept: 2 });
  });

  test("ends the transfer when it is aborted or left @page", async ({ page, faulty }) => {
    const url = faulty.address({}, { file: `/generated/${HUGE}` });
    const silent = faulty.address({ silent: 99 });
    const names = await page.evaluate(
      async ([url, original, silent]) => {
        const remote = harness.http.remote(fetch);
        const left = await harness.http.read(url, original, { fetch: remote, leave_at: 1 });
        const aborted = await harness.http.read(url, original, { fetch: remote, abort_at: 1 });
        const controller = new AbortController();
        const waiting = remote(silent, { signal: controller.signal });
        controller.abort();
        const early = await waiting.then(() => "answered", (error: unknown) => harness.http.failureOf(error).name);
        const stalled = await harness.http.read(silent, original, { fetch: remote, stall_ms: 300, attempts: 1 });
        return [left.failure, aborted.failure?.name, early, stalled.failure?.code];
      },
      [url, ORIGINAL, silent] as const,
    );
    expect(names).toEqual([null, "AbortError", "AbortError", "network"]);
    await expectAllClosed(faulty);
    for (const { sent } of await faulty.log()) {
      expect(sent).toBeLessThan(HUGE);
    }
  });

  test("passes on an error in the middle of a body @page", async ({ page }) => {
    const outcome = await page.evaluate(async () => {
      const broken = (): Response =>
        new Response(
          new ReadableStream({
            start: (controller) => controller.enqueue(new Uint8Array(3)),
            pull: (controller) => controller.error(new TypeError("cable cut")),
          }, { highWaterMark: 0 }),
        );
      const response = await harness.http.remote(() => Promise.resolve(broken()))("made://up");
      const reader = (response.body as ReadableStream<Uint8Array>).getReader();
      const { value } = await reader.read();
      return [value?.length, await reader.read().then(() => "read", String)];
    });
    expect(outcome).toEqual([3, "TypeError: cable cut"]);
  });
});
