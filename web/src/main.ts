/** The chat page: owns the conversation and the engine, and wires the views to them. */

import { createEngine, isAbortError, memoryBudget, type BackendChoice, type Engine, type Message, type ModelInfo } from "signbit";
import { ChatView } from "./chat-view.js";
import { byId, element } from "./dom.js";
import { LoadingView } from "./loading-view.js";
import { BUILT_IN, type ModelChoice } from "./model-choice.js";
import { ModelPicker } from "./model-picker.js";
import { parseBackend, SettingsPanel } from "./settings.js";
import { StatusView } from "./status-view.js";
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

const prompt = byId("prompt", HTMLTextAreaElement);
const send = byId("send", HTMLButtonElement);
const stop = byId("stop", HTMLButtonElement);
const thinkingToggle = byId("thinking-toggle", HTMLElement);
const thinking = byId("thinking", HTMLInputElement);
const examples = byId("examples", HTMLElement);
const examplesBlock = byId("examples-block", HTMLElement);

const chat = new ChatView();
const status = new StatusView();
const loadingView = new LoadingView(() => loading?.abort());
const picker = new ModelPicker(
  () => engine,
  (choice) => void load(choice),
);
const storageNotice = new StorageNoticeView(() => picker.open());
const settings = new SettingsPanel(() => void restart());

/** Turns so far, without the system prompt. */
let messages: Message[] = [];
let engine: Engine | undefined;
let model: ModelInfo | undefined;
/** What the conversation is held with. */
let choice: ModelChoice = BUILT_IN;
/** What to load when an engine has started: the last that was asked for. */
let wanted: ModelChoice = BUILT_IN;
let loading: AbortController | undefined;
let answering: AbortController | undefined;
let restarts = 0;
let isStarting = false;
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
update();
void restart();

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
  picker.show(undefined, undefined, wanted);
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
  showDevice();
  await load(wanted);
}

function showDevice(): void {
  // Between two workers there is no device; what the last one ran on remains to be seen.
  if (engine?.device !== undefined) {
    status.showDevice(engine.device);
  }
}

async function load(next: ModelChoice): Promise<void> {
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
    // On another backend the same model goes on with the same conversation.
    if (choice !== next) {
      startOver();
    }
    choice = next;
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
        { label: "Try again", run: () => void load(next) },
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
  status.hideFailure();
  prompt.value = "";
  messages.push({ role: "user", content: question });
  chat.addUser(question);
  await answer();
}

/** Answers the last question. */
async function answer(): Promise<void> {
  if (engine === undefined) {
    return;
  }
  const controller = new AbortController();
  answering = controller;
  update();
  status.announce("Answering");
  status.showStatus("");
  const history = messages;
  const view = chat.addAnswer(() => void regenerate(view.element));
  let content = "";
  let reasoning = "";
  let figures = "";
  const clock = new SpeedClock();
  try {
    const stream = await engine.chat.completions.create({
      messages: withSystemPrompt(history),
      stream: true,
      signal: controller.signal,
      temperature: settings.temperature,
      max_tokens: settings.values.maxTokens,
      ...(model?.has_thinking === true ? { enable_thinking: thinking.checked } : {}),
    });
    for await (const { choices, usage } of stream) {
      const [{ delta, finish_reason }] = choices;
      if (loading === undefined) {
        loadingView.hide();
      }
      if (delta.reasoning_content !== undefined) {
        reasoning += delta.reasoning_content;
        view.appendReasoning(delta.reasoning_content);
      }
      if (delta.content !== undefined) {
        content += delta.content;
        view.appendContent(delta.content);
      }
      figures = clock.figures(usage.completion_tokens);
      if (answering === controller) {
        status.showStatus(figures);
      }
      if (finish_reason === "length") {
        figures = `${figures}, ended at the longest allowed length`;
      }
    }
    view.finish(figures);
    status.announce(content === "" ? "The answer is empty." : content);
  } catch (error) {
    if (wasAborted(controller, error)) {
      view.finish(figures === "" ? "Stopped" : `${figures}, stopped`);
      if (answering === controller && loading === undefined) {
        status.announce("Stopped");
      }
    } else {
      view.fail(error, [{ label: "Try again", run: () => void regenerate(view.element) }]);
    }
  } finally {
    if (content !== "") {
      history.push({ role: "assistant", content, ...(reasoning === "" ? {} : { reasoning_content: reasoning }) });
    }
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

/** Answers the last question once more. */
async function regenerate(turn: HTMLElement): Promise<void> {
  if (engine === undefined || model === undefined || answering !== undefined || loading !== undefined) {
    return;
  }
  turn.remove();
  if (messages.at(-1)?.role === "assistant") {
    messages.pop();
  }
  await answer();
}

function newChat(): void {
  startOver();
  prompt.focus();
}

function startOver(): void {
  answering?.abort();
  messages = [];
  chat.clear();
  status.hideFailure();
}

function withSystemPrompt(history: readonly Message[]): Message[] {
  const content = settings.values.systemPrompt.trim();
  return content === "" ? [...history] : [{ role: "system", content }, ...history];
}

/** Brings buttons in line with what can be done now. */
function update(): void {
  const isReady = model !== undefined && loading === undefined && answering === undefined;
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

/** In less time the arrival of messages decides what a rate comes to. */
const LEAST_S = 0.05;

/** Tokens per second from the first token on; before it lies the reading of the prompt. */
class SpeedClock {
  #firstAt: number | undefined;
  #firstCount = 0;

  figures(tokens: number): string {
    const now = performance.now();
    if (this.#firstAt === undefined) {
      this.#firstAt = now;
      this.#firstCount = tokens;
    }
    const elapsed_s = (now - this.#firstAt) / 1000;
    const rate = (tokens - this.#firstCount) / elapsed_s;
    const count = `${tokens} ${tokens === 1 ? "token" : "tokens"}`;
    return elapsed_s >= LEAST_S && rate > 0 ? `${count}, ${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s` : count;
  }
}
