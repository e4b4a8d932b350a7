"""Gossipsub as stock peers speak it, hardened where libp2p 0.8.1 lets one message end it.

Strict signing, and the usual message id: author and sequence number. A hash of the content alone would be simpler, but
it would swallow the announcements that are repeated on purpose (delivery is lossy), and this release compares IHAVE
ids, which are always author + number (mcache.py:73), with the seen ids. Sequence numbers come from the clock, so that
a restarted node does not reuse those of its last run, which others would drop as equivocation (gossipsub.py:2908).
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import trio
from libp2p.io.exceptions import IOException, MessageTooLarge
from libp2p.network.connection.exceptions import RawConnError
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import PROTOCOL_ID, PROTOCOL_ID_V11, GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.utils.varint import read_varint_prefixed_bytes_limited

from gossip.core.errors import Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.transport.base import TransportHandlers
from gossip.transport.libp2p.fault_guard import Faults
from gossip.transport.libp2p.pubsub_limit import PubsubLimit

MAX_MESSAGE_BYTES: Final = 8192
"""Announcements are small by design (design.md, section 5); bulk goes over streams."""

MAX_RPC_BYTES: Final = 256 * 1024
"""One inbound pubsub frame: a mesh of 64 members' announcements at once, with room."""

MAX_CONTROL: Final = 64
"""Control entries of one kind taken from one frame, and message ids in each: a heartbeat's worth has a few."""

MAX_RPC_MESSAGES: Final = 256
"""Messages and subscriptions in one frame, together. Stock code makes a task of each, and each looks through all tasks
(trio_manager.py:287), so that one frame with 9,000 empty messages stopped a node for half a minute."""

MAX_STREAMS_OF_PEER: Final = 2
"""Pubsub streams of one peer: one, and its successor. More would only hold unread windows."""

MAX_UNSIGNED: Final = 4
"""Messages without a good signature of their author's that a stream may bring: every implementation looks before it
passes on, so that a peer which does not is broken or a liar. Each is its offence; with one more its stream is reset,
for a peer whose ban ends its connections only soon, or not at all."""

MAX_BACKOFF_S: Final = 3600
"""Longest back-off believed of a peer that pruned us: the spec asks for a minute."""

DEGREE: Final = 6
DEGREE_LOW: Final = 4
DEGREE_HIGH: Final = 12
"""Mesh degrees of the gossipsub spec, v1.1 (D, D_lo, D_hi)."""

HEARTBEAT_S: Final = 1
"""The spec's; libp2p's default of 120 s would take minutes to form a mesh (trap 13)."""

_id_of: Final = lru_cache(maxsize=1024)(ID.from_string)
"""Decoding takes 11 us, and is asked for 17 peers several times for each broadcast in a run with regions."""

PROTOCOLS: Final = [PROTOCOL_ID_V11, PROTOCOL_ID]
"""Versions that go, rust and js have too. 1.2 would add an IDONTWANT to each neighbour for every message, which pays
for large messages only; what this release calls 1.3 to 2.0 it speaks alone."""


class TopicRouter(GossipSub):  # type: ignore[misc]
    """Gossipsub for one topic: control entries for other topics are dropped, so their tables stay empty.
    `uninterested`: the peers to which a broadcast is of no use (gossip/transport/base.py)."""

    def __init__(self, topic: str, uninterested: Callable[[bytes], frozenset[ID]]) -> None:
        super().__init__(
            PROTOCOLS,
            DEGREE,
            DEGREE_LOW,
            DEGREE_HIGH,
            heartbeat_interval=HEARTBEAT_S,
            adaptive_gossip_enabled=False,  # would set the heartbeat to 30-60 s (gossipsub.py:2852)
            spam_protection_enabled=False,  # would also throttle our own publishing (trap 13)
            eclipse_protection_enabled=False,  # counts IPs: on one machine it churns the mesh
        )
        self._topic = topic
        self._uninterested = uninterested

    def _get_peers_to_send(
        self, topic_ids: Iterable[str], msg_forwarder: ID, origin: ID, msg_id: bytes | None = None
    ) -> Iterable[ID]:
        """Return the peers of the mesh that have a use for a message. Where some have none, others take their places,
        or a message for few would reach hardly anybody by the mesh."""
        chosen = set(super()._get_peers_to_send(topic_ids, msg_forwarder, origin, msg_id))
        passed_over = self._without_use(msg_id) if msg_id is not None else frozenset()
        if not passed_over:
            return chosen
        useful = chosen - passed_over
        missing = DEGREE - len(useful)
        if missing > 0 and self._topic in self.pubsub.peer_topics:
            minus = {*useful, *passed_over, msg_forwarder, origin}
            useful.update(self._get_in_topic_gossipsub_peers_from_minus(self._topic, missing, minus))
        return useful

    def gossip_heartbeat(self) -> Any:
        """Return the messages of which each peer is told the ids: those that are of use to it."""
        passed_over = {name: self._without_use(name) for name in self.mcache.window(self._topic)}
        told: dict[ID, dict[str, list[bytes]]] = {}
        for peer, topics in super().gossip_heartbeat().items():
            useful = [name for name in topics.get(self._topic, ()) if peer not in passed_over.get(name, ())]
            if useful:
                told[peer] = {self._topic: useful}
        return told

    def _without_use(self, name: bytes) -> frozenset[ID]:
        message = self.mcache.get(name)
        return frozenset() if message is None else self._uninterested(bytes(message.data))

    async def handle_rpc(self, rpc: Any, sender_peer_id: ID) -> None:
        """Only what concerns our topic, in bounded numbers, and no peers to dial from strangers."""
        rpc.control.CopyFrom(self._bounded(rpc.control))
        await super().handle_rpc(rpc, sender_peer_id)

    def _bounded(self, control: Any) -> Any:
        kept = rpc_pb2.ControlMessage()
        for entry in self._ours(control.ihave):
            kept.ihave.add(topicID=entry.topicID, messageIDs=entry.messageIDs[:MAX_CONTROL])
        # Each id once: an answer holds the message as often as it is asked for.
        wanted = {each for entry in control.iwant[:MAX_CONTROL] for each in entry.messageIDs[:MAX_CONTROL]}
        if wanted:
            kept.iwant.add(messageIDs=sorted(wanted)[:MAX_CONTROL])
        for entry in self._ours(control.graft)[:1]:
            kept.graft.add(topicID=entry.topicID)
        for entry in self._ours(control.prune)[:1]:
            kept.prune.add(topicID=entry.topicID, backoff=min(entry.backoff, MAX_BACKOFF_S))
        return kept

    def _ours(self, entries: Any) -> list[Any]:
        return [entry for entry in entries[:MAX_CONTROL] if entry.topicID == self._topic]

    def _periodic_security_cleanup(self) -> None:
        """Each heartbeat: also forget the delivery times that nothing reads with the adaptive mode off."""
        super()._periodic_security_cleanup()
        self.recent_message_deliveries.clear()


class UnsignedError(Exception):
    """A peer's stream has brought too many messages without a good signature."""


class GuardedPubsub(Pubsub):  # type: ignore[misc]
    """Pubsub for one topic whose messages go to `handlers` and whose faults stay with the message."""

    def __init__(self, host: Any, topic: str, handlers: TransportHandlers, faults: Faults) -> None:
        router = TopicRouter(topic, self._uninterested)
        super().__init__(host, router, max_inbound_rpc_size=MAX_RPC_BYTES, allowed_topics={topic})
        self._topic = topic
        self._handlers = handlers
        self._faults = faults
        self._last_seqno = 0
        self._budget = PubsubLimit()
        self._reading: Counter[ID] = Counter()
        self._signed: set[int] = set()
        """Messages, by identity, that are being handled and whose signature is good."""
        self.set_topic_validator(topic, self._valid, False)

    async def join(self) -> None:
        """Subscribe. libp2p's subscription queue is not used: messages are handled as they are validated."""
        await self.subscribe(self._topic)

    def stop_cache(self) -> None:
        """End the thread that libp2p starts for its cache of seen messages (base_timed_cache.py:25)."""
        self.seen_messages.stop()

    async def continuously_read_stream(self, stream: Any) -> None:
        """Take a peer's frames until its stream ends, one message after another, so that a flood waits in its window.

        Raises what malformed bytes raise, for the guard of streams. A signed record of py-libp2p's own is not read.
        """
        peer, unsigned = stream.muxed_conn.peer_id, itertools.count(1)
        if self._reading[peer] >= MAX_STREAMS_OF_PEER:
            self._faults.note("too_many_pubsub_streams")
            await stream.reset()
            return
        self._reading[peer] += 1
        try:
            while True:
                # Of the muxed stream: a NetStream takes a lock for each read, and there are three to a frame.
                frame = await read_varint_prefixed_bytes_limited(stream.muxed_stream, MAX_RPC_BYTES)
                await trio.sleep(self._budget.pause_for(peer, len(frame), trio.current_time()))
                await self._take(peer, frame, unsigned)
        except MessageTooLarge:
            raise
        except (MuxedStreamError, IOException, RawConnError):
            return  # it has ended, one way or the other
        finally:
            self._reading[peer] -= 1
            self._reading += Counter()  # drops the zeros

    async def _take(self, peer: ID, frame: bytes, unsigned: Iterator[int]) -> None:
        """Handle a frame. `unsigned` numbers the stream's messages that were not signed by their author.

        Raises UnsignedError at one too many.
        """
        rpc = rpc_pb2.RPC()
        rpc.ParseFromString(frame)
        if len(rpc.publish) + len(rpc.subscriptions) > MAX_RPC_MESSAGES:
            self._faults.note("pubsub_flood")
            return
        for message in rpc.publish:
            if not await self._pushed(peer, message):
                self._charge(peer)
                if next(unsigned) > MAX_UNSIGNED:
                    raise UnsignedError
            await trio.lowlevel.checkpoint()
        for entry in [each for each in rpc.subscriptions if each.topicid == self._topic][-1:]:
            self.handle_subscription(peer, entry)
        if rpc.HasField("control"):
            await self.router.handle_rpc(rpc, peer)

    def _charge(self, forwarder: ID) -> None:
        """Charge the forwarder and not the supposed author: it had to check the signature before it passed that on."""
        error = RemoteError(Reason.FORGED, "a broadcast that its author did not sign")
        try:
            self._handlers.offended(PeerId(str(forwarder)), error)
        except Exception as bug:
            self._faults.note("handler", bug)

    def get_hello_packet(self) -> Any:
        """The first frame of a stream, without the record described at `write_msg`."""
        packet = super().get_hello_packet()
        packet.ClearField("senderRecord")
        return packet

    async def write_msg(self, stream: Any, rpc_msg: Any) -> bool:
        """Without py-libp2p's own field, a signed address record in every frame that costs the receiver two
        signature checks (pubsub/utils.py:11). The spec does not have it, and nobody may dial by it here."""
        rpc_msg.ClearField("senderRecord")
        return bool(await super().write_msg(stream, rpc_msg))

    def notify_subscriptions(self, publish_message: Any) -> None:
        """Nobody reads the queue of 32: filling it would only log."""

    async def publish_to_topic(self, data: bytes) -> None:
        """Sign and send to the mesh, best effort."""
        try:
            await self.publish(self._topic, data)
        except Exception as error:
            self._faults.note("publish", error)

    async def validate_msg(self, msg_forwarder: ID, msg: Any) -> None:
        """Called for a message whose own signature is good: libp2p says nothing of one whose is not."""
        self._signed.add(id(msg))
        await super().validate_msg(msg_forwarder, msg)

    async def push_msg(self, msg_forwarder: ID, msg: Any) -> None:
        """Our own, and what libp2p itself takes from a stream: nothing, as streams are read here."""
        await self._pushed(msg_forwarder, msg)

    async def _pushed(self, msg_forwarder: ID, msg: Any) -> bool:
        """Whether nothing is wrong with the signature, as far as it was looked at.

        Trap 2: a garbage public key raises (pubsub/validators.py:60), and so may any malformed field before it.
        """
        if msg_forwarder != self.my_id and not self._admitted(msg_forwarder, msg):
            return True
        try:
            await super().push_msg(msg_forwarder, msg)
        except Exception as error:
            self._faults.note("pubsub_message", error)
            return id(msg) in self._signed
        else:
            if id(msg) not in self._signed:
                self._faults.note("pubsub_message")
                return False
        finally:
            self._signed.discard(id(msg))
        return True

    def _admitted(self, forwarder: ID, msg: Any) -> bool:
        """Cheap bounds, before the signature is checked."""
        if list(msg.topicIDs) != [self._topic] or len(msg.data) > MAX_MESSAGE_BYTES:
            self._faults.note("pubsub_malformed")
            return False
        if self._is_msg_seen(msg):
            return False  # the usual case in a mesh, and cheap
        own, neighbour = msg.from_id == forwarder.to_bytes(), self._handlers.keeps(PeerId(str(forwarder)))
        if not self._budget.admits(forwarder, trio.current_time(), own=own, neighbour=neighbour):
            self._faults.note("pubsub_flood")
            return False
        return True

    def _valid(self, forwarder: ID, msg: Any) -> bool:
        """The topic's validator; never raises (trap 2)."""
        if forwarder == self.my_id:
            return True
        try:
            return self._handlers.handle_message(PeerId(str(forwarder)), bytes(msg.data))
        except Exception as error:
            self._faults.note("handler", error)
            return False

    def _uninterested(self, data: bytes) -> frozenset[ID]:
        """The peers to which a broadcast is of no use; nobody where that cannot be told. Never raises."""
        try:
            return frozenset(map(_id_of, self._handlers.uninterested(data)))
        except Exception as error:
            self._faults.note("handler", error)
            return frozenset()

    def _next_seqno(self) -> bytes:
        self._last_seqno = max(self._last_seqno + 1, time.time_ns() // 1000)
        return self._last_seqno.to_bytes(8, "big")
