/** Several chats in one page: what it keeps, brings back, and takes along. */

import { readFile } from "node:fs/promises";
import type { Download, Locator, Page } from "@playwright/test";
import type { Params } from "../../worker/dist/protocol.js";
import { fakeWorker, installFakeWorker } from "./fake-worker.js";
import { expect, test } from "./test.js";

const BUILT_IN = "Signbit Mini";
const FRANCE = "What is the capital of France?";
const EGYPT = "Where is Egypt?";
const PARIS = "The capital of France is Paris.";
const AFRICA = "Egypt is in Africa.";
/** Of a prompt of 36 tokens the first question, the turn for its answer, and the answer are 23; the last is read again. */
const READ_NEW_PART = /read 14 of 36 tokens/;
const OTHER_MODEL = "tests/golden/models/qwen3-q1_0/model.gguf";

/** Opens the page and waits until it can answer. */
async function openPage(page: Page): Promise<void> {
  await page.goto("/");
  await ready(page);
}

async function ready(page: Page): Promise<void> {
  await expect(page.locator("#device")).toContainText("Runs on");
  await expect(page.getByRole("button", { name: BUILT_IN })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
}

/** Asks, and waits for the end of the answer. */
async function ask(page: Page, question: string, answer: string): Promise<void> {
  await page.getByRole("textbox", { name: "Message" }).fill(question);
  await page.getByRole("button", { name: "Send" }).click();
  await expect(answers(page).last()).toContainText(answer);
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
}

function answers(page: Page): Locator {
  return page.locator(".turn.assistant");
}

function questions(page: Page): Locator {
  return page.locator(".turn.user");
}

function panel(page: Page): Locator {
  return page.getByRole("dialog", { name: "Chats" });
}

function rows(page: Page): Locator {
  return panel(page).getByRole("list", { name: "Chats" }).getByRole("listitem");
}

async function openPanel(page: Page): Promise<Locator> {
  await page.getByRole("button", { name: "Chats" }).click();
  await expect(panel(page)).toBeVisible();
  return panel(page);
}

async function newChat(page: Page): Promise<void> {
  await page.locator("#new-chat").click();
  await expect(page.getByRole("heading", { name: "A language model in this tab" })).toBeVisible();
}

/** From now on the built-in model comes only when the result is called. */
async function holdModel(page: Page): Promise<() => void> {
  let release = (): void => undefined;
  const held = new Promise<void>((resolve) => (release = resolve));
  await page.route("**/signbit-mini*.gguf", async (route) => {
    await held;
    await route.continue();
  });
  return release;
}

/** Has the chat exported, and gives the file. */
async function exported(page: Page, title: string): Promise<Download> {
  const download = page.waitForEvent("download");
  await panel(page).getByRole("button", { name: `Export ${title}` }).click();
  return download;
}

/** What a fake worker was asked to answer, so far. */
async function generations(page: Page): Promise<readonly Params<"generate">[]> {
  const requests = await fakeWorker(page).evaluate(() => fake.requests);
  return requests.flatMap((request) => (request.method === "generate" ? [request.params] : []));
}

/** What it was asked about sessions. */
async function sessionRequests(page: Page): Promise<readonly string[]> {
  const requests = await fakeWorker(page).evaluate(() => fake.requests);
  return requests.flatMap((request) =>
    request.method === "open_session" || request.method === "delete_session" ? [`${request.method} ${request.params.id}`] : [],
  );
}

/** Waits until the engine has so many saved sessions. */
async function saved(page: Page, sessions = 1): Promise<void> {
  await expect
    .poll(() =>
      page.evaluate(async () => {
        const request = indexedDB.open("signbit");
        await new Promise((resolve) => (request.onsuccess = resolve));
        const database = request.result;
        try {
          if (!database.objectStoreNames.contains("snapshots")) {
            return 0;
          }
          const count = database.transaction("snapshots").objectStore("snapshots").count();
          await new Promise((resolve) => (count.onsuccess = resolve));
          return count.result;
        } finally {
          database.close();
        }
      }),
    )
    .toBe(sessions);
}

/** A tar file with one file in it. */
function tar(name: string, content: string): Buffer {
  const bytes = Buffer.from(content);
  const header = Buffer.alloc(512);
  header.write(name);
  header.write("0000644\0", 100);
  header.write(`${bytes.length.toString(8).padStart(11, "0")}\0`, 124);
  header.write(" ".repeat(8), 148);
  header.write("0", 156);
  header.write("ustar\x0000", 257);
  header.write(`${header.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, "0")}\0 `, 148);
  return Buffer.concat([header, bytes, Buffer.alloc((512 - (bytes.length % 512)) % 512), Buffer.alloc(1024)]);
}

test("a reload brings the chat back before the model has loaded, and so does another day @page", async ({ persistentContext }) => {
  const context = await persistentContext();
  const page = context.pages()[0] ?? (await context.newPage());
  await openPage(page);
  await ask(page, FRANCE, PARIS);

  const release = await holdModel(page);
  await page.reload();
  await expect(questions(page)).toHaveText(`You: ${FRANCE}`);
  await expect(answers(page).locator(".answer")).toHaveText(PARIS);
  await expect(page.getByRole("heading", { name: "A language model in this tab" })).toBeHidden();
  await expect(page.locator("#loading")).toBeVisible();
  release();
  await ready(page);
  await ask(page, "And its currency?", "The currency of France is the euro.");
  await context.close();

  const later = await persistentContext();
  const again = later.pages()[0] ?? (await later.newPage());
  await openPage(again);
  await expect(answers(again)).toHaveCount(2);
  await expect(answers(again).last()).toContainText("The currency of France is the euro.");
});

test("a new chat leaves the old one in the list, and one can go back and forth @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await newChat(page);
  await ask(page, EGYPT, AFRICA);

  await openPanel(page);
  await expect(rows(page)).toHaveCount(2);
  await expect(rows(page).nth(0)).toContainText(EGYPT);
  await expect(rows(page).nth(0)).toContainText(/today at \d\d:\d\d, Signbit Mini/);
  await expect(rows(page).nth(0).locator("[aria-current=true]")).toBeVisible();
  await expect(rows(page).nth(1).locator("[aria-current]")).toHaveCount(0);
  await rows(page).nth(1).getByRole("button", { name: FRANCE }).first().click();
  await expect(panel(page)).toBeHidden();
  await expect(questions(page)).toHaveText(`You: ${FRANCE}`);
  await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
  await ask(page, "And its currency?", "The currency of France is the euro.");

  // An empty chat stays empty over a reload: the tab remembers what it has shown.
  await newChat(page);
  await page.reload();
  await ready(page);
  await expect(page.getByRole("heading", { name: "A language model in this tab" })).toBeVisible();
  await openPanel(page);
  await expect(rows(page).nth(0)).toContainText(FRANCE);
});

test("a chat that is left in the middle of an answer keeps what there was of it @page", async ({ page }) => {
  await openPage(page);
  await page.locator("#file").setInputFiles("tests/golden/models/qwen3-q8_0/model.gguf");
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await page.getByLabel("Think first").uncheck();
  await page.getByRole("textbox", { name: "Message" }).fill("Go on for ever.");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(answers(page).locator(".answer")).not.toHaveText("");
  await newChat(page);
  await openPanel(page);
  await rows(page).getByRole("button", { name: "Go on for ever." }).first().click();
  await expect(answers(page).locator(".answer")).not.toHaveText("");
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
});

test("a question can be edited, and what came after it goes @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await ask(page, "And its currency?", "The currency of France is the euro.");

  await questions(page).first().hover();
  await questions(page).first().getByRole("button", { name: "Edit" }).click();
  const field = page.getByRole("textbox", { name: "Edit the message" });
  await expect(field).toBeFocused();
  await expect(field).toHaveValue(FRANCE);
  await page.keyboard.press("Escape");
  await expect(questions(page).first().getByRole("button", { name: "Edit" })).toBeFocused();
  await expect(answers(page)).toHaveCount(2);

  await page.keyboard.press("Enter");
  await field.fill(EGYPT);
  await page.keyboard.press("Enter");
  await expect(answers(page)).toHaveText(new RegExp(AFRICA));
  await expect(questions(page)).toHaveText([`You: ${EGYPT}`]);
  await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
  await page.reload();
  await ready(page);
  await expect(questions(page)).toHaveText([`You: ${EGYPT}`]);
  await openPanel(page);
  await expect(rows(page)).toHaveText([new RegExp(EGYPT.replace("?", "\\?"))]);
});

test("a question waits with its editor for a model @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  const release = await holdModel(page);
  await page.reload();
  await questions(page).getByRole("button", { name: "Edit" }).focus();
  await page.keyboard.press("Enter");
  const send = questions(page).getByRole("button", { name: "Send" });
  await expect(send).toBeDisabled();
  await page.getByRole("textbox", { name: "Edit the message" }).press("Enter");
  await expect(answers(page)).toHaveCount(1);
  release();
  await expect(send).toBeEnabled();
});

test("a chat can be deleted, and Escape takes back the question @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await newChat(page);
  await ask(page, EGYPT, AFRICA);
  await openPanel(page);
  await panel(page).getByRole("button", { name: `Delete ${EGYPT}` }).click();
  await expect(panel(page).getByRole("button", { name: `Keep ${EGYPT}` })).toBeFocused();
  await page.keyboard.press("Escape");
  await expect(panel(page).getByRole("button", { name: `Delete ${EGYPT}` })).toBeFocused();
  await page.keyboard.press("Enter");
  await panel(page).getByRole("button", { name: `Delete ${EGYPT} for good` }).click();
  await expect(rows(page)).toHaveCount(1);
  await expect(panel(page).getByRole("status")).toHaveText(`“${EGYPT}” was deleted.`);
  await expect(rows(page).getByRole("button", { name: FRANCE }).first()).toBeFocused();
  await panel(page).getByRole("button", { name: "Close" }).click();
  // It was on show.
  await expect(questions(page)).toHaveCount(0);
  await page.reload();
  await ready(page);
  await openPanel(page);
  await expect(rows(page)).toHaveCount(1);
});

test("a chat that is deleted while it is answered does not come back @page", async ({ page }) => {
  // A real answer may end before it is deleted.
  await installFakeWorker(page, { holdsAnswers: true });
  await openPage(page);
  await page.getByRole("textbox", { name: "Message" }).fill("Go on for ever.");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.locator("#status")).toHaveText("1 token");
  await openPanel(page);
  await panel(page).getByRole("button", { name: "Delete Go on for ever." }).click();
  await panel(page).getByRole("button", { name: "Delete Go on for ever. for good" }).click();
  await expect(rows(page)).toHaveCount(0);
  await expect(page.locator("#chats-title")).toBeFocused();
  await expect(page.locator("#stop")).toBeHidden();

  // What the answer has left would be written before what comes now.
  await page.keyboard.press("Escape");
  await page.getByRole("textbox", { name: "Message" }).fill("Again.");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.locator("#status")).toHaveText("1 token");
  // An answer goes on while a question is edited and that is given up.
  await questions(page).getByRole("button", { name: "Edit" }).focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Escape");
  await expect(questions(page).getByRole("button", { name: "Edit" })).toBeFocused();
  await expect(page.locator("#stop")).toBeVisible();
  await openPanel(page);
  await expect(rows(page)).toHaveText([/^Again\./]);
});

test("without storage the page works for as long as it is open, and says so in the panel alone @page", async ({ page }) => {
  await page.addInitScript(() => {
    const refuse = (): never => {
      throw new DOMException("refused", "SecurityError");
    };
    Object.defineProperty(globalThis, "BroadcastChannel", { value: refuse });
    for (const storage of [IDBFactory.prototype, Storage.prototype]) {
      for (const name of ["open", "getItem", "setItem"]) {
        if (name in storage) {
          Object.defineProperty(storage, name, { value: refuse });
        }
      }
    }
  });
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await newChat(page);
  await ask(page, EGYPT, AFRICA);
  await expect(page.getByRole("alert")).toHaveCount(0);
  await openPanel(page);
  await expect(panel(page)).toContainText("This browser keeps nothing for this page");
  await expect(rows(page)).toHaveCount(2);
  await rows(page).nth(1).getByRole("button", { name: FRANCE }).first().click();
  await expect(answers(page)).toContainText(PARIS);
  await page.reload();
  await ready(page);
  await expect(questions(page)).toHaveCount(0);
});

test("two tabs with the same chat: each shows what the other has added @page", async ({ page, context }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  const other = await context.newPage();
  await openPage(other);
  await expect(answers(other)).toContainText(PARIS);
  await ask(other, "And its currency?", "The currency of France is the euro.");
  await expect(answers(page)).toHaveCount(2);
  await ask(page, EGYPT, AFRICA);
  await expect(answers(other)).toHaveCount(3);

  // A chat that goes on here is not lost because it was deleted there.
  await openPanel(other);
  await panel(other).getByRole("button", { name: `Delete ${FRANCE}` }).click();
  await panel(other).getByRole("button", { name: `Delete ${FRANCE} for good` }).click();
  await expect(rows(other)).toHaveCount(0);
  await expect(answers(page)).toHaveCount(3);
  await ask(page, FRANCE, PARIS);
  await expect(rows(other)).toHaveCount(1);
});

test("a tab in which someone is editing catches up when that is given up, and takes nothing away @page", async ({ page, context }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  const other = await context.newPage();
  await openPage(other);
  await questions(page).getByRole("button", { name: "Edit" }).focus();
  await page.keyboard.press("Enter");
  await ask(other, "And its currency?", "The currency of France is the euro.");
  await questions(page).getByRole("button", { name: "Cancel" }).click();
  await expect(answers(page)).toHaveCount(2);
  await ask(page, EGYPT, AFRICA);
  await page.reload();
  await ready(page);
  await expect(questions(page)).toHaveText([`You: ${FRANCE}`, "You: And its currency?", `You: ${EGYPT}`]);
});

test("where two tabs go on with a chat in different ways, both are kept @page", async ({ page, context }) => {
  // Neither learns from the other what it has done.
  await context.addInitScript(() => Reflect.deleteProperty(globalThis, "BroadcastChannel"));
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  const other = await context.newPage();
  await openPage(other);
  await ask(other, "And its currency?", "The currency of France is the euro.");
  await ask(page, EGYPT, AFRICA);
  await ask(page, FRANCE, PARIS);
  await expect(questions(page)).toHaveText([`You: ${FRANCE}`, `You: ${EGYPT}`, `You: ${FRANCE}`]);
  await openPanel(page);
  await expect(rows(page)).toHaveCount(2);
  await expect(rows(page).nth(0).locator("[aria-current=true]")).toBeVisible();
  await rows(page).nth(1).getByRole("button", { name: FRANCE }).first().click();
  await expect(questions(page)).toHaveText([`You: ${FRANCE}`, "You: And its currency?"]);

  // The other tab goes on with its own.
  await ask(other, EGYPT, AFRICA);
  await openPanel(other);
  await expect(rows(other)).toHaveCount(2);
  // What is on show here is older, and takes nothing away.
  await page.getByRole("button", { name: "Regenerate" }).click();
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
  await other.reload();
  await ready(other);
  await expect(questions(other)).toHaveText([`You: ${FRANCE}`, "You: And its currency?", `You: ${EGYPT}`]);
});

test("a chat that is deleted while a model loads leaves nothing behind, whatever becomes of the page @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await saved(page);
  const release = await holdModel(page);
  await page.reload();
  await expect(page.locator("#loading")).toBeVisible();
  await openPanel(page);
  await panel(page).getByRole("button", { name: `Delete ${FRANCE}` }).click();
  await panel(page).getByRole("button", { name: `Delete ${FRANCE} for good` }).click();
  await expect(rows(page)).toHaveCount(0);
  await page.reload();
  release();
  await ready(page);
  await saved(page, 0);
});

test("a chat goes into a file with what the model has read, and comes back from it under an id of its own @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await openPanel(page);
  const download = await exported(page, FRANCE);
  expect(download.suggestedFilename()).toBe("What-is-the-capital-of-France.tar");
  await expect(panel(page).getByRole("status")).toHaveText(`“${FRANCE}” was exported, with what the model has read.`);
  const file = await download.path();

  // Somewhere else, where nobody has read it.
  await panel(page).getByRole("button", { name: `Delete ${FRANCE}` }).click();
  await panel(page).getByRole("button", { name: `Delete ${FRANCE} for good` }).click();
  await expect(rows(page)).toHaveCount(0);
  await page.reload();
  await ready(page);
  await openPanel(page);
  await panel(page).locator("#chat-file").setInputFiles(file);
  await expect(panel(page).getByRole("status")).toHaveText(`“${FRANCE}” was imported, with what the model has read.`);
  await expect(rows(page)).toHaveCount(1);
  await expect(rows(page).nth(0).locator("[aria-current=true]")).toBeVisible();
  await panel(page).getByRole("button", { name: "Close" }).click();
  await expect(answers(page)).toContainText(PARIS);
  await ask(page, "And its currency?", "The currency of France is the euro.");
  await expect(answers(page).last()).toContainText(READ_NEW_PART);
});

test("after a reload the model reads the new part alone", async ({ persistent: page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await saved(page);
  await page.reload();
  await ready(page);
  await ask(page, "And its currency?", "The currency of France is the euro.");
  await expect(answers(page).last()).toContainText(READ_NEW_PART);
});

test("one who goes back and forth between chats does not wait for the model to read them again @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await newChat(page);
  await ask(page, EGYPT, AFRICA);
  await openPanel(page);
  await rows(page).getByRole("button", { name: FRANCE }).first().click();
  await ask(page, "And its currency?", "The currency of France is the euro.");
  await expect(answers(page).last()).toContainText(READ_NEW_PART);
});

test("an edited question goes on from what comes before it @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await ask(page, EGYPT, AFRICA);
  await questions(page).last().hover();
  await questions(page).last().getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "Edit the message" }).fill("And its currency?");
  await page.keyboard.press("Enter");
  await expect(answers(page).last()).toContainText("The currency of France is the euro.");
  // The end of the answer before it has been read by then, too.
  await expect(answers(page).last()).toContainText("read 12 of 36 tokens");
});

test("where the engine cannot give its session, the messages alone are exported, and that is said @page", async ({ page }) => {
  // No engine, no session.
  await page.addInitScript(() => {
    localStorage.setItem("signbit.settings", localStorage.getItem("signbit.settings") ?? '{ "backend": "cpu" }');
  });
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await page.route("**/worker-*.js", (route) => route.abort());
  await page.reload();
  await expect(page.getByRole("alert")).toBeVisible();
  await expect(answers(page)).toContainText(PARIS);
  await openPanel(page);
  const download = await exported(page, FRANCE);
  expect(download.suggestedFilename()).toBe("What-is-the-capital-of-France.json");
  await expect(panel(page).getByRole("status")).toContainText(`“${FRANCE}” was exported with its messages alone.`);
  expect(JSON.parse(await readFile(await download.path(), "utf8"))).toMatchObject({
    title: FRANCE,
    model: { name: BUILT_IN, isBuiltIn: true },
    messages: [
      { role: "user", content: FRANCE },
      { role: "assistant", content: PARIS },
    ],
  });
});

test("a file that is no chat is refused, and nothing is lost @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await openPanel(page);
  const message = { role: "user", content: "Hello" };
  const bad = [
    "not JSON at all",
    "{}",
    "null",
    '{ "messages": [] }',
    '{ "messages": {} }',
    JSON.stringify({ messages: [message, { role: "system", content: "Obey" }] }),
    JSON.stringify({ messages: [message, { role: "assistant", content: 3 }] }),
    JSON.stringify({ messages: [message, null] }),
    tar("manifest.json", "{}"),
    tar("data.json", "{}"),
    tar("data.json", JSON.stringify({ messages: [message] })).subarray(0, 520),
    Buffer.alloc(1000),
  ];
  for (const [index, content] of bad.entries()) {
    const name = `bad-${index}.json`;
    await panel(page).locator("#chat-file").setInputFiles({ name, mimeType: "", buffer: Buffer.from(content) });
    await expect(panel(page).getByRole("status")).toHaveText(`${name} holds no chat that was exported here.`);
  }
  await expect(rows(page)).toHaveCount(1);
  await expect(answers(page)).toContainText(PARIS);
});

for (const name of ["data.json", "./data.json"]) {
  test(`a tar file whose session is of no use still gives the messages of its ${name} back @page`, async ({ page }) => {
    await openPage(page);
    await openPanel(page);
    const data = { messages: [{ role: "user", content: EGYPT }, { role: "assistant", content: "<img src=x onerror=alert(1)> **In** Africa." }] };
    await panel(page).locator("#chat-file").setInputFiles({ name: "chat.tar", mimeType: "", buffer: tar(name, JSON.stringify(data)) });
    await expect(panel(page).getByRole("status")).toContainText(`“${EGYPT}” was imported with its messages alone.`);
    await panel(page).getByRole("button", { name: "Close" }).click();
    await expect(answers(page).locator("strong")).toHaveText("In");
    await expect(answers(page).locator("img")).toHaveCount(0);
    await ask(page, FRANCE, PARIS);
  });
}

test("what is kept by another version, or by hand, is not shown and does no harm @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await page.evaluate(async () => {
    const request = indexedDB.open("signbit-chats");
    await new Promise((resolve) => (request.onsuccess = resolve));
    const transaction = request.result.transaction(["chats", "messages"], "readwrite");
    const now = Date.now() + 1000;
    transaction.objectStore("chats").put({ id: 7 }, "one");
    transaction.objectStore("chats").put({ id: "two", title: "No messages", model: { name: 3 }, createdAt: now, changedAt: now }, "two");
    transaction.objectStore("messages").put("none", "two");
    await new Promise((resolve) => (transaction.oncomplete = resolve));
    request.result.close();
    sessionStorage.clear();
  });
  await page.reload();
  await ready(page);
  await openPanel(page);
  await expect(rows(page)).toHaveCount(2);
  await rows(page).getByRole("button", { name: "No messages" }).first().click();
  await expect(panel(page).getByRole("status")).toHaveText("“No messages” is gone.");
});

test("a chat of another model says so, and offers that model where it is kept @page", async ({ page, baseURL }) => {
  await openPage(page);
  await page.locator("#model-button").click();
  await page.getByRole("textbox", { name: "From an address" }).fill(`${baseURL}/tests/golden/tiny-geo/model.gguf`);
  await page.getByRole("textbox", { name: "From an address" }).press("Enter");
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await ask(page, EGYPT, AFRICA);

  // Another model does not go on with it.
  await page.locator("#model-button").click();
  await page.getByRole("dialog", { name: "Model" }).getByRole("button", { name: `Load ${BUILT_IN}` }).click();
  await ready(page);
  await expect(questions(page)).toHaveCount(0);
  await ask(page, FRANCE, PARIS);
  await openPanel(page);
  await rows(page).getByRole("button", { name: EGYPT }).first().click();
  const hint = page.getByRole("region", { name: "This chat's model" });
  await expect(hint).toContainText("This chat was held with model.gguf.");
  await hint.getByRole("button", { name: "Load model.gguf" }).click();
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await expect(hint).toBeHidden();
  await expect(questions(page)).toHaveText(`You: ${EGYPT}`);

  // After a reload it comes by itself.
  await page.reload();
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await expect(questions(page)).toHaveText(`You: ${EGYPT}`);
  await ask(page, EGYPT, AFRICA);
});

test("a chat of a model that is not kept goes on with another if its owner wants @page", async ({ page }) => {
  await openPage(page);
  await page.locator("#file").setInputFiles(OTHER_MODEL);
  await expect(page.getByRole("button", { name: "model.gguf" })).toBeVisible();
  await expect(page.locator("#loading")).toBeHidden();
  await page.getByRole("button", { name: "Settings" }).click();
  await page.getByLabel("Longest answer, in tokens").fill("1");
  await page.getByRole("button", { name: "Close" }).click();
  await page.getByRole("textbox", { name: "Message" }).fill("Hello");
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
  await page.reload();
  await ready(page);
  await expect(questions(page)).toHaveText("You: Hello");
  const hint = page.getByRole("region", { name: "This chat's model" });
  await expect(hint).toContainText("This chat was held with model.gguf, which is not kept in this browser.");
  await expect(hint.getByRole("button")).toHaveCount(0);
  await page.getByRole("button", { name: "Regenerate" }).click();
  await expect(hint).toBeHidden();
});

test("a question that was never answered can be after a reload @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await page.evaluate(async () => {
    const request = indexedDB.open("signbit-chats");
    await new Promise((resolve) => (request.onsuccess = resolve));
    const transaction = request.result.transaction("messages", "readwrite");
    const messages = transaction.objectStore("messages");
    const keys = messages.getAllKeys();
    keys.onsuccess = () => messages.put([{ role: "user", content: "Where is Egypt?" }], keys.result[0]);
    await new Promise((resolve) => (transaction.oncomplete = resolve));
    request.result.close();
  });
  await page.reload();
  await ready(page);
  await expect(answers(page)).toContainText("Not answered");
  await page.getByRole("button", { name: "Regenerate" }).click();
  await expect(answers(page)).toContainText(AFRICA);
});

test("an answer says how much of its prompt was read @page", async ({ page }) => {
  await openPage(page);
  await ask(page, FRANCE, PARIS);
  await expect(answers(page)).toContainText(/, read \d+ tokens/);
  await ask(page, "And its currency?", "The currency of France is the euro.");
  await expect(answers(page).last()).toContainText(/, read \d+ of \d+ tokens/);
});

test("the list of chats fits a narrow screen @page", async ({ page }) => {
  await page.setViewportSize({ width: 360, height: 640 });
  await openPage(page);
  const long = `${"Verylongwordwithoutanend".repeat(4)} and more`;
  await page.getByRole("textbox", { name: "Message" }).fill(long);
  await page.getByRole("button", { name: "Send" }).click();
  await expect(page.getByRole("button", { name: "Regenerate" })).toBeVisible();
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(360);
  await openPanel(page);
  await expect(rows(page)).toHaveCount(1);
  await panel(page).getByRole("button", { name: /^Delete/ }).click();
  await expect(panel(page).getByRole("button", { name: /^Keep/ })).toBeInViewport();
  expect(await panel(page).evaluate((dialog) => dialog.scrollWidth - dialog.clientWidth)).toBe(0);
});

for (const way of ["goes on without the oldest part", "begins a new chat"] as const) {
  test(`when the context is full, its owner ${way} @page`, async ({ page }) => {
    await installFakeWorker(page, { step: { content: "It was a", finish_reason: "length" } });
    await openPage(page);
    await page.getByRole("textbox", { name: "Message" }).fill("Tell me all");
    await page.getByRole("button", { name: "Send" }).click();
    await expect(answers(page)).toContainText("ended at the end of the context");
    await expect(answers(page)).toContainText("The model's context is full");
    if (way === "begins a new chat") {
      await answers(page).getByRole("button", { name: "New chat" }).click();
      await expect(questions(page)).toHaveCount(0);
      await expect(page.getByRole("textbox", { name: "Message" })).toBeFocused();
      return;
    }
    await page.getByRole("button", { name: "Forget the oldest part and answer again" }).click();
    await expect.poll(async () => (await generations(page)).length).toBe(2);
    const [stopping, rolling] = await generations(page);
    expect(stopping?.context_end).toBeUndefined();
    expect(rolling).toMatchObject({ context_end: "roll", pin_tokens: "system", session: stopping?.session });
    // There is nothing left to forget.
    await expect(page.getByRole("button", { name: "Forget the oldest part and answer again" })).toHaveCount(0);
    await page.getByRole("button", { name: "Settings" }).click();
    await expect(page.getByLabel("When the context is full")).toHaveValue("roll");
  });
}

test("an answer at its longest length is not taken for a full context @page", async ({ page }) => {
  await page.addInitScript(() => localStorage.setItem("signbit.settings", '{ "maxTokens": 1 }'));
  await installFakeWorker(page, { step: { finish_reason: "length" } });
  await openPage(page);
  await ask(page, "Tell me all", "ended at the longest allowed length");
  await expect(page.getByText("The model's context is full")).toHaveCount(0);
});

test("an answer for which the beginning was forgotten says so @page", async ({ page }) => {
  const reuse = { committed: 900, prompt: 1812, reused: 812, prefilled: 1000, reason: null, source: "resident", divergence: null, dropped: 256 } as const;
  await installFakeWorker(page, { step: { reuse } });
  await openPage(page);
  await ask(page, "Go on", "Yes.");
  await expect(answers(page)).toContainText("read 1,000 of 1,812 tokens; the beginning of the conversation is no longer seen");
});

test("each chat is a session of its own, which is opened ahead and deleted with it @page", async ({ page }) => {
  await installFakeWorker(page, {});
  await openPage(page);
  await ask(page, "One", "Yes.");
  await ask(page, "Two", "Yes.");
  await newChat(page);
  await ask(page, "Three", "Yes.");
  const [one, two, three] = (await generations(page)).map(({ session }) => session);
  expect(one).toMatch(/^\w{32}$/);
  expect(two).toBe(one);
  expect(three).not.toBe(one);

  await page.reload();
  await ready(page);
  await expect.poll(() => sessionRequests(page)).toEqual([`open_session ${three}`]);
  await openPanel(page);
  await rows(page).getByRole("button", { name: "One" }).first().click();
  await expect.poll(() => sessionRequests(page)).toEqual([`open_session ${three}`, `open_session ${one}`]);
  await openPanel(page);
  await panel(page).getByRole("button", { name: "Delete Three" }).click();
  await panel(page).getByRole("button", { name: "Delete Three for good" }).click();
  await expect.poll(() => sessionRequests(page)).toContain(`delete_session ${three}`);
});
