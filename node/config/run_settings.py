"""Which settings a run that lies in a folder goes on with: the only place that decides it, for every command.

    defaults  <  the folder's config.toml  <  files, --set and flags

What a checkpoint was made with cannot change while a run goes on: the model, the state of its optimizer and the
messages would be others. `may_change` says for each key whether it is of that kind. So the settings in the newest
checkpoint decide those keys. A config.toml that contradicts them is not this run's (older releases overwrote it with
defaults), and is passed over with a note. Before the first checkpoint there is nothing to protect, and all may change.

Reading writes nothing. It imports torch only where there is a checkpoint, or a node that learns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from node.config.sections import MonitoringConfig, NetworkConfig, NodeConfig, role_in
from node.config.toml_source import DOTTED, Raw, drop_options_of_other_names, merge, read_file
from node.system.errors import UsageError
from node.system.light_roles import WITHOUT_MODEL
from node.system.run_dir import ADDRESSES, CHECKPOINTS, CONFIG, EVENTS, LOCK, natural

FREE: Final = {
    "task": ("data",),
    "train": (
        "rounds",
        "inner_steps",
        "inner_steps_schedule",
        "least_inner_steps",
        "synchronous_share",
        "batch_size",
        "grad_accumulation",
        "learning_rate",
        "final_lr_fraction",
        "schedule",
        "late_average",
        "local_steps",
        "step_normalization",
        "normalization_exponent",
        "most_lengthening",
        "warmup_steps",
        "clip_norm",
        "device",
        "precision",
        "compile",
        "threads",
        "eval_every",
        "eval_examples",
    ),
    "sync": (),
    "attack": (),
}
"""Of the sections that make a run what it is, the keys that may change: how long, how fast, on which machine."""

FIXED: Final = {
    "network": ("swarm", "swarm_id"),
    "node": ("role",),
    "monitoring": (),
    "participation": (),
    "visits": (),
    "budget": (),
    "selection": (),
    "privacy": (),
    "personal": (),
    "shift": (),
    "warm_up": (),
}
"""Of the sections that are a machine's own, the keys that may not: among whom the node is, and what it does there. An
observer's checkpoint has no state of a trainer's optimizer."""

MAX_SHOWN_CHARS: Final = 60
"""Of a value in a message, so that it stays one line."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a node's folder says of its settings."""

    raw: Raw
    """The sections. None of their keys is one that this release does not know."""
    trained: bool
    """Whether there is a checkpoint: then what `may_change` denies is decided."""
    notes: tuple[str, ...] = ()
    """What its owner should be told: what was passed over, and why."""


def may_change(section: str, key: str) -> bool:
    """Return whether a run with a checkpoint may go on with another value of this setting."""
    return key in FREE[section] if section in FREE else key not in FIXED.get(section, ())


def refuse_changes(kept: Raw, given: Raw, folder: Path) -> None:
    """Raise UsageError for the first of the settings given that may not change, and would. `kept`: the run's, all of
    them. A key that does not exist is left to the configuration, which says so."""
    from node.config.schema import known_keys

    keys = known_keys()
    for section, key, value in _pairs(given):
        ours = _plain(_section(kept, section).get(key))
        if may_change(section, key) or _plain(value) == ours or not _is_known(section, key, keys):
            continue
        there = "it is not set" if ours in (None, "") else f"it is {_shown(ours)}"
        raise UsageError(
            f"{section}.{key}={_shown(_plain(value))} cannot change in the run in {folder}: there {there}",
            "leave it out to go on, or begin another run with another --run-dir",
        )


def laid_over(kept: Raw, given: Raw) -> Raw:
    """Return the settings of the next start: those given over those kept. Options that belong to a name go with it."""
    raw: Raw = {}
    merge(raw, kept)
    drop_options_of_other_names(raw, given)
    strategy = _section(given, "sync").get("strategy")
    if strategy is not None and strategy != _section(raw, "sync").get("strategy"):
        raw.pop("sync", None)  # what is written there are the old strategy's own defaults
    merge(raw, given)
    return raw


def of_node(node_dir: Path, given: Raw) -> tuple[Raw, tuple[str, ...]]:
    """Return the settings with which the node in this folder starts, and warnings for its owner. UsageError for one
    that may not change."""
    kept = kept_in(node_dir)
    if kept is None:
        return given, ()
    if kept.trained:
        refuse_changes(with_defaults(kept.raw), given, node_dir)
    raw = laid_over(kept.raw, given)
    merge(raw, {"node": {"name": node_dir.name}})  # the folder may have another name by now
    return raw, kept.notes


def kept_in(node_dir: Path) -> Kept | None:
    """Return what the folder says; None where it says nothing. UsageError for a config.toml that cannot be read, where
    there is no checkpoint either."""
    file, trained = node_dir / CONFIG, _of_checkpoint(node_dir)
    if trained is not None:
        return _checked(file, trained)
    if not file.exists():
        return None
    raw, unknown = _known(read_file(file))
    return Kept(raw=raw, trained=False, notes=_passed_over(file, unknown))


def is_honest(node_dir: Path) -> bool:
    """Return whether the folder's node attacks nobody, as far as the folder says."""
    kept = kept_in(node_dir)
    return kept is None or not attacks(kept.raw)


def attacks(raw: Raw) -> bool:
    """Return whether these are the settings of a liar."""
    return str(_section(raw, "attack").get("name", "none")) != "none"


def with_defaults(raw: Raw) -> Raw:
    """Return the same with every setting that is not there at its default. UsageError for what cannot be."""
    from node.config.schema import from_raw

    return from_raw(raw).model_dump(mode="json", exclude_none=True)


def known_part(raw: Raw) -> Raw:
    """Return the settings without those that only another release knows."""
    return _known(raw)[0]


def node_name(run_dir: Path, given: Raw) -> str:
    """Return the node that is meant: the one named, the folder's only one, or the default. UsageError where there are
    several, and for a node's own folder."""
    named = _section(given, "node").get("name")
    if named is not None:
        return str(named)
    if (run_dir / LOCK).exists() and (run_dir / EVENTS).exists():
        raise UsageError(f"{run_dir} is a node's own folder", f"give the run's: --run-dir {run_dir.parent}")
    names = names_in(run_dir)
    if len(names) > 1 and NodeConfig.name not in names:
        message = f"{run_dir} has the nodes {_shown(', '.join(names))}"
        raise UsageError(message, "say which with --name, or go on with all by `p2ptrain up --run-dir`")
    return names[0] if len(names) == 1 else NodeConfig.name


def names_in(run_dir: Path) -> list[str]:
    """Return the nodes that have settings or checkpoints in this run folder, node-10 after node-9."""
    found = {path.parent for path in (*run_dir.glob(f"*/{CONFIG}"), *run_dir.glob(f"*/{CHECKPOINTS}"))}
    return [folder.name for folder in sorted(found, key=natural)]


def _of_checkpoint(node_dir: Path) -> Raw | None:
    """The settings in the newest checkpoint, as JSON: null is what TOML leaves out. None: there is no checkpoint."""
    if not (node_dir / CHECKPOINTS).is_dir():
        return None
    from node.training.checkpoint import CheckpointStore

    meta = CheckpointStore(node_dir / CHECKPOINTS).newest_meta()
    return None if meta is None else meta["config"]


def _checked(file: Path, trained: Raw) -> Kept:
    """The file, held against what the checkpoint was `trained` with; the checkpoint's settings where it does not do."""
    decided = known_part(_without_nulls(trained))
    if not file.exists():
        return Kept(raw=decided, trained=True)
    try:
        read = read_file(file)
        if not read:  # no node writes such a file: all settings of the run would fall back to their defaults
            raise UsageError(f"{file} is empty")
        written, unknown = _known(read)
    except UsageError as error:
        note = f"{error.message}: going on with the checkpoint's settings"
        return Kept(raw=decided, trained=True, notes=(note,))
    notes = _passed_over(file, unknown)
    if (other := _contradiction(written, trained)) is not None:
        note = f"{file} is not of this run ({other}): going on with the checkpoint's settings"
        return Kept(raw=decided, trained=True, notes=(*notes, note))
    raw = _only_fixed(decided)
    merge(raw, written)
    return Kept(raw=raw, trained=True, notes=notes)


def _without_nulls(raw: Raw) -> Raw:
    """The same as TOML has it; without the address book in the folder, which a start chose by itself: the folder may
    have moved since."""
    kept: Raw = {}
    for section, key, value in _pairs(raw):
        own_book = (section, key) == ("network", "address_book") and Path(str(value)).name == ADDRESSES
        if value is not None and not own_book:
            kept.setdefault(section, {})[key] = value
    return kept


def _known(raw: Raw) -> tuple[Raw, list[str]]:
    """The settings that this release knows, and the names of the others. What is no section is left to the
    configuration, which says what is wrong with it."""
    keys = _keys(raw)
    unknown = [f"{section}.{key}" for section, key, _ in _pairs(raw) if not _is_known(section, key, keys)]
    kept: Raw = {}
    for section, value in raw.items():
        if not isinstance(value, dict):
            kept[section] = value
        elif section in keys:
            kept[section] = {key: each for key, each in value.items() if f"{section}.{key}" not in unknown}
    return kept, unknown


def _is_known(section: str, key: str, keys: Mapping[str, list[str] | None]) -> bool:
    option = key.rpartition(".")[2] if section in DOTTED else key  # `member.option`
    return section in keys and option in (keys[section] or [option])


def _keys(raw: Raw) -> Mapping[str, list[str] | None]:
    if role_in(raw) in WITHOUT_MODEL:  # on a machine that need not have torch
        sections: dict[str, Any] = {"network": NetworkConfig, "node": NodeConfig, "monitoring": MonitoringConfig}
        own: dict[str, list[str] | None] = {name: [*kind.__dataclass_fields__] for name, kind in sections.items()}
        return own | dict.fromkeys([*FREE, "site"])
    from node.config.schema import known_keys

    return known_keys()


def _contradiction(written: Raw, trained: Raw) -> str | None:
    """The first setting that may not change, and has another value in the one than in the other. A key that the
    checkpoint does not know is a newer release's, but for the free options of a task or an attack."""
    for section, key, value in _pairs(written):
        ours = _section(trained, section)
        theirs = ours.get(key)
        decided = not may_change(section, key) and (key in ours or _is_option(section, key))
        if decided and _plain(value) != _plain(theirs):
            return f"{section}.{key} is {_shown(_plain(value))} there, and {_shown(_plain(theirs))} in the checkpoint"
    return None


def _is_option(section: str, key: str) -> bool:
    """Whether the key belongs to the member that the section names, and is nowhere where it is not set."""
    from p2ptrain.sync.sync_config import OWN_KEYS

    return section in ("task", "attack") or (section == "sync" and key not in OWN_KEYS)


def _only_fixed(raw: Raw) -> Raw:
    fixed: Raw = {}
    for section, key, value in _pairs(raw):
        if not may_change(section, key):
            fixed.setdefault(section, {})[key] = value
    return fixed


def _passed_over(file: Path, unknown: list[str]) -> tuple[str, ...]:
    names = _shown(", ".join(unknown))
    return (f"{file} has settings that this release does not know: {names}",) if unknown else ()


def _pairs(raw: Raw) -> Iterator[tuple[str, str, Any]]:
    for section, keys in raw.items():
        if isinstance(keys, dict):
            for key, value in keys.items():
                yield section, key, value


def _section(raw: Raw, name: str) -> Mapping[str, Any]:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _plain(value: Any) -> Any:
    """As JSON and TOML have it, so that one value compares alike wherever it comes from."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _shown(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
