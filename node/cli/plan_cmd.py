"""`p2ptrain plan`: what a run will take, before it is started."""

import json as jsonlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from node.cli import options
from node.system.errors import UsageError

if TYPE_CHECKING:
    from node.config.schema import Config
    from node.planning.advice import PlanAdvice
    from node.planning.calibration import MachineCalibration
    from node.planning.forecast import PlanRequest, RunForecast
    from node.planning.model_shape import ModelShape

T = TypeVar("T")

DOWN_TO_UP = 5.0
"""Downlink over uplink where only one is given: home links have 5:1 to 20:1."""
USUAL_RTT = "80ms"
MOST_PARAMETERS = 1e14
"""Ten times the largest models that are spoken of."""
MOST_TOKENS = 1e20
"""A thousand times those of the largest model, and more text than there is."""

USUAL_LENGTH = 2048
"""Tokens of a sequence, of a model that does not say."""

Quantity = Annotated[str | None, typer.Option(metavar="N")]


def plan(
    params: Annotated[
        str | None, typer.Option(metavar="N", help="Parameters: 7e9, 7B, 350M. Or --hf-config, or --size.")
    ] = None,
    hf_config: Annotated[
        Path | None, typer.Option("--hf-config", metavar="PATH", help="A model's config.json, or its folder.")
    ] = None,
    size: Annotated[str | None, typer.Option(help="A byte-lm: pico, nano, micro, small, base.")] = None,
    trained: Annotated[
        str | None, typer.Option(metavar="N", help="Parameters that are trained, of a frozen model in bf16 (LoRA).")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Members of the swarm, 2 or more.")] = 8,
    uplink: Annotated[str, typer.Option(metavar="RATE", help="Of a member: 20Mbit, 2.5MB.")] = "20Mbit",
    downlink: Annotated[str | None, typer.Option(metavar="RATE", help="(default: 5 times the uplink)")] = None,
    rtt: Annotated[str, typer.Option(metavar="TIME", help="Round trip to another member.")] = USUAL_RTT,
    device: Annotated[
        str, typer.Option(help="What a member trains on: rtx4090, t4, h100-sxm, cpu-core, ...")
    ] = "rtx4090",
    mfu: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Of the device's peak that training reaches.")
    ] = None,
    step_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of a step, as measured, in place of the device's.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of `p2ptrain bench calibrate`: measured in place of tables.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="That all train on together. (default: 20 a parameter)")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="sync.strategy. (default: recommended)")] = None,
    compressor: Annotated[str | None, typer.Option(help="sync.compressor. (default: recommended)")] = None,
    inner_steps: Annotated[int | None, typer.Option(help="H. (default: recommended)")] = None,
    degree: Annotated[int | None, typer.Option(help="Neighbours of a member. (default: recommended)")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences of a step. (default: train.batch_size)")] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens of a sequence. (default: the model's, else 2048)")] = None,
    liars: Annotated[
        int | None, typer.Option(help="To withstand. 0: all trust each other. (default: sync.f where given, else 1)")
    ] = None,
    overlap: Annotated[bool, typer.Option(help="Train on while a round closes.")] = True,
    availability: Annotated[str, typer.Option(metavar="SHARE", help="Of the time that a member is there: 90%.")] = "1",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Main memory of a member: 64GB.")] = None,
    price_kwh: Annotated[float, typer.Option(help="Of a kWh.")] = 0.0,
    price_gpu_hour: Annotated[float, typer.Option(help="Of an hour of a device.")] = 0.0,
    price_gb: Annotated[float, typer.Option(help="Of a GB sent.")] = 0.0,
    config: options.Files = None,
    set_: options.Sets = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="Write the settings, for --config.")] = None,
    scenario: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write the same run as a scenario to simulate.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Instead: runs that others published, predicted and published.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Foretell a run: memory, bytes, the time of a round and what bounds it, days, energy, and what to set.

    What is not given of --strategy, --compressor, --inner-steps and --degree is recommended. Losses are ratios, from
    this project's own small models; what lies far beyond them is marked.
    """
    from node.cli import plan_asked, plan_files, plan_liars
    from node.config.sections import merged
    from node.planning import quantities
    from node.planning.forecast import Prices

    if published:
        _show_published(json=json)
        return
    for option, value, least, example in (
        ("--nodes", nodes, 2, "8"),
        ("--inner-steps", inner_steps, 1, "20"),
        ("--degree", degree, 1, "4"),
        ("--batch", batch, 1, "16"),
        ("--seq", seq, 1, "2048"),
        ("--liars", liars, 0, "1"),
        ("--price-kwh", price_kwh, 0, "0.3"),
        ("--price-gpu-hour", price_gpu_hour, 0, "0.2"),
        ("--price-gb", price_gb, 0, "0.05"),
    ):
        _at_least(option, value, least, example)
    _check_together(step_time, mfu, calibration)
    read = [*(config or ()), *(each for each in (calibration, hf_config) if each is not None)]
    plan_files.check_apart(write, scenario, [*read, *([] if hf_config is None else [hf_config / "config.json"])])
    shape, length, task = _model(params, hf_config, size, trained, seq)
    measured = _calibration(calibration)
    given = merged(config or (), set_ or ())
    of_sync = given.get("sync")
    of_sync = of_sync if isinstance(of_sync, dict) else {}  # what is none is refused with the other settings
    settings, asked = plan_asked.asked_for(
        of_sync, strategy=strategy, compressor=compressor, inner_steps=inner_steps, degree=degree
    )
    members = {key: getattr(asked, key) for key in plan_asked.MEMBERS}
    request = _request(
        shape,
        _settings(task, config, set_, members, batch=batch, degree=degree, overlap=overlap),
        measured,
        length=length,
        nodes=nodes,
        link=_link(uplink, downlink, rtt),
        device=_device(device, mfu),
        tokens=None if tokens is None else _tokens(tokens),
        step_s=None if step_time is None else _read("--step-time", quantities.duration, step_time),
        availability=_read("--availability", quantities.share, availability),
        host_bytes=None if host_memory is None else _read("--host-memory", quantities.bytes_in, host_memory),
        prices=Prices(kwh=price_kwh, gpu_hour=price_gpu_hour, gb_sent=price_gb),
    )
    withstands = plan_liars.withstands(liars, request.config, of_sync, nodes)
    found, advice = plan_asked.found(request, settings, asked, withstands)
    _check_finite(found)
    has_task = task is not None or "task" in given
    if write is not None:
        from node.planning.run_settings_file import settings_toml

        plan_files.write_file(write, settings_toml(found, has_task=has_task))
    if scenario is not None:
        from node.planning.rehearsal import scenario_toml

        plan_files.write_file(scenario, scenario_toml(found))
    _show(found, advice, file=str(write or "plan.toml"), json=json)


def _model(
    params: str | None, hf_config: Path | None, size: str | None, trained: str | None, seq: int | None
) -> "tuple[ModelShape, int, dict[str, Any] | None]":
    """The model, the tokens of a sequence, and the task that trains it, where that is known."""
    from node.planning import model_shape, quantities

    given = {"--params": params, "--hf-config": hf_config, "--size": size}
    if (named := [option for option, value in given.items() if value is not None]) and len(named) > 1:
        raise UsageError(f"{' and '.join(named)}: a plan is of one model", "give one of them")
    if not named:
        raise UsageError("a plan is of one model", "give --params 7e9, --hf-config FOLDER, or --size nano")
    task: dict[str, Any] | None = None
    if params is not None:
        count = _read("--params", quantities.count, params)
        if count > MOST_PARAMETERS:
            raise UsageError(f"--params: {params} is beyond any model", f"at most {MOST_PARAMETERS:g}")
        shape, length = _checked("--params", lambda: model_shape.shape_of_size(count)), USUAL_LENGTH
    elif size is not None:
        shape = _checked("--size", lambda: model_shape.shape_of_byte_lm(size))
        length, task = model_shape.context_of_byte_lm(size), {"name": "byte-lm", "size": size}
    else:
        assert hf_config is not None
        shape, length = _checked("--hf-config", lambda: model_shape.shape_of_config(hf_config)), USUAL_LENGTH
        task = {"name": "hf-lm", "model": str(hf_config.expanduser().absolute()), "length": seq or length}
    if trained is not None:
        adapters = _read("--trained", quantities.count, trained)
        shape = _checked("--trained", lambda: shape.with_trained(adapters))
    return shape, seq or length, task


def _tokens(text: str) -> float:
    from node.planning import quantities

    found = _read("--tokens", quantities.count, text)
    if found > MOST_TOKENS:
        raise UsageError(f"--tokens: {text} are more than there are", f"at most {MOST_TOKENS:g}")
    return found


def _settings(
    task: dict[str, Any] | None,
    files: list[Path] | None,
    sets: list[str] | None,
    members: dict[str, str | None],
    *,
    batch: int | None,
    degree: int | None,
    overlap: bool,
) -> "Config":
    from node.config.schema import from_raw
    from node.config.sections import merged

    given: dict[str, dict[str, Any]] = {}
    for section, key, value in (
        ("train", "batch_size", batch),
        ("network", "degree", degree),
        ("node", "overlap", None if overlap else False),
        *(("sync", key, name) for key, name in members.items()),
    ):
        if value is not None:
            given.setdefault(section, {})[key] = value
    raw = merged(files or (), sets or (), given)
    if task is not None:
        raw.setdefault("task", task)
    return from_raw(raw)


def _request(
    shape: "ModelShape", config: "Config", measured: "MachineCalibration | None", *, tokens: float | None, **given: Any
) -> "PlanRequest":
    from node.planning.forecast import TOKENS_A_PARAMETER, PlanRequest

    return PlanRequest(
        shape=shape,
        config=config,
        calibration=measured,
        tokens=TOKENS_A_PARAMETER * shape.parameters if tokens is None else tokens,
        **given,
    )


def _at_least(option: str, value: float | None, least: int, example: str) -> None:
    """UsageError for a number below what there can be."""
    if value is not None and not least <= value < math.inf:
        what = "a swarm has two members or more" if option == "--nodes" else f"{least} or more"
        raise UsageError(f"{option}: {what}, not {value:g}", f"such as {option} {example}")


def _check_together(step_time: str | None, mfu: str | None, calibration: Path | None) -> None:
    """UsageError for options of which one would go unheard."""
    if step_time is not None and mfu is not None:
        raise UsageError("--step-time and --mfu: both say how long a step takes", "give one of them")
    if calibration is not None and mfu is not None:
        raise UsageError("--calibration and --mfu: both say what the device reaches", "give one of them")


def _check_finite(found: "RunForecast") -> None:
    """UsageError where inputs are so far from any that there are that no number holds what comes of them."""
    for what in ("days", "days_to_equal_loss", "kwh", "sent_gb", "cost"):
        if not math.isfinite(getattr(found, what)):
            raise UsageError(f"{what} is too large for a number", "give what a run may really have")


def _link(uplink: str, downlink: str | None, rtt: str) -> Any:
    from node.planning import quantities
    from node.planning.round_timing import PlannedLink

    up = _read("--uplink", quantities.bits_per_second, uplink)
    down = DOWN_TO_UP * up if downlink is None else _read("--downlink", quantities.bits_per_second, downlink)
    return PlannedLink(up_bits_s=up, down_bits_s=down, rtt_s=_read("--rtt", quantities.seconds, rtt))


def _device(name: str, mfu: str | None) -> Any:
    from dataclasses import replace

    from node.planning import quantities
    from node.planning.accelerators import accelerator

    found = _checked("--device", lambda: accelerator(name))
    if mfu is None:
        return found
    return replace(found, mfu=_read("--mfu", quantities.share, mfu), mfu_is_assumed=False)


def _calibration(path: Path | None) -> "MachineCalibration | None":
    if path is None:
        return None
    from node.planning.calibration import read_calibration

    return _checked("--calibration", lambda: read_calibration(path))


def _read(option: str, parse: Callable[[str], float], text: str) -> float:
    return _checked(option, lambda: parse(text))


def _checked(option: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _show(found: "RunForecast", advice: "PlanAdvice", *, file: str, json: bool) -> None:
    from node.bench import output
    from node.cli import plan_text
    from node.events.lines import LastingConsole
    from node.planning.advice import sensitivities
    from node.planning.run_settings_file import commands

    around = sensitivities(found.request)
    if json:
        document = plan_text.as_json(found)
        document["recommended"] = plan_text.as_json(advice.best)
        document["sensitivity"] = [
            {
                "what": each.what,
                "half_days": None if each.half is None else each.half.days,
                "twice_days": None if each.twice is None else each.twice.days,
            }
            for each in around
        ]
        document["commands"] = commands(found, file)
        typer.echo(jsonlib.dumps(document, allow_nan=False))
        return
    console = LastingConsole()
    output.show(console, plan_text.tables(found, advice, around))
    console.print("To run it, after --write:" if file == "plan.toml" else "To run it:", highlight=False)
    for command in commands(found, file):
        console.print(f"    {command}", highlight=False, soft_wrap=True)


def _show_published(*, json: bool) -> None:
    from dataclasses import asdict

    from node.bench import output
    from node.cli import plan_text
    from node.events.lines import LastingConsole
    from node.planning.published_links import utilization_cells
    from node.planning.published_runs import published_rows

    rows, cells = published_rows(), utilization_cells()
    if json:
        document = {
            "runs": [{**asdict(row), "met": row.met} for row in rows],
            "utilization": [{**asdict(cell), "at_or_above": cell.at_or_above} for cell in cells],
        }
        typer.echo(jsonlib.dumps(document, allow_nan=False))
    else:
        output.show(LastingConsole(), [plan_text.published_table(rows), plan_text.utilization_table(cells)])
