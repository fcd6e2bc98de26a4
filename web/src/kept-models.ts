/** The models that are kept on this computer: what they take, and loading, checking and deleting them. */

import type { Engine, StorageUsage, StoredModel } from "signbit";
import { byId } from "./dom.js";
import { formatBytes } from "./format.js";
import { KeptRow } from "./kept-row.js";
import { keptName } from "./model-choice.js";
import { failureSentence } from "./status-view.js";

export interface KeptModelsOptions {
  readonly engine: () => Engine | undefined;
  readonly onLoad: (model: StoredModel) => void;
  /** Called with every list. */
  readonly onList: (models: readonly StoredModel[]) => void;
}

export class KeptModels {
  readonly #heading = byId("kept-title", HTMLElement);
  readonly #list = byId("kept", HTMLUListElement);
  readonly #empty = byId("kept-empty", HTMLElement);
  readonly #usage = byId("kept-usage", HTMLElement);
  readonly #message = byId("kept-message", HTMLElement);
  readonly #options: KeptModelsOptions;
  /** By the model's id. */
  readonly #rows = new Map<string, KeptRow>();
  #refreshes = 0;

  constructor(options: KeptModelsOptions) {
    this.#options = options;
  }

  /** Asks what is kept, and shows it. The last answer counts where several are under way. */
  async refresh(): Promise<void> {
    this.#refreshes += 1;
    const refresh = this.#refreshes;
    const engine = this.#options.engine();
    if (engine === undefined) {
      return;
    }
    try {
      const [models, usage] = await Promise.all([engine.models.list(), engine.models.usage()]);
      if (refresh === this.#refreshes) {
        this.#show(models);
        this.#usage.textContent = describeUsage(usage);
        this.#options.onList(models);
      }
    } catch (error) {
      // An engine that was replaced has been asked in vain.
      if (refresh === this.#refreshes && engine === this.#options.engine()) {
        this.#usage.textContent = failureSentence(error);
      }
    }
  }

  /** Ends checks and takes back questions: nobody sees them any more. */
  settle(): void {
    this.#message.textContent = "";
    for (const row of this.#rows.values()) {
      row.settle();
    }
  }

  #show(models: readonly StoredModel[]): void {
    for (const id of this.#rows.keys()) {
      if (!models.some((model) => model.id === id)) {
        this.#remove(id);
      }
    }
    for (const model of models) {
      this.#row(model).show(model);
    }
    this.#sort(models);
    this.#empty.hidden = models.length > 0;
  }

  #row(model: StoredModel): KeptRow {
    const known = this.#rows.get(model.id);
    if (known !== undefined) {
      return known;
    }
    const row = new KeptRow({
      onLoad: this.#options.onLoad,
      verify: (signal) => this.#engine().models.verify(model.id, { signal }),
      whenVerified: () => void this.refresh(),
      delete: () => this.#delete(model),
    });
    this.#rows.set(model.id, row);
    return row;
  }

  /** Puts rows in order; those that stand right are not moved, for that would take their focus. */
  #sort(models: readonly StoredModel[]): void {
    models.forEach(({ id }, index) => {
      const row = this.#rows.get(id)?.element;
      const present = this.#list.children[index] ?? null;
      if (row !== undefined && row !== present) {
        this.#list.insertBefore(row, present);
      }
    });
  }

  async #delete(model: StoredModel): Promise<void> {
    await this.#engine().models.delete(model.id);
    this.#remove(model.id);
    this.#message.textContent = `${keptName(model)} was deleted: ${formatBytes(model.bytes)} are free again.`;
    await this.refresh();
  }

  /** Takes a row away, and hands its focus to the next one, or to the heading. */
  #remove(id: string): void {
    const row = this.#rows.get(id);
    if (row === undefined) {
      return;
    }
    const { element } = row;
    const heir = (element.nextElementSibling ?? element.previousElementSibling)?.querySelector<HTMLElement>("button:enabled:not([hidden])");
    const hadFocus = element.contains(document.activeElement);
    element.remove();
    this.#rows.delete(id);
    if (hadFocus) {
      (heir ?? this.#heading).focus();
    }
  }

  #engine(): Engine {
    const engine = this.#options.engine();
    if (engine === undefined) {
      throw new Error("the engine is not running");
    }
    return engine;
  }
}

function describeUsage({ model_bytes, usage, quota, is_persisted }: StorageUsage): string {
  const sentences = [`Models take ${formatBytes(model_bytes)}.`];
  if (usage !== null && quota !== null) {
    sentences.push(`This site uses ${formatBytes(usage)} of the ${formatBytes(quota)} that the browser allows.`);
  }
  if (model_bytes > 0 && !is_persisted) {
    sentences.push("When disk space runs short, the browser may delete them.");
  }
  return sentences.join(" ");
}
