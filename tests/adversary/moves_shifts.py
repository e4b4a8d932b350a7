"""Moves of claims that data have shifted: lies about one's own data, and answers to those of honest nodes."""

from contextlib import suppress

import trio
from adversary_move import Act, move
from adversary_scenario import SHIFTS
from hostile_peer import FAULTS, PATIENCE_S, Fault
from moves_chains import lie, new_epoch, take_part

from gossip.core.errors import GossipError
from gossip.core.limits import MAX_RESPONSE_BYTES, SHIFT_PROTOCOL
from gossip.core.messages import ShiftRequest
from gossip.session import ask_once, open_session


async def say(act: Act, link: bytes) -> None:
    """To each target, once."""
    for life in act.targets:
        with suppress(GossipError):
            await ask_once(
                act.peer.transport,
                life.peer,
                ShiftRequest(link=link),
                PATIENCE_S,
                MAX_RESPONSE_BYTES,
                protocol=SHIFT_PROTOCOL,
            )


def link_of(act: Act) -> bytes:
    """As of which its data have shifted: its newest, an old one, somebody else's, or none at all."""
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


@move(
    "shifts.say",
    amounts=(4, 60),
    seconds=(60, 200),
    variants=("always", "publishes", "old", "others", "junk"),
    speaks=("shift", "link"),
    among=SHIFTS,
)
async def _say(act: Act) -> None:
    """That its data have shifted: all the time, beside updates of its own, as of an old link, somebody else's, or
    none."""
    if act.peer.chain.newest is None:
        model_d = lie(act, "mean", act.stage.genesis_d) if act.stage.round > 0 else None
        await act.peer.tell(act.peer.chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=model_d).raw)
    await act.meet()
    async with trio.open_nursery() as nursery:
        if act.move.variant in ("publishes", "others"):
            nursery.start_soon(take_part, act, act.rng.choice(["flip", "mean", "alie"]))
        with trio.move_on_after(act.move.seconds):
            while True:
                await say(act, link_of(act))
                await trio.sleep(act.move.seconds / act.move.amount)


@move("shifts.answer", variants=FAULTS, seconds=(20, 120), speaks=("shift",), among=SHIFTS)
async def _answer(act: Act) -> None:
    """Answer those whose data have shifted wrongly, in any way."""
    towards = frozenset(life.peer for life in act.targets) if act.move.targets else frozenset()
    with act.peer.lying(Fault("shift", act.move.variant, towards)):
        await take_part(act, "mean")


@move(
    "flood.shift",
    amounts=(5, 120),
    seconds=(1, 20),
    variants=("stranger", "neighbour"),
    speaks=("shift",),
    among=SHIFTS,
)
async def _flood(act: Act) -> None:
    """Many, by one who has been met, or has not."""
    if act.move.variant == "neighbour":
        await act.meet()
    for life in act.targets:
        with suppress(GossipError):
            peer = await act.peer.transport.dial(life.member.transport.addresses[0])
            async with open_session(act.peer.transport, peer, PATIENCE_S, protocol=SHIFT_PROTOCOL) as session:
                for _ in range(act.move.amount):
                    await session.ask(
                        ShiftRequest(link=act.peer.chain.raw or act.rng.randbytes(60)), MAX_RESPONSE_BYTES
                    )
                    await trio.sleep(act.move.seconds / act.move.amount)
