"""What a run may choose about its learning rule, checked when it is made: a mistake stops a node at its start."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch

from p2ptrain import aggregate, compress
from p2ptrain.aggregate.zeno import Score
from p2ptrain.outer import OUTER
from p2ptrain.registry import Registry, UnknownMemberError
from p2ptrain.sync.fragments import MAX_FRAGMENTS
from p2ptrain.sync.strategy_spec import StrategySpec

SYNC_STRATEGIES: Registry[StrategySpec] = Registry("sync_strategies")

OPTIONS: Final = ("period", "fragments", "mixing", "group", "decay")
"""Settings that only some strategies have."""

F_OF_A_CHOSEN_AGGREGATOR: Final = 1
"""Who names an aggregator, and no f, means one liar, whatever the strategy's own f is."""

_OWN: Any = None
"""Where nothing is set: `__post_init__` puts the strategy's own default there."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """The learning rule and its parts. ValueError on a value that cannot be meant; docs/benchmarks.md has the runs.

    A part that is not set is the strategy's own: a SyncConfig, once made, says what it is.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    strategy: str = "tracked_gossip"
    """Who averages what with whom: tracked_gossip, async, diloco, streaming, gossip_pga, moshpit, noloco,
    sparse_loco, or a plug-in; docs/methods.md says which to choose when."""
    compressor: str = _OWN
    """What travels. q2 for tracked_gossip: two bits cost nothing measurable in loss."""
    ratio: float | None = None
    """Share of the parameters that travel in a round; None: the strategy's, or the compressor's own. Only for topk."""
    value_bits: int | None = None
    """Bits of each value that travels; None: the strategy's, or the compressor's own. Only for topk."""
    format: str | None = None
    """Levels of each value that travels: nf4, uniform or e3m0; None: the strategy's, or nf4. Only for int4."""
    gamma: float | None = None
    """Consensus step size in (0, 1]; None: the compressor's own. An exact round takes the whole step."""
    aggregator: str = _OWN
    """Or a composition, as `nnm+trimmed_mean`."""
    f: int = _OWN
    """Liars among a node's neighbours that the aggregate must withstand."""
    tau: float | None = None
    """How far a clipping aggregator follows a vector; None: its own, adaptive choice. Only for one that takes it."""
    outer: str = _OWN
    """What is done with the aggregate of a round: average, nesterov, delayed_nesterov, noloco, or a plug-in."""
    alpha: float | None = None
    """The outer optimizer's momentum; None: its own default. Only for one that takes it."""
    beta: float | None = None
    """The outer optimizer's step size; None: its own default. Only for one that takes it."""
    every: int | None = None
    """Rounds between momentum steps; None: the outer optimizer's default. Only for delayed_nesterov."""
    staleness_exponent: float = _OWN
    """A neighbour s rounds old weighs (1 + s)^-this. 0.5 as in FedAsync's polynomial rule (1903.03934)."""
    period: int | None = None
    """gossip_pga: one round in so many averages exactly, with everybody."""
    fragments: int | None = None
    """streaming: parts of the model that take turns."""
    mixing: float | None = None
    """streaming: share of the local parameters that stays when a fragment is averaged, in [0, 1)."""
    group: int | None = None
    """moshpit: members of a group, own included."""
    decay: float | None = None
    """sparse_loco: what the error feedback keeps from round to round, in [0, 1]."""

    def __post_init__(self) -> None:
        method = _method(self.strategy)
        self._take_defaults(method)
        _check_own(self)
        compress.get(self.compressor, **self.codec_options())
        aggregate.get(self.aggregator, f=self.f, **self.rule_options())
        OUTER.get(self.outer, **self.outer_options())  # it checks its options itself
        method.check(self)

    def outer_options(self) -> dict[str, float]:
        """The options that were set for the outer optimizer."""
        options = {"alpha": self.alpha, "beta": self.beta, "every": self.every}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def needs_judge(self) -> bool:
        """Whether the aggregator tries models on local data, and `build` so needs a judge."""
        return aggregate.AGGREGATORS.takes(self.aggregator, "score")

    def rule_options(self, score: Score | None = None) -> dict[str, object]:
        """What the aggregator is built with beside f. Without `score` one that needs it can be asked what it needs and
        what it withstands, and nothing else."""
        options: dict[str, object] = {} if self.tau is None else {"tau": self.tau}
        return options | ({"score": score or _unscored} if self.needs_judge else {})

    def codec_options(self) -> dict[str, object]:
        """What the compressor is built with: what is set, and the strategy's own where the last part is its own."""
        method, part = _method(self.strategy), _last_part(self.compressor)
        own = method.codec_options if part == _last_part(method.compressor) else {}
        told = {"ratio": self.ratio, "value_bits": self.value_bits, "format": self.format}
        options = {**own, **{name: value for name, value in told.items() if value is not None}}
        return {f"{part}.{name}": value for name, value in options.items()}

    def option(self, name: str) -> float:
        """The value of one of OPTIONS that this strategy has."""
        value = getattr(self, name)
        assert value is not None, f"{self.strategy} has no {name}"
        return float(value)

    def _take_defaults(self, method: StrategySpec) -> None:
        for name in OPTIONS:
            if getattr(self, name) is not None and name not in method.options:
                takers = [each for each in SYNC_STRATEGIES.names() if name in _method(each).options]
                raise ValueError(f"{name} is for {' and '.join(takers)}, not for {self.strategy}")
        own = {name: getattr(method, name) for name in ("compressor", "aggregator", "outer", "staleness_exponent")}
        own["f"] = method.f if self.aggregator is None else F_OF_A_CHOSEN_AGGREGATOR
        for name, value in (own | dict(method.options)).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)  # frozen for users; nobody has seen it yet


def _method(name: str) -> StrategySpec:
    if name not in SYNC_STRATEGIES.names():
        raise UnknownMemberError(f"unknown sync strategy {name!r}; there are: {', '.join(SYNC_STRATEGIES.names())}")
    return SYNC_STRATEGIES.get(name)


def _last_part(compressor: str) -> str:
    return compressor.split("+")[-1]


def _unscored(x_d: torch.Tensor) -> float:
    raise ValueError("the aggregator tries models, and was given nothing to try them on")


def _check_own(config: SyncConfig) -> None:
    """What can be said of a value without the others. NaN fails every comparison."""
    if config.gamma is not None and not 0 < config.gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], not {config.gamma}")
    if config.f < 0:
        raise ValueError(f"f must not be negative, not {config.f}")
    if not (math.isfinite(config.staleness_exponent) and config.staleness_exponent >= 0):
        raise ValueError(f"staleness_exponent must be a number >= 0, not {config.staleness_exponent}")
    if config.period is not None and config.period < 1:
        raise ValueError(f"period must be at least 1, not {config.period}")
    if config.fragments is not None and not 1 <= config.fragments <= MAX_FRAGMENTS:
        raise ValueError(f"fragments must be between 1 and {MAX_FRAGMENTS}, not {config.fragments}")
    if config.mixing is not None and not 0 <= config.mixing < 1:
        raise ValueError(f"mixing must be in [0, 1), not {config.mixing}")
    if config.group is not None and config.group < 2:
        raise ValueError(f"group must be at least 2, not {config.group}")
    if config.decay is not None and not 0 <= config.decay <= 1:
        raise ValueError(f"decay must be in [0, 1], not {config.decay}")
