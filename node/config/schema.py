"""The whole configuration: the components' own frozen dataclasses, one TOML section each, and nothing said twice.

    [task]     name of the task and its options (free keys: size, data, alpha, ...)
    [train]    p2ptrain.training.TrainConfig
    [sync]     p2ptrain.sync.SyncConfig, and options of the members that it names (free keys: ratio, tau, ...)
    [network]  gossip.core.config.GossipConfig, and where to listen
    [node]     this process: executor (`lane`), checkpoints, metrics, its shard of the data
    [site]     p2ptrain.training.site.SiteConfig: how torchrun's ranks share out the model
    [attack]   what a Byzantine node does (for experiments; none by default)
    [monitoring]  whom else it tells: exporters
    [participation]  when this machine trains
    [visits]   whether visitors train with it
    [budget]   how much of this machine it may take
    [selection]  whose updates this node fetches first
    [privacy]  what of this node's data the model may tell
    [personal] a second model of this node's own
    [shift]    whether this node watches its own data for shift
    [warm_up]  what this node tells newcomers of its data, and how it begins as one

`load` merges files in their order, then `--set section.key=value`, and turns every mistake into a UsageError of one
line. It imports the learning package (and with it torch): commands import this module when they run, not before.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gossip.core.errors import LocalError
from node.config import config_errors
from node.config.auto_rate import refuse_auto
from node.config.budget_section import BudgetConfig
from node.config.config_members import check_members
from node.config.participation_section import ParticipationConfig, gathered
from node.config.personal_section import PersonalConfig
from node.config.privacy_section import PrivacyConfig
from node.config.sections import MonitoringConfig, NetworkConfig, NodeConfig, check_addresses, merged, role_in
from node.config.selection_section import SelectionConfig
from node.config.shift_section import ShiftConfig
from node.config.toml_source import Raw, inline_table, parse_set
from node.config.visits_section import VisitsConfig
from node.config.warm_up_section import WarmUpConfig
from node.system.errors import UsageError
from p2ptrain import aggregate, attacks, drift
from p2ptrain.attacks import Attack
from p2ptrain.drift.base import SumsCorrections
from p2ptrain.drift.none import NoCorrection
from p2ptrain.outer import Average
from p2ptrain.step_normalization.unnormalized import Unnormalized
from p2ptrain.sync import SYNC_STRATEGIES, SyncConfig
from p2ptrain.sync.strategy_spec import GOSSIP
from p2ptrain.sync.sync_config import OF_REGIONS, OWN_KEYS, all_options, takers_of
from p2ptrain.training import TrainConfig
from p2ptrain.training.site.site_config import SiteConfig

MOST_TAKEN: Final = 2.0
"""Times its drift that a control variate may take of a round: at twice it swings for ever."""

_FORBID: ConfigDict = {"extra": "forbid"}


class _Free(BaseModel):
    """A section with a `name` and free options for the factory of that name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """Return every key but `name`: keyword arguments of the factory."""
        return dict(self.model_extra or {})


class TaskSection(_Free):
    """What is learned: a built-in task, a plug-in's, or `module:factory`."""

    name: str = "byte-lm"


class AttackSection(_Free):
    """What this node does to others; "none" is honest."""

    name: str = "none"
    from_round: int = Field(default=0, ge=0, description="Round from which it lies; before it is honest.")

    def find(self) -> Attack | None:
        """Return the attack; None for an honest node. UsageError on an option that it does not take."""
        try:
            return None if self.name == "none" else attacks.find(self.name, **self.options)
        except (ValueError, TypeError) as error:
            raise UsageError(f"[attack]: {error}") from None


class Config(BaseModel):
    """Everything that a node can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: TaskSection = TaskSection()
    train: TrainConfig = TrainConfig()
    sync: SyncConfig = Field(default_factory=SyncConfig)
    network: NetworkConfig = NetworkConfig()
    node: NodeConfig = NodeConfig()
    site: SiteConfig = SiteConfig()
    attack: AttackSection = AttackSection()
    monitoring: MonitoringConfig = MonitoringConfig()
    participation: ParticipationConfig = ParticipationConfig()
    visits: VisitsConfig = VisitsConfig()
    budget: BudgetConfig = BudgetConfig()
    selection: SelectionConfig = SelectionConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    personal: PersonalConfig = PersonalConfig()
    shift: ShiftConfig = ShiftConfig()
    warm_up: WarmUpConfig = WarmUpConfig()

    def to_toml(self) -> str:
        """Write every setting, defaults included, as a file that `load` reads back to the same configuration."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load(files: Sequence[Path] = (), sets: Sequence[str] = (), flags: Raw | None = None) -> Config:
    """Load the configuration from TOML files, later ones over earlier ones, `section.key=value` over them, flags over
    all.

    Raises UsageError on the first mistake.
    """
    raw = merged(files, sets, flags)
    role_in(raw)
    return from_raw(raw)


def from_raw(raw: Raw) -> Config:
    """Validate sections, keys, values, and the names of members. Raises UsageError."""
    raw = gathered(raw)
    check_members(raw)
    _check_options(raw)
    refuse_auto(raw)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise config_errors.from_validation(error, known_keys(), raw) from None
    except LocalError as error:  # of GossipConfig, whose package does not know pydantic
        raise UsageError(f"[network]: {error}") from None
    check_addresses(config.network)
    _check_pace(config)
    _check_drift(config)
    _check_normalization(config)
    config.participation.check()
    _check_selection(config)
    config.privacy.check()
    config.shift.check(private=config.privacy.on)
    config.warm_up.check(local=bool(config.train.local), unit=config.privacy.find().unit)
    config.attack.find()
    return config


def _check_options(raw: Raw) -> None:
    """UsageError for a key of [sync] that is neither its own nor an option of any member that there is.

    An option of another member than the one chosen is refused by SyncConfig, which says whose it is.
    """
    section = raw.get("sync")
    for key in section if isinstance(section, dict) else ():
        if key not in OWN_KEYS and not takers_of(key):
            takers = {name: ", ".join(members) for name, (members, _) in all_options().items()}
            raise config_errors.unknown_key(["sync", key], known_keys(), raw, takers)


def _check_pace(config: Config) -> None:
    if config.node.pace != "fixed" and not config.node.overlap:
        message = f"node.pace={config.node.pace} takes the time between updates for that of their steps, and with "
        raise UsageError(f"{message}node.overlap=false it is not", "leave out one of them")
    if config.node.pace == "auto" and "adaptive" in config.sync.compressor.split("+"):
        message = "node.pace=auto and sync.compressor=adaptive both follow the link, each the other downwards"
        raise UsageError(message, "choose the steps (node.pace) or the bits (sync.compressor) yourself")
    schedule = config.train.inner_steps_schedule
    if config.node.pace == "auto" and schedule != TrainConfig.inner_steps_schedule:
        message = f"node.pace=auto and train.inner_steps_schedule={schedule} both choose how many steps a round has"
        raise UsageError(message, "leave out one of them; node.pace=dylu goes with every schedule")


def _check_selection(config: Config) -> None:
    """UsageError for a selection where it cannot be: of strategies that need every neighbour, or with too few."""
    selection, sync = config.selection, config.sync
    if selection.find() is None:
        return
    if sync.spec().averager != GOSSIP or sync.spec().draws_partners:
        message = (
            f"selection.policy={selection.policy}: with the strategy {sync.strategy} members agree on whom to meet"
        )
        raise UsageError(message, "leave out one of them")
    if sync.layers:
        message = f"selection.policy={selection.policy}: refinements (sync.layers) follow each link by themselves"
        raise UsageError(message, "leave out one of them")
    needed = aggregate.get(sync.aggregator, f=sync.f, **sync.rule_options()).minimum()
    if selection.most < needed:
        message = (
            f"selection.most={selection.most} is too few: {sync.aggregator} with sync.f={sync.f} needs {needed - 1}"
        )
        raise UsageError(f"{message}, and one more is explored", f"set selection.most={needed} or more")


def _check_normalization(config: Config) -> None:
    """UsageError for a step normalization where rounds do not take the model to the anchor, where there is no common
    number of steps, or where what corrects drift would take its move for the others'."""
    train = config.train
    named = f"train.step_normalization={train.step_normalization}"
    if train.step_normalization == Unnormalized.name:
        return
    if not config.sync.spec().ends_at_anchor:
        able = [name for name in SYNC_STRATEGIES.names() if SYNC_STRATEGIES.get(name).ends_at_anchor]
        message = (
            f"{named} lengthens what a member learned in a round, which {config.sync.strategy} does not tell apart"
        )
        raise UsageError(message, f"take one of the strategies {', '.join(able)}, or leave it out")
    if config.node.pace == "auto":
        message = (
            f"{named} lengthens rounds to train.inner_steps, of which node.pace=auto is to take fewer at all nodes"
        )
        raise UsageError(message, "set node.pace=dylu, or leave out one of them")
    if train.drift != NoCorrection.name:
        message = (
            f"{named} moves the model beside its steps, which train.drift={train.drift} would take for the others'"
        )
        raise UsageError(message, "leave out one of them")


def _check_drift(config: Config) -> None:
    """UsageError for a drift correction with a strategy whose rounds tell it something else than how members differ, or
    more of it than it stands."""
    train, sync = config.train, config.sync.for_rounds(config.train.rounds)
    correction = drift.get(train.drift, **train.drift_options())
    if not isinstance(correction, SumsCorrections):
        return
    named, options, turn = f"train.drift={train.drift}", sync.outer_options(), sync.spec().turn
    if sync.outer != Average.name and (options.get("alpha"), options.get("beta")) != (0, 1):
        message = f"{named} would take the outer step of {sync.outer} for drift, and follow it ever faster"
        raise UsageError(message, "set sync.outer=average, or train.drift=none")
    taken = turn * (1 - float(sync.options.get("mixing", 0)))
    if correction.strength * taken >= MOST_TAKEN:
        message = f"{named} of strength {correction.strength:g} would take the drift of {turn} rounds for that of one"
        hint = f"set train.drift_strength below {MOST_TAKEN / taken:g}, or train.drift=none"
        raise UsageError(f"{message}, as {sync.strategy} corrects the model by parts", hint)


def known_keys() -> dict[str, list[str] | None]:
    """Return the keys of each section, with the options of every member that [sync] can name; None where any key may
    stand."""
    keys: dict[str, list[str] | None] = {}
    for section, info in Config.model_fields.items():
        kind = info.annotation
        free = isinstance(kind, type) and issubclass(kind, _Free)
        keys[section] = None if free or not is_dataclass(kind) else [field.name for field in fields(kind)]
    keys["sync"] = [*OWN_KEYS, *all_options()]
    return keys


def differing(config: Config, sections: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of these sections that differ from the defaults, by section. Of [sync] the defaults are those
    of its strategy: who is told the strategy has them."""
    usual = Config(sync=SyncConfig(strategy=config.sync.strategy))
    ours, default = (each.model_dump(mode="json", exclude_none=True) for each in (config, usual))
    if config.sync.strategy != SyncConfig.strategy:
        del default["sync"]["strategy"]
    if config.sync.aggregator != usual.sync.aggregator:
        default["sync"].pop("f")  # who names an aggregator and no f has the aggregator's
    if config.sync.regions:  # the dump of a run without regions has none of these keys
        default["sync"] |= {key: getattr(usual.sync, key) for key in OF_REGIONS}
    return {
        section: {key: value for key, value in ours[section].items() if default[section].get(key) != value}
        for section in sections
    }


def changed(config: Config, sections: Sequence[str]) -> list[str]:
    """Return the settings of these sections that differ from the defaults, each as `section.key=value`."""
    return [
        f"{section}.{key}={_toml_value(value)}"
        for section, values in differing(config, sections).items()
        for key, value in values.items()
    ]


MACHINE_KEYS = ("train.device=", "train.threads=", "train.precision=", "train.compile=", "task.data=")
"""Settings that each machine chooses for itself: another one joins with its own, and with its own data."""


def join_command(config: Config, address: str) -> str:
    """Return what another machine runs to join: the peer to dial, and every setting that members must agree on."""
    agreed = [text for text in changed(config, ("task", "train", "sync")) if not text.startswith(MACHINE_KEYS)]
    agreed += [text for text in changed(config, ("node",)) if text.startswith("node.pace=")]
    if config.network.swarm != Config().network.swarm:
        agreed.append(f"network.swarm={_toml_value(config.network.swarm)}")
    if config.sync.regions:
        agreed.append("node.region=auto")  # each machine has its own: it asks, and who knows better writes its name
    words = ["p2ptrain", "node", "--peer", address]
    for text in agreed:
        words += ["--set", text]
    return shlex.join(words)


def _toml_value(value: object) -> str:
    """A value for `--set`: bare where a bare string comes back as itself."""
    if isinstance(value, str):
        bare = parse_set(f"a.b={value}")[2] == value and value == value.strip() and value != ""
        return value if bare else tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
    if isinstance(value, Mapping):
        return inline_table(value)
    return " ".join(tomli_w.dumps({"v": value}).removeprefix("v = ").split())
