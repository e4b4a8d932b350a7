"""Moves of coming and going: goodbyes, returns under other names, and many names at once."""

from dataclasses import replace

import numpy as np
import trio
from adversary_move import CLOSED, TRAINING, Act, move
from hostile_peer import HostilePeer
from moves_chains import LOOK_S, lie, new_epoch, take_part

from gossip.core.digests import digest_of
from gossip.core.identity import Identity
from gossip.core.messages import GoodbyeRequest
from gossip.discovery.topology import CIRCLE, place_of


@move("leave", variants=("goodbye", "silently"), seconds=(5, 40), speaks=("goodbye",), among=CLOSED)
async def _leave(act: Act) -> None:
    """Take part, and go early: what it said stays behind."""
    await _something(act)
    if act.move.variant == "goodbye":
        await act.peer.say_goodbye()
    await act.stage.replace(act.number)


@move(
    "done",
    amounts=(1, 8),
    variants=("flip", "huge", "scaled", "noise"),
    seconds=(2, 8),
    speaks=("goodbye", "link"),
    among=TRAINING,
    apt=("observer", "end"),
)
async def _done(act: Act) -> None:
    """Say that all rounds are done, and leave; and again under another name: who has left says nothing any more."""
    for _ in range(act.move.amount):
        model_d = lie(act, act.move.variant, act.stage.genesis_d).astype(np.float32)
        link = act.peer.chain.begin(epoch=new_epoch(act), round=act.stage.scenario.rounds - 1, model_d=model_d)
        await act.meet()
        await act.peer.tell(link.raw)
        await trio.sleep(act.move.seconds)
        await act.peer.say_goodbye()
        await act.stage.replace(act.number)


@move("in_turn", amounts=(5, 40), seconds=(20, 80), among=TRAINING, apt=("steady",))
async def _in_turn(act: Act) -> None:
    """One name after another, each with a model that has to be held."""
    for _ in range(act.move.amount):
        model_d = lie(act, "mean", act.stage.genesis_d).astype(np.float32)
        link = act.peer.chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=model_d)
        await act.meet()
        await act.peer.tell(link.raw)
        await trio.sleep(act.move.seconds / act.move.amount)
        await act.peer.say_goodbye()
        await act.stage.replace(act.number)


@move("return", amounts=(1, 6), seconds=(10, 60), variants=("goodbye", "silently"), among=TRAINING)
async def _return(act: Act) -> None:
    """Go and come back under the same name, with a new epoch."""
    for _ in range(act.move.amount):
        await take_part(act, "mean")
        if act.move.variant == "goodbye":
            await act.peer.say_goodbye()
        for life in act.targets:
            await act.peer.transport.disconnect(life.peer)
        await trio.sleep(LOOK_S)
        base_d = lie(act, "mean", act.stage.genesis_d).astype(np.float32)
        act.peer.chain.begin(epoch=new_epoch(act), round=max(0, act.stage.round - 1), model_d=base_d)


@move("goodbye_of_others", amounts=(1, 6), variants=("link", "heard", "own"), seconds=(1, 60), speaks=("goodbye",))
async def _goodbye_of_others(act: Act) -> None:
    """Goodbyes that it may not say: a link in the place of one, those that others have said to it, its own again and
    again."""
    await act.meet()
    await trio.sleep(act.move.seconds)
    for _ in range(act.move.amount):
        said = {"link": act.peer.heard, "heard": act.peer.goodbyes, "own": [act.peer.chain.goodbye()]}
        for life in act.targets:
            for raw in list(said[act.move.variant])[-1:]:
                await act.peer.ask(life.peer, GoodbyeRequest(envelope=raw))
        await trio.sleep(LOOK_S)


@move(
    "sybils",
    amounts=(4, 20),
    variants=("silent", "flip", "huge", "mean"),
    seconds=(60, 200),
    among=frozenset({"open"}),
    apt=("open",),
)
async def _sybils(act: Act) -> None:
    """Many names of one host, all at once."""
    peers = [await act.stage.make(f"sybil-{act.move.seed}-{number}") for number in range(act.move.amount)]
    await _crowd(act, peers)


@move(
    "ground",
    amounts=(4, 12),
    variants=("flip", "huge", "mean"),
    seconds=(60, 200),
    among=frozenset({"open"}),
    apt=("open",),
)
async def _ground(act: Act) -> None:
    """Names that were tried until they stand beside a target on the rings."""
    victims = [life.peer for life in act.targets]
    peers = []
    for number in range(act.move.amount):
        victim = victims[number % len(victims)] if victims else act.peer.peer
        best = min((_tried(act, number, each) for each in range(24)), key=lambda it: _distance(act, it, victim))
        peers.append(await act.stage.make("", best))
    await _crowd(act, peers)


@move("lonely", amounts=(4, 20), seconds=(40, 180), among=frozenset({"open"}), apt=("open",))
async def _lonely(act: Act) -> None:
    """Newcomers that say that they have nobody, so that others make room for them."""
    peers = [await act.stage.make(f"lonely-{act.move.seed}-{number}") for number in range(act.move.amount)]
    for peer in peers:
        peer.neighbours = 0
    until = trio.current_time() + act.move.seconds
    while trio.current_time() < until:
        for peer in peers:
            for life in act.targets:
                await peer.meet(life.member.transport.addresses[0])
        await trio.sleep(10.0)


async def _crowd(act: Act, peers: list[HostilePeer]) -> None:
    """Each meets every target, and takes part with the same lie or none."""
    async with trio.open_nursery() as nursery:
        for peer in peers:
            its = replace(act, beside=peer)
            if act.move.variant == "silent":
                nursery.start_soon(its.meet)
            else:
                nursery.start_soon(take_part, its, act.move.variant)


async def _something(act: Act) -> None:
    if act.stage.scenario.kind == "meeting":
        await act.meet()
        await trio.sleep(act.move.seconds)
    else:
        await take_part(act, "mean")


def _tried(act: Act, number: int, each: int) -> Identity:
    return Identity(digest_of(f"ground {act.move.seed} {number} {each}".encode()))


def _distance(act: Act, identity: Identity, victim: str) -> int:
    ours, its = (place_of(act.stage.scope, 0, peer) for peer in (identity.peer_id, victim))  # type: ignore[arg-type]
    return min((ours - its) % CIRCLE, (its - ours) % CIRCLE)
