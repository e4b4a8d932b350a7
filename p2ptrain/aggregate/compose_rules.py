"""Aggregators by composed names: pre-aggregators joined by `+`, in the order in which they act, and a rule at the end.

    clipping+nnm+trimmed_mean

- An option goes to the one part that takes it; if several do, or to be plain: `part.option`. `f` goes to all.
- A rule whose row 0 is the caller's own vector (a gossip rule) takes only stages that keep rows apart: clipping, arc.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch

from p2ptrain.aggregate.base import Aggregator, Clips, Columns, Rows, by_columns
from p2ptrain.aggregate.geometric import GeometricRule
from p2ptrain.aggregate.geometry import Geometry, measure, sums
from p2ptrain.aggregate.mixtures import mixtures
from p2ptrain.aggregate.pre_aggregator import PreAggregator
from p2ptrain.aggregate.rule import Rule
from p2ptrain.registry import BadOptionError, Registry, UnknownMemberError, build

MAX_PARTS = 4
"""Longer names are refused: no published composition has more."""
MAX_FACTORIES = 256
"""Factories whose options are remembered: more than there are members."""
SHARED = "f"
"""The option that all parts take."""


class Composed(Rule):
    """Stages, then a rule. Guarantee: the rule's, for what the stages leave; `minimum` and `breakdown` follow."""

    def __init__(self, stages: Sequence[PreAggregator], rule: Aggregator) -> None:
        self.name = "+".join([*(stage.name for stage in stages), rule.name])
        super().__init__(f=rule.f)
        self.stages = stages
        self.rule = rule
        self.breakdown = rule.breakdown
        for stage in reversed(stages):
            self.breakdown = stage.breakdown(self.breakdown)
        self.own_first = rule.own_first
        mixers = [stage.name for stage in stages if not stage.keeps_rows]
        if rule.own_first and mixers:
            raise UnknownMemberError(
                f"unknown aggregator {self.name!r}: {mixers[0]} mixes rows, and {rule.name} must find the own one"
            )

    @property
    def clipped(self) -> Sequence[int]:
        """The rows that the newest call did not follow in full, in ascending order: by the rule, where its rows are
        still the caller's. What the stages clip is not in it."""
        kept = all(stage.keeps_rows for stage in self.stages)
        return self.rule.clipped if kept and isinstance(self.rule, Clips) else ()

    def minimum(self) -> int:
        """Return what the rule needs, and each stage to leave that."""
        needed = self.rule.minimum()
        for stage in reversed(self.stages):
            needed = stage.minimum(needed)
        return needed

    def _combine(self, rows: Rows) -> torch.Tensor:
        return self.by_columns(rows)(slice(0, rows.d))

    def by_columns(self, rows: Rows) -> Columns:
        """Return what gives any slice of the aggregate: the stages look at the rows now."""
        self._check(rows)
        geometry = self._measure(rows)
        weight_mp, geometry = self._mix(rows.n, geometry)
        weight_mn = weight_mp[:, : rows.n]  # zero, where it is a point, adds nothing
        if isinstance(self.rule, GeometricRule):
            assert geometry is not None
            return sums(rows, self.rule.weigh(geometry.first(len(weight_mn))) @ weight_mn)
        return by_columns(self.rule, mixtures(rows, weight_mn))

    def _measure(self, rows: Rows) -> Geometry | None:
        if not isinstance(self.rule, GeometricRule) and not any(stage.looks for stage in self.stages):
            return None
        origin = any(stage.from_origin for stage in self.stages)
        f = max(self.f, *(stage.f for stage in self.stages))  # of a rule that withstands none, as mean, the stages' own
        return measure(rows, f, origin=origin, own_first=self.own_first)

    def _mix(self, n: int, geometry: Geometry | None) -> tuple[torch.Tensor, Geometry | None]:
        """The stages' matrices, multiplied: weights of the mixtures (m, points), and the mixtures' geometry."""
        points = n if geometry is None else geometry.n
        extra = points - n  # 1 where zero is a point, which all stages hand on
        weight_mp = torch.eye(points, dtype=torch.float64)
        for stage in self.stages:
            mixed_mp = stage.mix(len(weight_mp) - extra, geometry)
            step_mp = torch.zeros(len(mixed_mp) + extra, len(weight_mp), dtype=torch.float64)
            step_mp[: len(mixed_mp), : mixed_mp.shape[1]] = mixed_mp
            if extra:
                step_mp[-1, -1] = 1
            weight_mp = step_mp @ weight_mp
            geometry = None if geometry is None else geometry.mix(step_mp)
        return weight_mp[: len(weight_mp) - extra], geometry


class Stages(Registry[PreAggregator]):
    """The registry of pre-aggregators, whose factories a composed name needs."""

    def factory(self, name: str) -> Callable[..., PreAggregator]:
        """Return what builds `name`. UnknownMemberError when there is no such stage."""
        return self._factories.get(name) or self._load(name)


class RuleCompositions(Registry[Aggregator]):
    """The registry of aggregators, whose `get` also knows composed names. `names` lists the rules."""

    def __init__(self, point: str, stages: Stages) -> None:
        super().__init__(point)
        self.stages = stages

    def get(self, name: str, **options: object) -> Aggregator:
        """Build `name`. UnknownMemberError for a name that cannot be, BadOptionError for an option, naming both."""
        stages, (last, make_rule) = self._parts(name)
        given = _assign(name, {**stages, last: make_rule}, options)
        rule = build(make_rule, f"aggregator {last!r}", given[last])
        built = [build(make, f"pre-aggregator {part!r}", given[part]) for part, make in stages.items()]
        return Composed(built, rule) if built else rule

    def check(self, name: str) -> None:
        """UnknownMemberError unless `name` is a rule or a composition that can be. Builds nothing."""
        self._parts(name)

    def takes(self, name: str, option: str) -> bool:
        """Return whether a part of `name` takes this option. UnknownMemberError for a name that cannot be."""
        return any(option in _options_of(make) for make in self.parts(name).values())

    def parts(self, name: str) -> dict[str, Callable[..., object]]:
        """Return the factories of the stages in `name`, and then of its rule. Raises UnknownMemberError."""
        stages, (last, make_rule) = self._parts(name)
        return {**stages, last: make_rule}

    def _parts(
        self, name: str
    ) -> tuple[dict[str, Callable[..., PreAggregator]], tuple[str, Callable[..., Aggregator]]]:
        """The stages' factories by name, and the rule's."""
        *stages, last = name.split("+")
        there = f"; stages: {', '.join(self.stages.names())}; rules: {', '.join(self.names())}"
        for part in stages:
            if part not in self.stages.names():
                wrong = "is a rule, and stands last" if part in self.names() else "is no stage"
                raise UnknownMemberError(f"unknown aggregator {name!r}: {part!r} {wrong}{there}")
        if last not in self.names():
            wrong = "is a stage, and needs a rule after it" if last in self.stages.names() else "is no rule"
            raise UnknownMemberError(f"unknown aggregator {name!r}: {last!r} {wrong}{there}")
        if len(set(stages)) < len(stages) or len(stages) >= MAX_PARTS:
            limits = f"a stage stands once in a name, and a name has {MAX_PARTS} parts at most"
            raise UnknownMemberError(f"unknown aggregator {name!r}: {limits}{there}")
        factories = {part: self.stages.factory(part) for part in stages}
        return factories, (last, self._factories.get(last) or self._load(last))


@lru_cache(MAX_FACTORIES)
def _options_of(make: Callable[..., object]) -> frozenset[str]:
    """The names of a factory's options. A node asks every round."""
    return frozenset(inspect.signature(make).parameters)


def _assign(
    name: str, factories: Mapping[str, Callable[..., object]], options: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """Each part's options. BadOptionError for one that no part takes, or that several do."""
    taken = {part: list(inspect.signature(factory).parameters) for part, factory in factories.items()}
    given: dict[str, dict[str, object]] = {part: {} for part in factories}
    for key, value in options.items():
        part, _, option = key.rpartition(".")
        takers = [each for each in ([part] if part else taken) if option in taken.get(each, ())]
        if not takers:
            there = ", ".join(f"{part}.{option}" for part, names in taken.items() for option in names)
            raise BadOptionError(f"aggregator {name!r}: no part takes the option {key!r}; its options: {there}")
        if len(takers) > 1 and option != SHARED:
            meant = " or ".join(f"{part}.{option}" for part in takers)
            raise BadOptionError(f"aggregator {name!r}: several parts take {option!r}; write {meant}")
        for each in takers:
            if option in given[each]:
                raise BadOptionError(f"aggregator {name!r}: {each}.{option} is given twice")
            given[each][option] = value
    return given
