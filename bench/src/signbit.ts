/** Signbit, used as another site would use it. */

import { createEngine, type CreateEngineOptions, type DeviceInfo, type Engine, type Profile } from "../../worker/dist/client.js";
import { measure, promptOf, PROMPT_TOKENS, type Runner, type Speeds, type Workload } from "./measure.js";

/** What Signbit computes on, in the words of the command line tool. */
export type Backend = keyof typeof BACKENDS;

const BACKENDS = {
  webgpu: { backend: "webgpu" },
  cpu: { backend: "cpu" },
  "cpu-f32": { backend: "cpu", activations: "f32" },
} as const satisfies Record<string, CreateEngineOptions>;

/** The fields of the command line tool's report, as far as a page can know them. */
export interface SignbitReport extends Speeds {
  readonly model: string;
  readonly layers: number;
  readonly adapter: DeviceInfo;
  readonly load_ms: number;
  readonly decode: Speeds["decode"] & Cost & { readonly bytes_per_s: number };
  readonly copy_bandwidth_bytes_per_s: number;
  readonly share_of_copy_bandwidth: number;
  readonly kernels: Profile["kernels"];
  readonly runs: number;
  readonly context_length: number;
}

/** What a decoded token costs. */
interface Cost {
  readonly dispatches_per_token: number;
  readonly submits_per_token: number;
  readonly command_buffers_per_token: number;
  readonly objects_created_per_token: number;
  readonly encode_ms_per_token: number;
  readonly bytes_read_per_token: number;
  readonly bytes_written_per_token: number;
  readonly minimum_bytes_per_token: number;
}

/** Loads the model and measures everything. */
export async function measureSignbit(backend: Backend, workload: Workload): Promise<SignbitReport> {
  const engine = await createEngine({ ...BACKENDS[backend], timestamps: true });
  const start = performance.now();
  const model = await engine.load(workload.model, { context_length: workload.context });
  const load_ms = performance.now() - start;
  const { device: adapter } = engine;
  if (adapter === undefined) {
    throw new Error("the engine has no device");
  }
  const runner = runnerOf(engine);
  const speeds = await measure(runner, workload);
  const cost = await measureCost(engine, runner, workload.tokens);
  const { kernels, copy_bandwidth_bytes_per_s } = await engine.profile({ promptTokens: PROMPT_TOKENS, runs: workload.runs });
  const { kv_cache_bytes = 0 } = (await engine.stats()).decode ?? {};
  engine.terminate();
  // A plan declares the whole cache; this much of it was in use on average.
  const filled = (PROMPT_TOKENS + workload.tokens / 2) / model.context_length;
  const bytes_per_token = cost.bytes_read_per_token + cost.bytes_written_per_token - kv_cache_bytes * (1 - filled);
  const bytes_per_s = bytes_per_token * speeds.decode.tokens_per_s;
  return {
    model: model.name ?? "",
    layers: model.layers,
    adapter,
    load_ms,
    time_to_first_token_ms: speeds.time_to_first_token_ms,
    decode: { ...speeds.decode, ...cost, bytes_per_s },
    prefill: speeds.prefill,
    copy_bandwidth_bytes_per_s,
    share_of_copy_bandwidth: bytes_per_s / copy_bandwidth_bytes_per_s,
    kernels,
    runs: workload.runs,
    context_length: model.context_length,
  };
}

/** Signbit for the stopwatch alone. */
export async function timeSignbit(backend: Backend, workload: Workload): Promise<Speeds & { readonly engine: string }> {
  const engine = await createEngine(BACKENDS[backend]);
  await engine.load(workload.model, { context_length: workload.context });
  const speeds = await measure(runnerOf(engine), workload);
  const { name, activations } = engine.device ?? {};
  engine.terminate();
  return { engine: `Signbit, ${backend === "webgpu" ? `webgpu on ${name}` : `cpu, ${activations} activations, 1 thread`}`, ...speeds };
}

function runnerOf(engine: Engine): Runner {
  return {
    async generate(prompt, prompt_tokens, n_tokens) {
      await engine.reset();
      let [n_read, n_generated, first] = [0, 0, 0];
      for await (const step of engine.generate({ prompt, max_tokens: n_tokens, temperature: 0, ignore_stop: true })) {
        n_read = step.prompt_tokens;
        // The step that ends the prompt gives one token.
        first = n_generated === 0 ? performance.now() : first;
        n_generated += step.ids.length;
      }
      const ms = performance.now() - first;
      if (n_read !== prompt_tokens || n_generated !== n_tokens) {
        throw new Error(`Signbit read ${n_read} and wrote ${n_generated} tokens, not ${prompt_tokens} and ${n_tokens}`);
      }
      return ms;
    },
  };
}

/** Counters of a long reply less those of a short one, both from a prompt of one token. */
async function measureCost(engine: Engine, runner: Runner, n_tokens: number): Promise<Cost> {
  const count = async (length: number): Promise<Counters> => {
    const { device: before } = await engine.stats();
    await runner.generate(promptOf(1), 1, length);
    const { device: after } = await engine.stats();
    return {
      dispatches: after.dispatches - before.dispatches,
      submits: after.submits - before.submits,
      objects_created: after.objects_created - before.objects_created,
      encode_ns: after.encode_ns - before.encode_ns,
    };
  };
  const short = await count(1);
  const long = await count(1 + n_tokens);
  const perToken = (name: keyof Counters): number => (long[name] - short[name]) / n_tokens;
  const { bytes_read = 0, bytes_written = 0, minimum_bytes = 0 } = (await engine.stats()).decode ?? {};
  return {
    dispatches_per_token: perToken("dispatches"),
    submits_per_token: perToken("submits"),
    command_buffers_per_token: perToken("submits"),
    objects_created_per_token: perToken("objects_created"),
    encode_ms_per_token: perToken("encode_ns") / 1e6,
    bytes_read_per_token: bytes_read,
    bytes_written_per_token: bytes_written,
    minimum_bytes_per_token: minimum_bytes,
  };
}

interface Counters {
  readonly dispatches: number;
  readonly submits: number;
  readonly objects_created: number;
  readonly encode_ns: number;
}
