/**
 * Chats as files. With what the model has read, a chat is the engine's tar file, in which `data.json` holds the
 * page's own part; without, it is that part alone.
 */

import { emptyChat, parseContent, titleOf, type Chat } from "./chat.js";

/** What of a chat goes into a file. */
export type ChatContent = Pick<Chat, "title" | "model" | "messages">;

export interface ImportedChat {
  /** Under an id of its own. */
  readonly chat: Chat;
  /** Whether the file has what the model has read as well. */
  readonly hasSession: boolean;
}

const DATA_NAME = "data.json";
/** The most that a chat's text may take. A file that has more is none of ours, and is not read into memory. */
const MAX_DATA_BYTES = 64 * 2 ** 20;
/** Of a tar file: a header, and the unit that files are padded to. */
const BLOCK_BYTES = 512;

export function chatContent({ title, model, messages }: Chat): ChatContent {
  return { title, model, messages };
}

export function contentFile(content: ChatContent): Blob {
  return new Blob([JSON.stringify(content)], { type: "application/json" });
}

/** The chat in a file, or undefined if there is none. */
export async function readChatFile(file: Blob): Promise<ImportedChat | undefined> {
  const data = await tarEntry(file, DATA_NAME);
  const text = data ?? file;
  if (text.size > MAX_DATA_BYTES) {
    return undefined;
  }
  const content = parseContent(parseJson(await text.text()));
  const question = content?.messages.find(({ role }) => role === "user")?.content;
  if (content === undefined || typeof question !== "string") {
    return undefined;
  }
  const chat = { ...emptyChat(), ...content, title: content.title === "" ? titleOf(question) : content.title };
  return { chat, hasSession: data !== undefined };
}

/** Gives a file to the person, as a download. */
export function saveFile(file: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  // The download has begun by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A name for a chat's file, of what every file system takes. */
export function fileName(title: string, extension: string): string {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  return `${name === "" ? "chat" : name}.${extension}`;
}

/** A file in a tar file; undefined if there is none, or if this is no tar file. */
async function tarEntry(file: Blob, name: string): Promise<Blob | undefined> {
  const decoder = new TextDecoder();
  for (let offset = 0; offset + BLOCK_BYTES <= file.size; ) {
    const header = new Uint8Array(await file.slice(offset, offset + BLOCK_BYTES).arrayBuffer());
    const field = (from: number, to: number): string => decoder.decode(header.subarray(from, to)).split("\0", 1)[0] ?? "";
    const bytes = Number.parseInt(field(124, 136).trim(), 8);
    if (field(257, 262) !== "ustar" || !(bytes >= 0)) {
      return undefined;
    }
    const start = offset + BLOCK_BYTES;
    if (field(0, 100) === name) {
      return file.slice(start, start + bytes);
    }
    offset = start + Math.ceil(bytes / BLOCK_BYTES) * BLOCK_BYTES;
  }
  return undefined;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
