"""A plan as a scenario of `p2ptrain simulate`: the same members, links, steps and settings, as one TOML file."""

import math
from typing import Any, Final

import tomli_w

from node.planning.calibrated import vector_work, work_charges
from node.planning.calibration import usual_rates
from node.planning.forecast import FORWARD_SHARE, RunForecast
from node.planning.run_settings_file import changed_settings

SHARE_OF_UNTIL: Final = 3.0
"""Times the foretold length after which a simulation ends, whether all have finished or not."""
REGION: Final = "anywhere"
MILLI: Final = 1000.0


def scenario_toml(found: RunForecast) -> str:
    """Return the scenario's text."""
    request, times = found.request, found.times
    link = {"up": request.link.up, "down": request.link.down, "slow_start": True}
    device = _steps(found) | _beside(found)
    raw: dict[str, Any] = {
        "about": f"{request.shape.parameters:,} parameters as planned: {times.words}",
        "seed": 1,
        "until_s": float(math.ceil(SHARE_OF_UNTIL * found.rounds * times.round_s + 60)),
        **changed_settings(request.config),
        "nodes": [
            {"name": "member", "count": request.present, "region": REGION, "device": "planned", "link": "planned"}
        ],
        "regions": [{"name": REGION, "latency_ms": {REGION: MILLI * request.link.rtt_s / 2}}],
        "links": {"planned": {key: float(value) if key != "slow_start" else value for key, value in link.items()}},
        "devices": {"planned": device},
    }
    return tomli_w.dumps(raw)


def _steps(found: RunForecast) -> dict[str, float]:
    """How long its steps take. Where a swarm was measured, as its nodes took longer than the steps that were timed."""
    measured = found.request.calibration
    if measured is None or measured.swarm is None or found.request.on_gpu:
        return {"step_s": found.step_s}
    times, sigma = measured.swarm.step_s / measured.step.median_s, measured.swarm.round_sigma
    return {"step_s": times * found.step_s / math.exp(sigma**2 / 2), "round_sigma": sigma}


def _beside(found: RunForecast) -> dict[str, Any]:
    """What a member computes beside training."""
    request = found.request
    train, values, neighbours = request.config.train, request.shape.trained, math.ceil(found.traffic.neighbours)
    if request.calibration is not None and not request.on_gpu:
        charged = work_charges(request.calibration, request.config, values=values, neighbours=neighbours)
    else:
        rates = usual_rates() if request.calibration is None else request.calibration.rates
        charged = vector_work(rates, request.config, values=values, neighbours=neighbours)
    examples = train.batch_size * train.grad_accumulation  # of a step
    return charged | {"evaluate_s": found.step_s * FORWARD_SHARE * train.eval_examples / examples}
