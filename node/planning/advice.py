"""Which H, codec, strategy and degree: those that come to the reference's loss in the fewest days.

For each strategy, codec and degree the search begins at the smallest H that hides 95% of the exchange (pace.auto_h,
which `node.pace = "auto"` follows), and goes from notch to notch of H as long as that is better. What is compared is
`days_to_equal_loss`: a penalty in loss counts as the steps that make up for it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from node.planning.device_memory import largest_blob, snapshot_bytes
from node.planning.forecast import PlanRequest, RunForecast, forecast
from node.system.errors import UsageError
from p2ptrain.sync import GOSSIP, SYNC_STRATEGIES
from p2ptrain.training.pace import MAX_INNER_STEPS, auto_h

NOTCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, MAX_INNER_STEPS)
"""H: two in each doubling. Loss differs by some percent from one to the next but one."""
DEGREES: Final = (4, 8)
"""Beside the one that is asked for: the fewest that a liar is outvoted among, and the default."""
LARGEST_EXCHANGE: Final = 64
"""Members of one exchange by parts (gossip's MAX_GROUP): beyond it not all average with all."""

CODECS_OF: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "tracked_gossip": ({"compressor": "q2"}, {"compressor": "sign1"}, {"compressor": "int8"}),
    "sparse_loco": ({"compressor": "lossless+topk"}, {"compressor": "lossless+topk", "ratio": 0.1, "value_bits": 2}),
    "allreduce": ({"compressor": "q2"},),
}
"""Strategies and codecs that are compared: those that docs/methods.md recommends, and that were measured."""
WITH_ANY_CODEC: Final = "tracked_gossip"
"""Where none that is compared has the codec that is asked for, or so few neighbours."""
WITHSTANDS_LIARS: Final = ("tracked_gossip", "sparse_loco")
"""With a robust aggregator; of `allreduce` owners of parts are believed."""
WITHOUT_A_SPARSE_GRAPH: Final = ("allreduce", "sparse_loco")
"""They are recommended only where each member has all others."""


@dataclass(frozen=True, kw_only=True)
class PlanAdvice:
    """What is recommended, and the best of each strategy and codec that it was chosen from."""

    best: RunForecast
    others: tuple[RunForecast, ...]
    """One for each strategy, codec and degree, the best first."""


@dataclass(frozen=True, kw_only=True)
class PlanConstraints:
    """What is not to be recommended, as somebody has said it. None: it is."""

    strategy: str | None = None
    compressor: str | None = None
    inner_steps: int | None = None
    degree: int | None = None
    sync: Mapping[str, Any] = field(default_factory=dict)
    """All other settings of [sync]. Strategies and codecs that do not take them are not compared."""


def advise(
    request: PlanRequest,
    *,
    liars: int = 1,
    aggregator: str = "",
    asked: PlanConstraints | None = None,
    rule: bool = False,
) -> PlanAdvice:
    """Return what to set for this model, these machines and links. `liars`: members that a node's aggregate is to
    withstand; 0 where all trust each other. `aggregator`: the rule to do it by; empty: the trimmed mean. `rule`:
    whether a strategy that is asked for and has a rule of its own is to have that one. Raises UsageError or ValueError,
    as of the first that was tried, where nothing of what is asked for can be."""
    found, errors, asked = list[RunForecast](), list[Exception](), asked or PlanConstraints()
    ruled = partial(_candidates, request, liars=liars, aggregator=aggregator, rule=rule)
    for settings in list(ruled(asked)) or ruled(replace(asked, strategy=WITH_ANY_CODEC)):
        try:
            found.append(_best(request.with_settings(**settings), asked.inner_steps))
        except (UsageError, ValueError) as error:  # as an exchange by parts of a vector too large for the network
            errors.append(error)
    if not found:
        raise errors[0]
    found.sort(key=lambda each: each.days_to_equal_loss)
    return PlanAdvice(best=found[0], others=tuple(found))


def _best(request: PlanRequest, inner_steps: int | None) -> RunForecast:
    if inner_steps is None:
        return best_inner_steps(request)
    return forecast(request.with_settings(train={"inner_steps": inner_steps}))


def best_inner_steps(request: PlanRequest) -> RunForecast:
    """Return the forecast with the H that comes to the reference's loss first, by going from notch to notch."""
    seen: dict[int, RunForecast] = {}

    def at(index: int) -> RunForecast:
        if index not in seen:
            seen[index] = forecast(request.with_settings(train={"inner_steps": NOTCHES[index]}))
        return seen[index]

    place = _notch(_hiding(forecast(request)))
    while True:
        near = [each for each in (place - 1, place, place + 1) if 0 <= each < len(NOTCHES)]
        best = min(near, key=lambda index: at(index).days_to_equal_loss)
        if best == place:
            return at(place)
        place = best


def runnable(found: RunForecast) -> RunForecast:
    """Return the forecast with the settings that it takes to run as it says: its rounds, and payloads as large as
    they are."""
    config = found.request.config
    network = {}
    largest = max(snapshot_bytes(config, found.request.shape), found.traffic.peak_bytes)
    if config.network.max_payload_bytes < largest <= largest_blob():
        network = {"max_payload_bytes": int(largest) + 1}
    request = found.request.with_settings(train={"rounds": found.rounds}, network=network)
    return replace(found, request=request)


def rule_for(liars: int, aggregator: str = "") -> dict[str, Any]:
    """Return the settings of [sync] by which an aggregate withstands so many liars."""
    return {"aggregator": aggregator or ("trimmed_mean" if liars else "mean"), "f": liars}


def degree_for(liars: int, nodes: int) -> int:
    """Return the fewest neighbours among which so many liars are outvoted; all others, where there are not as many."""
    return max(1, min(nodes - 1, 2 * liars))


def _candidates(
    request: PlanRequest, asked: PlanConstraints, *, liars: int, aggregator: str, rule: bool
) -> Iterator[Mapping[str, Any]]:
    for strategy in _strategies(asked):
        if liars and not asked.strategy and strategy not in WITHSTANDS_LIARS:
            continue
        is_ruled = rule or not liars or strategy in WITHSTANDS_LIARS
        withstands = rule_for(liars, aggregator) if is_ruled else {}
        for degree in _asked_degrees(strategy, asked, request, liars if is_ruled else 0):
            for codec in _codecs(strategy, asked.compressor):
                sync = {"strategy": strategy, **codec, **withstands, **asked.sync}
                yield {"sync": sync, "network": {"degree": degree}}


def _strategies(asked: PlanConstraints) -> Sequence[str]:
    """The one that is asked for; else those that are compared, with the codec that is asked for."""
    if asked.strategy:
        return (asked.strategy,)
    if asked.compressor is None:
        return tuple(CODECS_OF)
    return [each for each, codecs in CODECS_OF.items() if asked.compressor in (it["compressor"] for it in codecs)]


def _codecs(strategy: str, asked: str | None) -> Sequence[Mapping[str, Any]]:
    """Those that are compared; of a strategy that has none its own."""
    compared = CODECS_OF.get(strategy, ({},))
    if asked is None:
        return compared
    return [each for each in compared if each.get("compressor") == asked] or [{"compressor": asked}]


def _asked_degrees(strategy: str, asked: PlanConstraints, request: PlanRequest, liars: int) -> Sequence[int]:
    degree = request.config.network.degree
    found = _degrees(strategy, degree, request.nodes, liars)
    if asked.strategy:
        in_groups = strategy not in CODECS_OF and SYNC_STRATEGIES.get(strategy).averager != GOSSIP
        return found if found and asked.degree is None and not in_groups else (degree,)
    if asked.degree is None:
        return found
    is_enough = strategy not in WITHOUT_A_SPARSE_GRAPH or asked.degree >= request.nodes - 1
    return (asked.degree,) if found and is_enough else ()


def _degrees(strategy: str, asked: int, nodes: int, liars: int) -> Sequence[int]:
    others = max(1, nodes - 1)
    if strategy == "allreduce":  # all have to know each other
        return (others,) if nodes <= LARGEST_EXCHANGE else ()
    if strategy == "sparse_loco":  # its models drift apart on a sparse graph (docs/methods.md)
        return (others,) if others <= max(asked, *DEGREES) else ()
    fitting = {min(each, others) for each in (asked, *DEGREES)}
    least = degree_for(liars, nodes)
    return sorted(each for each in fitting if each >= least) or [least]


def _hiding(found: RunForecast) -> int:
    """The smallest H that hides the exchange."""
    return auto_h(
        step_seconds=found.step_s,
        link_bytes_per_s=found.request.link.up,
        payload_bytes=found.traffic.most_sent_bytes,
        latency_s=max(0.0, found.times.exchange_s - found.times.send_s),
    )


def _notch(steps: int) -> int:
    return min(range(len(NOTCHES)), key=lambda index: abs(NOTCHES[index] - steps))


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What comes of half and of twice an input, all else the same."""

    what: str
    half: RunForecast | None
    """None where half of it cannot be."""
    twice: RunForecast | None


def sensitivities(request: PlanRequest) -> list[Sensitivity]:
    """Return them for the link, the device, the members, the model's tokens, H, batch and degree."""
    train, link = request.config.train, request.link

    def device(times: float) -> PlanRequest:
        step_s = None if request.step_s is None else request.step_s / times
        faster = replace(request.device, peak_flops=request.device.peak_flops * times)
        if request.calibration is not None and step_s is None:
            step_s = forecast(request).step_s / times
        return replace(request, device=faster, step_s=step_s)

    ways: dict[str, Any] = {
        "uplink": lambda times: replace(request, link=replace(link, up_bits_s=link.up_bits_s * times)),
        "downlink": lambda times: replace(request, link=replace(link, down_bits_s=link.down_bits_s * times)),
        "round trip": lambda times: replace(request, link=replace(link, rtt_s=link.rtt_s * times)),
        "device": device,
        "members": lambda times: replace(request, nodes=max(1, round(request.nodes * times))),
        "tokens": lambda times: replace(request, tokens=request.tokens * times),
        "H": lambda times: request.with_settings(train={"inner_steps": max(1, round(train.inner_steps * times))}),
        "batch": lambda times: request.with_settings(train={"batch_size": max(1, round(train.batch_size * times))}),
        "degree": lambda times: request.with_settings(
            network={"degree": max(1, round(request.config.network.degree * times))}
        ),
    }
    if request.availability <= 0.5:
        ways["availability"] = lambda times: replace(request, availability=request.availability * times)
    return [Sensitivity(what=what, half=_tried(way, 0.5), twice=_tried(way, 2.0)) for what, way in ways.items()]


def _tried(way: Any, times: float) -> RunForecast | None:
    """None for what cannot be, and for what no number holds."""
    try:
        found = forecast(way(times))
    except (UsageError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found.days) else None
