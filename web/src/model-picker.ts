/** Choosing a model: one that is kept, an official one, the built-in one, local files, an address. */

import type { DeviceInfo, Engine, ModelInfo } from "signbit";
import noticeUrl from "../../models/NOTICE.txt?url";
import { CatalogueList } from "./catalogue-list.js";
import { byId } from "./dom.js";
import { KeptModels } from "./kept-models.js";
import { BUILT_IN, fromAddress, fromFiles, fromKept, type ModelChoice } from "./model-choice.js";
import { ModelFacts } from "./model-facts.js";

export class ModelPicker {
  readonly #dialog = byId("model-dialog", HTMLDialogElement);
  readonly #name = byId("model-name", HTMLElement);
  readonly #keepFile = byId("keep-file", HTMLInputElement);
  readonly #facts = new ModelFacts();
  readonly #catalogue = new CatalogueList((choice) => this.#choose(choice));
  readonly #kept: KeptModels;
  readonly #onChoose: (choice: ModelChoice) => void;

  constructor(engine: () => Engine | undefined, onChoose: (choice: ModelChoice) => void) {
    this.#onChoose = onChoose;
    this.#kept = new KeptModels({
      engine,
      onLoad: (model) => this.#choose(fromKept(model)),
      onList: (models) => {
        this.#catalogue.markKept(models);
        this.#facts.markKept(models);
      },
    });
    byId("model-button", HTMLButtonElement).addEventListener("click", () => this.open());
    this.#dialog.addEventListener("close", () => this.#kept.settle());
    byId("built-in-notice", HTMLAnchorElement).href = noticeUrl;
    byId("load-built-in", HTMLButtonElement).addEventListener("click", () => this.#choose(BUILT_IN));
    const file = byId("file", HTMLInputElement);
    byId("pick-file", HTMLButtonElement).addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      this.#chooseFiles([...(file.files ?? [])]);
      // The same file can be chosen again after a failure.
      file.value = "";
    });
    byId("url-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.#choose(fromAddress(byId("url", HTMLInputElement).value.trim()));
    });
    this.#acceptDrops(byId("drop-target", HTMLElement));
  }

  open(): void {
    if (!this.#dialog.open) {
      this.#dialog.showModal();
      this.#dialog.scrollTop = 0;
      void this.#kept.refresh();
    }
  }

  /** Shows the loaded model, or that there is none. `choice` is what it was loaded as, or what is being loaded. */
  show(model: ModelInfo | undefined, device: DeviceInfo | undefined, choice: ModelChoice | undefined): void {
    this.#name.textContent = choice?.name ?? "No model";
    this.#facts.show(model, device, choice);
    this.#catalogue.show(device);
    if (this.#dialog.open) {
      void this.#kept.refresh();
    }
  }

  #choose(choice: ModelChoice): void {
    this.#dialog.close();
    this.#onChoose(choice);
  }

  #chooseFiles([first, ...others]: readonly File[]): void {
    if (first !== undefined) {
      this.#choose(fromFiles([first, ...others], this.#keepFile.checked));
    }
  }

  #acceptDrops(target: HTMLElement): void {
    // Children fire their own enter and leave, so the pointer is inside while more have been entered.
    let depth = 0;
    const hasFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
    document.addEventListener("dragenter", (event) => {
      if (hasFiles(event)) {
        depth += 1;
        target.hidden = false;
      }
    });
    document.addEventListener("dragleave", (event) => {
      if (hasFiles(event)) {
        depth -= 1;
        target.hidden = depth <= 0;
      }
    });
    document.addEventListener("dragover", (event) => {
      if (hasFiles(event)) {
        event.preventDefault();
      }
    });
    document.addEventListener("drop", (event) => {
      if (hasFiles(event)) {
        event.preventDefault();
        depth = 0;
        target.hidden = true;
        this.#chooseFiles([...(event.dataTransfer?.files ?? [])]);
      }
    });
  }
}
