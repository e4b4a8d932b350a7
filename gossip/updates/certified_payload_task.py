"""Waits until enough peers publish the same payload of a round, and pulls it from one of them."""

import trio

from gossip.blobs.blob_fetch_task import BULK_BYTES, fetch_blob
from gossip.context import ServiceContext
from gossip.core.errors import RemoteError
from gossip.core.ids import Digest, PeerId
from gossip.core.messages import Refused
from gossip.session import open_session
from gossip.transport.base import TransportError
from gossip.updates.certified_payload import CertifiedPayload, PayloadQuorum
from gossip.updates.traffic import Traffic


class CertifiedPayloads:
    """Pulls the payloads that several peers have published alike."""

    def __init__(self, context: ServiceContext, traffic: Traffic) -> None:
        self._context = context
        self._meter = traffic.received(snapshot=False)

    async def pull(self, wanted: PayloadQuorum, *, timeout_s: float) -> bytes | None:
        """Return the payload that enough of these peers have published alike; None where it does not come in time, or
        cannot."""
        certified, tried = CertifiedPayload(wanted), set[PeerId]()
        neighbours = self._context.engine.neighbours
        with trio.move_on_after(timeout_s):
            while True:
                certified.learn({peer: neighbours[peer].chain.announced for peer in wanted.peers if peer in neighbours})
                for address, signers in certified.signers.items():
                    for peer in signers:
                        if peer in neighbours and peer not in tried:
                            tried.add(peer)
                            if (data := await self._pull(peer, address, wanted.size)) is not None:
                                return data
                if certified.is_hopeless(set(neighbours)):
                    return None
                await self._context.changed.wait()
        return None

    async def _pull(self, peer: PeerId, address: Digest, size: int) -> bytes | None:
        context, patience_s = self._context, self._context.config.request_timeout_s
        try:
            async with open_session(context.transport, peer, patience_s, bulk=size >= BULK_BYTES) as session:
                return await fetch_blob(session, address, size, context.hasher, self._meter)
        except (Refused, TransportError):
            return None  # it is further than we are, or gone: another one has it
        except RemoteError as error:
            context.offence(peer, error)
            return None
