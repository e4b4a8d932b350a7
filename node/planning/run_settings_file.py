"""A plan as what is run: a TOML file of settings, and the commands that take it. Both are the node's own."""

import shlex
from typing import Any

import tomli_w

from node.config.schema import Config, differing
from node.planning.forecast import RunForecast

TRIED_HERE = 4
"""Nodes of `p2ptrain up` that a plan is tried with on one machine."""
SECTIONS = ("task", "train", "sync", "network", "node")
"""Those that a plan and a scenario are about."""
MODEL_OF_ONES_OWN = (
    "# [task] is yours to say: the plan knows a number of parameters, and without [task] byte-lm nano is trained."
)


def settings_toml(found: RunForecast, *, has_task: bool) -> str:
    """Return the settings of a plan that differ from the defaults, as a file for --config."""
    request = found.request
    up, down = request.link.up_bits_s / 1e6, request.link.down_bits_s / 1e6
    head = [
        f"# {request.shape.parameters:,} parameters, {request.nodes} members, "
        f"{up:g} Mbit/s up and {down:g} down, {request.device.name}.",
        f"# Foretold: {found.rounds:,} rounds of {found.times.round_s:.3g} s, {found.days:.3g} days; {found.binding}.",
        *([] if has_task else [MODEL_OF_ONES_OWN]),
        *([] if request.shape.trained == request.shape.parameters else [adapters_missing(request.shape.trained)]),
    ]
    return "\n".join(head) + "\n\n" + tomli_w.dumps(changed_settings(request.config, all_sections=True))


def adapters_missing(trained: int) -> str:
    """Return what is to be added to a file for adapters: a plan knows how many parameters they have, and no rank."""
    return f"# The plan is for {trained:,} trained parameters: without lora = RANK in [task] all of them are trained."


def changed_settings(config: Config, *, all_sections: bool = False) -> dict[str, dict[str, Any]]:
    """Return the settings that differ from the defaults, by section. `all_sections`: those too of which a plan counts
    nothing, such as [privacy] and [budget]; a node that is started with the file is to keep what was asked for."""
    others = [name for name in type(config).model_fields if name not in SECTIONS] if all_sections else []
    return {section: values for section, values in differing(config, (*SECTIONS, *others)).items() if values}


def commands(found: RunForecast, file: str) -> list[str]:
    """Return what to type: a small swarm here, a swarm's founding, and a member by itself."""
    here = min(TRIED_HERE, found.request.nodes)
    return [
        shlex.join(["p2ptrain", "up", "--config", file, "--nodes", str(here)]),
        shlex.join(["p2ptrain", "swarm", "create", "planned", "--out", "planned", "--config", file]),
        shlex.join(["p2ptrain", "node", "--config", file]),
    ]
