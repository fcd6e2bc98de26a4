/** The list of chats: a panel at the side, from which they are opened, deleted, exported and imported. */

import { ChatRow } from "./chat-row.js";
import type { ChatInfo } from "./chat.js";
import { byId } from "./dom.js";

export interface ChatsPanelOptions {
  readonly list: () => Promise<readonly ChatInfo[]>;
  readonly isKeeping: () => boolean;
  readonly onNew: () => void;
  /** These say what has come of it, if the panel is still there for it. */
  readonly open: (chat: ChatInfo) => Promise<string>;
  readonly delete: (chat: ChatInfo) => Promise<string>;
  readonly export: (chat: ChatInfo) => Promise<string>;
  readonly import: (file: File) => Promise<string>;
}

export class ChatsPanel {
  readonly #dialog = byId("chats-dialog", HTMLDialogElement);
  readonly #heading = byId("chats-title", HTMLElement);
  readonly #list = byId("chats", HTMLUListElement);
  readonly #empty = byId("chats-empty", HTMLElement);
  readonly #notice = byId("chats-notice", HTMLElement);
  readonly #sessionNotice = byId("chats-session-notice", HTMLElement);
  readonly #message = byId("chats-message", HTMLElement);
  readonly #options: ChatsPanelOptions;
  /** By the chat's id. */
  readonly #rows = new Map<string, ChatRow>();
  #current = "";
  #refreshes = 0;

  constructor(options: ChatsPanelOptions) {
    this.#options = options;
    byId("chats-button", HTMLButtonElement).addEventListener("click", () => void this.#open());
    this.#dialog.addEventListener("close", () => this.#settle());
    byId("chats-new", HTMLButtonElement).addEventListener("click", () => {
      this.close();
      options.onNew();
    });
    const file = byId("chat-file", HTMLInputElement);
    byId("chats-import", HTMLButtonElement).addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      const [chosen] = file.files ?? [];
      if (chosen !== undefined) {
        void this.#report("Importing", options.import(chosen));
      }
      // The same file can be chosen again.
      file.value = "";
    });
  }

  /** Which chat is on show. */
  setCurrent(id: string): void {
    this.#current = id;
    this.refresh();
  }

  /** The chats may be others than before. */
  refresh(): void {
    if (this.#dialog.open) {
      void this.#refresh();
    }
  }

  /** Says that what the model has read is not kept. */
  showSessionNotice(text: string): void {
    this.#sessionNotice.textContent = text;
    this.#sessionNotice.hidden = false;
  }

  close(): void {
    this.#dialog.close();
  }

  async #open(): Promise<void> {
    this.#dialog.showModal();
    await this.#refresh();
    this.#rows.get(this.#current)?.element.scrollIntoView({ block: "nearest" });
  }

  /** Asks for the chats and shows them. The last answer counts where several are under way. */
  async #refresh(): Promise<void> {
    this.#refreshes += 1;
    const refresh = this.#refreshes;
    const chats = await this.#options.list();
    if (refresh === this.#refreshes) {
      this.#show(chats);
      this.#notice.hidden = this.#options.isKeeping();
    }
  }

  #show(chats: readonly ChatInfo[]): void {
    const focused = document.activeElement;
    const position = [...this.#list.children].findIndex((row) => row.contains(focused));
    const known = new Set(chats.map(({ id }) => id));
    for (const id of this.#rows.keys()) {
      if (!known.has(id)) {
        this.#rows.delete(id);
      }
    }
    const rows = chats.map((chat) => {
      const row = this.#row(chat);
      row.show(chat, chat.id === this.#current);
      return row;
    });
    this.#list.replaceChildren(...rows.map((row) => row.element));
    this.#empty.hidden = rows.length > 0;
    if (position >= 0) {
      this.#restoreFocus(focused, rows[position] ?? rows.at(-1));
    }
  }

  /** Rows that are put in anew lose the focus, and one that is gone hands it to the row in its place. */
  #restoreFocus(focused: Element | null, heir: ChatRow | undefined): void {
    if (focused instanceof HTMLElement && focused.isConnected) {
      focused.focus();
    } else if (heir !== undefined) {
      heir.focus();
    } else {
      this.#heading.focus();
    }
  }

  #row(chat: ChatInfo): ChatRow {
    const known = this.#rows.get(chat.id);
    if (known !== undefined) {
      return known;
    }
    const row = new ChatRow({
      onOpen: () => void this.#report("", this.#options.open(chat)),
      onExport: () => void this.#report("Exporting", this.#options.export(chat)),
      delete: () => this.#report("", this.#options.delete(chat)),
    });
    this.#rows.set(chat.id, row);
    return row;
  }

  /** Says what is done, and what has come of it. */
  async #report(activity: string, result: Promise<string>): Promise<void> {
    this.#message.textContent = activity;
    this.#message.textContent = await result;
    this.refresh();
  }

  /** Takes back questions: nobody sees them any more. */
  #settle(): void {
    this.#message.textContent = "";
    for (const row of this.#rows.values()) {
      row.settle();
    }
  }
}
