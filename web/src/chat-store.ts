/**
 * Where chats are kept: the IndexedDB database `signbit-chats`. It may be missing, refuse or be deleted at any time:
 * what cannot be written stays in memory, so that the page goes on with it as long as it is open. Where two tabs go on
 * with the same chat in different ways, the later one goes on in a chat of its own.
 */

import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import { beginsWith, isSameConversation, parseContent, parseInfo, uniqueId, type Chat, type ChatInfo } from "./chat.js";

/**
 * Messages lie apart, so that a list need not read them. Deleted are those chats whose sessions may still be there. All
 * tables have the chat's id as their key.
 */
interface Schema extends DBSchema {
  chats: { key: string; value: ChatInfo };
  messages: { key: string; value: Chat["messages"] };
  deleted: { key: string; value: true };
}

const NAME = "signbit-chats";
const VERSION = 2;
/** How long to wait for a browser that does not answer, or for a tab that holds another version open. */
const PATIENCE_MS = 3000;

export class ChatStore {
  /** Chats that could not be written. */
  readonly #unkept = new Map<string, Chat>();
  /** The messages that were stored of a chat when it was read or written here. */
  readonly #known = new WeakMap<Chat, Chat["messages"]>();
  /** The last change: each begins when the one before it has ended. */
  #changed: Promise<void> = Promise.resolve();
  readonly #channel = openChannel();
  #isKeeping = true;

  /** `onChange` learns which chat another tab has changed. */
  constructor(onChange: (id: string) => void) {
    this.#channel?.addEventListener("message", ({ data }) => {
      if (typeof data === "string") {
        onChange(data);
      }
    });
  }

  /** Whether chats outlast the page, as far as the last attempt has shown. */
  get isKeeping(): boolean {
    return this.#isKeeping;
  }

  /** All chats, the last one that was changed first. */
  async list(): Promise<readonly ChatInfo[]> {
    const records = (await this.#attempt((database) => database.getAll("chats"))) ?? [];
    const kept = records.map(parseInfo).filter((chat) => chat !== undefined && !this.#unkept.has(chat.id));
    return [...kept, ...this.#unkept.values()].filter((chat) => chat !== undefined).toSorted((a, b) => b.changedAt - a.changedAt);
  }

  async read(id: string): Promise<Chat | undefined> {
    await this.#changed;
    const unkept = this.#unkept.get(id);
    if (unkept !== undefined) {
      return unkept;
    }
    const record = await this.#attempt(async (database) => {
      const transaction = database.transaction(["chats", "messages"]);
      const chats = transaction.objectStore("chats");
      const [info, messages] = await Promise.all([chats.get(id), transaction.objectStore("messages").get(id)]);
      return { info, messages };
    });
    const info = parseInfo(record?.info);
    const content = parseContent(record);
    if (info === undefined || content === undefined) {
      return undefined;
    }
    const chat = { ...info, messages: content.messages };
    this.#known.set(chat, [...chat.messages]);
    return chat;
  }

  /**
   * Keeps a chat as it has become. Where another tab has written the same one since, the longer conversation stays if
   * it goes on from the shorter; if they differ, this one gets an id of its own. Tabs that have it open are told if `tells`.
   */
  async write(chat: Chat, tells: boolean): Promise<void> {
    await this.#change(() => this.#write(chat, tells));
  }

  async delete(id: string): Promise<void> {
    await this.#change(async () => {
      this.#unkept.delete(id);
      await this.#attempt(async (database) => {
        const transaction = database.transaction(["chats", "messages", "deleted"], "readwrite");
        await Promise.all([
          transaction.objectStore("chats").delete(id),
          transaction.objectStore("messages").delete(id),
          transaction.objectStore("deleted").put(true, id),
          transaction.done,
        ]);
      });
      this.#channel?.postMessage(id);
    });
  }

  /** The chats that were deleted, and whose sessions may still be there. */
  async deleted(): Promise<readonly string[]> {
    return (await this.#attempt((database) => database.getAllKeys("deleted"))) ?? [];
  }

  /** The session of a deleted chat is gone as well. */
  async forget(id: string): Promise<void> {
    await this.#attempt((database) => database.delete("deleted", id));
  }

  async #change(act: () => Promise<void>): Promise<void> {
    this.#changed = this.#changed.then(act);
    await this.#changed;
  }

  async #write(chat: Chat, tells: boolean): Promise<void> {
    const before = chat.id;
    const written = await this.#attempt(async (database) => {
      const transaction = database.transaction(["chats", "messages", "deleted"], "readwrite");
      const stored = parseContent({ messages: await transaction.objectStore("messages").get(chat.id) })?.messages;
      const { messages, ...info } = structuredClone(chat);
      const known = this.#known.get(chat) ?? [];
      if (stored !== undefined && !isSameConversation(stored, known) && !beginsWith(messages, stored)) {
        if (beginsWith(stored, messages)) {
          return true;
        }
        info.id = uniqueId();
      }
      await Promise.all([
        transaction.objectStore("chats").put(info, info.id),
        transaction.objectStore("messages").put(messages, info.id),
        transaction.objectStore("deleted").delete(info.id),
        transaction.done,
      ]);
      chat.id = info.id;
      this.#known.set(chat, messages);
      return true;
    });
    if (written === undefined) {
      this.#unkept.set(chat.id, chat);
    } else {
      this.#unkept.delete(before);
    }
    if (tells) {
      this.#channel?.postMessage(chat.id);
    }
  }

  /** What `act` gives, or undefined where the database refuses. A connection lives no longer than that. */
  async #attempt<T>(act: (database: IDBPDatabase<Schema>) => Promise<T>): Promise<T | undefined> {
    try {
      const database = await open();
      try {
        const value = await act(database);
        this.#isKeeping = true;
        return value;
      } finally {
        database.close();
      }
    } catch {
      this.#isKeeping = false;
      return undefined;
    }
  }
}

/** To the other tabs, unless the browser refuses that along with storage. */
function openChannel(): BroadcastChannel | undefined {
  try {
    return new BroadcastChannel(NAME);
  } catch {
    return undefined;
  }
}

/** Waits for a connection, and closes one that comes too late. */
async function open(): Promise<IDBPDatabase<Schema>> {
  const opening = openDB<Schema>(NAME, VERSION, {
    upgrade: (database, oldVersion) => {
      if (oldVersion < 1) {
        database.createObjectStore("chats");
        database.createObjectStore("messages");
      }
      database.createObjectStore("deleted");
    },
  });
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeout = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), PATIENCE_MS);
  });
  const database = await Promise.race([opening, timeout]);
  clearTimeout(timer);
  if (database === undefined) {
    void opening.then((late) => late.close(), () => undefined);
    throw new Error("the browser does not open the database");
  }
  return database;
}
