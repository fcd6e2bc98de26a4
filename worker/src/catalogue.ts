/**
 * The entries of `catalogue.json`, the official models that this version runs, and whether a device has the
 * memory for one. The file lies beside the package's folders, as `signbit/catalogue.json`: a bundler imports
 * it, and without one `fetch` reads it.
 */

import type { DeviceInfo } from "./types.js";

/** A published model file. */
export interface CatalogueEntry {
  /** A name that does not change between versions. */
  readonly id: string;
  /** For people. */
  readonly name: string;
  readonly family: string;
  /** `general.architecture` of the file. */
  readonly architecture: string;
  /** Type of its large matrices. */
  readonly format: string;
  readonly parameters: number;
  /** Tokens that the model was trained for. */
  readonly context_length: number;
  /** SPDX identifier. */
  readonly licence: string;
  /** Of one revision, so that what lies there cannot change. */
  readonly url: string;
  readonly file: string;
  /** Size of the file. */
  readonly bytes: number;
  /** Of the file, in hexadecimal. */
  readonly sha256: string;
  /** Bytes of all tensors, on the device as in the file. */
  readonly weight_bytes: number;
  /** Bytes of recurrent states and of the tokens that the 4-bit cache keeps exactly, whatever the context. */
  readonly state_bytes: number;
  /** Bytes that the 4-bit cache takes for each further token of the context. */
  readonly kv_bytes_per_token: number;
}

/** Whether a device has the memory for a model. */
export interface Fit {
  readonly fits: boolean;
  /** Bytes of the model with the smallest useful context. */
  readonly needed_bytes: number;
  /** Bytes that the model may take; null where that is not known. */
  readonly budget_bytes: number | null;
  /** Why it does not fit, as a sentence for people; null where it fits. */
  readonly reason: string | null;
}

/** Tokens below which a conversation is over too soon. */
const LEAST_CONTEXT = 2048;
/** More than intermediate results, logits, the rotation table and buffers for transfers take in any of these models. */
const SCRATCH_BYTES = 64 * 2 ** 20;
/** What browsers that tell less precisely say of every machine with more, in GiB. */
const DEVICE_MEMORY_CAP = 8;

/**
 * The bytes that models may take on a machine whose browser tells of `deviceMemory` GiB
 * (`navigator.deviceMemory`): half, for the browser and everything else need the other. Undefined where the
 * browser tells nothing, and from 8 GiB on, which older browsers say of any machine with more.
 */
export function memoryBudget(deviceMemory: number | undefined): number | undefined {
  return deviceMemory === undefined || deviceMemory >= DEVICE_MEMORY_CAP ? undefined : (deviceMemory / 2) * 2 ** 30;
}

/**
 * Whether an opened device has the memory for a model: weights, states and the 4-bit cache for 2048 tokens
 * against the device's own budget: what `createEngine` was given as `memoryBudgetBytes`, and on the processor
 * no more than the wasm module can address. How large a single buffer may be does not matter: matrices are split where
 * they must be, and 128 MiB, which every device has, hold all the rest. WebGPU does not tell how much
 * memory a graphics device has, so without a budget the model is tried.
 */
export function fits(entry: CatalogueEntry, { limits }: Pick<DeviceInfo, "limits">): Fit {
  const { weight_bytes, state_bytes, kv_bytes_per_token } = entry;
  const needed = weight_bytes + state_bytes + kv_bytes_per_token * LEAST_CONTEXT + SCRATCH_BYTES;
  // Null where there is none.
  const budget = limits["memory_budget_bytes"] ?? Infinity;
  const isTooLarge = needed > budget;
  const reason = `It needs ${gigabytes(needed)} of memory, and may take ${gigabytes(budget)} on this device.`;
  return {
    fits: !isTooLarge,
    needed_bytes: needed,
    budget_bytes: budget === Infinity ? null : budget,
    reason: isTooLarge ? reason : null,
  };
}

function gigabytes(bytes: number): string {
  return `${(bytes / 1e9).toFixed(1)} GB`;
}
