/** One answer as it comes: in its chat, and on show. */

import type { ChatCompletionChunk } from "signbit";
import { describeReading, SpeedClock } from "./answer-figures.js";
import type { AnswerView } from "./chat-view.js";
import type { Chat } from "./chat.js";

export class Answer {
  readonly #chat: Chat;
  /** Its place among the chat's messages. */
  readonly #index: number;
  readonly #view: AnswerView;
  readonly #clock = new SpeedClock();
  #content = "";
  #reasoning = "";
  #figures = "";
  #reading = "";
  #ending = "";
  #isFull = false;

  /** The answer to the chat's last question. */
  constructor(chat: Chat, view: AnswerView) {
    this.#chat = chat;
    this.#index = chat.messages.length;
    this.#view = view;
  }

  get content(): string {
    return this.#content;
  }

  /** Tokens and speed; empty before the first token. */
  get figures(): string {
    return this.#figures;
  }

  /** Whether it ended because nothing more fits into the model's context. */
  get isFull(): boolean {
    return this.#isFull;
  }

  /** Adds what has come. `maxTokens` is the longest that the answer was allowed to get. */
  add({ choices: [{ delta, finish_reason }], usage, reuse }: ChatCompletionChunk, maxTokens: number): void {
    if (delta.reasoning_content !== undefined) {
      this.#reasoning += delta.reasoning_content;
      this.#view.appendReasoning(delta.reasoning_content);
    }
    if (delta.content !== undefined) {
      this.#content += delta.content;
      this.#view.appendContent(delta.content);
    }
    this.#figures = this.#clock.figures(usage.completion_tokens);
    this.#reading = `, ${describeReading(reuse)}`;
    if (finish_reason === "length") {
      this.#isFull = usage.completion_tokens < maxTokens;
      this.#ending = `, ended at the ${this.#isFull ? "end of the context" : "longest allowed length"}`;
    }
  }

  /** Puts into the chat what there is, if it is more than thoughts. */
  record(): void {
    if (this.#content !== "") {
      const reasoning = this.#reasoning === "" ? {} : { reasoning_content: this.#reasoning };
      this.#chat.messages[this.#index] = { role: "assistant", content: this.#content, ...reasoning };
    }
  }

  finish(): void {
    this.#view.finish(`${this.#figures}${this.#ending}${this.#reading}`);
  }

  /** Ends it where it is. */
  stop(): void {
    this.#view.finish(this.#figures === "" ? "Stopped" : `${this.#figures}, stopped${this.#reading}`);
  }
}
