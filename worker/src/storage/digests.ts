/**
 * The digests of models whose files were read whole before: a model of the same files has the same digest,
 * and need not be digested again. Both functions reject with a `StoreError` where the database refuses.
 */

import { settled, transact } from "./database.js";

/** Keeps the digest of the model that consists of files with these SHA-256s, in this order. */
export async function rememberDigest(sha256s: readonly string[], digest: string): Promise<void> {
  await transact(["digests"], "readwrite", ({ digests }) => settled(digests.put(digest, key(sha256s))));
}

/** The digest of the model that consists of these files, if it is known. */
export async function knownDigest(sha256s: readonly string[]): Promise<string | undefined> {
  const digest: unknown = await transact(["digests"], "readonly", ({ digests }) => settled(digests.get(key(sha256s))));
  return typeof digest === "string" ? digest : undefined;
}

/** The number changes with the definition of the digest. */
function key(sha256s: readonly string[]): string {
  return ["1", ...sha256s].join(" ");
}
