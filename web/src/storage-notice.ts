/** Says that a model runs but is not kept, until that is taken note of. */

import type { StorageNotice } from "signbit";
import { byId } from "./dom.js";
import { formatBytes } from "./format.js";

export class StorageNoticeView {
  readonly #box = byId("storage-notice", HTMLElement);
  readonly #text = byId("storage-notice-text", HTMLElement);

  constructor(onManage: () => void) {
    byId("storage-notice-manage", HTMLButtonElement).addEventListener("click", onManage);
    byId("storage-notice-close", HTMLButtonElement).addEventListener("click", () => {
      this.hide();
      byId("prompt", HTMLTextAreaElement).focus({ preventScroll: true });
    });
  }

  /** What is shown, or nothing. */
  get text(): string {
    return this.#box.hidden ? "" : this.#text.textContent;
  }

  show({ message, usage, quota }: StorageNotice): void {
    const figures = usage === null || quota === null ? "" : ` ${formatBytes(usage)} of ${formatBytes(quota)} are used.`;
    this.#text.textContent = `${message}${figures}`;
    this.#box.hidden = false;
  }

  hide(): void {
    this.#box.hidden = true;
  }
}
