"""The router offers and sends a broadcast only to those to whom it is of use, and to enough of these."""

from types import SimpleNamespace
from typing import Any

from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID_V11
from libp2p.pubsub.pb import rpc_pb2

from gossip.core.ids import PeerId
from gossip.transport.libp2p.pubsub import DEGREE, GuardedPubsub, TopicRouter

TOPIC = "a swarm"
FEW, ALL = b"for few", b"for all"
NEAR = [ID(b"near %d" % number) for number in range(2 * DEGREE)]
FAR = [ID(b"far %d" % number) for number in range(DEGREE)]
ORIGIN = ID(b"origin")


def router(mesh: set[ID]) -> Any:
    """A router whose peers are NEAR and FAR; to the latter, messages FEW are of no use."""
    it: Any = TopicRouter(TOPIC, lambda data: frozenset(FAR if data == FEW else ()))
    it.pubsub = SimpleNamespace(peer_topics={TOPIC: {*NEAR, *FAR}})
    it.peer_protocol.update(dict.fromkeys([*NEAR, *FAR], PROTOCOL_ID_V11))
    it.mesh[TOPIC] = mesh
    return it


def put(it: Any, data: bytes) -> bytes:
    """Have the router remember a message; return its id."""
    message = rpc_pb2.Message(from_id=ORIGIN.to_bytes(), seqno=data, topicIDs=[TOPIC], data=data)
    it.mcache.put(message)
    return bytes(it.mcache.window(TOPIC)[-1])


def sent(it: Any, name: bytes) -> set[ID]:
    return set(it._get_peers_to_send([TOPIC], NEAR[0], ORIGIN, name))


def test_a_message_for_few_goes_to_a_meshs_worth_of_them() -> None:
    it = router({NEAR[0], NEAR[1], *FAR[:4]})
    few = sent(it, put(it, FEW))
    assert NEAR[1] in few
    assert len(few) == DEGREE
    assert few < {*NEAR[1:]}, "nobody to whom it is of no use, nor who has sent it"


def test_a_message_for_all_goes_to_the_mesh_as_ever() -> None:
    it = router({NEAR[0], NEAR[1], *FAR[:4]})
    assert sent(it, put(it, ALL)) == {NEAR[1], *FAR[:4]}


def test_only_those_to_whom_a_message_is_of_use_are_told_its_id() -> None:
    it = router(set())
    it.pubsub.peer_topics[TOPIC] = {NEAR[0], FAR[0]}
    few, everybodys = put(it, FEW), put(it, ALL)
    told = {peer: set(topics[TOPIC]) for peer, topics in it.gossip_heartbeat().items()}
    assert told == {NEAR[0]: {few, everybodys}, FAR[0]: {everybodys}}


def test_the_names_of_those_to_whom_a_message_is_of_no_use_are_decoded_once() -> None:
    """They are asked for several times for each message, and their decoding would cost more than the rest."""
    peers = frozenset(PeerId(peer.to_base58()) for peer in FAR)
    it: Any = GuardedPubsub.__new__(GuardedPubsub)
    it._handlers = SimpleNamespace(uninterested=lambda data: peers)
    first, again = it._uninterested(FEW), it._uninterested(ALL)
    assert first == {*FAR}
    assert {id(peer) for peer in first} == {id(peer) for peer in again}
