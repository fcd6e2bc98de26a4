/**
 * Runs wllama, llama.cpp in WebAssembly, beside Signbit: the same file, prompts and number of tokens
 * in the same Chromium, and the ratios of their speeds. wllama computes on the processor, since its
 * WebGPU needs shader-f16, which the software adapter lacks; it has threads, Signbit has one. Takes the
 * options of `npm run bench`, of which these have other defaults, and
 *
 *   --backend LIST   Signbit's backends; cpu, cpu-f32 and webgpu if not given
 *   --threads LIST   wllama's threads; 1 and as many as there are cores if not given
 *   --prompts LIST   16 if not given: wllama may need seconds for a token of a model of usual size
 *   --tokens N       8 if not given
 */

import { availableParallelism } from "node:os";
import { benchOptions, printConditions, table, withBenchPage } from "./lib/bench.mjs";
import { main } from "./lib/run.mjs";

await main(async () => {
  const options = benchOptions({
    backend: { type: "string", default: "cpu,cpu-f32,webgpu" },
    threads: { type: "string", default: [...new Set([1, availableParallelism()])].join(",") },
    prompts: { type: "string", default: "16" },
    tokens: { type: "string", default: "8" },
  });
  const result = await withBenchPage(options, async (page, workload) => {
    const engines = [];
    for (const threads of options.threads.split(",").map(Number)) {
      engines.push(await page.evaluate((args) => globalThis.bench.timeWllama(...args), [threads, workload]));
    }
    for (const backend of options.backend.split(",")) {
      engines.push(await page.evaluate((args) => globalThis.bench.timeSignbit(...args), [backend, workload]));
    }
    return { engines };
  });
  if (options.json) {
    console.log(JSON.stringify(result));
    return;
  }
  printConditions(result);
  const [peer] = result.engines;
  const times = (value, base) => `${value.toFixed(2)} (${Number((value / base).toPrecision(3))} x)`;
  const lengths = peer.prefill.map(({ tokens }) => tokens);
  const head = ["tokens/s", "decode", ...lengths.map((tokens) => `prompt of ${tokens}`), "ms to the first token"];
  const rows = result.engines.map(({ engine, decode, prefill, time_to_first_token_ms }) => [
    engine,
    times(decode.tokens_per_s, peer.decode.tokens_per_s),
    ...prefill.map(({ tokens_per_s }, index) => times(tokens_per_s, peer.prefill[index].tokens_per_s)),
    time_to_first_token_ms.toFixed(1),
  ]);
  console.log(table(head, rows));
});
