/** One kept model, with its buttons, the question before it is deleted, and what a check has found. */

import { isAbortError, type StoredModel, type Verification } from "signbit";
import { element, textButton } from "./dom.js";
import { formatBytes, formatDay } from "./format.js";
import { keptName } from "./model-choice.js";
import { failureSentence } from "./status-view.js";

export interface KeptRowOptions {
  readonly onLoad: (model: StoredModel) => void;
  readonly verify: (signal: AbortSignal) => Promise<Verification>;
  /** What is kept may be less than before. */
  readonly whenVerified: () => void;
  readonly delete: () => Promise<void>;
}

export class KeptRow {
  readonly element = element("li", "model-row kept");
  readonly #title = element("p", "model-title");
  readonly #note = element("p", "model-note");
  readonly #actions = element("div", "row-actions");
  readonly #message = element("p", "row-message");
  readonly #load = textButton("Load", () => this.#loadModel());
  readonly #check = textButton("Check", () => void this.#toggleCheck());
  readonly #delete = textButton("Delete", () => this.#ask());
  readonly #options: KeptRowOptions;
  #model: StoredModel | undefined;
  #checking: AbortController | undefined;

  constructor(options: KeptRowOptions) {
    this.#options = options;
    this.#message.setAttribute("role", "status");
    this.#showActions();
    this.#actions.addEventListener("keydown", (event) => {
      // It is the question that is left, not the dialog.
      if (event.key === "Escape" && !this.#delete.isConnected) {
        event.preventDefault();
        this.#takeBack();
      }
    });
    const text = element("div", "model-text");
    text.append(this.#title, this.#note);
    this.element.append(text, this.#actions, this.#message);
  }

  show(model: StoredModel): void {
    this.#model = model;
    const name = keptName(model);
    this.#title.textContent = name;
    this.#note.textContent = describe(model);
    this.#note.title = model.id;
    this.#load.textContent = model.is_complete ? "Load" : "Continue";
    // What is missing of a local file, only that file has.
    this.#load.hidden = !model.is_complete && !isFromAddress(model);
    this.#load.ariaLabel = `${this.#load.textContent} ${name}`;
    this.#delete.ariaLabel = `Delete ${name}`;
    this.#showCheck();
  }

  /** Ends a check and takes back the question. */
  settle(): void {
    this.#checking?.abort();
    this.#showActions();
    this.#message.textContent = "";
  }

  #loadModel(): void {
    if (this.#model !== undefined) {
      this.#options.onLoad(this.#model);
    }
  }

  async #toggleCheck(): Promise<void> {
    if (this.#checking !== undefined) {
      this.#checking.abort();
      return;
    }
    const controller = new AbortController();
    this.#checking = controller;
    this.#showCheck();
    this.#message.textContent = "Reading all of it";
    let message: string;
    try {
      message = describeFindings(await this.#options.verify(controller.signal));
      this.#options.whenVerified();
    } catch (error) {
      message = controller.signal.aborted || isAbortError(error) ? "" : failureSentence(error);
    }
    this.#checking = undefined;
    this.#message.textContent = message;
    this.#showCheck();
  }

  #showCheck(): void {
    const isChecking = this.#checking !== undefined;
    this.#check.textContent = isChecking ? "Stop" : "Check";
    this.#check.ariaLabel = `${isChecking ? "Stop checking" : "Check"} ${this.#title.textContent}`;
    this.#load.disabled = isChecking;
    this.#delete.disabled = isChecking;
  }

  /** Asks whether to delete, in place of the buttons. */
  #ask(): void {
    this.#message.textContent = "";
    const bytes = formatBytes(this.#model?.bytes ?? 0);
    const question = element("span", "row-question", `Delete ${bytes}?`);
    const confirm = textButton("Delete", () => void this.#deleteModel(confirm));
    confirm.classList.add("danger");
    confirm.ariaLabel = `Delete ${this.#title.textContent} for good`;
    const cancel = textButton("Keep", () => this.#takeBack());
    cancel.ariaLabel = `Keep ${this.#title.textContent}`;
    this.#actions.replaceChildren(question, confirm, cancel);
    cancel.focus();
  }

  #takeBack(): void {
    this.#showActions();
    this.#delete.focus();
  }

  async #deleteModel(confirm: HTMLButtonElement): Promise<void> {
    // A disabled button would lose the focus that the next row is to get.
    confirm.ariaDisabled = "true";
    try {
      await this.#options.delete();
    } catch (error) {
      this.#takeBack();
      this.#message.textContent = failureSentence(error);
    }
  }

  #showActions(): void {
    this.#actions.replaceChildren(this.#load, this.#check, this.#delete);
  }
}

function describe(model: StoredModel): string {
  const { bytes, bytes_total, is_complete, parts, used_at } = model;
  const total = bytes_total === null ? "" : ` of ${formatBytes(bytes_total)}`;
  const size = is_complete ? formatBytes(bytes) : `${formatBytes(bytes)}${total} so far`;
  const files = parts > 1 ? ` in ${parts} files` : "";
  const rest = is_complete || isFromAddress(model) ? "" : ", choose the file again for the rest";
  return `${size}${files}, from ${origin(model)}, used ${formatDay(used_at)}${rest}`;
}

function isFromAddress({ id }: StoredModel): boolean {
  return /^https?:/i.test(id);
}

function origin(model: StoredModel): string {
  return isFromAddress(model) ? new URL(model.id).host : "a file";
}

function describeFindings({ bytes, is_complete, faults }: Verification): string {
  const intact = `${formatBytes(bytes)} are as they were written.`;
  if (faults.length === 0) {
    return is_complete ? `Nothing is wrong: all ${intact}` : `Nothing is wrong so far: ${intact}`;
  }
  const lost = formatBytes(faults.reduce((sum, { length }) => sum + length, 0));
  return faults.length === 1
    ? `${lost} in one place are damaged or missing, and will be fetched again; ${intact}`
    : `${lost} in ${faults.length} places are damaged or missing, and will be fetched again; ${intact}`;
}
