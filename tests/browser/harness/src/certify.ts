/** The certification run: everything that says whether this device computes the right model. */

import type { BackendChoice, CreateEngineOptions, DeviceInfo, Engine } from "../../../../worker/dist/client.js";
import { checkAnswers } from "./answers.js";
import { atMost, type Check } from "./checks.js";
import { checkEmbedded } from "./embedded.js";
import { checkGolden, type GoldenScope } from "./golden.js";
import { checkChunks, checkContinuation, checkSnapshot } from "./invariants.js";

export interface CertifyOptions {
  readonly backend: BackendChoice;
  readonly fixtures: readonly string[];
  readonly scope: GoldenScope;
  /** Fixtures for the invariants. */
  readonly invariants: readonly string[];
  /** Ask the embedded model every n-th question. */
  readonly embeddedEvery: number;
}

export interface CertifyReport {
  readonly device: DeviceInfo;
  readonly user_agent: string;
  readonly started: string;
  readonly seconds: number;
  readonly checks: readonly Check[];
  readonly verdict: "pass" | "fail";
}

const INVARIANT_PROMPT = "len-130";

export async function certify(
  openEngine: (backend: BackendChoice, options: Pick<CreateEngineOptions, "activations">) => Promise<Engine>,
  options: CertifyOptions,
): Promise<CertifyReport> {
  const started = new Date();
  // The tolerances are those of float32.
  const engine = await openEngine(options.backend, { activations: "f32" });
  const { device } = engine;
  if (device === undefined) {
    throw new Error("the engine has no device");
  }
  const checks: Check[] = [];
  const stage = async (name: string, body: () => Promise<readonly Check[]>): Promise<void> => {
    try {
      const results = await body();
      checks.push(...results);
    } catch (error) {
      checks.push({ name, figure: 1, threshold: 0, ok: false, detail: String(error) });
    }
    for (const check of checks.slice(reported)) {
      console.info(line(check));
    }
    reported = checks.length;
  };
  let reported = 0;
  await stage("kernels", () => checkKernels(engine));
  for (const name of options.fixtures) {
    await stage(name, () => checkGolden(engine, name, options.scope));
  }
  for (const name of options.invariants) {
    await stage(`${name} in chunks`, () => checkChunks(engine, name, INVARIANT_PROMPT));
    await stage(`${name} restored`, () => checkSnapshot(engine, name, INVARIANT_PROMPT, { temperature: 0 }));
  }
  await stage("continuation", () => checkContinuation(engine));
  await stage("tiny-geo", () => checkAnswers(engine));
  await stage("signbit-mini", () => checkEmbedded(engine, options.embeddedEvery));
  engine.terminate();
  return {
    device,
    user_agent: navigator.userAgent,
    started: started.toISOString(),
    seconds: (Date.now() - started.getTime()) / 1000,
    checks,
    verdict: checks.every(({ ok }) => ok) ? "pass" : "fail",
  };
}

/** One check per kernel: its case that comes closest to its tolerance. */
export async function checkKernels(engine: Engine): Promise<Check[]> {
  const worst = new Map<string, Check>();
  for (const { kernel, case: shape, max_error, tolerance, ok, detail } of await engine.checkKernels()) {
    const check: Check = {
      ...atMost(`kernel ${kernel}`, max_error, tolerance, [shape, detail].filter((part) => part !== "").join(": ")),
      ok,
    };
    const known = worst.get(kernel);
    if (known === undefined || (known.ok && (!check.ok || ratio(check) > ratio(known)))) {
      worst.set(kernel, check);
    }
  }
  return [atMost("kernels that were not checked", worst.size > 0 ? 0 : 1, 0), ...worst.values()];
}

function ratio({ figure, threshold }: Check): number {
  return threshold === 0 ? figure : figure / threshold;
}

/** A check as a line of text. */
export function line({ name, figure, threshold, ok, detail }: Check): string {
  return `${ok ? "ok    " : "FAILED"} ${name}: ${Number(figure.toPrecision(3))}, at most ${threshold}${detail === "" ? "" : ` (${detail})`}`;
}
