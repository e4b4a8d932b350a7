"""The sections of the configuration that need no torch: the network's, and this process's.

A bootstrap node reads these and no others (`node/roles/bootstrap.py`), so this module imports nothing that learns.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, get_args

from pydantic import ConfigDict, Field

from gossip.core.backoff import peer_in
from gossip.core.config import GossipConfig
from gossip.core.errors import LocalError
from gossip.core.statements import check_region
from gossip.transport.connection_limits import LOCAL_NETWORKS, ConnectionBounds, parsed_networks
from node.config.toml_source import Raw, drop_options_of_other_names, merge, read_file, with_set
from node.system.errors import UsageError
from node.system.page_token import check_exposure

Role = Literal["trainer", "observer", "bootstrap", "relay"]
ROLES: tuple[str, ...] = get_args(Role)

ANYWHERE: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
"""Where a node listens that is told nothing else: on every interface, at a free port."""

_FORBID: ConfigDict = {"extra": "forbid"}
_ADDRESS = re.compile(r"/(ip4|ip6|dns|dns4|dns6)/[^/]+/tcp/\d{1,5}(/p2p/[^/]+)?")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(GossipConfig):
    """The gossip service's settings, and this node's own addresses."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    listen: tuple[str, ...] = ANYWHERE
    """Multiaddrs to listen on; port 0 is any free one. With `via` or `spool` the default is nowhere: who reaches nobody
    but a relay is dialled by nobody."""
    spool: Path | None = None
    """A folder, of mode 0700, that this machine shares with others: there a relay serves nodes that have no network,
    and those find it. Nothing is dialled by them, nor listened on."""
    allow: tuple[str, ...] = ()
    """Networks, as 10.20.0.0/16, whose callers alone are taken; empty: all are. A relay wants one: those are its
    clients."""
    allow_to: tuple[str, ...] = ()
    """Networks in which a relay dials members for its clients, besides the public internet and `peers`."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to tell others instead (a router forwards a port to this machine); empty: what `listen` came to."""
    upnp: bool = True
    """Whether to ask the router to forward the listening port here. It asks the own router alone, for a port that is
    meant to be dialled, and takes it back at the end; without it most homes would be beyond reach. Not where `announce`
    says that somebody has seen to it, nor where this machine has a public address, or listens on loopback alone."""
    max_connections: Annotated[int, Field(ge=1)] = 256
    """Inbound connections; a newcomer replaces the one that idles longest, never a neighbour's."""
    max_connections_of_network: Annotated[int, Field(ge=1)] = 32
    """The same of one network: a /24 of IPv4, a /48 of IPv6."""
    unbounded_networks: tuple[str, ...] = LOCAL_NETWORKS
    """Networks whose callers are bounded by `max_connections` alone: one's own, or that of a proxy before the node."""

    def __post_init__(self) -> None:
        """LocalError when settings contradict each other."""
        super().__post_init__()
        self.bounds()
        parsed_networks(self.allow_to)

    def bounds(self) -> ConnectionBounds:
        """Return how many connections there may be."""
        return ConnectionBounds(
            inbound=self.max_connections,
            of_network=self.max_connections_of_network,
            unbounded_networks=self.unbounded_networks,
            allow=self.allow,
        )

    @property
    def behind_relay(self) -> bool:
        """Return whether a node reaches nobody but a relay."""
        return bool(self.via) or self.spool is not None

    @property
    def listens_on(self) -> tuple[str, ...]:
        """Return where to listen."""
        return () if self.behind_relay and self.listen == ANYWHERE else self.listen


AUTO_REGION: Final = "auto"
"""As node.region: found out at the first start (roles/own_region.py). No region has this label."""


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """This process."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    role: Role = "trainer"
    """An observer trains and publishes nothing: it takes the swarm's model now and then, and evaluates it. A bootstrap
    node trains nothing: it knows who is there, and tells those who come. A relay trains nothing: nodes that reach
    nobody else reach the members through it (`network.allow`, `network.via`)."""
    region: str = ""
    """Which of the run's regions (sync.regions) this node is of: its neighbours are of the same one, and of the others
    it hears their models now and then. auto: the nearest by measured round trips, found out at the first start."""
    name: str = "node"
    """The folder under the run folder, and the node's name in tables."""
    lane: Literal["thread", "process", "inline"] = "thread"
    """Where training runs: in a thread beside the event loop, or (`process`, on Linux) in a process apart from the
    node's. `inline` shares the event loop's thread: for tests and simulations."""
    estimates_on: Literal["memory", "disk"] = "memory"
    """Where the neighbours' models are held. `disk`: in files of the run folder that no listing shows, gone when the
    node ends. Saves 4 bytes of memory a parameter and neighbour (2 with sync.estimates = "bf16"), and writes as many a
    round."""
    optimizer_on: Literal["memory", "disk"] = "memory"
    """Where the inner optimizer's vectors are held. `disk`: in files as those of `estimates_on`, moved a block at a
    time. Saves 8 bytes of memory a parameter with adamw, and reads and writes as many at every step. For adamw, sgd and
    schedule_free, on a CPU."""
    micro_batch: Annotated[int, Field(ge=0)] = 0
    """Examples that go through the model at a time; 0: a batch, or fewer once memory has run out. The gradient is that
    of the whole batch, within rounding; a task that says `whole_batches` has none."""
    overlap: bool = True
    """Whether the next round's steps run while a round is closed. false: training waits for the round, and no
    correction is late; for links over which an exchange takes a small part of a round."""
    overlap_steps: Annotated[int, Field(ge=0)] = 0
    """tau: how many steps late a closed round may be applied; 0: as many as the round has."""
    pace: Literal["fixed", "dylu", "auto"] = "fixed"
    """Steps in a round: train.inner_steps, or by its schedule (fixed); fewer on a slower machine, so that all end
    together (dylu); as few as the measured links hide, at most train.inner_steps (auto, which wants a constant
    schedule). All members should have the same."""
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
    min_donors: Annotated[int, Field(ge=1)] | None = None
    """Neighbours that must say the same of the swarm's round, and whose models are taken, when this node joins. None:
    more than sync.f of them and more than half for the one, and 2 f + 1 for the other, or all that there are."""
    linger_s: Annotated[float, Field(ge=0)] = 5.0
    """How long a finished node stays for slower neighbours' last rounds, at most; and then, for its last update to be
    fetched."""
    metrics_host: str = "127.0.0.1"
    """Where the node's page, /metrics and /status listen. On another address than loopback they want a token."""
    metrics_port: Annotated[int, Field(ge=-1, le=65535)] = 0
    """0: any free port; -1: no status page."""
    status_token_file: Path | None = None
    """Holds the token without which the page answers nobody (mode 0600); made with a new one if it is not there. None:
    no token is asked for, which only loopback allows."""
    below_minimum: bool = False
    """Whether to be a member of a swarm whose manifest asks for more memory or speed than this machine has."""
    shard_count: Annotated[int, Field(ge=1)] = 1
    """Parts that the training data is cut into. 1: every node draws from all of it, each in an order of its own."""
    shard_index: Annotated[int, Field(ge=0)] | None = None
    """Which part is this node's. None: the part that its peer id falls on, in an order that its peer id gives."""

    def __post_init__(self) -> None:
        """ValueError when the shard is not one of the count, or the region no label; UsageError for a page that all
        may read."""
        if self.region:
            check_region(self.region)
        if self.shard_index is not None and self.shard_index >= self.shard_count:
            raise ValueError(f"shard_index {self.shard_index} must be below shard_count {self.shard_count}")
        if self.metrics_port >= 0:
            check_exposure(self.metrics_host, self.status_token_file)


@dataclass(frozen=True, kw_only=True)
class MonitoringConfig:
    """What this machine tells beyond its page and its log; no member needs to know."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID

    exporters: tuple[str, ...] = ()
    """Of tensorboard, wandb (offline), otel; each needs its extra, such as `pip install p2ptrain[tensorboard]`."""
    watts_per_core: Annotated[float, Field(gt=0)] = 7.0
    """What a busy core takes, where the machine does not say what it takes. 11 would be a desktop's (65 W for 6 cores),
    4 a server's (280 W for 64): only its owner can say."""


def check_addresses(network: NetworkConfig) -> None:
    """Raise UsageError for an address that is none."""
    for key in ("listen", "announce"):
        for address in getattr(network, key):
            if not _ADDRESS.fullmatch(address):
                raise UsageError(f"network.{key}: {address!r} is no address", "one looks like /ip4/0.0.0.0/tcp/4001")
    if network.via and not _ADDRESS.fullmatch(network.via):
        raise UsageError(f"network.via: {network.via!r} is no address", "copy it from the line that the relay prints")
    if network.via and network.spool is not None:
        raise UsageError("--via and --spool are two ways to the relay", "give one of them")
    for key, addresses in (("peers", network.peers), ("via", filter(None, (network.via,)))):
        for address in addresses:
            try:
                peer_in(address)
            except LocalError as error:
                hint = "copy it from the line that the other node prints"
                raise UsageError(f"network.{key}: {error}", hint) from None


def merged(files: Sequence[Path] = (), sets: Sequence[str] = (), flags: Raw | None = None) -> Raw:
    """Return the raw settings of TOML files, later ones over earlier ones, `section.key=value` over them, flags over
    all.

    Raises UsageError on what is no file, no TOML, or no `--set`.
    """
    raw: Raw = {}
    for file in files:
        merge(raw, read_file(file))
    over: Raw = {}
    for text in sets:
        merge(over, with_set(raw, over, text))
    merge(over, flags or {})
    drop_options_of_other_names(raw, over)
    merge(raw, over)
    return raw


def role_in(raw: Raw) -> str:
    """Return which role the settings ask for. UsageError for one that does not exist."""
    section = raw.get("node")
    role = section.get("role", ROLES[0]) if isinstance(section, dict) else ROLES[0]
    if role not in ROLES:
        raise UsageError(f"unknown role {role!r}", f"there are {', '.join(ROLES)}")
    return str(role)
