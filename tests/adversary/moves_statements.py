"""Moves of what a member says of itself to each neighbour: that it pauses, that its data have shifted, what its classes
look like. Lies, wrong answers to those of honest nodes, and floods; each kind of statement has them all.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio
from adversary_move import Act, move
from adversary_scenario import PAUSES, ROUND_S, SHIFTS, STATISTICS
from hostile_peer import FAULTS, PATIENCE_S, Fault
from moves_chains import lie, new_epoch, take_part

from gossip.core.errors import GossipError
from gossip.core.limits import (
    MAX_COUNTER,
    MAX_RESPONSE_BYTES,
    MAX_STATISTICS_BYTES,
    PAUSE_PROTOCOL,
    SHIFT_PROTOCOL,
    STATISTICS_PROTOCOL,
)
from gossip.core.messages import PauseRequest, Request, ShiftRequest, StatisticsRequest
from gossip.session import ask_once, open_session

SECONDS = (0, 1, 20, 600, MAX_COUNTER)
"""For which it says that it pauses."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A kind of statement. `name`: of its request on the wire. `moves`: of its moves. `made`: the request that says it
    as of a link."""

    name: str
    moves: str
    protocol: str
    among: frozenset[str]
    made: Callable[[Act, bytes], Request]


PAUSE = Statement(
    name="pause",
    moves="pauses",
    protocol=PAUSE_PROTOCOL,
    among=PAUSES,
    made=lambda act, link: PauseRequest(link=link, seconds=act.rng.choice(SECONDS)),
)
SHIFT = Statement(
    name="shift",
    moves="shifts",
    protocol=SHIFT_PROTOCOL,
    among=SHIFTS,
    made=lambda act, link: ShiftRequest(link=link),
)
CLASSES = Statement(
    name="statistics",
    moves="statistics",
    protocol=STATISTICS_PROTOCOL,
    among=STATISTICS,
    made=lambda act, link: StatisticsRequest(),
)


# -- said as of a link


@move(
    "pauses.say",
    amounts=(4, 60),
    seconds=(60, 200),
    variants=("for_ever", "publishes", "each_round", "old", "others", "junk"),
    speaks=("pause", "link"),
    among=PAUSES,
)
async def _say_pauses(act: Act) -> None:
    """That it is paused: for ever, beside updates of its own, after each of them, after an old link, somebody else's,
    or none."""
    await _say_again(act, PAUSE)


@move(
    "shifts.say",
    amounts=(4, 60),
    seconds=(60, 200),
    variants=("always", "publishes", "old", "others", "junk"),
    speaks=("shift", "link"),
    among=SHIFTS,
)
async def _say_shifts(act: Act) -> None:
    """That its data have shifted: all the time, beside updates of its own, as of an old link, somebody else's, or
    none."""
    await _say_again(act, SHIFT)


async def _say_again(act: Act, statement: Statement) -> None:
    chain, stage = act.peer.chain, act.stage
    if chain.newest is None:
        model_d = lie(act, "mean", stage.genesis_d) if stage.round > 0 else None
        await act.peer.tell(chain.begin(epoch=new_epoch(act), round=stage.round, model_d=model_d).raw)
    await act.meet()
    pause_s = ROUND_S / 3 if act.move.variant == "each_round" else act.move.seconds / act.move.amount
    async with trio.open_nursery() as nursery:
        if act.move.variant in ("publishes", "each_round", "others"):
            nursery.start_soon(take_part, act, act.rng.choice(["flip", "mean", "alie"]))
        with trio.move_on_after(act.move.seconds):
            while True:
                await _say(act, statement)
                await trio.sleep(pause_s)


async def _say(act: Act, statement: Statement) -> None:
    """To each target, once."""
    transport, said = act.peer.transport, statement.made(act, _link_of(act))
    for life in act.targets:
        with suppress(GossipError):
            await ask_once(transport, life.peer, said, PATIENCE_S, MAX_RESPONSE_BYTES, protocol=statement.protocol)


def _link_of(act: Act) -> bytes:
    """As of which it says so: its newest, an old one, somebody else's, or none at all."""
    chain = act.peer.chain
    match act.move.variant:
        case "old":
            return chain.links[0].raw
        case "others":
            return act.rng.choice(act.peer.heard) if act.peer.heard else b""
        case "junk":
            return act.rng.randbytes(act.rng.choice([0, 1, 200]))
        case _:
            return chain.raw


# -- said to who asks


@move("statistics.state", variants=("extreme", "junk", "large", "empty"), speaks=("statistics",), among=STATISTICS)
async def _state(act: Act) -> None:
    """A lie about its own data, well signed, beside updates of its own: the end of the range for all inputs of a crowd,
    junk, as much as may be sent, or nothing."""
    match act.move.variant:
        case "extreme":
            act.peer.statistics = act.stage.extreme_statistics()
        case "junk":
            act.peer.statistics = act.rng.randbytes(act.rng.choice([1, 200, 2000]))
        case "large":
            act.peer.statistics = bytes(MAX_STATISTICS_BYTES)
        case _:
            act.peer.statistics = b""
    await take_part(act, act.rng.choice(["flip", "mean", "alie"]))


# -- of every kind


def _register(statement: Statement) -> None:
    """Wrong answers to a kind of statement, and floods of it."""

    @move(
        f"{statement.moves}.answer",
        variants=FAULTS,
        seconds=(20, 120),
        speaks=(statement.name,),
        among=statement.among,
    )
    async def answer(act: Act) -> None:
        """Answer those that say so, or ask, wrongly, in any way."""
        if statement is CLASSES:
            act.peer.statistics = act.stage.extreme_statistics()
        towards = frozenset(life.peer for life in act.targets) if act.move.targets else frozenset()
        with act.peer.lying(Fault(statement.name, act.move.variant, towards)):
            await take_part(act, "mean")

    @move(
        f"flood.{statement.name}",
        amounts=(5, 120),
        seconds=(1, 20),
        variants=("stranger", "neighbour"),
        speaks=(statement.name,),
        among=statement.among,
    )
    async def flood(act: Act) -> None:
        """Many, by one who has been met, or has not."""
        if act.move.variant == "neighbour":
            await act.meet()
        for life in act.targets:
            with suppress(GossipError):
                peer = await act.peer.transport.dial(life.member.transport.addresses[0])
                async with open_session(act.peer.transport, peer, PATIENCE_S, protocol=statement.protocol) as session:
                    for _ in range(act.move.amount):
                        said = statement.made(act, act.peer.chain.raw or act.rng.randbytes(60))
                        await session.ask(said, MAX_RESPONSE_BYTES)
                        await trio.sleep(act.move.seconds / act.move.amount)


for kind in (PAUSE, SHIFT, CLASSES):
    _register(kind)
