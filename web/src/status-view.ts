/** Everything that says how things stand: device, progress, figures, failures. */

import type { DeviceInfo, FallbackCode, Progress } from "signbit";
import { EngineError } from "signbit";
import { byId, element } from "./dom.js";

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
  readonly #loading = byId("loading", HTMLElement);
  readonly #loadingText = byId("loading-text", HTMLElement);
  readonly #loadingBar = byId("loading-bar", HTMLProgressElement);

  constructor(onCancelLoad: () => void) {
    byId("cancel-load", HTMLButtonElement).addEventListener("click", onCancelLoad);
  }

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

  showLoading(name: string, progress: Progress | undefined): void {
    this.#loading.hidden = false;
    const { text, share } = describeProgress(name, progress);
    this.#loadingText.textContent = text;
    if (share === undefined) {
      this.#loadingBar.removeAttribute("value");
    } else {
      this.#loadingBar.value = share;
    }
  }

  hideLoading(): void {
    this.#loading.hidden = true;
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
  const failure = error instanceof EngineError ? error : new EngineError("internal", { detail: String(error) });
  const content = [element("p", "failure-title", failure.sentence)];
  if (failure.detail !== "") {
    content.push(element("p", "failure-detail", failure.detail));
  }
  content.push(element("p", "", failure.hint));
  if (actions.length > 0) {
    const row = element("div", "failure-actions");
    for (const { label, run } of actions) {
      const button = element("button", "button small", label);
      button.type = "button";
      button.addEventListener("click", run);
      row.append(button);
    }
    content.push(row);
  }
  return content;
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

function describeProgress(name: string, progress: Progress | undefined): { text: string; share?: number } {
  if (progress?.stage !== "download") {
    return { text: progress === undefined ? `Opening ${name}` : `Preparing ${name}` };
  }
  const part = progress.parts > 1 ? `, part ${progress.part + 1} of ${progress.parts}` : "";
  const seen = formatBytes(progress.bytes_seen);
  if (progress.bytes_total === null || progress.bytes_total === 0) {
    return { text: `Loading ${name}${part}: ${seen}` };
  }
  return {
    text: `Loading ${name}${part}: ${seen} of ${formatBytes(progress.bytes_total)}`,
    share: progress.bytes_seen / progress.bytes_total,
  };
}

/** Vendor and name of a device, as far as the browser tells. */
export function deviceName({ vendor, name }: DeviceInfo): string {
  return [vendor, name].filter((part) => part !== "").join(" ") || "graphics device";
}

/** A size as people write it. */
export function formatBytes(bytes: number): string {
  const units = ["bytes", "KB", "MB", "GB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit] ?? ""}`;
}
