/** What can be loaded, and under which names. */

import type { CatalogueEntry, LoadOptions, ModelSource, StoredModel } from "signbit";
import catalogue from "signbit/catalogue.json";
import builtInUrl from "../../models/signbit-mini.gguf?url";

/** A model that can be loaded, with the name to show meanwhile. */
export interface ModelChoice {
  readonly source: ModelSource;
  readonly name: string;
  readonly isBuiltIn: boolean;
  readonly options: Pick<LoadOptions, "sha256" | "keep">;
}

/** The official models. */
export const CATALOGUE: readonly CatalogueEntry[] = catalogue;

/** Comes with the page, and lies in the browser's cache like the rest of it. */
export const BUILT_IN: ModelChoice = {
  source: builtInUrl,
  name: "Signbit Mini",
  isBuiltIn: true,
  options: { keep: false },
};

export function fromEntry({ url, name, sha256 }: CatalogueEntry): ModelChoice {
  return { source: url, name, isBuiltIn: false, options: { sha256 } };
}

export function fromAddress(url: string): ModelChoice {
  const entry = officialAt(url);
  return entry === undefined ? { source: url, name: fileName(url), isBuiltIn: false, options: {} } : fromEntry(entry);
}

/** One file, or all parts of a split model. */
export function fromFiles(files: readonly [File, ...File[]], keep: boolean): ModelChoice {
  const { name } = files[0];
  return { source: files, name, isBuiltIn: false, options: { keep } };
}

export function fromKept(model: StoredModel): ModelChoice {
  const { id } = model;
  const sha256 = officialAt(id)?.sha256;
  const options = sha256 === undefined ? {} : { sha256 };
  return { source: { stored: id }, name: keptName(model), isBuiltIn: false, options };
}

/** A kept model's name for people. */
export function keptName({ id, name }: StoredModel): string {
  return officialAt(id)?.name ?? name;
}

/** The entry of the catalogue at an address, whatever is asked for behind it (`?download=true`). */
function officialAt(url: string): CatalogueEntry | undefined {
  const [address] = url.split(/[?#]/, 1);
  return CATALOGUE.find((entry) => entry.url === address);
}

function fileName(url: string): string {
  return url.split(/[?#]/, 1)[0]?.split("/").pop() || url;
}
