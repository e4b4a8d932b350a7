"""Broadcasts of the network in memory: each is handled once, and not all are remembered for ever."""

import random

import pytest
from gossip_swarm import identity

from gossip.transport.memory import network as module
from gossip.transport.memory.network import MemoryNetwork, _Broadcast


def test_the_newest_broadcasts_are_known_and_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEEN", 8)
    node = MemoryNetwork(random.Random(1)).attach(identity(1).peer_id)
    for number in range(50):
        node._remember(_Broadcast(number, b""))
        known = [before for before in range(number + 1) if node._has_seen(_Broadcast(before, b""))]
        assert known == list(range(number + 1 - len(known), number + 1)), "the newest"
        assert min(number + 1, 5) <= len(known) <= 8
