"""Secure averaging: of a group's differences to a common anchor nobody, members included, sees more than the sum.

    pack       q = fixed_point(theta_i - phi + e_i), of b bits, and a share of phi modulo 2^width (fixed_point.py)
    ...        the network sums the q of each group under masks (Bonawitz et al., 2017; gossip/secure_aggregation)
    finish     phi <- OuterStep(phi, phi + Agg over the groups of the mean over each group's survivors)
               e_i <- theta_i - phi + e_i - decode(q_i);  the model becomes phi

As in `allreduce`, every member begins a round at one anchor, and ends it there. What is otherwise: values are whole
numbers, as masks cancel in those alone, so that no compressor but `none` goes with it. What was cut to the range, or
rounded, is told in a later round (e). What newcomers are given is the anchor, which is made of sums; the own model is
in no message.

**Groups.** n members are cut into groups of `group` to 2 group - 1 members, others in every round, drawn from the
initial model's digest and the round's number (group_cuts.py). Fewer than `group` members exchange nothing: that number
is a promise of privacy, and holds in every round. Who is with whom is public, and can be foreseen, by liars too. With
`draw = "names"` a member is drawn by its name, which it may have chosen to land with its accomplices; with "grants" by
what an admin signed (gossip/membership/placement.py), which it may not. With `cut = "even"` there are floor(n / group)
groups, and a liar that some members do not see has them find other groups all over; with "bisection" fewer groups, of
which it spoils its own.

**Liars.** Nobody sees what a member adds, so it may set its group's mean to anything within the range R, and to
nothing beyond. The robust rule runs over the means of the groups: with f liars, each in another group at the worst,
(2f + 1) groups are needed, hence n >= (2f + 1) group, or with bisection n > 2f (2 group - 1). With fewer means in a
round nothing moves. All members read the means of all groups; each counts when as many of its members as open a sum
have signed the same one.

**Noise.** With `sum_noise` each difference is clipped to the norm `sum_clip`, and members share out discrete Gaussian
noise: a sum hides each member's whole move (p2ptrain/privacy/noise_shares.py). What was clipped is then lost, and the
noise is not made up for: e holds what was in no sum, and nothing else.

**Apart and together.** Where a round did not open, or not for this member, own values and own anchor stay, and all that
was learned is told in the next one. Anchors that came apart so are brought together as in `allreduce`: in `refresh`
rounds all of the anchor has travelled within the sums, and each member goes by what the mean of its group's is off its
own. It is read modulo 2^width, so anchors that are alike add exactly nothing, and a lie moves it by no more than one
about differences. Guarantee: with one group, the mean and averaging, phi + the mean of the survivors' differences to
within one step 2R / (2^b - 1). Cost: the anchor, e, and the encoded differences; (1 + 1 / refresh) (b + ceil(log2 n))
bits a parameter and copy.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Final, Protocol, runtime_checkable

import numpy as np
import torch

from p2ptrain import aggregate
from p2ptrain.aggregate.base import Aggregator, Rows, by_columns
from p2ptrain.outer import BySlices
from p2ptrain.privacy.discrete_gaussian import RandomBytes
from p2ptrain.privacy.noise_shares import NoiseShares
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.sync.allreduce import OUTERS
from p2ptrain.sync.base import RoundResult, SyncStrategy
from p2ptrain.sync.checks import check_no_gamma, check_reducing
from p2ptrain.sync.encoder import FragmentSchedule, TrackedEncoder
from p2ptrain.sync.fixed_point import FixedPoint, UniformSource, Words_d, check_fixed_point, width_of
from p2ptrain.sync.group_allreduce import LARGEST_GROUP
from p2ptrain.sync.group_cuts import CUTS
from p2ptrain.sync.group_sum import GroupSum, from_bytes, size_of, to_bytes
from p2ptrain.sync.mixing import segments
from p2ptrain.sync.model_averaging import AveragingParts, ModelAveraging
from p2ptrain.sync.noised_fixed_point import NoisedFixedPoint
from p2ptrain.sync.peer_selection import shared_seed
from p2ptrain.sync.strategy_spec import SECURE, StrategySpec
from p2ptrain.sync.sync_config import SyncConfig
from p2ptrain.sync.vectors import check_model

LEAST_GROUP: Final = 4
"""Of two members each knows the other's value from the sum, and of three two that collude do."""

MOST_PER_GROUP: Final = LARGEST_GROUP // 2
"""The largest `group`: a group has up to twice as many members, less one."""

LEAST_WIDTH: Final = 8
"""Bits of a masked value, at least (gossip.secure_aggregation)."""

NAMES: Final = "names"
GRANTS: Final = "grants"
DRAWS: Final = (NAMES, GRANTS)
EVEN: Final = "even"
"""What members are drawn into groups by."""

NO_PLACEMENTS: Final[Mapping[str, bytes]] = MappingProxyType({})

_RESIDUAL: Final = "residual"


@runtime_checkable
class SecureStrategy(SyncStrategy, Protocol):
    """A strategy whose rounds are secure sums within groups. Calls are for one round, in the order in which they stand
    here."""

    @property
    def draws_by_grant(self) -> bool:
        """Whether `groups` needs placements."""

    def groups(
        self, peers: Collection[str], *, round: int, placements: Mapping[str, bytes] = NO_PLACEMENTS
    ) -> list[list[str]]:
        """Return the groups of this round, of own name and those of the peers that take part, in an order that all who
        know the same peers find alike. None where there are too few for one. `placements`: what members are drawn by,
        where the strategy draws by grants: who has none is in no group."""

    def width(self, members: int) -> int:
        """Return the bits of a masked value in a group of so many."""

    @property
    def owners(self) -> int:
        """Return how many members sum each part of a group's vector."""

    def pack(self, theta_d: torch.Tensor, *, round: int, members: int) -> Words_d:
        """Return what own model adds to the sum of a group of so many, uint32 (values,). The model is not to be changed
        until `finish`. ValueError when it is not finite: own training has diverged."""

    def published(self, total: GroupSum) -> bytes:
        """Return a whole sum as bytes, the same at all who have it. ValueError where some of it is missing."""

    def published_size(self, members: int) -> int:
        """Return how many bytes the sum of a group of so many has."""

    def read(self, payload: bytes, members: Sequence[str]) -> GroupSum:
        """Return the sum that a group published. Raises PayloadError."""

    @property
    def clipped_share(self) -> float:
        """Return the share of the values packed last that were beyond the range, and cut to it."""

    def finish_(self, theta_d: torch.Tensor, sums: Mapping[int, GroupSum], own: int, *, round: int) -> RoundResult:
        """Close the round with the sums of groups, by their place in `groups`; `own` is that of the own group. Where
        there is none, or too few for the rule, own values stay. `theta_d` is given away."""


def method(
    *,
    group: Annotated[
        int, "Least members of a secure group: with fewer nothing is exchanged. Groups have up to twice as many."
    ] = 4,
    clipping_range: Annotated[float, "Largest move of a parameter that is told in a round: more is told later."] = 0.1,
    bits: Annotated[int, "Bits of a value in fixed point, before it is summed."] = 16,
    refresh: Annotated[int, "Rounds in which all of the anchor has travelled as well: a share of it in each."] = 64,
    owners: Annotated[
        int, "Members that sum each part: with 3 a lying one is outvoted, and each reads 3 times as much."
    ] = 1,
    members: Annotated[int, "Members that the run has at least: with f above 0, (2f + 1) group or more."] = 0,
    sum_noise: Annotated[
        float, "Deviation of the noise that honest members of a group add together, over sum_clip. 0: none."
    ] = 0.0,
    sum_clip: Annotated[float, "Largest norm of a member's move that is told in a round, with sum_noise."] = 1.0,
    draw: Annotated[
        str, "What members are drawn into groups by: names, or in a private swarm grants, which nobody can choose."
    ] = NAMES,
    cut: Annotated[
        str, "How members are cut into groups: even, or bisection, where one that some do not see spoils its own."
    ] = EVEN,
) -> StrategySpec:
    """Differences summed under masks, in groups."""
    if not LEAST_GROUP <= group <= MOST_PER_GROUP:
        raise ValueError(
            f"group must be {LEAST_GROUP} to {MOST_PER_GROUP}, not {group}: "
            "of fewer members one learns what another sent, and the network has no groups of more than "
            f"{LARGEST_GROUP}"
        )
    if refresh < 1:
        raise ValueError(f"refresh must be at least 1, not {refresh}")
    if draw not in DRAWS:
        raise ValueError(f"draw must be {' or '.join(DRAWS)}, not {draw}")
    if cut not in CUTS:
        raise ValueError(f"cut must be {' or '.join(CUTS)}, not {cut}")
    if not 1 <= owners <= group:
        raise ValueError(f"owners must be 1 to {group}, the least members of a group, not {owners}")
    check_fixed_point(clipping_range, bits, 2 * group - 1)
    if (width := width_of(bits, group)) < LEAST_WIDTH:
        raise ValueError(
            f"a sum of {group} values of {bits} bits has {width} bits, and a masked value has {LEAST_WIDTH} at least: "
            f"set bits to {bits + LEAST_WIDTH - width} or more"
        )
    settings = SecureSettings(
        group=group,
        clipping_range=clipping_range,
        bits=bits,
        refresh=refresh,
        owners=owners,
        members=members,
        shares=NoiseShares(sum_noise, sum_clip) if sum_noise else None,
        draw=draw,
        cut=cut,
    )
    for size in range(group, 2 * group):
        settings.codec(size)  # it checks that the noise fits
    return StrategySpec(
        name="secure_average",
        models=partial(_build, settings),
        averager=SECURE,
        run_key=partial(_run_key, settings),
        compressor="none",
        aggregator="mean",
        f=0,
        ends_at_anchor=True,
        check=partial(_check, settings),
        vectors=2,
        noise_shares=settings.shares,
    )


def largest_sum_bytes(numel: int, *, group: int, bits: int, refresh: int) -> int:
    """Return the most bytes that a masked vector, or a group's sum, of a model of `numel` parameters has."""
    return size_of(_values_in_a_round(numel, refresh), bits, 2 * group - 1)


@dataclass(frozen=True, kw_only=True)
class SecureSettings:
    """The strategy's options; all members have them alike."""

    group: int
    clipping_range: float
    bits: int
    refresh: int
    owners: int
    members: int
    shares: NoiseShares | None
    """The noise that members share out; None: there is none."""
    draw: str
    """One of `DRAWS`."""
    cut: str
    """One of `CUTS`."""

    def codec(self, members: int) -> FixedPoint:
        """Return the codec of a group of so many members. Fewer than `group` sum nothing: there is no noise in what
        stays here, as that of few would not fit. ValueError where the noise of a group does not."""
        if self.shares is None or members < self.group:
            return FixedPoint(self.clipping_range, self.bits, members)
        return NoisedFixedPoint(self.clipping_range, self.bits, members, self.shares)


def _check(settings: SecureSettings, config: SyncConfig) -> None:
    """ValueError on what differences under masks cannot be summed by, and on too few members for f."""
    check_no_gamma(config)
    if config.compressor != "none":
        raise ValueError(
            f"{config.strategy} sums whole numbers under masks, which {config.compressor} cannot be read through: "
            "set compressor to none, and bits to what a value may have"
        )
    check_reducing(config)
    if config.outer not in OUTERS:
        raise ValueError(
            f"{config.strategy} moves parts of the anchor as they come, and {config.outer} counts its rounds: "
            f"use one of {', '.join(OUTERS)}"
        )
    _check_members(settings, config)


def _check_members(settings: SecureSettings, config: SyncConfig) -> None:
    """ValueError where f liars, each in a group of its own, are more than the rule over groups stands; with the table,
    where more members would do."""
    if not config.f:
        return
    cut, rule = CUTS[settings.cut], aggregate.get(config.aggregator, f=config.f, **config.rule_options())
    if not rule.breakdown:  # the default, a mean, would let each of them in
        raise ValueError(
            f"{config.strategy} with f = {config.f}: {config.aggregator} of the groups' means withstands no liar: "
            "set aggregator to nnm+trimmed_mean, or f to 0"
        )
    means = rule.minimum()
    least = cut.fewest(means, settings.group)
    if settings.members < least:
        has = f"the run has {settings.members}" if settings.members else "members says nothing"
        rows = ", ".join(f"f = {f} {cut.fewest(2 * f + 1, settings.group)}" for f in range(config.f + 1))
        raise ValueError(
            f"{config.strategy} with f = {config.f} needs {least} members, a group of {settings.group} for each of "
            f"{means} means, and {has}; in groups of {settings.group} a trimmed mean needs: {rows}; "
            f"with 2 f + 1 groups of {LEAST_GROUP}, {cut.fewest(2 * config.f + 1, LEAST_GROUP)}"
        )


def _run_key(settings: SecureSettings, config: SyncConfig) -> str:
    """Members who encode, group or aggregate otherwise would come to other anchors."""
    rule = (config.aggregator, config.f, *sorted(config.rule_options().items()))
    chosen = (settings.group, settings.clipping_range, settings.bits, settings.refresh, settings.owners, *rule)
    outer = (config.outer, *sorted(config.outer_options().items()))
    # each counts on the others' noise
    noise = () if settings.shares is None else ("noise", settings.shares.noise, settings.shares.clip)
    draw = () if settings.draw == NAMES else ("draw", settings.draw)
    cut = () if settings.cut == EVEN else ("cut", settings.cut)
    return " ".join(map(str, (config.strategy, *chosen, *outer, *noise, *draw, *cut)))


def _build(settings: SecureSettings, config: SyncConfig, genesis_d: torch.Tensor, own: str) -> SyncStrategy:
    return SecureAverage(config, genesis_d, own, settings)


@dataclass(frozen=True)
class _Packed:
    """Own side of a round."""

    words_v: Words_d
    codec: FixedPoint


class SecureAverage(ModelAveraging):
    """Averages all members' differences to a common anchor, of which only sums are seen. By the other methods, which no
    node calls, the same members average over tracked estimates. Memory: the anchor, which is the public model too, the
    residual, what the outer optimizer remembers, and the encoded differences; in `finish_` the groups' sums."""

    def __init__(self, config: SyncConfig, genesis_d: torch.Tensor, own: str, settings: SecureSettings) -> None:
        schedule = FragmentSchedule.of(genesis_d.numel(), config.compressor, config.codec_options())
        super().__init__(
            config, genesis_d, AveragingParts(encoder=TrackedEncoder(schedule, genesis_d, config.estimate_dtype))
        )
        self._fault_tolerance.resume(config.f)  # from the first round on: members have been promised to be enough
        self.settings = settings
        self.rounding: UniformSource = SecretRandom()
        """Where the rounding's randomness comes from: by default the operating system."""
        self.random_bytes: RandomBytes = os.urandom
        """Where the noise comes from."""
        self.residual_d = torch.zeros_like(genesis_d)
        """e: what was to be told and was not."""
        self.clipped_share = 0.0
        self._own = own
        self._seed = shared_seed(genesis_d)
        self._packed: _Packed | None = None

    @property
    def draws_by_grant(self) -> bool:
        """Whether `groups` needs placements."""
        return self.settings.draw == GRANTS

    def groups(
        self, peers: Collection[str], *, round: int, placements: Mapping[str, bytes] = NO_PLACEMENTS
    ) -> list[list[str]]:
        """Return the groups of this round, each in an order of its own; none where there are fewer than `group`."""
        there = {self._own, *peers}
        keys = {name: name for name in there}
        if self.draws_by_grant:
            keys = {name: placements[name].hex() for name in there if name in placements}
        return CUTS[self.settings.cut].groups(keys, self._seed, round, self.settings.group)

    def width(self, members: int) -> int:
        """Return the bits of a masked value in a group of so many."""
        return self.settings.codec(members).width

    @property
    def values(self) -> int:
        """Return how many values travel in a round: the differences, and a share of the anchor."""
        return _values_in_a_round(self._numel, self.settings.refresh)

    def pack(self, theta_d: torch.Tensor, *, round: int, members: int) -> Words_d:
        """Return how far the model moved as whole numbers, and a share of the anchor. ValueError when not finite."""
        self._check_shape(theta_d)
        check_model(theta_d)
        words_v, clipped = self.encoded(theta_d, round=round, members=members)
        self.clipped_share = clipped / self._numel
        self._packed = _Packed(words_v, self.settings.codec(members))
        return words_v

    def encoded(self, theta_d: torch.Tensor, *, round: int, members: int) -> tuple[Words_d, int]:
        """Return what is summed of a model, which may be a lie, and how many of its values were cut; nothing
        changes."""
        codec = self.settings.codec(members)
        told = codec.encode(theta_d - self.anchor_d + self.residual_d, self.rounding)
        words_d = told.words_d
        if isinstance(codec, NoisedFixedPoint):
            words_d = codec.noised(words_d, self.random_bytes)
        return np.concatenate([words_d, codec.wrap(self.anchor_d[self._refreshed(round)])]), told.clipped

    @property
    def owners(self) -> int:
        """Return how many members sum each part of a group's vector."""
        return self.settings.owners

    def published(self, total: GroupSum) -> bytes:
        """Return a whole sum as bytes, the same at all who have it. ValueError where some of it is missing."""
        return to_bytes(total, self.settings.bits)

    def published_size(self, members: int) -> int:
        """Return how many bytes the sum of a group of so many has."""
        return size_of(self.values, self.settings.bits, members)

    def read(self, payload: bytes, members: Sequence[str]) -> GroupSum:
        """Return the sum that a group published. Raises PayloadError."""
        return from_bytes(payload, members, self.values, self.settings.bits)

    def finish_(self, theta_d: torch.Tensor, sums: Mapping[int, GroupSum], own: int, *, round: int) -> RoundResult:
        """Close the round in place: `theta_d` becomes the correction, and the anchor the new one."""
        self._check_shape(theta_d)
        packed, self._packed = self._packed, None
        there = {place: each for place, each in sorted(sums.items()) if each.words_v.shape == (self.values,)}
        if len(there) > 1 or own not in there:
            there = {place: each for place, each in there.items() if not each.missing}
        rule, robust = self._fault_tolerance.rule(len(there)) if there else (None, False)
        if packed is None or rule is None:
            return self._unmoved(theta_d, robust=robust)
        self._own_anchor()
        codecs = {place: self.settings.codec(len(each.members)) for place, each in there.items()}
        means = [codecs[place].mean(each.words_v[: self._numel], len(each.survivors)) for place, each in there.items()]
        counts = [len(each.survivors) for each in there.values()]
        mean_d = _combined(rule, means, counts)
        own_sum = there.get(own)
        counted = own_sum is not None and self._own in own_sum.survivors
        told_d = packed.codec.mean(packed.words_v[: self._numel], 1)
        distance = float(torch.linalg.vector_norm(mean_d - told_d))
        shift_s = self._shift(rule, there, codecs, round)
        came = _present(self._numel, own_sum.missing if own_sum is not None else ())
        optimizer = self._outers[0]
        assert isinstance(optimizer, BySlices), "OUTERS are"
        move = optimizer.begin_step(self._numel)
        snapshot_d = theta_d.clone() if came != [slice(0, self._numel)] else None
        correction_d = torch.zeros_like(theta_d) if snapshot_d is not None else theta_d
        for whole in came:
            for at in _within(whole):
                self.residual_d[at] += theta_d[at] - self.anchor_d[at]
                if counted:
                    self.residual_d[at] -= told_d[at] if self.settings.shares is None else self.residual_d[at]
                move(at, self.anchor_d[at], self.anchor_d[at] + mean_d[at])
        self.anchor_d[self._refreshed(round)] += shift_s
        for whole in came:
            for at in _within(whole):
                correction_d[at] = self.anchor_d[at] - theta_d[at]
                if snapshot_d is not None:
                    snapshot_d[at] = self.anchor_d[at]
        self._publish_anchor()
        return RoundResult(
            correction_d=correction_d,
            anchor_d=self.anchor_d,
            snapshot_d=self.anchor_d if snapshot_d is None else snapshot_d,
            consensus_distance=distance,
            members=sum(counts),
            robust=robust,
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the own state, with the `residual`."""
        return super().state_dict() | {_RESIDUAL: self.residual_d}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take up `state_dict`. ValueError when it is of another model."""
        residual_d = state.get(_RESIDUAL, torch.zeros_like(self.residual_d))
        if residual_d.shape != self.residual_d.shape or residual_d.dtype != torch.float32:
            raise ValueError("the sync state belongs to another model: its vectors have other sizes")
        super().load_state_dict({name: value for name, value in state.items() if name != _RESIDUAL})
        self.residual_d = residual_d.clone()

    def _shift(
        self, rule: Aggregator, there: Mapping[int, GroupSum], codecs: Mapping[int, FixedPoint], round: int
    ) -> torch.Tensor:
        """By how much the share of the anchor that travelled is off the members'. Of a sum that lacks some of it: 0
        there."""
        anchor_s, shifts = self.anchor_d[self._refreshed(round)], []
        for place, each in there.items():
            shift_s = codecs[place].shift(
                each.words_v[self._numel :], codecs[place].wrap(anchor_s), len(each.survivors)
            )
            for gap in each.missing:
                shift_s[max(0, gap.start - self._numel) : max(0, gap.stop - self._numel)] = 0.0
            shifts.append(shift_s)
        shift_s = _combined(rule, shifts, [len(each.survivors) for each in there.values()])
        return shift_s[: anchor_s.numel()]

    def _refreshed(self, round: int) -> slice:
        """The anchor's values that travel in a round: all of them in `refresh` rounds."""
        count = self.values - self._numel
        start = min(round % self.settings.refresh * count, self._numel - count)
        return slice(start, start + count)

    def _unmoved(self, theta_d: torch.Tensor, *, robust: bool) -> RoundResult:
        """Close a round in which nothing was opened: the model stays, and its move is told from the old anchor."""
        self._publish_anchor()
        snapshot_d = theta_d
        return RoundResult(
            correction_d=torch.zeros_like(theta_d),
            anchor_d=self.anchor_d,
            snapshot_d=snapshot_d,
            consensus_distance=0.0,
            members=1,
            robust=robust,
        )

    def _publish_anchor(self) -> None:
        """Let the anchor be the public model, and nothing else."""
        self.encoder.restart(self.anchor_d)
        self._lent = True

    def _restart_at(self, model_d: torch.Tensor) -> None:
        super()._restart_at(model_d)
        self._packed = None
        self.residual_d = torch.zeros_like(model_d)


def _values_in_a_round(numel: int, refresh: int) -> int:
    return numel + -(-numel // refresh)


def _combined(rule: Aggregator, vectors: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """The aggregate of the groups' vectors; the mean counts each member alike, however large its group is."""
    if len(vectors) == 1:
        return vectors[0]
    if rule.name == "mean":
        total = sum(counts)
        return torch.stack([vector * (count / total) for vector, count in zip(vectors, counts, strict=True)]).sum(0)
    columns = by_columns(rule, Rows.of(torch.stack(list(vectors))))
    return torch.cat([columns(at) for at in segments(vectors[0].numel())])


def _present(numel: int, missing: Sequence[slice]) -> list[slice]:
    """The slices of (numel,) that lie in none of the missing ones."""
    found, start = [], 0
    for gap in sorted(missing, key=lambda each: each.start):
        if start < min(gap.start, numel):
            found.append(slice(start, min(gap.start, numel)))
        start = max(start, gap.stop)
    return [*found, slice(start, numel)] if start < numel else found


def _within(whole: slice) -> list[slice]:
    """A slice in the pieces that are worked on at a time."""
    return [slice(whole.start + at.start, whole.start + at.stop) for at in segments(whole.stop - whole.start)]
