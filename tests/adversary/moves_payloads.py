"""Moves of payloads: well-signed updates whose bytes are not what they should be."""

import numpy as np
import torch
import trio
from adversary_move import TRAINING, Act, move
from moves_chains import LOOK_S, lie, new_epoch

from p2ptrain import compress

MODELS = TRAINING | {"open"}

SLOW_CODECS = ("demo+topk", "powersgd", "randomk+none", "rotated+sign1", "lossless+topk", "adaptive")
"""Those that cost most to read; what a peer names is built and asked."""


async def publish(act: Act, payload: bytes, codec: str, *, size: int | None = None, held: bool = True) -> None:
    """One update with these bytes, on a chain that is as it should be up to here."""
    chain, stage = act.peer.chain, act.stage
    if chain.newest is None:
        model_d = lie(act, "mean", stage.genesis_d).astype(np.float32)
        await act.peer.tell(chain.begin(epoch=new_epoch(act), round=max(0, stage.round - 1), model_d=model_d).raw)
    await act.meet()
    await trio.sleep(LOOK_S)
    link = chain.extend(payload, round=stage.round, codec=codec, size=size, held=held)
    await act.peer.tell(link.raw)


@move("payload.shape", amounts=(1, 4), variants=("short", "long", "empty_snapshot"), speaks=("link",), among=MODELS)
async def _shape(act: Act) -> None:
    """Of another size than the model's."""
    for _ in range(act.move.amount):
        size = {"short": 4, "long": 8 * act.stage.genesis_d.size, "empty_snapshot": 1}[act.move.variant]
        if act.move.variant == "empty_snapshot":
            await act.peer.tell(
                act.peer.chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=np.zeros(1, "f4")).raw
            )
            await act.meet()
        else:
            await publish(act, bytes(size), "none")


@move("payload.nonfinite", amounts=(1, 4), variants=("nan", "inf", "huge", "snapshot"), among=MODELS)
async def _nonfinite(act: Act) -> None:
    """What is no number, or beyond all bounds."""
    value = {"nan": np.nan, "inf": np.inf, "huge": 3e38, "snapshot": np.nan}[act.move.variant]
    for _ in range(act.move.amount):
        bad_d = np.full(act.stage.genesis_d.size, value, "<f4")
        if act.move.variant == "snapshot":
            await act.peer.tell(act.peer.chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=bad_d).raw)
            await act.meet()
        else:
            await publish(act, bad_d.tobytes(), "none")


@move("payload.codec", amounts=(1, 60), variants=("unknown", "composed", "options", "plugged_in", "text"), among=MODELS)
async def _codec(act: Act) -> None:
    """A codec that nobody has, or many that nobody needs."""
    names = {
        "unknown": [f"codec-{number}" for number in range(act.move.amount)],
        "composed": ["+".join(["rotated"] * (1 + number % 3) + ["q2"]) for number in range(act.move.amount)],
        "options": [f"topk.ratio={number}" for number in range(act.move.amount)],
        "plugged_in": ["quirky"] * act.move.amount,
        "text": ["f0/4:q2", "f9/1:none", "+", "q2+q2"],
    }[act.move.variant]
    for name in names[:30]:
        await publish(act, bytes(60), name[:32])


@move("payload.slow_codec", amounts=(2, 40), variants=SLOW_CODECS, seconds=(5, 40), among=MODELS)
async def _slow_codec(act: Act) -> None:
    """Valid updates that cost more to read than they should, as often as they are taken."""
    try:
        codec = compress.get(act.move.variant)
        payload = codec.encode(torch.from_numpy(lie(act, "noise", act.stage.genesis_d).astype(np.float32)))
    except ValueError:
        payload = bytes(100)
    for _ in range(act.move.amount):
        await publish(act, payload, act.move.variant)
        await trio.sleep(max(0.0, act.move.seconds / act.move.amount - LOOK_S))


@move("payload.bytes", amounts=(1, 6), variants=("zero", "ones", "random", "cut"), among=MODELS)
async def _bytes(act: Act) -> None:
    """Random bytes under the swarm's own codec."""
    size = len(act.stage.encode(act.stage.genesis_d)[0])
    for _ in range(act.move.amount):
        made = {"zero": bytes(size), "ones": b"\xff" * size, "random": act.rng.randbytes(size), "cut": bytes(size - 1)}
        await publish(act, made[act.move.variant], act.stage.scenario.compressor)


@move("payload.missing", amounts=(1, 5), variants=("gone", "declared", "oversize"), among=MODELS)
async def _missing(act: Act) -> None:
    """Announced, and not to be had, or of another size than announced."""
    for _ in range(act.move.amount):
        match act.move.variant:
            case "gone":
                await publish(act, act.rng.randbytes(100), "q2", held=False)
            case "declared":
                await publish(act, act.rng.randbytes(100), "q2", size=101)
            case _:
                await publish(act, act.rng.randbytes(100), "q2", size=1 << 30)


@move("payload.scale", amounts=(1, 6), variants=("1e3", "1e6", "1e12"), among=MODELS)
async def _scale(act: Act) -> None:
    """A model scaled beyond reason, by the swarm's own codec."""
    for _ in range(act.move.amount):
        payload, _ = act.stage.encode(
            lie(act, "noise", act.stage.genesis_d).astype(np.float32) * float(act.move.variant)
        )
        await publish(act, payload, act.stage.scenario.compressor)
