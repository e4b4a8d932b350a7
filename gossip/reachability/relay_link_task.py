"""The link of a node that reaches all others through one relay (`network.via`): kept, and reported when it breaks.

The dialler connects to the relay, as to any peer of the operator's. This task asks it for a reservation, so that other
clients of the relay reach this node, and says in one line when the relay does not answer, is gone, and is back.
"""

from typing import Final

import trio

from gossip.context import Relayed, ServiceContext
from gossip.core.ids import PeerId
from gossip.reachability.relay import RENEW_AGAIN_S, RENEW_SHARE

_LOOK_S: Final = 1.0
"""Seconds between two looks at whether the relay is connected: a dial back takes as long."""

_ABSENT_S: Final = 15.0
"""Seconds after the start without the relay before that is said. Chosen: longer than a dial and a handshake take."""


class RelayLink:
    """Asks for reservations, and renews them."""

    def __init__(self, context: ServiceContext, relay: PeerId) -> None:
        self._context = context
        self._relay = relay
        self._renew_at = float("-inf")

    async def run(self) -> None:
        """Run until cancelled."""
        with trio.move_on_after(_ABSENT_S) as patience:
            await self._while_connected(False)
        if patience.cancelled_caught:
            self._tell(
                f"no answer of the relay {self._relay}, through which this node reaches all others: it goes on alone "
                "until there is one"
            )
        while True:
            await self._while_connected(False)
            self._tell(f"this node reaches the others through the relay {self._relay}")
            self._renew_at = float("-inf")
            await self._while_connected(True)
            self._tell(
                f"the relay {self._relay} is gone, and with it all others: this node goes on alone until it is back"
            )

    async def _while_connected(self, connected: bool) -> None:
        while (self._relay in self._context.transport.peers) is connected:
            if connected and trio.current_time() >= self._renew_at:
                await self._reserve()
            await trio.sleep(_LOOK_S)

    async def _reserve(self) -> None:
        context = self._context
        grant = await context.transport.relayed_by(self._relay)
        now = trio.current_time()
        if grant is None or self._relay not in context.transport.peers:
            self._renew_at = now + RENEW_AGAIN_S
            return
        self._renew_at = now + RENEW_SHARE * grant.lasts_s
        context.relayed[self._relay] = Relayed(
            address=grant.address, renew_at=self._renew_at, until=now + grant.lasts_s
        )

    def _tell(self, words: str) -> None:
        self._context.engine.tell_reachability(words)
        self._context.perform()
