"""A move of a hostile node: what it is called, when, by whom, against whom, and how much of it. And the list of all.

A move is data, so that a plan can be printed, kept, played again and made shorter. What it does is a function that is
registered under its name, with the bounds that its numbers are drawn from, the messages of the wire that it uses, and
the kinds of scenario in which it means something.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import trio
from adversary_scenario import KINDS, LEAST_S, ROUND_S, Scenario

from gossip.core.errors import GossipError

if TYPE_CHECKING:
    from adversary_stage import Life, Stage
    from hostile_peer import HostilePeer

ALL: Final = -1
"""As an actor: all hostile nodes at once, with one plan."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """`at`, `seconds`: when it begins, and how long it lasts. `targets`: numbers of honest nodes; empty: all."""

    kind: str
    at: float
    actor: int = 0
    targets: tuple[int, ...] = ()
    amount: int = 1
    seconds: float = 10.0
    variant: str = ""
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """For a plan's file."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Of a plan's file."""
        return cls(**{**fields, "targets": tuple(fields.get("targets", ()))})

    def smaller(self) -> list[Self]:
        """The same with less of something, the least first."""
        found = []
        if self.amount > 1:
            found += [replace(self, amount=1), replace(self, amount=self.amount // 2)]
        if self.actor == ALL:
            found.append(replace(self, actor=0))
        if len(self.targets) != 1:
            found.append(replace(self, targets=(self.targets or (0,))[:1]))
        if self.seconds > 1.0:
            found += [replace(self, seconds=1.0), replace(self, seconds=round(self.seconds / 2, 1))]
        if self.at > 0:
            found += [replace(self, at=0.0), replace(self, at=float(int(self.at)))]
        return [each for each in found if each != self]


@dataclass
class Act:
    """A move that is being made, by one hostile node: by whoever has its number now, or by one beside those."""

    move: Move
    stage: "Stage"
    number: int
    rng: random.Random
    beside: "HostilePeer | None" = None

    @property
    def peer(self) -> "HostilePeer":
        """The hostile node. Another move may have put another in its place meanwhile."""
        return self.beside or self.stage.hostile[self.number]

    @property
    def targets(self) -> list["Life"]:
        """Those that are there."""
        return self.stage.targets(self.move.targets)

    async def meet(self) -> None:
        """Become a neighbour of the targets, and of those that come later."""
        if self.peer.peer not in self.stage.met:
            self.stage.met.add(self.peer.peer)
            self.stage.meet_all(self.peer, ())
        for life in self.targets:
            if life.peer not in self.peer.transport.peers:
                await self.peer.meet(life.member.transport.addresses[0])


Perform = Callable[[Act], Awaitable[None]]


@dataclass(frozen=True)
class Spec:
    """What is known of a kind of move. `amounts`, `seconds`: what is drawn. `speaks`: the requests, statements and
    protocols of the wire that it uses. `among`: the kinds of scenario that it is for."""

    kind: str
    perform: Perform
    amounts: tuple[int, int]
    seconds: tuple[float, float]
    variants: Sequence[str]
    speaks: frozenset[str]
    among: frozenset[str]
    apt: frozenset[str]
    """Those in which it is drawn more often."""


MOVES: Final[dict[str, Spec]] = {}

CLOSED: Final = frozenset(KINDS) - {"open"}
TRAINING: Final = CLOSED - {"meeting"}
ANY: Final = frozenset(KINDS)


def move(
    kind: str,
    *,
    amounts: tuple[int, int] = (1, 1),
    seconds: tuple[float, float] = (5.0, 60.0),
    variants: Sequence[str] = ("",),
    speaks: Sequence[str] = (),
    among: frozenset[str] = ANY,
    apt: Sequence[str] = (),
) -> Callable[[Perform], Perform]:
    """Register what a kind of move does."""

    def register(perform: Perform) -> Perform:
        assert kind not in MOVES, kind
        assert among.issuperset(apt)
        MOVES[kind] = Spec(kind, perform, amounts, seconds, variants, frozenset(speaks), among, frozenset(apt))
        return perform

    return register


async def perform(made: Move, stage: "Stage") -> None:
    """Make a move, by each of its actors. What the network or an honest node makes of it is none of our errors."""
    await trio.sleep_until(made.at)
    await stage.begun.wait()
    actors = range(stage.scenario.hostile) if made.actor == ALL else [made.actor]
    spec = MOVES[made.kind]

    async def by(number: int) -> None:
        await stage.actor(number)
        try:
            await spec.perform(Act(made, stage, number, random.Random(f"{stage.seed}/{made.seed}")))
        except* GossipError:
            pass

    async with trio.open_nursery() as nursery:
        for number in actors:
            nursery.start_soon(by, number)


def draw_move(kind: str, scenario: Scenario, rng: random.Random) -> Move:
    """One of this kind, at a time that suits the scenario."""
    spec = MOVES[kind]
    low, high = spec.amounts
    near = max(0.0, scenario.moment + rng.uniform(-ROUND_S, ROUND_S))
    anywhere = rng.uniform(0.0, LEAST_S - ROUND_S)
    number = rng.randrange(scenario.honest)
    some = tuple(sorted(rng.sample(range(scenario.honest), rng.randint(1, scenario.honest - 1))))
    return Move(
        kind=kind,
        at=round(rng.choice([near, near, 0.0, anywhere]), 1),
        actor=rng.choice([ALL, ALL, rng.randrange(scenario.hostile)]),
        targets=rng.choice([(), (), some, (number,)]),
        amount=round(low * (high / low) ** rng.random()),
        seconds=round(rng.uniform(*spec.seconds), 1),
        variant=rng.choice(list(spec.variants)),
        seed=rng.randrange(1 << 16),
    )
