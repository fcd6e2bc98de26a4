/** The chat page: owns the chat on show and the engine, and wires the views to them. */

import { createEngine, EngineError, isAbortError, memoryBudget, type BackendChoice, type Engine, type Message, type ModelInfo } from "signbit";
import { Answer } from "./answer.js";
import { readChatFile } from "./chat-file.js";
import { ChatSessions } from "./chat-sessions.js";
import { ChatStore } from "./chat-store.js";
import { ChatView, type AnswerView } from "./chat-view.js";
import { emptyChat, isSameConversation, isSameModel, titleOf, type Chat, type ChatInfo } from "./chat.js";
import { ChatsPanel } from "./chats-panel.js";
import { byId, element } from "./dom.js";
import { LoadingView } from "./loading-view.js";
import { BUILT_IN, chatModel, fromChatModel, type ModelChoice } from "./model-choice.js";
import { ModelHint } from "./model-hint.js";
import { ModelPicker } from "./model-picker.js";
import { parseBackend, SettingsPanel } from "./settings.js";
import { lastShown, rememberShown } from "./shown-chat.js";
import { StatusView, type FailureAction } from "./status-view.js";
import { StorageNoticeView } from "./storage-notice.js";

const EXAMPLES = [
  "What is the capital of France?",
  "Which currency is used in Japan?",
  "What language do people speak in Brazil?",
  "Which continent is Kenya in?",
  "Where is Egypt?",
  "What can you do?",
];
/** What models may take of this machine, where the browser tells how much it has. */
const BUDGET = memoryBudget((navigator as { readonly deviceMemory?: number }).deviceMemory);
const MEMORY = BUDGET === undefined ? {} : { memoryBudgetBytes: BUDGET };
/** For models that recommend none. */
const USUAL_TEMPERATURE = 0.7;
/** An answer is kept this often while it grows. */
const KEEP_INTERVAL_MS = 1000;

const prompt = byId("prompt", HTMLTextAreaElement);
const send = byId("send", HTMLButtonElement);
const stop = byId("stop", HTMLButtonElement);
const thinkingToggle = byId("thinking-toggle", HTMLElement);
const thinking = byId("thinking", HTMLInputElement);
const examples = byId("examples", HTMLElement);
const examplesBlock = byId("examples-block", HTMLElement);

const view = new ChatView();
const status = new StatusView();
const loadingView = new LoadingView(() => loading?.abort());
const picker = new ModelPicker(
  () => engine,
  (choice) => void load(choice),
);
const storageNotice = new StorageNoticeView(() => picker.open());
const settings = new SettingsPanel(() => void restart());
const hint = new ModelHint();
const store = new ChatStore((id) => void followOtherTab(id));
const sessions = new ChatSessions(() => engine, store);
const panel = new ChatsPanel({
  list: () => store.list(),
  isKeeping: () => store.isKeeping,
  onNew: newChat,
  open: openChat,
  delete: deleteChat,
  export: exportChat,
  import: importChat,
});

/** The chat on show. */
let chat = emptyChat();
/** Whether another tab has changed it since it was read. */
let isStale = false;
/** Chats that must not be kept again, such as by an answer that ends late. */
const deleted = new Set<string>();
let engine: Engine | undefined;
let model: ModelInfo | undefined;
/** What the loaded model was loaded as. */
let choice: ModelChoice = BUILT_IN;
/** What to load when an engine has started: the last that was asked for, and before that what the chat was held with. */
let wanted: ModelChoice | undefined;
let loading: AbortController | undefined;
let answering: AbortController | undefined;
/** The last answer, until it has ended and its chat has what there is of it. */
let answered = Promise.resolve();
let restarts = 0;
let isStarting = true;
/** What has the focus, or had it when it vanished. */
let lastFocused: Element | undefined;

/** The address may ask for a backend for this visit, whatever the settings say. */
const requestedBackend = parseBackend(new URLSearchParams(location.search).get("backend"));

byId("composer", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  void ask(prompt.value);
});
prompt.addEventListener("input", update);
prompt.addEventListener("keydown", (event) => {
  // While a word is being composed, Enter belongs to the input method.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    void ask(prompt.value);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && answering !== undefined && document.querySelector("dialog[open]") === null) {
    answering.abort();
  }
});
document.addEventListener("focusin", ({ target }) => {
  lastFocused = target instanceof Element ? target : undefined;
});
// A click elsewhere gives up the focus on purpose; one on a control sets it again.
document.addEventListener("pointerdown", ({ target }) => {
  if (!(target instanceof Node && lastFocused?.contains(target) === true)) {
    lastFocused = undefined;
  }
});
stop.addEventListener("click", () => answering?.abort());
byId("new-chat", HTMLButtonElement).addEventListener("click", newChat);
thinking.addEventListener("change", () => settings.setThinking(thinking.checked));
for (const question of EXAMPLES) {
  const button = element("button", "", question);
  button.type = "button";
  button.addEventListener("click", () => void ask(question));
  const item = element("li");
  item.append(button);
  examples.append(item);
}
void start();

/** Shows the last chat, then makes the engine for it. */
async function start(): Promise<void> {
  show((await lastShown(store)) ?? chat);
  await restart();
}

/** Makes the engine, for the first time or on another backend, and loads the model. */
async function restart(): Promise<void> {
  restarts += 1;
  const attempt = restarts;
  answering?.abort();
  loading?.abort();
  engine?.terminate();
  engine = undefined;
  model = undefined;
  // What is aborted ends later and must not touch what begins now.
  answering = undefined;
  loading = undefined;
  isStarting = true;
  loadingView.hide();
  status.showStatus("");
  status.hideFailure();
  status.showNoDevice("Starting the engine");
  status.announce("Starting the engine");
  hint.hide();
  picker.show(undefined, undefined, wanted ?? (chat.model === null || chat.model.isBuiltIn ? BUILT_IN : undefined));
  update();
  const backend: BackendChoice = requestedBackend ?? settings.values.backend;
  try {
    const started = await createEngine({ backend, ...MEMORY });
    if (attempt !== restarts) {
      started.terminate();
      return;
    }
    engine = started;
    isStarting = false;
  } catch (error) {
    if (attempt !== restarts) {
      return;
    }
    isStarting = false;
    showModel();
    update();
    status.showNoDevice("The engine is not running");
    status.showFailure(error, [{ label: "Try again", run: () => void restart() }]);
    return;
  }
  engine.on("notice", ({ message }) => status.announce(message));
  engine.on("storage", (notice) => storageNotice.show(notice));
  engine.on("devicelost", ({ error }) => status.announce(error.sentence));
  engine.on("backend", () => {
    showDevice();
    status.announce(status.device);
  });
  engine.on("progress", ({ progress }) => {
    if (progress.stage !== "prefill") {
      // During an answer this is the reload after a fault.
      if (answering !== undefined && loading === undefined) {
        loadingView.show(choice.name, progress);
      }
    } else if (answering !== undefined && progress.tokens_done < progress.tokens_total) {
      status.showStatus(`Reading ${progress.tokens_done} of ${progress.tokens_total} tokens`);
    }
  });
  engine.on("session", ({ code, message }) => {
    if (code === "not_saved") {
      panel.showSessionNotice(message);
    }
  });
  showDevice();
  void sessions.deleteOrphans();
  const present = engine;
  const held = wanted ?? (await modelOf(chat, present));
  // Meanwhile another model may have been chosen.
  if (engine === present && loading === undefined) {
    await load(wanted ?? held ?? BUILT_IN, true);
  }
}

/** How to load the model that a chat was held with; undefined where it cannot be had here. */
async function modelOf({ model }: Chat, engine: Engine): Promise<ModelChoice | undefined> {
  return model === null ? undefined : fromChatModel(model, engine).catch(() => undefined);
}

function showDevice(): void {
  // Between two workers there is no device; what the last one ran on remains to be seen.
  if (engine?.device !== undefined) {
    status.showDevice(engine.device);
  }
}

/** Loads a model. It goes on with a chat that was held with another only if it `keepsChat`. */
async function load(next: ModelChoice, keepsChat = false): Promise<void> {
  wanted = next;
  if (engine === undefined) {
    if (isStarting) {
      picker.show(undefined, undefined, next);
    } else {
      void restart();
    }
    return;
  }
  answering?.abort();
  loading?.abort();
  const loader = engine;
  const controller = new AbortController();
  loading = controller;
  status.hideFailure();
  storageNotice.hide();
  hint.hide();
  loadingView.show(next.name, undefined);
  status.announce(`Loading ${next.name}`);
  picker.show(undefined, engine.device, next);
  update();
  try {
    const loaded = await loader.load(next.source, {
      ...next.options,
      signal: controller.signal,
      onProgress: (progress) => {
        if (loading === controller) {
          loadingView.show(next.name, progress);
        }
      },
    });
    if (engine !== loader) {
      return;
    }
    model = loaded;
    choice = next;
    if (!keepsChat && isOfOtherModel()) {
      show(emptyChat());
    }
    settings.setRecommendedTemperature(model.sampling.temperature ?? USUAL_TEMPERATURE);
    if (loading === controller) {
      status.announce(`${next.name} is ready. ${storageNotice.text}`.trim());
    }
  } catch (error) {
    if (loading !== controller) {
      return;
    }
    model = loader.model;
    wanted = choice;
    if (wasAborted(controller, error)) {
      status.announce(`Loading ${next.name} was cancelled.`);
    } else {
      status.showFailure(error, [
        { label: "Try again", run: () => void load(next, keepsChat) },
        { label: "Choose another model", run: () => picker.open() },
      ]);
    }
  } finally {
    if (loading === controller) {
      loading = undefined;
      loadingView.hide();
      showDevice();
      showModel();
      update();
      prompt.focus({ preventScroll: true });
      prepareChat();
    }
  }
}

/** Whether a request ended because this page wanted it to, in whatever words the engine says so. */
function wasAborted({ signal }: AbortController, error: unknown): boolean {
  return signal.aborted || isAbortError(error);
}

function showModel(): void {
  picker.show(model, engine?.device, model === undefined ? undefined : choice);
  // The built-in model answers as well without a thought, and sooner.
  thinking.checked = settings.values.thinking ?? !choice.isBuiltIn;
  thinkingToggle.hidden = model?.has_thinking !== true;
  examplesBlock.hidden = !choice.isBuiltIn || model === undefined;
}

/** Takes a question and answers it. */
async function ask(text: string): Promise<void> {
  const question = text.trim();
  if (question === "" || model === undefined || answering !== undefined || loading !== undefined) {
    return;
  }
  prompt.value = "";
  await put(question);
}

/** Adds a question to the chat and answers it. */
async function put(question: string): Promise<void> {
  status.hideFailure();
  if (chat.messages.length === 0) {
    chat.title = titleOf(question);
  }
  chat.messages.push({ role: "user", content: question });
  showQuestion(question, chat.messages.length - 1);
  answered = answer();
  await answered;
}

function showQuestion(question: string, index: number): void {
  const replace = (changed: string): void => {
    chat.messages.length = index;
    void put(changed);
  };
  view.addUser(question, replace, () => void catchUp());
}

/** Answers the last question. */
async function answer(): Promise<void> {
  if (engine === undefined || model === undefined) {
    return;
  }
  const controller = new AbortController();
  answering = controller;
  hint.hide();
  update();
  status.announce("Answering");
  status.showStatus("");
  const held = chat;
  held.model = chatModel(choice, model);
  void keep(held);
  const { maxTokens, contextEnd } = settings.values;
  const turn = showAnswer();
  const given = new Answer(held, turn);
  let keptAt = performance.now();
  try {
    const stream = await engine.chat.completions.create({
      messages: withSystemPrompt(held.messages),
      session: held.id,
      stream: true,
      signal: controller.signal,
      temperature: settings.temperature,
      max_tokens: maxTokens,
      ...(contextEnd === "roll" ? { context_end: "roll", pin_tokens: "system" } : {}),
      ...(model.has_thinking ? { enable_thinking: thinking.checked } : {}),
    });
    for await (const chunk of stream) {
      if (loading === undefined) {
        loadingView.hide();
      }
      given.add(chunk, maxTokens);
      if (answering === controller) {
        status.showStatus(given.figures);
      }
      if (given.content !== "" && performance.now() - keptAt > KEEP_INTERVAL_MS) {
        // The next time counts from when it is written, however long that takes.
        keptAt = Infinity;
        given.record();
        void write(held, false).then(() => (keptAt = performance.now()));
      }
    }
    given.finish();
    if (given.isFull) {
      turn.offer("The model's context is full: it can see no more text at once.", fullActions(turn));
    }
    status.announce(given.content === "" ? "The answer is empty." : given.content);
  } catch (error) {
    if (wasAborted(controller, error)) {
      given.stop();
      if (answering === controller && loading === undefined) {
        status.announce("Stopped");
      }
    } else {
      const isTooLong = error instanceof EngineError && error.code === "context_full";
      turn.fail(error, isTooLong ? fullActions(turn) : [{ label: "Try again", run: () => void regenerate(turn.element) }]);
    }
  } finally {
    given.record();
    void keep(held).then(catchUp);
    if (answering === controller) {
      answering = undefined;
      status.showStatus("");
      if (loading === undefined) {
        model = engine?.model ?? model;
        // A worker that was replaced may run on something else.
        showDevice();
        loadingView.hide();
      }
      update();
    }
  }
}

function showAnswer(): AnswerView {
  const turn: AnswerView = view.addAnswer(() => void regenerate(turn.element));
  return turn;
}

/** What can be done when nothing more fits into the context. */
function fullActions({ element }: AnswerView): readonly FailureAction[] {
  const startAnew = { label: "New chat", run: newChat };
  if (settings.values.contextEnd === "roll") {
    return [startAnew];
  }
  const forget = (): void => {
    settings.setContextEnd("roll");
    void regenerate(element);
  };
  return [startAnew, { label: "Forget the oldest part and answer again", run: forget }];
}

/** Answers the last question once more. */
async function regenerate(turn: HTMLElement): Promise<void> {
  if (engine === undefined || model === undefined || answering !== undefined || loading !== undefined) {
    return;
  }
  turn.remove();
  if (chat.messages.at(-1)?.role === "assistant") {
    chat.messages.pop();
  }
  answered = answer();
  await answered;
}

/** Keeps a chat that has changed. */
async function keep(changed: Chat): Promise<void> {
  changed.changedAt = Date.now();
  await write(changed, true);
  panel.refresh();
}

async function write(changed: Chat, tells: boolean): Promise<void> {
  const { id } = changed;
  if (deleted.has(id)) {
    return;
  }
  await store.write(changed, tells);
  if (changed === chat && changed.id !== id) {
    isStale = false;
    rememberShown(chat.id);
    panel.setCurrent(chat.id);
    status.announce("Another tab has gone on with this chat as well. Here it is a chat of its own now.");
  }
}

function newChat(): void {
  show(emptyChat());
  prompt.focus();
}

async function openChat({ id, title }: ChatInfo): Promise<string> {
  if (id !== chat.id) {
    // What there is of an answer that is stopped for this may belong to the chat that is opened.
    answering?.abort();
    await answered;
    const opened = await store.read(id);
    if (opened === undefined) {
      return `“${title}” is gone.`;
    }
    show(opened);
    prepareChat();
    status.announce(title);
  }
  panel.close();
  prompt.focus({ preventScroll: true });
  return "";
}

/** Shows a chat in place of the present one. */
function show(next: Chat): void {
  answering?.abort();
  chat = next;
  isStale = false;
  rememberShown(chat.id);
  view.clear();
  status.hideFailure();
  chat.messages.forEach((message, index) => {
    if (message.role === "user") {
      showQuestion(message.content, index);
    } else if (message.role === "assistant") {
      showAnswer().restore(message.content ?? "", message.reasoning_content ?? "");
    }
  });
  if (chat.messages.at(-1)?.role === "user") {
    showAnswer().finish("Not answered");
  }
  hint.hide();
  panel.setCurrent(chat.id);
  update();
}

/** Readies the engine for the chat on show, or says that it was held with another model. */
function prepareChat(): void {
  hint.hide();
  if (model === undefined || loading !== undefined || chat.messages.length === 0) {
    return;
  }
  if (isOfOtherModel()) {
    void showHint(chat);
  } else {
    void sessions.open(chat.id);
  }
}

async function showHint(shown: Chat): Promise<void> {
  const present = engine;
  const held = present === undefined ? undefined : await modelOf(shown, present);
  if (chat === shown && engine === present && loading === undefined && answering === undefined && isOfOtherModel()) {
    hint.show(shown.model?.name ?? "", held === undefined ? undefined : () => void load(held));
    status.announce(hint.text);
  }
}

/** Whether the chat on show was held with another model than the loaded one. */
function isOfOtherModel(): boolean {
  return chat.model !== null && model !== undefined && !isSameModel(chat.model, chatModel(choice, model));
}

/** Another tab has changed a chat: what is on show here is not to be older. */
async function followOtherTab(id: string): Promise<void> {
  panel.refresh();
  if (id === chat.id) {
    isStale = true;
    await catchUp();
  }
}

/** Shows what another tab has made of the chat on show, when nothing is being written in it here. */
async function catchUp(): Promise<void> {
  const shown = chat;
  const isFree = (): boolean => chat === shown && answering === undefined && !view.isEditing;
  if (!isStale || !isFree()) {
    return;
  }
  const changed = await store.read(shown.id);
  if (isFree()) {
    isStale = false;
    if (changed !== undefined && !isSameConversation(changed.messages, shown.messages)) {
      show(changed);
    }
  }
}

async function deleteChat({ id, title }: ChatInfo): Promise<string> {
  deleted.add(id);
  if (id === chat.id) {
    show(emptyChat());
  }
  await store.delete(id);
  void sessions.delete(id);
  return `“${title}” was deleted.`;
}

async function exportChat({ id, title }: ChatInfo): Promise<string> {
  const exported = id === chat.id ? chat : await store.read(id);
  return exported === undefined ? `“${title}” is gone.` : sessions.export(exported);
}

async function importChat(file: File): Promise<string> {
  const imported = await readChatFile(file).catch(() => undefined);
  if (imported === undefined) {
    return `${file.name} holds no chat that was exported here.`;
  }
  const { chat: added, hasSession } = imported;
  await store.write(added, true);
  show(added);
  const message = hasSession ? await sessions.import(file, added) : `“${added.title}” was imported with its messages.`;
  if (chat === added) {
    prepareChat();
  }
  return message;
}

function withSystemPrompt(history: readonly Message[]): Message[] {
  const content = settings.values.systemPrompt.trim();
  return content === "" ? [...history] : [{ role: "system", content }, ...history];
}

/** Brings buttons in line with what can be done now. */
function update(): void {
  const isReady = model !== undefined && loading === undefined && answering === undefined;
  view.setCanSend(isReady);
  send.hidden = answering !== undefined;
  stop.hidden = answering === undefined;
  send.disabled = !isReady || prompt.value.trim() === "";
  for (const button of examples.querySelectorAll("button")) {
    button.disabled = !isReady;
  }
  keepFocus();
}

/** A control that hides or goes would take the focus with it, and the keyboard would start at the top again. */
function keepFocus(): void {
  if (lastFocused !== undefined && !(lastFocused.isConnected && lastFocused.checkVisibility())) {
    (stop.hidden ? prompt : stop).focus({ preventScroll: true });
  }
}
