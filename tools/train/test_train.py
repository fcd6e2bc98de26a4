"""The trainer learns, and a run that is interrupted ends like one that is not."""

import csv
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch

import train
from model import Geometry

GEOMETRY = Geometry(
    n_layers=2,
    hidden=128,
    ffn=128,
    n_key_heads=1,
    n_value_heads=2,
    n_heads=1,
    n_kv_heads=1,
    vocab=64,
    context_length=64,
    head_dim=128,
    full_attention_interval=2,
)
OPTIONS = train.Options(
    tokens=120 * 4 * 24,
    row_tokens=24,
    validation_rows=6,
    validate_every=40,
    log_every=10,
)


class Facts:
    """Four fixed rows of random ids, of different lengths; the second half of each is graded."""

    def training_rows(self, first_row: int, count: int) -> list[train.Row]:
        return [self.row(index % 4) for index in range(first_row, first_row + count)]

    def validation_rows(self, count: int) -> list[train.Row]:
        return self.training_rows(0, count)

    def row(self, index: int) -> train.Row:
        rng, length = random.Random(index), 18 + 2 * index
        return [rng.randrange(64) for _ in range(length)], [float(i >= length // 2) for i in range(length)]


class BrokenFacts(Facts):
    """Fails in the second process at the third step."""

    def training_rows(self, first_row: int, count: int) -> list[train.Row]:
        if first_row == 10:
            raise KeyError("no such row")
        return super().training_rows(first_row, count)


def read_log(out: Path) -> list[dict]:
    """The log without the columns that depend on the clock."""
    with open(out / "log.csv", newline="") as file:
        return [
            {k: v for k, v in row.items() if not k.startswith(("seconds", "tokens_per_s"))}
            for row in csv.DictReader(file)
        ]


def start(out: Path, resume: bool = False, data: str = "Facts") -> subprocess.Popen:
    """A run in a process of its own."""
    code = (
        f"import sys, pathlib, test_train as t\nt.train.train(t.GEOMETRY, t.OPTIONS, t.{data}(), "
        f"pathlib.Path(sys.argv[1]), resume={resume})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, str(out)],
        cwd=Path(__file__).parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


class TrainTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_interrupted_run_ends_like_an_uninterrupted_one(self) -> None:
        whole, parts = self.folder / "whole", self.folder / "parts"
        run = start(whole)
        self.assertEqual(run.wait(), 0, run.communicate()[1])

        run = start(parts)
        while run.poll() is None and not ((parts / "log.csv").exists() and len(read_log(parts)) >= 2):
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(), 0, run.communicate()[1])
        stopped_at = torch.load(parts / "last.pt")["step"]
        self.assertTrue(20 <= stopped_at < 120, stopped_at)
        run = start(parts, resume=True)
        self.assertEqual(run.wait(), 0, run.communicate()[1])

        self.assertEqual(read_log(whole), read_log(parts))
        a, b = torch.load(whole / "last.pt"), torch.load(parts / "last.pt")
        for name in ("latent", "exp_avg", "exp_avg_sq"):
            self.assertTrue(torch.equal(a[name], b[name]), name)
        a, b = torch.load(whole / "best.pt"), torch.load(parts / "best.pt")
        self.assertEqual((a["step"], a["val_loss"]), (b["step"], b["val_loss"]))

        # Four rows can be learnt by heart, at one bit.
        self.assertLess(a["val_loss"], 0.1)

    def test_failure_of_a_process_ends_the_run(self) -> None:
        run = start(self.folder / "run", data="BrokenFacts")
        error = run.communicate(timeout=60)[1]
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("no such row", error)
        self.assertIn("a worker process has died", error)

    def test_slices_cover_the_layout_in_whole_groups(self) -> None:
        layout = train.Layout(GEOMETRY)
        for processes in (1, 2, 3, 7):
            at = [0, layout.matrix_size]
            for rank in range(processes):
                for i, part in enumerate(layout.ranges(rank, processes)):
                    if part:
                        self.assertEqual((part.start, len(part) % train.GROUP if i == 0 else 0), (at[i], 0))
                        at[i] = part.stop
            self.assertEqual(at, [layout.matrix_size, layout.size])

    def test_schedule(self) -> None:
        o = train.Options(tokens=1024 * 1000)
        self.assertAlmostEqual(o.lr(0), o.peak_lr / 20)
        self.assertEqual(o.lr(250), o.peak_lr)
        self.assertAlmostEqual(o.lr(1000), o.peak_lr / 100)
        self.assertEqual([o.strength(s) for s in (0, 250, 500, 1000)], [0, 0.5, 1, 1])
        self.assertTrue(all(math.isfinite(o.lr(s)) for s in range(1001)))


if __name__ == "__main__":
    unittest.main()
