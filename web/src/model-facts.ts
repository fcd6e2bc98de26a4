/** What the model dialog tells of the loaded model. */

import type { DeviceInfo, ModelInfo, StoredModel } from "signbit";
import { byId, copyButton, element } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import type { ModelChoice } from "./model-choice.js";
import { deviceName } from "./status-view.js";

/** Digits that are shown of a digest, at its beginning and at its end: enough to compare two by eye. */
const SHOWN_DIGITS = 8;

export class ModelFacts {
  readonly #list = byId("model-facts", HTMLElement);
  readonly #warnings = byId("model-warnings", HTMLElement);

  #files: ModelInfo["files"] = [];
  /** Where to say whether the model is kept, if it could be. */
  #kept: HTMLElement | undefined;

  /** `choice` is what the model was loaded as. */
  show(model: ModelInfo | undefined, device: DeviceInfo | undefined, choice: ModelChoice | undefined): void {
    this.#list.replaceChildren();
    this.#warnings.replaceChildren();
    this.#files = [];
    this.#kept = undefined;
    if (model !== undefined && choice !== undefined) {
      this.#showModel(model, choice);
    }
    if (device !== undefined) {
      this.#add("Runs on", device.backend === "cpu" ? "Processor" : `WebGPU, ${deviceName(device)}`);
    }
    this.#warnings.hidden = this.#warnings.childElementCount === 0;
  }

  /** Brings what is said of the model in line with what is kept by now. */
  markKept(models: readonly StoredModel[]): void {
    const digests = this.#files.map(({ sha256 }) => sha256).join();
    this.#showKept(models.some(({ is_complete, sha256 }) => is_complete && sha256.join() === digests));
  }

  #showModel(model: ModelInfo, choice: ModelChoice): void {
    const types = Object.entries(model.tensor_types).map(([type, count]) => `${count} × ${type}`);
    this.#add("Loaded", model.name ?? choice.name);
    this.#add("Architecture", `${model.architecture}, ${model.layers} layers`);
    this.#add("Parameters", formatCount(model.parameters));
    this.#add("Weights", `${formatBytes(model.weight_bytes)} (${types.join(", ")})`);
    this.#add("Context", `${model.context_length.toLocaleString("en")} tokens`);
    this.#add("Digest", digest(model.digest, "Copy the model's digest"));
    for (const { name, bytes, sha256 } of model.files) {
      this.#add("File", `${fileName(name)}, ${formatBytes(bytes)}`);
      this.#add("SHA-256", digest(sha256, `Copy the SHA-256 of ${fileName(name)}`));
    }
    if (!choice.isBuiltIn) {
      this.#files = model.files;
      this.#kept = this.#add("Kept", "");
      this.#showKept(model.files.every(({ store }) => store !== null));
    }
    this.#warnings.append(...model.warnings.map((warning) => element("li", "", warning)));
  }

  #showKept(isKept: boolean): void {
    if (this.#kept !== undefined) {
      this.#kept.textContent = isKept ? "On this computer" : "No";
    }
  }

  #add(name: string, value: string | HTMLElement): HTMLElement {
    const description = element("dd");
    description.append(value);
    this.#list.append(element("dt", "", name), description);
    return description;
  }
}

/** The ends of a digest; all of it on pointing at it, and by copying. */
function digest(value: string, copyLabel: string): HTMLElement {
  const text = element("code", "", `${value.slice(0, SHOWN_DIGITS)}…${value.slice(-SHOWN_DIGITS)}`);
  text.title = value;
  const line = element("span", "digest");
  line.append(text, copyButton(copyLabel, () => value, "icon"));
  return line;
}

/** Files from addresses are named by them. */
function fileName(name: string): string {
  return name.split("/").pop() || name;
}
