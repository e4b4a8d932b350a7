"""What a run may choose about its learning rule, checked when it is made: a mistake stops a node at its start.

[sync] has a few keys of its own. Every other key is an option of a chosen member: of the strategy, the compressor, the
aggregator or the outer optimizer, whichever declares it (p2ptrain/options.py), plug-ins included.
"""

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import torch

from p2ptrain import aggregate, compress
from p2ptrain.aggregate.zeno import Score
from p2ptrain.compress.adaptive import adaptive_in
from p2ptrain.compress.base import Stateful
from p2ptrain.options import BadOptionError, Option, options_of
from p2ptrain.outer import OUTER
from p2ptrain.outer.momentum import Momentum, doubt, filled
from p2ptrain.protocols import implements
from p2ptrain.registry import Registry, UnknownMemberError
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.vectors import DTYPES, Precision

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

Rejoin = Literal["mean", "medoid"]
"""What regions take that have been without each other for long."""

SYNC_STRATEGIES: Registry[StrategySpec] = Registry("sync_strategies")

MEMBERS: Final[Mapping[str, Registry[Any]]] = {
    "strategy": SYNC_STRATEGIES,
    "compressor": compress.COMPRESSORS,
    "aggregator": aggregate.AGGREGATORS,
    "outer": OUTER,
}
"""The settings that name a member, in the order in which messages list them."""

STAGES: Final[Mapping[str, Registry[Any]]] = {"aggregator": aggregate.PRE_AGGREGATORS}
"""Members that may stand in a composed name only."""

MEANT_WITHOUT_A_NAME: Final = {"every": "outer"}
"""Keys that two built-in members declare, and whose they are when no member is named: older releases wrote them so."""

MAX_LAYERS: Final = 4
"""Refinements of an update; a header names each (gossip.core.limits.MAX_LAYERS)."""

CLOSEST: Final = 0.6
"""How much alike a key and an option must be to be taken for a misspelling. Chosen: difflib's own default."""

F_OF_A_CHOSEN_AGGREGATOR: Final = 1
"""Who names an aggregator, and no f, means one liar, whatever the strategy's own f is."""

NOTHING: Final = "nothing"
"""The policy of a region that lets nothing out (residency)."""

LEAST_AGGREGATE: Final = 2
"""Members whose models are in an aggregate that a policy may ask for, at least: with one it would be no aggregate."""

_OWN: Any = None
"""Where nothing is set: `__post_init__` puts the strategy's own default there."""


class Taker(NamedTuple):
    """A chosen member, or a part of a composed name, that declares an option."""

    setting: str
    """One of MEMBERS."""
    part: str
    option: Option


@dataclass(frozen=True, kw_only=True, init=False)
class SyncConfig:
    """The learning rule and its parts. ValueError on a value that cannot be meant; docs/benchmarks.md has the runs.

    A part that is not set is the strategy's own: a SyncConfig, once made, says what it is. Options of members are
    keywords like any other: `SyncConfig(compressor="topk", ratio=0.1)`.
    """

    strategy: str = "tracked_gossip"
    """Who averages what with whom: tracked_gossip, allreduce, async, des_loc, diloco, heloco, streaming, gossip_pga,
    mime, moshpit, noloco, secure_average, sparse_loco, sparta, or a plug-in; docs/methods.md says which to choose
    when."""
    compressor: str = _OWN
    """What travels. q2 for tracked_gossip: two bits cost nothing measurable in loss."""
    gamma: float | None = None
    """Consensus step size in (0, 1]; None: the compressor's own. An exact round takes the whole step."""
    aggregator: str = _OWN
    """Or a composition, as `nnm+trimmed_mean`."""
    f: int = _OWN
    """Liars among a node's neighbours that the aggregate must withstand."""
    outer: str = _OWN
    """What is done with the aggregate of a round: average, nesterov, delayed_nesterov, noloco, or a plug-in."""
    staleness_exponent: float = _OWN
    """A neighbour s rounds old weighs (1 + s)^-this. 0.5 as in FedAsync's polynomial rule (1903.03934)."""
    estimates: Precision = "fp32"
    """What a node holds its neighbours' models and its own public one in. bf16: half the memory and half the bytes of a
    snapshot; what rounding loses goes into the next update. The same on all nodes."""
    regions: tuple[str, ...] = ()
    """The labels of all regions of the run, also of those that will come later, where it has regions: each node names
    its own (node.region). The same on all nodes, in any order."""
    region_every: int = 8
    """Rounds between two averagings of regions' models (node.region). The same on all nodes. 8: between regions of
    equal size an eighth of the messages, with models that are half a dozen rounds apart."""
    region_compressor: str = "int8"
    """What regions' models travel in: int8, or int4 with half of the bytes. Each is sent whole, so that a coarser
    codec's error would stay in it."""
    region_rejoin: Rejoin = "mean"
    """What regions take that have been without each other for three averagings or more: the mean, or the models around
    the medoid, which is the region that is nearest to all. Far apart, two models have no good mean; but of unlike data
    the medoid alone has seen one region's. So medoid suits regions with alike data. The same on all nodes."""
    region_momentum: float = 0.0
    """Nesterov's momentum on the regions' mean, in [0, 1): the share of what it has moved by since the last averaging
    that regions go beyond it. 0: none. The same on all nodes."""
    residency: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    """What may leave a region, by its label: "nothing", or a number, which is of how many members' models what leaves
    it is an average at least. A region that is not named lets its members' averaged models out, as it is without this.
    Updates leave none. The same on all nodes."""
    layers: tuple[str, ...] = ()
    """The codecs of an update's refinements, coarsest first, beside `compressor`, which all take: as many of them as
    the link between two neighbours has time for, each way. Of tracked_gossip. The same on all nodes."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The members' options, as `option` or `member.option`: those that were set, and all of the strategy's own."""

    def __init__(self, **settings: Any) -> None:
        own = {each.name: _default_of(each) for each in fields(self) if each.name != OPTIONS}
        for name, default in own.items():
            object.__setattr__(self, name, settings.pop(name, default))
        object.__setattr__(self, OPTIONS, {**(settings.pop(OPTIONS, None) or {}), **settings})
        self.__post_init__()

    def __post_init__(self) -> None:
        _check_name(self.strategy)
        self._take_options()
        method = self.spec()
        self._take_defaults(method)
        self._convert_options()
        _check_own(self)
        compress.get(self.compressor, **self.codec_options())
        _check_region_codec(self)
        _check_layers(self)
        aggregate.get(self.aggregator, f=self.f, **self.rule_options())
        OUTER.get(self.outer, **self.outer_options())  # it checks its options itself
        method.check(self)

    def spec(self) -> StrategySpec:
        """Return how the strategy is put together, with the options that were set for it."""
        return SYNC_STRATEGIES.get(self.strategy, **self._given("strategy"))

    @property
    def estimate_dtype(self) -> torch.dtype:
        """What estimates are held in."""
        return DTYPES[self.estimates]

    def run_key(self) -> str:
        """Return, as text, what of this all members must have alike to take part in one run; empty where they may
        differ in all of it."""
        held = "" if self.estimates == "fp32" else f"estimates {self.estimates}"
        regions = ""
        if self.regions:  # members with other rules would move otherwise, or not understand each other
            labels, rules = (
                ",".join(sorted(self.regions)),
                f"{self.region_compressor} f {self.f} {self.staleness_exponent}",
            )
            regions = f"regions {labels} every {self.region_every} {rules}"
            if self.region_rejoin != "mean":
                regions += f" rejoin {self.region_rejoin}"
            if self.region_momentum:
                regions += f" momentum {self.region_momentum}"
        if self.residency:
            regions += " residency " + ",".join(f"{label} {self.residency[label]}" for label in sorted(self.residency))
        layers = "layers " + ",".join(self.layers) if self.layers else ""
        return " ".join(filter(None, (self.spec().run_key(self), held, regions, layers)))

    def outer_options(self) -> dict[str, Any]:
        """Return the options that were set for the outer optimizer."""
        return self._given("outer")

    def for_rounds(self, rounds: int) -> "SyncConfig":
        """Return the same with the outer momentum and rate that suit a run of so many rounds, where none are set
        (p2ptrain/outer/momentum.py)."""
        given = self.outer_options()
        options = filled(self._published_momentum, given, rounds // self.spec().turn)
        return replace(
            self, options={**self.options, **{f"{self.outer}.{name}": options[name] for name in options.keys() - given}}
        )

    def doubt(self, rounds: int) -> str:
        """Return in a line why a setting cannot pay in so many rounds; "" where there is nothing to say."""
        return doubt(self.outer, self._published_momentum, self.outer_options(), rounds // self.spec().turn)

    @property
    def _published_momentum(self) -> Momentum | None:
        return getattr(OUTER.factory(self.outer), "published", None)

    @property
    def needs_judge(self) -> bool:
        """Whether the aggregator tries models on local data, and `build` so needs a judge."""
        return aggregate.AGGREGATORS.takes(self.aggregator, "score")

    def rule_options(self, score: Score | None = None) -> dict[str, Any]:
        """Return what the aggregator is built with beside f. Without `score` one that needs it can be asked what it
        needs and what it withstands, and nothing else."""
        return self._given("aggregator") | ({"score": score or _unscored} if self.needs_judge else {})

    def codec_options(self) -> dict[str, Any]:
        """Return what the compressor is built with: what is set, and the strategy's own where the last part is its
        own."""
        method, part = self.spec(), _last_part(self.compressor)
        own = method.codec_options if part == _last_part(method.compressor) else {}
        return {f"{part}.{name}": value for name, value in own.items()} | self._given("compressor")

    def _given(self, setting: str) -> dict[str, Any]:
        """The options that were set for the member that this setting names: `part.option` where names compose."""
        composed = setting in ("compressor", "aggregator")
        return {
            f"{taker.part}.{taker.option.name}" if composed else taker.option.name: value
            for key, value in self.options.items()
            for taker in self._takers(key)
            if taker.setting == setting
        }

    def _takers(self, key: str) -> list[Taker]:
        """Which of the chosen members an option goes to: those that `member.option` names, or the one that has it."""
        named, _, option = key.rpartition(".")
        takers = [
            Taker(setting, part, options_of(factory)[option])
            for setting, registry in MEMBERS.items()
            if getattr(self, setting) is not None
            for part, factory in registry.parts(getattr(self, setting)).items()
            if option in options_of(factory) and option not in OWN_KEYS and named in ("", part)
        ]
        meant = [taker for taker in takers if taker.setting == MEANT_WITHOUT_A_NAME.get(key)]
        return meant or takers

    def _take_options(self) -> None:
        """Leave out options that are not set, and add the strategy's defaults."""
        options = {key: self._typed(key, value) for key, value in self.options.items() if value is not None}
        told = {key.removeprefix(f"{self.strategy}.") for key in options}
        for name, option in SYNC_STRATEGIES.options(self.strategy).items():
            if name not in told and option.default not in (None, option.EMPTY):
                options[name] = option.default
        object.__setattr__(self, OPTIONS, options)  # frozen for users; nobody has seen it yet

    def _take_defaults(self, method: StrategySpec) -> None:
        own = {name: getattr(method, name) for name in ("compressor", "aggregator", "outer", "staleness_exponent")}
        own["f"] = method.f if self.aggregator is None else F_OF_A_CHOSEN_AGGREGATOR
        for name, value in own.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _convert_options(self) -> None:
        """Refuse options that nobody chosen declares, or that several do, and values of another type."""
        converted = {}
        for key, value in self.options.items():
            takers = self._takers(key)
            if not takers:
                raise BadOptionError(self._stray(key))
            if "." not in key and len(takers) > 1:
                meant = " or ".join(f"{taker.part}.{key}" for taker in takers)
                raise BadOptionError(f"several chosen members take {key}: write {meant}")
            converted[key] = self._typed(key, value)
        object.__setattr__(self, OPTIONS, converted)

    def _typed(self, key: str, value: object) -> object:
        """The value as the member that takes it declares it. BadOptionError for one of another type."""
        takers = self._takers(key)
        return takers[0].option.convert(value) if takers else value

    def _stray(self, key: str) -> str:
        """What is said of an option that no chosen member declares."""
        takers = takers_of(key)
        if takers:
            chosen = " and ".join(dict.fromkeys(getattr(self, setting) for setting, _ in takers))
            return f"{key} is for {' and '.join(dict.fromkeys(part for _, part in takers))}, not for {chosen}"
        taken = {
            f"{setting} {part}": [name for name in options_of(factory) if name not in OWN_KEYS]
            for setting, registry in MEMBERS.items()
            for part, factory in registry.parts(getattr(self, setting)).items()
        }
        near = difflib.get_close_matches(key, [*OWN_KEYS, *all_options()], n=1, cutoff=CLOSEST)
        guess = f", did you mean {near[0]}?" if near else ""
        taken_by = "; ".join(f"{who} takes {', '.join(names) or 'none'}" for who, names in taken.items())
        return f"nobody takes the option {key}{guess}; {taken_by}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """The section as files have it: the members' options stand beside its own keys."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(
            _gathered,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(_spread),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        """The same, with every option that some member declares."""
        made = handler.resolve_ref_schema(handler(schema))
        made["properties"].pop(OPTIONS, None)
        made["properties"] |= {name: option.json_schema() for name, (_, option) in all_options().items()}
        made["additionalProperties"] = False
        made["patternProperties"] = {r"^[^.]+\.[^.]+$": {}}
        return made


LEAST_REGION_CONTRACTION: Final = 0.95
"""Of what regions' models travel in. int8 and int4 have 0.98, and cost next to nothing; two bits have 0.88, and cost up
to half as much loss again (docs/benchmarks.md, 2026-11-27): between neighbours the next update makes up for it, and
here nothing does."""

OF_REGIONS: Final = ("regions", "region_every", "region_compressor", "region_rejoin", "region_momentum", "residency")
"""Keys that mean something in a run with regions alone."""
NEWER_OF_REGIONS: Final = ("region_momentum", "residency")
"""Those of them that are left out where nothing is set, since there were runs with regions before there were these."""

OPTIONS: Final = "options"
OWN_KEYS: Final = tuple(each.name for each in fields(SyncConfig) if each.name != OPTIONS)
"""The keys of [sync] that are no member's."""


def all_options() -> dict[str, tuple[tuple[str, ...], Option]]:
    """By option, the members that declare it, plug-ins included, and it, with what all of them say that it means."""
    found: dict[str, tuple[tuple[str, ...], Option]] = {}
    for _, part, option in _every_option():
        names, first = found.get(option.name, ((), option))
        if option.about and option.about not in first.about:
            about = f"{first.about} Of {part}: {option.about}" if first.about else option.about
            first = replace(first, about=about)
        found[option.name] = ((*names, part) if part not in names else names, first)
    return found


def takers_of(key: str) -> list[tuple[str, str]]:
    """Return the settings and the members, chosen or not, that declare an option: `option`, or `member.option`."""
    named, _, name = key.rpartition(".")
    return [(at, part) for at, part, option in _every_option() if option.name == name and named in ("", part)]


def _every_option() -> Iterator[Taker]:
    for setting, registry in MEMBERS.items():
        for each in (registry, *([STAGES[setting]] if setting in STAGES else [])):
            for part in each.names():
                yield from (
                    Taker(setting, part, option) for option in _options(each, part) if option.name not in OWN_KEYS
                )


def _options(registry: Registry[Any], part: str) -> list[Option]:
    """A member's options; none of a plug-in that cannot be imported: it costs only who chooses it."""
    try:
        return list(options_of(registry.parts(part)[part]).values())
    except Exception:
        return []


def _gathered(raw: Any) -> Any:
    """The section with the members' options in a table of their own."""
    if not isinstance(raw, Mapping):
        return raw
    own = {key: value for key, value in raw.items() if key in OWN_KEYS}
    options = {key: value for key, value in raw.items() if key not in (*OWN_KEYS, OPTIONS)}
    return {**own, OPTIONS: {**(raw.get(OPTIONS) or {}), **options}}


def _spread(config: SyncConfig, handler: Any) -> Any:
    """The opposite of `_gathered`."""
    dumped = handler(config)
    if not config.regions:  # what an admin has signed of a flat swarm's settings does not change
        for key in OF_REGIONS:
            dumped.pop(key)
    else:
        for key in NEWER_OF_REGIONS:  # nor of a run with regions that has no policy, and no momentum
            if not dumped[key]:
                dumped.pop(key)
    if not config.layers:  # nor of one without refinements
        dumped.pop("layers")
    return dumped | dumped.pop(OPTIONS)


def _default_of(own: Field[Any]) -> Any:
    return own.default if own.default_factory is MISSING else own.default_factory()


def _check_name(strategy: str) -> None:
    if strategy not in SYNC_STRATEGIES.names():
        there = ", ".join(SYNC_STRATEGIES.names())
        raise UnknownMemberError(f"unknown sync strategy {strategy!r}; there are: {there}")


def _last_part(compressor: str) -> str:
    return compressor.split("+")[-1]


def _unscored(x_d: torch.Tensor) -> float:
    raise ValueError("the aggregator tries models, and was given nothing to try them on")


def _check_region_codec(config: SyncConfig) -> None:
    """ValueError for what loses too much of a model that is sent whole."""
    codec = compress.get(config.region_compressor)
    if not config.regions:
        return
    if adaptive_in(codec) is not None:
        raise ValueError("region_compressor=adaptive follows no link between regions: take int8, or int4")
    if codec.contraction < LEAST_REGION_CONTRACTION:
        lost = f"region_compressor={config.region_compressor} loses too much of a model that is sent whole"
        raise ValueError(f"{lost}: take int8, or int4")


def _check_layers(config: SyncConfig) -> None:
    """ValueError for refinements that cannot be, or that would refine nothing."""
    if not config.layers:
        return
    if not config.spec().takes_layers:
        raise ValueError(f"layers are for tracked_gossip, not for {config.strategy}: leave sync.layers out")
    if len(config.layers) > MAX_LAYERS:
        raise ValueError(f"layers has at most {MAX_LAYERS} codecs, not {len(config.layers)}")
    for name in config.layers:
        codec = compress.get(name)
        if codec.name != name or adaptive_in(codec) is not None or implements(codec, Stateful):
            raise ValueError(f"layers cannot have {name}: take one that needs no memory, such as q2, int4 or int8")


def _check_own(config: SyncConfig) -> None:
    """What can be said of a value without the others. NaN fails every comparison."""
    if config.gamma is not None and not 0 < config.gamma <= 1:
        raise ValueError(f"gamma must be in (0, 1], not {config.gamma}")
    if config.estimates not in DTYPES:
        raise ValueError(f"estimates must be {' or '.join(DTYPES)}, not {config.estimates!r}")
    if len(set(config.regions)) != len(config.regions) or len(config.regions) == 1:
        raise ValueError(f"regions must be two or more labels, each once, not {', '.join(config.regions)}")
    _check_residency(config)
    if config.region_every < 2:
        raise ValueError(f"region_every must be 2 or more, not {config.region_every}")
    if config.region_rejoin not in get_args(Rejoin):
        raise ValueError(f"region_rejoin must be mean or medoid, not {config.region_rejoin!r}")
    if not 0 <= config.region_momentum < 1:
        raise ValueError(f"region_momentum must be in [0, 1), not {config.region_momentum}")
    if config.f < 0:
        raise ValueError(f"f must not be negative, not {config.f}")
    if not (math.isfinite(config.staleness_exponent) and config.staleness_exponent >= 0):
        raise ValueError(f"staleness_exponent must be a number >= 0, not {config.staleness_exponent}")


def _check_residency(config: SyncConfig) -> None:
    for label, least in config.residency.items():
        if label not in config.regions:
            there = ", ".join(config.regions) or "none"
            raise ValueError(f"residency names {label!r}, which is none of the regions: {there}")
        if least != NOTHING and (not isinstance(least, int) or isinstance(least, bool) or least < LEAST_AGGREGATE):
            raise ValueError(
                f'residency.{label} must be "{NOTHING}" or a number of members from {LEAST_AGGREGATE} on, not {least!r}'
            )
