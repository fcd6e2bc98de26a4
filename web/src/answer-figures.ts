/** What is said of an answer in figures. */

import type { Reuse } from "signbit";

/** In less time the arrival of messages decides what a rate comes to. */
const LEAST_S = 0.05;

/** Tokens per second from the first token on; before it lies the reading of the prompt. */
export class SpeedClock {
  #firstAt: number | undefined;
  #firstCount = 0;

  figures(tokens: number): string {
    const now = performance.now();
    if (this.#firstAt === undefined) {
      this.#firstAt = now;
      this.#firstCount = tokens;
    }
    const elapsed_s = (now - this.#firstAt) / 1000;
    const rate = (tokens - this.#firstCount) / elapsed_s;
    const count = `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
    return elapsed_s >= LEAST_S && rate > 0 ? `${count}, ${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s` : count;
  }
}

/** How much of the prompt was read anew: the engine had the rest in its caches. */
export function describeReading({ prefilled, prompt, dropped }: Reuse): string {
  const count = prefilled < prompt ? `${prefilled.toLocaleString("en")} of ${prompt.toLocaleString("en")}` : prompt.toLocaleString("en");
  const loss = dropped > 0 ? "; the beginning of the conversation is no longer seen" : "";
  return `read ${count} tokens${loss}`;
}
