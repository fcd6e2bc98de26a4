/** Choosing a model: the built-in one, an address, local files by dialog or by drag and drop. */

import type { DeviceInfo, ModelInfo, ModelSource } from "signbit";
import noticeUrl from "../../models/NOTICE.txt?url";
import builtInUrl from "../../models/signbit-mini.gguf?url";
import { byId, element } from "./dom.js";
import { deviceName, formatBytes } from "./status-view.js";

/** A model that can be loaded, with the name to show meanwhile. */
export interface ModelChoice {
  readonly source: ModelSource;
  readonly name: string;
  readonly isBuiltIn: boolean;
}

export const BUILT_IN: ModelChoice = { source: builtInUrl, name: "Signbit Mini", isBuiltIn: true };

export class ModelPicker {
  readonly #dialog = byId("model-dialog", HTMLDialogElement);
  readonly #name = byId("model-name", HTMLElement);
  readonly #facts = byId("model-facts", HTMLElement);
  readonly #warnings = byId("model-warnings", HTMLElement);
  readonly #onChoose: (choice: ModelChoice) => void;

  constructor(onChoose: (choice: ModelChoice) => void) {
    this.#onChoose = onChoose;
    byId("model-button", HTMLButtonElement).addEventListener("click", () => this.open());
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
      const url = byId("url", HTMLInputElement).value.trim();
      this.#choose({ source: url, name: fileName(url), isBuiltIn: false });
    });
    this.#acceptDrops(byId("drop-target", HTMLElement));
  }

  open(): void {
    if (!this.#dialog.open) {
      this.#dialog.showModal();
    }
  }

  /** Shows the loaded model, or that there is none. */
  show(model: ModelInfo | undefined, device: DeviceInfo | undefined, label: string): void {
    this.#name.textContent = label;
    this.#facts.replaceChildren();
    this.#warnings.replaceChildren();
    if (model !== undefined) {
      const types = Object.entries(model.tensor_types).map(([type, count]) => `${count} × ${type}`);
      this.#addFact("Loaded", model.name ?? label);
      this.#addFact("Architecture", `${model.architecture}, ${model.layers} layers`);
      this.#addFact("Parameters", formatCount(model.parameters));
      this.#addFact("Weights", `${formatBytes(model.weight_bytes)} (${types.join(", ")})`);
      this.#addFact("Context", `${model.context_length.toLocaleString("en")} tokens`);
      this.#warnings.append(...model.warnings.map((warning) => element("li", "", warning)));
    }
    if (device !== undefined) {
      this.#addFact("Runs on", device.backend === "cpu" ? "Processor" : `WebGPU, ${deviceName(device)}`);
    }
    this.#warnings.hidden = this.#warnings.childElementCount === 0;
  }

  #addFact(name: string, value: string): void {
    this.#facts.append(element("dt", "", name), element("dd", "", value));
  }

  #choose(choice: ModelChoice): void {
    this.#dialog.close();
    this.#onChoose(choice);
  }

  #chooseFiles(files: readonly File[]): void {
    const [first] = files;
    if (first !== undefined) {
      this.#choose({ source: files, name: first.name, isBuiltIn: false });
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

function fileName(url: string): string {
  return url.split(/[?#]/, 1)[0]?.split("/").pop() || url;
}

function formatCount(count: number): string {
  const units: readonly [number, string][] = [
    [1e9, "billion"],
    [1e6, "million"],
  ];
  for (const [size, name] of units) {
    if (count >= size) {
      return `${(count / size).toFixed(count >= 10 * size ? 0 : 1)} ${name}`;
    }
  }
  return count.toLocaleString("en");
}
