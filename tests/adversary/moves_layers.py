"""Moves of refinements: updates as they should be, whose refinements are lies, forged, or not to be had."""

import numpy as np
import torch
from adversary_move import Act, move
from adversary_scenario import LAYERS, REFINED_BY, ROUND_S
from moves_chains import LOOK_S, Vector, lie, new_epoch
from trio import sleep

from gossip.blobs.blob import blob_manifest_of
from gossip.core.digests import digest_of
from gossip.core.statements import Layer
from p2ptrain import compress

LIES = ("withheld", "forged", "short", "nonfinite", "huge", "flip", "codec", "many", "twin")


def layers_of(act: Act, left_d: Vector) -> tuple[Layer, ...]:
    """The refinements that the next link names. `left_d`: what its update leaves out."""
    chain, variant = act.peer.chain, act.move.variant
    size = {"huge": 1e9, "flip": -4.0}.get(variant, 1.0)
    payload = compress.get(REFINED_BY).encode(torch.from_numpy((size * left_d).astype(np.float32)))
    if variant == "nonfinite":
        payload = np.float32(np.nan).tobytes() + payload[4:]
    if variant == "short":
        payload = payload[:-1]
    address = digest_of(act.rng.randbytes(8)) if variant == "withheld" else chain.hold(payload)
    if variant == "forged":
        other = act.rng.randbytes(len(payload))
        chain.blobs[address] = blob_manifest_of(other), other
    codec = "rotated+sign1" if variant == "codec" else REFINED_BY
    return (Layer(codec=codec, size=len(payload), address=address),) * (4 if variant == "many" else 1)


@move("layers.publish", amounts=(4, 40), seconds=(60, 200), variants=LIES, speaks=("link",), among=LAYERS)
async def _publish(act: Act) -> None:
    """Update after update, each with refinements of this kind."""
    chain, stage = act.peer.chain, act.stage
    if chain.newest is None:
        model_d = lie(act, "mean", stage.genesis_d).astype(np.float32)
        await act.peer.tell(chain.begin(epoch=new_epoch(act), round=max(0, stage.round - 1), model_d=model_d).raw)
    await act.meet()
    await sleep(LOOK_S)
    for _ in range(act.move.amount):
        model_d = lie(act, "mean", stage.genesis_d).astype(np.float32)
        payload, moved_d = stage.encode(model_d - chain.public_d)
        left_d = (model_d - chain.public_d - moved_d).astype(np.float32)
        chain.public_d = (chain.public_d + moved_d).astype(np.float32)
        codec = stage.scenario.compressor
        link = chain.extend(payload, round=stage.round, codec=codec, layers=layers_of(act, left_d))
        await act.peer.tell(link.raw)
        if act.move.variant == "twin":
            await act.peer.tell(chain.refined(link, layers_of(act, -left_d)).raw)
        await sleep(max(ROUND_S / 4, act.move.seconds / act.move.amount))
