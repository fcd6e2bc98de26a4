/** Makes the client and the checks reachable for the tests, which run outside of the page. */

import * as signbit from "../../../../worker/dist/client.js";
import { checkAnswers } from "./answers.js";
import { certify, checkKernels, line, type CertifyOptions } from "./certify.js";
import { checkEmbedded } from "./embedded.js";
import { checkGolden } from "./golden.js";
import { http } from "./http.js";
import { checkChunks, checkContinuation, checkSnapshot } from "./invariants.js";
import * as sessions from "./sessions.js";
import * as storage from "./storage.js";

/** Every worker that an engine has started, oldest first, for tests that end one from outside. */
const workers: Worker[] = [];

/** An engine whose worker reports uncaught GPU errors. The n-th worker loses its GPU after `tokensTillLoss[n]` tokens. */
function openEngine(
  backend: signbit.BackendChoice,
  options: Omit<signbit.CreateEngineOptions, "backend" | "worker"> = {},
  tokensTillLoss: readonly number[] = [],
): Promise<signbit.Engine> {
  const losses = tokensTillLoss.values();
  return signbit.createEngine({
    ...options,
    backend,
    worker: () => {
      const name = String(losses.next().value ?? "");
      const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name });
      workers.push(worker);
      return worker;
    },
  });
}

const harness = {
  signbit,
  workers,
  openEngine,
  checkAnswers,
  checkChunks,
  checkContinuation,
  checkSnapshot,
  checkEmbedded,
  checkGolden,
  checkKernels,
  http,
  line,
  sessions,
  storage,
  certify: (options: CertifyOptions) => certify(openEngine, options),
};

export type Harness = typeof harness;

Object.assign(globalThis, { harness });
