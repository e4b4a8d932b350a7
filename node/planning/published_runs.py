"""The model against runs that others published (published.toml), and against this project's own.

A row is computed by the functions that every plan is computed by: bits by the codec itself, copies by the same rule,
times and utilization by round_timing.py, own runs by `forecast`. What is not published is marked as assumed. Where a
figure does not follow from the published inputs, the row says what would explain it, and is not counted as met.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from node.config.schema import from_raw
from node.planning.accelerators import accelerator
from node.planning.forecast import PlanRequest, forecast
from node.planning.model_shape import context_of_byte_lm, shape_of_byte_lm, shape_of_size
from node.planning.payload_sizes import encoded_bits, ring_copies
from node.planning.round_timing import PlannedLink, RoundTimes, RoundWork, Transfer, bits_for_utilization, round_times

FP32_BITS: Final = 32.0
ANY_LINK: Final = PlannedLink(up_bits_s=1e9, down_bits_s=1e9, rtt_s=0.0)
"""Of a row whose exchange was measured: it plays no part."""


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """A figure, predicted beside published."""

    name: str
    source: str
    figure: str
    predicted: float
    published: float | None
    within: float | None
    """How far off it may be."""
    explains: bool
    """False: the published inputs are known not to lead to the figure."""
    assumed: tuple[str, ...]
    note: str

    @property
    def met(self) -> bool | None:
        """Return whether it is as near as it may be; None where there is nothing to compare with."""
        if self.published is None or self.within is None:
            return None
        return abs(self.predicted - self.published) <= self.within


def published_rows() -> list[PublishedRow]:
    """Return all rows, others' first."""
    tables = tomllib.loads((resources.files("node.planning") / "published.toml").read_text(encoding="utf-8"))
    return [*(_row(run) for run in tables["run"]), *(_own_row(run) for run in tables["own"])]


def _row(run: Mapping[str, Any]) -> PublishedRow:
    bits = encoded_bits(run["compressor"], **run.get("options", {}))
    if run["pattern"] == "pipeline":
        return _pipeline_row(run, bits)
    fragments = run.get("fragments", 1)
    payload_bytes = run["parameters"] * bits / 8 / fragments
    transfer = _transfer(payload_bytes, _copies(run))
    steps = run["inner_steps"] / fragments
    work = RoundWork(step_s=run["train_s"] / run["inner_steps"], inner_steps=steps)
    figures = _figures(run, bits, work, transfer)
    told = run.get("published", {})
    name = next((each for each in told if each != "within"), next(iter(figures)))
    return PublishedRow(
        name=run["name"],
        source=run["source"],
        figure=name,
        predicted=figures[name],
        published=told.get(name),
        within=told.get("within"),
        explains=run.get("explains", True),
        assumed=tuple(run["assumed"]),
        note=_note(run, transfer),
    )


def _copies(run: Mapping[str, Any]) -> float:
    patterns = {"ring": ring_copies(run["members"]), "pair": ring_copies(2), "publish": float(run.get("takers", 1))}
    return patterns[run["pattern"]]


def _transfer(payload_bytes: float, copies: float) -> Transfer:
    sent = payload_bytes * copies
    return Transfer(sent_bytes=sent, received_bytes=sent, payload_bytes=payload_bytes, one_ways=0)


def _figures(run: Mapping[str, Any], bits: float, work: RoundWork, transfer: Transfer) -> dict[str, float]:
    """Every figure that can be said of a row, the one that says most first."""
    overlap_s = run.get("overlap_s", 0.0)
    figures: dict[str, float] = {}
    if "target" in run:
        wanted = bits_for_utilization(work, transfer, run["target"] / 100, overlap_s=overlap_s)
        figures["link_gbit"] = wanted / 1e9
    if "exchange_s" in run or "up" in run:
        figures["utilization"] = 100 * _times(run, work, transfer, overlap_s).utilization
    each_step = ring_copies(max(2, run["members"])) * FP32_BITS
    copies = _copies(run)
    figures["sent_gb"] = transfer.sent_bytes / 1e9
    figures["fewer_bits"] = each_step * run["inner_steps"] / (copies * bits)
    figures["payload_ratio"] = FP32_BITS / bits
    return figures


def _times(run: Mapping[str, Any], work: RoundWork, transfer: Transfer, overlap_s: float) -> RoundTimes:
    link = PlannedLink(up_bits_s=run["up"], down_bits_s=run["down"], rtt_s=0.0) if "up" in run else ANY_LINK
    return round_times(work, transfer, link, overlap_s=overlap_s, exchange_s=run.get("exchange_s"))


def _note(run: Mapping[str, Any], transfer: Transfer) -> str:
    """What link explains a measured exchange; what a link would have to be."""
    if "exchange_s" in run:
        mbit = 8 * transfer.sent_bytes / run["exchange_s"] / 1e6
        return f"{transfer.sent_bytes / 1e9:.3g} GB out in {run['exchange_s']} s is {mbit:,.0f} Mbit/s"
    if "up" in run:
        return f"{transfer.sent_bytes / 1e9:.3g} GB out take {transfer.sent_bytes * 8 / run['up']:.0f} s"
    return ""


def _pipeline_row(run: Mapping[str, Any], bits: float) -> PublishedRow:
    """A stage of a pipeline: activations to the next one and gradients back to the one before, for every sequence,
    while the next one is computed."""
    shape, device = shape_of_size(run["parameters"]), accelerator(run["device"])
    values = 2 * run["width"] * run["length"]
    transfer = _transfer(values * bits / 8, 1.0)
    work = RoundWork(step_s=shape.flops(1, run["length"]) / device.flops, inner_steps=1)
    wanted = bits_for_utilization(work, transfer, run["target"] / 100)
    told = run.get("published", {})
    return PublishedRow(
        name=run["name"],
        source=run["source"],
        figure="link_gbit",
        predicted=wanted / 1e9,
        published=told.get("link_gbit_at_most"),
        within=None,
        explains=run.get("explains", True),
        assumed=tuple(run["assumed"]),
        note=f"for {run['target']}% of a T4's time; the published links were below that figure",
    )


def _own_row(run: Mapping[str, Any]) -> PublishedRow:
    config = from_raw({"task": {"name": "byte-lm", "size": run["size"]}, "train": {"inner_steps": run["inner_steps"]}})
    shape = shape_of_byte_lm(run["size"])
    found = forecast(
        PlanRequest(
            shape=shape,
            length=context_of_byte_lm(run["size"]),
            config=config,
            nodes=run["nodes"],
            link=PlannedLink(up_bits_s=1e9, down_bits_s=1e9, rtt_s=0.0),
            device=accelerator("cpu-core"),
            tokens=1e6,
        )
    )
    told = run["published"]
    return PublishedRow(
        name=run["name"],
        source=f"docs/benchmarks.md, {run['entry']}",
        figure="sent_over_published",
        predicted=found.sent_bytes / found.traffic.payload_bytes,
        published=told["sent_over_published"],
        within=told["within"],
        explains=True,
        assumed=("bytes beside payloads, which come of the same entry",),
        note="all bytes sent over those of one copy of each update",
    )


def misses(rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Return the rows that are farther off than they may be, though their inputs are said to explain them."""
    return [row for row in rows if row.met is False and row.explains]
