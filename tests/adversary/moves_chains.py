"""Moves of a chain: rounds that are claimed, models that are published, histories that contradict each other."""

import math

import numpy as np
import trio
from adversary_move import TRAINING, Act, move
from hostile_chain import Vector

from gossip.core.digests import NO_DIGEST
from gossip.core.limits import MAX_COUNTER
from gossip.core.statements import UpdateHeaderBody

LOOK_S = 1.0
"""Between two looks at where the honest stand."""

VECTORS = ("mimic", "mean", "flip", "scaled", "alie", "drift", "zero", "noise", "stale", "huge", "nan", "spike")

TARGET_SCALE = 3.0
"""Of the model that `drift` pulls towards: some times as large as a good one."""


def lie(act: Act, how: str, began_d: Vector) -> Vector:
    """A model to be known as. `began_d`: what the actor held when it began."""
    models = np.stack(act.stage.models() or [began_d])
    mean_d, spread_d = models.mean(0), models.std(0)
    rng = np.random.default_rng(act.move.seed)
    match how:
        case "mimic":
            return models[act.move.seed % len(models)]
        case "mean":
            return mean_d
        case "flip":
            return -4 * (mean_d - act.stage.genesis_d) + act.stage.genesis_d
        case "scaled":
            return 10.0 * mean_d
        case "alie":
            return mean_d - 1.5 * spread_d
        case "drift":
            return mean_d + 0.2 * (TARGET_SCALE * rng.normal(size=mean_d.shape) - mean_d)
        case "zero":
            return np.zeros_like(mean_d)
        case "noise":
            return mean_d + rng.normal(size=mean_d.shape)
        case "stale":
            return began_d
        case "huge":
            return mean_d + 1e12
        case "nan":
            return np.full_like(mean_d, math.nan)
        case "spike":
            spiked_d = mean_d.copy()
            spiked_d[rng.integers(len(spiked_d))] = 1e9
            return spiked_d
        case _:
            raise AssertionError(how)


def new_epoch(act: Act) -> int:
    """Later than the actor's last one."""
    newest = act.peer.chain.newest
    return max(1 + (0 if newest is None else newest.epoch), int(1000 * trio.current_time()))


async def take_part(act: Act, how: str, *, lead: int = 0, steps: int = 2) -> None:
    """Publish what an honest node would, at the honest nodes' pace, as far as `how` lets it be true."""
    chain, stage = act.peer.chain, act.stage
    began_d = stage.genesis_d
    if chain.newest is None:
        late = stage.round > 0
        base_d = lie(act, "mean", began_d) if late else None
        await act.peer.tell(chain.begin(epoch=new_epoch(act), round=max(0, stage.round - 1), model_d=base_d).raw)
    await act.meet()
    until, told = trio.current_time() + act.move.seconds, -1
    while trio.current_time() < until:
        now = min(stage.scenario.rounds - 1, stage.round) + lead
        if now != told and now >= 0 and stage.running:
            told = now
            model_d = lie(act, how, began_d).astype(np.float32)
            link = chain.step(model_d, round=now, codec=stage.scenario.compressor, encode=stage.encode, steps=steps)
            await act.peer.tell(link.raw)
        await trio.sleep(LOOK_S)


@move(
    "take_part",
    variants=VECTORS,
    seconds=(40, 240),
    speaks=("link",),
    among=TRAINING | {"open"},
    apt=("start", "steady", "end", "join", "resume", "observer"),
)
async def _take_part(act: Act) -> None:
    """In step, with true or false models."""
    await take_part(act, act.move.variant)


@move(
    "lead",
    amounts=(1, 8),
    variants=("mean", "flip", "zero"),
    seconds=(20, 200),
    among=TRAINING,
    apt=("start", "steady"),
)
async def _lead(act: Act) -> None:
    """Always some rounds ahead."""
    await take_part(act, act.move.variant, lead=act.move.amount)


@move("lag", amounts=(1, 6), variants=("mean", "flip"), seconds=(20, 200), among=TRAINING)
async def _lag(act: Act) -> None:
    """Always some rounds behind."""
    await take_part(act, act.move.variant, lead=-act.move.amount)


@move(
    "claim",
    amounts=(1, 300),
    variants=("own", "far", "last", "most", "genesis"),
    speaks=("link", "offer"),
    apt=("start", "join", "crowd", "resume", "end", "observer"),
)
async def _claim(act: Act) -> None:
    """Say that it has trained so many rounds, and offer a model for it."""
    rounds = {
        "own": act.move.amount,
        "far": 10**9,
        "last": act.stage.scenario.rounds - 1,
        "most": MAX_COUNTER,
        "genesis": act.move.amount,
    }
    claimed = rounds[act.move.variant]
    model_d = None if act.move.variant == "genesis" else lie(act, "flip", act.stage.genesis_d) + np.float32(5.0)
    link = act.peer.chain.begin(epoch=new_epoch(act), round=claimed, model_d=model_d)
    await act.meet()
    await tell_again(act, link.raw)


@move("steps", variants=("none", "many", "most"), seconds=(60, 200), speaks=("link",), among=TRAINING, apt=("steady",))
async def _steps(act: Act) -> None:
    """In step and true, but for how many steps it says that a round took: others may plan theirs by it."""
    said = {"none": 0, "many": 1000, "most": MAX_COUNTER}
    await take_part(act, "mean", steps=said[act.move.variant])


@move("creep", amounts=(1, 5), seconds=(20, 120), among=TRAINING, apt=("steady", "resume", "end"))
async def _creep(act: Act) -> None:
    """Claim one round more each second."""
    chain = act.peer.chain
    chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=lie(act, "mean", act.stage.genesis_d))
    await act.meet()
    until = trio.current_time() + act.move.seconds
    while trio.current_time() < until:
        last = chain.links[-1].body.round
        model_d = lie(act, "flip", act.stage.genesis_d).astype(np.float32)
        link = chain.step(
            model_d, round=last + act.move.amount, codec=act.stage.scenario.compressor, encode=act.stage.encode
        )
        await act.peer.tell(link.raw)
        await trio.sleep(LOOK_S)


@move("back", variants=("round", "epoch", "zero"), among=TRAINING)
async def _back(act: Act) -> None:
    """Take part, and then say less than before: an earlier round, an older epoch, or round 0 again."""
    chain = act.peer.chain
    await take_part(act, "mean")
    epoch = 1 if act.move.variant == "epoch" else new_epoch(act)
    claimed = {"round": max(0, act.stage.round - 5), "epoch": act.stage.round, "zero": 0}[act.move.variant]
    await act.peer.tell(chain.begin(epoch=epoch, round=claimed, model_d=lie(act, "mean", act.stage.genesis_d)).raw)


@move("twins", amounts=(1, 5), variants=("all", "each", "anew"), speaks=("link",))
async def _twins(act: Act) -> None:
    """Two histories: told to all, or to each neighbour one of its own, in a hello that nobody else hears; and there a
    new chain each time, for the old one to be forgotten."""
    chain = act.peer.chain
    if chain.newest is None:
        chain.begin(epoch=new_epoch(act), round=act.stage.round, model_d=lie(act, "mean", act.stage.genesis_d))
    await act.meet()
    for number in range(act.move.amount):
        last = chain.newest
        assert last is not None
        if act.move.variant == "all":
            await act.peer.tell(chain.twin(last, b"twin %d" % number).raw)
        else:
            for life in act.targets:
                twin = chain.twin(last, b"twin of %d" % life.number)
                await act.peer.greet(life.peer, act.peer.hello(link=twin.raw))
        if act.move.variant == "anew":
            model_d = lie(act, "mean", act.stage.genesis_d)
            await act.peer.tell(chain.begin(epoch=new_epoch(act) + number, round=act.stage.round, model_d=model_d).raw)
        await trio.sleep(LOOK_S)


@move("epochs", amounts=(5, 120), seconds=(5, 30), among=TRAINING | {"open"})
async def _epochs(act: Act) -> None:
    """A new epoch again and again: each costs who follows a pass over a whole model."""
    await act.meet()
    for number in range(act.move.amount):
        model_d = lie(act, "noise", act.stage.genesis_d) + np.float32(number)
        link = act.peer.chain.begin(
            epoch=new_epoch(act) + number, round=act.stage.round, model_d=model_d.astype(np.float32)
        )
        await act.peer.tell(link.raw)
        await trio.sleep(act.move.seconds / act.move.amount)


@move("genesis", variants=("other", "delta", "orphan"), speaks=("link",))
async def _genesis(act: Act) -> None:
    """A base of another initial model, a delta where a base belongs, a link whose predecessor there never was."""
    chain = act.peer.chain
    other = UpdateHeaderBody(round=0, kind="genesis", genesis=act.stage.genesis[::-1])  # type: ignore[arg-type]
    delta = UpdateHeaderBody(round=0, kind="delta", codec="q2", size=10)
    address = chain.hold(b"0123456789")
    await act.meet()
    match act.move.variant:
        case "other":
            link = chain.sign(epoch=new_epoch(act), seq=0, prev=NO_DIGEST, address=NO_DIGEST, body=other)
        case _:
            link = chain.sign(epoch=new_epoch(act), seq=7, prev=address, address=address, body=delta)
    await act.peer.tell(link.raw)
    for life in act.targets:
        await act.peer.greet(life.peer, act.peer.hello(link=link.raw))


@move("marks", variants=("wrong", "true"), seconds=(60, 200), speaks=("link", "offer"), among=TRAINING)
async def _marks(act: Act) -> None:
    """Name a state in every fourth link, a true one or one that it does not have."""
    chain, stage = act.peer.chain, act.stage
    await act.meet()
    until, told = trio.current_time() + act.move.seconds, -1
    chain.begin(epoch=new_epoch(act), round=max(0, stage.round - 1), model_d=lie(act, "mean", stage.genesis_d))
    while trio.current_time() < until:
        if stage.round != told and stage.running:
            told = stage.round
            link = chain.step(
                lie(act, "mean", stage.genesis_d), round=told, codec=stage.scenario.compressor, encode=stage.encode
            )
            if link.seq % 4 == 0:
                model_d = chain.public_d if act.move.variant == "true" else chain.public_d + np.float32(1.0)
                chain.links[-1] = link = chain.marked(link, model_d)
            await act.peer.tell(link.raw)
        await trio.sleep(LOOK_S)


async def tell_again(act: Act, raw: bytes) -> None:
    """Announce a link every few seconds, as honest nodes do, for as long as the move lasts."""
    until = trio.current_time() + act.move.seconds
    while trio.current_time() < until:
        await act.peer.tell(raw)
        await trio.sleep(5.0)
