"""What a choice costs in loss, from this project's measured tables (losses.toml), as ratios with an interval.

The reference, of ratio 1, is `tracked_gossip` averaging after every step (H = 1) over all of up to 8 members, without a
codec. Never an absolute loss: that depends on data and tokenizer, and needs a pilot run.

    H            a mean per cent per doubling of H + 2 late_steps, by strategy; steps that count (round_timing.py)
    codec        against dense averaging under the same strategy; where that was not run, under tracked_gossip
                 sparse, with error feedback: as 1 / sqrt(share sent x rounds), for a value waits for its turn
    strategy     against tracked_gossip
    neighbours   in proportion to the share of the members that a node does not hear, by strategy
    members      as many tokens are fewer steps of larger batches: what these steps would have brought, less what the
                 larger batch brings, a doubling from 8 members on; a gain below 8

The middle of an interval is the mean of the rows, its ends are the least and the largest of them (two standard errors
of three seeds, for codecs). Causes are added as if they were independent, which is not measured.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

from p2ptrain.sync import SyncConfig

FEW_MEMBERS: Final = 8
"""Members of the runs that H and codecs were measured with."""
LATE_COUNTS: Final = 2
"""Inner steps that a step of lateness costs as many as (docs/benchmarks.md, "Overlap")."""
FAR: Final = 10.0
"""Times what was measured, beyond which a plan says that it extrapolates."""
SEEDS: Final = 3
BASIS: Final = "tracked_gossip"


@dataclass(frozen=True, kw_only=True)
class LossPenalty:
    """A relative rise in loss, as a natural logarithm: 0.01 is a per cent."""

    cause: str
    low: float
    middle: float
    high: float
    entry: str
    """Heading of docs/benchmarks.md with the rows that it comes of; several are joined by "; "."""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LossOutlook:
    """All that a run's choices cost in loss."""

    penalties: tuple[LossPenalty, ...]
    extrapolations: tuple[str, ...]
    """What lies more than ten times beyond what was measured, a sentence each."""
    slope: tuple[float, float, float]
    """By how much the logarithm of the loss falls as that of the steps rises: low, middle, high."""

    def total(self, which: str = "middle") -> float:
        """Return the sum of the penalties: low, middle or high."""
        return float(sum(getattr(each, which) for each in self.penalties))

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Return the loss over that of the reference at as many tokens: low, middle, high."""
        return math.exp(self.total("low")), math.exp(self.total()), math.exp(self.total("high"))

    @property
    def time_factor(self) -> float:
        """Return how many times as long a run has to be to come to the loss of the reference, by the middle values."""
        return math.exp(min(700.0, self.total() / self.slope[1]))


@dataclass(frozen=True, kw_only=True)
class LearningChoice:
    """What the loss depends on, of a plan."""

    strategy: str
    compressor: str
    inner_steps: float
    late_steps: float
    neighbours: int
    nodes: int
    parameters: float
    rounds: float
    exact: bool
    """Whether a round averages over all members, however many neighbours there are."""


def outlook(choice: LearningChoice) -> LossOutlook:
    """Return what the choice costs."""
    tables = loss_tables()
    penalties = (
        _of_steps(tables, choice),
        _of_codec(tables, choice),
        _of_strategy(tables, choice),
        _of_neighbours(tables, choice),
        _of_members(tables, choice),
    )
    return LossOutlook(
        penalties=penalties,
        extrapolations=tuple(_extrapolations(tables["measured"], choice)),
        slope=_slope(tables),
    )


def codec_label(sync: SyncConfig) -> str:
    """Return what a codec is called in the tables: its name, and the share of values that it keeps where that was
    chosen."""
    ratio = sync.codec_options().get("topk.ratio")
    return sync.compressor if ratio is None else f"{sync.compressor}@{ratio:g}"


@cache
def loss_tables() -> Mapping[str, Any]:
    """Return the measured tables."""
    return tomllib.loads((resources.files("node.planning") / "losses.toml").read_text(encoding="utf-8"))


def entries() -> set[str]:
    """Return every heading of docs/benchmarks.md that the tables name."""
    tables = loss_tables()
    rows = [row for rows in tables.values() if isinstance(rows, list) for row in rows]
    return {str(row["entry"]) for row in (*rows, tables["codecs"])}


def _rise(losses: Sequence[float]) -> float:
    before, after = losses
    return math.log(after / before)


def _spread(
    cause: str,
    rows: Sequence[Mapping[str, Any]],
    unit: Sequence[float],
    times: float,
    *,
    ends: tuple[float, float] | None = None,
    **more: str,
) -> LossPenalty:
    """A penalty of so many `times` what a unit costs, `unit` being what each row says of it, `ends` the least and the
    most. One row alone says nothing of a spread: the interval is then from 0 to twice it."""
    if ends is None:
        ends = (0.0, 2 * unit[0]) if len(unit) == 1 else (min(unit), max(unit))
    low, high = sorted(times * end for end in ends)
    return LossPenalty(
        cause=cause,
        low=low,
        middle=times * sum(unit) / len(unit),
        high=high,
        entry="; ".join(dict.fromkeys(str(row["entry"]) for row in rows)),
        **more,
    )


def _rows_of(rows: Sequence[Mapping[str, Any]], strategy: str) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of a strategy, and a note where they are of another one."""
    own = [row for row in rows if row["strategy"] == strategy]
    if own:
        return own, ""
    other = BASIS if any(row["strategy"] == BASIS for row in rows) else str(rows[0]["strategy"])
    return [row for row in rows if row["strategy"] == other], f"not measured under {strategy}: as under {other}"


def _of_steps(tables: Mapping[str, Any], choice: LearningChoice) -> LossPenalty:
    rows, note = _rows_of(tables["inner_steps"], choice.strategy)
    doubling = [_rise(row["loss"]) / math.log2(row["steps"][1] / row["steps"][0]) for row in rows]
    times = math.log2(max(1.0, choice.inner_steps + LATE_COUNTS * choice.late_steps))
    return _spread("H and lateness", rows, doubling, times, note=note)


def _slope(tables: Mapping[str, Any]) -> tuple[float, float, float]:
    slopes = [-_rise(row["loss"]) / math.log(row["steps"][1] / row["steps"][0]) for row in tables["length"]]
    return min(slopes), sum(slopes) / len(slopes), max(slopes)


def _of_sparse(rows: Sequence[Mapping[str, Any]], share: float, rounds: float) -> LossPenalty:
    """Of a share of the values a round, with error feedback: what is left out comes later, the last of it never."""
    unit = [_rise(row["loss"]) * math.sqrt(row["share"] * row["rounds"]) for row in rows]
    return _spread("codec", rows, unit, 1 / math.sqrt(share * rounds))


def _of_codec(tables: Mapping[str, Any], choice: LearningChoice) -> LossPenalty:
    sparse = [row for row in tables["sparse"] if row["strategy"] == choice.strategy]
    name, _, share = choice.compressor.rpartition("@")
    if sparse and name.endswith("topk"):
        return _of_sparse(sparse, float(share), choice.rounds)
    found, codec = tables["codecs"], choice.compressor.removeprefix("lossless+")  # which loses nothing
    own, general = found.get(choice.strategy, {}), found[BASIS]
    table, note = (own, "") if codec in own else (general, f"not measured under {choice.strategy}: as under {BASIS}")
    if codec not in table and codec.split("+")[-1] in table:
        codec = codec.split("+")[-1]
        note = f"{choice.compressor} was not measured: as {codec}"
    if codec not in table:
        worst = max(table, key=lambda name: table[name][0])
        return LossPenalty(
            cause="codec",
            low=0.0,
            middle=_rise((table["none"][0], table[worst][0])),
            high=_rise((table["none"][0], table[worst][0])),
            entry=found["entry"],
            note=f"{choice.compressor} was not measured: as bad as the worst that was ({worst})",
        )
    (dense, dense_std), (loss, std) = table["none"], table[codec]
    of = choice.strategy if table is own else BASIS
    more = [row for row in tables["codec_runs"] if (row["strategy"], row["codec"]) == (of, codec)]
    first, others = _rise((dense, loss)), [_rise(row["loss"]) for row in more]
    # The same seeds draw the same data, so that this error is an upper bound.
    error = 0.0 if codec == "none" else 2 * math.hypot(std / loss, dense_std / dense) / math.sqrt(SEEDS)
    return LossPenalty(
        cause="codec",
        low=min(first - error, *others, first),
        middle=(first + sum(others)) / (1 + len(others)),
        high=max(first + error, *others, first),
        entry="; ".join(dict.fromkeys([str(found["entry"]), *(str(row["entry"]) for row in more)])),
        note=note,
    )


def _of_strategy(tables: Mapping[str, Any], choice: LearningChoice) -> LossPenalty:
    if choice.strategy == BASIS:
        return LossPenalty(cause="strategy", low=0, middle=0, high=0, entry="")
    rows = [row for row in tables["strategies"] if row["strategy"] == choice.strategy]
    if not rows:
        return LossPenalty(
            cause="strategy", low=0, middle=0, high=0, entry="", note=f"{choice.strategy} was not measured: taken as 0"
        )
    return _spread("strategy", rows, [_rise(row["loss"]) for row in rows], 1.0)


def _of_neighbours(tables: Mapping[str, Any], choice: LearningChoice) -> LossPenalty:
    rows, _ = _rows_of(tables["neighbours"], choice.strategy)
    unheard = [_rise(row["loss"]) / (1 - row["neighbours"] / (row["nodes"] - 1)) for row in rows]
    others = max(1, choice.nodes - 1)
    return _spread("neighbours", rows, unheard, 0.0 if choice.exact else max(0.0, 1 - choice.neighbours / others))


def _of_members(tables: Mapping[str, Any], choice: LearningChoice) -> LossPenalty:
    """As many tokens among twice the members are half the steps. The interval: from members whose larger batch makes up
    for that (models below their critical batch, 1812.06162) to members who bring nothing."""
    rows, note = _rows_of(tables["members"], choice.strategy)
    half_the_steps = _slope(tables)[1] * math.log(2)
    doubling = [half_the_steps + _rise(row["loss"]) / math.log2(row["nodes"][1] / row["nodes"][0]) for row in rows]
    times = math.log2(max(1, choice.nodes) / FEW_MEMBERS)
    return _spread("members", rows, doubling, times, ends=(0.0, half_the_steps), note=note if times else "")


def _extrapolations(measured: Mapping[str, Sequence[float]], choice: LearningChoice) -> list[str]:
    values = {
        "parameters": choice.parameters,
        "nodes": float(choice.nodes),
        "inner_steps": choice.inner_steps,
        "rounds": choice.rounds,
    }
    said = {"inner_steps": "H"}
    found = []
    for key, value in values.items():
        least, most = measured[key]
        if value > FAR * most or value < least / FAR:
            times = value / most if value > most else least / value
            words = f"{value:.4g} is {times:,.0f} times beyond what was measured ({least:g} to {most:g})"
            found.append(f"{said.get(key, key)}: {words}")
    return found
