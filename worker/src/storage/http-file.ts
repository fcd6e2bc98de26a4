/** A model file behind an address. */

import { EngineError } from "../errors.js";
import { brokeOff, looksLikeHtml, noByteStream, notAModel, refused, stalled, unaskedPart, unreachable } from "./http-errors.js";
import {
  contentLength,
  contentRange,
  differs,
  identityOf,
  isEncoded,
  mayBeEncoded,
  rangeHeader,
  retryAfter,
  totalOfRefusal,
} from "./http-headers.js";
import { unknownIdentity, type FileIdentity } from "./manifests.js";
import { NoByteStream, pause, Stall, Transfer } from "./transfer.js";

/** How patient to be. */
export interface HttpOptions {
  /** In place of the browser's own. */
  readonly fetch?: typeof fetch;
  /** A connection that gives nothing for so many milliseconds is given up and made again. */
  readonly stall_ms?: number;
  /** Attempts in a row without a single byte, after which the download fails. */
  readonly attempts?: number;
  /** Milliseconds before the second attempt; doubled before each further one. */
  readonly backoff_ms?: number;
}

const STALL_MS = 30_000;
const ATTEMPTS = 5;
const BACKOFF_MS = 500;
/** The longest wait before another attempt by our own choice, and by the server's. */
const MAX_BACKOFF_MS = 10_000;
const MAX_RETRY_AFTER_MS = 60_000;

/** The file at the address is not the one whose reading was begun. */
export class SourceChanged extends Error {
  readonly now: FileIdentity;

  constructor(now: FileIdentity) {
    super("the file at the address has changed");
    this.name = "SourceChanged";
    this.now = now;
  }
}

/** A failure that another attempt may cure. */
class Interruption extends Error {
  /** What the download fails with if no attempt does. */
  readonly error: EngineError;
  /** The request got no answer at all. */
  readonly isUnanswered: boolean;
  readonly retryAfterMs: number;

  constructor(error: EngineError, { isUnanswered = false, retryAfterMs = 0 } = {}) {
    super(error.message);
    this.error = error;
    this.isUnanswered = isUnanswered;
    this.retryAfterMs = retryAfterMs;
  }
}

/** An answer that has been found to be about the right file. */
interface Answer {
  readonly transfer: Transfer;
  /** What is known of the file with this answer. */
  readonly identity: FileIdentity;
  /** Where in the file the body begins. */
  readonly start: number;
  /** Where in the file the body ends, where that is told. */
  readonly end: number | null;
  /** Whether the file ends where the body does. */
  readonly isToEnd: boolean;
  /** Bytes that have been read to see what they are. */
  readonly first: Uint8Array | undefined;
}

/**
 * Reads a file over as many connections as it takes. Each answer is compared with what is known of the file, so that bytes
 * of two files are never mixed. Every request goes to the address that was given, and never to where that
 * redirected before: the target may be signed for a short time, and asking again gives a fresh one.
 */
export class HttpFile {
  readonly #url: string;
  readonly #fetch: typeof fetch;
  readonly #stallMs: number;
  readonly #attempts: number;
  readonly #backoffMs: number;
  #identity: FileIdentity | undefined;
  /** Whether the known size is the file's own, and not perhaps that of its compressed form. */
  #isSizeSure = true;
  /** Whether parts of the file are asked for: until an answer shows that it is of no use. */
  #usesRanges = true;
  /** Whether the server has answered a request for a part. */
  #hasAnsweredRange = false;

  /** `known`: what was learnt of the file before; every request then rejects with `SourceChanged` if the server has another. */
  constructor(url: string, options: HttpOptions, known?: FileIdentity) {
    this.#url = url;
    this.#fetch = options.fetch ?? globalThis.fetch;
    this.#stallMs = options.stall_ms ?? STALL_MS;
    this.#attempts = options.attempts ?? ATTEMPTS;
    this.#backoffMs = options.backoff_ms ?? BACKOFF_MS;
    this.#identity = known;
  }

  /** What the server has said of the file so far, or what was known before. */
  get identity(): FileIdentity | undefined {
    return this.#identity;
  }

  /** Asks once for the file's identity without reading the file. Rejects as `read` does. */
  async probe(signal: AbortSignal): Promise<FileIdentity> {
    let identity = await this.#ask(0, 1, signal);
    if (identity.bytes === null && this.#usesRanges) {
      // Where the size of the whole is hidden in the answer for a part, the length of the whole is not.
      identity = await this.#ask(0, undefined, signal);
    }
    return identity;
  }

  /**
   * The bytes from `start` to before `end`, or to the file's end, in pieces of any size. Rejects with `SourceChanged`,
   * with an `EngineError` of the code `network`, `weights_invalid` where there is a web page instead,
   * or `invalid_request` where a custom `fetch` gives no stream, and with the abort's error.
   */
  async *read(start: number, end: number | undefined, signal: AbortSignal): AsyncGenerator<Uint8Array, void, void> {
    const retries = new Retries(this.#attempts, this.#backoffMs, signal);
    let position = start;
    let isOver = end !== undefined && end <= start;
    while (!isOver) {
      try {
        const answer = await this.#open(position, end, signal);
        for await (const piece of this.#pieces(answer, position, end, signal)) {
          position += piece.length;
          retries.succeeded();
          yield piece;
        }
        isOver = position === end || position === this.#identity?.bytes;
      } catch (error) {
        await retries.failed(error);
      }
    }
  }

  async #ask(start: number, end: number | undefined, signal: AbortSignal): Promise<FileIdentity> {
    const retries = new Retries(1, this.#backoffMs, signal);
    for (;;) {
      try {
        const { transfer, identity } = await this.#open(start, end, signal);
        transfer.close();
        return identity;
      } catch (error) {
        await retries.failed(error);
      }
    }
  }

  /** Asks for the bytes from `start` on; for the whole file where parts are of no use. */
  async #open(start: number, end: number | undefined, signal: AbortSignal): Promise<Answer> {
    for (;;) {
      const range = this.#usesRanges && (start > 0 || end !== undefined) ? rangeHeader(start, end) : undefined;
      const transfer = range === undefined ? await this.#request(range, start, signal) : await this.#requestRange(range, start, signal);
      try {
        const answer = await this.#examine(transfer, start, end, range !== undefined && this.#usesRanges);
        if (answer !== undefined) {
          return answer;
        }
      } catch (error) {
        transfer.close();
        throw this.#explained(error, start, signal);
      }
      transfer.close();
      this.#usesRanges = false;
    }
  }

  /**
   * Asks for a part. Where that gets no answer, it may be the connection, or a server that refuses the
   * header to other sites, which a browser does not tell apart. Then the whole file is asked for, and if that is
   * answered, the part once more, so that a short outage does not cost the parts that have arrived.
   */
  async #requestRange(range: string, start: number, signal: AbortSignal): Promise<Transfer> {
    const isUnanswered = (error: unknown): boolean => error instanceof Interruption && error.isUnanswered;
    try {
      const transfer = await this.#request(range, start, signal);
      this.#hasAnsweredRange = true;
      return transfer;
    } catch (error) {
      if (!isUnanswered(error) || this.#hasAnsweredRange) {
        throw error;
      }
    }
    const whole = await this.#request(undefined, start, signal);
    try {
      const transfer = await this.#request(range, start, signal);
      this.#hasAnsweredRange = true;
      whole.close();
      return transfer;
    } catch (error) {
      if (isUnanswered(error)) {
        this.#usesRanges = false;
        return whole;
      }
      whole.close();
      throw error;
    }
  }

  async #request(range: string | undefined, start: number, signal: AbortSignal): Promise<Transfer> {
    try {
      return await Transfer.open({ fetch: this.#fetch, url: this.#url, range, stall_ms: this.#stallMs }, signal);
    } catch (error) {
      if (signal.aborted || error instanceof Stall) {
        throw this.#explained(error, start, signal);
      }
      const explained = this.#identity === undefined ? unreachable(this.#url, error) : brokeOff(this.#url, start, error);
      throw new Interruption(explained, { isUnanswered: true });
    }
  }

  /** What the answer has of the file. Undefined where asking for parts is of no use. */
  async #examine(transfer: Transfer, start: number, end: number | undefined, isRange: boolean): Promise<Answer | undefined> {
    const { response } = transfer;
    if (response.status === 416 && isRange) {
      return this.#examineRefusal(transfer, start);
    }
    if (response.status === 0) {
      throw noByteStream(this.#url);
    }
    if (response.status !== 200 && response.status !== 206) {
      const error = refused(this.#url, response, this.#identity !== undefined);
      throw isPassing(response.status) ? new Interruption(error, { retryAfterMs: retryAfter(response) }) : error;
    }
    // Before anything is compared: a login page in the file's place does not mean that the file has changed.
    if (/^text\/html\b/i.test(response.headers.get("content-type") ?? "")) {
      throw notAModel(this.#url);
    }
    return response.status === 206 ? this.#examinePart(transfer, start, end, isRange) : this.#examineWhole(transfer, isRange);
  }

  async #examineWhole(transfer: Transfer, isRange: boolean): Promise<Answer> {
    const first = await transfer.next();
    if (first !== undefined && looksLikeHtml(first)) {
      throw notAModel(this.#url);
    }
    const length = contentLength(transfer.response);
    const isSure = isRange || !mayBeEncoded(transfer.response);
    const identity = this.#learn(identityOf(transfer.response, this.#url, length), isSure);
    return { transfer, identity, start: 0, end: isSure ? length : null, isToEnd: true, first };
  }

  #examinePart(transfer: Transfer, start: number, end: number | undefined, isRange: boolean): Answer | undefined {
    if (!isRange) {
      throw unaskedPart(this.#url);
    }
    const range = contentRange(transfer.response);
    // Parts of an encoded file are counted in encoded bytes.
    if (range === null || isEncoded(transfer.response)) {
      return undefined;
    }
    const length = contentLength(transfer.response);
    const bodyEnd = range?.end ?? (length === null ? null : start + length);
    const isToEnd = range === undefined && end === undefined;
    const total = range?.total ?? (isToEnd ? bodyEnd : null);
    const identity = this.#learn(identityOf(transfer.response, this.#url, total));
    return range === undefined || range.start === start
      ? { transfer, identity, start, end: bodyEnd, isToEnd, first: undefined }
      : undefined;
  }

  /** A part behind the end of the file is refused with the file's size, and a server without parts may refuse each. */
  #examineRefusal(transfer: Transfer, start: number): Answer | undefined {
    const bytes = totalOfRefusal(transfer.response);
    if (bytes === start && this.#identity !== undefined) {
      this.#forgetUnsureSize(this.#identity);
    }
    const identity = this.#learn({ ...unknownIdentity(this.#identity?.url ?? this.#url), bytes });
    return identity.bytes === start ? { transfer, identity, start, end: start, isToEnd: false, first: undefined } : undefined;
  }

  /** Compares what an answer says with what is known, and adds to that. */
  #learn(now: FileIdentity, isSizeSure = true): FileIdentity {
    const known = this.#identity;
    if (known !== undefined && differs(known, now, this.#isSizeSure && isSizeSure)) {
      throw new SourceChanged(now);
    }
    const isNewSize = now.bytes !== null && (known === undefined || known.bytes === null || (isSizeSure && !this.#isSizeSure));
    this.#identity = {
      url: now.url,
      bytes: isNewSize ? now.bytes : (known?.bytes ?? null),
      etag: known?.etag ?? now.etag,
      last_modified: known?.last_modified ?? now.last_modified,
    };
    if (isNewSize) {
      this.#isSizeSure = isSizeSure;
    }
    return this.#identity;
  }

  /** The body has more bytes than the file. Then it is another file's, unless the size was that of the compressed file. */
  #exceeded(identity: FileIdentity): FileIdentity {
    if (this.#isSizeSure) {
      throw new SourceChanged({ ...identity, bytes: null });
    }
    return this.#forgetUnsureSize(identity);
  }

  #forgetUnsureSize(identity: FileIdentity): FileIdentity {
    if (this.#isSizeSure) {
      return identity;
    }
    this.#isSizeSure = true;
    this.#identity = { ...identity, bytes: null };
    return this.#identity;
  }

  /** Those bytes of an answer that are asked for. */
  async *#pieces(
    answer: Answer,
    start: number,
    end: number | undefined,
    signal: AbortSignal,
  ): AsyncGenerator<Uint8Array, void, void> {
    const { transfer } = answer;
    let { identity } = answer;
    let position = answer.start;
    try {
      let piece = answer.end === answer.start ? undefined : (answer.first ?? (await transfer.next()));
      while (piece !== undefined) {
        const wanted = piece.subarray(Math.max(start - position, 0), Math.max((end ?? Infinity) - position, 0));
        position += piece.length;
        if (identity.bytes !== null && position > identity.bytes) {
          identity = this.#exceeded(identity);
        }
        if (wanted.length > 0) {
          yield wanted;
        }
        if (end !== undefined && position >= end) {
          return;
        }
        piece = await transfer.next();
      }
    } catch (error) {
      throw this.#explained(error, Math.max(position, start), signal);
    } finally {
      transfer.close();
    }
    // Where nothing but an unsure size speaks against it, the file ends where it has ended twice.
    if (answer.isToEnd && position === start) {
      identity = this.#forgetUnsureSize(identity);
    }
    const promised = answer.end ?? identity.bytes;
    if (promised === null && answer.isToEnd) {
      this.#learn({ ...identity, bytes: position });
    }
    const isNothing = position <= start && this.#identity?.bytes !== start;
    if (isNothing || (promised !== null && position < promised)) {
      throw new Interruption(brokeOff(this.#url, Math.max(position, start)));
    }
  }

  /** What the end of a transfer means for the download that has come to `position`. */
  #explained(error: unknown, position: number, signal: AbortSignal): unknown {
    if (error instanceof Stall) {
      return new Interruption(stalled(this.#url, position, this.#stallMs));
    }
    if (error instanceof NoByteStream) {
      return noByteStream(this.#url);
    }
    const isExplained = error instanceof EngineError || error instanceof SourceChanged || error instanceof Interruption;
    return isExplained || signal.aborted ? error : new Interruption(brokeOff(this.#url, position, error));
  }
}

/** Statuses that another attempt may not meet. */
function isPassing(status: number): boolean {
  return status === 408 || status === 425 || status === 429 || status >= 500;
}

/** Counts attempts in a row without success, and waits before each further one. */
class Retries {
  readonly #attempts: number;
  readonly #backoffMs: number;
  readonly #signal: AbortSignal;
  #failures = 0;
  #hasSucceeded = false;

  constructor(attempts: number, backoffMs: number, signal: AbortSignal) {
    this.#attempts = attempts;
    this.#backoffMs = backoffMs;
    this.#signal = signal;
  }

  /** The attempt has given something, whatever becomes of it. */
  succeeded(): void {
    this.#hasSucceeded = true;
  }

  /** Resolves when it is time for another attempt; throws where none would help, or all have been made. */
  async failed(error: unknown): Promise<void> {
    if (!(error instanceof Interruption)) {
      throw error;
    }
    this.#failures = this.#hasSucceeded ? 0 : this.#failures + 1;
    this.#hasSucceeded = false;
    if (this.#failures >= this.#attempts) {
      throw error.error;
    }
    const backoff = Math.min(this.#backoffMs * 2 ** Math.max(this.#failures - 1, 0), MAX_BACKOFF_MS);
    await pause(Math.max(backoff, Math.min(error.retryAfterMs, MAX_RETRY_AFTER_MS)), this.#signal);
  }
}
