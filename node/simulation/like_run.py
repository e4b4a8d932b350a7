"""A scenario like a run that was: sizes, settings, speeds and links as its nodes' logs tell them, and a comparison.

Known from a log are a node's step time and how it varied, how long encoding, aggregating and an exchange took, and when
it started. A swarm of one region has one latency then; rates of links are left open, since no log tells them from
latencies. Not known are the time of evaluations, and what went wrong outside: add events for that.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, Final

import tomli_w

from node.config.toml_source import Raw, read_file
from node.simulation.verdict import Course
from node.system.errors import UsageError
from node.system.run_dir import CONFIG, EVENTS, SUMMARY, node_dirs

LEAST_LATENCY_MS: Final = 0.2
"""One way, between processes of one machine."""

EXCHANGE_TRIPS: Final = 6.3
"""Times that an exchange goes one way: announcement, a stream, a request, its answer. Measured in twins with latencies
of 0.2 to 25 ms, whose exchanges took 16 to 175 ms."""

FEWEST_ROUNDS: Final = 3
"""Of a node, from which speeds are told."""

MOST_SECONDS: Final = 1e11
"""Of a time in a log: some three thousand years. Others are no times."""

MOST_SIGMA: Final = 1.0
"""Of a lognormal distribution: beyond it the mean says little."""

OF_THE_HOST: Final[Mapping[str, frozenset[str]]] = {
    "train": frozenset({"device", "threads", "compile", "precision"}),
    "network": frozenset(
        {
            *("peers", "peers_file", "mdns", "listen", "announce", "upnp", "address_book", "quiet_hours", "relay"),
            *("hash_in_thread_above", "unbounded_networks", "up_bytes_per_s", "down_bytes_per_s"),
        }
    ),
    "node": frozenset(
        {
            *(
                "name",
                "lane",
                "estimates_on",
                "optimizer_on",
                "micro_batch",
                "metrics_host",
                "metrics_port",
                "status_token_file",
                "below_minimum",
            ),
            *("shard_index", "wait_timeout_s", "role"),
        }
    ),
}
"""Settings that belong to a machine, and not to what is simulated."""

SECTIONS: Final = ("task", "train", "sync", "network", "node")


@dataclass(frozen=True, kw_only=True)
class RealNode:
    """What the log of one node tells."""

    name: str
    settings: Raw
    starts_s: float
    rounds: int
    round_s: float
    """Median seconds from the end of a round to that of the next."""
    all_rounds_s: float
    """From the first round's end to the last's."""
    ends_s: float
    """When it closed its last round, from the first node's start."""
    steps: float
    """Mean of a round."""
    step_s: float
    """So that steps with `round_sigma` have the mean that they had."""
    round_sigma: float
    """Of a lognormal distribution: how they differ from round to round."""
    work_s: float
    """Median seconds of encoding and of averaging, as wholes: waiting for the model's turn is in them."""
    exchange_s: float | None
    """Median time until a quorum's updates were there."""
    mean_work_s: float
    """From the second round on."""
    mean_exchange_s: float | None
    """From the second round on."""
    bytes_sent: int | None
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A figure of a run, and of its twin."""

    what: str
    unit: str
    real: float | None
    simulated: float | None

    @property
    def off(self) -> float | None:
        """Return by what share the twin is off."""
        if self.real is None or self.simulated is None or self.real == 0:
            return None
        return self.simulated / self.real - 1


def real_nodes(run: Path) -> list[RealNode]:
    """Read the nodes of a run folder. UsageError where none has closed rounds enough."""
    logs = {folder: list(_events(folder / EVENTS)) for folder in node_dirs(run)}
    begins = min((each[0]["ts"] for each in logs.values() if each), default=0.0)
    found = [_node(folder, events, begins) for folder, events in sorted(logs.items()) if _rounds(events)]
    if not found or max(node.rounds for node in found) < FEWEST_ROUNDS:
        raise UsageError(f"no node of {run} has closed {FEWEST_ROUNDS} rounds", "let it run for longer")
    return found


def scenario_like(run: Path) -> str:
    """Return a scenario file (TOML) like the run in a folder. UsageError where it holds none."""
    nodes = real_nodes(run)
    common = nodes[0].settings
    raw: Raw = {
        "about": f"like the run {run.name}: speeds and settings by its nodes' logs",
        "seed": int(common.get("train", {}).get("seed", 0)),
        "until_s": round(2 * max(node.ends_s for node in nodes) + 60.0, 1),
    }
    raw |= {section: _simulated(section, common.get(section, {})) for section in SECTIONS}
    raw["regions"] = [{"name": "here", "latency_ms": {"here": _latency_ms(nodes)}}]
    names = _names(nodes)
    raw["devices"] = {names[node.name]: _device(node) for node in nodes}
    raw["nodes"] = [_group(names[node.name], node, common) for node in nodes]
    return tomli_w.dumps(raw)


def compared(nodes: Sequence[RealNode], course: Course) -> list[Compared]:
    """Hold a run's figures against those of its twin."""
    twins = list(course.honest)
    nodes = [node for node in nodes if node.settings.get("attack", {}).get("name", "none") == "none"] or list(nodes)
    gaps = [gap for node in twins for gap in _gaps([at for at, _ in node.told.closed])]
    losses = [node.told.loss for node in twins if node.told.loss is not None]
    return [
        Compared(
            what="round (median)",
            unit="s",
            real=median(node.round_s for node in nodes),
            simulated=median(gaps) if gaps else None,
        ),
        Compared(
            what="first round's end to the last's",
            unit="s",
            real=_mean([node.all_rounds_s for node in nodes]),
            simulated=_mean([it.told.closed[-1][0] - it.told.closed[0][0] for it in twins if it.told.closed]),
        ),
        Compared(
            what="bytes sent by a node",
            unit="B",
            real=_mean([node.bytes_sent for node in nodes]),
            simulated=_mean([node.bytes_sent for node in twins]),
        ),
        Compared(
            what="held-out loss",
            unit="",
            real=_mean([node.loss for node in nodes]),
            simulated=fmean(losses) if losses else None,
        ),
    ]


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log that are events; others are passed over."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and _is_number(event.get("ts")):
                yield event


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value < MOST_SECONDS


def _rounds(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rounds of its newest process."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("event") == "round" and _is_number(event.get("step_s")) and isinstance(event.get("round"), int):
            if found and event["round"] <= found[-1]["round"]:
                found = []
            found.append(event)
    return found


def _node(folder: Path, events: Sequence[Mapping[str, Any]], begins: float) -> RealNode:
    rounds = _rounds(events)
    settings: Raw = dict(read_file(folder / CONFIG)) if (folder / CONFIG).is_file() else {}
    gaps = _gaps([float(event["ts"]) for event in rounds])
    steps = [max(1.0, float(event["steps"]) if _is_number(event.get("steps")) else 1.0) for event in rounds]
    each = _step_seconds(rounds, gaps, steps, overlaps=settings.get("node", {}).get("overlap", True) is not False)
    spread = pstdev([math.log(value) for value in each if value > 0]) if len(each) > 1 else 0.0
    round_sigma = min(MOST_SIGMA, spread)
    work, exchanges = _numbers(rounds, "publish_s", "aggregate_s"), _numbers(rounds, "exchange_s")
    later_work, later_exchanges = _numbers(rounds[1:], "publish_s", "aggregate_s"), _numbers(rounds[1:], "exchange_s")
    told = _summary(folder / SUMMARY)
    return RealNode(
        name=folder.name,
        settings=settings,
        starts_s=max(0.0, float(events[0]["ts"]) - begins),
        rounds=len(rounds),
        round_s=median(gaps) if gaps else 0.0,
        all_rounds_s=sum(gaps),
        ends_s=float(rounds[-1]["ts"]) - begins,
        steps=fmean(steps[1:] or steps),
        step_s=median(each) if spread == 0 else fmean(each) / math.exp(round_sigma**2 / 2),
        round_sigma=round_sigma,
        work_s=median(work) if work else 0.0,
        exchange_s=median(exchanges) if exchanges else None,
        mean_work_s=fmean(later_work) if later_work else 0.0,
        mean_exchange_s=fmean(later_exchanges) if later_exchanges else None,
        bytes_sent=told.get("bytes_sent"),
        loss=told.get("eval_loss_last"),
    )


def _numbers(rounds: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    return [float(event[key]) for event in rounds for key in keys if _is_number(event.get(key))]


def _step_seconds(
    rounds: Sequence[Mapping[str, Any]], gaps: Sequence[float], steps: Sequence[float], *, overlaps: bool
) -> list[float]:
    """What a step took, by round. Where training never waits a round is its steps, and what a node does between them is
    part of their time; else only the time inside steps is theirs."""
    if overlaps and gaps:
        return [gap / count for gap, count in zip(gaps, steps[1:], strict=True)]
    return [float(event["step_s"]) for event in rounds]


def _gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def _summary(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _simulated(section: str, settings: Raw) -> Raw:
    left_out = OF_THE_HOST.get(section, frozenset())
    return {key: value for key, value in settings.items() if key not in left_out}


def _latency_ms(nodes: Sequence[RealNode]) -> float:
    """The latency by which exchanges take what they took. What an event loop takes for them is in it."""
    one_way = [(node.exchange_s - node.work_s) / EXCHANGE_TRIPS for node in nodes if node.exchange_s is not None]
    return round(max(LEAST_LATENCY_MS, 1000 * median(one_way)), 2) if one_way else LEAST_LATENCY_MS


def _device(node: RealNode) -> Raw:
    told = {"step_s": node.step_s, "round_sigma": node.round_sigma}
    told |= dict.fromkeys(("encode_s", "decode_s", "aggregate_s", "other_s"), node.work_s)
    return {key: float(f"{value:.4g}") for key, value in told.items() if value > 0}


def _group(name: str, node: RealNode, common: Raw) -> Raw:
    group: Raw = {"name": name, "device": name, "region": "here"}
    if node.starts_s > 0:
        group["starts_s"] = round(node.starts_s, 3)
    differs = {
        section: own
        for section in SECTIONS
        if (own := _simulated(section, node.settings.get(section, {}))) != _simulated(section, common.get(section, {}))
    }
    shard = node.settings.get("node", {})
    if "shard_index" in shard:
        differs.setdefault("node", {})
        differs["node"] |= {key: shard[key] for key in ("shard_index", "shard_count") if key in shard}
    if differs:
        group["settings"] = differs
    attack = node.settings.get("attack", {})
    if attack.get("name", "none") != "none":
        group["attack"] = attack
    return group


def _names(nodes: Sequence[RealNode]) -> dict[str, str]:
    """Names of groups, by those of folders: as like them as may be, and each its own."""
    found: dict[str, str] = {}
    for number, node in enumerate(nodes):
        plain = node.name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", node.name) else f"node-{number}"
        found[node.name] = plain if plain not in found.values() else f"node-{number}-of-them"
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
