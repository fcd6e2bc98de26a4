/**
 * Chats as files. With what the model has read, a chat is the engine's tar file, in which `data.json` holds the
 * page's own part; without, it is that part alone.
 */

import { readSessionData } from "signbit";
import { emptyChat, parseContent, titleOf, type Chat } from "./chat.js";

/** What of a chat goes into a file. */
export type ChatContent = Pick<Chat, "title" | "model" | "messages">;

export interface ImportedChat {
  /** Under an id of its own. */
  readonly chat: Chat;
  /** Whether the file has what the model has read as well. */
  readonly hasSession: boolean;
}

/** The most that a chat's text may take. A file that has more is none of ours, and is not read into memory. */
const MAX_TEXT_BYTES = 64 * 2 ** 20;

export function chatContent({ title, model, messages }: Chat): ChatContent {
  return { title, model, messages };
}

export function contentFile(content: ChatContent): Blob {
  return new Blob([JSON.stringify(content)], { type: "application/json" });
}

/** The chat in a file, or undefined if there is none. */
export async function readChatFile(file: Blob): Promise<ImportedChat | undefined> {
  const data = await readSessionData(file).catch(() => undefined);
  const content = parseContent(data ?? (await readJson(file)));
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

/** What is in a JSON file; undefined for anything else. */
async function readJson(file: Blob): Promise<unknown> {
  try {
    return file.size > MAX_TEXT_BYTES ? undefined : JSON.parse(await file.text());
  } catch {
    return undefined;
  }
}
