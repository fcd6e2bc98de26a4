/** What a person can set, kept in this browser. */

import type { BackendChoice } from "signbit";
import { byId } from "./dom.js";

/** What happens to an answer when the model's context is full. */
export type ContextEnd = "stop" | "roll";
export type Theme = "system" | "light" | "dark";

export interface Settings {
  readonly systemPrompt: string;
  /** Null takes what the model recommends. */
  readonly temperature: number | null;
  readonly maxTokens: number;
  readonly contextEnd: ContextEnd;
  readonly backend: BackendChoice;
  readonly theme: Theme;
  /** Null thinks where the model is made for it. */
  readonly thinking: boolean | null;
}

const STORAGE_KEY = "signbit.settings";
const DEFAULTS: Settings = {
  systemPrompt: "",
  temperature: null,
  maxTokens: 1024,
  contextEnd: "stop",
  backend: "auto",
  theme: "system",
  thinking: null,
};

/** The settings dialog and the values behind it. */
export class SettingsPanel {
  readonly #dialog = byId("settings-dialog", HTMLDialogElement);
  readonly #systemPrompt = byId("system-prompt", HTMLTextAreaElement);
  readonly #temperature = byId("temperature", HTMLInputElement);
  readonly #temperatureValue = byId("temperature-value", HTMLOutputElement);
  readonly #maxTokens = byId("max-tokens", HTMLInputElement);
  readonly #contextEnd = byId("context-end", HTMLSelectElement);
  readonly #backend = byId("backend", HTMLSelectElement);
  readonly #theme = byId("theme", HTMLSelectElement);
  #settings = read();
  #recommendedTemperature = 0;

  constructor(onBackendChange: (backend: BackendChoice) => void) {
    byId("settings-button", HTMLButtonElement).addEventListener("click", () => this.#dialog.showModal());
    byId("reset-settings", HTMLButtonElement).addEventListener("click", () => {
      const { backend } = this.#settings;
      this.#change(DEFAULTS);
      this.#show();
      if (backend !== DEFAULTS.backend) {
        onBackendChange(DEFAULTS.backend);
      }
    });
    this.#systemPrompt.addEventListener("input", () => this.#change({ systemPrompt: this.#systemPrompt.value }));
    this.#temperature.addEventListener("input", () => {
      this.#change({ temperature: this.#temperature.valueAsNumber });
      this.#showTemperature();
    });
    this.#maxTokens.addEventListener("change", () => {
      if (this.#maxTokens.checkValidity() && this.#maxTokens.value !== "") {
        this.#change({ maxTokens: this.#maxTokens.valueAsNumber });
      }
      this.#maxTokens.value = String(this.#settings.maxTokens);
    });
    this.#contextEnd.addEventListener("change", () => {
      this.#change({ contextEnd: parseContextEnd(this.#contextEnd.value) ?? DEFAULTS.contextEnd });
    });
    this.#backend.addEventListener("change", () => {
      const backend = parseBackend(this.#backend.value) ?? DEFAULTS.backend;
      this.#change({ backend });
      onBackendChange(backend);
    });
    this.#theme.addEventListener("change", () => {
      this.#change({ theme: parseTheme(this.#theme.value) ?? DEFAULTS.theme });
      this.#applyTheme();
    });
    this.#show();
  }

  get values(): Settings {
    return this.#settings;
  }

  /** The temperature to use with the present model. */
  get temperature(): number {
    return this.#settings.temperature ?? this.#recommendedTemperature;
  }

  setRecommendedTemperature(temperature: number): void {
    this.#recommendedTemperature = temperature;
    this.#showTemperature();
  }

  setThinking(thinking: boolean): void {
    this.#change({ thinking });
  }

  setContextEnd(contextEnd: ContextEnd): void {
    this.#change({ contextEnd });
    this.#contextEnd.value = contextEnd;
  }

  #change(change: Partial<Settings>): void {
    this.#settings = { ...this.#settings, ...change };
    try {
      localStorage.setItem(STORAGE_KEY, JSON.stringify(this.#settings));
    } catch {
      // A browser that keeps nothing still lets the settings hold for this visit.
    }
  }

  #show(): void {
    this.#systemPrompt.value = this.#settings.systemPrompt;
    this.#maxTokens.value = String(this.#settings.maxTokens);
    this.#contextEnd.value = this.#settings.contextEnd;
    this.#backend.value = this.#settings.backend;
    this.#theme.value = this.#settings.theme;
    this.#showTemperature();
    this.#applyTheme();
  }

  #showTemperature(): void {
    this.#temperature.value = String(this.temperature);
    const isOwn = this.#settings.temperature !== null;
    this.#temperatureValue.textContent = `${this.temperature.toFixed(2)}${isOwn ? "" : ", the model's default"}`;
  }

  #applyTheme(): void {
    if (this.#settings.theme === "system") {
      delete document.documentElement.dataset["theme"];
    } else {
      document.documentElement.dataset["theme"] = this.#settings.theme;
    }
  }
}

function read(): Settings {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "{}");
    return typeof stored === "object" && stored !== null ? checked(stored) : DEFAULTS;
  } catch {
    return DEFAULTS;
  }
}

/** Stored settings may come from another version, or from someone's own hand. */
function checked(stored: Partial<Record<keyof Settings, unknown>>): Settings {
  const { systemPrompt, temperature, maxTokens, contextEnd, backend, theme, thinking } = stored;
  return {
    systemPrompt: typeof systemPrompt === "string" ? systemPrompt : DEFAULTS.systemPrompt,
    temperature: isWithin(temperature, 0, 2) ? temperature : DEFAULTS.temperature,
    maxTokens: isWithin(maxTokens, 1, 32_768) ? Math.floor(maxTokens) : DEFAULTS.maxTokens,
    contextEnd: parseContextEnd(contextEnd) ?? DEFAULTS.contextEnd,
    backend: parseBackend(backend) ?? DEFAULTS.backend,
    theme: parseTheme(theme) ?? DEFAULTS.theme,
    thinking: typeof thinking === "boolean" ? thinking : DEFAULTS.thinking,
  };
}

function isWithin(value: unknown, low: number, high: number): value is number {
  return typeof value === "number" && value >= low && value <= high;
}

/** A backend's name, from wherever it comes. */
export function parseBackend(value: unknown): BackendChoice | undefined {
  return value === "auto" || value === "webgpu" || value === "cpu" ? value : undefined;
}

function parseContextEnd(value: unknown): ContextEnd | undefined {
  return value === "stop" || value === "roll" ? value : undefined;
}

function parseTheme(value: unknown): Theme | undefined {
  return value === "system" || value === "light" || value === "dark" ? value : undefined;
}
