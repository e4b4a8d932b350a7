"""Moves of pauses: words of them that are lies, and answers to those of honest nodes."""

from contextlib import suppress

import trio
from adversary_move import Act, move
from adversary_scenario import PAUSES, ROUND_S
from hostile_peer import FAULTS, PATIENCE_S, Fault
from moves_chains import lie, new_epoch, take_part

from gossip.core.errors import GossipError
from gossip.core.limits import MAX_COUNTER, MAX_RESPONSE_BYTES, PAUSE_PROTOCOL
from gossip.core.messages import PauseRequest
from gossip.session import ask_once, open_session

SECONDS = (0, 1, 20, 600, MAX_COUNTER)


async def say(act: Act, link: bytes) -> None:
    """To each target, once."""
    word = PauseRequest(link=link, seconds=act.rng.choice(SECONDS))
    for life in act.targets:
        with suppress(GossipError):
            await ask_once(act.peer.transport, life.peer, word, PATIENCE_S, MAX_RESPONSE_BYTES, protocol=PAUSE_PROTOCOL)


def link_of(act: Act) -> bytes:
    """After which it says that it pauses: its newest, an old one, somebody else's, or none at all."""
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
    "pauses.say",
    amounts=(4, 60),
    seconds=(60, 200),
    variants=("for_ever", "publishes", "each_round", "old", "others", "junk"),
    speaks=("pause", "link"),
    among=PAUSES,
)
async def _say(act: Act) -> None:
    """That it is paused: for ever, beside updates of its own, after each of them, after an old link, somebody else's,
    or none."""
    lies = act.move.variant in ("publishes", "each_round", "others")
    if act.peer.chain.newest is None:
        model_d = lie(act, "mean", act.stage.genesis_d) if act.stage.round > 0 else None
        await act.peer.tell(act.peer.chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=model_d).raw)
    await act.meet()
    pause_s = ROUND_S / 3 if act.move.variant == "each_round" else act.move.seconds / act.move.amount
    async with trio.open_nursery() as nursery:
        if lies:
            nursery.start_soon(take_part, act, act.rng.choice(["flip", "mean", "alie"]))
        with trio.move_on_after(act.move.seconds):
            while True:
                await say(act, link_of(act))
                await trio.sleep(pause_s)


@move("pauses.answer", variants=FAULTS, seconds=(20, 120), speaks=("pause",), among=PAUSES)
async def _answer(act: Act) -> None:
    """Answer those that pause wrongly, in any way."""
    towards = frozenset(life.peer for life in act.targets) if act.move.targets else frozenset()
    with act.peer.lying(Fault("pause", act.move.variant, towards)):
        await take_part(act, "mean")


@move(
    "flood.pause",
    amounts=(5, 120),
    seconds=(1, 20),
    variants=("stranger", "neighbour"),
    speaks=("pause",),
    among=PAUSES,
)
async def _flood(act: Act) -> None:
    """Many, by one who has been met, or has not."""
    if act.move.variant == "neighbour":
        await act.meet()
    for life in act.targets:
        with suppress(GossipError):
            peer = await act.peer.transport.dial(life.member.transport.addresses[0])
            async with open_session(act.peer.transport, peer, PATIENCE_S, protocol=PAUSE_PROTOCOL) as session:
                for _ in range(act.move.amount):
                    link = act.peer.chain.raw or act.rng.randbytes(60)
                    await session.ask(PauseRequest(link=link, seconds=act.rng.choice(SECONDS)), MAX_RESPONSE_BYTES)
                    await trio.sleep(act.move.seconds / act.move.amount)
