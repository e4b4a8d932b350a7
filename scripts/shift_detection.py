"""How soon a shift of a node's own data is noticed, and how often one is where there is none: simulated shards.

    python scripts/shift_detection.py                     # 20 seeds of each shift, 100 quiet runs: minutes
    python scripts/shift_detection.py --seeds 2 --quiet 4

A node trains on its shard of the digits until its model is kept, and looks at its data after every round. The kept
model does not learn, so that nothing of what it sees depends on the training that would go on. At round 60 the data
change. The same looks are given to each detector. One JSON line a detector and shift: the delay in rounds (0: noticed
at the end of the first round with other data), how many runs noticed it, and how many alarmed before; of quiet runs how
many alarmed at all.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch

from node.config.shift_section import ShiftConfig
from node.shift import SHIFT_DETECTORS
from node.shift.watch import ShiftWatch
from node.system.script_end import ended_in_a_line
from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.digits import CLASSES, Digits
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.data_looks import DataLook

SETTINGS: Final = ShiftConfig()
STEPS: Final = 5
SHARDS: Final = 8
AT_ROUND: Final = 60
ROUNDS: Final = 110
QUIET_ROUNDS: Final = 120
NOISE: Final = 0.15
"""Standard deviation of the noise, of a pixel between 0 and 1."""

Change = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def _turned(images: torch.Tensor, labels: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return images.reshape(-1, 8, 8).rot90(1, (1, 2)).reshape(-1, 64), labels


def _relabelled(images: torch.Tensor, labels: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return images, (labels + 1) % CLASSES


def _noisy(images: torch.Tensor, labels: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(step))
    return (images + NOISE * noise).clamp(0, 1), labels


def _fewer_classes(images: torch.Tensor, labels: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.nonzero(labels < CLASSES // 2)[:, 0]
    again = kept[torch.arange(len(labels)) % len(kept)]
    return images[again], labels[again]


CHANGES: Final[dict[str, Change]] = {
    "images turned by 90 degrees": _turned,
    "each label is the next one": _relabelled,
    "noise in the images": _noisy,
    "only five of ten classes": _fewer_classes,
}


class ChangingDigits(Digits):
    """The digits, which may be changed."""

    change: Change | None = None

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Return a batch as the digits' own, or changed."""
        images, labels = super().train_batch(step, seed=seed, shard=shard, size=size)
        return (images, labels) if self.change is None else self.change(images, labels, step)


class Looks:
    """The looks of a node's runs with one seed: they differ from the change on alone."""

    def __init__(self, seed: int) -> None:
        """Train until the model is kept."""
        config = TrainConfig(inner_steps=STEPS, batch_size=16, threads=1, warmup_steps=5, seed=seed)
        self._trainer = Trainer(ChangingDigits(), config, Shard(index=seed % SHARDS, count=SHARDS))
        for _ in range((SETTINGS.settle + 1) * STEPS):
            self._trainer.step()
        self._kept_d = self._trainer.vector()
        self._quiet: list[DataLook] = []

    def run(self, change: Change | None, rounds: int) -> list[DataLook]:
        """Return the looks after each round, from the one on in which the model is kept."""
        before = rounds if change is None else AT_ROUND
        first = SETTINGS.settle + len(self._quiet)
        self._quiet += [self._look(None, round_) for round_ in range(first, before)]
        same = self._quiet[: before - SETTINGS.settle]
        return [*same, *(self._look(change, round_) for round_ in range(before, rounds))]

    def _look(self, change: Change | None, round_: int) -> DataLook:
        task = self._trainer.task
        assert isinstance(task, ChangingDigits)
        task.change = change
        return self._trainer.look_at_own(self._kept_d, (round_ + 1) * STEPS - 1, examples=SETTINGS.examples)


def first_alarm(detector: str, signals: tuple[str, ...], run: list[DataLook]) -> int | None:
    """Return the round in which it alarms first; None: never."""
    watch = ShiftWatch(lambda: SHIFT_DETECTORS.get(detector), signals, settle=0)
    for number, look in enumerate(run):
        watch.settled(lambda: torch.empty(0))
        if watch.add(look, None):
            return number + SETTINGS.settle
    return None


@dataclass(frozen=True)
class Row:
    """What a detector did in the runs of one shift."""

    detector: str
    signals: str
    shift: str
    alarms: list[int | None]

    def line(self) -> dict[str, object]:
        """Return it as JSON values."""
        named = {"detector": self.detector, "signals": self.signals, "shift": self.shift, "runs": len(self.alarms)}
        if self.shift == "none":
            return {**named, "false_alarms": sum(it is not None for it in self.alarms), "rounds": QUIET_ROUNDS}
        delays = sorted(it - AT_ROUND for it in self.alarms if it is not None and it >= AT_ROUND)
        early = sum(it is not None and it < AT_ROUND for it in self.alarms)
        spread = {"median": median(delays), "worst": delays[-1]} if delays else {"median": None, "worst": None}
        return {**named, "noticed": len(delays), "early": early, **spread}


def rows(seeds: int, quiet: int, detectors: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each shift and detector."""
    nodes = [Looks(seed) for seed in range(max(seeds, quiet))]
    for shift, change in [*CHANGES.items(), ("none", None)]:
        count, rounds = (seeds, ROUNDS) if change else (quiet, QUIET_ROUNDS)
        runs = [node.run(change, rounds) for node in nodes[:count]]
        for detector in detectors:
            for signals in (("loss",), ("moments",), SETTINGS.signals):
                yield Row(detector, "+".join(signals), shift, [first_alarm(detector, signals, run) for run in runs])


def main() -> None:
    """Print a line a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="runs of each shift")
    parser.add_argument("--quiet", type=int, default=100, help="runs without one")
    parser.add_argument("--detectors", nargs="+", choices=SHIFT_DETECTORS.names(), default=SHIFT_DETECTORS.names())
    asked = parser.parse_args()
    if min(asked.seeds, asked.quiet) < 1:
        parser.error("--seeds and --quiet must be 1 at least")
    torch.set_num_threads(1)
    for row in rows(asked.seeds, asked.quiet, asked.detectors):
        print(json.dumps(row.line()), flush=True)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
