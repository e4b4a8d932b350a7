"""Which settings a swarm decides, and which are each machine's own.

A manifest holds every agreed setting, defaults included: two versions of the program, with other defaults, still train
alike. What is not agreed (data, device, addresses, rate limits, the status page) is never in it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gossip.core.digests import digest_of
from gossip.membership.settings import Setting, Settings, pack_settings
from node.config.toml_source import Raw
from node.system.errors import UsageError

if TYPE_CHECKING:
    from node.config.schema import Config

Table: TypeAlias = dict[str, dict[str, Setting]]

OWN: Final = {"task": ("data",), "train": ("device", "threads", "precision", "compile"), "sync": ()}
"""Of the sections that are agreed, what stays each machine's own."""

OWN_OF_TASK: Final = {
    "hf-lm": (
        *("model", "tokenizer", "chat_template", "dtype", "load_in_4bit"),
        *("stream", "stream_steps", "split", "subset", "column"),
    ),
    "hf-vision": ("model", "dtype", "load_in_4bit"),
}
"""By task, which of its options are each machine's own, too: where files lie, and how a frozen model is held. That the
models are the same is held by their digests."""

AGREED: Final = {
    "network": (
        "degree",
        "quorum",
        "max_staleness",
        "max_payload_bytes",
        "initial_deadline_s",
        "min_deadline_s",
        "deadline_k",
    ),
    "node": ("pace", "shard_count"),
}
"""Of the sections that are each machine's own, what is agreed: who closes rounds otherwise than the others holds them
up or is left behind; who has fewer neighbours than `sync.f` allows for is no help against liars."""

NEWER: Final = {
    ("sync", "estimates"): "fp32",
    ("train", "inner_steps_schedule"): "constant",
    ("train", "late_average"): 0.0,
    ("train", "step_normalization"): "none",
    ("train", "shares"): "parameters",
    ("train", "public_digest"): "",
    ("train", "distill_temperature"): 1.0,
    ("train", "distill_rate"): 1.0,
}
"""Settings that releases before this one did not know, with what these do. A manifest has them only where they are
something else: so older members take the others' manifests, and the digest of a recipe stays what it was."""

CHANGEABLE: Final = (
    "train.learning_rate",
    "train.final_lr_fraction",
    "train.clip_norm",
    "train.rounds",
    "train.eval_every",
    "network.quorum",
    "network.initial_deadline_s",
    "network.min_deadline_s",
    "network.deadline_k",
)
"""What a newer manifest may say while a run goes on. The rest makes another model, another message or another state of
the optimizer: that is another run, and so another swarm."""

DATA: Final = "data"
"""The section with the digest that all data must have; not there where each member has its own."""

BASE: Final = "base"
"""The section with the digest of the weights that all members begin from, and the memory that a member needs; not there
where they are drawn from the seed."""

MINIMUM: Final = "minimum"
"""The section with the least that a member's machine must have and do; there only where the founder chose one."""

SWARM_NAME: Final = "network.swarm"


def settings_of(
    config: "Config",
    data_digest: str | None = None,
    base: Mapping[str, Setting] | None = None,
    minimum: Mapping[str, Setting] | None = None,
) -> Table:
    """Return what a manifest says of this configuration. `base` and `minimum` are its sections BASE and MINIMUM."""
    dumped = config.model_dump(mode="json", exclude_none=True)
    table: Table = {
        section: {
            key: value for key, value in dumped[section].items() if is_agreed(section, key, task=config.task.name)
        }
        for section in OWN
    }
    for (section, key), value in NEWER.items():
        if table[section].get(key) == value:
            del table[section][key]
    for section, keys in AGREED.items():
        table[section] = {key: dumped[section][key] for key in keys}
    if data_digest is not None:
        table[DATA] = {"digest": data_digest}
    if base is not None:
        table[BASE] = dict(base)
    if minimum:
        table[MINIMUM] = dict(minimum)
    return table


def digest_of_recipe(settings: Settings) -> str:
    """Return a digest, 64 hex digits, of what is trained and how: the same for two swarms of the same settings."""
    recipe = {section: keys for section, keys in settings.items() if section != MINIMUM}  # where, not how
    return digest_of(pack_settings(recipe)).hex()


def raw_of(settings: Settings) -> Raw:
    """Return the sections as a configuration's. Unknown ones are left to the configuration, which refuses them by
    name."""
    return {
        section: dict(keys)
        for section, keys in settings.items()
        if isinstance(keys, Mapping) and section not in (DATA, BASE, MINIMUM)
    }


def data_digest_in(settings: Settings) -> str | None:
    """Return the digest that all members' data must have; None: each member's data are its own."""
    section = settings.get(DATA)
    digest = section.get("digest") if isinstance(section, Mapping) else None
    return digest if isinstance(digest, str) else None


def base_in(settings: Settings) -> Mapping[str, Setting]:
    """Return what the section BASE says; empty where there is none."""
    section = settings.get(BASE)
    return section if isinstance(section, Mapping) else {}


def minimum_in(settings: Settings) -> Mapping[str, Setting]:
    """Return what the section MINIMUM says; empty where there is none."""
    section = settings.get(MINIMUM)
    return section if isinstance(section, Mapping) else {}


def draws_by_grants(settings: Settings) -> bool:
    """Return whether members are drawn into secure groups by their grants, so that each needs one of its own."""
    section = settings.get("sync")
    return isinstance(section, Mapping) and section.get("draw") == "grants"  # secure_average.GRANTS, without torch


def regions_in(settings: Settings) -> tuple[str, ...]:
    """Return the labels of the swarm's regions; none in a flat swarm."""
    section = settings.get("sync")
    regions = section.get("regions") if isinstance(section, Mapping) else None
    return tuple(str(each) for each in regions) if isinstance(regions, list) else ()


def is_agreed(section: str, key: str, *, task: object) -> bool:
    """Return whether the swarm, whose task it is, decides this setting."""
    if section == "task" and key in OWN_OF_TASK.get(str(task), ()):
        return False
    if section in OWN:
        return key not in OWN[section]
    return key in AGREED.get(section, ()) or f"{section}.{key}" == SWARM_NAME


def under(settings: Settings, swarm: str, given: Raw) -> Raw:
    """The swarm's settings, and of those given what is this machine's own. UsageError where one contradicts, and where
    the swarm would set what is a machine's own: where it listens, what it writes and whom it tells is no admin's."""
    ours = raw_of(settings)
    task = ours.get("task", {}).get("name")
    for section, keys in ours.items():
        for key in keys:
            if not is_agreed(section, key, task=task):
                hint = "do not join: its admin's program is another, or its admin wants more than training"
                raise UsageError(f"the swarm's manifest sets {section}.{key}, which is each machine's own", hint)
    ours.setdefault("network", {})["swarm"] = swarm
    merged = {section: dict(keys) for section, keys in ours.items()}
    for section, keys in given.items():
        if not isinstance(keys, dict):
            merged[section] = keys  # a mistake, which the configuration names
            continue
        for key, value in keys.items():
            if is_agreed(section, key, task=task):
                _check_same(section, key, value, ours.get(section, {}).get(key, NEWER.get((section, key))))
            else:
                merged.setdefault(section, {})[key] = value
    return merged


def code_of(raw: Raw) -> str | None:
    """Return the task as `module:factory`, which is imported and called; None for one of the program's own tasks."""
    section = raw.get("task")
    name = section.get("name") if isinstance(section, Mapping) else None
    return name if isinstance(name, str) and ":" in name else None


def check_code(settings: Settings, own: Raw) -> None:
    """Raise UsageError where the swarm names code to run that this machine's owner has not named as well. Otherwise an
    admin could have any function on the machine called, with any arguments."""
    wanted = code_of(raw_of(settings))
    if wanted is not None and code_of(own) != wanted:
        hint = f"if you trust it, and its admins, add --task {wanted}"
        raise UsageError(f"this swarm trains by running {wanted} on your machine, with options of its admins'", hint)


def own_part(given: Raw, task: object) -> Raw:
    """Return, of the settings given, this machine's own, and the code that its owner agrees to run. `task` is the
    swarm's."""
    code = code_of(given)
    kept = {
        section: {
            key: value
            for key, value in keys.items()
            if not is_agreed(section, key, task=task) or (section, key, value) == ("task", "name", code)
        }
        for section, keys in given.items()
        if isinstance(keys, dict)
    }
    return {section: keys for section, keys in kept.items() if keys}


def changed(settings: Settings, changes: Mapping[str, Setting]) -> Table:
    """Return the settings of the next version. UsageError for one that may not change while a run goes on."""
    table: Table = {section: dict(keys) for section, keys in settings.items() if isinstance(keys, Mapping)}
    for name, value in changes.items():
        if name not in CHANGEABLE:
            hint = f"only these may: {', '.join(CHANGEABLE)}; for anything else, create another swarm"
            raise UsageError(f"{name} cannot change while a swarm trains", hint)
        section, _, key = name.partition(".")
        table.setdefault(section, {})[key] = value
    return table


def differing(before: Settings, after: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, by `section.key`, each with what it was and what it is."""
    one, other = raw_of(before), raw_of(after)
    names = sorted({(section, key) for raw in (one, other) for section, keys in raw.items() for key in keys})
    pairs = {f"{s}.{k}": (one.get(s, {}).get(k), other.get(s, {}).get(k)) for s, k in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _check_same(section: str, key: str, value: Any, ours: Any) -> None:
    plain = list(value) if isinstance(value, tuple) else value
    if plain == ours and isinstance(plain, bool) == isinstance(ours, bool):
        return
    said = "it is not set there" if ours is None else f"there it is {ours!r}"
    hint = "leave it out: all members train as the swarm's manifest says"
    if f"{section}.{key}" in CHANGEABLE:
        hint += f"; an admin changes it for all: p2ptrain swarm rotate DIR --set {section}.{key}={value}"
    raise UsageError(f"{section}.{key}={value!r} contradicts the swarm: {said}", hint)
