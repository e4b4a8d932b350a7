"""Tells peers something that they answer with nothing: once, or until all have heard it."""

from collections import Counter
from typing import Final

import trio

from gossip.context import Notifier, ServiceContext
from gossip.core.errors import GossipError, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import KIB, STREAM_PROTOCOL
from gossip.core.messages import Refused, Request, parse_empty_answer
from gossip.session import ask_once

UNHEARD_PAUSE_S: Final = 0.2
"""Seconds before a member that was not reached is told again, doubling: a lost connection is dialled within seconds."""


async def heard(context: ServiceContext, peer: PeerId, request: Request, *, protocol: str = STREAM_PROTOCOL) -> bool:
    """Tell one peer; return whether it has heard. A wrong answer is charged. A refusal is none: the peer may not know
    yet that we are neighbours, or knows of a newer statement, or is of a release that does not have the protocol."""
    try:
        patience_s = context.config.request_timeout_s
        parse_empty_answer(await ask_once(context.transport, peer, request, patience_s, KIB, protocol=protocol))
    except Refused:
        return False
    except RemoteError as error:
        context.offence(peer, error)
        return False
    except GossipError:
        return False
    return True


class Teller:
    """Tells members of a group, each until it has heard. `changed` is beaten at every try."""

    def __init__(self, context: ServiceContext, changed: Notifier, nursery: trio.Nursery) -> None:
        self._context = context
        self._changed = changed
        self._nursery = nursery
        self._untold: Counter[PeerId] = Counter()

    @property
    def telling(self) -> bool:
        """Whether a member that can be reached does not know yet what it was to be told."""
        return any(member in self._context.engine.neighbours for member in self._untold)

    def tell(self, member: PeerId, request: Request) -> None:
        """Tell one member; who cannot be reached is told when it can."""
        self._untold[member] += 1
        self._nursery.start_soon(self._tell, member, request)

    async def _tell(self, member: PeerId, request: Request) -> None:
        pause_s = UNHEARD_PAUSE_S
        while member not in self._context.engine.neighbours or not await heard(self._context, member, request):
            self._changed.beat()
            await trio.sleep(pause_s)
            pause_s *= 2
        self._untold[member] -= 1
        self._untold += Counter()  # drops the zeros
        self._changed.beat()
