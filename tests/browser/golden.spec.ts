import { readdirSync } from "node:fs";
import { expect, openHarness, test } from "./test.js";

/** Every folder with reference logits; a fixture that is added is tested. */
const FIXTURES = readdirSync(new URL("../golden/models", import.meta.url), { withFileTypes: true })
  .filter((entry) => entry.isDirectory() && /^qwen3/.test(entry.name))
  .map(({ name }) => name)
  .sort();
/**
 * Lengths around the tiles of the kernels, past 128 positions, and a rendered chat. The software
 * adapter needs minutes for the other prompts; `npm run certify -- --full` has them.
 */
const QUICK_PROMPTS = ["len-001", "len-005", "len-065", "len-130", "chat"];

test("the fixtures are there", () => {
  expect(FIXTURES.length).toBeGreaterThanOrEqual(13);
});

for (const fixture of FIXTURES) {
  test(`${fixture} agrees with the reference`, async ({ page, backend }) => {
    await openHarness(page);
    const prompts = backend === "webgpu" ? QUICK_PROMPTS : undefined;
    const result = await page.evaluate(
      async ({ backend, fixture, prompts }) => {
        const engine = await harness.openEngine(backend);
        const checks = await harness.checkGolden(engine, fixture, prompts);
        engine.terminate();
        return { lines: checks.map(harness.line), failed: checks.filter(({ ok }) => !ok).map(harness.line) };
      },
      { backend, fixture, prompts },
    );
    console.log(result.lines.join("\n"));
    expect(result.failed).toEqual([]);
    expect(result.lines.length).toBeGreaterThanOrEqual(4);
  });
}

test("the built-in model gives the reference's answers", async ({ page, backend }) => {
  await openHarness(page);
  const failed = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    const checks = await harness.checkAnswers(engine);
    engine.terminate();
    return checks.filter(({ ok }) => !ok).map(harness.line);
  }, backend);
  expect(failed).toEqual([]);
});
