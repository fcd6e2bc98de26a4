/** The hashes of segments. */

/** The wasm module's XXH3 of 128 bits, in hexadecimal: at the speed of memory, against damage. */
export type Checksum = (bytes: Uint8Array) => string;

/** SHA-256 in hexadecimal, computed beside this worker: the key of a segment. The browser copies the bytes meanwhile. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  // Bytes in shared memory are refused with an error.
  const digest = await crypto.subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>);
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
