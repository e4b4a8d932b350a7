"""A plan as a scenario of `p2ptrain simulate`: the same members, links, steps and settings, as one TOML file."""

import math
from typing import Any, Final

import tomli_w

from node.planning.forecast import RunForecast
from node.planning.run_settings_file import changed_settings

SHARE_OF_UNTIL: Final = 3.0
"""Times the foretold length after which a simulation ends, whether all have finished or not."""
REGION: Final = "anywhere"
MILLI: Final = 1000.0


def scenario_toml(found: RunForecast) -> str:
    """Return the scenario's text."""
    request, times = found.request, found.times
    pieces = max(1.0, found.traffic.neighbours + 2.0)  # encoding, averaging, and a decoding for each neighbour
    link = {"up": request.link.up, "down": request.link.down, "slow_start": True}
    device = {
        "step_s": found.step_s,
        "offload_s": times.codec_s / pieces,
        "evaluate_s": found.step_s * request.config.train.eval_examples / request.config.train.batch_size / 3,
    }
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
