/** What can be loaded, and under which names. */

import type { CatalogueEntry, Engine, LoadOptions, ModelInfo, ModelSource, StoredModel } from "signbit";
import catalogue from "signbit/catalogue.json";
import builtInUrl from "../../models/signbit-mini.gguf?url";
import type { ChatModel } from "./chat.js";

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

/** What a chat remembers of a loaded model. */
export function chatModel({ name, isBuiltIn }: ModelChoice, { files }: ModelInfo): ChatModel {
  return { name, isBuiltIn, sha256: files.map(({ sha256 }) => sha256) };
}

/** How to load a chat's model again; undefined where this computer does not have it. */
export async function fromChatModel({ isBuiltIn, sha256 }: ChatModel, engine: Engine): Promise<ModelChoice | undefined> {
  if (isBuiltIn) {
    return BUILT_IN;
  }
  const models = await engine.models.list();
  const model = models.find((model) => model.is_complete && model.sha256.join() === sha256.join());
  return model === undefined ? undefined : fromKept(model);
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
