/** The tests' own tools: what they overlook, nobody sees. */

import { maxDifference, Worst } from "./harness/dist/checks.js";
import { expect, test } from "./test.js";

test("the worst figure sticks, and nothing is worse than no number", () => {
  const cases: [figures: number[], worst: number][] = [
    [[], 0],
    [[1, 3, 2], 3],
    [[3, Number.NaN, 4], Number.NaN],
    [[Number.NaN, 1], Number.NaN],
    [[1, Number.POSITIVE_INFINITY, 2], Number.POSITIVE_INFINITY],
  ];
  for (const [figures, expected] of cases) {
    const worst = new Worst();
    for (const [index, figure] of figures.entries()) {
      worst.note(figure, `at ${index}`);
    }
    expect(worst.figure).toBe(expected);
    expect(worst.detail).toBe(figures.length === 0 ? "" : `at ${figures.findIndex((figure) => Object.is(figure, expected))}`);
  }
});

test("rows that differ by no number or in length differ by no number", () => {
  const row = Float32Array.of(1, 2, 3);
  expect(maxDifference(row, Float32Array.of(1, 2.5, 2))).toBe(1);
  expect(maxDifference(row, Float32Array.of(Number.NaN, 2, 9))).toBeNaN();
  expect(maxDifference(row, Float32Array.of(1, 2))).toBeNaN();
});

test.describe("what a test tolerates", () => {
  test.describe.configure({ mode: "serial" });

  test("is a list of its own", ({ tolerated }) => {
    expect(tolerated).toEqual([]);
    tolerated.push(/anything/);
  });

  test("which does not reach the next", ({ tolerated }) => {
    expect(tolerated).toEqual([]);
  });
});
