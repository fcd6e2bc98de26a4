/** One question, and its editor. */

import { element, iconOnlyButton } from "./dom.js";

export interface UserTurnOptions {
  readonly canSend: () => boolean;
  /** Receives what the question is to be instead. */
  readonly onEdit: (text: string) => void;
  /** Is called when the editor has closed without that. */
  readonly onCancel: () => void;
}

export class UserTurn {
  readonly element = element("li", "turn user");
  readonly #bubble: HTMLElement;
  readonly #edit = iconOnlyButton("edit", "Edit", () => this.#open());
  readonly #text: string;
  readonly #options: UserTurnOptions;

  constructor(text: string, options: UserTurnOptions) {
    this.#text = text;
    this.#options = options;
    this.#bubble = element("div", "bubble");
    this.#bubble.append(element("span", "visually-hidden", "You: "), text);
    this.#edit.classList.add("edit");
    this.#close();
  }

  #open(): void {
    const editor = element("form", "turn-editor");
    const field = element("textarea");
    field.value = this.#text;
    field.rows = 1;
    field.ariaLabel = "Edit the message";
    const cancel = element("button", "button small", "Cancel");
    cancel.type = "button";
    const send = element("button", "button small primary send-edit", "Send");
    send.disabled = !this.#options.canSend();
    const note = element("p", "", "What comes after it is replaced.");
    const foot = element("div", "turn-editor-foot");
    foot.append(note, cancel, send);
    editor.append(field, foot);
    const leave = (): void => {
      this.#close();
      this.#edit.focus();
      this.#options.onCancel();
    };
    cancel.addEventListener("click", leave);
    editor.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        // An answer that is being given goes on.
        event.stopPropagation();
        leave();
      } else if (event.key === "Enter" && event.target === field && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        editor.requestSubmit(send.disabled ? undefined : send);
      }
    });
    editor.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (text !== "" && this.#options.canSend()) {
        this.#options.onEdit(text);
      }
    });
    this.element.replaceChildren(editor);
    field.focus();
  }

  #close(): void {
    this.element.replaceChildren(this.#edit, this.#bubble);
  }
}
