/** Properties that need no reference: the same computation in another order gives the same. */

import type { Engine, GenerationRequest, Message, SessionSnapshot } from "../../../../worker/dist/client.js";
import { argmax, atMost, maxDifference, topGap, type Check } from "./checks.js";
import { EMBEDDED_URL } from "./embedded.js";
import { fetchGolden, generateIds, MIN_GAP, modelUrl } from "./golden.js";

/** Chunk sizes and the number of tokens each is tried on: small chunks are slow. */
const CHUNKS = [
  { chunk: 1, tokens: 12 },
  { chunk: 2, tokens: 13 },
  { chunk: 7, tokens: 33 },
  { chunk: 64, tokens: 130 },
] as const;
const WHOLE_CHUNK = 512;
/**
 * Chunks change the order of additions only. The reference itself differs by 1e-4 between one pass
 * and token by token, and float32 implementations by up to 7e-4 among each other.
 */
const MAX_CHUNK_DIFFERENCE = 2e-3;
const CONTINUATION_TOKENS = 16;
const TOKENS_BEFORE = 12;
const TOKENS_AFTER = 64;

/** Chunk sizes agree, and decoding step by step agrees with reading the same tokens at once. */
export async function checkChunks(engine: Engine, name: string, promptName: string): Promise<Check[]> {
  const golden = await fetchGolden(name);
  const prompt = golden.prompts.find((candidate) => candidate.name === promptName);
  if (prompt === undefined) {
    throw new Error(`${name} has no prompt ${promptName}`);
  }
  await engine.load(modelUrl(name));
  const whole = await engine.score(prompt.ids, { chunk: WHOLE_CHUNK });
  const checks: Check[] = [];
  for (const { chunk, tokens } of CHUNKS) {
    const logits = await engine.score(prompt.ids.slice(0, tokens), { chunk });
    const difference = maxDifference(logits, whole.subarray(0, logits.length));
    checks.push(
      atMost(`${name}: chunks of ${chunk} against ${WHOLE_CHUNK}`, difference, MAX_CHUNK_DIFFERENCE, promptName),
    );
  }

  const generated = await generateIds(engine, prompt.ids, CONTINUATION_TOKENS);
  const logits = await engine.score([...prompt.ids, ...generated], { chunk: WHOLE_CHUNK });
  let others = CONTINUATION_TOKENS - generated.length;
  for (const [index, id] of generated.entries()) {
    const position = prompt.ids.length - 1 + index;
    const row = logits.subarray(position * golden.vocab, (position + 1) * golden.vocab);
    if (topGap(row) > MIN_GAP && argmax(row) !== id) {
      others += 1;
    }
  }
  checks.push(atMost(`${name}: decoded tokens that one pass would not choose`, others, 0, promptName));
  return checks;
}

/**
 * A session that is taken out after some tokens and put back into a model that was loaded anew goes on as one that
 * was never interrupted: the same ids, and the same bytes in its caches at the end.
 */
export async function checkSnapshot(
  engine: Engine,
  name: string,
  promptName: string,
  options: Pick<GenerationRequest, "temperature" | "seed">,
): Promise<Check[]> {
  const golden = await fetchGolden(name);
  const ids = golden.prompts.find((candidate) => candidate.name === promptName)?.ids ?? [];
  const checks: Check[] = [];
  for (const kv_cache of ["f32", "kivi"] as const) {
    const go = async (prompt: readonly number[], session: string, max_tokens: number): Promise<number[]> => {
      const generated: number[] = [];
      const request = { ...options, ids: prompt, session, max_tokens, ignore_stop: true };
      for await (const step of engine.generate(request)) {
        generated.push(...step.ids);
      }
      return generated;
    };
    await engine.load(modelUrl(name), { kv_cache });
    const steady = await go(ids, "steady", TOKENS_BEFORE + TOKENS_AFTER);
    const whole = await engine.sessions.snapshot("steady");
    const before = await go(ids, "interrupted", TOKENS_BEFORE);
    const taken = await engine.sessions.snapshot("interrupted");
    await engine.load(modelUrl(name), { kv_cache });
    await engine.sessions.restore({ ...taken, chunks: [...taken.chunks].reverse() }, { session: "restored" });
    const after = await go([...ids, ...before], "restored", TOKENS_AFTER);
    const rest = await engine.sessions.snapshot("restored");
    const differing = steady.filter((id, index) => id !== [...before, ...after][index]).length;
    const digests = ({ manifest }: SessionSnapshot): string[] => manifest.chunks.map(({ digest }) => String(digest));
    const others = digests(whole).filter((digest, index) => digest !== digests(rest)[index]).length;
    const detail = `${kv_cache} cache, ${Object.entries(options).flat().join(" ")}`;
    checks.push(
      atMost(`${name}: ids of a restored session that differ`, differing, 0, detail),
      atMost(`${name}: chunks of a restored session that differ`, others, 0, detail),
    );
    for (const session of ["steady", "interrupted", "restored"]) {
      await engine.sessions.delete(session);
    }
  }
  return checks;
}

/** A conversation that goes on from kept state gives what a cold start gives. */
export async function checkContinuation(engine: Engine): Promise<Check[]> {
  const questions = ["What is the capital of France?", "And its currency?"];
  await engine.load(EMBEDDED_URL);
  const messages: Message[] = [];
  let warm: Turn = { ids: [], text: "", reused: 0 };
  for (const content of questions) {
    messages.push({ role: "user", content });
    warm = await answer(engine, messages);
    messages.push({ role: "assistant", content: warm.text });
  }
  await engine.reset();
  const cold = await answer(engine, messages.slice(0, -1));
  const differing = warm.ids.filter((id, index) => id !== cold.ids[index]).length + Math.abs(warm.ids.length - cold.ids.length);
  return [
    atMost("continuation: tokens that a cold start gives otherwise", differing, 0, `"${warm.text}" and "${cold.text}"`),
    atMost("continuation: turns that computed everything anew", warm.reused > 0 ? 0 : 1, 0, `${warm.reused} tokens reused`),
    atMost("continuation: tokens reused after a reset", cold.reused, 0),
  ];
}

interface Turn {
  readonly ids: readonly number[];
  readonly text: string;
  readonly reused: number;
}

async function answer(engine: Engine, messages: readonly Message[]): Promise<Turn> {
  const ids: number[] = [];
  let text = "";
  let reused = 0;
  for await (const step of engine.generate({ messages, temperature: 0, max_tokens: 64 })) {
    ids.push(...step.ids);
    text += step.content;
    reused = step.usage.reused_tokens;
  }
  return { ids, text, reused };
}
