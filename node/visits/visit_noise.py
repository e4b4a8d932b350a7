"""Noise on what visitors leave: their host clips each difference, adds noise to a sum of a set number of them, and has
written down whose they are before. The host itself sees each of them as it is."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from node.config.visits_section import VisitsConfig
from node.visits.refusals import Refusal
from node.visits.visitor_ledger import VisitorLedger
from p2ptrain import privacy
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.visits.noised_mean import noised_mean
from p2ptrain.visits.visitor_mean import VisitorDifference

T = TypeVar("T")


class VisitNoise:
    """The noise of one host's visits. `source`: the operating system's randomness."""

    def __init__(self, config: VisitsConfig, ledger: VisitorLedger, source: SecretRandom | None = None) -> None:
        assert config.noise is not None, "config.noisy"
        self.ledger = ledger
        self.clip = config.clip
        """Largest norm of a difference, and so of their mean without its noise."""
        self._noise = config.noise
        self._privatizer = privacy.get("update", noise=config.noise, clip=config.clip)
        self._source = SecretRandom() if source is None else source

    def refusal_of(self, key: bytes) -> Refusal | None:
        """Return why a difference by this key is not taken; None: it is."""
        if not self.ledger.allows(key):
            return Refusal.SPENT
        return Refusal.CLOSED if self.ledger.is_full and not self.ledger.knows(key) else None

    def chosen(self, ready: Sequence[T], count: int) -> list[T]:
        """Return `count` of those that are there, drawn in secret: who comes first is not before the others. No epsilon
        is less for it. Fewer than `count` wait."""
        if len(ready) < count:
            return []
        drawn = np.argsort(self._source.uniforms(len(ready)))[:count]
        return [ready[nth] for nth in sorted(drawn.tolist())]

    def mean(
        self, keys: Sequence[bytes], differences: Sequence[VisitorDifference], weights: Sequence[float], numel: int
    ) -> torch.Tensor:
        """Return the noised mean (numel,) of these keys' differences, whose sum is on the ledger before it is made.
        Raises RunError where it cannot be written: nothing was made."""
        self.ledger.charge(keys)
        return noised_mean(differences, weights, numel=numel, privatizer=self._privatizer, source=self._source)

    def describe(self, key: bytes) -> Mapping[str, Any]:
        """Return what a visitor is told: the noise, and what this key has spent; no spending for an empty key."""
        told = {
            "noise": self._noise,
            "clip": self.clip,
            "delta": self.ledger.delta,
            "epsilon": self.ledger.budget,
        }
        return {**told, "spent": self.ledger.epsilon_for(key)} if key else told
