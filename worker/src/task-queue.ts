/** Tasks one after the other, in the order in which they came. */

import { abortError } from "./errors.js";

interface Waiting {
  /** Never rejects. */
  start(): Promise<void>;
  reject(error: unknown): void;
}

export class TaskQueue {
  readonly #waiting: Waiting[] = [];
  #isRunning = false;

  /**
   * Runs `task` when all earlier ones are over and resolves as it does. While it waits, an abort
   * takes it out; once it runs, the signal is its own affair.
   */
  add<T>(task: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted === true) {
        reject(abortError());
        return;
      }
      const leave = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(entry), 1);
        reject(abortError());
      };
      const entry: Waiting = {
        start: () => {
          signal?.removeEventListener("abort", leave);
          return task().then(resolve, reject);
        },
        reject: (error) => {
          signal?.removeEventListener("abort", leave);
          reject(error);
        },
      };
      signal?.addEventListener("abort", leave, { once: true });
      this.#waiting.push(entry);
      void this.#drain();
    });
  }

  /** Rejects all tasks that have not started. */
  clear(reason: Error): void {
    for (const entry of this.#waiting.splice(0)) {
      entry.reject(reason);
    }
  }

  async #drain(): Promise<void> {
    if (this.#isRunning) {
      return;
    }
    this.#isRunning = true;
    for (let entry = this.#waiting.shift(); entry !== undefined; entry = this.#waiting.shift()) {
      await entry.start();
    }
    this.#isRunning = false;
  }
}
