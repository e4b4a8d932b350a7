"""Five clinics with unlike patients: `p2ptrain up --config examples/clinics/clinics.toml --nodes 5`.

The data are scikit-learn's: 569 biopsies of breast tumours, 30 numbers each, benign or malignant (Wisconsin Diagnostic
Breast Cancer, packed with the library). They are dealt by the texture of the nuclei, which says a good deal about the
answer: of the patients of one clinic 9% have a malignant tumour, and of another 65%. The clinics are unequal, too.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from p2ptrain.tasks.base import OWN_SHARD, Batch, Shard, TaskError

SHARES: Final = (0.30, 0.10, 0.24, 0.12, 0.24)
"""Of the patients, by clinic, from the least texture to the most."""
TEXTURE: Final = 1
HELD_OUT_EVERY: Final = 5
"""Every fifth patient is nobody's to train on: a clinic's own test split, and all of them together the swarm's."""
ORDER_SEED: Final = 569
HIDDEN: Final = 16

# Ranges that were published with the data. A clinic must not take them from its own patients, nor may the swarm:
# what is shared of them would be in no epsilon.
LEAST: Final = (
    *(6.981, 9.71, 43.79, 143.5, 0.053, 0.019, 0.0, 0.0, 0.106, 0.05),  # means of a patient's cells
    *(0.112, 0.36, 0.757, 6.802, 0.002, 0.002, 0.0, 0.0, 0.008, 0.001),  # standard errors
    *(7.93, 12.02, 50.41, 185.2, 0.071, 0.027, 0.0, 0.0, 0.156, 0.055),  # worst cells
)
MOST: Final = (
    *(28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097),
    *(2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03),
    *(36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208),
)

Numbers = npt.NDArray[np.int64]


class Clinics:
    """Benign or malignant, from 30 numbers: a small body, and a head (`head.*`) that a clinic may keep to itself."""

    name = "clinics"
    metric = "nats per patient"
    units: ClassVar[Mapping[str, str]] = {"accuracy": "%", OWN_SHARD: "nats per patient"}
    classes = 2
    input_range = (-2.0, 2.0)

    def __init__(self) -> None:
        self.features_nd, self.labels_n, self.clinics_n = _patients()
        every = np.arange(len(self.labels_n))
        self.held_out = every[every % HELD_OUT_EVERY == 0]
        self.train = every[every % HELD_OUT_EVERY != 0]

    def build_model(self) -> nn.Module:
        """No dropout, which differential privacy could not take example by example, and no BatchNorm."""
        model = nn.Sequential()
        model.add_module("body", nn.Linear(len(LEAST), HIDDEN))
        model.add_module("act", nn.Tanh())
        model.add_module("head", nn.Linear(HIDDEN, 2))
        return model

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        """Patients of the clinic, drawn with replacement. With a privatizer the trainer asks `examples_at` instead."""
        rng = np.random.default_rng([seed, shard.index, step])
        return self._batch(rng.choice(self._of(shard, self.train), size))

    def example_count(self, shard: Shard) -> int:
        """Patients of the clinic that it trains on. Each is one example: epsilon is a patient's."""
        return len(self._of(shard, self.train))

    def examples_at(self, shard: Shard, numbers: Sequence[int]) -> Batch:
        """These patients of the clinic."""
        return self._batch(self._of(shard, self.train)[list(numbers)])

    def eval_batches(self, limit: int) -> list[Batch]:
        """The test splits of all clinics."""
        return [self._batch(self.held_out[:limit])]

    def shard_eval_batches(self, shard: Shard, limit: int) -> list[Batch]:
        """The clinic's own test split."""
        return [self._batch(self._of(shard, self.held_out)[:limit])] if shard.count > 1 else []

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy, in nats per patient."""
        return functional.cross_entropy(model(batch[0]).float(), batch[1])

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Share of the patients that the model is right about."""
        return {"accuracy": 100 * float((model(batch[0]).argmax(1) == batch[1]).float().mean())}

    def tokens(self, batch: Batch) -> int:
        """Patients."""
        return len(batch[1])

    def _of(self, shard: Shard, patients: Numbers) -> Numbers:
        """Those of one clinic; of all, where one node has them all."""
        if shard.count == 1:
            return patients
        if shard.count != len(SHARES):
            raise TaskError(f"there are {len(SHARES)} clinics: take --nodes {len(SHARES)}, or node.shard_count = 1")
        return patients[self.clinics_n[patients] == shard.index]

    def _batch(self, chosen: Numbers) -> Batch:
        return self.features_nd[chosen], self.labels_n[chosen]


def create() -> Clinics:
    """The factory that `task.name = "examples.clinics.task:create"` names."""
    return Clinics()


def _patients() -> tuple[torch.Tensor, torch.Tensor, Numbers]:
    """Features fp32 (n, 30) in about [-2, 2], labels int64 (n,) where 1 is malignant, and clinics (n,), in a fixed
    random order. TaskError where scikit-learn is not installed."""
    spec = importlib.util.find_spec("sklearn")  # the file alone: the library with all of SciPy takes seconds to import
    if spec is None or spec.origin is None:
        raise TaskError("clinics needs scikit-learn, which holds the data: pip install scikit-learn")
    file = Path(spec.origin).with_name("datasets") / "data" / "breast_cancer.csv"
    rows = np.loadtxt(file, delimiter=",", skiprows=1)
    rows = rows[np.random.default_rng(ORDER_SEED).permutation(len(rows))]
    least_d, most_d = np.array(LEAST), np.array(MOST)
    shares = ((rows[:, :-1] - least_d) / (most_d - least_d)).clip(0)
    rank = rows[:, TEXTURE].argsort(kind="stable").argsort()
    ends = np.cumsum(SHARES)[:-1] * len(rows)
    features = 4 * np.sqrt(shares) - 2  # the square root: most of them have long tails
    return torch.from_numpy(features).float(), torch.from_numpy(1 - rows[:, -1]).long(), np.searchsorted(ends, rank)
