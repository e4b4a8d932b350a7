"""Members look each other up over real libp2p: stream, dial, answer, hang up."""

from itertools import pairwise

import trio
from libp2p_harness import PATIENCE_S, until
from members_harness import Member, living

from gossip.discovery import lookup_task


async def test_one_of_five_members_is_found_by_its_id_by_one_that_has_not_heard_of_it(monkeypatch):
    """In a line: each knows the next one alone, and has no place for more; nobody tells of anybody in a hello."""
    monkeypatch.setattr(lookup_task, "LOOK_TABLE_S", 0.2)
    members = [Member(number, degree=2) for number in range(1, 6)]
    async with living(*members):
        for member in members:
            member.service._engine.peerstore.sample = lambda *_, **__: ()  # type: ignore[method-assign]
        with trio.fail_after(PATIENCE_S):
            for one, other in pairwise(members):
                await one.transport.dial(other.address)
                one.service._engine.peerstore.reached(other.transport.peer_id, other.address)
                await until(lambda one=one, other=other: one.follows(other) and other.follows(one))
            first, last = members[0], members[-1]
            await until(lambda: all(len(member.service._engine.dht.table) for member in members))
            assert last.transport.peer_id not in first.transport.peers
            assert await first.service.find(last.transport.peer_id) == tuple(last.transport.addresses)
