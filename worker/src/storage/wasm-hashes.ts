/** Hashes that the wasm module computes: browsers hash whole buffers only, and only slowly. */

import init, { checksum, Sha256 } from "../../wasm/signbit_engine.js";
import type { Checksum } from "./hashes.js";

/** SHA-256 of bytes that arrive in pieces. */
export interface StreamHash {
  update(bytes: Uint8Array): void;
  /** 64 hexadecimal digits. */
  finish(): string;
}

export interface WasmHashes {
  readonly checksum: Checksum;
  sha256(): StreamHash;
}

/** Starts the module, which the engine's worker has compiled already. */
export async function startHashes(module: WebAssembly.Module): Promise<WasmHashes> {
  await init({ module_or_path: module });
  return { checksum, sha256: () => new Sha256() };
}
