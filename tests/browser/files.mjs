/** Files as a good server serves them: whole or in ranges, with what tells their versions apart. */

import { createReadStream, statSync } from "node:fs";
import path from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".json": "application/json",
  ".map": "application/json",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};
const PIECE_BYTES = 65_536;

/** A file of the project, or undefined. `read` gives the bytes from `start` to before `end`. */
export function fileOnDisk(file) {
  const stats = statSync(file, { throwIfNoEntry: false });
  if (stats === undefined || !stats.isFile()) {
    return undefined;
  }
  return {
    bytes: stats.size,
    type: TYPES[path.extname(file)] ?? "application/octet-stream",
    etag: `"${stats.size.toString(16)}-${Math.floor(stats.mtimeMs).toString(16)}"`,
    modified: stats.mtime.toUTCString(),
    read: (start, end) => (start < end ? createReadStream(file, { start, end: end - 1 }) : []),
  };
}

/** A file of so many bytes, the same for the same seed, of which any part is quick to make. */
export function generatedFile(bytes, seed) {
  return {
    bytes,
    type: "application/octet-stream",
    etag: `"${seed}-${bytes}"`,
    modified: new Date(Date.UTC(2026, 0, 1 + (seed % 28))).toUTCString(),
    *read(start, end) {
      for (let at = start; at < end; at += PIECE_BYTES) {
        const piece = Buffer.alloc(Math.min(PIECE_BYTES, end - at));
        for (let index = 0; index < piece.length; index += 1) {
          piece[index] = noise(seed, at + index);
        }
        yield piece;
      }
    },
  };
}

/** One byte of a hash of its place. */
function noise(seed, index) {
  let value = Math.imul(index + 1, 0x9e37_79b1) ^ Math.imul(seed + 1, 0x85eb_ca6b);
  value = Math.imul(value ^ (value >>> 15), 0x2c1b_3c6d);
  return (value ^ (value >>> 13)) & 0xff;
}

/** What a `Range` header asks for: undefined for the whole, null for nothing that there is. */
export function requestedRange(header, bytes) {
  const match = /^bytes=(\d+)-(\d*)$/.exec(header ?? "");
  if (match === null) {
    return undefined;
  }
  const start = Number(match[1]);
  const end = match[2] === "" ? bytes : Math.min(Number(match[2]) + 1, bytes);
  return start < end ? { start, end } : null;
}

/** Answers with the file, or with the range that is asked for. */
export function serveFile(request, response, file) {
  const range = requestedRange(request.headers.range, file.bytes);
  response.setHeader("accept-ranges", "bytes");
  if (range === null) {
    response.writeHead(416, { "content-range": `bytes */${file.bytes}` }).end();
    return Promise.resolve();
  }
  const { start, end } = range ?? { start: 0, end: file.bytes };
  response.writeHead(range === undefined ? 200 : 206, {
    "content-type": file.type,
    "content-length": end - start,
    etag: file.etag,
    "last-modified": file.modified,
    ...(range === undefined ? {} : { "content-range": `bytes ${start}-${end - 1}/${file.bytes}` }),
  });
  return sendPieces(response, file.read(start, end));
}

/** Writes as fast as the other side reads, and stops when it has gone. */
async function sendPieces(response, pieces) {
  for await (const piece of pieces) {
    await written(response, piece);
    if (response.destroyed) {
      return;
    }
  }
  response.end();
}

/** Writes, and waits until the bytes are on their way or the other side has gone. */
export async function written(response, bytes) {
  if (bytes.length === 0) {
    return;
  }
  await new Promise((resolve) => {
    response.once("close", resolve);
    response.write(bytes, () => {
      response.off("close", resolve);
      resolve();
    });
  });
}
