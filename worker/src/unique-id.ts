/** A name that nothing else has. `crypto.randomUUID` exists in secure contexts only, this everywhere. */
export function uniqueId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
