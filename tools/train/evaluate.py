"""Exact-answer accuracy on questions that training never asked.

    python evaluate.py ../../models/signbit-mini.gguf --answers build/answers.json
    signbit evaluate --questions build/answers.json       # the same questions through the engine

The model runs in torch, float32 on the dequantised weights. The questions are a function of the fact tables
alone: held-out phrasings, held-out pairs of follow-ups and sums, names that occur in evaluation only.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

import chat
import model
import talk
from dialogues import COUNTRY_RELATIONS, ELEMENT_RELATIONS, Dialogue, Facts, Generator, Turn
from export import read_gguf
from tokenizer import from_gguf

BUILD = Path(__file__).parent / "build"
SEED = 20_000
MAX_TOKENS = 64

# The groups of kinds that the targets speak of.
GROUPS = {
    "single facts": [
        "capital",
        "currency",
        "language",
        "continent",
        "country",
        "symbol",
        "number",
        "element_of_symbol",
        "element_of_number",
    ],
    "follow-ups": ["follow_up", "what_about"],
    "unknown names": ["unknown"],
}


@dataclass
class Question:
    """The last user message of `messages` is asked; `expected` is the one right answer."""

    kind: str
    messages: list[dict[str, str]]
    expected: str
    thinking: bool = False


def question(
    kind: str, turns: list[Turn], system: str | None = None, style: str = "plain", thinking: bool = False
) -> Question:
    dialogue = Dialogue(turns, system, style)
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": dialogue.answer(turn)},
        ]
    return Question(kind, messages[:-1], messages[-1]["content"], thinking)


def questions(tables: dict) -> list[Question]:
    """Some 1,000 different questions, the same at every call.

    What is asked last is worded as training never was; the turns before it may be, and the answers in the
    history are the right ones.
    """
    facts = Facts(tables)
    asked, trained = Generator(facts, evaluation=True), Generator(facts)
    result: list[Question] = []

    def draw(kind: str, count: int, make: Callable[[random.Random], Question]) -> None:
        for index in range(count):
            new = make(random.Random(f"evaluate {SEED} {kind} {index}"))
            if new not in result:
                result.append(new)

    for relation in COUNTRY_RELATIONS:
        draw(relation, 40, lambda rng, r=relation: question(r, [asked.country_fact(rng, relation=r)]))
    for relation in ELEMENT_RELATIONS:
        draw(relation, 40, lambda rng, r=relation: question(r, [asked.element_fact(rng, relation=r)]))
    draw("country", 40, lambda rng: question("country", [asked.country_of_city(rng)]))
    for kind, make in [
        ("element_of", asked.element_of),
        ("about", asked.about),
        ("yes_no", asked.is_true),
        ("unit", asked.unit),
        ("sum", asked.sum),
        ("definition", asked.definition),
        ("engine", asked.topic),
        ("small_talk", asked.small_talk),
    ]:

        def single(rng: random.Random, make=make) -> Question:
            turn = make(rng)
            return question(turn.kind, [turn])

        draw(kind, 40, single)
    draw("unknown", 100, lambda rng: question("unknown", [asked.unknown(rng)]))

    def follow_up(rng: random.Random) -> Question:
        country = rng.random() < 0.8
        name = asked.country(rng) if country else asked.element(rng)
        # The ways to ask for "its symbol" are all trained, so an element's symbol is what comes first.
        relation = rng.choice(COUNTRY_RELATIONS) if country else "symbol"
        first = (trained.country_fact if country else trained.element_fact)(rng, name, relation)
        return question("follow_up", [first, asked.then_relation(rng, name, relation)])

    def what_about(rng: random.Random) -> Question:
        country = rng.random() < 0.8
        name = asked.country(rng) if country else asked.element(rng)
        relation = rng.choice(COUNTRY_RELATIONS if country else ELEMENT_RELATIONS)
        first = (trained.country_fact if country else trained.element_fact)(rng, name, relation)
        return question("what_about", [first, asked.then_other(rng, relation, name)[0]])

    def word_list(rng: random.Random) -> Question:
        while " word is " not in (turns := asked.word_list(rng))[-1].answer:
            pass  # the few ways to ask for their number or for the reverse are all trained
        return question("list", turns)

    draw("follow_up", 60, follow_up)
    draw("what_about", 60, what_about)
    draw("memory", 40, lambda rng: question("memory", asked.memory(rng, rng.choice([0, 1, 2]))))
    draw("list", 40, word_list)
    draw(
        "one_word",
        40,
        lambda rng: question(
            "one_word", [asked.country_fact(rng)], rng.choice(talk.SYSTEM_ONE_WORD), "short"
        ),
    )
    draw(
        "french",
        30,
        lambda rng: question(
            "french",
            [asked.country_fact(rng, rng.choice(facts.french), "capital")],
            rng.choice(talk.SYSTEM_FRENCH),
            "french",
        ),
    )
    draw("thinking", 40, lambda rng: question("thinking", [asked.country_fact(rng)], thinking=True))
    return result


def prompt(q: Question) -> str:
    """The text the model reads, as `chat.CHAT_TEMPLATE` renders it."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in q.messages)
    return text + "<|im_start|>assistant\n" + ("<think>\n" if q.thinking else "")


def final_answer(text: str) -> str:
    """What follows the thought."""
    return text.split("</think>")[-1].strip()


def answer_all(
    geometry: model.Geometry, parameters: dict, tokenizer: Tokenizer, asked: list[Question]
) -> list[list[int]]:
    """Greedy answer ids; prompts of one length go through the model together."""
    stop = tokenizer.token_to_id("<|im_end|>")
    prompts = [chat.encode(tokenizer, prompt(q)) for q in asked]
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, ids in enumerate(prompts):
        by_length[len(ids)].append(index)
    answers: list[list[int]] = [[] for _ in asked]
    for indices in by_length.values():
        batch = torch.tensor([prompts[i] for i in indices])
        for i, ids in zip(
            indices, model.generate_batch(geometry, parameters, batch, MAX_TOKENS, stop), strict=True
        ):
            answers[i] = ids
    return answers


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(
        [i for i in ids if i != tokenizer.token_to_id("<|im_end|>")], skip_special_tokens=False
    )


def table(asked: list[Question], right: list[bool]) -> list[tuple[str, int, int]]:
    """(kind or group, right, asked): the groups of the targets first, then every kind, then all."""
    counts: dict[str, list[bool]] = defaultdict(list)
    for q, ok in zip(asked, right, strict=True):
        counts[q.kind].append(ok)
    rows = [(name, [ok for kind in kinds for ok in counts.get(kind, [])]) for name, kinds in GROUPS.items()]
    rows += sorted(counts.items()) + [("all", right)]
    return [(name, sum(oks), len(oks)) for name, oks in rows if oks]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--facts", type=Path, default=BUILD / "facts.json")
    parser.add_argument("--answers", type=Path, help="write questions and answers to this JSON file")
    parser.add_argument("--failures", type=int, default=40, help="how many wrong answers to print")
    parser.add_argument("--every", type=int, default=1, help="ask every n-th question only")
    args = parser.parse_args()

    geometry, parameters, metadata = read_gguf(args.model)
    # Its own vocabulary: one learnt anew may differ.
    tokenizer = from_gguf(metadata)
    asked = questions(json.loads(args.facts.read_text()))[:: args.every]
    answers = answer_all(geometry, parameters, tokenizer, asked)
    texts = [decode(tokenizer, ids) for ids in answers]
    right = [final_answer(text) == q.expected for q, text in zip(asked, texts, strict=True)]

    for name, good, count in table(asked, right):
        print(f"{name:20} {good:4} of {count:4}  {100 * good / count:5.1f} %")
    wrong = [(q, text) for q, text, ok in zip(asked, texts, right, strict=True) if not ok]
    for q, text in wrong[: args.failures]:
        print(f"  {q.kind}: {q.messages[-1]['content']!r} -> {final_answer(text)!r}, expected {q.expected!r}")
    if args.answers:
        entries = [
            {
                "kind": q.kind,
                "messages": q.messages,
                "thinking": q.thinking,
                "expected": q.expected,
                "answer": text,
                "answer_ids": ids,
            }
            for q, text, ids in zip(asked, texts, answers, strict=True)
        ]
        args.answers.write_text(json.dumps(entries, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
