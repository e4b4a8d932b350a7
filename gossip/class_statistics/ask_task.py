"""Asks all neighbours for class statistics of their data, once."""

import trio

from gossip.class_statistics.statement import SharedPayload, check_statistics
from gossip.context import ServiceContext
from gossip.core.errors import GossipError, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import KIB, MAX_ENVELOPE_BYTES, MAX_STATISTICS_BYTES, STATISTICS_PROTOCOL
from gossip.core.messages import Refused, StatisticsRequest, parse_statistics_answer
from gossip.session import ask_once


async def ask_statistics(context: ServiceContext) -> dict[PeerId, bytes]:
    """Ask them all at once, and return what they have signed, by neighbour, in the order of their names. One that is
    silent costs the time of a request; one that answers with what is no statement of its own is charged."""
    found: dict[PeerId, bytes] = {}
    async with trio.open_nursery() as nursery:
        for peer in context.engine.neighbours:
            nursery.start_soon(_ask, context, peer, found)
    return dict(sorted(found.items()))


async def _ask(context: ServiceContext, peer: PeerId, found: dict[PeerId, bytes]) -> None:
    """A refusal charges nobody: most members share none, and some are of a release that does not know of them."""
    most = MAX_ENVELOPE_BYTES + MAX_STATISTICS_BYTES + KIB
    try:
        raw = await ask_once(
            context.transport,
            peer,
            StatisticsRequest(),
            context.config.request_timeout_s,
            most,
            protocol=STATISTICS_PROTOCOL,
        )
        shared = SharedPayload(*parse_statistics_answer(raw))
        found[peer] = check_statistics(shared, context.engine.scope, peer)
    except Refused:
        return
    except RemoteError as error:
        context.offence(peer, error)
    except GossipError:
        return
