"""One payload from many hands over real libp2p: a slow author's members take what is left from each other.

The rules are tried under a virtual clock (tests/gossip/test_shared_pulls.py); here the bytes go over TCP, and nobody's
time is looked at.
"""

import random

import pytest
from libp2p_harness import until
from members_harness import Member, living

from gossip.core.errors import Reason
from gossip.core.ids import PeerId
from gossip.core.limits import CHUNK_BYTES

pytestmark = pytest.mark.alone  # who helps is chosen by measured speed

SLOW_UP = 2.0 * CHUNK_BYTES
"""Bytes a second: four chunks take two seconds, and three copies would take six."""
PAYLOAD = random.Random(0).randbytes(4 * CHUNK_BYTES - 5)


def taken(member: Member) -> list[tuple[PeerId, bytes]]:
    return [(update.peer, update.payload) for update in member.updates if update.round == 1]


async def test_what_a_slow_author_publishes_its_members_take_from_each_other_as_well() -> None:
    author, *others = Member(1, up_bytes_per_s=SLOW_UP), Member(2), Member(3), Member(4)
    async with living(author, *others):
        for each in (author, *others):
            await each.service.begin_epoch(epoch=1, round=0, snapshot=None)
            if each is not author:
                await each.transport.dial(author.address)
        everybody = (author, *others)
        await until(lambda: all(len(each.service.neighbours()) == 3 for each in everybody))
        await author.service.publish(round=1, codec="none", payload=PAYLOAD, steps=1, tokens=1)
        await until(lambda: all(taken(other) for other in others))
        assert [taken(other) for other in others] == [[(author.transport.peer_id, PAYLOAD)]] * 3
        sent = [each.service.stats.payload_bytes_sent for each in everybody]
        received = [each.service.stats.payload_bytes_received for each in everybody]
        assert len(PAYLOAD) <= sent[0] < 2 * len(PAYLOAD), "alone it would have sent three"
        assert sum(received) == 3 * len(PAYLOAD), "and nobody took a chunk twice"
        assert sum(sent[1:]) > len(PAYLOAD)
        refused = {reason for each in everybody for _, reason in each.service.stats.rejected}
        assert refused <= {Reason.TIMEOUT}, "which a busy machine has"
