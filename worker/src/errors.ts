/**
 * Errors of the engine as JavaScript sees them: one class, a stable code, a sentence for people
 * and a next step. Aborting is not an engine error: it follows the platform and rejects with a
 * `DOMException` named `AbortError`.
 */

/** The sentence and the next step of every code, in one place for library and page. */
const ERROR_TEXTS = {
  webgpu_unavailable: {
    sentence: "WebGPU is not available here.",
    hint: "Use a browser with WebGPU, update the graphics driver, or choose the CPU backend.",
  },
  limit_too_small: {
    sentence: "The model needs more than this graphics device allows.",
    hint: "Choose a smaller model, or the CPU backend.",
  },
  out_of_memory: {
    sentence: "There is not enough memory for this model.",
    hint: "Close other tabs, choose a smaller model or a shorter context, then load again.",
  },
  device_lost: {
    sentence: "The graphics device was lost.",
    hint: "Send the message again: the engine starts anew and reloads the model. The CPU backend needs no graphics device.",
  },
  weights_invalid: {
    sentence: "This is not a usable model file.",
    hint: "Check that the whole GGUF file was downloaded, then load it again.",
  },
  model_unsupported: {
    sentence: "The engine cannot run this kind of model.",
    hint: "Choose a GGUF file of a Qwen3 or Qwen3.5 model in a supported weight format.",
  },
  tokenizer_invalid: {
    sentence: "The tokenizer in the model file cannot be used.",
    hint: "Convert the model again with a current converter, or choose another file.",
  },
  template_invalid: {
    sentence: "The chat template of the model rejects this conversation.",
    hint: "Start a new chat, and begin it with a message from the user.",
  },
  context_full: {
    sentence: "The conversation is longer than the model's context.",
    hint: "Start a new chat, or load the model with a longer context.",
  },
  invalid_request: {
    sentence: "The request cannot be carried out as it is.",
    hint: "Correct the parameters and send it again.",
  },
  non_finite: {
    sentence: "The calculation gave numbers that are not finite.",
    hint: "Load the model again. If it happens again, the file or the graphics driver is faulty.",
  },
  device_unreliable: {
    sentence: "This graphics device gives wrong results.",
    hint: "Update the browser and the graphics driver, or choose the CPU backend.",
  },
  busy: {
    sentence: "The engine is working on another request.",
    hint: "Wait for it to finish, or stop it.",
  },
  network: {
    sentence: "The model could not be downloaded.",
    hint: "Check the address and the connection, then try again.",
  },
  digest_mismatch: {
    sentence: "The model's bytes are not those that were promised.",
    hint: "Load the model again from its maker's own address. If it happens again, do not use this copy.",
  },
  not_stored: {
    sentence: "There is no such model in this browser.",
    hint: "List the models that are kept, and take the id from there.",
  },
  storage_unavailable: {
    sentence: "The browser's storage cannot be used.",
    hint: "Allow this site to store data, close its other tabs, then try again.",
  },
  storage_full: {
    sentence: "The browser's storage is full.",
    hint: "Delete sessions or models that are no longer needed, or free space on the disk, then try again.",
  },
  session_unknown: {
    sentence: "There is no such session.",
    hint: "List the sessions, and take the id from there.",
  },
  snapshot_mismatch: {
    sentence: "The saved session does not fit the model that is loaded.",
    hint: "Load the model that it was made with, with the same kind of cache, or send the whole conversation again.",
  },
  snapshot_corrupt: {
    sentence: "The saved session is damaged.",
    hint: "Delete it and send the whole conversation again, or import it once more from a file that is whole.",
  },
  aborted: {
    sentence: "The engine was shut down.",
    hint: "Create a new engine.",
  },
  internal: {
    sentence: "The engine stopped because of a fault of its own.",
    hint: "Try again: the engine starts anew and reloads the model.",
  },
} as const satisfies Record<string, { sentence: string; hint: string }>;

/** Stable names for what can go wrong. */
export type ErrorCode = keyof typeof ERROR_TEXTS;

/** Every code, for tests and for exhaustive handling. */
export const ERROR_CODES = Object.keys(ERROR_TEXTS) as readonly ErrorCode[];

/** Whether `value` is one of the engine's codes. */
export function isErrorCode(value: unknown): value is ErrorCode {
  return typeof value === "string" && Object.hasOwn(ERROR_TEXTS, value);
}

/** What an `EngineError` is made from, besides its code. */
export interface EngineErrorOptions {
  /** The facts: which tensor, which limit, which address. Lower case, without a full stop. */
  detail?: string | undefined;
  /** A next step that fits better than the general one of the code. */
  hint?: string | undefined;
  cause?: unknown;
}

/** A failure of the engine. */
export class EngineError extends Error {
  /** What went wrong, as a name that does not change between versions. */
  readonly code: ErrorCode;
  /** One sentence for people, the same for every error of this code. */
  readonly sentence: string;
  /** The facts behind the sentence, or an empty string. */
  readonly detail: string;
  /** What a person can do next. */
  readonly hint: string;

  constructor(code: ErrorCode, options: EngineErrorOptions = {}) {
    const text = ERROR_TEXTS[code];
    const detail = options.detail ?? "";
    super(
      detail === "" ? text.sentence : `${text.sentence.slice(0, -1)}: ${detail}`,
      options.cause === undefined ? undefined : { cause: options.cause },
    );
    this.name = "EngineError";
    this.code = code;
    this.sentence = text.sentence;
    this.detail = detail;
    this.hint = options.hint ?? text.hint;
  }
}

/** The form in which an error crosses from the worker: a cloned error would lose its class. */
export interface SerializedError {
  readonly code: ErrorCode;
  readonly detail: string;
  readonly hint?: string;
  readonly stack?: string;
  /** The worker that reports it must not be used again. */
  readonly fatal: boolean;
}

/** The rejection of a request that its own `AbortSignal` has ended. */
export function abortError(): DOMException {
  return new DOMException("The request was aborted.", "AbortError");
}

/** Ends what was begun for a request that its `AbortSignal` has ended. */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) {
    throw abortError();
  }
}

/** Whether `error` says that a request was aborted. */
export function isAbortError(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Turns anything thrown inside the worker into what is sent to the page. */
export function serializeError(error: unknown): SerializedError {
  if (isAbortError(error)) {
    return { code: "aborted", detail: "", fatal: false };
  }
  const stack = error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {};
  if (error instanceof EngineError) {
    return { code: error.code, detail: error.detail, hint: error.hint, fatal: isFatal(error.code), ...stack };
  }
  if (error instanceof Error && "code" in error && isErrorCode(error.code)) {
    const hint = "hint" in error && typeof error.hint === "string" ? { hint: error.hint } : {};
    return { code: error.code, detail: error.message, fatal: isFatal(error.code), ...hint, ...stack };
  }
  // Whatever has no code was not foreseen: a trap in the wasm module, or a bug in the worker.
  return { code: "internal", detail: String(error), fatal: true, ...stack };
}

/** Builds the error that the caller sees. */
export function deserializeError(error: SerializedError): EngineError | DOMException {
  if (error.code === "aborted") {
    return abortError();
  }
  const cause = error.stack === undefined ? undefined : new Error(error.detail, { cause: error.stack });
  return new EngineError(error.code, { detail: error.detail, hint: error.hint, cause });
}

/** After these the module's memory or its device is in an unknown state. */
function isFatal(code: ErrorCode): boolean {
  return code === "internal" || code === "device_lost";
}
