"""Moves of refinements: updates as they should be, whose refinements are lies, forged, or not to be had in time.

An edge is averaged as finely as both its ends are refined. So a hostile node that wants its refinements to count takes
those of the honest as well, whether it reads them or not.
"""

from contextlib import suppress
from typing import Final

import numpy as np
import torch
import trio
from adversary_move import Act, move
from adversary_scenario import LAYERS, REFINED_BY, ROUND_S
from hostile_peer import PATIENCE_S, HeldBack, HostilePeer
from moves_chains import LOOK_S, Vector, lie, new_epoch
from trio import sleep

from gossip.blobs.blob import blob_manifest_of
from gossip.core.digests import digest_of
from gossip.core.errors import GossipError, Reason, RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import ManifestRequest
from gossip.core.statements import Layer, UpdateHeader
from gossip.session import open_session
from p2ptrain import compress

LIES = ("withheld", "forged", "short", "nonfinite", "huge", "flip", "codec", "many", "twin")

TIMES = ("just", "late", "torn", "flap", "some", "turns")
"""just: barely within the time that a round hides. late: after it. torn: half of them, in time. flap: of every second
update at once, of the others late. some: to some of the honest at once, to the others late. turns: to one of the honest
after the other."""

ASKS = ("broken_off", "turns")
"""broken_off: it asks for a refinement, and resets the stream before it has read anything. turns: so as well, and
then it comes back as another, that has never been late."""

ASKS_S: Final = 0.2
"""Between two times that it asks: as often as it can be first."""

SIZES: Final = (-4.0, 1.0, 100.0)
"""Of what an update leaves out, how much its refinement says: turned round, the truth, and as much as is shortened."""

HIDDEN_S: Final = ROUND_S / 2
"""What a round of an honest node hides (node/training/bandwidth.py)."""


def layers_of(act: Act, left_d: Vector) -> tuple[Layer, ...]:
    """The refinements that the next link names. `left_d`: what its update leaves out."""
    chain, variant = act.peer.chain, act.move.variant
    size = {"huge": 1e9, "flip": -4.0}.get(variant, 1.0)
    payload = compress.get(REFINED_BY[0]).encode(torch.from_numpy((size * left_d).astype(np.float32)))
    if variant == "nonfinite":
        payload = np.float32(np.nan).tobytes() + payload[4:]
    if variant == "short":
        payload = payload[:-1]
    address = digest_of(act.rng.randbytes(8)) if variant == "withheld" else chain.hold(payload)
    if variant == "forged":
        other = act.rng.randbytes(len(payload))
        chain.blobs[address] = blob_manifest_of(other), other
    codec = "rotated+sign1" if variant == "codec" else REFINED_BY[0]
    return (Layer(codec=codec, size=len(payload), address=address),) * (4 if variant == "many" else 1)


async def _begin(act: Act) -> None:
    """Have a chain, and be a neighbour of the targets."""
    chain, stage = act.peer.chain, act.stage
    if chain.newest is None:
        model_d = lie(act, "mean", stage.genesis_d).astype(np.float32)
        await act.peer.tell(chain.begin(epoch=new_epoch(act), round=max(0, stage.round - 1), model_d=model_d).raw)
    await act.meet()
    await sleep(LOOK_S)


def _next(act: Act) -> tuple[bytes, Vector]:
    """The payload of a true update, and what it leaves out."""
    chain, stage = act.peer.chain, act.stage
    model_d = lie(act, "mean", stage.genesis_d).astype(np.float32)
    payload, moved_d = stage.encode(model_d - chain.public_d)
    left_d = (model_d - chain.public_d - moved_d).astype(np.float32)
    chain.public_d = (chain.public_d + moved_d).astype(np.float32)
    return payload, left_d


async def _take_layers(act: Act) -> None:
    """Take all refinements of the targets, for as long as it is left to run."""
    asked: set[Digest] = set()
    while True:
        for life in act.targets:
            newest = life.member.node.service._engine.publisher.newest
            for layer in () if newest is None else newest.body.layers:
                if layer.address not in asked:
                    asked.add(layer.address)
                    with suppress(GossipError):
                        await act.peer.ask(life.peer, ManifestRequest(address=layer.address))
        await sleep(LOOK_S)


@move("layers.publish", amounts=(4, 40), seconds=(60, 200), variants=LIES, speaks=("link",), among=LAYERS)
async def _publish(act: Act) -> None:
    """Update after update, each with refinements of this kind."""
    chain, stage = act.peer.chain, act.stage
    await _begin(act)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take_layers, act)
        for _ in range(act.move.amount):
            payload, left_d = _next(act)
            codec = stage.scenario.compressor
            link = chain.extend(payload, round=stage.round, codec=codec, layers=layers_of(act, left_d))
            await act.peer.tell(link.raw)
            if act.move.variant == "twin":
                await act.peer.tell(chain.refined(link, layers_of(act, -left_d)).raw)
            await sleep(max(ROUND_S / 4, act.move.seconds / act.move.amount))
        nursery.cancel_scope.cancel()


def _hold_back(act: Act, link: UpdateHeader, number: int) -> None:
    """Say when, and to whom, the refinements of its update of this number are served."""
    late, everybody = HIDDEN_S * act.rng.uniform(1.0, 1.4), sorted(life.peer for life in act.targets)
    held = {
        "just": HeldBack(HIDDEN_S * act.rng.uniform(0.8, 1.0), False, frozenset()),
        "late": HeldBack(late, False, frozenset()),
        "torn": HeldBack(0.0, True, frozenset()),
        "flap": HeldBack(late * (1 - number % 2), False, frozenset()),
        "some": HeldBack(late, False, frozenset(everybody[::2])),
        "turns": HeldBack(late, False, frozenset(everybody) - set(everybody[number % max(1, len(everybody)) :][:1])),
    }
    act.peer.held_back = {layer.address: held[act.move.variant] for layer in link.body.layers}


@move("layers.serve", amounts=(1, 3), seconds=(90, 220), variants=TIMES, speaks=("link",), among=LAYERS)
async def _serve(act: Act) -> None:
    """One update a round whose refinements are of one of SIZES, held back in this way, while it takes those of the
    honest."""
    chain, stage, size = act.peer.chain, act.stage, SIZES[act.move.amount - 1]
    until, told, number = trio.current_time() + act.move.seconds, -1, 0
    await _begin(act)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_take_layers, act)
        while trio.current_time() < until:
            if stage.running and told < stage.round < stage.scenario.rounds:
                told, number = stage.round, number + 1
                payload, left_d = _next(act)
                refinement = compress.get(REFINED_BY[0]).encode(torch.from_numpy((size * left_d).astype(np.float32)))
                layer = Layer(codec=REFINED_BY[0], size=len(refinement), address=chain.hold(refinement))
                link = chain.extend(payload, round=told, codec=stage.scenario.compressor, layers=(layer,))
                _hold_back(act, link, number)
                await act.peer.tell(link.raw)
            await sleep(LOOK_S)
        nursery.cancel_scope.cancel()
        act.peer.held_back = {}


async def _break_off(peer: HostilePeer, of: PeerId, layer: Digest) -> None:
    """Ask for a refinement, and give it up on its way."""
    with suppress(GossipError):
        async with open_session(peer.transport, of, PATIENCE_S) as session:
            await session.request(ManifestRequest(address=layer))
            await sleep(ASKS_S)
            raise RemoteError(Reason.UNAVAILABLE, "it does not want it any more")


def _ask_for_all(act: Act, nursery: trio.Nursery) -> None:
    """Ask the targets for all of their newest refinements, the finest first."""
    for life in act.targets:
        newest = life.member.node.service._engine.publisher.newest
        for layer in () if newest is None else newest.body.layers[::-1]:
            nursery.start_soon(_break_off, act.peer, life.peer, layer.address)


@move("layers.places", seconds=(120, 220), variants=ASKS, speaks=("manifest", "link"), among=LAYERS)
async def _places(act: Act) -> None:
    """Take the places that the links of the honest have for refinements, and lose them again, so that others have
    none."""
    stage = act.stage
    until, told, replaced_at = trio.current_time() + act.move.seconds, -1, trio.current_time()
    await _begin(act)
    async with trio.open_nursery() as nursery:
        while trio.current_time() < until:
            if stage.running and told < stage.round < stage.scenario.rounds:
                told = stage.round
                payload, _ = _next(act)
                await act.peer.tell(act.peer.chain.extend(payload, round=told, codec=stage.scenario.compressor).raw)
            _ask_for_all(act, nursery)
            await sleep(ASKS_S)
            if act.move.variant == "turns" and trio.current_time() > replaced_at + ROUND_S:
                await stage.replace(act.number)
                await _begin(act)
                told, replaced_at = -1, trio.current_time()
        nursery.cancel_scope.cancel()
