"""How many records of others a node checks: of one sender, and of all that are no neighbours together."""

from types import SimpleNamespace

from gossip_samples import SCOPE
from gossip_swarm import identity

from gossip.core.limits import MAX_HELLO_RECORDS
from gossip.discovery.peerstore import PeerStore
from gossip.discovery.record_exchange import RECORDS_PER_S, STRANGERS_BURST, STRANGERS_PER_S, RecordExchange

FRIEND = identity(1).peer_id
STRANGERS = [identity(number).peer_id for number in range(100, 100 + 2 * STRANGERS_BURST // MAX_HELLO_RECORDS)]


def exchange():
    """A node's, and the records that it checks."""
    it, checked = RecordExchange(PeerStore(), SCOPE, lambda peer, now: True, lambda peer: "", {FRIEND}), []
    it._learn = lambda raw, teller, now: checked.append(raw)
    return it, checked


def hello(count=MAX_HELLO_RECORDS):
    return SimpleNamespace(record=b"", records=tuple(number.to_bytes(4, "big") for number in range(count)))


def test_one_sender_has_a_hello_at_once_and_some_a_second():
    it, checked = exchange()
    for _ in range(3):
        it.take(STRANGERS[0], hello(), 0.0)
    assert len(checked) == MAX_HELLO_RECORDS
    it.take(STRANGERS[0], hello(), 5.0)
    assert len(checked) == MAX_HELLO_RECORDS + 5 * RECORDS_PER_S


def test_a_crowd_of_strangers_is_bounded_together_and_takes_nothing_from_a_neighbour():
    it, checked = exchange()
    for stranger in STRANGERS:
        it.take(stranger, hello(), 0.0)
    assert len(checked) == STRANGERS_BURST
    it.take(FRIEND, hello(), 0.0)
    assert len(checked) == STRANGERS_BURST + MAX_HELLO_RECORDS
    for stranger in STRANGERS:
        it.take(stranger, hello(), 1.0)
    assert len(checked) == STRANGERS_BURST + MAX_HELLO_RECORDS + STRANGERS_PER_S
