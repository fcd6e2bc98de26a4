"""Draws the curves of a run: python plot.py build/run/log.csv curves.png"""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def read(path: Path, x: str, y: str) -> tuple[list[float], list[float]]:
    """The columns x and y of a CSV file, without the rows where one of them is empty."""
    with open(path, newline="") as file:
        points = [(float(row[x]), float(row[y])) for row in csv.DictReader(file) if row[x] and row[y]]
    return [a for a, _ in points], [b for _, b in points]


def plot(log: Path, image: Path) -> None:
    """Losses on a log axis, rate and lambda below, all against tokens."""
    figure, (top, bottom) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=[3, 1], layout="constrained"
    )
    top.plot(*read(log, "tokens", "loss"), lw=1, label="training (mixed weights)")
    top.plot(*read(log, "tokens", "val_loss"), "o-", ms=3, lw=1, label="validation (1-bit weights)")
    top.set(yscale="log", ylabel="answer loss, nats per token")
    top.grid(alpha=0.3, which="both")
    top.legend()

    bottom.plot(*read(log, "tokens", "lr"), color="tab:red", lw=1)
    bottom.set(xlabel="tokens", ylabel="learning rate", ylim=(0, None))
    right = bottom.twinx()
    right.plot(*read(log, "tokens", "lambda"), color="tab:gray", lw=1)
    right.set(ylabel="lambda", ylim=(0, 1.05))
    figure.savefig(image, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    plot(arguments.log, arguments.image)
