/** The bar that shows how far a load is. */

import type { Progress } from "signbit";
import { byId } from "./dom.js";
import { formatBytes } from "./format.js";

type Download = Extract<Progress, { readonly stage: "download" }>;

export class LoadingView {
  readonly #box = byId("loading", HTMLElement);
  readonly #text = byId("loading-text", HTMLElement);
  readonly #bar = byId("loading-bar", HTMLProgressElement);
  #meter = new RateMeter();

  constructor(onCancel: () => void) {
    byId("cancel-load", HTMLButtonElement).addEventListener("click", onCancel);
  }

  /** Without progress a load begins. */
  show(name: string, progress: Progress | undefined): void {
    if (progress === undefined) {
      this.#meter = new RateMeter();
    }
    this.#box.hidden = false;
    const { text, share } = describe(name, progress, this.#meter);
    this.#text.textContent = text;
    if (share === undefined) {
      this.#bar.removeAttribute("value");
    } else {
      this.#bar.value = share;
    }
  }

  hide(): void {
    this.#box.hidden = true;
  }
}

function describe(name: string, progress: Progress | undefined, meter: RateMeter): { text: string; share?: number } {
  if (progress === undefined) {
    return { text: `Opening ${name}` };
  }
  if (progress.stage !== "download") {
    return { text: `Preparing ${name}` };
  }
  const { bytes_seen, bytes_total, part, parts, is_waiting } = progress;
  const files = parts > 1 ? `, file ${part + 1} of ${parts}` : "";
  const hasTotal = bytes_total !== null && bytes_total > 0;
  const amount = hasTotal ? `${formatBytes(bytes_seen)} of ${formatBytes(bytes_total)}` : formatBytes(bytes_seen);
  const rate = is_waiting ? undefined : meter.rate(bytes_seen);
  const speed = rate === undefined ? "" : `, ${formatBytes(rate)}/s`;
  const text = `${activity(name, progress)}${files}: ${amount}${speed}`;
  return hasTotal ? { text, share: bytes_seen / bytes_total } : { text };
}

function activity(name: string, { bytes_seen, bytes_local, is_waiting }: Download): string {
  if (is_waiting) {
    return `Another tab is downloading ${name}`;
  }
  return bytes_local > 0 && bytes_local === bytes_seen ? `Reading ${name} from this computer` : `Downloading ${name}`;
}

/** Over so long a rate is taken: shorter jumps about, longer lags behind. */
const WINDOW_MS = 4000;
/** In less time the arrival of messages decides what a rate comes to. */
const LEAST_MS = 1000;

/** Bytes per second of late. */
class RateMeter {
  #samples: { readonly at: number; readonly bytes: number }[] = [];

  /** Takes note of `bytes` so far; undefined until a rate can be told. */
  rate(bytes: number): number | undefined {
    const at = performance.now();
    this.#samples = this.#samples.filter((sample) => at - sample.at <= WINDOW_MS);
    this.#samples.push({ at, bytes });
    const [first] = this.#samples;
    const elapsed = first === undefined ? 0 : at - first.at;
    return first === undefined || elapsed < LEAST_MS ? undefined : (1000 * (bytes - first.bytes)) / elapsed;
  }
}
