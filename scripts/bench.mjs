/**
 * Measures Signbit in a real Chromium, through the worker package. Options:
 *
 *   --model FILE     a GGUF file; the embedded model if not given
 *   --random NAME    random one-bit weights instead: qwen3-0.6b or qwen3.5-0.8b; with --layers,
 *                    --hidden-size, --intermediate-size, --vocab-size or --seed another size of it
 *   --backend LIST   of webgpu, cpu, and cpu-f32 for activations that are not rounded; webgpu and cpu if
 *                    not given
 *   --prompts LIST   lengths of the prompts
 *   --tokens N       tokens to decode
 *   --runs N         runs of which the median counts
 *   --context N      positions of context
 *   --hardware       the graphics device of this machine instead of the software adapter
 *   --json           one line of JSON at the end instead of tables
 */

import { benchOptions, printConditions, table, withBenchPage } from "./lib/bench.mjs";
import { main } from "./lib/run.mjs";

await main(async () => {
  const options = benchOptions({ backend: { type: "string", default: "webgpu,cpu" } });
  const result = await withBenchPage(options, async (page, workload) => {
    const reports = [];
    for (const backend of options.backend.split(",")) {
      reports.push(await page.evaluate((args) => globalThis.bench.measureSignbit(...args), [backend, workload]));
    }
    return { reports };
  });
  if (options.json) {
    console.log(JSON.stringify(result));
    return;
  }
  printConditions(result);
  result.reports.forEach(printReport);
});

function printReport(report) {
  const { adapter, decode, kernels } = report;
  console.log(`\n${adapter.backend}: ${adapter.vendor} ${adapter.name}`.trimEnd());
  console.log(`first token  ${report.time_to_first_token_ms.toFixed(1)} ms after a load of ${report.load_ms.toFixed(0)} ms`);
  console.log(`decode       ${decode.tokens_per_s.toFixed(2)} tokens/s over ${decode.tokens} tokens`);
  console.log(
    `per token    ${decode.dispatches_per_token.toFixed(1)} dispatches, ${decode.submits_per_token.toFixed(2)} submits, ` +
      `${decode.objects_created_per_token.toFixed(2)} objects created, ${decode.encode_ms_per_token.toFixed(3)} ms to encode`,
  );
  const ratio = decode.bytes_read_per_token / decode.minimum_bytes_per_token;
  console.log(`bytes read   ${(decode.bytes_read_per_token / 1e6).toFixed(2)} MB, ${ratio.toFixed(2)} x the least possible`);
  const share = (report.share_of_copy_bandwidth * 100).toFixed(2);
  console.log(`bandwidth    ${rate(decode.bytes_per_s)}, ${share} % of the ${rate(report.copy_bandwidth_bytes_per_s)} at which the device copies`);
  console.log(`\n${table(["prompt", "ms to the first token", "tokens/s"], report.prefill.map(prefillRow))}`);
  if (kernels === null) {
    console.log("\nThis device cannot time single kernels.");
    return;
  }
  printKernels("decoded token", kernels.decode);
  printKernels("prompt", kernels.prefill);
}

function prefillRow({ tokens, ms, tokens_per_s }) {
  return [tokens, ms.toFixed(1), tokens_per_s.toFixed(1)];
}

function printKernels(what, { tokens, kernels }) {
  const total = kernels.reduce((sum, { ns }) => sum + ns, 0);
  console.log(`\n${what} of ${tokens}, ${(total / 1e6).toFixed(3)} ms in all kernels`);
  const rows = kernels.map(({ kernel, dispatches, ns, bytes }) => [
    kernel,
    dispatches,
    (ns / 1e6).toFixed(3),
    `${((ns / total) * 100).toFixed(1)} %`,
    rate(bytes / (ns / 1e9)),
  ]);
  console.log(table(["kernel", "dispatches", "ms", "share", "bandwidth"], rows));
}

function rate(bytes_per_s) {
  if (!Number.isFinite(bytes_per_s)) {
    return "-";
  }
  return bytes_per_s < 1e9 ? `${(bytes_per_s / 1e6).toFixed(1)} MB/s` : `${(bytes_per_s / 1e9).toFixed(2)} GB/s`;
}
