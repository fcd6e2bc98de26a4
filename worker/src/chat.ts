/** The engine's steps in the shapes of the OpenAI chat completions API. */

import type {
  EngineUsage,
  FinishReason,
  GeneratedToolCall,
  GenerationOptions,
  GenerationStep,
  Message,
  Tool,
  ToolCall,
} from "./types.js";

/** Parameters of a chat completion. */
export interface ChatCompletionParams extends Omit<GenerationOptions, "stop"> {
  readonly messages: readonly Message[];
  readonly stop?: string | readonly string[];
  readonly tools?: readonly Tool[];
  /** Whether the model thinks before it answers; the chat template decides where it is absent. */
  readonly enable_thinking?: boolean;
  /** Ends the request at any time; it then rejects with an `AbortError`. */
  readonly signal?: AbortSignal;
  readonly stream?: boolean;
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
      readonly finish_reason: FinishReason;
    },
  ];
  readonly usage: ChatUsage;
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
    { readonly index: 0; readonly delta: ChatDelta; readonly finish_reason: FinishReason | null },
  ];
  /** Counts so far; final in the chunk that has a `finish_reason`. */
  readonly usage: ChatUsage;
}

interface Heading {
  readonly id: string;
  readonly created: number;
  readonly model: string;
}

/** A function that turns steps into chunks; a step without text, such as a piece of the prompt, gives none. */
export function chunkMapper(model: string): (step: GenerationStep) => ChatCompletionChunk | undefined {
  const head = { ...heading(model), object: "chat.completion.chunk" as const };
  let isFirst = true;
  let toolCalls = 0;
  return (step) => {
    const tool_calls = step.tool_calls.map((call, offset) => ({ ...openAiToolCall(call), index: toolCalls + offset }));
    toolCalls += tool_calls.length;
    const isEmpty = step.content === "" && step.reasoning === "" && tool_calls.length === 0;
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
      choices: [{ index: 0, delta, finish_reason: step.finish_reason }],
      usage: chatUsage(step.usage),
    };
  };
}

/** Collects steps into one answer. */
export async function collectCompletion(steps: AsyncIterable<GenerationStep>, model: string): Promise<ChatCompletion> {
  const head = heading(model);
  let content = "";
  let reasoning = "";
  let finish_reason: FinishReason = "stop";
  let usage: EngineUsage = { prompt_tokens: 0, completion_tokens: 0, reasoning_tokens: 0, reused_tokens: 0 };
  const tool_calls: ToolCall[] = [];
  for await (const step of steps) {
    content += step.content;
    reasoning += step.reasoning;
    tool_calls.push(...step.tool_calls.map(openAiToolCall));
    finish_reason = step.finish_reason ?? finish_reason;
    usage = step.usage;
  }
  return {
    ...head,
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
        finish_reason,
      },
    ],
    usage: chatUsage(usage),
  };
}

function openAiToolCall({ id, function: { name, arguments: value } }: GeneratedToolCall): ToolCall {
  return {
    id: id ?? `call_${crypto.randomUUID()}`,
    type: "function",
    function: { name, arguments: typeof value === "string" ? value : JSON.stringify(value) },
  };
}

function heading(model: string): Heading {
  return { id: `chatcmpl-${crypto.randomUUID()}`, created: Math.floor(Date.now() / 1000), model };
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
