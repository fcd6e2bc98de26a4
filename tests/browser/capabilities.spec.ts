import { expect, openHarness, test } from "./test.js";

test("the project has the backend it is named after @smoke", async ({ page, backend }, { project }) => {
  await openHarness(page);
  const { device, openMs, loadMs } = await page.evaluate(async (backend) => {
    const start = performance.now();
    const engine = await harness.openEngine(backend);
    const opened = performance.now();
    await engine.load("/tests/golden/tiny-geo/model.gguf");
    const loaded = performance.now();
    const { device } = engine;
    engine.terminate();
    return { device, openMs: opened - start, loadMs: loaded - opened };
  }, backend);
  console.log(`${project.name}: ${device?.backend}, ${device?.vendor} ${device?.name}, features: ${device?.features.join(" ")}`);
  console.log(`${project.name}: engine ready in ${openMs.toFixed(0)} ms, tiny-geo in ${loadMs.toFixed(0)} ms more`);
  expect(device?.backend).toBe(backend);
  if (backend === "webgpu") {
    expect(Object.keys(device?.limits ?? {}).length).toBeGreaterThan(0);
  }
});

test("a demand for WebGPU where there is none says so", async ({ page, backend }) => {
  test.skip(backend === "webgpu", "This browser has WebGPU.");
  await openHarness(page);
  const failure = await page.evaluate(async () => {
    try {
      await harness.openEngine("webgpu");
      return undefined;
    } catch (error) {
      return error instanceof harness.signbit.EngineError ? { code: error.code, hint: error.hint } : undefined;
    }
  });
  expect(failure?.code).toBe("webgpu_unavailable");
  expect(failure?.hint).not.toBe("");
});

test("the automatic choice always finds a backend", async ({ page }) => {
  await openHarness(page);
  const chosen = await page.evaluate(async () => {
    const engine = await harness.openEngine("auto");
    const { device } = engine;
    engine.terminate();
    return device?.backend;
  });
  expect(["webgpu", "cpu"]).toContain(chosen);
});
