/** What says how things stand: device, figures, failures. */

import type { DeviceInfo, FallbackCode } from "signbit";
import { EngineError } from "signbit";
import { byId, element, textButton } from "./dom.js";

/** A thing that a person can do about a failure. */
export interface FailureAction {
  readonly label: string;
  readonly run: () => void;
}

export class StatusView {
  readonly #device = byId("device", HTMLElement);
  readonly #dot = byId("device-dot", HTMLElement);
  readonly #status = byId("status", HTMLElement);
  readonly #live = byId("live", HTMLElement);
  readonly #notice = byId("notice", HTMLElement);

  /** The line under the message box. */
  get device(): string {
    return this.#device.textContent;
  }

  showDevice(device: DeviceInfo): void {
    this.#dot.className = `device-dot ${device.backend}`;
    this.#device.textContent = describeDevice(device);
    this.#device.title = device.fallback_reason?.message ?? device.name;
  }

  showNoDevice(text: string): void {
    this.#dot.className = "device-dot";
    this.#device.textContent = text;
    this.#device.title = "";
  }

  /** The short line in the message box. */
  showStatus(text: string): void {
    this.#status.textContent = text;
  }

  /** Says something to those who do not see the page. */
  announce(text: string): void {
    this.#live.textContent = text;
  }

  /** A failure that concerns no single answer. */
  showFailure(error: unknown, actions: readonly FailureAction[]): void {
    this.#notice.replaceChildren(...failureContent(error, actions));
    this.#notice.hidden = false;
    this.#notice.scrollIntoView({ block: "nearest" });
  }

  hideFailure(): void {
    this.#notice.hidden = true;
    this.#notice.replaceChildren();
  }
}

/** What happened, the facts, the next step, and buttons for it. */
export function failureContent(error: unknown, actions: readonly FailureAction[]): HTMLElement[] {
  const failure = engineError(error);
  const content = [element("p", "failure-title", failure.sentence)];
  if (failure.detail !== "") {
    content.push(element("p", "failure-detail", failure.detail));
  }
  content.push(element("p", "", failure.hint));
  if (actions.length > 0) {
    const row = element("div", "failure-actions");
    row.append(...actions.map(({ label, run }) => textButton(label, run)));
    content.push(row);
  }
  return content;
}

/** What happened, in one sentence. */
export function failureSentence(error: unknown): string {
  return `${engineError(error).message.replace(/\.$/, "")}.`;
}

function engineError(error: unknown): EngineError {
  return error instanceof EngineError ? error : new EngineError("internal", { detail: String(error) });
}

const FALLBACKS: Readonly<Record<FallbackCode, string>> = {
  no_webgpu: "this browser offers no WebGPU",
  no_adapter: "WebGPU found no graphics device",
  software_adapter: "there is no graphics device but one in software",
  adapter_refused: "the graphics device could not be opened",
  device_unreliable: "the graphics device gave wrong results",
  device_lost: "the graphics device was lost",
};

function describeDevice(device: DeviceInfo): string {
  if (device.backend === "webgpu") {
    return `Runs on WebGPU: ${deviceName(device)}${device.is_fallback ? " (in software)" : ""}`;
  }
  const reason = device.fallback_reason;
  return `Runs on the processor${reason === null ? ", as set" : `: ${FALLBACKS[reason.code]}`}.`;
}

/** Vendor and name of a device, as far as the browser tells. */
export function deviceName({ vendor, name }: DeviceInfo): string {
  return [vendor, name].filter((part) => part !== "").join(" ") || "graphics device";
}
