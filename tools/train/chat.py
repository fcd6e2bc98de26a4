"""Dialogues as token ids with loss weights, in the model's own chat format (ChatML)."""

import random
from collections.abc import Iterator

from tokenizers import Tokenizer

from dialogues import Dialogue, Facts, Generator

ROW_TOKENS = 256
PROMPT_WEIGHT = 0.1
PROMPT_SHARE = 0.25

# A turn is written into the history exactly as the model wrote it, thought included, so that the ids of a
# follow-up turn extend the ids that were processed.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' and message.reasoning_content %}"
    "{{- '<think>\\n' + message.reasoning_content.strip() + '\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{{- message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}"
    "{%- endif %}"
)


def pieces(dialogue: Dialogue) -> Iterator[tuple[str, str]]:
    """(prompt, completion) texts, one pair per turn; their concatenation is the whole dialogue."""
    before = f"<|im_start|>system\n{dialogue.system}<|im_end|>\n" if dialogue.system else ""
    for turn, thinking in zip(dialogue.turns, dialogue.thinking, strict=True):
        prompt = f"{before}<|im_start|>user\n{turn.user}<|im_end|>\n<|im_start|>assistant\n"
        completion = f"{dialogue.answer(turn)}<|im_end|>"
        if thinking:
            prompt += "<think>\n"
            completion = f"{turn.thought}\n</think>\n\n{completion}"
        yield prompt, completion
        before = "\n"


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def row(
    dialogue: Dialogue, tokenizer: Tokenizer, rng: random.Random, limit: int = ROW_TOKENS
) -> tuple[list[int], list[float]]:
    """Ids of as many whole turns as fit, and the weight of predicting each id from those before it.

    Completions weigh 1; a random quarter of the prompt's ids weighs 0.1.
    """
    ids: list[int] = []
    weights: list[float] = []
    for prompt, completion in pieces(dialogue):
        prompt_ids, completion_ids = encode(tokenizer, prompt), encode(tokenizer, completion)
        if len(ids) + len(prompt_ids) + len(completion_ids) > limit:
            break
        ids += prompt_ids + completion_ids
        weights += [PROMPT_WEIGHT if rng.random() < PROMPT_SHARE else 0.0 for _ in prompt_ids]
        weights += [1.0] * len(completion_ids)
    if weights:
        weights[0] = 0.0
    return ids, weights


def training_row(
    generator: Generator, tokenizer: Tokenizer, seed: int, index: int
) -> tuple[list[int], list[float]]:
    """Row `index` of training; it depends on the generator's facts, the seed and the index only."""
    rng = random.Random(f"train {seed} {index}")
    return row(generator.dialogue(rng), tokenizer, rng)


def validation_rows(
    facts: dict, tokenizer: Tokenizer, seed: int, n: int
) -> list[tuple[list[int], list[float]]]:
    """Rows of held-out phrasings; only completions count."""
    generator = Generator(Facts(facts), evaluation=True)
    rows = []
    for index in range(n):
        rng = random.Random(f"validate {seed} {index}")
        ids, weights = row(generator.dialogue(rng), tokenizer, rng)
        rows.append((ids, [w if w == 1.0 else 0.0 for w in weights]))
    return rows


def texts(facts: dict, seed: int, n: int) -> Iterator[str]:
    """Whole dialogues as text, for training the tokenizer."""
    generator = Generator(Facts(facts))
    for index in range(n):
        dialogue = generator.dialogue(random.Random(f"tokenizer {seed} {index}"))
        yield "".join(prompt + completion for prompt, completion in pieces(dialogue))
