/** A small trained model against the answers that a float64 program read from the same file. */

import type { Engine, Message } from "../../../../worker/dist/client.js";
import { atMost, type Check } from "./checks.js";
import { generateIds, MIN_GAP } from "./golden.js";

interface AnswersFile {
  readonly cases: readonly {
    readonly turns: readonly string[];
    /** Without the empty thoughts that stand before answers. */
    readonly prompt_ids: readonly number[];
    readonly answer_ids: readonly number[];
    readonly smallest_gap: number;
  }[];
}

const MODEL_URL = "/tests/golden/tiny-geo/model.gguf";
const ANSWERS_URL = "/tests/golden/tiny-geo/answers.json";

/** Prompt ids and greedy answer ids of all dialogues. */
export async function checkAnswers(engine: Engine): Promise<Check[]> {
  const { cases } = (await (await fetch(ANSWERS_URL)).json()) as AnswersFile;
  await engine.load(MODEL_URL);
  const emptyThought = await engine.tokenize("<think>\n\n</think>\n\n", { parseSpecial: true });
  let otherIds = 0;
  let otherAnswers = 0;
  let idsDetail = "";
  let answersDetail = "";
  for (const { turns, prompt_ids, answer_ids, smallest_gap } of cases) {
    const messages = turns.map(
      (content, index): Message => (index % 2 === 0 ? { role: "user", content } : { role: "assistant", content }),
    );
    const ids = without((await engine.render(messages)).ids, emptyThought);
    if (ids.length !== prompt_ids.length || prompt_ids.some((id, index) => id !== ids[index])) {
      otherIds += 1;
      idsDetail ||= `${turns.join(" / ")}: ${String(ids)}`;
    }
    const generated = await generateIds(engine, prompt_ids, answer_ids.length);
    if (smallest_gap > MIN_GAP && answer_ids.some((id, index) => id !== generated[index])) {
      otherAnswers += 1;
      answersDetail ||= `${turns.join(" / ")}: ${String(generated)}, not ${String(answer_ids)}`;
    }
  }
  return [
    atMost(`tiny-geo: other prompt ids in ${cases.length} dialogues`, otherIds, 0, idsDetail),
    atMost(`tiny-geo: other answers in ${cases.length} dialogues`, otherAnswers, 0, answersDetail),
  ];
}

/** `ids` without every run that equals `part`. */
function without(ids: Uint32Array, part: Uint32Array): number[] {
  const kept: number[] = [];
  for (let start = 0; start < ids.length; ) {
    if (part.every((id, offset) => id === ids[start + offset])) {
      start += part.length;
    } else {
      kept.push(ids[start] ?? Number.NaN);
      start += 1;
    }
  }
  return kept;
}
