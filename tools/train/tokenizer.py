"""Byte-level BPE tokenizer of the Qwen3.5 kind: NFC, the `qwen35` split pattern, bytes, merges.

Ids: the 256 byte symbols, then the merges in order of rank, then the added tokens.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

BUILD = Path(__file__).parent / "build"
VOCAB_SIZE = 4096
SEED = 1
DIALOGUES = 20_000

# Letters with their combining marks, single digits, punctuation runs, white space.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Part of the visible text, so not "special" in the sense of "dropped when decoding".
THINK_TOKENS = ["<think>", "</think>"]
ADDED_TOKENS = CONTROL_TOKENS + THINK_TOKENS


def _byte_level(bpe: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in THINK_TOKENS])


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a model file of `export.write_gguf` holds."""
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    vocab = {text: i for i, text in enumerate(tokens) if text not in ADDED_TOKENS}
    tokenizer = _byte_level(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    _add_tokens(tokenizer)
    if [tokenizer.id_to_token(i) for i in range(len(tokens))] != list(tokens):
        raise ValueError("the added tokens are not the last ones of the vocabulary")
    return tokenizer


def train(texts: Iterable[str], vocab_size: int, path: str | Path) -> Tokenizer:
    """Learns the merges from `texts` and writes a tokenizer.json of exactly `vocab_size` tokens."""
    tokenizer = _byte_level(models.BPE())
    # The trainer would put added tokens first, so they are appended afterwards.
    base_size = vocab_size - len(ADDED_TOKENS)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=base_size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    if tokenizer.get_vocab_size() != base_size:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} tokens, {base_size} were asked for")
    if {tokenizer.id_to_token(i) for i in range(256)} != set(pre_tokenizers.ByteLevel.alphabet()):
        raise ValueError("the first 256 tokens are not the byte symbols")
    _add_tokens(tokenizer)
    ids = [tokenizer.token_to_id(text) for text in ADDED_TOKENS]
    if ids != list(range(base_size, vocab_size)):
        raise ValueError(f"the added tokens have ids {ids}, not the last {len(ADDED_TOKENS)}")

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def load(path: str | Path) -> Tokenizer:
    """Reads a tokenizer.json written by `train`."""
    return Tokenizer.from_file(str(path))


def main() -> None:
    """Learns the vocabulary from the generator's own dialogues."""
    import chat

    facts = json.loads((BUILD / "facts.json").read_text())
    train(chat.texts(facts, SEED, DIALOGUES), VOCAB_SIZE, BUILD / "tokenizer.json")


if __name__ == "__main__":
    main()
