"""A lower bound on what a privatizer really spends, from one run with canaries, beside what its ledger says.

    python scripts/canary_audit.py                        # epsilon 1, 2, 4 and 8: with noise, and with noise left out
    python scripts/canary_audit.py --epsilons 2 --canaries 400 --seed 1

Auditing with one run (Steinke, Nasr, Jagielski, 2305.08846): each of the canaries is among the training examples with
probability one half. Who sees every noised gradient, and knows the model before each step and all canaries, guesses of
the likeliest ones that they were in, and of the unlikeliest that they were not. More right guesses than epsilon allows
prove that more was spent. Here it is held against the figure that the ledger has. `noiseless` is the same run by a
privatizer that says that it adds noise, and adds none: the audit has to convict it.

A canary is an image of random pixels with a random label. Who guesses knows all other examples as well, and who was in
follows from the sums by least squares. One JSON line for each epsilon and privatizer.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom

from node.config.privacy_section import PrivacyConfig
from node.privacy.budget import PrivacyBudget
from node.privacy.ledger import PrivacyLedger
from node.system.script_end import ended_in_a_line
from p2ptrain.privacy import Privatizer
from p2ptrain.privacy.accounting import noise_for
from p2ptrain.privacy.base import NormalSource
from p2ptrain.privacy.example_level import ExampleLevel
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import CLASSES, PIXELS, Digits, Indices, Pool
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.example_gradients import ExampleGradients, Gradients, norms_of
from p2ptrain.training.private_training import PrivateTraining

DELTA: Final = 1e-4
CLIP: Final = 0.5
STEPS: Final = 20
HONEST: Final = 180
"""Digits that are trained on beside the canaries: an eighth, as in docs/benchmarks.md."""
CONFIDENCE: Final = 0.95

Floats = NDArray[np.float64]
Included = NDArray[np.bool_]


class Noiseless(ExampleLevel):
    """Clips, says that it adds noise, and adds none."""

    def add_noise_(self, sum_d: torch.Tensor, source: NormalSource) -> None:
        """Leave the sum as it is."""


class DigitsWithCanaries(Digits):
    """An eighth of the training digits, and the canaries that are included."""

    def __init__(self, canaries: Pool, included: Included) -> None:
        super().__init__()
        self.train = Pool(
            torch.cat([self.train.images[:HONEST], canaries.images[torch.from_numpy(included)]]),
            torch.cat([self.train.labels[:HONEST], canaries.labels[torch.from_numpy(included)]]),
        )

    def examples(self, shard: Shard) -> Indices:
        """Return all of them."""
        return np.arange(len(self.train.labels))


def main() -> None:
    """Audit each epsilon, with noise and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if not all(each > 0 for each in given.epsilons):
        parser.error("--epsilons must be above 0")
    if given.canaries < 10:
        parser.error("--canaries must be 10 or more")
    torch.set_num_threads(1)
    for epsilon in given.epsilons:
        for kind in (ExampleLevel, Noiseless):
            found = audited(epsilon, kind, given.canaries, given.seed)
            print(json.dumps({"epsilon": epsilon, "privatizer": kind.__name__, **found}), flush=True)


def audited(epsilon: float, kind: type[ExampleLevel], count: int, seed: int) -> dict[str, float]:
    """Return what the ledger says after one run with so many canaries, and what at least was spent."""
    rng = np.random.default_rng(seed)
    canaries = Pool(
        torch.from_numpy(rng.random((count, PIXELS))).float(), torch.from_numpy(rng.integers(0, CLASSES, count))
    )
    included = rng.random(count) < 0.5
    noise = noise_for(epsilon, DELTA, rate=1.0, steps=STEPS)
    with tempfile.TemporaryDirectory() as folder:
        ledger = PrivacyLedger(Path(folder) / "privacy.jsonl")
        try:
            settings = PrivacyConfig(privatizer="example", noise=noise, clip=CLIP, delta=DELTA, epsilon=epsilon)
            budget = PrivacyBudget(settings, ledger)
            scores = attack(kind(noise=noise, clip=CLIP), budget, canaries, included)
        finally:
            ledger.close()
    right, guesses, bound = lower_bound(scores, included)
    return {"ledger": round(budget.epsilon, 3), "at_least": round(bound, 3), "guesses": guesses, "right": right}


def attack(privatizer: Privatizer, budget: PrivacyBudget, canaries: Pool, included: Included) -> Floats:
    """Train, and return how likely each canary was in, (n,): the higher, the likelier."""
    task = DigitsWithCanaries(canaries, included)
    config = TrainConfig(
        device="cpu",
        threads=1,
        warmup_steps=0,
        rounds=1,
        inner_steps=STEPS,
        optimizer="sgd",
        learning_rate=1.0,
        clip_norm=0.0,
    )
    protection = PrivateTraining(privatizer=privatizer, rate=1.0, spend=budget.spend)
    trainer = Trainer(task, config, Shard(index=0, count=1), privacy=protection)
    trainer.ask_ahead(STEPS)
    gradients_of = ExampleGradients(task.loss, trainer.model, trainer.machine)
    honest = (task.train.images[:HONEST], task.train.labels[:HONEST])
    seen = SeenSums(len(included))
    for _ in range(STEPS):
        # All with the model as it is: `gradient` makes the noised one of this step, and moves nothing.
        own_nd = clipped(gradients_of(tuple(canaries)), privatizer)
        known_d = clipped(gradients_of(honest), privatizer).sum(0)
        _, noised_d = trainer.gradient()
        seen.add(own_nd, noised_d.double() * len(task.train.labels) - known_d)
        trainer.apply_gradient(noised_d)
    return seen.scores()


class SeenSums:
    """Noised sums of the canaries that are in, step by step: a linear model of who they are, with normal noise."""

    def __init__(self, count: int) -> None:
        self._products_nn = torch.zeros(count, count, dtype=torch.float64)
        self._seen_n = torch.zeros(count, dtype=torch.float64)
        self._variances: list[float] = []

    def add(self, own_nd: torch.Tensor, sum_d: torch.Tensor) -> None:
        """Take the sum (d,) of a step in which the canaries had these clipped gradients (n, d)."""
        products_nn, off_d = own_nd @ own_nd.T, sum_d - own_nd.mean(0) * (len(own_nd) / 2)
        seen_n = own_nd @ off_d
        count, width = own_nd.shape
        best_n = torch.linalg.solve(products_nn + 1e-9 * products_nn.trace() * torch.eye(count), seen_n)
        self._variances.append(max(0.0, float(off_d @ off_d - seen_n @ best_n)) / (width - count))
        self._products_nn += products_nn
        self._seen_n += seen_n

    def scores(self) -> Floats:
        """Return the mean of who was in, less one half, given all sums: (n,). The noise is what was found beside the
        canaries, whatever the privatizer says."""
        count = len(self._seen_n)
        least = 1e-9 * float(self._products_nn.trace())
        spread = 4 * float(np.mean(self._variances)) + least  # over the variance of who is in, a quarter
        return np.asarray(torch.linalg.solve(self._products_nn + spread * torch.eye(count), self._seen_n).numpy())


def clipped(gradients: Gradients, privatizer: Privatizer) -> torch.Tensor:
    """Return the clipped gradients, fp64 (n, d)."""
    factors_n = privatizer.factors(norms_of(gradients))
    return torch.cat([it.flatten(1).double() for it in gradients.values()], dim=1) * factors_n[:, None]


def lower_bound(scores: Floats, included: Included) -> tuple[int, int, float]:
    """Return right guesses, all guesses, and the largest epsilon that so many right ones disprove. The number of
    guesses is chosen beforehand, and not by what they find: a fifth at either end."""
    order, each = np.argsort(scores), max(1, len(scores) // 5)
    right = int(included[order[-each:]].sum() + (~included[order[:each]]).sum())
    guesses, low, high = 2 * each, 0.0, 50.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        is_disproved = _chance(len(scores), guesses, right, middle) < 1 - CONFIDENCE
        low, high = (middle, high) if is_disproved else (low, middle)
    return right, guesses, low


def _chance(canaries: int, guesses: int, right: int, epsilon: float) -> float:
    """Return the most likely that so many guesses or more are right under (epsilon, DELTA), by 2305.08846, theorem 5.2
    and appendix D."""
    each = 1 / (1 + np.exp(-epsilon))
    beyond = float(binom.sf(right - 1, guesses, each))
    fewer = np.cumsum(binom.pmf(right - np.arange(1, right + 1), guesses, each)) if right else np.zeros(1)
    steepest = float(np.max(fewer / np.arange(1, len(fewer) + 1)))
    return min(1.0, beyond + steepest * DELTA * 2 * canaries)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
