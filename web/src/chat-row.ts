/** One chat in the list, with its buttons and the question before it is deleted. */

import type { ChatInfo } from "./chat.js";
import { element, iconOnlyButton, textButton } from "./dom.js";
import { formatMoment } from "./format.js";

export interface ChatRowOptions {
  readonly onOpen: () => void;
  readonly onExport: () => void;
  readonly delete: () => Promise<void>;
}

export class ChatRow {
  readonly element = element("li", "chat-row");
  readonly #open = element("button", "chat-open");
  readonly #title = element("span", "chat-title");
  readonly #note = element("span", "chat-note");
  readonly #actions = element("div", "row-actions");
  readonly #export: HTMLButtonElement;
  readonly #delete: HTMLButtonElement;
  readonly #options: ChatRowOptions;

  constructor(options: ChatRowOptions) {
    this.#options = options;
    this.#export = iconOnlyButton("export", "Export", options.onExport);
    this.#delete = iconOnlyButton("trash", "Delete", () => this.#ask());
    this.#open.type = "button";
    this.#open.append(this.#title, this.#note);
    this.#open.addEventListener("click", options.onOpen);
    this.#actions.addEventListener("keydown", (event) => {
      // It is the question that is left, not the panel.
      if (event.key === "Escape" && !this.#delete.isConnected) {
        event.preventDefault();
        this.#takeBack();
      }
    });
    this.#showActions();
    this.element.append(this.#open, this.#actions);
  }

  show({ title, model, changedAt }: ChatInfo, isCurrent: boolean): void {
    this.#title.textContent = title;
    this.#title.title = title;
    this.#note.textContent = [formatMoment(changedAt), ...(model === null ? [] : [model.name])].join(", ");
    this.#open.ariaCurrent = isCurrent ? "true" : null;
    this.#export.ariaLabel = `Export ${title}`;
    this.#delete.ariaLabel = `Delete ${title}`;
  }

  /** Takes back the question. */
  settle(): void {
    this.#showActions();
  }

  focus(): void {
    this.#open.focus();
  }

  /** Asks whether to delete, in place of the buttons. */
  #ask(): void {
    const title = this.#title.textContent;
    const confirm = textButton("Delete", () => {
      // A disabled button would lose the focus that the next row is to get.
      confirm.ariaDisabled = "true";
      void this.#options.delete();
    });
    confirm.classList.add("danger");
    confirm.ariaLabel = `Delete ${title} for good`;
    const cancel = textButton("Keep", () => this.#takeBack());
    cancel.ariaLabel = `Keep ${title}`;
    this.#actions.replaceChildren(confirm, cancel);
    cancel.focus();
  }

  #takeBack(): void {
    this.#showActions();
    this.#delete.focus();
  }

  #showActions(): void {
    this.#actions.replaceChildren(this.#export, this.#delete);
  }
}
