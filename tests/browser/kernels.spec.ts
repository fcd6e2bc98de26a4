import { expect, openHarness, test } from "./test.js";

test("every kernel agrees with its CPU reference on edge shapes @webgpu", async ({ page }) => {
  test.setTimeout(600_000);
  await openHarness(page);
  const { lines, failed } = await page.evaluate(async () => {
    const engine = await harness.openEngine("webgpu");
    const checks = await harness.checkKernels(engine);
    engine.terminate();
    return { lines: checks.map(harness.line), failed: checks.filter(({ ok }) => !ok).map(harness.line) };
  });
  console.log(lines.join("\n"));
  expect(failed).toEqual([]);
  expect(lines.length).toBeGreaterThan(1);
});
