"""Moves at a first node that was alone, and at those that come to it: all at once, or one after another."""

import numpy as np
import trio
from adversary_move import Act, move
from adversary_scenario import ALL_BACK, FIRST_ALONE, FIRST_ALONE_S
from moves_chains import LOOK_S, VECTORS, lie, new_epoch, take_part


@move(
    "first.beside",
    variants=VECTORS,
    seconds=(100, 500),
    speaks=("link",),
    among=FIRST_ALONE | ALL_BACK,
)
async def _beside(act: Act) -> None:
    """In step with the first one, true or not: it bears out where that one is, and is company for it."""
    chain, stage = act.peer.chain, act.stage
    began_d, told, until = stage.genesis_d, -1, trio.current_time() + act.move.seconds
    await act.meet()
    while trio.current_time() < until:
        first = next((life for life in stage.running if life.number == 0), None)
        now = min(stage.scenario.rounds - 1, -1 if first is None else first.member.node.state.round)
        if now > told and (chain.newest is None or now > told + 1):
            await act.peer.tell(chain.begin(epoch=new_epoch(act), round=now, model_d=lie(act, "mean", began_d)).raw)
        elif now > told:
            model_d = lie(act, act.move.variant, began_d).astype(np.float32)
            link = chain.step(model_d, round=now, codec=stage.scenario.compressor, encode=stage.encode)
            await act.peer.tell(link.raw)
        told = now
        await trio.sleep(LOOK_S)


@move(
    "first.behind",
    amounts=(15, 60),
    variants=("flip", "zero", "mean"),
    seconds=(100, 500),
    speaks=("link", "offer"),
    among=FIRST_ALONE | ALL_BACK,
)
async def _behind(act: Act) -> None:
    """Train behind the first one, at its pace or slower, before the others come and after: by itself it must not take
    that one back. `amount`: seconds a round."""
    chain, stage = act.peer.chain, act.stage
    base_d = lie(act, act.move.variant, stage.genesis_d).astype(np.float32)
    await act.peer.tell(chain.begin(epoch=new_epoch(act), round=0, model_d=base_d).raw)
    await act.meet()
    for number in range(1, round(act.move.seconds / act.move.amount)):
        model_d = lie(act, act.move.variant, stage.genesis_d).astype(np.float32)
        link = chain.step(model_d, round=number, codec=stage.scenario.compressor, encode=stage.encode)
        await act.peer.tell(link.raw)
        await trio.sleep(act.move.amount)


@move("first.among", variants=VECTORS, seconds=(60, 300), speaks=("link",), among=FIRST_ALONE | ALL_BACK)
async def _among(act: Act) -> None:
    """Come with the others, train with them with true or false models, and be a donor."""
    await trio.sleep_until(FIRST_ALONE_S)
    await take_part(act, act.move.variant)
