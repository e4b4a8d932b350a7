"""Defaults of `strategies` and `robust`, as the command line would give them."""

from collections.abc import Mapping
from typing import Any

from node.bench.lists import names_in, numbers_in
from node.bench.swarm.byzantine_nodes import simulated
from node.bench.swarm.run_spec import NO_ATTACK
from node.bench.swarm.study_plan import OWN, Asked
from node.config.toml_source import Raw
from p2ptrain import aggregate, compress
from p2ptrain.sync import SYNC_STRATEGIES

Words = Mapping[str, Any]
"""Options by their names, as given; None where not."""

COMPOSED = "nnm+trimmed_mean,bucketing+trimmed_mean"
"""Rules for heterogeneous data, which `all`, the rules that stand alone, does not name."""

COMMON: Words = {
    "strategy": OWN,
    "compressor": OWN,
    "aggregator": OWN,
    "attack": NO_ATTACK,
    "byzantine": "0",
    "seeds": "0",
    "graph": "regular",
    "late_steps": 0,
}
FULL: Mapping[str, Words] = {
    "strategies": {"strategy": "all", "nodes": 8, "rounds": 30, "inner_steps": 20},
    "robust": {
        "task": "digits",
        "partition": "iid,dirichlet",
        "aggregator": f"all,{COMPOSED}",
        "attack": "all",
        "byzantine": "1,2,3",
        "nodes": 10,
        "degree": 9,
        "rounds": 30,
        "inner_steps": 10,
    },
}
QUICK: Mapping[str, Words] = {
    "strategies": {"strategy": "all", "task": "digits", "nodes": 4, "rounds": 15, "inner_steps": 10},
    "robust": {
        "task": "digits",
        "aggregator": f"all,{COMPOSED}",
        "attack": "none,sign_flip",
        "byzantine": "1",
        "nodes": 7,
        "degree": 6,
        "rounds": 10,
        "inner_steps": 10,
    },
}


PARTITIONS = ("iid", "dirichlet", "label", "domain")
"""Of all tasks: each refuses those that it has not."""
SETTINGS = {
    "task": ("task", "name"),
    "size": ("task", "size"),
    "data": ("task", "data"),
    "rounds": ("train", "rounds"),
    "inner_steps": ("train", "inner_steps"),
}
"""Options that stand for a setting."""


def asked(benchmark: str, given: Words, *, quick: bool) -> Asked:
    """Return the choices of a study: those given and, for the rest, those of this file. UsageError on what cannot
    be."""
    given = {key: value for key, value in given.items() if value is not None}
    preset = dict((QUICK if quick else FULL)[benchmark])
    if given.get("task", preset.get("task")) != preset.get("task"):
        preset.pop("partition", None)  # an option of the preset's task
    words = {**COMMON, **preset, **given}
    return Asked(
        strategies=names_in(words["strategy"], SYNC_STRATEGIES.names(), "--strategy", also=[OWN]),
        compressors=names_in(words["compressor"], compress.names(), "--compressor", also=[OWN]),
        aggregators=names_in(words["aggregator"], aggregate.names(), "--aggregator", also=[OWN]),
        attacks=names_in(words["attack"], [NO_ATTACK, *simulated()], "--attack"),
        byzantine=numbers_in(words["byzantine"], "--byzantine"),
        seeds=numbers_in(words["seeds"], "--seeds"),
        partitions=names_in(words["partition"], PARTITIONS, "--partition") if "partition" in words else (),
        vary=words.get("vary", ()),
        nodes=words["nodes"],
        degree=words.get("degree"),
        graph=words["graph"],
        late_steps=words["late_steps"],
        steps=words.get("steps"),
        preset=_settings(preset),
        files=words.get("config", ()),
        sets=words.get("set_", ()),
        flags=_settings(given),
    )


def _settings(words: Words) -> Raw:
    raw: Raw = {}
    for option, (section, key) in SETTINGS.items():
        if option in words:
            raw.setdefault(section, {})[key] = words[option]
    return raw
