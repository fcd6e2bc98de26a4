/**
 * The web server of the browser tests. It serves the built page at `/`, and worker, models and test
 * harness under the paths they have in the project, all under a strict content security policy,
 * which a worker takes from the response with its own script. `/generated/<bytes>?seed=<number>` is a file of noise.
 * Under `/faults/` it misbehaves, as listed below for `/faults/<name>`, and in `faults.mjs` for
 * `/faults/<id>/<path>`. With `SECOND_PORT` in the environment it is a second origin as well.
 */

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { serveFaulty, serveLog } from "./faults.mjs";
import { fileOnDisk, generatedFile, serveFile } from "./files.mjs";

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const MODEL = path.join(ROOT, "tests/golden/tiny-geo/model.gguf");
const SHARED_FOLDERS = ["/worker/dist/", "/worker/wasm/", "/models/", "/tests/golden/", "/tests/browser/harness/"];
const SLOW_PIECE_BYTES = 16_384;
const SLOW_PIECE_MS = 50;

const PORT = Number(process.env.PORT);
const SECOND_PORT = Number(process.env.SECOND_PORT ?? 0);
const SECOND_ORIGIN = `http://127.0.0.1:${SECOND_PORT}`;

const POLICY = [
  "default-src 'none'",
  "script-src 'self' 'wasm-unsafe-eval'",
  "worker-src 'self'",
  `connect-src 'self' ${SECOND_PORT === 0 ? "" : SECOND_ORIGIN}`,
  "style-src 'self'",
  "img-src 'self' data:",
].join("; ");

/** Answers that are not what a model's address should give. */
const FAULTS = {
  /** A web page that says it is one. */
  html: (response) => send(response, "text/html", "<!doctype html><title>Please log in</title>"),
  /** A web page that says it is a file. */
  "html-as-file": (response) => send(response, "application/octet-stream", "\n<!DOCTYPE html><title>Consent</title>"),
  garbage: (response) => send(response, "application/octet-stream", Buffer.alloc(4096, 0x5a)),
  error: (response) => response.writeHead(500).end("broken"),
  /** The length of the whole, the bytes of the half, then the connection ends. */
  cut: (response) => {
    const bytes = readFileSync(MODEL);
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": bytes.length });
    response.write(bytes.subarray(0, bytes.length / 2), () => setTimeout(() => response.destroy(), 200));
  },
  /** Half a file without a length, and a proper end: only the file itself can tell. */
  truncated: (response) => {
    const bytes = readFileSync(MODEL);
    response.writeHead(200, { "content-type": "application/octet-stream" });
    response.write(bytes.subarray(0, bytes.length / 2));
    response.end();
  },
  /** The whole model, slowly enough to be aborted on the way. */
  slow: (response) => {
    const bytes = readFileSync(MODEL);
    response.writeHead(200, { "content-type": "application/octet-stream", "content-length": bytes.length });
    let offset = 0;
    const timer = setInterval(() => {
      if (response.destroyed || offset >= bytes.length) {
        clearInterval(timer);
        response.end();
        return;
      }
      response.write(bytes.subarray(offset, offset + SLOW_PIECE_BYTES));
      offset += SLOW_PIECE_BYTES;
    }, SLOW_PIECE_MS);
  },
  /** A well-formed GGUF header of an architecture that does not exist here. */
  foreign: (response) => send(response, "application/octet-stream", ggufOfArchitecture("mamba")),
};

function answer(request, response) {
  response.setHeader("content-security-policy", POLICY);
  response.setHeader("x-content-type-options", "nosniff");
  response.setHeader("cache-control", "no-store");
  const url = new URL(request.url ?? "/", "http://localhost");
  const [, kind, id, ...rest] = url.pathname.split("/");
  if (kind === "log") {
    return serveLog(request, response, id);
  }
  if (kind === "faults" && rest.length > 0) {
    const pathname = `/${rest.join("/")}`;
    return serveFaulty(request, response, { url, id, pathname, fileAt, otherOrigin: SECOND_ORIGIN });
  }
  if (kind === "faults") {
    const fault = FAULTS[id];
    return fault === undefined ? response.writeHead(404).end() : fault(response);
  }
  const file = fileAt(url.pathname, url.searchParams);
  return file === undefined ? response.writeHead(404).end() : serveFile(request, response, file);
}

function listen(port) {
  createServer(answer).listen(port, "127.0.0.1");
}

// Whoever waits for the first port finds the second open as well.
if (SECOND_PORT !== 0) {
  listen(SECOND_PORT);
}
listen(PORT);

function send(response, type, body) {
  response.writeHead(200, { "content-type": type, "content-length": Buffer.byteLength(body) });
  response.end(body);
}

/** The file at a path, or undefined. */
function fileAt(pathname, query) {
  const generated = /^\/generated\/(\d+)$/.exec(pathname);
  if (generated !== null) {
    return generatedFile(Number(generated[1]), Number(query.get("seed") ?? 0));
  }
  const decoded = path.posix.normalize(decodeURIComponent(pathname));
  const isShared = SHARED_FOLDERS.some((folder) => decoded.startsWith(folder));
  return fileOnDisk(
    path.join(ROOT, isShared ? "." : "web/dist", decoded.endsWith("/") ? `${decoded}index.html` : decoded),
  );
}

/** GGUF version 3 without tensors and with one key. */
function ggufOfArchitecture(name) {
  const string = (text) => Buffer.concat([u64(text.length), Buffer.from(text)]);
  const TYPE_STRING = 8;
  const header = Buffer.concat([
    Buffer.from("GGUF"),
    u32(3),
    u64(0),
    u64(1),
    string("general.architecture"),
    u32(TYPE_STRING),
    string(name),
  ]);
  return Buffer.concat([header, Buffer.alloc(-header.length & 31)]);
}

function u32(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

function u64(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}
