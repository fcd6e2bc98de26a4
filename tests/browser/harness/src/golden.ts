/** Models against the outputs of an independent reference; see `tests/golden`. */

import type { Engine } from "../../../../worker/dist/client.js";
import { argmax, atMost, maxDifference, Worst, type Check } from "./checks.js";

/**
 * Largest logit difference at positions below and from `LONG_POSITION` on. Correct float32
 * implementations lie up to 1e-4 apart on short sequences and 7e-4 at positions around 500, where
 * rope angles computed in float32 dominate; one wrong tensor moves logits by several units.
 */
export const MAX_LOGIT_DIFFERENCE = { short: 5e-3, long: 1e-2 };
const LONG_POSITION = 128;
/** Where best and second-best token lie closer than this, rounding may swap them: twice the above. */
export const MIN_GAP = 0.02;
const TOP = 20;
const MAX_CHUNK = 512;

export interface GoldenPrompt {
  readonly name: string;
  readonly n: number;
  readonly ids: readonly number[];
  readonly continuation: readonly number[];
  readonly rows: number;
  readonly top20_first_row: number;
  readonly logit_positions: readonly number[];
  readonly logits_first_row: number;
}

interface GoldenFile {
  readonly model: { readonly vocab: number };
  readonly prompts: readonly GoldenPrompt[];
}

/** A fixture with its reference outputs. */
export interface Golden {
  readonly name: string;
  readonly vocab: number;
  readonly prompts: readonly GoldenPrompt[];
  readonly logits: Float32Array;
  readonly topIds: Uint16Array;
  readonly topLogprobs: Float32Array;
}

const FOLDER = "/tests/golden/models";

/** Address of a fixture's model. */
export function modelUrl(name: string): string {
  return `${FOLDER}/${name}/model.gguf`;
}

export async function fetchGolden(name: string): Promise<Golden> {
  const fetchFile = async (file: string): Promise<Response> => {
    const response = await fetch(`${FOLDER}/${name}/${file}`);
    if (!response.ok) {
      throw new Error(`${name}/${file}: ${response.status}`);
    }
    return response;
  };
  const bytes = async (file: string): Promise<ArrayBuffer> => (await fetchFile(file)).arrayBuffer();
  const golden = (await (await fetchFile("golden.json")).json()) as GoldenFile;
  return {
    name,
    vocab: golden.model.vocab,
    prompts: golden.prompts,
    logits: new Float32Array(await bytes("logits_hf.bin")),
    topIds: new Uint16Array(await bytes("top20_ids.bin")),
    topLogprobs: new Float32Array(await bytes("top20_logprobs.bin")),
  };
}

/** How much of a fixture is compared; what is absent is compared in full. */
export interface GoldenScope {
  readonly prompts?: readonly string[];
  /** Tokens of each greedy continuation. */
  readonly greedyTokens?: number;
}

/**
 * A short prompt and one that crosses the tiles of the kernels and position 128. The software
 * adapter needs minutes for all of them; `npm run certify -- --full` has them.
 */
export const QUICK: GoldenScope = { prompts: ["len-005", "len-130"], greedyTokens: 16 };

/** Loads a fixture and compares it. */
export async function checkGolden(engine: Engine, name: string, scope: GoldenScope = {}): Promise<Check[]> {
  const { prompts: promptNames, greedyTokens = Number.POSITIVE_INFINITY } = scope;
  const golden = await fetchGolden(name);
  await engine.load(modelUrl(name));
  const prompts = golden.prompts.filter((prompt) => promptNames?.includes(prompt.name) ?? true);
  if (prompts.length === 0 || prompts.length < (promptNames?.length ?? 0)) {
    throw new Error(`${name} lacks some of the prompts ${String(promptNames)}`);
  }
  const short = new Worst();
  const long = new Worst();
  const logprob = new Worst();
  const flips: string[] = [];
  const others: string[] = [];
  let rows = 0;
  let compared = 0;
  for (const prompt of prompts) {
    const sequence = [...prompt.ids, ...prompt.continuation.slice(0, -1)];
    const logits = await engine.score(sequence, { chunk: MAX_CHUNK });
    const row = (position: number): Float32Array =>
      logits.subarray(position * golden.vocab, (position + 1) * golden.vocab);
    if (logits.length !== prompt.rows * golden.vocab) {
      throw new Error(`${name} ${prompt.name}: ${logits.length} logits, not ${prompt.rows} x ${golden.vocab}`);
    }
    for (const [index, position] of prompt.logit_positions.entries()) {
      const start = (prompt.logits_first_row + index) * golden.vocab;
      const difference = maxDifference(row(position), golden.logits.subarray(start, start + golden.vocab));
      (position < LONG_POSITION ? short : long).note(difference, `${prompt.name} position ${position}`);
    }
    for (let position = 0; position < prompt.rows; position += 1) {
      const where = `${prompt.name} position ${position}`;
      const start = (prompt.top20_first_row + position) * TOP;
      const ids = golden.topIds.subarray(start, start + TOP);
      const logprobs = golden.topLogprobs.subarray(start, start + TOP);
      logprob.note(maxLogprobDifference(row(position), ids, logprobs), where);
      if (gapOf(logprobs) > MIN_GAP && argmax(row(position)) !== ids[0]) {
        flips.push(where);
      }
    }
    rows += prompt.rows;
    compared += await checkGreedy(engine, golden, prompt, greedyTokens, (detail) => others.push(detail));
  }
  const logitCheck = (range: string, worst: Worst, most: number): Check =>
    atMost(`${name}: logits ${range} position ${LONG_POSITION}`, worst.figure, most, worst.detail);
  const checks = [
    logitCheck("below", short, MAX_LOGIT_DIFFERENCE.short),
    atMost(
      `${name}: log-probabilities of the best ${TOP} at ${rows} positions`,
      logprob.figure,
      2 * MAX_LOGIT_DIFFERENCE.long,
      logprob.detail,
    ),
    atMost(`${name}: other best token at ${rows} positions`, flips.length, 0, flips[0]),
    atMost(`${name}: other greedy token among ${compared}`, others.length, 0, others[0]),
  ];
  if (prompts.some((prompt) => prompt.rows > LONG_POSITION)) {
    checks.splice(1, 0, logitCheck("from", long, MAX_LOGIT_DIFFERENCE.long));
  }
  return checks;
}

/**
 * Greedy generation against the recorded continuation, up to the first position where rounding may
 * decide. Returns the number of tokens compared.
 */
async function checkGreedy(
  engine: Engine,
  golden: Golden,
  prompt: GoldenPrompt,
  most: number,
  onDifference: (detail: string) => void,
): Promise<number> {
  const continuation = prompt.continuation.slice(0, most);
  const generated = await generateIds(engine, prompt.ids, continuation.length);
  for (const [index, wanted] of continuation.entries()) {
    if (generated[index] !== wanted) {
      const start = (prompt.top20_first_row + prompt.n - 1 + index) * TOP;
      if (gapOf(golden.topLogprobs.subarray(start, start + TOP)) > MIN_GAP) {
        onDifference(`${prompt.name} token ${index}: ${generated[index]}, not ${wanted}`);
      }
      return index + 1;
    }
  }
  return continuation.length;
}

/** The ids of a greedy generation that stops for nothing. */
export async function generateIds(engine: Engine, ids: readonly number[], count: number): Promise<number[]> {
  const generated: number[] = [];
  for await (const step of engine.generate({ ids, max_tokens: count, temperature: 0, ignore_stop: true })) {
    generated.push(...step.ids);
  }
  return generated;
}

function gapOf(logprobs: Float32Array): number {
  return (logprobs[0] ?? Number.NaN) - (logprobs[1] ?? Number.NaN);
}

/** Difference of log-probabilities over the whole vocabulary, at the reference's best tokens. */
function maxLogprobDifference(row: Float32Array, ids: Uint16Array, logprobs: Float32Array): number {
  const largest = row.reduce((best, value) => Math.max(best, value), Number.NEGATIVE_INFINITY);
  const sum = row.reduce((total, value) => total + Math.exp(value - largest), 0);
  const normaliser = largest + Math.log(sum);
  const own = Float32Array.from(ids, (id) => (row[id] ?? Number.NaN) - normaliser);
  return maxDifference(own, logprobs);
}
