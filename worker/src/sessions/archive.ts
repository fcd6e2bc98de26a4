/**
 * A session in a file: an uncompressed tar archive (POSIX ustar) with `manifest.json`, `data.json` where there is
 * data, and `chunks/` with a file for each chunk, named after its digest. `tar xf` unpacks it.
 */

import { EngineError } from "../errors.js";
import {
  type ChunkSource,
  chunkSizes,
  isDigest,
  isSnapshotManifest,
  readBytes,
  type SnapshotManifest,
} from "./snapshot.js";

const MANIFEST = "manifest.json";
const DATA = "data.json";
const CHUNKS = "chunks/";

/** An archive consists of blocks of so many bytes. */
const BLOCK = 512;
/** Of the largest file, which is a manifest or data; chunks are smaller. */
const MAX_FILE_BYTES = 64 * 1024 * 1024;
const MAX_ENTRIES = 65_536;

/** Bytes that are read at once for headers: small files lie close together, and a read takes a millisecond. */
const WINDOW = 128 * BLOCK;

/** A field of a header: where it lies in the block, and how long it is. */
type Field = readonly [offset: number, length: number];

/** The fields that are used here. */
const HEADER = {
  name: [0, 100],
  mode: [100, 8],
  uid: [108, 8],
  gid: [116, 8],
  size: [124, 12],
  mtime: [136, 12],
  checksum: [148, 8],
  type: [156, 1],
  magic: [257, 8],
  prefix: [345, 155],
} as const satisfies Record<string, Field>;

/** Kinds of entries: files by two names, folders, and what newer tars say of the entry or the archive besides. */
const FILE = ["0", "\0"];
const FOLDER = ["5"];
const REMARK = ["x", "g"];

/** What is in a file. */
export interface UnpackedArchive {
  readonly manifest: SnapshotManifest;
  /** Undefined where there is none. */
  readonly data: unknown;
  /** The chunks of the manifest by their digests. Their lengths are right; their bytes have not been read. */
  readonly chunks: ReadonlyMap<string, Blob>;
}

/**
 * Packs a session. Chunks are asked for one at a time, and are then kept by the browser, on the disk if it likes.
 * Rejects with `invalid_request` where `data` is not JSON or has more than 64 MiB of it, with `snapshot_corrupt` where a
 * chunk has another length than the manifest says, and as `source` does.
 */
export async function packArchive(manifest: SnapshotManifest, data: unknown, source: ChunkSource): Promise<Blob> {
  const parts: Blob[] = [entry(MANIFEST, toJson(manifest, "manifest"))];
  if (data !== undefined) {
    parts.push(entry(DATA, toJson(data, "data")));
  }
  for (const [digest, bytes] of chunkSizes(manifest)) {
    const given = await source(digest);
    const chunk = given instanceof Blob ? given : new Blob([given as BlobPart]);
    if (chunk.size !== bytes) {
      throw corrupt(`the chunk ${digest} has ${chunk.size} bytes instead of ${bytes}`);
    }
    parts.push(entry(CHUNKS + digest, chunk));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)], { type: "application/x-tar" });
}

/**
 * Reads a file that may be anything. The chunks stay in it. Rejects with `snapshot_corrupt` where it is not a whole
 * archive of a session, and with `invalid_request` where it is no file.
 */
export async function unpackArchive(file: Blob): Promise<UnpackedArchive> {
  const files = new Map<string, Blob>();
  for await (const [name, content] of entriesOf(file)) {
    if (name !== MANIFEST && name !== DATA && !(name.startsWith(CHUNKS) && isDigest(name.slice(CHUNKS.length)))) {
      throw corrupt(`${JSON.stringify(name)} is nothing that belongs to a session`);
    }
    if (files.has(name)) {
      throw corrupt(`${name} is there twice`);
    }
    files.set(name, content);
  }
  const manifest = await readJson(files, MANIFEST);
  if (manifest === undefined) {
    throw corrupt(`there is no ${MANIFEST}`);
  }
  if (!isSnapshotManifest(manifest)) {
    throw corrupt(`${MANIFEST} does not describe a session`);
  }
  const chunks = new Map<string, Blob>();
  for (const [digest, bytes] of chunkSizes(manifest)) {
    const chunk = files.get(CHUNKS + digest);
    if (chunk?.size !== bytes) {
      throw corrupt(chunk === undefined ? `the chunk ${digest} is missing` : `the chunk ${digest} has another length`);
    }
    chunks.set(digest, chunk);
  }
  return { manifest, data: await readJson(files, DATA), chunks };
}

/**
 * What the page keeps with the session in a file, which is undefined where there is nothing. Needs no engine, nor a
 * session that is whole: rejects with `snapshot_corrupt` where the file is no archive as far as to the data, or where the
 * data is not JSON.
 */
export async function readSessionData(file: Blob): Promise<unknown> {
  for await (const [name, content] of entriesOf(file)) {
    if (name === DATA) {
      return readJson(new Map([[name, content]]), name);
    }
  }
  return undefined;
}

/** A file of the archive: header, content, and zeros up to a whole block. */
function entry(name: string, content: Blob): Blob {
  return new Blob([header(name, content.size), content, new Uint8Array(-content.size & (BLOCK - 1))]);
}

function header(name: string, size: number): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK);
  const set = ([offset]: Field, text: string) => block.set(new TextEncoder().encode(text), offset);
  // A number takes all of its field but the last byte, which stays zero.
  const setNumber = (field: Field, value: number) => set(field, value.toString(8).padStart(field[1] - 1, "0"));
  set(HEADER.name, name);
  setNumber(HEADER.mode, 0o644);
  setNumber(HEADER.uid, 0);
  setNumber(HEADER.gid, 0);
  setNumber(HEADER.size, size);
  setNumber(HEADER.mtime, Math.floor(Date.now() / 1000));
  set(HEADER.type, "0");
  set(HEADER.magic, "ustar\x0000");
  setNumber(HEADER.checksum, checksum(block));
  return block;
}

/** The sum of a header's bytes, in which those of the checksum itself count as spaces. */
function checksum(block: Uint8Array): number {
  const [from, length] = HEADER.checksum;
  return block.reduce((sum, byte, at) => sum + (at >= from && at < from + length ? 0x20 : byte), 0);
}

/** The files of an archive up to its end mark, each with its plain name. */
async function* entriesOf(file: Blob): AsyncGenerator<readonly [name: string, content: Blob]> {
  if (!((file as unknown) instanceof Blob)) {
    throw new EngineError("invalid_request", { detail: "the file of a session has to be a Blob" });
  }
  let offset = 0;
  let window: { readonly from: number; readonly bytes: Uint8Array } = { from: 0, bytes: new Uint8Array() };
  for (let count = 0; count <= MAX_ENTRIES; count += 1) {
    if (offset + BLOCK > window.from + window.bytes.length) {
      window = { from: offset, bytes: await readBytes(file.slice(offset, offset + WINDOW)) };
    }
    const block = window.bytes.subarray(offset - window.from, offset - window.from + BLOCK);
    if (block.length < BLOCK) {
      throw corrupt(offset === 0 ? "the file is not a tar archive" : "the file ends early");
    }
    if (offset > 0 && block.every((byte) => byte === 0)) {
      return;
    }
    if (readNumber(block, HEADER.checksum) !== checksum(block)) {
      throw corrupt(offset === 0 ? "the file is not a tar archive" : `the header at byte ${offset} is damaged`);
    }
    const size = readNumber(block, HEADER.size);
    const name = readName(block);
    const type = readText(block, HEADER.type) || "\0";
    const from = offset + BLOCK;
    if (size === undefined || size > MAX_FILE_BYTES) {
      throw corrupt(`${JSON.stringify(name)} is larger than a file of a session can be`);
    }
    if (from + size > file.size) {
      throw corrupt(`the file ends early, within ${JSON.stringify(name)}`);
    }
    if (FILE.includes(type)) {
      yield [name, file.slice(from, from + size)];
    } else if (![...FOLDER, ...REMARK].includes(type)) {
      throw corrupt(`${JSON.stringify(name)} is neither a file nor a folder`);
    }
    offset = from + Math.ceil(size / BLOCK) * BLOCK;
  }
  throw corrupt(`the archive has more than ${MAX_ENTRIES} entries`);
}

/** The path of an entry, which a tar of the unpacked folder begins with `./`. */
function readName(block: Uint8Array): string {
  const prefix = readText(block, HEADER.prefix);
  const name = readText(block, HEADER.name);
  return (prefix === "" ? name : `${prefix}/${name}`).replace(/^\.\//, "");
}

/** The text of a field, up to the first zero. */
function readText(block: Uint8Array, [offset, length]: Field): string {
  return new TextDecoder().decode(block.subarray(offset, offset + length)).split("\0", 1)[0] ?? "";
}

/** The octal number of a field; undefined where there is another one or none. */
function readNumber(block: Uint8Array, field: Field): number | undefined {
  const digits = readText(block, field).trim();
  return /^[0-7]+$/.test(digits) ? Number.parseInt(digits, 8) : undefined;
}

function toJson(value: unknown, what: string): Blob {
  let json: string | undefined;
  let cause: unknown;
  try {
    json = JSON.stringify(value);
  } catch (error) {
    cause = error;
  }
  if (json === undefined) {
    throw new EngineError("invalid_request", { detail: `the ${what} of the session cannot be written as JSON`, cause });
  }
  const content = new Blob([json]);
  if (content.size > MAX_FILE_BYTES) {
    throw new EngineError("invalid_request", { detail: `the ${what} of the session takes more than ${MAX_FILE_BYTES} bytes` });
  }
  return content;
}

/** What a JSON file holds; undefined where it is not there. */
async function readJson(files: ReadonlyMap<string, Blob>, name: string): Promise<unknown> {
  const content = files.get(name);
  if (content === undefined) {
    return undefined;
  }
  const bytes = await readBytes(content);
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (cause) {
    throw corrupt(`${name} is not JSON`, cause);
  }
}

function corrupt(detail: string, cause?: unknown): EngineError {
  return new EngineError("snapshot_corrupt", { detail, cause });
}
