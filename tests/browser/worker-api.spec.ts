/** The promises of the client: order, abort, recovery, and errors that say what to do. */

import { readFileSync } from "node:fs";
import { expect, openHarness, test } from "./test.js";

/** A run that lasts until it is ended: random weights, and no stop. */
const ENDLESS = { ids: [1, 2, 3], max_tokens: 100_000, temperature: 0, ignore_stop: true };
const LONG_MODEL = "/tests/golden/models/qwen35-q1_0/model.gguf";
const FRANCE = [{ role: "user" as const, content: "What is the capital of France?" }];
const JAPAN = [{ role: "user" as const, content: "Which currency is used in Japan?" }];

test.beforeEach(async ({ page }) => {
  await openHarness(page);
});

test("a completion has OpenAI's shape", async ({ page, backend }) => {
  const completion = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      return engine.chat.completions.create({ messages, temperature: 0 });
    },
    { backend, messages: FRANCE },
  );
  expect(completion.object).toBe("chat.completion");
  expect(completion.choices).toEqual([
    { index: 0, message: { role: "assistant", content: "The capital of France is Paris." }, finish_reason: "stop" },
  ]);
  expect(completion.usage.prompt_tokens).toBe(19);
  expect(completion.usage.total_tokens).toBe(19 + completion.usage.completion_tokens);
});

test("a stream has OpenAI's shape and the same text @page", async ({ page, backend }) => {
  const chunks = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      return Array.fromAsync(await engine.chat.completions.create({ messages, temperature: 0, stream: true }));
    },
    { backend, messages: FRANCE },
  );
  expect(chunks.map(({ choices: [{ delta }] }) => delta.content ?? "").join("")).toBe("The capital of France is Paris.");
  expect(chunks.map(({ choices: [{ delta }] }) => delta.role)).toEqual(["assistant", ...chunks.slice(1).map(() => undefined)]);
  expect(chunks.map(({ choices: [{ finish_reason }] }) => finish_reason)).toEqual([...chunks.slice(1).map(() => null), "stop"]);
  expect(new Set(chunks.map(({ id }) => id)).size).toBe(1);
});

test("max_tokens and stop end an answer @page", async ({ page, backend }) => {
  const [short, stopped] = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      const { create } = engine.chat.completions;
      const results = [
        await create({ messages, temperature: 0, max_tokens: 3 }),
        await create({ messages, temperature: 0, stop: " France" }),
      ];
      return results.map(({ choices: [{ message, finish_reason }], usage }) => ({
        content: message.content,
        finish_reason,
        tokens: usage.completion_tokens,
      }));
    },
    { backend, messages: FRANCE },
  );
  expect(short).toMatchObject({ finish_reason: "length", tokens: 3 });
  expect(stopped).toMatchObject({ content: "The capital of", finish_reason: "stop" });
});

test("two chats at once give what they give one after the other @page", async ({ page, backend }) => {
  const { together, serial } = await page.evaluate(
    async ({ backend, questions }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      const ask = async (messages: (typeof questions)[number]): Promise<string | null> => {
        const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
        return choices[0].message.content;
      };
      const together = await Promise.all(questions.map(ask));
      await engine.reset();
      const serial: (string | null)[] = [];
      for (const question of questions) {
        serial.push(await ask(question));
      }
      return { together, serial };
    },
    { backend, questions: [FRANCE, JAPAN, FRANCE] },
  );
  expect(together).toEqual(serial);
  expect(new Set(together).size).toBe(2);
});

test("requests are answered in the order in which they were made @page", async ({ page, backend }) => {
  const order = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      const order: string[] = [];
      const note = (name: string) => () => void order.push(name);
      await Promise.all([
        engine.load("/tests/golden/tiny-geo/model.gguf").then(note("load")),
        engine.chat.completions.create({ messages, temperature: 0 }).then(note("chat")),
        engine.tokenize("France").then(note("tokenize")),
        engine.render(messages).then(note("render")),
        engine.stats().then(note("stats")),
      ]);
      return order;
    },
    { backend, messages: FRANCE },
  );
  expect(order).toEqual(["load", "chat", "tokenize", "render", "stats"]);
});

test("an abort before, at the start, on the way and after the end leaves the engine usable", async ({ page, backend }) => {
  const outcomes = await page.evaluate(
    async ({ backend, endless, model, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load(model);
      const outcomes: string[] = [];
      const run = async (signal: AbortSignal, onStep: (count: number) => void, limit = endless.max_tokens): Promise<void> => {
        let count = 0;
        try {
          for await (const step of engine.generate({ ...endless, max_tokens: limit }, { signal })) {
            count += step.ids.length;
            onStep(count);
          }
          outcomes.push("finished");
        } catch (error) {
          outcomes.push(error instanceof DOMException ? error.name : String(error));
        }
      };
      await run(AbortSignal.abort(), () => undefined);
      const atStart = new AbortController();
      const started = run(atStart.signal, () => undefined);
      atStart.abort();
      await started;
      const atFirst = new AbortController();
      await run(atFirst.signal, () => atFirst.abort());
      const later = new AbortController();
      await run(later.signal, (count) => count >= 5 && later.abort());
      const after = new AbortController();
      await run(after.signal, () => undefined, 2);
      after.abort();
      try {
        await engine.chat.completions.create({ messages, signal: AbortSignal.abort() });
      } catch (error) {
        outcomes.push(error instanceof DOMException ? error.name : String(error));
      }
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
      outcomes.push(choices[0].message.content ?? "");
      return outcomes;
    },
    { backend, endless: ENDLESS, model: LONG_MODEL, messages: FRANCE },
  );
  expect(outcomes).toEqual([
    "AbortError",
    "AbortError",
    "AbortError",
    "AbortError",
    "finished",
    "AbortError",
    "The capital of France is Paris.",
  ]);
});

test("an aborted request in the queue does not disturb the running one @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(
    async ({ backend, endless, model }) => {
      const engine = await harness.openEngine(backend);
      await engine.load(model);
      const running = engine.generate(endless);
      await running.next();
      const controller = new AbortController();
      const name = (error: unknown): string => (error instanceof DOMException ? error.name : String(error));
      const queued = engine.score([1, 2, 3], { signal: controller.signal }).then(() => "finished", name);
      const last = engine.tokenize("France").then(() => "finished", name);
      await new Promise((resolve) => setTimeout(resolve));
      controller.abort();
      const outcome = { queued: await queued, isRunning: (await running.next()).done !== true };
      await running.return?.();
      return { ...outcome, last: await last };
    },
    { backend, endless: ENDLESS, model: LONG_MODEL },
  );
  expect(outcome).toEqual({ queued: "AbortError", isRunning: true, last: "finished" });
});

test("the worker refuses a second request while it works on one @page", async ({ page }) => {
  const answers = await page.evaluate(async () => {
    const worker = new Worker("/worker/dist/worker.js", { type: "module" });
    const answers: string[] = [];
    await new Promise<void>((resolve) => {
      worker.addEventListener("message", ({ data }) => {
        if (data.type === "ready") {
          worker.postMessage({ id: 1, method: "init", params: { backend: "cpu", storage: { store: "none" }, fetch_port: null } });
          worker.postMessage({ id: 2, method: "stats", params: null });
          return;
        }
        answers.push(`${data.id} ${data.type} ${data.error?.code ?? ""}`);
        if (answers.length === 2) {
          resolve();
        }
      });
    });
    return answers;
  });
  expect(answers).toEqual(["2 error busy", "1 result "]);
});

test("an abort of a calculation in one piece rejects, and the engine stays usable", async ({ page, backend }) => {
  const outcomes = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    await engine.load("/tests/golden/tiny-geo/model.gguf");
    const name = (error: unknown): string => (error instanceof DOMException ? error.name : String(error));
    const outcomes: string[] = [];
    for (const start of [
      (signal: AbortSignal) => engine.score([1, 2, 3], { signal }),
      (signal: AbortSignal) => engine.checkKernels("rms_norm", { signal }),
    ]) {
      const controller = new AbortController();
      const work = start(controller.signal).then(() => "finished", name);
      await new Promise((resolve) => setTimeout(resolve));
      controller.abort();
      outcomes.push(await work);
    }
    outcomes.push(await engine.score([1, 2, 3]).then((logits) => (logits.length > 0 ? "scored" : "empty"), name));
    return outcomes;
  }, backend);
  expect(outcomes).toEqual(["AbortError", "AbortError", "scored"]);
});

test("leaving a stream ends its run, and the next request is answered @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(
    async ({ backend, endless, model }) => {
      const engine = await harness.openEngine(backend);
      await engine.load(model);
      let seen = 0;
      for await (const _ of engine.generate(endless)) {
        seen += 1;
        if (seen === 2) {
          break;
        }
      }
      const unread = engine.generate(endless);
      await unread.return?.();
      const after = await Array.fromAsync(engine.generate({ ...endless, max_tokens: 4 }));
      return { seen, tokens: after.flatMap(({ ids }) => ids).length };
    },
    { backend, endless: ENDLESS, model: LONG_MODEL },
  );
  expect(outcome).toEqual({ seen: 2, tokens: 4 });
});

test("a stream that is dropped without a word does not block the next request @page", async ({ page, backend }) => {
  const tokens = await page.evaluate(
    async ({ backend, endless, model }) => {
      const engine = await harness.openEngine(backend);
      await engine.load(model);
      const dropped = engine.generate({ ...endless, max_tokens: 40 });
      await dropped.next();
      await dropped.next();
      const after = await Array.fromAsync(engine.generate({ ...endless, max_tokens: 4 }));
      return after.flatMap(({ ids }) => ids).length;
    },
    { backend, endless: ENDLESS, model: LONG_MODEL },
  );
  expect(tokens).toBe(4);
});

test("an aborted load leaves no model, and the next load works", async ({ page, backend }) => {
  const outcomes = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      const outcomes: (string | null)[] = [];
      const name = (error: unknown): string =>
        error instanceof harness.signbit.EngineError ? error.code : error instanceof DOMException ? error.name : String(error);
      const controller = new AbortController();
      await engine
        .load("/faults/slow", { signal: controller.signal, onProgress: () => controller.abort() })
        .then(() => outcomes.push("loaded"), (error: unknown) => outcomes.push(name(error)));
      await engine.chat.completions
        .create({ messages })
        .then(() => outcomes.push("answered"), (error: unknown) => outcomes.push(name(error)));
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      outcomes.push((await engine.chat.completions.create({ messages, temperature: 0 })).choices[0].message.content);
      return outcomes;
    },
    { backend, messages: FRANCE },
  );
  expect(outcomes).toEqual(["AbortError", "invalid_request", "The capital of France is Paris."]);
});

test("progress of a load grows to the whole file @page", async ({ page, backend }) => {
  const progress = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    const progress: { seen: number; total: number | null }[] = [];
    await engine.load("/faults/slow", {
      onProgress: (report) => {
        if (report.stage === "download") {
          progress.push({ seen: report.bytes_seen, total: report.bytes_total });
        }
      },
    });
    return progress;
  }, backend);
  const seen = progress.map((report) => report.seen);
  expect(seen).toEqual([...seen].sort((left, right) => left - right));
  expect(progress.length).toBeGreaterThan(3);
  expect(progress.at(-1)).toEqual({ seen: 834_272, total: 834_272 });
});

const BAD_SOURCES = [
  { path: "/faults/html", code: "weights_invalid", says: /web page/ },
  { path: "/faults/html-as-file", code: "weights_invalid", says: /web page/ },
  { path: "/faults/garbage", code: "weights_invalid", says: /./ },
  { path: "/faults/truncated", code: "weights_invalid", says: /./ },
  { path: "/faults/foreign", code: "model_unsupported", says: /mamba/ },
  { path: "/faults/missing", code: "network", says: /404/ },
  { path: "/faults/error", code: "network", says: /500/ },
  { path: "/faults/cut", code: "network", says: /broke off/ },
  { path: "http://127.0.0.1:9/model.gguf", code: "network", says: /could not be reached/ },
] as const;

for (const { path, code, says } of BAD_SOURCES) {
  test(`a load of ${path} fails with ${code} @page`, async ({ page, backend, tolerated }) => {
    // Chromium reports on the console what the test asks for.
    tolerated.push(/Failed to load resource/, /Content Security Policy/, /Refused to connect/);
    const outcome = await page.evaluate(
      async ({ backend, path, messages }) => {
        const engine = await harness.openEngine(backend);
        const failure = await engine.load(path).then(
          () => undefined,
          (error: unknown) =>
            error instanceof harness.signbit.EngineError
              ? { code: error.code, message: error.message, hint: error.hint }
              : { code: String(error), message: "", hint: "" },
        );
        await engine.load("/tests/golden/tiny-geo/model.gguf");
        const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
        return { failure, answer: choices[0].message.content };
      },
      { backend, path, messages: FRANCE },
    );
    expect(outcome.failure?.code).toBe(code);
    expect(outcome.failure?.message).toMatch(says);
    expect(outcome.failure?.hint).not.toBe("");
    expect(outcome.answer).toBe("The capital of France is Paris.");
  });
}

test("an address that does not answer leaves the loaded model as it is @page", async ({ page, backend, tolerated }) => {
  tolerated.push(/Failed to load resource/);
  const answer = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      await engine.load("/faults/missing").catch(() => undefined);
      const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
      return choices[0].message.content;
    },
    { backend, messages: FRANCE },
  );
  expect(answer).toBe("The capital of France is Paris.");
});

test("local files load, and truncated ones are refused @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(async (backend) => {
    const bytes = await (await fetch("/tests/golden/tiny-geo/model.gguf")).blob();
    const engine = await harness.openEngine(backend);
    const code = (error: unknown): string =>
      error instanceof harness.signbit.EngineError ? error.code : String(error);
    return [
      await engine.load(new File([bytes], "tiny-geo.gguf")).then(({ architecture }) => architecture, code),
      await engine.load(bytes).then(({ architecture }) => architecture, code),
      await engine.load(new File([bytes.slice(0, bytes.size / 2)], "half.gguf")).then(() => "loaded", code),
      await engine.load(new File([bytes.slice(0, 10)], "start.gguf")).then(() => "loaded", code),
      await engine.load(new File([], "empty.gguf")).then(() => "loaded", code),
      await engine.load([new File([bytes], "a.gguf"), new File([bytes], "b.gguf")]).then(() => "loaded", code),
    ];
  }, backend);
  expect(outcome).toEqual(["qwen35", "qwen35", "weights_invalid", "weights_invalid", "weights_invalid", "weights_invalid"]);
});

for (const moment of ["idle", "generating"] as const) {
  test(`a worker ended from outside while ${moment} is noticed and replaced once`, async ({ page, backend }) => {
    const outcome = await page.evaluate(
      async ({ backend, moment, endless, messages }) => {
        const notices: string[] = [];
        const engine = await harness.openEngine(backend, {
          onEvent: (event) => event.type === "notice" && notices.push(event.error?.code ?? ""),
        });
        await engine.load("/tests/golden/tiny-geo/model.gguf");
        let failure = "";
        if (moment === "generating") {
          const steps = engine.generate(endless);
          await steps.next();
          harness.workers.at(-1)?.terminate();
          try {
            for await (const _ of steps) {
              // Reads on until the stream ends.
            }
          } catch (error) {
            failure = error instanceof harness.signbit.EngineError ? error.code : String(error);
          }
        } else {
          harness.workers.at(-1)?.terminate();
          while (notices.length === 0) {
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
        }
        const answers = await Promise.all(
          [messages, messages].map(async (messages) => {
            const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
            return choices[0].message.content;
          }),
        );
        return { failure, notices, answers, workers: harness.workers.length };
      },
      { backend, moment, endless: ENDLESS, messages: FRANCE },
    );
    expect(outcome).toEqual({
      failure: moment === "generating" ? "internal" : "",
      notices: ["internal"],
      answers: ["The capital of France is Paris.", "The capital of France is Paris."],
      workers: 2,
    });
  });
}

test("a worker ended during a load rejects the load, and the next load works @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    const failure = await engine
      .load("/faults/slow", { onProgress: () => harness.workers.at(-1)?.terminate() })
      .then(() => "loaded", (error: unknown) => (error instanceof harness.signbit.EngineError ? error.code : String(error)));
    const { architecture } = await engine.load("/tests/golden/tiny-geo/model.gguf");
    return { failure, architecture, workers: harness.workers.length };
  }, backend);
  expect(outcome).toEqual({ failure: "internal", architecture: "qwen35", workers: 2 });
});

test("terminate rejects what is pending and what comes after @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(
    async ({ backend, endless }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      const code = (error: unknown): string =>
        error instanceof harness.signbit.EngineError ? error.code : String(error);
      const steps = engine.generate(endless);
      await steps.next();
      const pending = engine.stats().then(() => "answered", code);
      engine.terminate();
      return [await pending, await engine.stats().then(() => "answered", code)];
    },
    { backend, endless: ENDLESS },
  );
  expect(outcome).toEqual(["aborted", "aborted"]);
});

test("a script that is no worker gives an error instead of silence @page", async ({ page, tolerated }) => {
  tolerated.push(/Failed to load resource/, /404/);
  const failure = await page.evaluate(() =>
    harness.signbit.createEngine({ workerUrl: "/no-such-worker.js" }).then(
      () => undefined,
      (error: unknown) => (error instanceof harness.signbit.EngineError ? error.code : String(error)),
    ),
  );
  expect(failure).toBe("internal");
});

test("a request that makes no sense is refused with its reason @page", async ({ page, backend }) => {
  const codes = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    await engine.load("/tests/golden/tiny-geo/model.gguf");
    const code = (error: unknown): string =>
      error instanceof harness.signbit.EngineError ? error.code : String(error);
    const first = async (request: Parameters<typeof engine.generate>[0]): Promise<string> =>
      Array.fromAsync(engine.generate(request)).then(() => "answered", code);
    return [
      await first({}),
      await first({ ids: [] }),
      await first({ ids: [999_999] }),
      await first({ prompt: "Hello", ids: [1] }),
      await first({ prompt: "Hello", temperature: -1 }),
      await first({ prompt: "Hello", top_p: 2 }),
    ];
  }, backend);
  expect(codes).toEqual(Array.from({ length: 6 }, () => "invalid_request"));
});

test("the same seed gives the same text, and another seed another", async ({ page, backend }) => {
  const texts = await page.evaluate(
    async ({ backend, model }) => {
      const engine = await harness.openEngine(backend);
      await engine.load(model);
      const texts: string[] = [];
      for (const seed of [7, 7, 8]) {
        const steps = await Array.fromAsync(
          engine.generate({ ids: [1, 2, 3], temperature: 1, seed, max_tokens: 24, ignore_stop: true }),
        );
        texts.push(steps.flatMap(({ ids }) => ids).join(" "));
      }
      return texts;
    },
    { backend, model: LONG_MODEL },
  );
  expect(texts[0]).toBe(texts[1]);
  expect(texts[0]).not.toBe(texts[2]);
});

test("log-probabilities have OpenAI's shape, whole and streamed @page", async ({ page, backend }) => {
  const { whole, streamed, sampled, codes } = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      const { create } = engine.chat.completions;
      const params = { messages, temperature: 0, logprobs: true, top_logprobs: 3 };
      const { choices } = await create(params);
      const chunks = await Array.fromAsync(await create({ ...params, stream: true }));
      const hot = await create({
        messages,
        temperature: 1.5,
        seed: 3,
        logprobs: true,
        repetition_penalty: 1.2,
        dry_multiplier: 0.8,
        logit_bias: { 5: -100 },
        max_tokens: 8,
      });
      const code = (error: unknown): string =>
        error instanceof harness.signbit.EngineError ? error.code : String(error);
      const refused = (extra: object): Promise<string> => create({ messages, ...extra }).then(() => "answered", code);
      return {
        whole: choices[0],
        streamed: chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []),
        sampled: hot.choices[0].logprobs?.content ?? [],
        codes: [
          await refused({ top_logprobs: 3 }),
          await refused({ logprobs: true, top_logprobs: 21 }),
          await refused({ logit_bias: { 5: 101 } }),
          await refused({ dry_base: 0 }),
        ],
      };
    },
    { backend, messages: FRANCE },
  );
  const content = whole.logprobs?.content ?? [];
  const decoder = new TextDecoder();
  expect(content.map(({ token }) => token).join("")).toBe(whole.message.content);
  for (const { token, logprob, bytes, top_logprobs } of content) {
    expect(decoder.decode(Uint8Array.from(bytes))).toBe(token);
    expect(logprob).toBeLessThanOrEqual(0);
    // The most likely token was taken.
    expect(top_logprobs).toHaveLength(3);
    expect(top_logprobs[0]).toEqual({ token, logprob, bytes });
    expect(top_logprobs.reduce((sum, top) => sum + Math.exp(top.logprob), 0)).toBeLessThanOrEqual(1.0001);
  }
  expect(streamed).toEqual(content);
  expect(sampled).not.toHaveLength(0);
  expect(sampled.every(({ top_logprobs }) => top_logprobs.length === 0)).toBe(true);
  expect(codes).toEqual(Array.from({ length: 4 }, () => "invalid_request"));
});

test("a device that drops a dispatch is not believed @webgpu", async ({ page }) => {
  const { answer, device, moves, code } = await page.evaluate(async (messages) => {
    const options = { dropKernel: "rms_norm", acceptSoftware: true };
    const moves: unknown[] = [];
    const engine = await harness.openEngine("auto", { ...options, onEvent: (event) => event.type === "backend" && moves.push(event.device) });
    await engine.load("/tests/golden/tiny-geo/model.gguf");
    const completion = await engine.chat.completions.create({ messages, temperature: 0 });
    // Whoever insists on WebGPU gets an error instead of the processor.
    const strict = await harness.openEngine("webgpu", options);
    const error: unknown = await strict.load("/tests/golden/tiny-geo/model.gguf").catch((error: unknown) => error);
    return {
      answer: completion.choices[0].message.content,
      device: engine.device,
      moves,
      code: error instanceof harness.signbit.EngineError ? error.code : String(error),
    };
  }, FRANCE);
  expect(answer).toBe("The capital of France is Paris.");
  expect(device?.backend).toBe("cpu");
  expect(device?.fallback_reason?.code).toBe("device_unreliable");
  expect(moves).toEqual([device]);
  expect(code).toBe("device_unreliable");
});

test("an answer goes on where it was when its device is lost, and then on the processor @webgpu", async ({ page }) => {
  const { answers, events, device, workers, code, workersOfBoth } = await page.evaluate(async (messages) => {
    const model = "/tests/golden/tiny-geo/model.gguf";
    const events: string[] = [];
    const options = { acceptSoftware: true, onEvent: (event: { readonly type: string }) => event.type !== "progress" && events.push(event.type) };
    // The second device is lost when its worker has only begun.
    const engine = await harness.openEngine("auto", options, [1, 0]);
    await engine.load(model);
    const ask = async (): Promise<unknown> => {
      const { choices, usage } = await engine.chat.completions.create({ messages, temperature: 1, top_k: 3, seed: 1, frequency_penalty: 0.2, logprobs: true });
      const content = choices[0].logprobs?.content.map(({ token }) => token);
      return { text: choices[0].message.content, content, tokens: usage.completion_tokens };
    };
    const answers = [await ask(), await ask()];
    const { device } = engine;
    const workers = harness.workers.length;
    // Whoever insists on WebGPU gets another device, but no processor.
    const strict = await harness.openEngine("webgpu", {}, [0, 0]);
    const error: unknown = await strict.load(model).catch((error: unknown) => error);
    const code = error instanceof harness.signbit.EngineError ? error.code : error;
    return { answers, events, device, workers, code, workersOfBoth: harness.workers.length };
  }, FRANCE);
  expect(answers[0]).toEqual(answers[1]);
  expect(events).toEqual(["devicelost", "devicelost", "backend"]);
  expect(device?.backend).toBe("cpu");
  expect(device?.fallback_reason?.code).toBe("device_lost");
  expect(workers).toBe(3);
  expect(code).toBe("device_lost");
  expect(workersOfBoth).toBe(5);
});

test("requests made before and while a device is given up keep their order @webgpu", async ({ page }) => {
  const outcome = await page.evaluate(
    async ({ model, messages }) => {
      const order: string[] = [];
      const note = (name: string) => (): void => void order.push(name);
      const later: Promise<void>[] = [];
      const engine = await harness.openEngine("auto", {
        acceptSoftware: true,
        dropKernel: "rms_norm",
        onEvent: (event) => {
          if (event.type === "backend") {
            later.push(engine.stats().then(note("while it starts")));
          }
        },
      });
      const first = engine.load(model).then(note("first load"));
      const second = engine.load("/tests/golden/tiny-geo/model.gguf").then(note("second load"));
      const answer = engine.chat.completions.create({ messages, temperature: 0 });
      await Promise.all([first, second, answer.then(note("answer"))]);
      await Promise.all(later);
      return { order, answer: (await answer).choices[0].message.content, backend: engine.device?.backend, workers: harness.workers.length };
    },
    { model: LONG_MODEL, messages: FRANCE },
  );
  expect(outcome).toEqual({
    order: ["first load", "second load", "answer", "while it starts"],
    answer: "The capital of France is Paris.",
    backend: "cpu",
    workers: 2,
  });
});

test("a load can be aborted while its device is given up @webgpu", async ({ page }) => {
  const outcome = await page.evaluate(async (messages) => {
    const controller = new AbortController();
    const name = (error: unknown): string => (error instanceof DOMException ? error.name : String(error));
    const engine = await harness.openEngine("auto", {
      acceptSoftware: true,
      dropKernel: "rms_norm",
      onEvent: (event) => event.type === "backend" && controller.abort(),
    });
    const aborted = await engine.load("/tests/golden/tiny-geo/model.gguf", { signal: controller.signal }).then(() => "loaded", name);
    const hasModel = engine.model !== undefined;
    await engine.load("/tests/golden/tiny-geo/model.gguf");
    const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
    return { aborted, hasModel, answer: choices[0].message.content, workers: harness.workers.length };
  }, FRANCE);
  expect(outcome).toEqual({
    aborted: "AbortError",
    hasModel: false,
    answer: "The capital of France is Paris.",
    workers: 2,
  });
});

test("a load into a worker that took another's place is not followed by the old model @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(
    async ({ backend, model, messages }) => {
      let notices = 0;
      const engine = await harness.openEngine(backend, {
        onEvent: (event) => {
          notices += event.type === "notice" ? 1 : 0;
        },
      });
      await engine.load(model);
      harness.workers.at(-1)?.terminate();
      while (notices === 0) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      const loaded = engine.load("/tests/golden/tiny-geo/model.gguf");
      const answer = engine.chat.completions.create({ messages, temperature: 0 });
      const { parameters } = await loaded;
      const { choices } = await answer;
      return { answer: choices[0].message.content, isSame: engine.model?.parameters === parameters };
    },
    { backend, model: LONG_MODEL, messages: FRANCE },
  );
  expect(outcome).toEqual({ answer: "The capital of France is Paris.", isSame: true });
});

test("a request that is aborted during a reload leaves it to the next @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(
    async ({ backend, messages }) => {
      const controller = new AbortController();
      let notices = 0;
      const engine = await harness.openEngine(backend, {
        onEvent: (event) => {
          notices += event.type === "notice" ? 1 : 0;
          if (notices > 0 && event.type === "progress") {
            controller.abort();
          }
        },
      });
      await engine.load("/faults/slow");
      harness.workers.at(-1)?.terminate();
      while (notices === 0) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      const name = (error: unknown): string => (error instanceof DOMException ? error.name : String(error));
      const aborted = engine.chat.completions.create({ messages, signal: controller.signal }).then(() => "answered", name);
      const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
      return { aborted: await aborted, answer: choices[0].message.content };
    },
    { backend, messages: FRANCE },
  );
  expect(outcome).toEqual({ aborted: "AbortError", answer: "The capital of France is Paris." });
});

test("load options that make no sense leave the loaded model, and end the transfer @page", async ({ page, backend }) => {
  const ended = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/faults/slow"));
  const outcome = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/tiny-geo/model.gguf");
      const code = await engine.load("/faults/slow", { context_length: -1 }).then(
        () => "loaded",
        (error: unknown) => (error instanceof harness.signbit.EngineError ? error.code : String(error)),
      );
      const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
      return { code, answer: choices[0].message.content, workers: harness.workers.length };
    },
    { backend, messages: FRANCE },
  );
  expect(outcome).toEqual({ code: "invalid_request", answer: "The capital of France is Paris.", workers: 1 });
  await ended;
});

test("OpenAI's other parameters are taken, or refused by name @page", async ({ page, backend }) => {
  const outcome = await page.evaluate(
    async ({ backend, messages }) => {
      const engine = await harness.openEngine(backend);
      const { create } = engine.chat.completions;
      // The model's name is that of the model which answers, not of the one there was before.
      const loaded = engine.load("/tests/golden/tiny-geo/model.gguf");
      const completion = await create({ messages, temperature: 0, max_completion_tokens: 3, max_tokens: 9, stop: null, n: 1, model: "any" });
      const refusal = async (extra: Record<string, unknown>): Promise<string> =>
        create({ messages, ...extra } as Parameters<typeof create>[0]).then(
          () => "answered",
          (error: unknown) => (error instanceof harness.signbit.EngineError ? `${error.code} ${error.detail}` : String(error)),
        );
      return {
        tokens: completion.usage.completion_tokens,
        isNamed: completion.model !== "" && completion.model === (await loaded).name,
        refusals: [
          await refusal({ n: 2 }),
          await refusal({ response_format: { type: "json_object" } }),
          await refusal({ messages: [{ role: "user", content: () => "no data" }] }),
        ],
        after: (await create({ messages, temperature: 0 })).choices[0].message.content,
      };
    },
    { backend, messages: FRANCE },
  );
  expect(outcome.tokens).toBe(3);
  expect(outcome.isNamed).toBe(true);
  expect(outcome.refusals[0]).toMatch(/^invalid_request n is 2/);
  expect(outcome.refusals[1]).toMatch(/^invalid_request .*response_format/);
  expect(outcome.refusals[2]).toMatch(/^invalid_request it cannot be copied/);
  expect(outcome.after).toBe("The capital of France is Paris.");
});

test("without a secure context the processor answers @page", async ({ page, baseURL }) => {
  await page.goto(`${(baseURL ?? "").replace("127.0.0.1", "insecure.test")}/tests/browser/harness/index.html`);
  await expect.poll(() => page.evaluate(() => typeof harness)).toBe("object");
  const outcome = await page.evaluate(async (messages) => {
    const engine = await harness.openEngine("auto");
    await engine.load("/tests/golden/tiny-geo/model.gguf");
    const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
    const code = await harness.openEngine("webgpu").then(
      () => "opened",
      (error: unknown) => (error instanceof harness.signbit.EngineError ? error.code : String(error)),
    );
    return { isSecureContext, reason: engine.device?.fallback_reason?.code, answer: choices[0].message.content, code };
  }, FRANCE);
  expect(outcome).toEqual({
    isSecureContext: false,
    reason: "no_webgpu",
    answer: "The capital of France is Paris.",
    code: "webgpu_unavailable",
  });
});

test("an engine that cannot start says why @page", async ({ page, tolerated }) => {
  tolerated.push(/Failed to load resource/, /404/);
  await page.route("**/faulty-worker.js", (route) =>
    route.fulfill({
      contentType: "text/javascript",
      body: 'postMessage({ type: "fault", error: { code: "internal", detail: "too early", fatal: true } });',
    }),
  );
  const failures = await page.evaluate(async () => {
    const failure = (options: Parameters<typeof harness.signbit.createEngine>[0]): Promise<string> =>
      harness.signbit.createEngine(options).then(
        () => "opened",
        (error: unknown) =>
          error instanceof harness.signbit.EngineError ? `${error.code}: ${error.detail}; ${error.hint}` : String(error),
      );
    return [
      await failure({ backend: "cpu", wasmUrl: "/no-such-module.wasm" }),
      await failure({ workerUrl: "/faulty-worker.js" }),
      await failure({
        worker: () => {
          throw new DOMException("not from here", "SecurityError");
        },
      }),
    ];
  });
  expect(failures[0]).toMatch(/^internal: the wasm module could not be started.*wasmUrl/);
  expect(failures[1]).toMatch(/^internal: too early/);
  expect(failures[2]).toMatch(/^internal: the worker could not be made.*own origin/);
});

test("every code of the engine has its sentence @page", async ({ page }) => {
  const source = readFileSync(new URL("../../crates/engine/src/error.rs", import.meta.url), "utf8");
  const body = source.slice(source.lastIndexOf("pub fn code"));
  const codes = [...body.matchAll(/=> "([a-z_]+)"/g)].map(([, code]) => code ?? "");
  expect(codes.length).toBeGreaterThan(10);
  const known = await page.evaluate(() => harness.signbit.ERROR_CODES);
  expect(codes.filter((code) => !known.some((name) => name === code))).toEqual([]);
});

const PARTS = [1, 2, 3].map((n) => `/tests/golden/split/qwen3-q4_0-0000${n}-of-00003.gguf`);

test("a split model equals the whole one, by all addresses or by the first @page", async ({ page, backend }) => {
  const isEqual = await page.evaluate(
    async ({ backend, parts }) => {
      const engine = await harness.openEngine(backend);
      await engine.load("/tests/golden/models/qwen3-q4_0/model.gguf");
      const whole = await engine.score([1, 2, 3, 4, 5]);
      const isEqual: boolean[] = [];
      for (const source of [parts, parts[0] ?? ""]) {
        await engine.load(source);
        const split = await engine.score([1, 2, 3, 4, 5]);
        isEqual.push(split.length === whole.length && whole.every((logit, i) => logit === split[i]));
      }
      return isEqual;
    },
    { backend, parts: PARTS },
  );
  expect(isEqual).toEqual([true, true]);
});

test("parts of a split model that are missing or out of order are named @page", async ({ page, backend }) => {
  const codes = await page.evaluate(
    async ({ backend, parts: [first, second, third] }) => {
      const engine = await harness.openEngine(backend);
      const codes: unknown[] = [];
      for (const parts of [[first, second], [first, third, second], [second, second, third]]) {
        const error: unknown = await engine.load(parts as string[]).catch((error: unknown) => error);
        codes.push(error instanceof harness.signbit.EngineError ? error.code : error);
      }
      // The engine is as usable as before.
      await engine.load([first, second, third] as string[]);
      codes.push((await engine.score([1, 2, 3])).length > 0);
      return codes;
    },
    { backend, parts: PARTS },
  );
  expect(codes).toEqual(["weights_invalid", "weights_invalid", "weights_invalid", true]);
});
