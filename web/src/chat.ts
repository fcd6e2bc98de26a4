/** A chat as the page keeps it: its messages, and what tells it from others. */

import type { Message } from "signbit";

/** A model as a chat remembers it. */
export interface ChatModel {
  readonly name: string;
  readonly isBuiltIn: boolean;
  /** Of its files, in order. */
  readonly sha256: readonly string[];
}

export interface ChatInfo {
  /** Also the name of the engine's session. It changes where the chat becomes one of its own. */
  id: string;
  /** The first question, shortened; empty as long as there is none. */
  title: string;
  /** What the last answer came from. */
  model: ChatModel | null;
  /** Milliseconds since 1970. */
  readonly createdAt: number;
  changedAt: number;
}

export interface Chat extends ChatInfo {
  /** Turns of the person and of the model, without the system prompt. */
  messages: Message[];
}

/** The longest title, in characters. */
const MAX_TITLE = 60;

export function emptyChat(): Chat {
  const now = Date.now();
  return { id: uniqueId(), title: "", model: null, createdAt: now, changedAt: now, messages: [] };
}

/** A chat's title, from its first question. */
export function titleOf(question: string): string {
  const line = question.replace(/\s+/g, " ").trim();
  const characters = [...line];
  if (characters.length <= MAX_TITLE) {
    return line;
  }
  const start = characters.slice(0, MAX_TITLE - 1).join("");
  const lastSpace = start.lastIndexOf(" ");
  // A break between words, unless most would go.
  return `${lastSpace > start.length / 2 ? start.slice(0, lastSpace) : start}…`;
}

/** Whether two chats were held with the same model; each build of the page has its own built-in one. */
export function isSameModel(one: ChatModel, other: ChatModel): boolean {
  return one.isBuiltIn || other.isBuiltIn ? one.isBuiltIn === other.isBuiltIn : one.sha256.join() === other.sha256.join();
}

/** Whether a conversation begins with the whole of another. */
export function beginsWith(messages: readonly Message[], start: readonly Message[]): boolean {
  return isSameConversation(messages.slice(0, start.length), start);
}

export function isSameConversation(one: readonly Message[], other: readonly Message[]): boolean {
  // Messages are made in this page alone, where their members have one order.
  return JSON.stringify(one) === JSON.stringify(other);
}

/** What a chat has that was stored or exported, by this version or another; undefined for anything else. */
export function parseContent(value: unknown): Pick<Chat, "title" | "model" | "messages"> | undefined {
  if (!isRecord(value) || !Array.isArray(value["messages"])) {
    return undefined;
  }
  const messages = value["messages"].map(parseMessage);
  if (!messages.every((message) => message !== undefined)) {
    return undefined;
  }
  const { title, model } = value;
  return { title: typeof title === "string" ? titleOf(title) : "", model: parseModel(model), messages };
}

/** A stored chat without its messages. */
export function parseInfo(value: unknown): ChatInfo | undefined {
  if (!isRecord(value)) {
    return undefined;
  }
  const { id, title, model, createdAt, changedAt } = value;
  return typeof id === "string" && typeof title === "string" && typeof createdAt === "number" && typeof changedAt === "number"
    ? { id, title, model: parseModel(model), createdAt, changedAt }
    : undefined;
}

function parseMessage(value: unknown): Message | undefined {
  if (!isRecord(value)) {
    return undefined;
  }
  const { role, content, reasoning_content } = value;
  if (typeof content !== "string") {
    return undefined;
  }
  switch (role) {
    case "user":
      return { role, content };
    case "assistant":
      return { role, content, ...(typeof reasoning_content === "string" ? { reasoning_content } : {}) };
    default:
      return undefined;
  }
}

function parseModel(value: unknown): ChatModel | null {
  if (!isRecord(value)) {
    return null;
  }
  const { name, isBuiltIn, sha256 } = value;
  return typeof name === "string" && typeof isBuiltIn === "boolean" && isTexts(sha256) ? { name, isBuiltIn, sha256 } : null;
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null;
}

function isTexts(value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every((item) => typeof item === "string");
}

/** `crypto.randomUUID` exists in secure contexts only, this everywhere. */
export function uniqueId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
