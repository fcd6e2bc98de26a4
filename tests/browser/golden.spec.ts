import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { QUICK, type GoldenScope } from "./harness/dist/golden.js";
import { expect, openHarness, test } from "./test.js";

/** Every folder with reference logits; a fixture that is added is tested. */
const FIXTURES = readdirSync(new URL("../golden/models", import.meta.url), { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name)
  .sort();
/** On the GPU, for fixtures that differ from one of `VARIED` in the format of the weights alone. */
const BRIEF: GoldenScope = { prompts: ["len-005"], greedyTokens: 4 };
/** Both architectures, every kind of layer, and the formats of few bits. */
const VARIED = ["qwen3-q1_0", "qwen3-q2_0", "qwen35-q1_0", "qwen35-mixed", "signbit-mini"];

test("the fixtures are there", () => {
  expect(FIXTURES.length).toBeGreaterThanOrEqual(14);
});

for (const fixture of FIXTURES) {
  test(`${fixture} agrees with the reference`, async ({ page, backend }) => {
    test.setTimeout(400_000);
    await openHarness(page);
    const result = await page.evaluate(
      async ({ backend, fixture, scope }) => {
        // The tolerances are those of float32.
        const engine = await harness.openEngine(backend, { activations: "f32" });
        const checks = await harness.checkGolden(engine, fixture, scope);
        engine.terminate();
        return { lines: checks.map(harness.line), failed: checks.filter(({ ok }) => !ok).map(harness.line) };
      },
      { backend, fixture, scope: backend === "cpu" || VARIED.includes(fixture) ? QUICK : BRIEF },
    );
    console.log(result.lines.join("\n"));
    expect(result.failed).toEqual([]);
    expect(result.lines.length).toBeGreaterThanOrEqual(4);
  });
}

test("tiny-geo gives the reference's answers @page", async ({ page, backend }) => {
  await openHarness(page);
  const failed = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    const checks = await harness.checkAnswers(engine);
    engine.terminate();
    return checks.filter(({ ok }) => !ok).map(harness.line);
  }, backend);
  expect(failed).toEqual([]);
});

test("the embedded model gives the reference's answers", async ({ page, backend }) => {
  test.setTimeout(400_000);
  await openHarness(page);
  const failed = await page.evaluate(async (backend) => {
    const engine = await harness.openEngine(backend);
    const checks = await harness.checkEmbedded(engine, 25);
    engine.terminate();
    return checks.filter(({ ok }) => !ok).map(harness.line);
  }, backend);
  expect(failed).toEqual([]);
});

test("the embedded model is the file that the goldens were made from", () => {
  const digest = createHash("sha256").update(readFileSync("models/signbit-mini.gguf")).digest("hex");
  const golden = JSON.parse(readFileSync("tests/golden/models/signbit-mini/golden.json", "utf8")) as { model: { sha256: string } };
  const answers = JSON.parse(readFileSync("tests/golden/signbit-mini/answers.json", "utf8")) as { model: { sha256: string } };
  expect([golden.model.sha256, answers.model.sha256]).toEqual([digest, digest]);
  expect(readFileSync("models/README.md", "utf8")).toContain(digest);
});
