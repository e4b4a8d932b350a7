"""A device of a scenario as a machine was measured (`p2ptrain bench calibrate`).

Where trainers share cores, work beside training takes time from it: so much for each second of a core as rounds were
measured to cost (fitted_swarm.py). All charges are multiplied by that, and no core is to spare.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from node.config.schema import Config
from node.planning.calibration import EVALUATED, MachineCalibration, StepTiming, WorkRates, read_calibration, task_words
from node.simulation.scenario import DeviceClass
from node.simulation.scenario_file import LoadedScenario
from node.system.errors import UsageError

MEASURED: Final = "measured"
"""The device's name."""

TENTH_TO_NINETIETH: Final = 2 * 1.2816
"""Standard deviations of a normal distribution between these two percentiles."""

MOST_SIGMA: Final = 1.0


def as_measured(loaded: LoadedScenario, path: Path) -> LoadedScenario:
    """Return a scenario whose nodes without a device compute as the calibration in a file says. UsageError where all
    have one, and for a calibration of another task or batch."""
    scenario, configs = loaded.scenario, loaded.configs
    groups = [group for group in scenario.nodes if group.device is None]
    if not groups:
        raise UsageError(
            "every group of nodes has a device, and a calibration none to give", "leave device out of one of [[nodes]]"
        )
    try:
        measured = read_calibration(path)
    except ValueError as error:
        raise UsageError(f"--calibration: {error}") from None
    config, count = configs[groups[0].name], len(scenario.members)
    for group in groups:
        _check_fits(measured.step, configs[group.name], path, count)
    device = measured_device(measured, config, neighbours=min(config.network.degree, count - 1))
    nodes = [
        group.model_copy(update={"device": MEASURED}) if group.device is None else group for group in scenario.nodes
    ]
    scenario = scenario.model_copy(update={"nodes": nodes, "devices": scenario.devices | {MEASURED: device}})
    return replace(loaded, scenario=scenario, calibration=path)


def measured_device(measured: MachineCalibration, config: Config, *, neighbours: int) -> DeviceClass:
    """Return the device of a node that trains what was timed, with so many neighbours."""
    step, swarm = measured.step, measured.swarm
    if swarm is None:
        mean_s, sigma = step.mean_s, _sigma(step)
        spread: dict[str, Any] = {"sigma": sigma}
    else:
        mean_s, sigma = swarm.step_s, swarm.round_sigma
        spread = {"round_sigma": sigma}
    accumulated = config.train.grad_accumulation
    return DeviceClass(
        step_s=accumulated * mean_s / math.exp(sigma**2 / 2),
        **spread,
        evaluate_s=step.evaluation_s * config.train.eval_examples / EVALUATED,
        **work_charges(measured, config, values=step.parameters, neighbours=neighbours),
    )


def work_charges(measured: MachineCalibration, config: Config, *, values: int, neighbours: int) -> dict[str, Any]:
    """Return what a node is charged for beside training: keys of a device. `values` of its model are trained."""
    shares = measured.step.processes * measured.threads >= measured.cores
    crowding = measured.crowding if shares else 1.0
    calls = measured.calls
    charged = vector_work(measured.rates, config, values=values, neighbours=neighbours)
    charged["encode_s"] += calls.encode_s
    charged["decode_s"] += calls.decode_s
    charged["aggregate_s"] += calls.aggregate_s
    charged["verify_s"] = measured.verify_s
    charged["stream_s"] = measured.rates.seconds_a_transfer / 2
    found: dict[str, Any] = {key: crowding * seconds for key, seconds in charged.items()}
    return found | {"wake_s": 0.0 if measured.swarm is None else measured.swarm.wake_s, "spare_core": not shares}


def vector_work(rates: WorkRates, config: Config, *, values: int, neighbours: int) -> dict[str, float]:
    """Return the seconds of a core of each piece of work on a model of so many values."""
    spoken = values / config.sync.spec().turn
    compressor = config.sync.compressor
    return {
        "encode_s": spoken / rates.encode_rate(compressor),
        "decode_s": spoken / rates.decode_rate(compressor),
        "aggregate_s": (neighbours + 1) * values / rates.aggregate,
        "other_s": values / rates.encode_rate("none"),
    }


def _sigma(step: StepTiming) -> float:
    if step.high_s <= step.low_s:
        return 0.0
    return min(MOST_SIGMA, math.log(step.high_s / step.low_s) / TENTH_TO_NINETIETH)


def _check_fits(step: StepTiming, config: Config, path: Path, count: int) -> None:
    task = {"name": config.task.name, **config.task.options}
    words = task_words(task)
    if (words, config.train.batch_size) == (step.task, step.batch):
        return
    size = f" --size {task['size']}" if "size" in task else ""
    raise UsageError(
        f"{path} is of {step.task}, batch {step.batch}, and nodes train {words}, batch {config.train.batch_size}",
        f"measure it: p2ptrain bench calibrate --task {task['name']}{size} --batch {config.train.batch_size} "
        f"--processes {count} --out FILE",
    )
