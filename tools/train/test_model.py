"""Tests of the model, its one-bit format and its file, run as `python -m unittest` in this folder."""

import dataclasses
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np
import torch

import q1_0
from export import read_gguf, write_gguf
from model import (
    Geometry,
    State,
    delta_rule,
    forward,
    generate,
    generate_batch,
    init_parameters,
    is_matrix,
    logits,
    parameter_shapes,
)

torch.set_num_threads(1)  # tensors this small lose more to barriers than threads gain

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden"
TINY = Geometry(
    n_layers=4,
    hidden=128,
    ffn=256,
    n_key_heads=2,
    n_value_heads=4,
    n_heads=2,
    n_kv_heads=1,
    vocab=300,
    context_length=64,
)


def recurrence(q, k, v, log_decay, beta, state):
    """The gated delta rule token by token, in the layouts of `delta_rule`."""
    outputs = []
    for t in range(q.shape[1]):
        state = state * log_decay[:, t].exp().transpose(1, 2)[:, :, None, :, None]
        read = torch.einsum("bhkrv,bhk->brhv", state, k[:, t])
        update = beta[:, t, ..., None] * (v[:, t] - read)
        state = state + torch.einsum("bhk,brhv->bhkrv", k[:, t], update)
        outputs.append(torch.einsum("bhkrv,bhk->brhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


class DeltaRule(unittest.TestCase):
    def test_worked_example(self):
        def head(x):
            return torch.tensor(x, dtype=torch.float64)[None, :, None]

        q, k = head([[0.5, 0.5], [0.25, -0.5], [0.7, 0.1]]), head([[0.6, 0.8], [1, 0], [0.28, 0.96]])
        v = head([[1, -2], [0.5, 3], [-1, 0.25]])[:, :, None]
        log_decay, beta = head([-0.1, -0.5, -0.02])[..., None], head([0.5, 0.9, 0.25])[..., None]
        start = torch.tensor([[0.2, -0.1], [0.05, 0.3]], dtype=torch.float64)[None, None, :, None]
        expected = torch.tensor(
            [[0.4124337818, -0.6665210155], [0.0016700137, 0.8438368527], [0.2513135699, 1.7762991201]],
            dtype=torch.float64,
        )
        expected_state = torch.tensor(
            [[0.3724719659, 2.5927895114], [-0.0941680623, -0.3865353785]], dtype=torch.float64
        )
        for chunk in 1, 2, 3, 64:
            out, state = delta_rule(q, k, v, log_decay, beta, start, chunk)
            torch.testing.assert_close(out[0, :, 0, 0], expected, rtol=0, atol=2e-10)
            torch.testing.assert_close(state[0, 0, :, 0], expected_state, rtol=0, atol=2e-10)

    def test_chunks_equal_recurrence(self):
        torch.manual_seed(1)
        for dtype, tolerance in (torch.float64, 1e-12), (torch.float32, 2e-5):
            q, k = torch.nn.functional.normalize(torch.randn(2, 2, 150, 2, 16, dtype=dtype), dim=-1)
            v = torch.randn(2, 150, 3, 2, 8, dtype=dtype)
            log_decay = -(torch.rand(2, 150, 3, 2, dtype=dtype) ** 4) * 20
            beta = torch.rand(2, 150, 3, 2, dtype=dtype)
            inputs = [
                x.requires_grad_()
                for x in (q.clone(), k.clone(), v, log_decay, beta, torch.randn(2, 2, 16, 3, 8, dtype=dtype))
            ]
            weights = torch.randn_like(v), torch.randn(2, 2, 16, 3, 8, dtype=dtype)
            results = []
            for function in recurrence, delta_rule:
                outputs = function(*inputs)
                loss = sum((o * w).sum() for o, w in zip(outputs, weights, strict=True))
                grads = torch.autograd.grad(loss, inputs)
                results.append((*outputs, *grads))
            for expected, found in zip(*results, strict=True):
                scale = max(1.0, float(expected.detach().abs().max()))
                self.assertLess(float((expected - found).detach().abs().max()) / scale, tolerance)

    def test_repeated_keys(self):
        ones = torch.ones(1, 64, 1, 1)
        k = torch.nn.functional.normalize(torch.ones(1, 64, 1, 16), dim=-1)
        v = torch.randn(1, 64, 1, 1, 16)
        out, _ = delta_rule(k, k, v, 0 * ones, ones)
        torch.testing.assert_close(out, v, rtol=0, atol=1e-5)  # each write replaces the last value


class Format(unittest.TestCase):
    def test_known_block(self):
        x = ((29 * np.arange(128) + 7) % 64 - 32).astype(np.float32) / 16
        packed = q1_0.pack(x[None])
        self.assertEqual(packed.tobytes().hex(), "003c5295aa55ad6a55aa5295aa55ad6a55aa")

    def test_unpack_gives_quantize(self):
        w = torch.randn(64, 384, generator=torch.Generator().manual_seed(0))
        w *= 10 ** torch.linspace(-8, 2, 64)[:, None]
        w[0, :3] = torch.tensor([0.0, -0.0, -1e-9])
        w[1] = 0
        expected = q1_0.quantize(w).numpy()
        self.assertEqual(q1_0.unpack(q1_0.pack(w.numpy())).tobytes(), expected.tobytes())


class Golden(unittest.TestCase):
    def check(self, name):
        folder = GOLDEN / "models" / name
        golden = json.loads((folder / "golden.json").read_text())
        g, p, _ = read_gguf(folder / "model.gguf")
        rows, vocab = golden["files"]["logits_hf.bin"]["shape"]
        expected = np.fromfile(folder / "logits_hf.bin", "<f4").reshape(rows, vocab)
        worst = 0.0
        for prompt in golden["prompts"]:
            tokens = torch.tensor([prompt["ids"] + prompt["continuation"][:-1]])
            positions, first = prompt["logit_positions"], prompt["logits_first_row"]
            with torch.no_grad():
                found = logits(p, forward(g, p, tokens)[0, positions]).numpy()
                state, half = State(g), tokens.shape[1] // 2
                parts = [forward(g, p, part, state) for part in (tokens[:, :half], tokens[:, half:])]
                continued = logits(p, torch.cat(parts, 1)[0, positions]).numpy()
            rows_of_prompt = expected[first : first + len(positions)]
            worst = max(worst, np.abs(found - rows_of_prompt).max(), np.abs(continued - rows_of_prompt).max())
        print(f"{name}: largest logit difference {worst:.1e}")
        self.assertLess(worst, 1e-3)

    def test_f32(self):
        self.check("qwen35-f32")

    def test_q1_0(self):
        self.check("qwen35-q1_0")

    def test_tied_q1_0(self):
        self.check("qwen35-tied-q1_0")

    def test_answers(self):
        g, p, _ = read_gguf(ROOT / "tests/golden/tiny-geo/model.gguf")
        golden = json.loads((GOLDEN / "tiny-geo/answers.json").read_text())
        for case in golden["cases"]:
            answer = generate(g, p, case["prompt_ids"], len(case["answer_ids"]), golden["eos"])
            self.assertEqual(answer, case["answer_ids"])


class File(unittest.TestCase):
    def test_round_trip(self):
        latents = init_parameters(TINY, seed=3)
        self.assertEqual({name: tuple(w.shape) for name, w in latents.items()}, parameter_shapes(TINY))
        used = {name: q1_0.quantize(w) if is_matrix(name) else w for name, w in latents.items()}
        tokens = torch.randint(TINY.vocab, (2, 40), generator=torch.Generator().manual_seed(0))
        specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
        tokenizer = {
            "model": {"vocab": {f"t{i}": i for i in range(295)}, "merges": [["a", "b"], "c d"]},
            "added_tokens": [{"id": 295 + i, "content": token} for i, token in enumerate(specials)],
        }
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "tokenizer.json")
            source.write_text(json.dumps(tokenizer))
            for matrices in "q1_0", "f32":
                path = Path(folder, f"{matrices}.gguf")
                write_gguf(path, TINY, latents, source, {"general.name": "test"}, "template", matrices)
                g, p, metadata = read_gguf(path)
                self.assertEqual(g, TINY)
                self.assertEqual(Geometry.from_json(json.loads(json.dumps(g.to_json()))), TINY)
                for name, expected in used.items():
                    if name.endswith("ssm_a_log"):  # through exp and log
                        torch.testing.assert_close(p[name], expected)
                    else:
                        self.assertEqual(p[name].numpy().tobytes(), expected.numpy().tobytes(), name)
                with torch.no_grad():
                    found, expected = (logits(x, forward(g, x, tokens)) for x in (p, used))
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
                self.assertEqual(metadata["general.name"], "test")
                self.assertEqual(metadata["tokenizer.ggml.merges"], ["a b", "c d"])
                self.assertEqual(metadata["tokenizer.ggml.token_type"][-6:], [1, 3, 3, 3, 4, 4])
                self.assertEqual(metadata["tokenizer.ggml.eos_token_id"], 297)

    def test_same_keys_as_the_shipped_file(self):
        g, p, shipped = read_gguf(ROOT / "tests/golden/tiny-geo/model.gguf")
        vocab = {token: i for i, token in enumerate(shipped["tokenizer.ggml.tokens"])}
        added = [
            {"id": i, "content": token}
            for token, i in vocab.items()
            if shipped["tokenizer.ggml.token_type"][i] != 1
        ]
        with tempfile.TemporaryDirectory() as folder:
            source, path = Path(folder, "tokenizer.json"), Path(folder, "model.gguf")
            merges = shipped["tokenizer.ggml.merges"]
            tokenizer = {"model": {"vocab": vocab, "merges": merges}, "added_tokens": added}
            source.write_text(json.dumps(tokenizer))
            extra = {key: shipped[key] for key in ("general.name", "general.license")}
            write_gguf(path, g, p, source, extra, shipped["tokenizer.chat_template"])
            again, weights, metadata = read_gguf(path)
        self.assertEqual(again, g)
        self.assertEqual(metadata, shipped)
        for name in filter(is_matrix, p):
            self.assertTrue(torch.equal(weights[name], p[name]), name)


class Generation(unittest.TestCase):
    def test_batch_equals_single(self):
        p = init_parameters(dataclasses.replace(TINY, n_layers=8), seed=5)
        g = dataclasses.replace(TINY, n_layers=8)
        prompts = torch.randint(g.vocab, (3, 7), generator=torch.Generator().manual_seed(0))
        together = generate_batch(g, p, prompts, 12, stop_id=0)
        self.assertEqual(together, [generate(g, p, prompt.tolist(), 12, 0) for prompt in prompts])


if __name__ == "__main__":
    unittest.main()
