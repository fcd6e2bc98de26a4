/**
 * Files as bad servers serve them. `/faults/<id>/<path of a file>?<faults>` is the file at that path, with the faults that
 * the query names. `/log/<id>` is a list of the requests under that id, so that tests at the same time can each
 * have their own; a DELETE forgets them, and what is counted starts anew.
 *
 * | in the query | what is wrong |
 * | --- | --- |
 * | `drop=N`, `drops=K` | the connection ends after N bytes of each body; of the first K only |
 * | `stall=N`, `stalls=K` | after N bytes nothing more comes; in the first K only |
 * | `silent=K` | the first K requests get no answer |
 * | `rate=N` | N bytes in a millisecond |
 * | `ranges=none` | ranges are ignored |
 * | `ranges=416` | ranges are refused, with the true size |
 * | `ranges=hidden` | answers to ranges may not be read by other sites |
 * | `shift=N` | a part begins N bytes later than asked for, and says so |
 * | `total=N` | the total that the parts tell |
 * | `part=1` | the whole file is answered as if a part had been asked for |
 * | `length=none` | without `Content-Length` |
 * | `cut=N` | a body without a length ends properly after N bytes |
 * | `etag=none`, `etag=weak`, `modified=none` | without, or with a weak one |
 * | `expose=none` | no headers are exposed to other sites |
 * | `cors=none` | nothing may be read by other sites |
 * | `preflight=refused` | other sites may not send headers of their own |
 * | `encoding=gzip`, `encoding=always` | compressed where the browser accepts that; in ranges, too |
 * | `status=N`, `first=K`, `retry_after=S` | the status, for the first K requests only |
 * | `uses=K` | the signature, the address without one, is good for K requests, then 403 |
 * | `quota=N` | 403 once N bytes have been sent under the id |
 * | `html=K`, `html_type=T` | after K requests a web page, with a content type of its own |
 * | `change=etag,content,size,modified`, `after=K` | what is another after K requests |
 * | `redirect=Q` | redirects to the other origin, with the query Q and a new signature |
 */

import { buffer } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { requestedRange, written } from "./files.mjs";

const PAGE = "<!doctype html><title>Please log in</title>";
const EXPOSED = "accept-ranges, content-range, etag, retry-after";
const PIECE_BYTES = 16_384;
/** How long the last bytes before an end have, to get ahead of it. */
const DROP_MS = 100;

/** The requests by id, in order. */
const logs = new Map();

/** `/log/<id>` */
export function serveLog(request, response, id) {
  if (request.method === "DELETE") {
    logs.delete(id);
    response.writeHead(204).end();
    return;
  }
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(logs.get(id) ?? []));
}

/** `fileAt` gives the file at a path and a query, or undefined; `otherOrigin` is where redirects go. */
export async function serveFaulty(request, response, { url, id, pathname, fileAt, otherOrigin }) {
  const faults = url.searchParams;
  const host = request.headers.host ?? "";
  const signature = faults.get("signature") ?? "";
  const log = logs.get(id) ?? [];
  logs.set(id, log);
  const turn = log.filter((entry) => entry.host === host && entry.method === "GET").length;
  const uses = log.filter((entry) => entry.host === host && entry.signature === signature).length;
  const sentBefore = log.reduce((sum, entry) => sum + entry.sent, 0);
  const range = request.headers.range ?? null;
  const entry = { method: request.method, host, range, signature, status: 0, sent: 0, state: "open" };
  log.push(entry);
  response.on("close", () => {
    entry.status = response.statusCode;
    entry.state = response.writableFinished ? "ended" : "broken";
  });

  allowOtherSites(request, response, faults);
  if (request.method === "OPTIONS") {
    response.writeHead(faults.get("preflight") === "refused" ? 403 : 204).end();
    return;
  }
  if (turn < number(faults, "silent", 0)) {
    return;
  }
  const status = number(faults, "status", 0);
  if (status !== 0 && turn < number(faults, "first", Infinity)) {
    const headers = faults.has("retry_after") ? { "retry-after": faults.get("retry_after") } : {};
    response.writeHead(status, headers).end("no");
    return;
  }
  if (uses >= number(faults, "uses", Infinity) || sentBefore >= number(faults, "quota", Infinity)) {
    response.writeHead(403, { "content-type": "application/xml" }).end("<Error>Request has expired</Error>");
    return;
  }
  if (faults.has("redirect")) {
    const target = new URL(url.pathname, otherOrigin);
    target.search = `${faults.get("redirect")}&signature=${turn + 1}`;
    response.writeHead(302, { location: target.href }).end();
    return;
  }
  if (turn >= number(faults, "html", Infinity)) {
    response.writeHead(200, { "content-type": faults.get("html_type") ?? "text/html" }).end(PAGE);
    return;
  }
  const file = fileAt(pathname, faults);
  if (file === undefined) {
    response.writeHead(404).end();
    return;
  }
  const isChanged = turn >= number(faults, "after", 1);
  await sendFaulty(request, response, { file: isChanged ? changed(file, fileAt, pathname, faults) : file, faults, turn, entry });
}

function number(faults, name, otherwise) {
  return faults.has(name) ? Number(faults.get(name)) : otherwise;
}

function allowOtherSites(request, response, faults) {
  const isHidden = faults.get("ranges") === "hidden" && request.headers.range !== undefined;
  if (faults.get("cors") === "none" || isHidden) {
    return;
  }
  response.setHeader("access-control-allow-origin", "*");
  response.setHeader("access-control-allow-headers", "*");
  if (faults.get("expose") !== "none") {
    response.setHeader("access-control-expose-headers", EXPOSED);
  }
}

/** The file as it is after somebody has put another in its place. */
function changed(file, fileAt, pathname, faults) {
  const change = (faults.get("change") ?? "").split(",");
  const other = { ...file };
  if (change.includes("etag")) {
    other.etag = '"another"';
  }
  if (change.includes("modified")) {
    other.modified = new Date(Date.UTC(2026, 5, 1)).toUTCString();
  }
  if (change.includes("content")) {
    const next = new URLSearchParams(faults);
    next.set("seed", String(number(faults, "seed", 0) + 1));
    other.read = fileAt(pathname, next).read;
  }
  if (change.includes("size")) {
    other.bytes = file.bytes - 1;
  }
  return other;
}

async function sendFaulty(request, response, { file, faults, turn, entry }) {
  const ranges = faults.get("ranges");
  const range = ranges === "none" ? undefined : requestedRange(request.headers.range, file.bytes);
  if (range === null || (range !== undefined && ranges === "416")) {
    response.writeHead(416, { "content-range": `bytes */${file.bytes}`, "content-type": "text/html" }).end(PAGE);
    return;
  }
  const shift = range === undefined ? 0 : number(faults, "shift", 0);
  const start = (range?.start ?? 0) + shift;
  const end = range?.end ?? file.bytes;
  const accepted = request.headers["accept-encoding"] ?? "";
  const encoding = faults.get("encoding");
  const isEncoded = encoding === "always" || (encoding === "gzip" && /\bgzip\b/.test(accepted));
  let body = file.read(start, end);
  let length = end - start;
  if (isEncoded) {
    const packed = gzipSync(await buffer(body));
    body = [packed];
    length = packed.length;
    response.setHeader("content-encoding", "gzip");
  }
  if (faults.get("length") !== "none") {
    response.setHeader("content-length", length);
  }
  if (faults.get("etag") !== "none") {
    response.setHeader("etag", faults.get("etag") === "weak" ? `W/${file.etag}` : file.etag);
  }
  if (faults.get("modified") !== "none") {
    response.setHeader("last-modified", file.modified);
  }
  const isPart = range !== undefined || faults.has("part");
  if (isPart) {
    response.setHeader("content-range", `bytes ${start}-${end - 1}/${number(faults, "total", file.bytes)}`);
  }
  response.writeHead(isPart ? 206 : 200, { "content-type": file.type });
  response.flushHeaders();
  await sendBody(response, body, { faults, turn, entry });
}

async function sendBody(response, body, { faults, turn, entry }) {
  const limit = (name, times) => (turn < number(faults, times, Infinity) ? number(faults, name, Infinity) : Infinity);
  const drop = limit("drop", "drops");
  const stall = limit("stall", "stalls");
  const cut = number(faults, "cut", Infinity);
  const rate = number(faults, "rate", Infinity);
  for await (const piece of body) {
    for (let at = 0; at < piece.length; at += PIECE_BYTES) {
      const left = Math.min(drop, stall, cut) - entry.sent;
      const part = piece.subarray(at, Math.min(at + PIECE_BYTES, at + left));
      await written(response, part);
      entry.sent += part.length;
      if (response.destroyed || entry.sent >= stall) {
        return;
      }
      if (entry.sent >= cut) {
        response.end();
        return;
      }
      if (entry.sent >= drop) {
        await sleep(DROP_MS);
        response.destroy();
        return;
      }
      if (rate !== Infinity) {
        await sleep(part.length / rate);
      }
    }
  }
  response.end();
}
