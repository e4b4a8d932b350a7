"""Between regions: what a region publishes of its model, and how it moves by what the others publish.

    V_R    the trimmed mean of what 2 f + 1 members of region R, or more, say of its model after a round
    shift  Agg({0} and {R s_B (V_B - V_A)}),  s_B ~ n_B (1 + lag of B)^-exponent, the s of all regions having sum 1

over the regions B beside our own, A, of which a newer model has come. The lag is behind the (higher) median of their
rounds, in `region_every` rounds, and bounded: a region that has just begun goes most of the way to the others, and they
move little. R regions are in it, with n_B members in B, so that the plain mean is that of all members: hierarchical
averaging, as Local SGD has it with two levels (2007.13819). All members of a region hear the same models and move by
the same shift, so that a region stays together, and its own robust mean, which would take few for liars, has nothing to
cut. What is published is a region's model and no difference to one before: who hears it needs nothing else, and who
comes or was away misses nothing.

With `region_momentum` all of them go beyond that mean, by what it has moved by lately (regional_momentum.py).

Regions that have trained for long without each other have no good mean: 200 rounds apart its loss was 8% above that of
either. With `region_rejoin` = medoid they take the mean of the models around the medoid then, which is the same at all.
Of regions with unlike data the medoid has seen one's alone: there the mean of all is better (decision 0113).

At both levels the rule is trimmed: f of a region's publishers, and of the regions one, once there are four: then one
may be lost and the others still leave one out. A region of liars is one vote. With fewer regions it is held by nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median_high
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from p2ptrain import aggregate, compress
from p2ptrain.aggregate.base import Columns, Rows, by_columns
from p2ptrain.compress.base import PayloadError
from p2ptrain.compress.blocks import Floats
from p2ptrain.compress.by_parts import encode_from
from p2ptrain.sync.base import Message, RoundResult, SyncStrategy
from p2ptrain.sync.decoding import Decoder
from p2ptrain.sync.mixing import segments
from p2ptrain.sync.regional_momentum import RegionalMomentum
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import Vector, check_model, values_of

REGIONS_FOR_A_LIAR = 4
"""Regions, our own among them, from which on one of them may lie. Three would do until one is lost. Chosen."""

MOST_LARGER = 4
"""Times as large as the median that a region may be and count in full: what a region says of its size is a claim, and a
large one would leave the honest regions no weight. Chosen."""

MOST_LAG = 8
"""Periods that a region may be behind and weigh less for it: a third, at the usual exponent. What a region says of its
round is a claim as well, and one that is far ahead must not take the weight of the others. Chosen."""


@runtime_checkable
class RegionalStrategy(SyncStrategy, Protocol):
    """A strategy whose model can be published for other regions, and moved by theirs."""

    def regional_model(self, round: int) -> torch.Tensor:
        """Return the model after a closed round (d,), as the region has it: to be read at once."""

    def move_(self, result: RoundResult, shift_d: torch.Tensor) -> RoundResult:
        """Move the anchor, and what the newest round does to the model, by `shift_d` (d,), in place."""

    def begin_at(self, shift_d: torch.Tensor) -> torch.Tensor:
        """Move by `shift_d` (d,) from the initial model and begin there. Return the model (d,), valid until the next
        round is closed."""


@dataclass(frozen=True, kw_only=True)
class RegionModels:
    """What came of a region. `needed`: how many models make it count, 2 f + 1 with the f that its members allow;
    `members`: how many it has; `round`: after which round its model is; `name`: orders regions that are else alike."""

    models: Sequence[Message]
    needed: int
    members: int
    round: int = 0
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class RegionalShift:
    """How a region moves. `shift_d` (d,); None where too few regions have come for what is promised. `regions`: how
    many are in the mean, our own among them; `lying`: how many of them may lie. `refused`: for each region, ours first,
    why some of its models could not be read, by their places."""

    shift_d: torch.Tensor | None
    regions: int
    lying: int
    refused: Sequence[dict[int, str]] = field(default_factory=list)


class RegionalAveraging:
    """Encodes and averages regions' models. Memory: the initial model, unless it lies in a file; with momentum a vector
    more; at work a vector for each of a region's models, and one for each region."""

    def __init__(self, config: SyncConfig, genesis: Vector) -> None:
        """`genesis`: the initial model fp32 (d,), which does not change."""
        self.every = config.region_every
        """Rounds from one averaging of regions to the next."""
        self.lag = max(1, config.region_every // 4)
        """Rounds from when models are published to when regions move by them: all members of a region in the same
        round, however long the models were on the way."""
        self._genesis = genesis
        self._f = config.f
        self._exponent = config.staleness_exponent
        self._rejoin = config.region_rejoin
        self._momentum = RegionalMomentum(config.region_momentum, config.region_every)
        self._codec = compress.get(config.region_compressor)
        self._decoder = Decoder(genesis.numel())

    def publishes_after(self, round: int, rounds: int) -> bool:
        """Return whether a region publishes its model after this round, of so many."""
        return self.moves_after(round + self.lag, rounds)

    def moves_after(self, round: int, rounds: int) -> bool:
        """Return whether regions move after this round, of so many, by what has come: also after the last one. All but
        that do not depend on how many rounds there are, of which members may think differently."""
        return (round + 1) % self.every == 0 or round == rounds - 1

    def encode(self, model_d: torch.Tensor) -> Message:
        """Return what is published of a model (d,). ValueError where it is not finite."""
        check_model(model_d)
        values_d = model_d.numpy()

        def read(at: slice, out: Floats) -> None:
            np.subtract(values_d[at], values_of(self._genesis, at), out=out)

        return Message(self._codec.name, encode_from(self._codec, read, self._genesis.numel()))

    def shift(
        self, own: RegionModels, others: Sequence[RegionModels], *, beside: int, apart: bool = False
    ) -> RegionalShift:
        """Return how our region moves. Call it once a turn: with momentum the next one begins where this one leads.
        `others`: the regions of which a newer model has come, of `beside` that are beside ours. `apart`: one of them
        has trained for long without us, or we without it."""
        refused: list[dict[int, str]] = []
        own_d = self._mean(own, refused)
        here = self._means(others, refused)
        lying = self._lying(beside + 1)
        members = len(here) + 1
        if own_d is None or not here or members < 2 * lying + 1:
            return RegionalShift(
                shift_d=None, regions=members if own_d is not None else 0, lying=lying, refused=refused
            )
        if apart and self._rejoin == "medoid":
            all_d = [own_d, *(mean_d for _, mean_d in here)]
            chosen = self._meeting([own, *(region for region, _ in here)], all_d, lying)
            shift_d = self._towards(own_d, [all_d[place] for place in chosen], lying)
            return RegionalShift(shift_d=shift_d, regions=len(chosen), lying=lying, refused=refused)
        shares = self._shares([own, *(region for region, _ in here)])
        weights = [members * share for share in shares[1:]]
        vectors = [mean_d for _, mean_d in here]

        def read(at: slice) -> torch.Tensor:
            difference_nc = torch.zeros(members, at.stop - at.start, dtype=torch.float32)
            for row_c, mean_d, weight in zip(difference_nc[1:], vectors, weights, strict=True):
                torch.sub(mean_d[at], own_d[at], out=row_c).mul_(weight)
            return difference_nc

        shift_d = self._reduced(members, read, lying)
        if apart:
            self._momentum.forget()
        self._momentum.go_beyond_(shift_d, own_d, own.round)
        return RegionalShift(shift_d=shift_d, regions=members, lying=lying, refused=refused)

    def opening(self, others: Sequence[RegionModels], *, beside: int) -> RegionalShift:
        """Return how far from the initial model a region begins that comes to `others`, of `beside` that are beside it:
        at their mean, or at what is between them where one may lie."""
        refused: list[dict[int, str]] = []
        here = self._means(others, refused)
        lying = self._lying(beside + 1)
        if len(here) < self.fewest_to_open(beside):
            return RegionalShift(shift_d=None, regions=len(here), lying=lying, refused=refused)
        shares = self._shares([region for region, _ in here]) if lying == 0 else []
        weights_n1 = torch.tensor([[len(here) * share] for share in shares] or 1.0, dtype=torch.float32)

        def read(at: slice) -> torch.Tensor:
            return torch.stack([mean_d[at] for _, mean_d in here]).mul_(weights_n1)

        shift_d = self._reduced(len(here), read, lying)
        return RegionalShift(shift_d=shift_d, regions=len(here), lying=lying, refused=refused)

    def _meeting(self, regions: Sequence[RegionModels], models_d: Sequence[torch.Tensor], lying: int) -> list[int]:
        """The places of the regions whose mean all of them take that have grown apart. Who is behind has no say, unless
        so few are left then that a lie about rounds could be behind it."""
        newest = median_high([region.round for region in regions])
        sizes = _believed([region.members for region in regions])
        there = [place for place, region in enumerate(regions) if newest - region.round < self.every]
        if len(there) < 2 * lying + 1:
            there = list(range(len(regions)))
        there.sort(key=lambda place: (-sizes[place], -regions[place].round, regions[place].name))
        return [there[place] for place in around_medoid([models_d[place] for place in there], lying)]

    def _towards(self, own_d: torch.Tensor, chosen_d: Sequence[torch.Tensor], lying: int) -> torch.Tensor:
        def read(at: slice) -> torch.Tensor:
            return torch.stack([each_d[at] for each_d in chosen_d])

        return self._reduced(len(chosen_d), read, min(lying, (len(chosen_d) - 1) // 2)).sub_(own_d)

    def _means(
        self, regions: Sequence[RegionModels], refused: list[dict[int, str]]
    ) -> list[tuple[RegionModels, torch.Tensor]]:
        """The regions of which enough can be read, each with its mean."""
        means = [(region, self._mean(region, refused)) for region in regions]
        return [(region, mean_d) for region, mean_d in means if mean_d is not None]

    def fewest_to_open(self, beside: int) -> int:
        """Return how many other regions' models a region begins at, where so many are beside it."""
        return 2 * self._lying(beside + 1) + 1

    def _shares(self, regions: Sequence[RegionModels]) -> list[float]:
        """What each region weighs in the mean, which is the same at all of them."""
        sizes = _believed([region.members for region in regions])
        newest = median_high([region.round for region in regions])
        weights = [
            size * (1 + min(MOST_LAG, max(0, newest - region.round) / self.every)) ** -self._exponent
            for size, region in zip(sizes, regions, strict=True)
        ]
        return [weight / sum(weights) for weight in weights]

    def _lying(self, regions: int) -> int:
        """How many of so many regions may lie: none where the user promises that nobody does."""
        return max(0, (regions - REGIONS_FOR_A_LIAR) // 2 + 1) if self._f > 0 else 0

    def _mean(self, region: RegionModels, refused: list[dict[int, str]]) -> torch.Tensor | None:
        """The robust mean of a region's models, as differences to the initial one; None where too few can be read."""
        whys: dict[int, str] = {}
        read_d = []
        for place, message in enumerate(region.models):
            try:
                read_d.append(self._decoded(message))
            except PayloadError as offence:
                whys[place] = str(offence)
        refused.append(whys)
        if len(read_d) < region.needed:
            return None
        if len(read_d) == 1:
            return read_d[0]

        def read(at: slice) -> torch.Tensor:
            return torch.stack([each_d[at] for each_d in read_d])

        return self._reduced(len(read_d), read, (region.needed - 1) // 2)

    def _decoded(self, message: Message) -> torch.Tensor:
        if message.codec != self._codec.name:  # what another one costs to read its sender would choose
            raise PayloadError("unknown_codec", f"{message.codec[:32]!r}, where regions use {self._codec.name}")
        model_d = torch.zeros(self._genesis.numel(), dtype=torch.float32)
        self._decoder.advance_(model_d, message.codec, message.payload)
        return model_d

    def _reduced(self, members: int, read: Columns, f: int) -> torch.Tensor:
        numel = self._genesis.numel()
        mean = by_columns(aggregate.get("trimmed_mean", f=f), Rows(members, numel, read))
        reduced_d = torch.empty(numel, dtype=torch.float32)
        for at in segments(numel):
            reduced_d[at] = mean(at)
        return reduced_d


def around_medoid(models_d: Sequence[torch.Tensor], liars: int) -> list[int]:
    """Return the places of the model that is nearest to the others, `liars` of them left out, and of those around it:
    less than half as far from it as the farthest, so many again left out. Of models that are equally near, the first
    (d each)."""
    distances = [[0.0] * len(models_d) for _ in models_d]
    for (one, one_d), (other, other_d) in combinations(enumerate(models_d), 2):
        distances[one][other] = distances[other][one] = float(torch.dist(one_d, other_d))
    counted = max(2, len(models_d) - liars)  # itself among them
    scores = [sum(sorted(row)[:counted]) for row in distances]
    from_medoid = distances[min(range(len(scores)), key=scores.__getitem__)]
    farthest = sorted(from_medoid)[max(len(from_medoid) - 1 - liars, min(1, len(from_medoid) - 1))]
    return [place for place, distance in enumerate(from_medoid) if distance == 0.0 or 2 * distance < farthest]


def _believed(sizes: Sequence[int]) -> list[int]:
    """Regions' sizes as far as they are believed: each at most MOST_LARGER times the median."""
    most = MOST_LARGER * median_high(sizes)
    return [min(size, most) for size in sizes]
