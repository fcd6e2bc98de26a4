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

test("the automatic choice takes no adapter in software and says why; a demand for WebGPU does, or fails", async ({ page, backend }) => {
  await openHarness(page);
  const { automatic, demanded } = await page.evaluate(async () => {
    const { device: automatic } = await harness.openEngine("auto", { activations: "f32" });
    const demanded = await harness.openEngine("webgpu").then(
      ({ device }) => ({ backend: device?.backend, activations: device?.activations, reason: device?.fallback_reason }),
      (error: unknown) => (error instanceof harness.signbit.EngineError ? error.code : String(error)),
    );
    return { automatic, demanded };
  });
  expect(automatic?.backend).toBe("cpu");
  expect(automatic?.activations).toBe("f32");
  expect(automatic?.fallback_reason?.code).toBe(backend === "webgpu" ? "software_adapter" : "no_adapter");
  expect(automatic?.fallback_reason?.message).not.toBe("");
  expect(demanded).toEqual(
    backend === "webgpu" ? { backend: "webgpu", activations: null, reason: null } : "webgpu_unavailable",
  );
});
