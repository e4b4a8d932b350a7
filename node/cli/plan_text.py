"""A plan as a person reads it, and as a program does."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from node.bench.base import Column, Summary

if TYPE_CHECKING:
    from node.planning.advice import PlanAdvice, Sensitivity
    from node.planning.forecast import RunForecast
    from node.planning.published_links import UtilizationCell
    from node.planning.published_runs import PublishedRow

GIGA = 1e9
WORST = 3
"""Other choices that are shown beside the recommended one."""


def as_json(found: "RunForecast") -> dict[str, Any]:
    """Return a forecast as JSON values, in bytes, seconds and bits a second."""
    request, times, config = found.request, found.times, found.request.config
    low, middle, high = found.loss.ratio
    return {
        "parameters": request.shape.parameters,
        "trained": request.shape.trained,
        "shape_is_assumed": request.shape.is_assumed,
        "nodes": request.nodes,
        "device": request.device.name,
        "device_is_assumed": request.calibration is None and request.step_s is None and request.device.mfu_is_assumed,
        "strategy": config.sync.strategy,
        "compressor": config.sync.compressor,
        "degree": found.traffic.neighbours,
        "inner_steps": config.train.inner_steps,
        "batch": config.train.batch_size * config.train.grad_accumulation,
        "length": request.length,
        "tokens": request.tokens,
        "step_s": found.step_s,
        "evaluation_s": found.evaluation_s,
        "round": {
            "train_s": times.train_s,
            "send_s": times.send_s,
            "receive_s": times.receive_s,
            "latency_s": times.latency_s,
            "codec_s": times.codec_s,
            "exchange_s": times.exchange_s,
            "round_s": times.round_s,
            "late_steps": times.late_steps,
            "effective_steps": times.effective_steps,
            "staleness_rounds": times.staleness_rounds,
        },
        "utilization": times.utilization,
        "payload_bytes": found.traffic.payload_bytes,
        "peak_bytes": found.traffic.peak_bytes,
        "copies": found.traffic.copies,
        "sent_bytes": found.sent_bytes,
        "published_bits": found.published_bits,
        "sent_bits": found.sent_bits,
        "rounds": found.rounds,
        "days": found.days,
        "days_to_equal_loss": found.days_to_equal_loss,
        "loss_ratio": {"low": low, "middle": middle, "high": high},
        "penalties": [
            {
                "cause": each.cause,
                "low": each.low,
                "middle": each.middle,
                "high": each.high,
                "entry": each.entry,
                "note": each.note,
            }
            for each in found.loss.penalties
        ],
        "extrapolations": list(found.loss.extrapolations),
        "device_bytes": found.device.total,
        "device_least_bytes": found.device.least,
        "host_bytes": found.host.total,
        "robust_share": found.robust_share,
        "crash_s": found.crash_s,
        "kwh": found.kwh,
        "sent_gb": found.sent_gb,
        "cost": found.cost,
        "binding": found.binding,
        "problems": list(found.problems),
    }


def tables(found: "RunForecast", advice: "PlanAdvice", around: Sequence["Sensitivity"]) -> list[Summary]:
    """Return the tables of a plan."""
    shown = [_main(found), _loss(found), _choices(advice)]
    if around:
        shown.append(_around(found, around))
    return shown


def _main(found: "RunForecast") -> Summary:
    request, times, config = found.request, found.times, found.request.config
    memory = f"{_gb(found.device.total)}, {_gb(found.device.least)} with one sequence at a time"
    if request.on_gpu:
        fits = found.device.sequences(request.device.memory_bytes)
        memory += f", of {_gb(request.device.memory_bytes)}: " + (
            "does not fit"
            if not fits
            else f"{min(fits, config.train.batch_size)} of {config.train.batch_size} at a time"
        )
    lines = [
        ("binding", found.binding),
        (
            "round",
            f"{_time(times.round_s)}: {config.train.inner_steps} steps of {_time(found.step_s)}, evaluations "
            f"{_time(found.evaluation_s)}; exchange "
            f"{_time(times.exchange_s)}",
        ),
        (
            "exchange",
            f"out {_time(times.send_s)}, in {_time(times.receive_s)}, latency {_time(times.latency_s)}, codecs "
            f"and averaging {_time(times.codec_s)}",
        ),
        (
            "utilization",
            f"{100 * times.utilization:.1f}% of the time in planned steps; results {times.late_steps:.1f} "
            f"steps late ({times.staleness_rounds:.2f} rounds)",
        ),
        (
            "bytes a round",
            f"payload {_gb(found.traffic.payload_bytes)} ({found.published_bits:.3g} bits a parameter), "
            f"{found.traffic.copies:.3g} copies sent: {_gb(found.sent_bytes)}",
        ),
        ("memory, device", memory if request.on_gpu else "a CPU: in main memory"),
        (
            "memory, main",
            f"{_gb(found.host.total)}: anchor {_gb(found.host.anchor)}, estimates "
            f"{_gb(found.host.estimates)}, payloads {_gb(found.host.payloads)}",
        ),
        ("length", f"{found.rounds:,} rounds, {_days(found.days)} for {request.tokens:.3g} tokens"),
        (
            "energy, traffic",
            f"{found.kwh:,.0f} kWh and {found.sent_gb:,.0f} GB of all members"
            + (f"; cost {found.cost:,.0f}" if found.cost else ""),
        ),
        ("crash", f"costs {_time(found.crash_s)}: half a round's steps, and the models to come back"),
    ]
    if request.availability < 1:
        lines.append(
            (
                "there",
                f"{request.present} of {request.nodes}; enough for the aggregator "
                f"{100 * found.robust_share:.1f}% of the time",
            )
        )
    c = config.sync
    title = (
        f"{request.shape.parameters:,} parameters, {request.nodes} members: {c.strategy}, {c.compressor}, "
        f"H = {config.train.inner_steps}, {found.traffic.neighbours} neighbours"
    )
    rows = [{"what": what, "value": value} for what, value in lines]
    return Summary(title=title, columns=_PAIR, rows=rows, notes=_assumptions(found))


def _assumptions(found: "RunForecast") -> list[str]:
    from node.planning.advice import LARGEST_EXCHANGE

    request, notes = found.request, []
    if request.shape.is_assumed:
        notes.append(
            f"assumed: {request.shape.layers} layers of width {request.shape.width}, from the number of parameters"
        )
    if request.step_s is None and request.calibration is None and request.device.mfu_is_assumed:
        notes.append(
            f"assumed: {request.device.name} reaches {100 * request.device.mfu:.0f}% of its "
            f"{request.device.peak_flops / 1e12:g} TFLOP/s (bench calibrate measures it)"
        )
    if request.config.sync.strategy == "allreduce" and request.nodes > LARGEST_EXCHANGE:
        notes.append(
            f"an exchange has {LARGEST_EXCHANGE} members at most: {request.nodes} are cut into groups, which this "
            "project has not measured"
        )
    if request.calibration is None:
        notes.append("codecs, averaging and overhead: as measured on the project's machine (docs/benchmarks.md)")
    return notes


def _loss(found: "RunForecast") -> Summary:
    low, middle, high = found.loss.ratio
    rows = [
        {
            "cause": each.cause,
            "low": 100 * each.low,
            "middle": 100 * each.middle,
            "high": 100 * each.high,
            "note": each.note or None,
        }
        for each in found.loss.penalties
    ]
    notes = [
        f"loss over averaging after every step among 8, uncoded: {middle:.3f} times ({low:.3f} to {high:.3f}); "
        f"as many tokens take {_days(found.days)}, the same loss {_days(found.days_to_equal_loss)}",
        "a ratio, from small models: an absolute loss needs a pilot run of your own",
        *(f"EXTRAPOLATED, {each}" for each in found.loss.extrapolations),
    ]
    columns = (
        Column(key="cause", title="costs in loss"),
        Column(key="low", title="low", unit="%", digits=1),
        Column(key="middle", title="middle", unit="%", digits=1),
        Column(key="high", title="high", unit="%", digits=1),
        Column(key="note", title="note"),
    )
    return Summary(title="Loss, by this project's measured tables", columns=columns, rows=rows, notes=notes)


def _choices(advice: "PlanAdvice") -> Summary:
    rows = [
        {
            "strategy": each.request.config.sync.strategy,
            "codec": _codec(each),
            "degree": each.traffic.neighbours,
            "steps": each.request.config.train.inner_steps,
            "utilization": 100 * each.times.utilization,
            "days": each.days,
            "equal": each.days_to_equal_loss,
            "binding": each.binding,
        }
        for each in advice.others[: WORST + 1]
    ]
    columns = (
        Column(key="strategy", title="strategy"),
        Column(key="codec", title="codec"),
        Column(key="degree", title="neighbours"),
        Column(key="steps", title="H"),
        Column(key="utilization", title="utilization", unit="%", digits=1),
        Column(key="days", title="time", unit="days", digits=3),
        Column(key="equal", title="to the same loss", unit="days", digits=3),
        Column(key="binding", title="binding"),
    )
    return Summary(title="Recommended (first), and what is next to it", columns=columns, rows=rows)


def _codec(found: "RunForecast") -> str:
    ratio = found.request.config.sync.options.get("ratio")
    return found.request.config.sync.compressor + (f" 1/{1 / ratio:.0f}" if isinstance(ratio, float) else "")


def _around(found: "RunForecast", around: Sequence["Sensitivity"]) -> Summary:
    rows = [
        {
            "what": each.what,
            "half": None if each.half is None else each.half.days,
            "half_utilization": None if each.half is None else 100 * each.half.times.utilization,
            "twice": None if each.twice is None else each.twice.days,
            "twice_utilization": None if each.twice is None else 100 * each.twice.times.utilization,
        }
        for each in around
    ]
    columns = (
        Column(key="what", title="of what"),
        Column(key="half", title="half", unit="days", digits=3),
        Column(key="half_utilization", title="utilization", unit="%", digits=1),
        Column(key="twice", title="twice", unit="days", digits=3),
        Column(key="twice_utilization", title="utilization", unit="%", digits=1),
    )
    notes = [f"as planned: {found.days:.2f} days, {100 * found.times.utilization:.1f}%"]
    return Summary(title="Half and twice of each input", columns=columns, rows=rows, notes=notes)


def published_table(rows: Sequence["PublishedRow"]) -> Summary:
    """Return the table of `--published`."""
    words = {True: "yes", False: "NO", None: None}
    shown = [
        {
            "name": row.name,
            "figure": row.figure,
            "predicted": row.predicted,
            "published": row.published,
            "met": "not explained" if not row.explains else words[row.met],
            "note": row.note or None,
        }
        for row in rows
    ]
    columns = (
        Column(key="name", title="run"),
        Column(key="figure", title="figure"),
        Column(key="predicted", title="predicted", digits=3),
        Column(key="published", title="published", digits=3),
        Column(key="met", title="near enough"),
        Column(key="note", title="note", spare=True),
    )
    notes = [
        "utilization in %, link_gbit in Gbit/s for the utilization that the paper asks for, sent_gb a round",
        "fewer_bits: than an fp32 ring all-reduce at every step; payload_ratio: fp32 over the payload",
        "assumed inputs of each row: --json, and node/planning/published.toml",
    ]
    return Summary(title="Published runs", columns=columns, rows=shown, notes=notes)


def utilization_table(cells: Sequence["UtilizationCell"]) -> Summary:
    """Return the table of `--published` on links: a row a bandwidth, the published share and ours."""
    rows = [
        {
            "model": f"{cell.parameters / 1e9:g}B, {cell.step_s:g} s",
            "method": cell.method,
            "gbit": cell.gbit,
            "published": cell.published,
            "ours": cell.ours,
            "setup": f"{cell.strategy}, {cell.compressor}, H = {cell.inner_steps}",
            "theirs": cell.at_their_inner_steps,
        }
        for cell in cells
    ]
    columns = (
        Column(key="model", title="model, step"),
        Column(key="method", title="published method"),
        Column(key="gbit", title="link", unit="Gbit/s", digits=1),
        Column(key="published", title="published", unit="%", digits=0),
        Column(key="ours", title="ours", unit="%", digits=1),
        Column(key="theirs", title="ours, H = 100", unit="%", digits=1),
        Column(key="setup", title="recommended there", spare=True),
    )
    below = sum(not cell.at_or_above for cell in cells)
    notes = [f"{len(cells) - below} of {len(cells)} cells at or above the published share (2501.18512, table 4)"]
    notes += [f"{cell.parameters / 1e9:g}B at {cell.gbit:g} Gbit/s: {cell.reason}" for cell in cells if cell.reason]
    title = "Share of the time in planned steps, on the links of a published table"
    return Summary(title=title, columns=columns, rows=rows, notes=list(dict.fromkeys(notes)))


_PAIR = (Column(key="what", title="what"), Column(key="value", title="foretold"))


def _gb(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value / 1e3:,.3g} kB"


def _time(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:,.4g} s" if value < 7200 else f"{value / 3600:,.3g} h"


def _days(value: float) -> str:
    return f"{value:,.3g} days" if value >= 1 else _time(value * 86_400)
