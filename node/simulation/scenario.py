"""What a simulation is told: one TOML file, and nothing beside it.

    mode, seed, until_s, ...   of the run
    [task] [train] [sync] [network] [node] [attack]   exactly the node's own settings (node/config), for all nodes
    [[nodes]]        groups of nodes alike: how many, where, on which device, link and session
    [[regions]]      latency in ms between regions; without any: the eight of regions.py
    [links.NAME]     access links: rates up and down, loss, jitter, queue, slow start, NAT
    [devices.NAME]   how fast a node computes
    [sessions.NAME]  when a node is there: weibull, diurnal or trace
    [[events]]       what happens at a virtual time
    [assert]         what must hold at the end

A key that does not exist is refused. Times are virtual seconds unless a name ends in `_ms` or `_h`. A selector names
nodes: `"*"`, a group (`"home"`), one node (`"home-3"`), or `"region:europe"`.
"""

import math
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from node.simulation.regions import UTC_OFFSET_H, WORLD
from node.simulation.units import bytes_per_s
from node.training.executors import SideWork

CONFIG_SECTIONS = ("task", "train", "sync", "network", "node", "attack")
"""Sections that are the node's own settings."""

Raw: TypeAlias = dict[str, Any]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
"""Of a group, region, link, device or session. A node's is its group's, a dash and a number."""
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Rate: TypeAlias = Annotated[float, BeforeValidator(bytes_per_s)]
"""Bytes a second, or text such as "20 Mbit/s"."""


class Strict(BaseModel):
    """A table whose keys and types are exactly these."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RegionTable(Strict):
    """A region of the world. `latency_ms`: one way, to itself and to others; each pair is named by one of its two."""

    name: Name
    latency_ms: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    utc_offset_h: Annotated[float, Field(ge=-14, le=14)] = 0.0
    """Hours by which local time is ahead of UTC."""


Nat: TypeAlias = Literal["open", "full_cone", "address_restricted", "port_restricted", "symmetric"]
"""What stands between a node and the others, by the names of RFC 3489 (those of RFC 4787 and 5382 in brackets).

open: nothing, or a router that filters nothing.
full_cone: a mapping lets everybody in (endpoint-independent filtering).
address_restricted: only hosts that were called from it (address-dependent filtering).
port_restricted: only the ports that were called from it (address and port-dependent filtering).
symmetric: there is another mapping for each port that is called (address and port-dependent mapping).

The last four are the same to a node of ours. A mapping comes into being by a call from that port. The node calls from
ports of the system's choice and listens on another, which no mapping leads to, and it punches no holes (decision 21).
So nobody can dial it, until its port is forwarded, or a neighbour relays for it."""


class LinkClass(Strict):
    """A node's access link. Everything that it sends and receives shares it."""

    up: Rate = math.inf
    down: Rate = math.inf
    loss: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of packets lost. A stream is slowed by it (Mathis' ceiling), a broadcast is lost."""
    jitter_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Each piece is late by up to so much, drawn evenly."""
    queue_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Bufferbloat: the queue that a link builds up while it is busy, at most."""
    slow_start: bool = True
    """Whether a transfer begins with ten segments and doubles each round trip."""
    nat: Nat = "open"
    """What its router lets in that it did not ask for."""
    forwarded: bool = False
    """Whether the router forwards the node's port all the same: by UPnP, which a node asks for, or by its owner's
    hand. A second router in front of it (carrier-grade NAT) forwards nothing."""

    @property
    def lets_in(self) -> bool:
        """Return whether others can dial the node."""
        return self.nat == "open" or self.forwarded

    @model_validator(mode="after")
    def _has_something_to_forward(self) -> "LinkClass":
        if self.nat == "open" and self.forwarded:
            raise ValueError("forwarded says that a router forwards a port, and nat = 'open' that there is none")
        return self


class DeviceClass(Strict):
    """How fast a node computes. Only what is charged takes virtual time."""

    step_s: Positive = 0.05
    """Median seconds of an inner step."""
    sigma: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Of the steps' lognormal distribution, each step by itself."""
    round_sigma: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Of a lognormal factor that all steps of a round have in common, and what training stands still for in it: what
    else has the core is there for longer than a step."""
    slow_factor: Annotated[float, Field(ge=1)] = 1.0
    """Times that a step takes longer in a slow phase: another program, a hot phone."""
    slow_every_s: Positive | None = None
    """Mean seconds between two slow phases, exponential; None: there are none."""
    slow_for_s: Positive = 30.0
    """Mean seconds of a slow phase, exponential."""
    encode_s: Seconds = 0.0
    """Of each update that it encodes."""
    decode_s: Seconds = 0.0
    """Of each neighbour's update that it decodes."""
    aggregate_s: Seconds = 0.0
    """Of each average over its neighbours' models."""
    other_s: Seconds = 0.0
    """Of each other piece of work on vectors: a copy of the model, a checkpoint."""
    evaluate_s: Seconds = 0.0
    """Of each evaluation."""
    verify_s: Seconds = 0.0
    """Of its event loop, for each broadcast that comes in: most of it is the signature."""
    stream_s: Seconds = 0.0
    """Of its event loop, for each stream, opened by either end."""
    wake_s: Seconds = 0.0
    """Of its event loop, until it comes to what has arrived, each time: training has the interpreter, or the core. Mean
    of an exponential distribution."""
    spare_core: bool = True
    """Whether all this is computed beside training. False: training stands still meanwhile, as its core is the only
    one."""

    def work_s(self, work: SideWork) -> float:
        """Return what a piece of work beside training takes."""
        charges = {SideWork.ENCODE: self.encode_s, SideWork.DECODE: self.decode_s, SideWork.AGGREGATE: self.aggregate_s}
        return charges.get(work, self.other_s)


class _Session(Strict):
    ends_by: Literal["stop", "kill"] = "stop"
    """How a session ends: as by Ctrl-C, with a checkpoint and a goodbye, or as by a power cut."""


class WeibullSession(_Session):
    """On and off for times drawn from two Weibull distributions, given by shape and scale."""

    kind: Literal["weibull"]
    on_scale_s: Positive
    on_shape: Positive = 0.5
    """Below 1: most sessions are short, and some very long."""
    off_scale_s: Positive
    off_shape: Positive = 0.5


class DiurnalSession(_Session):
    """There from one local hour of each day to another, each node a little earlier or later."""

    kind: Literal["diurnal"]
    from_h: Annotated[float, Field(ge=0, le=24)]
    to_h: Annotated[float, Field(ge=0, le=24)]
    """Before `from_h`: the next morning. From 0 to 24 is the whole day."""
    spread_h: Annotated[float, Field(ge=0, le=6)] = 0.0
    """Each node's hours are shifted by up to so much, drawn once."""

    @model_validator(mode="after")
    def _has_hours(self) -> "DiurnalSession":
        if self.from_h == self.to_h:
            raise ValueError("from_h and to_h are the same hour: a node is never there; the whole day is 0 to 24")
        return self


class TraceSession(_Session):
    """There in these intervals."""

    kind: Literal["trace"]
    intervals_s: list[list[Seconds]]
    """Of [from, to], in order."""

    @field_validator("intervals_s")
    @classmethod
    def _in_order(cls, intervals: list[list[float]]) -> list[list[float]]:
        last = -1.0
        for each in intervals:
            if len(each) != 2 or not last < each[0] < each[1]:
                raise ValueError("intervals are [from, to] in order, such as [[0, 60], [90, 200]]")
            last = each[1]
        return intervals


SessionClass: TypeAlias = Annotated[WeibullSession | DiurnalSession | TraceSession, Field(discriminator="kind")]


class NodeGroup(Strict):
    """Nodes alike. They are called `name-0`, `name-1`, ..."""

    name: Name = "node"
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    region: str | None = None
    """None: the first region."""
    device: str | None = None
    """None: every step takes 0.05 s, and nothing else takes time."""
    link: str | None = None
    """None: no limit."""
    session: str | None = None
    """None: there from the start to the end."""
    starts_s: Seconds = 0.0
    starts_over_s: Seconds = 0.0
    """The group's nodes start evenly spread over so long."""
    lies: bool = False
    """Whether they carry out [attack]."""
    attack: Raw | None = None
    """An attack of this group's own, as [attack]."""
    settings: dict[str, Raw] = Field(default_factory=dict)
    """Settings of the node that differ in this group, by section."""

    @property
    def byzantine(self) -> bool:
        """Return whether the group lies from the start."""
        return self.lies or self.attack is not None


class _SimEvent(Strict):
    at_s: Seconds


class _OfNodes(_SimEvent):
    nodes: list[str]
    """Selectors."""
    share: Share = 1.0
    """Of the selected nodes, rounded up; which ones, the seed draws."""


class PartitionEvent(_SimEvent):
    """Nothing passes between nodes of different groups. Who is in no group reaches all."""

    kind: Literal["partition"]
    groups: list[list[str]]
    """Groups of selectors."""
    for_s: Positive | None = None
    """None: until `heal`."""


class HealEvent(_SimEvent):
    """Every partition and every lost region is over."""

    kind: Literal["heal"]


class RegionLossEvent(_SimEvent):
    """No node of the region reaches any other node, of the region or not."""

    kind: Literal["region_loss"]
    region: str
    for_s: Positive | None = None
    """None: until `heal`."""


class StallEvent(_OfNodes):
    """Connections stay and nothing passes, as with a closed lid."""

    kind: Literal["stall"]
    for_s: Positive


class KillEvent(_OfNodes):
    """As kill -9: nothing is written, nobody is told."""

    kind: Literal["kill"]


class LeaveEvent(_OfNodes):
    """As Ctrl-C: a checkpoint and a goodbye."""

    kind: Literal["leave"]


class RestartEvent(_OfNodes):
    """Who was killed or has left starts again from its folder."""

    kind: Literal["restart"]


class JoinEvent(_OfNodes):
    """These nodes start now, and not when their group does."""

    kind: Literal["join"]


class AttackEvent(_OfNodes):
    """These honest nodes restart from their checkpoints, and carry out [attack] from then on."""

    kind: Literal["attack"]


class ClockSkewEvent(_OfNodes):
    """These nodes' wall clocks are ahead by so much from now on (below 0: behind)."""

    kind: Literal["clock_skew"]
    ahead_s: Annotated[float, Field(allow_inf_nan=False)]


class DiskFullEvent(_OfNodes):
    """No checkpoint can be written."""

    kind: Literal["disk_full"]
    for_s: Positive | None = None


class DiskStallEvent(_OfNodes):
    """Writing a checkpoint takes so much longer."""

    kind: Literal["disk_stall"]
    takes_s: Positive
    for_s: Positive | None = None


SimEvent: TypeAlias = Annotated[
    PartitionEvent
    | HealEvent
    | RegionLossEvent
    | StallEvent
    | KillEvent
    | LeaveEvent
    | RestartEvent
    | JoinEvent
    | AttackEvent
    | ClockSkewEvent
    | DiskFullEvent
    | DiskStallEvent,
    Field(discriminator="kind"),
]


class Invariants(Strict):
    """What must hold of the honest nodes. What is left out is not checked."""

    all_finish: bool = False
    """Every honest node comes to the last round."""
    finish_share: Share | None = None
    """At least this share of them does."""
    no_honest_ban: bool = True
    """No honest node bans an honest one."""
    rounds_min: Annotated[int, Field(ge=0)] | None = None
    """Every honest node has closed so many rounds."""
    loss_max: float | None = None
    """Mean over nodes of the last held-out loss."""
    staleness_max: Annotated[int, Field(ge=0)] | None = None
    """The most rounds by which a model in an average lagged."""
    utilization_min: Share | None = None
    """Mean over nodes of the share of time that was computed."""
    bytes_max: Annotated[int, Field(ge=0)] | None = None
    """The most that one node sent."""
    recovers_within: Annotated[int, Field(ge=1)] | None = None
    """Rounds after the last event is over in which the mean held-out loss is back at what it was before the first."""


class Scenario(Strict):
    """A whole scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)
    sections: ClassVar[tuple[str, ...]] = CONFIG_SECTIONS

    about: str = ""
    """What it shows, in a sentence."""
    mode: Literal["faithful", "large"] = "faithful"
    """`faithful`: real nodes. `large`: vectorised, for thousands."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    until_s: Positive = 3600.0
    """Virtual seconds after which the simulation ends, finished or not."""
    day_s: Positive = 86_400.0
    """Virtual seconds of a day, for diurnal sessions. Shorter: a week in an hour."""
    begins_h: Annotated[float, Field(ge=0, le=24)] = 0.0
    """The hour of the day in UTC at which it begins."""
    known_peers: Annotated[int, Field(ge=1)] = 4
    """Addresses of running nodes that a starting node is given. It finds the others by itself."""
    crypto: Literal["shared", "each"] = "shared"
    """`shared`: a signed envelope is verified and opened once for all nodes of the process, and bytes and verdicts are
    the same. `each`: by every node."""

    task: Raw = Field(default_factory=lambda: {"name": "digits"})
    train: Raw = Field(default_factory=dict)
    sync: Raw = Field(default_factory=dict)
    network: Raw = Field(default_factory=dict)
    node: Raw = Field(default_factory=dict)
    attack: Raw = Field(default_factory=dict)

    nodes: Annotated[list[NodeGroup], Field(min_length=1)]
    regions: list[RegionTable] = Field(default_factory=list)
    links: dict[Name, LinkClass] = Field(default_factory=dict)
    devices: dict[Name, DeviceClass] = Field(default_factory=dict)
    sessions: dict[Name, SessionClass] = Field(default_factory=dict)
    events: list[SimEvent] = Field(default_factory=list)
    invariants: Invariants = Field(default_factory=Invariants, alias="assert")

    @model_validator(mode="after")
    def _consistent(self) -> "Scenario":
        names = [group.name for group in self.nodes]
        if len(set(names)) < len(names):
            raise ValueError("two groups of nodes have the same name: give each its own")
        for group in self.nodes:
            where = f"nodes.{group.name}"
            _known(f"{where}.region", group.region, self.region_names)
            _known(f"{where}.link", group.link, list(self.links))
            _known(f"{where}.device", group.device, list(self.devices))
            _known(f"{where}.session", group.session, list(self.sessions))
            if group.lies and group.attack is None and not self.attack:
                raise ValueError(f"{where} lies and nothing says how: add [attack] with a name")
        if all(group.byzantine for group in self.nodes):
            raise ValueError("every node lies: there is nobody to judge by; leave one group without lies and attack")
        _check_latencies(self.regions)
        for number, event in enumerate(self.events):
            self._check_event(f"events[{number}]", event)
        return self

    def _check_event(self, where: str, event: "SimEvent") -> None:
        if isinstance(event, RegionLossEvent):
            _known(f"{where}.region", event.region, self.region_names)
        selectors = [each for group in event.groups for each in group] if isinstance(event, PartitionEvent) else []
        if isinstance(event, _OfNodes):
            selectors = event.nodes
        for selector in selectors:
            if not self.selected([selector]):
                groups = ", ".join(group.name for group in self.nodes)
                raise ValueError(f"{where} names no node by {selector!r}: groups are {groups}")
        if isinstance(event, AttackEvent) and not self.attack:
            raise ValueError(f"{where} begins an attack and nothing says which: add [attack] with a name")

    @property
    def region_names(self) -> list[str]:
        """Return the regions' names, the default one first."""
        return [region.name for region in self.regions] or ["europe", *(name for name in WORLD if name != "europe")]

    def latency_s(self, one: str, other: str) -> float:
        """Return the seconds one way between two regions."""
        table = {region.name: region.latency_ms for region in self.regions} or WORLD
        found = table[one].get(other)
        return (table[other][one] if found is None else found) / 1000

    def utc_offset_h(self, region: str) -> float:
        """Return the hours by which a region's local time is ahead of UTC."""
        own = {each.name: each.utc_offset_h for each in self.regions}
        return (own or UTC_OFFSET_H)[region]

    def region_of(self, group: NodeGroup) -> str:
        """Return the region of a group's nodes."""
        return group.region or self.region_names[0]

    @property
    def members(self) -> dict[str, NodeGroup]:
        """Return every node's group by the node's name, in order."""
        return {f"{group.name}-{number}": group for group in self.nodes for number in range(group.count)}

    def selected(self, selectors: list[str]) -> list[str]:
        """Return the nodes that any of these selectors names, in order."""
        return [
            name
            for name, group in self.members.items()
            if {"*", name, group.name, f"region:{self.region_of(group)}"} & set(selectors)
        ]


def _known(where: str, name: str | None, names: list[str]) -> None:
    if name is not None and name not in names:
        raise ValueError(f"{where}: there is no {name!r}, only {', '.join(names) or 'none at all'}")


def _check_latencies(regions: list[RegionTable]) -> None:
    """ValueError where a pair of regions is named by neither, or differently by both."""
    names = [region.name for region in regions]
    if len(set(names)) < len(names):
        raise ValueError("two regions have the same name")
    table = {region.name: region.latency_ms for region in regions}
    for one in names:
        for other in table[one]:
            _known(f"regions.{one}.latency_ms", other, names)
        for other in names:
            there, back = table[one].get(other), table[other].get(one)
            if there is None and back is None:
                raise ValueError(f"regions: nothing says the latency_ms between {one} and {other}")
            if None not in (there, back) and there != back:
                raise ValueError(f"regions: {one} and {other} name two latencies, {there} and {back} ms")
