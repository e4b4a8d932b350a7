"""The whole configuration: the components' own frozen dataclasses, one TOML section each, and nothing said twice.

    [task]     name of the task and its options (free keys: size, data, alpha, ...)
    [train]    p2ptrain.training.TrainConfig        [sync]    p2ptrain.sync.SyncConfig
    [network]  gossip.config.GossipConfig, and where to listen
    [node]     this process: lane, checkpoints, metrics, its shard of the data
    [attack]   what a Byzantine node does (for experiments; none by default)

`load` merges files in their order, then `--set section.key=value`, and turns every mistake into a UsageError of one
line. It imports the learning package (and with it torch): commands import this module when they run, not before.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gossip.config import GossipConfig
from gossip.errors import LocalError
from gossip.protocol.attempts import peer_in
from gossip.transport.places import LOCAL_NETWORKS, Bounds
from node import config_errors
from node.config_source import Raw, drop_options_of_other_names, merge, parse_set, read_file
from node.errors import UsageError
from p2ptrain import attacks
from p2ptrain.attacks import Attack
from p2ptrain.sync import SyncConfig
from p2ptrain.training import TrainConfig

_FORBID: ConfigDict = {"extra": "forbid"}
_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/[^/]+/tcp/\d{1,5}(/p2p/[^/]+)?")


class _Free(BaseModel):
    """A section with a `name` and free options for the factory of that name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def options(self) -> dict[str, Any]:
        """Every key but `name`: keyword arguments of the factory."""
        return dict(self.model_extra or {})


class TaskSection(_Free):
    """What is learned: a built-in task, a plug-in's, or `module:factory`."""

    name: str = "byte-lm"


class AttackSection(_Free):
    """What this node does to others; "none" is honest."""

    name: str = "none"

    def find(self) -> Attack | None:
        """The attack; None for an honest node. UsageError on an option that it does not take."""
        try:
            return None if self.name == "none" else attacks.find(self.name, **self.options)
        except (ValueError, TypeError) as error:
            raise UsageError(f"[attack]: {error}") from None


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(GossipConfig):
    """The gossip service's settings, and this node's own addresses."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Multiaddrs to listen on; port 0 is any free one."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead (a router forwards a port to this machine); empty: what `listen` came to."""
    max_connections: Annotated[int, Field(ge=1)] = 256
    """Inbound connections; a newcomer gets the place of whoever idles longest, never that of a neighbour."""
    max_connections_of_network: Annotated[int, Field(ge=1)] = 32
    """The same of one network: a /24 of IPv4, a /48 of IPv6."""
    unbounded_networks: tuple[str, ...] = LOCAL_NETWORKS
    """Networks whose callers are bounded by `max_connections` alone: one's own, or that of a proxy before the node."""

    def __post_init__(self) -> None:
        """LocalError when settings contradict each other."""
        super().__post_init__()
        self.bounds()

    def bounds(self) -> Bounds:
        """How many connections there may be."""
        return Bounds(
            inbound=self.max_connections,
            of_network=self.max_connections_of_network,
            unbounded_networks=self.unbounded_networks,
        )


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """This process."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    name: str = "node"
    """The folder under the run folder, and the node's name in tables."""
    lane: Literal["thread", "inline"] = "thread"
    """Where training runs. `inline` shares the event loop's thread: for tests and simulations."""
    overlap_steps: Annotated[int, Field(ge=0)] = 0
    """tau: how many steps late a closed round may be applied; 0: as many as `train.inner_steps`."""
    pace: Literal["fixed", "dylu", "auto"] = "fixed"
    """Steps in a round: train.inner_steps (fixed); fewer on a slower machine, so that all end together (dylu); as few
    as the measured links hide, at most train.inner_steps (auto). All members should have the same."""
    catch_up_rounds: Annotated[int, Field(ge=1)] = 2
    """A node this many rounds behind its neighbours does shorter rounds until it is level."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 10
    """Rounds between checkpoints; 0: only at the end and on an interruption."""
    checkpoint_keep: Annotated[int, Field(ge=1)] = 3
    """How many checkpoints stay: one to go on from, and two for when it is damaged."""
    wait_for: Annotated[int, Field(ge=0)] = 0
    """Neighbours to wait for before the first round; 0: start alone, others may join at any time."""
    wait_timeout_s: Annotated[float, Field(ge=0)] = 60.0
    """After so long, start with those there are. Slow machines need half a minute to import torch and dial."""
    linger_s: Annotated[float, Field(ge=0)] = 5.0
    """How long a finished node stays for slower neighbours' last rounds, at most; and then, for its last update to be
    fetched."""
    metrics_host: str = "127.0.0.1"
    """Where /metrics and /status listen. Anyone who reaches it may read it: keep it on loopback or a private link."""
    metrics_port: Annotated[int, Field(ge=-1, le=65535)] = 0
    """0: any free port; -1: no status page."""
    shard_count: Annotated[int, Field(ge=1)] = 1
    """Parts that the training data is cut into. 1: every node draws from all of it, each in an order of its own."""
    shard_index: Annotated[int, Field(ge=0)] | None = None
    """Which part is this node's. None: the part that its peer id falls on, in an order that its peer id gives."""

    def __post_init__(self) -> None:
        """ValueError when the shard is not one of the count."""
        if self.shard_index is not None and self.shard_index >= self.shard_count:
            raise ValueError(f"shard_index {self.shard_index} must be below shard_count {self.shard_count}")


class Config(BaseModel):
    """Everything that a node can be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: TaskSection = TaskSection()
    train: TrainConfig = TrainConfig()
    sync: SyncConfig = SyncConfig()
    network: NetworkConfig = NetworkConfig()
    node: NodeConfig = NodeConfig()
    attack: AttackSection = AttackSection()

    def to_toml(self) -> str:
        """Every setting, defaults included, as a file that `load` reads back to the same configuration."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def load(files: Sequence[Path] = (), sets: Sequence[str] = (), flags: Raw | None = None) -> Config:
    """The configuration from TOML files, later ones over earlier ones, `section.key=value` over them, flags over all.

    Raises UsageError on the first mistake.
    """
    raw: Raw = {}
    for file in files:
        merge(raw, read_file(file))
    over: Raw = {}
    for text in sets:
        section, key, value = parse_set(text)
        merge(over, {section: {key: value}})
    merge(over, flags or {})
    drop_options_of_other_names(raw, over)
    merge(raw, over)
    return from_raw(raw)


def from_raw(raw: Raw) -> Config:
    """Validate sections, keys, values, and the names of members. Raises UsageError."""
    config_errors.check_members(raw)
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise config_errors.from_validation(error, known_keys()) from None
    except LocalError as error:  # of GossipConfig, whose package does not know pydantic
        raise UsageError(f"[network]: {error}") from None
    _check_addresses(config.network)
    _check_pace(config)
    config.attack.find()
    return config


def _check_pace(config: Config) -> None:
    if config.node.pace == "auto" and "adaptive" in config.sync.compressor.split("+"):
        message = "node.pace=auto and sync.compressor=adaptive both follow the link, each the other downwards"
        raise UsageError(message, "choose the steps (node.pace) or the bits (sync.compressor) yourself")


def _check_addresses(network: NetworkConfig) -> None:
    for key in ("listen", "announce"):
        for address in getattr(network, key):
            if not _ADDRESS.fullmatch(address):
                raise UsageError(f"network.{key}: {address!r} is no address", "one looks like /ip4/0.0.0.0/tcp/4001")
    for address in network.peers:
        try:
            peer_in(address)
        except LocalError as error:
            raise UsageError(f"network.peers: {error}", "copy it from the line that the other node prints") from None


def known_keys() -> dict[str, list[str] | None]:
    """The keys of each section; None where any key may stand."""
    keys: dict[str, list[str] | None] = {}
    for section, info in Config.model_fields.items():
        kind = info.annotation
        free = isinstance(kind, type) and issubclass(kind, _Free)
        keys[section] = None if free or not is_dataclass(kind) else [field.name for field in fields(kind)]
    return keys


def changed(config: Config, sections: Sequence[str]) -> list[str]:
    """The settings of these sections that differ from the defaults, each as `section.key=value`."""
    ours, default = (each.model_dump(mode="json", exclude_none=True) for each in (config, Config()))
    return [
        f"{section}.{key}={_toml_value(value)}"
        for section in sections
        for key, value in ours[section].items()
        if default[section].get(key) != value
    ]


MACHINE_KEYS = ("train.device=", "train.threads=", "train.precision=", "task.data=")
"""Settings that each machine chooses for itself: another one joins with its own, and with its own data."""


def join_command(config: Config, address: str) -> str:
    """What another machine runs to join: the peer to dial, and every setting that members must agree on."""
    agreed = [text for text in changed(config, ("task", "train", "sync")) if not text.startswith(MACHINE_KEYS)]
    agreed += [text for text in changed(config, ("node",)) if text.startswith("node.pace=")]
    if config.network.swarm != Config().network.swarm:
        agreed.append(f"network.swarm={_toml_value(config.network.swarm)}")
    words = ["p2ptrain", "node", "--peer", address]
    for text in agreed:
        words += ["--set", text]
    return shlex.join(words)


def _toml_value(value: object) -> str:
    """A value for `--set`: bare where a bare string comes back as itself."""
    if isinstance(value, str):
        bare = parse_set(f"a.b={value}")[2] == value and value == value.strip() and value != ""
        return value if bare else tomli_w.dumps({"v": value}).removeprefix("v = ").strip()
    return " ".join(tomli_w.dumps({"v": value}).removeprefix("v = ").split())
