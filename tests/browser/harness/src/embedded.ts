/** The embedded model against what its reference answers; see `models/README.md`. */

import type { Engine, Message } from "../../../../worker/dist/client.js";
import { atMost, type Check } from "./checks.js";
import { MIN_GAP } from "./golden.js";

export const EMBEDDED_URL = "/models/signbit-mini.gguf";
const ANSWERS_URL = "/tests/golden/signbit-mini/answers.json";
const N_QUESTIONS = 200;

interface AnswersFile {
  /** Where the reference was cut off. */
  readonly max_tokens: number;
  readonly cases: readonly {
    readonly kind: string;
    readonly messages: readonly Message[];
    readonly thinking: boolean;
    readonly prompt_ids: readonly number[];
    /** The reference's whole text; a thought ends with `</think>`. */
    readonly answer: string;
    readonly expected: string;
    readonly right: boolean;
    readonly smallest_gap: number;
  }[];
}

/** Every `every`-th question, through the chat API: prompt ids, and answers as the reference gives them. */
export async function checkEmbedded(engine: Engine, every: number): Promise<Check[]> {
  const { cases, max_tokens } = (await (await fetch(ANSWERS_URL)).json()) as AnswersFile;
  const asked = cases.filter((_, index) => index % every === 0);
  await engine.load(EMBEDDED_URL);
  const otherIds: string[] = [];
  const otherAnswers: string[] = [];
  const wrong: string[] = [];
  for (const { kind, messages, thinking, prompt_ids, answer, expected, right, smallest_gap } of asked) {
    const question = `${kind}: ${String(messages.at(-1)?.content)}`;
    const { ids } = await engine.render(messages, { enable_thinking: thinking });
    if (ids.length !== prompt_ids.length || prompt_ids.some((id, index) => id !== ids[index])) {
      otherIds.push(`${question}: ${String(ids)}`);
    }
    const completion = await engine.chat.completions.create({
      messages: [...messages],
      enable_thinking: thinking,
      temperature: 0,
      max_tokens,
    });
    const text = (completion.choices[0]?.message.content ?? "").trim();
    if (text !== afterThought(answer) && smallest_gap > MIN_GAP) {
      otherAnswers.push(`${question}: ${text}, not ${answer}`);
    }
    if (text !== expected && right) {
      wrong.push(`${question}: ${text}`);
    }
  }
  const among = `in ${asked.length} questions`;
  return [
    atMost("signbit-mini: questions that are missing", Math.max(0, Math.ceil(N_QUESTIONS / every) - asked.length), 0),
    atMost(`signbit-mini: other prompt ids ${among}`, otherIds.length, 0, otherIds[0]),
    atMost(`signbit-mini: other answers ${among}`, otherAnswers.length, 0, otherAnswers[0]),
    // A near-tie may go the other way now and then.
    atMost(`signbit-mini: wrong answers ${among} where the reference is right`, wrong.length / asked.length, 0.05, wrong[0]),
  ];
}

function afterThought(text: string): string {
  return (text.split("</think>").at(-1) ?? "").trim();
}
