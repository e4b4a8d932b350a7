"""Moves of secure sums: statements of every stage, of sums that nobody has begun, to members that are in none.

What liars do within a sum is drawn in tests/gossip/test_secure_sum_liars.py, where thousands of statements pass a
second.
"""

from contextlib import suppress

import trio
from adversary_move import Act, move
from adversary_scenario import SUMS
from hostile_peer import PATIENCE_S
from moves_chains import take_part

from gossip.core.envelope import seal
from gossip.core.errors import GossipError
from gossip.core.ids import Digest
from gossip.core.limits import MAX_GROUP, MAX_RESPONSE_BYTES
from gossip.core.messages import SecureRequest
from gossip.core.secure_statements import (
    AgreedBody,
    KeysBody,
    OpenedBody,
    SecureBody,
    SecureStage,
    SharesBody,
    SummedBody,
    ViewBody,
    secure_statement,
)
from gossip.session import open_session

WAYS = ("each_stage", "keys", "opened", "others", "junk")


def _some_digest(act: Act) -> Digest:
    return Digest(act.rng.randbytes(32))


def _body(act: Act, stage: SecureStage) -> SecureBody:
    places = frozenset(act.rng.sample(range(MAX_GROUP), act.rng.randrange(1, MAX_GROUP)))
    match stage:
        case SecureStage.KEYS:
            return KeysBody(channel=act.rng.randbytes(32), mask=bytes(32), seed=_some_digest(act))
        case SecureStage.SHARES:
            return SharesBody(holders=places, sealed=act.rng.randbytes(96 * len(places)))
        case SecureStage.MASKED | SecureStage.HELD:
            return ViewBody(view={place: _some_digest(act) for place in places})
        case SecureStage.AGREED:
            return AgreedBody(survivors=places)
        case SecureStage.OPENED:
            keys = {place: act.rng.randbytes(32) for place in places}
            return OpenedBody(seed=act.rng.randbytes(32), seeds=places, keys=frozenset(), share_keys=keys)
        case SecureStage.SUMMED:
            return SummedBody(part=act.rng.randrange(MAX_GROUP))


def _envelope(act: Act) -> bytes:
    if act.move.variant == "junk":
        return act.rng.randbytes(act.rng.choice([0, 1, 300]))
    if act.move.variant == "others":
        return act.rng.choice(act.peer.heard) if act.peer.heard else b""
    stages = {"keys": [SecureStage.KEYS], "opened": [SecureStage.OPENED]}.get(act.move.variant, list(SecureStage))
    stage = act.rng.choice(stages)
    about = {} if stage in (SecureStage.KEYS, SecureStage.HELD) else {"payload": _some_digest(act)}
    statement = secure_statement(
        exchange=_some_digest(act), round=act.rng.randrange(20), stage=stage, body=_body(act, stage), **about
    )
    return seal(act.peer.identity, act.stage.scope, statement).raw


async def _tell(act: Act) -> None:
    for life in act.targets:
        with suppress(GossipError):
            peer = await act.peer.transport.dial(life.member.transport.addresses[0])
            async with open_session(act.peer.transport, peer, PATIENCE_S) as session:
                for _ in range(act.move.amount):
                    await session.ask(SecureRequest(envelope=_envelope(act)), MAX_RESPONSE_BYTES)
                    await trio.sleep(act.move.seconds / act.move.amount)


@move("sums.say", amounts=(4, 60), seconds=(20, 160), variants=WAYS, speaks=("secure",), among=SUMS)
async def _say(act: Act) -> None:
    """Take part well, and say things of sums that there are none of."""
    await act.meet()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_part, act, "mean")
        await _tell(act)


@move(
    "flood.secure",
    amounts=(5, 120),
    seconds=(1, 20),
    variants=("stranger", "neighbour"),
    speaks=("secure",),
    among=SUMS,
)
async def _flood(act: Act) -> None:
    """Many, by one who has been met, or has not."""
    if act.move.variant == "neighbour":
        await act.meet()
    await _tell(act)
