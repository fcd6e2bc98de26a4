/** Says that the chat on show was held with another model than the loaded one, and offers that model. */

import { byId } from "./dom.js";

export class ModelHint {
  readonly #box = byId("model-hint", HTMLElement);
  readonly #text = byId("model-hint-text", HTMLElement);
  readonly #load = byId("model-hint-load", HTMLButtonElement);
  #onLoad: (() => void) | undefined;

  get text(): string {
    return this.#text.textContent;
  }

  constructor() {
    this.#load.addEventListener("click", () => this.#onLoad?.());
  }

  /** Without `onLoad` the model cannot be had here. */
  show(name: string, onLoad: (() => void) | undefined): void {
    this.#onLoad = onLoad;
    this.#text.textContent = `This chat was held with ${name}${onLoad === undefined ? ", which is not kept in this browser" : ""}.`;
    this.#load.textContent = `Load ${name}`;
    this.#load.hidden = onLoad === undefined;
    this.#box.hidden = false;
  }

  hide(): void {
    this.#box.hidden = true;
  }
}
