"""Golden data of a trained model: what independent implementations compute for it.

    python goldens.py ../../models/signbit-mini.gguf

writes `models/signbit-mini` (logits and hidden states of Hugging Face transformers for a few prompts) and
`signbit-mini/answers.json` (questions with their greedy answers) under tests/golden. Needs the packages of
requirements-goldens.txt; takes some minutes on one core.
"""

import argparse
import hashlib
import json
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

import chat
import evaluate
import export
import model
import references
from dialogues import Dialogue, Facts, Generator, Turn
from evaluate import Question
from tokenizer import from_gguf

HERE = Path(__file__).parent
NAME = "signbit-mini"
LENGTHS = [1, 5, 63, 64, 65, 130, 200, 300, 520, 2100]
HIDDEN_PROMPT = "len-005"
CONTINUATION = 64  # tokens
TOP = 20
QUESTIONS = 200
LONG_TOKENS = 2100  # more than half of the context, and more than 2048
TEXTS = {
    "text-plain": "The engine reads a file, multiplies matrices and writes words; it doesn't need a server. "
    "Version 2.0 isn't ready yet!",
    "text-mixed": 'fn main() {\n    let x = vec![1, 22, 333];\n\n    println!("{:?}", x);   '
    "// naïve café\n}\n今天 नमस्ते สวัสดี مرحبا 🙂🚀 done.\r\n\t end",
}
MESSAGES = [
    {"role": "system", "content": "You answer questions in short sentences."},
    {"role": "user", "content": "What is the capital of Japan?"},
    {"role": "assistant", "content": "The capital of Japan is Tokyo."},
    {"role": "user", "content": "And what do people speak there?"},
]

Rows = NDArray[np.float32]  # logits [T, V]


def render(template: str, messages: Sequence[dict[str, str]], thinking: bool = False) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        messages=messages, add_generation_prompt=True, **({"enable_thinking": True} if thinking else {})
    )


# ---- prompts ----------------------------------------------------------------------------------


def talk_ids(generator: Generator, tokenizer: Tokenizer, length: int) -> list[int]:
    """The first `length` ids of a chat that goes on from topic to topic."""
    rng = random.Random(f"golden {length}")
    turns: list[Turn] = []
    thinking: list[bool] = []
    while True:
        part = generator.dialogue(rng)
        turns += part.turns
        thinking += part.thinking
        pieces = chat.pieces(Dialogue(turns, None, "plain", thinking))
        ids = chat.encode(tokenizer, "".join(prompt + completion for prompt, completion in pieces))
        if len(ids) >= length:
            return ids[:length]


def make_prompts(generator: Generator, tokenizer: Tokenizer, template: str) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = [
        {"name": f"len-{n:03}", "n": n, "ids": talk_ids(generator, tokenizer, n)} for n in LENGTHS
    ]
    for name, text in TEXTS.items():
        prompts.append({"name": name, "ids": chat.encode(tokenizer, text), "text": text})
    text = render(template, MESSAGES)
    prompts.append(
        {
            "name": "chat",
            "ids": chat.encode(tokenizer, text),
            "messages": MESSAGES,
            "add_generation_prompt": True,
            "text": text,
        }
    )
    return [{"name": p.pop("name"), "n": len(p["ids"]), **p} for p in prompts]


def long_questions(generator: Generator, tokenizer: Tokenizer) -> list[Question]:
    """A chat of more than LONG_TOKENS tokens in which a fact, or the name told at its start, is asked."""
    rng = random.Random("golden long")
    name = "Clara"
    turns = [generator.tell(rng, "name", name, again=False)]
    kinds = [
        generator.country_fact,
        generator.country_fact,
        generator.element_fact,
        generator.sum,
        generator.unknown,
    ]
    while True:
        turns.append(rng.choice(kinds)(rng))
        fact = generator.country_fact(rng, "France", "capital")
        asked = evaluate.question("long", [*turns, fact])
        if len(chat.encode(tokenizer, evaluate.prompt(asked))) > LONG_TOKENS:
            break
    own = Turn("memory", generator.ask(rng, "own", x="name"), f"Your name is {name}.", "")
    return [asked, evaluate.question("long_memory", [*turns, own])]


# ---- comparisons ------------------------------------------------------------------------------


def gaps(rows: Rows) -> Rows:
    """Distance of the best logit to the second best, [T]."""
    second, best = np.partition(rows, -2, axis=-1)[:, -2:].T
    return best - second


def log_softmax(rows: Rows) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def agreement(expected: Sequence[Rows], others: Sequence[Rows]) -> dict[str, float]:
    """How far `others` lie from `expected`, over all rows of all prompts."""
    count, most, squares, kl, flipped = 0, 0.0, 0.0, 0.0, [0.0]
    same = 0
    for a, b in zip(expected, others, strict=True):
        difference = b.astype(np.float64) - a
        count += len(a)
        most = max(most, float(np.abs(difference).max()))
        squares += float(np.square(difference).mean(-1).sum())
        agree = a.argmax(-1) == b.argmax(-1)
        same += int(agree.sum())
        flipped += gaps(a)[~agree].tolist()
        p, q = log_softmax(a), log_softmax(b)
        kl += float((np.exp(p) * (p - q)).sum())
    return {
        "rows": count,
        "max_abs": most,
        "rms": (squares / count) ** 0.5,
        "top1_agree": same / count,
        "largest_gap_flipped": max(flipped),
        "mean_kl": kl / count,
    }


def equal_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


# ---- files ------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """Indented, but lists of numbers on one line."""

    def one_line(numbers: re.Match[str]) -> str:
        return "[" + ", ".join(numbers[0].strip("[]").replace(",", " ").split()) + "]"

    text = re.sub(r"\[\n[\s\d.,e+-]+\]", one_line, json.dumps(value, indent=1, ensure_ascii=False))
    path.write_text(text + "\n", encoding="utf-8")


def describe(path: Path, levels: int) -> dict[str, Any]:
    """The model file as the golden data refer to it, `levels` folders below the repository's root."""
    return {
        "file": "../" * levels + f"models/{path.name}",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "bytes": path.stat().st_size,
    }


class Goldens:
    """A model with everything it is compared with."""

    def __init__(self, path: Path, facts: Path, f32_path: Path):
        self.path = path
        self.geometry, self.parameters, self.metadata = export.read_gguf(path)
        self.tables = json.loads(facts.read_text(encoding="utf-8"))
        self.generator = Generator(Facts(self.tables), evaluation=True)
        self.tokenizer = from_gguf(self.metadata)
        tokenizer = f32_path.with_suffix(".json")
        self.tokenizer.save(str(tokenizer))
        self.template = self.metadata["tokenizer.chat_template"]
        self.stop_id = self.metadata["tokenizer.ggml.eos_token_id"]

        export.write_gguf(f32_path, self.geometry, self.parameters, tokenizer, {}, self.template, "f32")
        own, copy = (references.dequantise(file) for file in (path, f32_path))
        differing = [name for name in own if not torch.equal(own[name], copy[name])]
        if differing:
            raise ValueError(f"these differ in the f32 copy: {differing}")
        context = self.geometry.context_length
        self.llamacpp = {  # (weights, cache)
            ("f32", "f32"): references.LlamaCpp(f32_path, context, "f32"),
            ("file", "f32"): references.LlamaCpp(path, context, "f32"),
            ("file", "f16"): references.LlamaCpp(path, context, "f16"),
        }

    @torch.no_grad()
    def logits(self, ids: Sequence[int], parameters: dict[str, torch.Tensor] | None = None) -> Rows:
        """Scores of model.py after every position, [T, V]."""
        p = parameters or self.parameters
        return model.logits(p, model.forward(self.geometry, p, torch.tensor([ids])))[0].float().numpy()

    # ---- logits ----

    def write_logits(self, folder: Path) -> None:
        g = self.geometry
        sections = self.metadata[f"{export.ARCHITECTURE}.rope.dimension_sections"]
        hf = references.HuggingFace(g, self.path, sections)
        prompts = make_prompts(self.generator, self.tokenizer, self.template)
        sequences, rows = [], []
        stepwise = 0.0
        for prompt in prompts:
            n = prompt["n"]
            prompt["continuation"], steps = hf.greedy(prompt["ids"], CONTINUATION)
            sequences.append(prompt["ids"] + prompt["continuation"][:-1])
            rows.append(hf.logits(sequences[-1]))
            stepwise = max(stepwise, float(np.abs(rows[-1][n - 1 :] - steps).max()))
            prompt["continuation_min_gap"] = round(float(gaps(steps).min()), 5)
            prompt["prompt_min_gap"] = round(float(gaps(rows[-1][:n]).min()), 5)
            print(f"{prompt['name']}: {len(sequences[-1])} rows", flush=True)
        wide = {name: p.double() for name, p in self.parameters.items()}

        def against_hf(logits: Callable[[list[int]], Rows]) -> dict[str, float]:
            return agreement(rows, [logits(ids) for ids in sequences])

        default = self.llamacpp["file", "f16"]
        default_rows = [default.logits(ids) for ids in sequences]
        exact_rows = [self.llamacpp["f32", "f32"].logits(ids) for ids in sequences]
        continuations = [prompt["n"] - 1 for prompt in prompts]
        figures: dict[str, Any] = {
            "hf_one_pass_vs_stepwise_max_abs": stepwise,
            "hf_logit_std": float(np.concatenate(rows).std(dtype=np.float64)),
            "torch_float32_vs_hf": against_hf(self.logits),
            "torch_float64_vs_hf": against_hf(lambda ids: self.logits(ids, wide)),
            "llamacpp_f32_weights_f32_cache_vs_hf": agreement(rows, exact_rows),
            "llamacpp_this_file_f32_cache_vs_hf": against_hf(self.llamacpp["file", "f32"].logits),
            "llamacpp_this_file_defaults_vs_hf": agreement(rows, default_rows),
            "llamacpp_this_file_defaults_vs_hf_continuation_only": agreement(
                [r[n:] for r, n in zip(rows, continuations, strict=True)],
                [r[n:] for r, n in zip(default_rows, continuations, strict=True)],
            ),
        }

        top_ids, logits, llamacpp_logits = [], [], []
        first_row = first_logits = first_llamacpp = 0
        for prompt, all_rows, llamacpp_rows in zip(prompts, rows, exact_rows, strict=True):
            n, count = prompt["n"], len(all_rows)
            prompt["llamacpp_continuation"] = default.greedy(prompt["ids"], CONTINUATION)
            positions = sorted({n // 2, n - 1, count - 1})
            own_positions = [n - 1, count - 1]
            prompt |= {
                "rows": count,
                "top20_first_row": first_row,
                "logit_positions": positions,
                "logits_first_row": first_logits,
                "llamacpp_logit_positions": own_positions,
                "llamacpp_logits_first_row": first_llamacpp,
            }
            top_ids.append(np.argsort(-all_rows, axis=-1, kind="stable")[:, :TOP])
            logits.append(all_rows[positions])
            llamacpp_logits.append(llamacpp_rows[own_positions])
            first_row += count
            first_logits += len(positions)
            first_llamacpp += len(own_positions)
        figures["llamacpp_greedy_tokens_equal_to_hf_before_first_difference"] = {
            p["name"]: equal_prefix(p["continuation"], p["llamacpp_continuation"]) for p in prompts
        }

        hidden_ids = next(p["ids"] for p in prompts if p["name"] == HIDDEN_PROMPT)
        arrays = {
            "logits_hf.bin": np.concatenate(logits).astype("<f4"),
            "logits_llamacpp.bin": np.concatenate(llamacpp_logits).astype("<f4"),
            "top20_ids.bin": np.concatenate(top_ids).astype("<u2"),
            "top20_logprobs.bin": np.concatenate(
                [np.take_along_axis(log_softmax(r), ids, -1) for r, ids in zip(rows, top_ids, strict=True)]
            ).astype("<f4"),
            "hidden_hf.bin": hf.hidden_states(hidden_ids).astype("<f4"),
        }
        files = {}
        for name, array in arrays.items():
            (folder / name).write_bytes(array.tobytes())
            files[name] = {"dtype": array.dtype.newbyteorder("=").name, "shape": list(array.shape)}
        files["hidden_hf.bin"]["prompt"] = HIDDEN_PROMPT
        write_json(
            folder / "golden.json",
            {
                "format": 1,
                "model": {
                    **describe(self.path, levels=4),
                    "architecture": export.ARCHITECTURE,
                    "vocab": g.vocab,
                    "tokenizer_entries": len(self.metadata["tokenizer.ggml.tokens"]),
                    "hidden": g.hidden,
                    "layers": g.n_layers,
                    "tied": "output.weight" not in self.parameters,
                    "note": "Hybrid, tied head, all matrices Q1_0; trained.",
                },
                "references": {
                    "hf": hf.name,
                    "llamacpp": f"{default.name}, logits of an f32 copy of the weights with an f32 cache, "
                    "continuations of this file with an f16 cache; no flash attention",
                    "tokenizers": tokenizers.__version__,
                },
                "files": files,
                "agreement": figures,
                "prompts": prompts,
            },
        )
        print(json.dumps(figures, indent=1))

    # ---- answers ----

    def cases(self, asked: list[Question]) -> list[dict[str, Any]]:
        """Questions with their greedy answers, and those of llama.cpp on f32 weights where they differ."""
        other = self.llamacpp["f32", "f32"]
        answers = evaluate.answer_all(self.geometry, self.parameters, self.tokenizer, asked)
        result = []
        for q, answer_ids in zip(asked, answers, strict=True):
            text = evaluate.prompt(q)
            if text != render(self.template, q.messages, q.thinking):
                raise ValueError(f"the template renders another prompt: {q.messages}")
            prompt_ids = chat.encode(self.tokenizer, text)
            if other.tokenize(text) != prompt_ids:
                raise ValueError(f"llama.cpp reads other ids: {text!r}")
            answer = evaluate.decode(self.tokenizer, answer_ids)
            rows = self.logits(prompt_ids + answer_ids[:-1])[len(prompt_ids) - 1 :]
            case = {
                "kind": q.kind,
                "messages": q.messages,
                "thinking": q.thinking,
                "prompt_ids": prompt_ids,
                "answer_ids": answer_ids,
                "answer": answer,
                "expected": q.expected,
                "right": evaluate.final_answer(answer) == q.expected,
                "smallest_gap": round(float(gaps(rows).min()), 4),
            }
            other_ids = other.greedy(prompt_ids, evaluate.MAX_TOKENS, self.stop_id)
            if other_ids != answer_ids:
                case["llamacpp_answer_ids"] = other_ids
            result.append(case)
        return result

    def write_answers(self, folder: Path) -> None:
        asked = evaluate.questions(self.tables)
        cases = self.cases([asked[i * len(asked) // QUESTIONS] for i in range(QUESTIONS)])
        long = self.cases(long_questions(self.generator, self.tokenizer))
        header = {
            "format": 1,
            "reference": f"torch {torch.__version__.split('+')[0]}, float32, on the dequantised weights",
            "model": describe(self.path, levels=3),
            "eos": self.stop_id,
            "max_tokens": evaluate.MAX_TOKENS,
            "template": "the file's own; enable_thinking where a case says so",
            "right": sum(case["right"] for case in cases),
            "llamacpp": f"{references.LlamaCpp.name}, f32 copy of the weights, f32 cache",
            "llamacpp_same_answers": sum("llamacpp_answer_ids" not in case for case in cases),
        }
        write_json(folder / "answers.json", {**header, "cases": cases, "long": long})
        print(json.dumps(header, indent=1))
        for case in long:
            print(
                f"{case['kind']}: {len(case['prompt_ids'])} tokens, {case['answer']!r},"
                f" expected {case['expected']!r}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "tests/golden")
    parser.add_argument("--facts", type=Path, default=evaluate.BUILD / "facts.json")
    args = parser.parse_args()

    torch.set_num_threads(1)  # tensors this small lose more to barriers than threads gain
    with tempfile.TemporaryDirectory() as scratch:
        goldens = Goldens(args.model, args.facts, Path(scratch) / "f32.gguf")
        for folder, write in [(f"models/{NAME}", goldens.write_logits), (NAME, goldens.write_answers)]:
            (args.out / folder).mkdir(parents=True, exist_ok=True)
            write(args.out / folder)


if __name__ == "__main__":
    main()
