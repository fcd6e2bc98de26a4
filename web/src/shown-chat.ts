/** Which chat this tab shows, so that a reload shows it again. Each tab has its own. */

import type { ChatStore } from "./chat-store.js";
import type { Chat } from "./chat.js";

const KEY = "signbit.chat";

/** What this tab has shown before, or else what was changed last. A chat without a message is not kept, and is undefined. */
export async function lastShown(store: ChatStore): Promise<Chat | undefined> {
  const id = remembered() ?? (await store.list())[0]?.id;
  return id === undefined ? undefined : store.read(id);
}

export function rememberShown(id: string): void {
  try {
    sessionStorage.setItem(KEY, id);
  } catch {
    // A reload then shows the chat that was changed last.
  }
}

function remembered(): string | undefined {
  try {
    return sessionStorage.getItem(KEY) ?? undefined;
  } catch {
    return undefined;
  }
}
