/** Conversations in token ids, whose every number can be foretold. */

import type { Engine, GenerationOptions, ModelOptions, Reuse, SessionInfo } from "../../../../worker/dist/client.js";

/** Ids that exist in every model of the tests, and are no control tokens there. */
const IDS = { from: 3, to: 240 } as const;

/** Random ids from a seed: a linear congruential generator, of which the high bits are good enough. */
export function randomIds(seed: number, count: number): number[] {
  let state = seed >>> 0;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return IDS.from + Math.floor((state / 2 ** 32) * (IDS.to - IDS.from));
  });
}

/** What came of a turn. */
export interface Turn {
  readonly answer: readonly number[];
  readonly reuse: Reuse;
}

/** One conversation. Its session has a name, or is found by what it holds. */
export class Talk {
  /** Everything so far, answers included. */
  readonly ids: number[] = [];
  readonly #seed: number;
  readonly #session: string | undefined;
  #turns = 0;

  constructor(seed: number, session?: string, ids: readonly number[] = []) {
    this.#seed = seed;
    this.#session = session;
    this.ids.push(...ids);
  }

  /** Goes on as a conversation that has had so many turns. */
  skip(turns: number): void {
    this.#turns += turns;
  }

  /** Says `count` more ids and takes `max_tokens` for an answer. */
  async turn(engine: Engine, count: number, options: GenerationOptions = {}): Promise<Turn> {
    this.#turns += 1;
    this.ids.push(...randomIds(this.#seed * 1000 + this.#turns, count));
    const turn = await generate(engine, this.ids, { ...options, ...(this.#session === undefined ? {} : { session: this.#session }) });
    this.ids.push(...turn.answer);
    return turn;
  }
}

/** What the model says after `ids`, whatever it is: 8 tokens unless more are asked for. */
export async function generate(engine: Engine, ids: readonly number[], options: GenerationOptions = {}): Promise<Turn> {
  const answer: number[] = [];
  let reuse: Reuse | undefined;
  for await (const step of engine.generate({ ids, max_tokens: 8, temperature: 0, ignore_stop: true, ...options })) {
    answer.push(...step.ids);
    reuse = step.reuse;
  }
  if (reuse === undefined) {
    throw new Error("nothing was generated");
  }
  return { answer, reuse };
}

/** Loads one of the models of the tests. */
export async function load(engine: Engine, name: string, options: ModelOptions = {}): Promise<void> {
  await engine.load(`/tests/golden/${name}/model.gguf`, { keep: false, ...options });
}

/** The code of the error with which `promise` rejects, and the reason; or "ok". */
export async function outcome(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
    return "ok";
  } catch (error) {
    const { code, detail, name } = error as { readonly code?: unknown; readonly detail?: string; readonly name?: string };
    return typeof code === "string" ? `${code}: ${detail ?? ""}` : String(name);
  }
}

/** Where each session is. */
export function places(infos: readonly SessionInfo[]): Record<string, string> {
  return Object.fromEntries(infos.map(({ id, where }) => [id, where]));
}

/** Resolves with the next event of a session. */
export function nextEvent(engine: Engine, code: string): Promise<{ readonly session: string; readonly error: string | undefined }> {
  return new Promise((resolve) => {
    const stop = engine.on("session", (event) => {
      if (event.code === code) {
        stop();
        resolve({ session: event.session, error: (event.error as { readonly code?: string } | undefined)?.code });
      }
    });
  });
}
