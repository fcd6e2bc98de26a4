/** One stopwatch for all engines: a reply's length and its prompt's are all that varies. */

/** What is measured. */
export interface Workload {
  /** Address of the GGUF file. */
  readonly model: string;
  /** Lengths of the prompts; those that do not fit the context are left out. */
  readonly prompts: readonly number[];
  /** Tokens to decode. */
  readonly tokens: number;
  /** Runs of which the median counts, after one to warm up. */
  readonly runs: number;
  /** Positions of context. */
  readonly context: number;
}

/** A loaded engine, as the stopwatch sees it. */
export interface Runner {
  /**
   * Reads a prompt of `prompt_tokens` from an empty context and generates exactly `n_tokens`, the most
   * likely each. Resolves with the milliseconds from the first of these tokens to the last; throws
   * where another number of tokens was read or generated.
   */
  generate(prompt: string, prompt_tokens: number, n_tokens: number): Promise<number>;
}

/** What the stopwatch showed. */
export interface Speeds {
  /** The first generation after the load, from a prompt of `PROMPT_TOKENS`. */
  readonly time_to_first_token_ms: number;
  readonly decode: { readonly tokens: number; readonly tokens_per_s: number };
  /** A prompt from an empty context to its first token. */
  readonly prefill: readonly { readonly tokens: number; readonly ms: number; readonly tokens_per_s: number }[];
}

/** Tokens that decoding starts after, and whose first reply token is waited for. */
export const PROMPT_TOKENS = 16;

/** Times the engine. */
export async function measure(runner: Runner, workload: Workload): Promise<Speeds> {
  const { prompts, tokens, runs, context } = workload;
  const read = async (n: number): Promise<number> => {
    const start = performance.now();
    await runner.generate(promptOf(n), n, 1);
    return performance.now() - start;
  };
  const time_to_first_token_ms = await read(PROMPT_TOKENS);
  const prefill: Speeds["prefill"][number][] = [];
  for (const n of prompts.filter((length) => length < context)) {
    const ms = await medianOf(runs, () => read(n));
    prefill.push({ tokens: n, ms, tokens_per_s: (n / ms) * 1000 });
  }
  // The first token belongs to the prompt.
  const ms = await medianOf(runs, () => runner.generate(promptOf(PROMPT_TOKENS), PROMPT_TOKENS, tokens + 1));
  return { time_to_first_token_ms, decode: { tokens, tokens_per_s: (tokens / ms) * 1000 }, prefill };
}

/** After a run that warms up. */
async function medianOf(runs: number, measurement: () => Promise<number>): Promise<number> {
  await measurement();
  const values: number[] = [];
  while (values.length < runs) {
    values.push(await measurement());
  }
  return median(values);
}

/** A text of `n` tokens: the vocabularies of these models have a token for each digit and none for two. */
export function promptOf(n: number): string {
  return Array.from({ length: n }, (_, index) => (index * 2_654_435_761) % 10).join("");
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((left, right) => left - right);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}
