/** The conversation as it is seen: one element per turn, the last one growing. */

import { byId, copyButton, element, iconButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { failureContent, type FailureAction } from "./status-view.js";

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

  addUser(text: string): void {
    this.#welcome.hidden = true;
    const turn = element("li", "turn user");
    turn.append(element("span", "visually-hidden", "You: "), text);
    this.#list.append(turn);
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

  clear(): void {
    this.#list.replaceChildren();
    this.#welcome.hidden = false;
    this.#main.scrollTop = 0;
  }

  scrollToEnd(): void {
    this.#main.scrollTop = this.#main.scrollHeight;
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
