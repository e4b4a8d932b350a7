"""Moves of who says that it is far from where the others are, among honest nodes of unlike speed that come and go."""

from collections.abc import Iterator

import numpy as np
import trio
from adversary_move import Act, move
from adversary_scenario import ROUND_S, UNLIKE
from moves_chains import LOOK_S, VECTORS, lie, new_epoch, take_part, tell_again

LONG = (60.0, 350.0)
"""Seconds: into the last rounds, where it begins late."""


def _base(act: Act, round: int) -> bytes:
    """Begin a new chain at this round, with a lie, and return what is to be told."""
    model_d = lie(act, act.move.variant, act.stage.genesis_d).astype(np.float32)
    return act.peer.chain.begin(epoch=new_epoch(act), round=max(0, round), model_d=model_d).raw


def _steps(act: Act, seconds: float) -> Iterator[bytes]:
    """Rounds of a chain that has begun, one after another, at the pace of one of the honest nodes: a model each."""
    for _ in range(max(1, round(seconds / ROUND_S))):
        model_d = lie(act, act.move.variant, act.stage.genesis_d).astype(np.float32)
        next_round = act.peer.chain.links[-1].body.round + 1
        codec, encode = act.stage.scenario.compressor, act.stage.encode
        yield act.peer.chain.step(model_d, round=next_round, codec=codec, encode=encode).raw


@move("far.ahead", amounts=(5, 200), variants=VECTORS, seconds=LONG, speaks=("link",), among=UNLIKE)
async def _ahead(act: Act) -> None:
    """Train far ahead of all others, at their pace. `amount`: rounds ahead."""
    await act.peer.tell(_base(act, act.stage.round + act.move.amount))
    await act.meet()
    for raw in _steps(act, act.move.seconds):
        await act.peer.tell(raw)
        await trio.sleep(ROUND_S)


@move("far.still", amounts=(5, 200), variants=VECTORS, seconds=LONG, speaks=("link", "offer"), among=UNLIKE)
async def _still(act: Act) -> None:
    """Say that it is far ahead, and stay there."""
    raw = _base(act, act.stage.round + act.move.amount)
    await act.meet()
    await tell_again(act, raw)


@move("far.behind", amounts=(5, 20), variants=VECTORS, seconds=LONG, speaks=("link",), among=UNLIKE)
async def _behind(act: Act) -> None:
    """Train far behind, at the pace of the others, so that it is nobody's member and keeps up. `amount`: rounds."""
    await act.peer.tell(_base(act, act.stage.round - act.move.amount))
    await act.meet()
    for raw in _steps(act, act.move.seconds):
        await act.peer.tell(raw)
        await trio.sleep(ROUND_S)


@move("far.flap", amounts=(5, 100), variants=VECTORS, seconds=LONG, speaks=("link",), among=UNLIKE)
async def _flap(act: Act) -> None:
    """Be where the others are, then far ahead, and so on: once in each of the rounds."""
    await act.peer.tell(_base(act, act.stage.round))
    await act.meet()
    until, ahead = trio.current_time() + act.move.seconds, False
    while trio.current_time() < until:
        ahead = not ahead
        await act.peer.tell(_base(act, act.stage.round + ahead * act.move.amount))
        for raw in _steps(act, ROUND_S):
            await trio.sleep(LOOK_S)
            await act.peer.tell(raw)
        await trio.sleep(ROUND_S)


@move("far.again", amounts=(5, 100), variants=VECTORS, seconds=LONG, speaks=("link",), among=UNLIKE)
async def _again(act: Act) -> None:
    """Serve with a true model, leave, and come again far ahead, by the same key: rounds were held with it."""
    served, identity = act.move.seconds / 2, act.peer.identity
    with trio.move_on_after(served):
        await take_part(act, "mean")
    act.peer.leave()
    await trio.sleep(ROUND_S)
    async with act.stage._turns[act.number]:
        act.stage.hostile[act.number] = await act.stage.make(f"again-{act.number}", identity)
    act.stage.met.discard(act.peer.peer)
    raw = _base(act, act.stage.round + act.move.amount)
    await act.meet()
    await act.peer.tell(raw)
    for each in _steps(act, served):
        await act.peer.tell(each)
        await trio.sleep(ROUND_S)
