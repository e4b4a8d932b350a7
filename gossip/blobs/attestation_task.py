"""Asks the neighbours what they hold of a peer before a snapshot of it is pulled.

All are asked at once, for ASK_S at most, and only until their answers are enough (blobs/attestation.py). A neighbour
that cannot tell says so, in a hundred bytes.
"""

from collections import defaultdict
from typing import Final

import trio

from gossip.blobs.attestation import overruled
from gossip.context import Notifier, ServiceContext
from gossip.core.digests import DIGEST_BYTES
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import verify_key_of
from gossip.core.ids import Digest, PeerId
from gossip.core.limits import KIB
from gossip.core.messages import Refused, StateRequest, parse_bytes_answer
from gossip.core.statements import SnapshotOffer
from gossip.core.wire import malformed
from gossip.session import ask_once
from gossip.transport.base import TransportError

ASK_S: Final = 2.0
"""Seconds that witnesses have: ten round trips of a slow link. A dead one delays nobody for longer."""


class SnapshotAttestation:
    """The neighbours as witnesses of each other. Each is asked one thing at a time: its streams are few."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._turns: defaultdict[PeerId, trio.Lock] = defaultdict(trio.Lock)

    async def check(self, offer: SnapshotOffer, least: int) -> None:
        """Raise RemoteError(CONTRADICTED) when witnesses overrule an offer that was wanted from seq `least` on."""
        request = StateRequest(key=verify_key_of(offer.peer), epoch=offer.epoch, seq=offer.seq, least=least)
        known = self._context.engine.neighbours
        self._turns = defaultdict(trio.Lock, {peer: turn for peer, turn in self._turns.items() if peer in known})
        waiting, said, heard = [peer for peer in known if peer != offer.peer], list[Digest](), Notifier()
        liars = self._context.liars

        async def ask(peer: PeerId) -> None:
            async with self._turns[peer]:
                named = await self._ask(peer, request)
            waiting.remove(peer)
            if named is not None:
                said.append(named)
            heard.beat()

        with trio.move_on_after(ASK_S):
            async with trio.open_nursery() as nursery:
                for peer in tuple(waiting):
                    nursery.start_soon(ask, peer)
                while overruled(offer.address, said, liars, len(waiting)) is None:
                    await heard.wait()
                nursery.cancel_scope.cancel()
        if overruled(offer.address, said, liars):
            raise RemoteError(Reason.CONTRADICTED, f"{len(said)} who can tell do not hold of it what it offers")

    async def _ask(self, peer: PeerId, request: StateRequest) -> Digest | None:
        context = self._context
        try:
            raw = await ask_once(context.transport, peer, request, context.config.request_timeout_s, KIB)
            named = parse_bytes_answer(raw, DIGEST_BYTES)
            if len(named) != DIGEST_BYTES:
                raise malformed("a state is named by a digest")
        except (Refused, TransportError):
            return None
        except RemoteError as error:
            context.offence(peer, error)
            return None
        return Digest(named)
