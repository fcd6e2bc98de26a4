/** The engine's steps in the shapes of the OpenAI chat completions API. */

import { EngineError } from "./errors.js";
import type {
  EngineUsage,
  FinishReason,
  GeneratedToolCall,
  GenerationOptions,
  GenerationRequest,
  GenerationStep,
  Message,
  Reuse,
  TokenLogprob,
  Tool,
  ToolCall,
} from "./types.js";
import { uniqueId } from "./unique-id.js";

/**
 * Parameters of a chat completion. Null counts as absent. A parameter that is not listed here is
 * refused with `invalid_request`, so that nobody relies on what is not done.
 */
export interface ChatCompletionParams extends Omit<GenerationOptions, "stop"> {
  readonly messages: readonly Message[];
  /** The newer name of `max_tokens`, which it precedes. */
  readonly max_completion_tokens?: number;
  readonly stop?: string | readonly string[] | null;
  readonly tools?: readonly Tool[];
  /** Whether the model thinks before it answers; the chat template decides where it is absent. */
  readonly enable_thinking?: boolean;
  /** Ends the request at any time; it then rejects with an `AbortError`. */
  readonly signal?: AbortSignal;
  readonly stream?: boolean;
  /** Only one answer can be had. */
  readonly n?: 1;
  /** Taken and ignored: the answer comes from the loaded model. */
  readonly model?: string;
  /** Taken and ignored: every chunk has its `usage`. */
  readonly stream_options?: unknown;
  /** Taken and ignored. */
  readonly user?: string;
}

/** Every parameter; the type makes the list complete. */
const PARAMETERS: Readonly<Record<keyof ChatCompletionParams, true>> = {
  messages: true,
  max_tokens: true,
  max_completion_tokens: true,
  max_reasoning_tokens: true,
  temperature: true,
  top_k: true,
  top_p: true,
  min_p: true,
  top_n_sigma: true,
  repetition_penalty: true,
  presence_penalty: true,
  frequency_penalty: true,
  logit_bias: true,
  dry_multiplier: true,
  dry_base: true,
  dry_allowed_length: true,
  dry_penalty_last_n: true,
  dry_sequence_breakers: true,
  seed: true,
  logprobs: true,
  top_logprobs: true,
  stop: true,
  ignore_stop: true,
  session: true,
  context_end: true,
  pin_tokens: true,
  tools: true,
  enable_thinking: true,
  signal: true,
  stream: true,
  n: true,
  model: true,
  stream_options: true,
  user: true,
};

const NO_REUSE: Reuse = { committed: 0, prompt: 0, reused: 0, prefilled: 0, reason: null, source: null, divergence: null, dropped: 0 };

/** Log-probabilities of the answer's tokens. */
export interface ChatLogprobs {
  readonly content: readonly TokenLogprob[];
}

/** Token counts in OpenAI's shape. */
export interface ChatUsage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
  readonly completion_tokens_details: { readonly reasoning_tokens: number };
}

/** A complete answer. */
export interface ChatCompletion {
  readonly id: string;
  readonly object: "chat.completion";
  /** Seconds since 1970. */
  readonly created: number;
  readonly model: string;
  readonly choices: readonly [
    {
      readonly index: 0;
      readonly message: {
        readonly role: "assistant";
        /** Null when the model called tools and said nothing. */
        readonly content: string | null;
        readonly reasoning_content?: string;
        readonly tool_calls?: readonly ToolCall[];
      };
      /** Absent unless asked for. */
      readonly logprobs?: ChatLogprobs;
      readonly finish_reason: FinishReason;
    },
  ];
  readonly usage: ChatUsage;
  /** What of the prompt did not have to be read again, and why not more. */
  readonly reuse: Reuse;
}

/** What one chunk adds to the answer. */
export interface ChatDelta {
  readonly role?: "assistant";
  readonly content?: string;
  readonly reasoning_content?: string;
  readonly tool_calls?: readonly (ToolCall & { readonly index: number })[];
}

/** A piece of a streamed answer. */
export interface ChatCompletionChunk {
  readonly id: string;
  readonly object: "chat.completion.chunk";
  readonly created: number;
  readonly model: string;
  readonly choices: readonly [
    {
      readonly index: 0;
      readonly delta: ChatDelta;
      /** Of the tokens of this chunk; absent where there are none or they were not asked for. */
      readonly logprobs?: ChatLogprobs;
      readonly finish_reason: FinishReason | null;
    },
  ];
  /** Counts so far; final in the chunk that has a `finish_reason`. */
  readonly usage: ChatUsage;
  /** What of the prompt did not have to be read again, and why not more. */
  readonly reuse: Reuse;
}

interface Heading {
  readonly id: string;
  readonly created: number;
  readonly model: string;
}

/** What the engine is asked for. Throws `invalid_request` for what it does not know. */
export function generationRequest(params: ChatCompletionParams): GenerationRequest {
  const given = Object.fromEntries(Object.entries(params).filter(([, value]) => value !== undefined && value !== null));
  const unknown = Object.keys(given).filter((name) => !Object.hasOwn(PARAMETERS, name));
  if (unknown.length > 0) {
    throw new EngineError("invalid_request", { detail: `not supported: ${unknown.join(", ")}` });
  }
  const { stop, max_completion_tokens, n = 1, signal, stream, model, stream_options, user, ...rest } =
    given as unknown as ChatCompletionParams;
  if (n !== 1) {
    throw new EngineError("invalid_request", { detail: `n is ${String(n)}, and only one answer can be had` });
  }
  return {
    ...rest,
    ...(max_completion_tokens === undefined ? {} : { max_tokens: max_completion_tokens }),
    ...(stop === undefined || stop === null ? {} : { stop: typeof stop === "string" ? [stop] : stop }),
  };
}

/**
 * A function that turns steps into chunks; a step without text, such as a piece of the prompt,
 * gives none. `model` is asked for its name when the first step comes.
 */
export function chunkMapper(model: () => string): (step: GenerationStep) => ChatCompletionChunk | undefined {
  let head: Heading | undefined;
  let isFirst = true;
  let toolCalls = 0;
  return (step) => {
    head ??= heading(model());
    const tool_calls = step.tool_calls.map((call, offset) => ({ ...openAiToolCall(call), index: toolCalls + offset }));
    toolCalls += tool_calls.length;
    const isEmpty =
      step.content === "" && step.reasoning === "" && tool_calls.length === 0 && step.logprobs.length === 0;
    if (isEmpty && step.finish_reason === null) {
      return undefined;
    }
    const delta: ChatDelta = {
      ...(isFirst ? { role: "assistant" as const } : {}),
      ...(step.content === "" ? {} : { content: step.content }),
      ...(step.reasoning === "" ? {} : { reasoning_content: step.reasoning }),
      ...(tool_calls.length === 0 ? {} : { tool_calls }),
    };
    isFirst = false;
    return {
      ...head,
      object: "chat.completion.chunk",
      choices: [{ index: 0, delta, ...logprobsOf(step.logprobs), finish_reason: step.finish_reason }],
      usage: chatUsage(step.usage),
      reuse: step.reuse,
    };
  };
}

/** Collects steps into one answer. `model` is asked for its name when the first step comes. */
export async function collectCompletion(
  steps: AsyncIterable<GenerationStep>,
  model: () => string,
): Promise<ChatCompletion> {
  let head: Heading | undefined;
  let content = "";
  let reasoning = "";
  let finish_reason: FinishReason = "stop";
  let usage: EngineUsage = { prompt_tokens: 0, completion_tokens: 0, reasoning_tokens: 0, reused_tokens: 0 };
  let reuse: Reuse = NO_REUSE;
  const tool_calls: ToolCall[] = [];
  const logprobs: TokenLogprob[] = [];
  for await (const step of steps) {
    head ??= heading(model());
    content += step.content;
    reasoning += step.reasoning;
    tool_calls.push(...step.tool_calls.map(openAiToolCall));
    logprobs.push(...step.logprobs);
    finish_reason = step.finish_reason ?? finish_reason;
    usage = step.usage;
    reuse = step.reuse;
  }
  return {
    ...(head ?? heading(model())),
    object: "chat.completion",
    choices: [
      {
        index: 0,
        message: {
          role: "assistant",
          content: content === "" && tool_calls.length > 0 ? null : content,
          ...(reasoning === "" ? {} : { reasoning_content: reasoning }),
          ...(tool_calls.length === 0 ? {} : { tool_calls }),
        },
        ...logprobsOf(logprobs),
        finish_reason,
      },
    ],
    usage: chatUsage(usage),
    reuse,
  };
}

function logprobsOf(content: readonly TokenLogprob[]): { readonly logprobs?: ChatLogprobs } {
  return content.length === 0 ? {} : { logprobs: { content } };
}

function openAiToolCall({ id, function: { name, arguments: value } }: GeneratedToolCall): ToolCall {
  return {
    id: id ?? `call_${uniqueId()}`,
    type: "function",
    function: { name, arguments: typeof value === "string" ? value : JSON.stringify(value) },
  };
}

function heading(model: string): Heading {
  return { id: `chatcmpl-${uniqueId()}`, created: Math.floor(Date.now() / 1000), model };
}

function chatUsage(usage: EngineUsage): ChatUsage {
  return {
    prompt_tokens: usage.prompt_tokens,
    completion_tokens: usage.completion_tokens,
    total_tokens: usage.prompt_tokens + usage.completion_tokens,
    prompt_tokens_details: { cached_tokens: usage.reused_tokens },
    completion_tokens_details: { reasoning_tokens: usage.reasoning_tokens },
  };
}
