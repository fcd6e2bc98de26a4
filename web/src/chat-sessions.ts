/**
 * The engine's sessions that belong to chats: what the model has read of them. A chat does without one, only that
 * the model then reads its messages anew. So nothing here fails: it says what it could not do.
 */

import { EngineError, type Engine } from "signbit";
import { chatContent, contentFile, fileName, saveFile } from "./chat-file.js";
import type { ChatStore } from "./chat-store.js";
import type { Chat } from "./chat.js";
import { failureSentence } from "./status-view.js";

export class ChatSessions {
  readonly #engine: () => Engine | undefined;
  readonly #store: ChatStore;

  constructor(engine: () => Engine | undefined, store: ChatStore) {
    this.#engine = engine;
    this.#store = store;
  }

  /** Brings a session back ahead of the next question. Where that is not possible, the question takes longer. */
  async open(id: string): Promise<void> {
    await this.#engine()?.sessions.open(id).catch(() => undefined);
  }

  /** Deletes the session of a deleted chat, now or when there is an engine: the store remembers it for that long. */
  async delete(id: string): Promise<void> {
    try {
      await this.#running().sessions.delete(id);
    } catch (error) {
      if (!(error instanceof EngineError && error.code === "session_unknown")) {
        return;
      }
    }
    await this.#store.forget(id);
  }

  /** Deletes what could not be deleted so far, be it by another page. */
  async deleteOrphans(): Promise<void> {
    await Promise.all((await this.#store.deleted()).map((id) => this.delete(id)));
  }

  /** Gives the person a file with the chat, and says what is in it. */
  async export(chat: Chat): Promise<string> {
    const { id, title } = chat;
    const content = chatContent(chat);
    try {
      const engine = this.#running();
      await engine.sessions.save(id, { data: content });
      saveFile(await engine.sessions.export(id), fileName(title, "tar"));
      return `“${title}” was exported, with what the model has read.`;
    } catch (error) {
      saveFile(contentFile(content), fileName(title, "json"));
      return `“${title}” was exported with its messages alone. ${failureSentence(error)}`;
    }
  }

  /** Takes the session out of a chat's file, under the chat's own id, and says what has come of it. */
  async import(file: File, { id, title }: Chat): Promise<string> {
    try {
      await this.#running().sessions.import(file, { session: id });
      return `“${title}” was imported, with what the model has read.`;
    } catch (error) {
      return `“${title}” was imported with its messages alone. ${failureSentence(error)}`;
    }
  }

  #running(): Engine {
    const engine = this.#engine();
    if (engine === undefined) {
      throw new EngineError("aborted");
    }
    return engine;
  }
}
