"""Moves of class statistics: lies about one's own data, wrong answers to a newcomer, and floods of requests."""

from contextlib import suppress

import trio
from adversary_move import Act, move
from adversary_scenario import STATISTICS
from hostile_peer import FAULTS, PATIENCE_S, Fault
from moves_chains import take_part

from gossip.core.errors import GossipError
from gossip.core.limits import MAX_RESPONSE_BYTES, MAX_STATISTICS_BYTES, STATISTICS_PROTOCOL
from gossip.core.messages import StatisticsRequest
from gossip.session import open_session


def stated(act: Act) -> bytes:
    """The end of the range for all inputs of a crowd, junk, nothing, or as much as may be sent."""
    match act.move.variant:
        case "extreme":
            return act.stage.extreme_statistics()
        case "junk":
            return act.rng.randbytes(act.rng.choice([1, 200, 2000]))
        case "large":
            return bytes(MAX_STATISTICS_BYTES)
        case _:
            return b""


@move(
    "statistics.state",
    variants=("extreme", "junk", "large", "empty"),
    speaks=("statistics",),
    among=STATISTICS,
)
async def _state(act: Act) -> None:
    """A lie about its own data, well signed, beside updates of its own."""
    act.peer.statistics = stated(act)
    await take_part(act, act.rng.choice(["flip", "mean", "alie"]))


@move("statistics.answer", variants=FAULTS, seconds=(20, 120), speaks=("statistics",), among=STATISTICS)
async def _answer(act: Act) -> None:
    """Answer who asks wrongly, in any way."""
    act.peer.statistics = act.stage.extreme_statistics()
    towards = frozenset(life.peer for life in act.targets) if act.move.targets else frozenset()
    with act.peer.lying(Fault("statistics", act.move.variant, towards)):
        await take_part(act, "mean")


@move(
    "flood.statistics",
    amounts=(5, 120),
    seconds=(1, 20),
    variants=("stranger", "neighbour"),
    speaks=("statistics",),
    among=STATISTICS,
)
async def _flood(act: Act) -> None:
    """Ask many times, as one who has been met, or has not."""
    if act.move.variant == "neighbour":
        await act.meet()
    for life in act.targets:
        with suppress(GossipError):
            peer = await act.peer.transport.dial(life.member.transport.addresses[0])
            async with open_session(act.peer.transport, peer, PATIENCE_S, protocol=STATISTICS_PROTOCOL) as session:
                for _ in range(act.move.amount):
                    await session.ask(StatisticsRequest(), MAX_RESPONSE_BYTES)
                    await trio.sleep(act.move.seconds / act.move.amount)
