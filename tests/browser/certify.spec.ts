import { expect, openHarness, test } from "./test.js";

test("the certification run passes and reports every check @page", async ({ page, backend }) => {
  test.setTimeout(600_000);
  await openHarness(page);
  const report = await page.evaluate(
    (backend) => harness.certify({ backend, fixtures: ["qwen35-q1_0"], scope: { prompts: ["len-005"], greedyTokens: 8 }, invariants: [], embeddedEvery: 50 }),
    backend,
  );
  expect(report.checks.filter(({ ok }) => !ok)).toEqual([]);
  expect(report.verdict).toBe("pass");
  expect(report.device.backend).toBe(backend);
  for (const group of ["kernel", "qwen35-q1_0", "continuation", "tiny-geo", "signbit-mini"]) {
    expect(report.checks.some(({ name }) => name.startsWith(group))).toBe(true);
  }
});

test("a fixture that cannot be run fails the certification @page", async ({ page, backend, tolerated }) => {
  tolerated.push(/404/);
  await openHarness(page);
  const report = await page.evaluate(
    (backend) => harness.certify({ backend, fixtures: ["no-such-fixture"], scope: {}, invariants: [], embeddedEvery: 200 }),
    backend,
  );
  expect(report.verdict).toBe("fail");
  expect(report.checks.filter(({ ok }) => !ok).map(({ name }) => name)).toEqual(["no-such-fixture"]);
});
