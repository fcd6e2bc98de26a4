/** The official models: those that the device has the memory for, and folded away the others with the reason. */

import { fits, type CatalogueEntry, type DeviceInfo, type StoredModel } from "signbit";
import { byId, element, textButton } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { CATALOGUE, fromEntry, type ModelChoice } from "./model-choice.js";

export class CatalogueList {
  readonly #section = byId("official", HTMLElement);
  readonly #list = byId("official-list", HTMLUListElement);
  readonly #others = byId("official-others", HTMLDetailsElement);
  readonly #othersTitle = byId("official-others-title", HTMLElement);
  readonly #othersList = byId("official-others-list", HTMLUListElement);
  readonly #onChoose: (choice: ModelChoice) => void;
  /** By the model's address. */
  readonly #notes = new Map<string, HTMLElement>();
  #device: DeviceInfo | undefined;
  #kept: readonly StoredModel[] = [];

  constructor(onChoose: (choice: ModelChoice) => void) {
    this.#onChoose = onChoose;
  }

  /** What fits can be told once there is a device. */
  show(device: DeviceInfo | undefined): void {
    // Rows that stay as they are keep their focus.
    if (device === this.#device) {
      return;
    }
    this.#device = device;
    this.#section.hidden = device === undefined;
    if (device === undefined) {
      return;
    }
    const judged = CATALOGUE.map((entry) => ({ entry, ...fits(entry, device) }));
    this.#notes.clear();
    this.#list.replaceChildren(...judged.filter((model) => model.fits).map(({ entry }) => this.#row(entry)));
    this.markKept(this.#kept);
    const others = judged.filter((model) => !model.fits);
    this.#othersList.replaceChildren(
      ...others.map(({ entry, reason }) => row(entry, element("p", "model-note", `${describe(entry)}. ${reason ?? ""}`))),
    );
    this.#othersTitle.textContent = `${others.length} more, too large for this device`;
    this.#others.hidden = others.length === 0;
  }

  /** Says which of them need no download. */
  markKept(kept: readonly StoredModel[]): void {
    this.#kept = kept;
    for (const entry of CATALOGUE) {
      const isHere = kept.some(({ id, is_complete }) => id === entry.url && is_complete);
      const note = this.#notes.get(entry.url);
      if (note !== undefined) {
        note.textContent = `${describe(entry)}${isHere ? ", on this computer" : ""}`;
      }
    }
  }

  #row(entry: CatalogueEntry): HTMLElement {
    const note = element("p", "model-note");
    this.#notes.set(entry.url, note);
    const button = textButton("Load", () => this.#onChoose(fromEntry(entry)));
    button.ariaLabel = `Load ${entry.name}`;
    const item = row(entry, note);
    item.append(button);
    return item;
  }
}

function row({ name }: CatalogueEntry, note: HTMLElement): HTMLElement {
  const text = element("div", "model-text");
  text.append(element("p", "model-title", name), note);
  const item = element("li", "model-row");
  item.append(text);
  return item;
}

function describe({ bytes, parameters }: CatalogueEntry): string {
  return `${formatBytes(bytes)}, ${formatCount(parameters)} parameters`;
}
