"""How often each visitor was counted: the ledger of a host that hides in noise what its visitors leave.

It is `visitors.jsonl` of the node's folder (node/privacy/chained_log.py), apart from the node's own ledger:

    noise      standard deviation of the noise over the clipping norm
    keys       the keys, in hex, whose differences are in the sum

A visitor pays for the sums that it is in, and for no others: so nobody spends another's budget. Visitors come when they
like, so nothing is counted less for being drawn. A Gaussian sum with noise z spends alpha / (2 z^2) at the order alpha,
so what a key has spent is one number: the sum of 1 / z^2, which is one sum with the noise (1 / that)^(1/2).

The head of a long file has these: `by_key`, `by_all` and `least_noise`.

Nobody knows whose keys a line had that was cut: it is charged to every key, those that will come included.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gossip.core.identity import KEY_BYTES
from node.privacy.budget import ROUNDING
from node.privacy.chained_log import ChainContents, ChainedLog, Fields, LedgerMark, What, check_mark, read_lines
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release

MOST_KEYS: Final = 1 << 20
"""Keys that a ledger knows. What is spent must never be forgotten, and keys cost nothing: 180 MB of disk at most, 160
MB of memory, and 600 MB while a head is read or written. Then new keys are refused. With the default 64 a round, liars
need 16,384 rounds for it. Chosen."""


@dataclass
class VisitorsSpent(ChainContents):
    """What a visitors' ledger holds."""

    by_key: dict[bytes, float] = field(default_factory=dict)
    """The sum of 1 / z^2 over the sums that a key is in."""
    by_all: float = 0.0
    """The same of lines that were cut, for every key."""
    least_noise: float = math.inf
    """Of an entry: what costs most."""

    def take(self, fields: Fields) -> None:
        """Count an entry."""
        noise, keys = float(fields["noise"]), [bytes.fromhex(key) for key in fields["keys"]]
        if not 0 < noise < math.inf or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError("no entry of a visitors' ledger")
        self.least_noise = min(self.least_noise, noise)
        if fields["what"] == "torn":
            self.by_all += noise**-2
        for key in keys:
            self.by_key[key] = self.by_key.get(key, 0.0) + noise**-2

    def total(self) -> dict[str, Any]:
        """Return what each key has spent, what all have, and the least noise."""
        by_key = {key.hex(): spent for key, spent in self.by_key.items()}
        return {"by_key": by_key, "by_all": self.by_all, "least_noise": self.least_noise}

    def take_total(self, fields: Fields) -> None:
        """Begin with what `total` returned."""
        self.by_all, self.least_noise = float(fields["by_all"]), float(fields["least_noise"])
        self.by_key.update({bytes.fromhex(key): float(spent) for key, spent in fields["by_key"].items()})

    def owed(self, noise: float = math.inf) -> float:
        """Return what lines cost that cannot be read and are not charged yet, where sums have this noise now."""
        return self.torn * min(noise, self.least_noise) ** -2

    def of(self, key: bytes) -> float:
        """Return what a key has spent, without what is owed."""
        return self.by_key.get(key, 0.0) + self.by_all

    def most(self) -> float:
        """Return what the key has spent that has spent most, or would have that comes next."""
        return max(self.by_key.values(), default=0.0) + self.by_all


class VisitorLedger:
    """A visitors' ledger that this process alone writes. The thread that closes rounds charges; the rest may be read
    from any thread."""

    def __init__(
        self,
        path: Path,
        *,
        noise: float,
        delta: float,
        epsilon: float | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file, or make it. `epsilon`: what each visitor may spend at `delta`; None: as much as it takes.
        Raises RunError where another process has it, or it is damaged."""
        self.path, self.delta, self.budget = path, delta, epsilon
        self._noise = noise
        self.contents = VisitorsSpent()
        self._log = ChainedLog(path, self.contents, clock=clock, without="no visitor may be counted")
        self.epsilon = epsilon_of_sum(self.contents.most() + self.contents.owed(noise), delta)
        """What the visitor has spent that has spent most."""

    def allows(self, key: bytes) -> bool:
        """Return whether this key may be in one sum more."""
        return self.budget is None or self.epsilon_for(key, more=1) <= self.budget * (1 + ROUNDING)

    @property
    def is_full(self) -> bool:
        """Return whether no key is taken that is not known."""
        return len(self.contents.by_key) >= MOST_KEYS

    def knows(self, key: bytes) -> bool:
        """Return whether a key was in a sum."""
        return key in self.contents.by_key

    def epsilon_for(self, key: bytes, *, more: int = 0) -> float:
        """Return what a key has spent, or will have with so many sums more."""
        spent = self.contents.of(key) + self.contents.owed(self._noise)
        return epsilon_of_sum(spent + more * self._noise**-2, self.delta)

    def charge(self, keys: Sequence[bytes]) -> None:
        """Write that a sum is about to be made of what these keys have left. When it returns, that is on the disk.
        Raises RunError where it is not: then the sum may not be made. ValueError for a key that is there twice."""
        if len(set(keys)) != len(keys):
            raise ValueError("a key is in a sum once")
        torn: Fields = {"noise": min(self._noise, self.contents.least_noise), "keys": []}
        released: Fields = {"noise": self._noise, "keys": [key.hex() for key in keys]}
        whats: list[tuple[Fields, What]] = [*[(torn, "torn")] * self.contents.torn, (released, "released")]  # type: ignore[list-item]
        self._log.append(whats)
        self.epsilon = epsilon_of_sum(self.contents.most(), self.delta)

    @property
    def mark(self) -> LedgerMark:
        """Return the newest entry, for a checkpoint."""
        return self.contents.mark

    def spent_by_delta(self) -> dict[str, float]:
        """Return what the visitor has spent that has spent most, by delta in words, for a metric."""
        return {f"{self.delta:g}": self.epsilon}

    def budget_by_delta(self) -> dict[str, float]:
        """Return what each may spend, in the same way; nothing without a budget."""
        return {} if self.budget is None else {f"{self.delta:g}": self.budget}

    def check(self, mark: LedgerMark) -> None:
        """Raise RunError where the ledger does not have the entry that a checkpoint names."""
        check_mark(self.contents, mark, self.path)

    def close(self) -> None:
        """Let go of the file."""
        self._log.close()


def read_visitor_ledger(path: Path) -> VisitorsSpent:
    """Return what a visitors' ledger holds; nothing where there is none. Raises RunError where it is damaged."""
    with suppress(FileNotFoundError), path.open("rb") as lines:
        return read_lines(lines, path, VisitorsSpent())
    return VisitorsSpent()


@lru_cache(maxsize=4096)
def epsilon_of_sum(inverse_squares: float, delta: float) -> float:
    """Return what sums of Gaussian noise spend together, from the sum of their 1 / z^2. It takes half a millisecond,
    and every request with a key asks: keys that are in equally many sums have one answer."""
    if not inverse_squares:
        return 0.0
    return epsilon_of([Release(mechanism="visitors", noise=inverse_squares**-0.5, rate=1.0, count=1)], delta)
