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
   * likely each. Throws where another number of tokens was read or generated.
   */
  generate(prompt: string, prompt_tokens: number, n_tokens: number): Promise<void>;
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
  const seconds = async (prompt: number, n_tokens: number): Promise<number> => {
    const start = performance.now();
    await runner.generate(promptOf(prompt), prompt, n_tokens);
    return (performance.now() - start) / 1000;
  };
  const medianSeconds = async (prompt: number, n_tokens: number): Promise<number> => {
    await seconds(prompt, n_tokens);
    const times: number[] = [];
    while (times.length < runs) {
      times.push(await seconds(prompt, n_tokens));
    }
    return median(times);
  };
  const time_to_first_token_ms = (await seconds(PROMPT_TOKENS, 1)) * 1000;
  const prefill: Speeds["prefill"][number][] = [];
  for (const n of prompts.filter((length) => length < context)) {
    const median = await medianSeconds(n, 1);
    prefill.push({ tokens: n, ms: median * 1000, tokens_per_s: n / median });
  }
  // The first token belongs to the prompt; what the others add is decoding.
  const decodeSeconds = (await medianSeconds(PROMPT_TOKENS, tokens + 1)) - (await medianSeconds(PROMPT_TOKENS, 1));
  return { time_to_first_token_ms, decode: { tokens, tokens_per_s: tokens / decodeSeconds }, prefill };
}

/** A text of `n` tokens: the vocabularies of these models have a token for each digit and none for two. */
export function promptOf(n: number): string {
  return Array.from({ length: n }, (_, index) => (index * 2_654_435_761) % 10).join("");
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((left, right) => left - right);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}
