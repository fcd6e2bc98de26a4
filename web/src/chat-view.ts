/** The conversation as it is seen: one element per turn, the last one growing. */

import { byId, copyButton, element, iconButton, textButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { failureContent, type FailureAction } from "./status-view.js";
import { UserTurn } from "./user-turn.js";

/** Formatting the whole answer again for each token would cost more than computing it. */
const RENDER_INTERVAL_MS = 40;
/** The longer the answer, the longer formatting takes: between two times lies this many times that. */
const RENDER_PAUSE_RATIO = 10;
/** Closer to the end than this, in pixels, the view follows the text. */
const FOLLOW_DISTANCE = 80;

export class ChatView {
  readonly #list = byId("conversation", HTMLOListElement);
  readonly #welcome = byId("welcome", HTMLElement);
  readonly #main = byId("main", HTMLElement);
  #canSend = false;

  /** Whether a question would be answered now. */
  setCanSend(canSend: boolean): void {
    this.#canSend = canSend;
    for (const button of this.#list.querySelectorAll<HTMLButtonElement>(".send-edit")) {
      button.disabled = !canSend;
    }
  }

  /**
   * `onEdit` receives what the question is to be instead, once it and all behind it is gone. `onCancel` is called when
   * its editor has closed without that.
   */
  addUser(text: string, onEdit: (text: string) => void, onCancel: () => void): void {
    this.#welcome.hidden = true;
    const turn = new UserTurn(text, {
      canSend: () => this.#canSend,
      onEdit: (changed) => {
        this.#removeFrom(turn.element);
        onEdit(changed);
      },
      onCancel,
    });
    this.#list.append(turn.element);
    this.scrollToEnd();
  }

  addAnswer(onRegenerate: () => void): AnswerView {
    const view = new AnswerView(() => this.#follow(), onRegenerate);
    // Only the last answer can be given once more.
    for (const control of this.#list.querySelectorAll(".regenerate, .failure-actions")) {
      control.remove();
    }
    this.#list.append(view.element);
    this.scrollToEnd();
    return view;
  }

  /** Whether someone is writing in the conversation. */
  get isEditing(): boolean {
    return this.#list.querySelector(".turn-editor") !== null;
  }

  clear(): void {
    this.#list.replaceChildren();
    this.#welcome.hidden = false;
    this.#main.scrollTop = 0;
  }

  scrollToEnd(): void {
    this.#main.scrollTop = this.#main.scrollHeight;
  }

  #removeFrom(turn: Element): void {
    while (turn.nextElementSibling !== null) {
      turn.nextElementSibling.remove();
    }
    turn.remove();
  }

  /** Returns what to do after the text has grown: stay at the end, but only for one who was there. */
  #follow(): () => void {
    const { scrollTop, scrollHeight, clientHeight } = this.#main;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < FOLLOW_DISTANCE;
    return () => {
      if (isAtEnd) {
        this.scrollToEnd();
      }
    };
  }
}

/** One answer while it is written and after. */
export class AnswerView {
  readonly element = element("li", "turn assistant busy");
  readonly #follow: () => () => void;
  readonly #onRegenerate: () => void;
  readonly #answer = element("div", "answer empty");
  #thinking: { readonly box: HTMLDetailsElement; readonly label: HTMLElement; readonly text: HTMLElement } | undefined;
  #content = "";
  #nextRenderAt = 0;

  constructor(follow: () => () => void, onRegenerate: () => void) {
    this.#follow = follow;
    this.#onRegenerate = onRegenerate;
    this.element.append(element("span", "visually-hidden", "Signbit: "), this.#answer);
    this.element.setAttribute("aria-busy", "true");
  }

  appendReasoning(text: string): void {
    const settle = this.#follow();
    this.#thinking ??= this.#addThinking();
    this.#thinking.text.append(text);
    settle();
  }

  appendContent(text: string): void {
    if (this.#content === "" && this.#thinking !== undefined) {
      this.#closeThinking();
    }
    this.#content += text;
    const start = performance.now();
    if (start >= this.#nextRenderAt) {
      this.#render();
      const end = performance.now();
      this.#nextRenderAt = end + Math.max(RENDER_INTERVAL_MS, (end - start) * RENDER_PAUSE_RATIO);
    }
  }

  /** Shows an answer of old. */
  restore(content: string, reasoning: string): void {
    if (reasoning !== "") {
      this.appendReasoning(reasoning);
    }
    this.#content = content;
    this.finish("");
  }

  /** Ends the answer. `figures` is a line such as the speed. */
  finish(figures: string): void {
    this.#settle();
    const foot = element("div", "turn-foot");
    if (this.#content !== "") {
      foot.append(copyButton("Copy", () => this.#content));
    }
    foot.append(this.#regenerateButton(), element("span", "turn-figures", figures));
    this.#append(foot);
  }

  /** Says what stands in the way of more, and offers what can be done. */
  offer(text: string, actions: readonly FailureAction[]): void {
    const box = element("div", "offer");
    const row = element("div", "failure-actions");
    row.append(...actions.map(({ label, run }) => textButton(label, run)));
    box.append(element("p", "", text), row);
    this.#append(box);
  }

  fail(error: unknown, actions: readonly FailureAction[]): void {
    this.#settle();
    this.#answer.hidden = this.#content === "";
    const box = element("div", "failure");
    box.setAttribute("role", "alert");
    box.append(...failureContent(error, actions));
    this.#append(box);
  }

  #settle(): void {
    this.#render();
    this.#closeThinking();
    this.element.classList.remove("busy");
    this.element.removeAttribute("aria-busy");
  }

  #append(node: HTMLElement): void {
    const settle = this.#follow();
    this.element.append(node);
    settle();
  }

  #render(): void {
    const settle = this.#follow();
    this.#answer.classList.toggle("empty", this.#content === "");
    renderMarkdown(this.#answer, this.#content);
    settle();
  }

  #addThinking(): { box: HTMLDetailsElement; label: HTMLElement; text: HTMLElement } {
    const box = element("details", "thinking");
    const label = element("summary", "", "Thinking");
    const text = element("div", "thinking-text");
    box.open = true;
    box.append(label, text);
    this.#answer.before(box);
    return { box, label, text };
  }

  #closeThinking(): void {
    if (this.#thinking !== undefined && this.#thinking.label.textContent === "Thinking") {
      this.#thinking.label.textContent = "Thoughts";
      this.#thinking.box.open = false;
    }
  }

  #regenerateButton(): HTMLButtonElement {
    const button = iconButton("again", "Regenerate", this.#onRegenerate);
    button.classList.add("regenerate");
    return button;
  }
}
