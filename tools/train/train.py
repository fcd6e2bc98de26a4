"""Quantisation-aware training of the 1-bit chat model on the CPU.

    python train.py --out build/run
    python train.py --out build/run --resume

Data parallelism over a few processes that share flat f32 buffers. A step is

    forward and backward on the own rows          -> barrier
    sum of all gradients for the own slice        -> barrier (the norm needs every slice)
    clip, AdamW, 1-bit weights of the own slice   -> barrier

The forward pass reads `used` = (1 - lambda) * latent + lambda * Q1_0(latent); the gradient with respect to
`used` is applied to `latent` unchanged (straight-through). Rows are a function of (seed, row index), so a run
that is stopped and resumed sees the same data and ends with the same weights as one that was not stopped.
"""

import os
import sys

# The default malloc returns every large temporary to the kernel and faults it in again. glibc reads the
# setting at process start only.
if __name__ == "__main__" and "GLIBC_TUNABLES" not in os.environ:
    os.environ["GLIBC_TUNABLES"] = (
        "glibc.malloc.mmap_threshold=4294967295:glibc.malloc.trim_threshold=68719476736"
        ":glibc.malloc.hugetlb=1"
    )
    os.execv(sys.executable, [sys.executable, *sys.argv])

import argparse
import csv
import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Protocol

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import chat
import model
import q1_0
import tokenizer
from dialogues import Facts, Generator
from model import Geometry

GEOMETRY = Geometry(
    n_layers=8,
    hidden=256,
    ffn=768,
    n_key_heads=2,
    n_value_heads=4,
    n_heads=2,
    n_kv_heads=1,
    vocab=4096,
    context_length=4096,
)
GROUP = q1_0.BLOCK
QUANTIZE_CHUNK = 512 * GROUP  # weights quantised at a time, so that the temporaries stay in the cache
BARRIER_TIMEOUT_S = 900.0
LOG_COLUMNS = ["step", "tokens", "seconds", "tokens_per_s", "lr", "lambda", "loss", "val_loss"]

Row = tuple[list[int], list[float]]  # ids, and per id the loss weight of predicting it


class Data(Protocol):
    """A data set whose rows are addressed by index."""

    def training_rows(self, first_row: int, count: int) -> list[Row]: ...

    def validation_rows(self, count: int) -> list[Row]: ...


@dataclass
class ChatData:
    """The dialogue generator behind `Data`."""

    facts: dict
    tokenizer: Tokenizer
    seed: int

    @cached_property
    def generator(self) -> Generator:
        return Generator(Facts(self.facts))

    def training_rows(self, first_row: int, count: int) -> list[Row]:
        rows = range(first_row, first_row + count)
        return [chat.training_row(self.generator, self.tokenizer, self.seed, row) for row in rows]

    def validation_rows(self, count: int) -> list[Row]:
        return chat.validation_rows(self.facts, self.tokenizer, self.seed, count)


@dataclass(frozen=True)
class Options:
    """What a run is made of. Tokens are positions, `rows_per_step * row_tokens` a step."""

    tokens: int = 7_000_000
    rows_per_step: int = 4
    row_tokens: int = 256
    seed: int = 1
    processes: int = 2
    threads_per_process: int = 1
    matmul_precision: str = "medium"  # products of bf16 where the processor has them, a fifth faster
    peak_lr: float = 4e-3
    final_lr: float = 0.01  # of the peak
    vector_lr: float = 0.5  # of the rate of the matrices
    warmup_steps: int = 20
    constant_until: float = 0.3  # of the run
    binary_from: float = 0.5  # of the run: lambda reaches 1
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    validation_rows: int = 48
    validate_every: int = 250
    log_every: int = 50

    @property
    def total_steps(self) -> int:
        return max(1, self.tokens // (self.rows_per_step * self.row_tokens))

    def lr(self, step: int) -> float:
        """Rate of the matrices at `step`: warm-up, constant, cosine."""
        progress = step / self.total_steps
        decay = max(0.0, (progress - self.constant_until) / (1 - self.constant_until))
        shape = self.final_lr + (1 - self.final_lr) * (1 + math.cos(math.pi * min(decay, 1.0))) / 2
        return self.peak_lr * shape * min(1.0, (step + 1) / self.warmup_steps)

    def strength(self, step: int) -> float:
        """lambda, the share of the 1-bit weights in what the forward pass reads at `step`."""
        return min(1.0, step / self.total_steps / self.binary_from)


class Layout:
    """Where each parameter lies in a flat buffer: all matrices, then all vectors.

    Every matrix has rows of whole groups, so groups are contiguous and aligned in the flat buffer too.
    """

    def __init__(self, geometry: Geometry):
        shapes = model.parameter_shapes(geometry)
        self.entries: list[tuple[str, tuple[int, ...], int]] = []
        self.size = 0
        for matrices in (True, False):
            for name, shape in shapes.items():
                if model.is_matrix(name) == matrices:
                    if matrices and shape[-1] % GROUP:
                        raise ValueError(f"{name}: rows of {shape[-1]} are not whole groups of {GROUP}")
                    self.entries.append((name, tuple(shape), self.size))
                    self.size += math.prod(shape)
            if matrices:
                self.matrix_size = self.size

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters as views of a flat buffer."""
        return {name: flat[at : at + math.prod(shape)].view(shape) for name, shape, at in self.entries}

    def ranges(self, rank: int, processes: int) -> tuple[range, range]:
        """The matrix part and the vector part of the slice that `rank` updates, either may be empty."""

        def bound(r: int) -> int:
            return self.size if r == processes else self.size * r // processes // GROUP * GROUP

        start, stop, split = bound(rank), bound(rank + 1), self.matrix_size
        return range(min(start, split), min(stop, split)), range(max(start, split), max(stop, split))


class Shared:
    """The buffers all processes work on."""

    def __init__(self, size: int, processes: int):
        def buffer(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype).share_memory_()

        self.latent, self.used, self.exp_avg, self.exp_avg_sq = (buffer(size) for _ in range(4))
        self.grads = buffer(processes, size)
        self.loss = buffer(processes, dtype=torch.float64)  # sum of weight * cross-entropy
        self.weight = buffer(processes, dtype=torch.float64)  # sum of weights
        self.grad_sq = buffer(processes, dtype=torch.float64)  # sum of squares of the own slice
        self.stop = buffer(1, dtype=torch.int32)
        self.barrier = mp.get_context("spawn").Barrier(processes, timeout=BARRIER_TIMEOUT_S)


def write_used(latent: Tensor, used: Tensor, strength: float) -> None:
    """used = (1 - strength) * latent + strength * Q1_0(latent), flat and in whole groups."""
    for source, target in zip(latent.split(QUANTIZE_CHUNK), used.split(QUANTIZE_CHUNK), strict=True):
        if strength == 0:
            target.copy_(source)
        else:
            torch.lerp(source, q1_0.quantize(source.view(-1, GROUP)).view(-1), strength, out=target)


def loss_sum(geometry: Geometry, p: dict[str, Tensor], rows: list[Row]) -> tuple[Tensor, float]:
    """Sum of weight * cross-entropy over the rows, and the sum of the weights."""
    length = max(len(ids) for ids, _ in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)  # [B, T], padded at the end, where it is causal
    weights = torch.zeros(len(rows), length)
    for b, (ids, weight) in enumerate(rows):
        tokens[b, : len(ids)] = torch.tensor(ids)
        weights[b, : len(ids)] = torch.tensor(weight)
    targets, weights = tokens[:, 1:], weights[:, 1:]  # [B, T-1]
    graded = weights > 0
    hidden = model.forward(geometry, p, tokens)[:, :-1][graded]  # [n, D]: the head only where it is graded
    losses = F.cross_entropy(model.logits(p, hidden), targets[graded], reduction="none")
    return (losses * weights[graded]).sum(), float(weights.sum())


class Stopwatch:
    """Seconds per phase of the steps since the last `shares`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now

    def shares(self) -> str:
        total = sum(self.seconds.values()) or 1.0
        text = " ".join(f"{phase} {100 * s / total:.1f}%" for phase, s in self.seconds.items())
        self.seconds.clear()
        return text


class Recorder:
    """Log and checkpoints, kept by the first process only."""

    def __init__(self, out: Path, geometry: Geometry, options: Options, layout: Layout, shared: Shared):
        self.out, self.geometry, self.options = out, geometry, options
        self.layout, self.shared = layout, shared
        self.best_val_loss = math.inf
        self.seconds_before = 0.0
        self.losses: list[float] = []  # of the steps since the last line of the log
        self.rows: list[list] = []
        self.started = self.line_at = time.monotonic()
        self.line_step = 0

    def resume(self) -> int:
        """Restores the shared buffers and the log from last.pt; returns the number of steps done."""
        state = torch.load(self.out / "last.pt")
        same = ["seed", "rows_per_step", "row_tokens"]
        differing = [key for key in same if state["options"][key] != getattr(self.options, key)]
        if differing or state["geometry"] != dataclasses.asdict(self.geometry):
            raise ValueError(f"{self.out}/last.pt is of another run: {differing or 'geometry'} differs")
        for name in ("latent", "exp_avg", "exp_avg_sq"):
            getattr(self.shared, name).copy_(state[name])
        self.best_val_loss, self.losses = state["best_val_loss"], state["losses"]
        self.rows, self.seconds_before = state["log"], state["seconds"]
        self.line_step = state["step"]
        return state["step"]

    def write_log(self) -> None:
        with open(self.out / "log.csv", "w", newline="") as file:
            csv.writer(file).writerows([LOG_COLUMNS, *self.rows])

    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def line(self, step: int, val_loss: float | None, shares: str) -> None:
        """Appends a line to the log and prints it with the time left at the present speed."""
        o, now = self.options, time.monotonic()
        tokens_per_step = o.rows_per_step * o.row_tokens
        speed = (step - self.line_step) * tokens_per_step / max(now - self.line_at, 1e-9)
        loss = sum(self.losses) / max(len(self.losses), 1)
        lr, strength = o.lr(step - 1), o.strength(step - 1)
        val = "" if val_loss is None else f"{val_loss:.6f}"
        self.rows.append(
            [
                step,
                step * tokens_per_step,
                f"{self.seconds():.1f}",
                f"{speed:.0f}",
                f"{lr:.3e}",
                f"{strength:.4f}",
                f"{loss:.6f}",
                val,
            ]
        )
        self.write_log()
        eta = (o.total_steps - step) * tokens_per_step / max(speed, 1e-9)
        print(
            f"step {step}/{o.total_steps}  loss {loss:.4f}{'  val ' + val if val else ''}  lr {lr:.2e}"
            f"  lambda {strength:.2f}  {speed:.0f} tokens/s  ETA {eta / 60:.1f} min"
            f"  [{shares}]",
            flush=True,
        )
        self.losses, self.line_step, self.line_at = [], step, now

    def save_best(self, step: int, val_loss: float) -> None:
        self.best_val_loss = val_loss
        latent = {name: view.clone() for name, view in self.layout.views(self.shared.latent).items()}
        self.write(
            "best.pt",
            {
                "geometry": dataclasses.asdict(self.geometry),
                "step": step,
                "val_loss": val_loss,
                "latent": latent,
            },
        )

    def save_last(self, step: int) -> None:
        s = self.shared
        self.write(
            "last.pt",
            {
                "geometry": dataclasses.asdict(self.geometry),
                "options": dataclasses.asdict(self.options),
                "step": step,
                "latent": s.latent,
                "exp_avg": s.exp_avg,
                "exp_avg_sq": s.exp_avg_sq,
                "best_val_loss": self.best_val_loss,
                "losses": self.losses,
                "log": self.rows,
                "seconds": self.seconds(),
            },
        )

    def write(self, name: str, state: dict) -> None:
        """Never leaves a half-written checkpoint under `name`."""
        temporary = self.out / (name + ".tmp")
        torch.save(state, temporary)
        os.replace(temporary, self.out / name)


def work(
    rank: int,
    geometry: Geometry,
    options: Options,
    data: Data,
    shared: Shared,
    first_step: int,
    recorder: Recorder | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> int:
    """The training loop of one process; returns the number of steps done."""
    torch.set_num_threads(options.threads_per_process)
    torch.set_float32_matmul_precision(options.matmul_precision)
    layout, n = Layout(geometry), options.processes
    own_rows = options.rows_per_step // n
    matrices, vectors = layout.ranges(rank, n)
    span = slice(matrices.start if matrices else vectors.start, vectors.stop if vectors else matrices.stop)
    own_grad = shared.grads[rank]

    # Leaves over the shared weights: backward adds to the own gradient buffer in place.
    p = {name: view.detach().requires_grad_() for name, view in layout.views(shared.used).items()}
    for name, view in layout.views(own_grad).items():
        p[name].grad = view

    groups = []
    for part, scale, decay in ((matrices, 1.0, options.weight_decay), (vectors, options.vector_lr, 0.0)):
        if part:
            weights = torch.nn.Parameter(shared.latent[part.start : part.stop])
            weights.grad = own_grad[part.start : part.stop]
            groups.append({"params": [weights], "lr_scale": scale, "weight_decay": decay, "range": part})
    optimizer = torch.optim.AdamW(groups, betas=(options.beta1, options.beta2), fused=True)
    for group in optimizer.param_groups:
        at = slice(group["range"].start, group["range"].stop)
        optimizer.state[group["params"][0]] = {
            "step": torch.tensor(float(first_step)),
            "exp_avg": shared.exp_avg[at],
            "exp_avg_sq": shared.exp_avg_sq[at],
        }

    @torch.no_grad()
    def refresh_used(strength: float) -> None:
        """Recomputes the own slice of `used`; vectors are never quantised."""
        at, vector = slice(matrices.start, matrices.stop), slice(vectors.start, vectors.stop)
        write_used(shared.latent[at], shared.used[at], strength)
        shared.used[vector].copy_(shared.latent[vector])

    @torch.no_grad()
    def validation_loss() -> float:
        """Loss of the 1-bit model on the validation rows, each process taking its share."""
        flat = shared.latent.clone()
        write_used(shared.latent[: layout.matrix_size], flat[: layout.matrix_size], 1.0)
        quantized = layout.views(flat)
        torch.set_float32_matmul_precision("highest")
        batches = [own_validation[i : i + 4] for i in range(0, len(own_validation), 4)]
        sums = [loss_sum(geometry, quantized, rows) for rows in batches]
        torch.set_float32_matmul_precision(options.matmul_precision)
        shared.loss[rank] = sum(float(loss) for loss, _ in sums)
        shared.weight[rank] = sum(weight for _, weight in sums)
        shared.barrier.wait()
        result = float(shared.loss.sum() / shared.weight.sum())
        shared.barrier.wait()  # all have read before the next step writes
        return result

    own_validation = data.validation_rows(options.validation_rows)[rank::n]
    refresh_used(options.strength(first_step))
    shared.barrier.wait()
    watch = Stopwatch()

    step = first_step
    while step < options.total_steps and not shared.stop[0]:
        rows = data.training_rows(step * options.rows_per_step + rank * own_rows, own_rows)
        watch.lap("data")
        loss, weight = loss_sum(geometry, p, rows)
        loss.backward()
        shared.loss[rank], shared.weight[rank] = float(loss.detach()), weight
        watch.lap("model")
        shared.barrier.wait()
        watch.lap("wait")

        grad = own_grad[span]
        for other in range(n):
            if other != rank:
                grad.add_(shared.grads[other][span])
        shared.grad_sq[rank] = float(grad.dot(grad))
        watch.lap("optimiser")
        shared.barrier.wait()
        watch.lap("wait")

        total_weight = max(float(shared.weight.sum()), 1e-9)
        mean_loss = float(shared.loss.sum()) / total_weight
        norm = math.sqrt(float(shared.grad_sq.sum())) / total_weight
        if not math.isfinite(norm):
            raise FloatingPointError(f"step {step}: gradient norm {norm}, loss {mean_loss}")
        grad.mul_(min(1.0, options.clip_norm / max(norm, 1e-12)) / total_weight)
        for group in optimizer.param_groups:
            group["lr"] = options.lr(step) * group["lr_scale"]
        optimizer.step()
        own_grad.zero_()
        step += 1
        watch.lap("optimiser")
        refresh_used(options.strength(step))
        watch.lap("quantiser")
        if rank == 0 and should_stop():
            shared.stop[0] = 1
        shared.barrier.wait()
        watch.lap("wait")

        last, val_loss = step == options.total_steps, None
        if step % options.validate_every == 0 or last:
            val_loss = validation_loss()
            watch.lap("validation")
        if recorder:
            recorder.losses.append(mean_loss)
            if val_loss is not None and options.strength(step) == 1 and val_loss < recorder.best_val_loss:
                recorder.save_best(step, val_loss)
            if step % options.log_every == 0 or val_loss is not None:
                recorder.line(step, val_loss, watch.shares())
            if val_loss is not None or shared.stop[0]:
                recorder.save_last(step)
            watch.lap("checkpoint")
    return step


def run_worker(*arguments: object) -> None:
    """Process entry: signals reach the whole terminal group, but only the first process decides to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        work(*arguments)
    except threading.BrokenBarrierError:
        sys.exit(1)  # another process has failed and reports why


def train(
    geometry: Geometry,
    options: Options,
    data: Data,
    out: Path,
    resume: bool = False,
    minutes: float = math.inf,
) -> int:
    """Trains until the end, a signal or `minutes` have passed; returns the number of steps done."""
    if options.rows_per_step % options.processes:
        rows, n = options.rows_per_step, options.processes
        raise ValueError(f"{rows} rows a step do not divide by {n} processes")
    if not resume and (out / "last.pt").exists():
        raise FileExistsError(f"{out}/last.pt exists: resume it or choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads_per_process)
    layout = Layout(geometry)
    shared = Shared(layout.size, options.processes)
    recorder = Recorder(out, geometry, options, layout, shared)
    if resume:
        first_step = recorder.resume()
    else:
        first_step = 0
        for name, value in model.init_parameters(geometry, options.seed).items():
            layout.views(shared.latent)[name].copy_(value)
    recorder.write_log()
    print(
        f"{layout.size:,} parameters, {layout.matrix_size:,} of them at 1 bit; "
        f"steps {first_step} to {options.total_steps}",
        flush=True,
    )

    stopped = threading.Event()
    previous = {s: signal.signal(s, lambda *_: stopped.set()) for s in (signal.SIGINT, signal.SIGTERM)}
    deadline = time.monotonic() + 60 * minutes
    workers = [
        mp.get_context("spawn").Process(
            target=run_worker, daemon=True, args=(rank, geometry, options, data, shared, first_step)
        )
        for rank in range(1, options.processes)
    ]
    for worker in workers:
        worker.start()
    # A worker that dies would leave the others at the barrier.
    watcher = threading.Thread(target=abort_on_failure, args=(workers, shared.barrier))
    watcher.start()
    try:
        return work(
            0,
            geometry,
            options,
            data,
            shared,
            first_step,
            recorder,
            lambda: stopped.is_set() or time.monotonic() > deadline,
        )
    except threading.BrokenBarrierError:
        raise RuntimeError("a worker process has died or hangs") from None
    except BaseException:
        shared.barrier.abort()
        raise
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()
        watcher.join()
        for number, handler in previous.items():
            signal.signal(number, handler)


def abort_on_failure(workers: list, barrier: Barrier) -> None:
    """Breaks the barrier as soon as a worker ends with an error."""
    alive = list(workers)
    while alive:
        connection.wait([worker.sentinel for worker in alive])
        if any(worker.exitcode for worker in alive):
            barrier.abort()
        alive = [worker for worker in alive if worker.exitcode is None]


def main() -> None:
    build = Path(__file__).parent / "build"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=build / "run", help="folder of the log and checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from last.pt")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop then, with a checkpoint")
    parser.add_argument("--facts", type=Path, default=build / "facts.json")
    parser.add_argument("--tokenizer", type=Path, default=build / "tokenizer.json")
    parser.add_argument(
        "--geometry", type=json.loads, default={}, help='fields to change, as JSON: {"hidden": 384}'
    )
    for field in dataclasses.fields(Options):
        parser.add_argument("--" + field.name.replace("_", "-"), type=field.type, default=field.default)
    arguments = vars(parser.parse_args())

    options = Options(**{field.name: arguments[field.name] for field in dataclasses.fields(Options)})
    facts = json.loads(arguments["facts"].read_text())
    data = ChatData(facts, tokenizer.load(arguments["tokenizer"]), options.seed)
    geometry = dataclasses.replace(GEOMETRY, **arguments["geometry"])
    done = train(geometry, options, data, arguments["out"], arguments["resume"], arguments["minutes"])
    if done < options.total_steps:
        sys.exit(f"stopped after step {done} of {options.total_steps}; --resume goes on")


if __name__ == "__main__":
    main()
