/** An async iterator over values that arrive when they want. */

/**
 * Holds values until they are asked for. The producer is never slowed down: a reader that stops
 * reading without a word must not keep the engine from the next request.
 */
export class StepStream<T> implements AsyncIterableIterator<T, undefined, undefined> {
  readonly #values: T[] = [];
  readonly #waiting: { resolve(result: IteratorResult<T, undefined>): void; reject(error: unknown): void }[] = [];
  readonly #onReturn: () => void;
  #end: { readonly error?: unknown } | undefined;

  /** `onReturn` is called when the reader leaves before the end. */
  constructor(onReturn: () => void) {
    this.#onReturn = onReturn;
  }

  push(value: T): void {
    if (this.#end !== undefined) {
      return;
    }
    const reader = this.#waiting.shift();
    if (reader === undefined) {
      this.#values.push(value);
    } else {
      reader.resolve({ done: false, value });
    }
  }

  /** Ends the stream; values already pushed are still delivered. */
  close(): void {
    this.#end ??= {};
    for (const reader of this.#waiting.splice(0)) {
      reader.resolve({ done: true, value: undefined });
    }
  }

  /** Ends the stream with an error, which the reader gets once, after the values already pushed. */
  fail(error: unknown): void {
    if (this.#end !== undefined) {
      return;
    }
    const reader = this.#waiting.shift();
    if (reader === undefined) {
      this.#end = { error };
    } else {
      reader.reject(error);
    }
    this.close();
  }

  next(): Promise<IteratorResult<T, undefined>> {
    const value = this.#values.shift();
    if (value !== undefined) {
      return Promise.resolve({ done: false, value });
    }
    if (this.#end === undefined) {
      return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
    }
    if ("error" in this.#end) {
      const { error } = this.#end;
      this.#end = {};
      return Promise.reject(error);
    }
    return Promise.resolve({ done: true, value: undefined });
  }

  return(): Promise<IteratorResult<T, undefined>> {
    const wasOpen = this.#end === undefined;
    this.#values.length = 0;
    this.#end = {};
    this.close();
    if (wasOpen) {
      this.#onReturn();
    }
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
