import { expect, openHarness, test } from "./test.js";

for (const fixture of ["qwen3-q1_0", "qwen35-mixed"]) {
  test(`${fixture}: chunk sizes agree, and decoding agrees with one pass`, async ({ page, backend }) => {
    test.setTimeout(400_000);
    await openHarness(page);
    const result = await page.evaluate(
      async ({ backend, fixture }) => {
        // Rounded activations turn the rounding of a hybrid's chunks into other digits.
        const engine = await harness.openEngine(backend, { activations: "f32" });
        const checks = await harness.checkChunks(engine, fixture, "len-130");
        engine.terminate();
        return { lines: checks.map(harness.line), failed: checks.filter(({ ok }) => !ok).map(harness.line) };
      },
      { backend, fixture },
    );
    console.log(result.lines.join("\n"));
    expect(result.failed).toEqual([]);
  });
}

for (const [fixture, options, tag] of [
  ["qwen3-q1_0", { temperature: 1, seed: 7 }, " @page"],
  ["qwen35-mixed", { temperature: 0 }, ""],
] as const) {
  test(`${fixture}: a restored session goes on as if it had never been interrupted${tag}`, async ({ page, backend }) => {
    test.setTimeout(400_000);
    await openHarness(page);
    const result = await page.evaluate(
      async ({ backend, fixture, options }) => {
        const engine = await harness.openEngine(backend);
        const checks = await harness.checkSnapshot(engine, fixture, "len-130", options);
        engine.terminate();
        return { lines: checks.map(harness.line), failed: checks.filter(({ ok }) => !ok).map(harness.line) };
      },
      { backend, fixture, options },
    );
    console.log(result.lines.join("\n"));
    expect(result.failed).toEqual([]);
  });
}

test("a continued conversation gives what a cold start gives", async ({ page, backend }) => {
  await openHarness(page);
  const failed = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend, { activations: "f32" });
    const checks = await harness.checkContinuation(engine);
    engine.terminate();
    return checks.filter(({ ok }) => !ok).map(harness.line);
  }, backend);
  expect(failed).toEqual([]);
});
