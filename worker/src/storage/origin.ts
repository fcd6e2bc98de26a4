/** Where a model's files come from: one, or all parts of a split model in order. */

import { EngineError } from "../errors.js";
import type { SourceParts } from "../protocol.js";
import { BlobFile } from "./blob-file.js";
import { HttpFile, type HttpOptions } from "./http-file.js";
import { allManifests, type FileIdentity, type FileManifest } from "./manifests.js";

/** A file that can be read from any place on, wherever it lies. */
export interface Origin {
  /** What is known of the file so far. */
  readonly identity: FileIdentity | undefined;
  /** Asks what file there is now, without reading it. */
  probe(signal: AbortSignal): Promise<FileIdentity>;
  /**
   * The bytes from `start` to `end`, or to the file's end, in pieces of any size. Rejects with `SourceChanged`
   * where it is not the file that is known.
   */
  read(start: number, end: number | undefined, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void>;
}

/** A file of a model. */
export interface SourceFile {
  /** Under which it is kept. */
  readonly id: string;
  /** For people. */
  readonly name: string;
  /** Whether it comes from this machine. */
  readonly isLocal: boolean;
  /** The file itself, given what is known of it; undefined where only a kept copy can be had. */
  origin(known: FileIdentity | undefined): Origin | undefined;
}

const SPLIT_NAME = /-(\d{5})-of-(\d{5})(\.gguf)$/i;
/** What signs an address for a while: the parameters of Amazon, CloudFront, Google, Azure and plain tokens. */
const SIGNATURE = /^(x-amz-.*|x-goog-.*|awsaccesskeyid|googleaccessid|signature|expires|policy|key-pair-id|sig|se|sp|sv|sr|spr|st|skoid|sktid|skt|ske|sks|skv|token)$/i;
/** Ids of local files begin with this, which no address does. */
const LOCAL = "file:///";

/** The files of a model in order. */
export async function sourceFiles(source: SourceParts, http: HttpOptions): Promise<SourceFile[]> {
  switch (source.kind) {
    case "urls": {
      const urls = source.urls.length === 1 ? source.urls.flatMap(splitUrls) : source.urls;
      return requireFiles(urls.map((url) => remoteFile(url, http)));
    }
    case "blobs":
      return requireFiles(orderedBlobs(source.blobs).map(({ name, blob }) => localFile(name, blob)));
    case "stored": {
      const manifests = (await allManifests()).filter(({ model }) => model === source.id);
      const parts = manifests.toSorted((a, b) => a.part - b.part);
      if (parts.length === 0 || parts.some(({ part, parts: count }, index) => part !== index || count !== parts.length)) {
        throw new EngineError("not_stored", { detail: source.id });
      }
      return parts.map((manifest) => keptFile(manifest, http));
    }
  }
}

function remoteFile(url: string, http: HttpOptions): SourceFile {
  return { id: withoutSignature(url), name: fileName(url), isLocal: false, origin: (known) => new HttpFile(url, http, known) };
}

function localFile(name: string, blob: Blob): SourceFile {
  return { id: `${LOCAL}${encodeURIComponent(name)}`, name, isLocal: true, origin: (known) => new BlobFile(name, blob, known) };
}

function keptFile({ id, name }: FileManifest, http: HttpOptions): SourceFile {
  return id.startsWith(LOCAL) ? { id, name, isLocal: true, origin: () => undefined } : { ...remoteFile(id, http), name };
}

/** The address of a file whichever signature it comes with, so that a fresh one goes on where another expired. */
function withoutSignature(address: string): string {
  const url = new URL(address);
  url.hash = "";
  for (const name of [...url.searchParams.keys()].filter((name) => SIGNATURE.test(name))) {
    url.searchParams.delete(name);
  }
  return url.href;
}

function fileName(url: string): string {
  const { pathname, hostname } = new URL(url);
  const last = pathname.split("/").pop() ?? "";
  try {
    return decodeURIComponent(last) || hostname;
  } catch {
    return last;
  }
}

function requireFiles(files: SourceFile[]): SourceFile[] {
  if (files.length === 0) {
    throw new EngineError("invalid_request", { detail: "no model file was given" });
  }
  return files;
}

/** All addresses of a split model from the address of its first part, or the one address. */
function splitUrls(url: string): string[] {
  const { origin, pathname, search } = new URL(url);
  const match = SPLIT_NAME.exec(pathname);
  const count = Number(match?.[2] ?? 1);
  if (match === null || count < 2) {
    return [url];
  }
  const stem = pathname.slice(0, match.index);
  return Array.from(
    { length: count },
    (_, index) => `${origin}${stem}-${padded(index + 1)}-of-${padded(count)}${match[3] ?? ""}${search}`,
  );
}

function padded(value: number): string {
  return String(value).padStart(5, "0");
}

/** The files of a split model in order; a missing or a foreign one is refused by name. */
function orderedBlobs<T extends { readonly name: string }>(blobs: readonly T[]): readonly T[] {
  if (blobs.length <= 1) {
    return blobs;
  }
  const byIndex = new Map<number, T>();
  for (const blob of blobs) {
    const match = SPLIT_NAME.exec(blob.name);
    if (match === null || Number(match[2]) !== blobs.length) {
      throw new EngineError("weights_invalid", {
        detail: `${blob.name} is not one of ${blobs.length} parts of a split model`,
        hint: "Choose one GGUF file, or all parts of one split model together.",
      });
    }
    byIndex.set(Number(match[1]), blob);
  }
  return blobs.map((_, index) => {
    const blob = byIndex.get(index + 1);
    if (blob === undefined) {
      throw new EngineError("weights_invalid", { detail: `part ${index + 1} of ${blobs.length} is missing` });
    }
    return blob;
  });
}
