"""What a short invite leaves out, from a member: in an event loop of its own, before anything of the node is there."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from gossip.core.identity import Identity
from gossip.membership import InviteBundle, Role, ShortInvite
from gossip.membership.visit import Visitor
from gossip.membership.visit_task import KNOCK_S, FetchError, fetch
from gossip.transport.base import Transport
from gossip.transport.spool.spool_ends import spool_address
from node.swarm import parsing
from node.system.errors import RunError
from node.system.spool_check import check_spool, relay_of, spool_hint

WITHIN_S: Final = 60.0
"""For a node that joins: as long as it waits for neighbours. A bootstrap node that is just being started is there by
then."""

LOOK_S: Final = 15.0
"""For `swarm show`, which only reads: one silent address, and another one that answers. Chosen."""

TELL_AFTER_S: Final = 2.0
"""Before it is told what is waited for: most answers are there by then."""


def fetched(
    short: ShortInvite, peers: Iterable[str] = (), *, via: str | None = None, spool: Path | None = None
) -> InviteBundle:
    """Return the whole invitation, for a node. `peers` are asked as well, after those of the line; with `via` or
    `spool`, the relay that alone can be reached, that is asked and nobody else. RunError when nobody answers with it,
    which says who was asked, and why not; UsageError for a spool folder that cannot be used."""
    if short.invite.role is Role.RELAY:  # it is what the others reach in the folder
        spool = None
    if spool is not None:
        check_spool(spool, make=False)
        if (relay := relay_of(spool)) is None:
            raise RunError(f"no relay serves the spool folder {spool}", spool_hint(spool))
        via = spool_address(relay)
    asked = (*short.addresses, *peers) if via is None else (via,)
    return _run(short, tuple(dict.fromkeys(asked)), WITHIN_S, once=False, spool=spool)


def looked_at(short: ShortInvite) -> InviteBundle:
    """Return the whole invitation, to show it: each address is asked once. RunError."""
    return _run(short, short.addresses, LOOK_S, once=True)


def _run(
    short: ShortInvite, addresses: tuple[str, ...], within_s: float, *, once: bool, spool: Path | None = None
) -> InviteBundle:
    found = trio.run(partial(_fetched, short, addresses, within_s, once, spool))
    if isinstance(found, FetchError):
        raise _failed(found)
    return found


async def _fetched(
    short: ShortInvite, addresses: tuple[str, ...], within_s: float, once: bool, spool: Path | None
) -> InviteBundle | FetchError:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell, addresses, within_s)
        visitor = Visitor(short, Identity.generate())
        found: InviteBundle | FetchError
        try:
            transport = _transport(visitor, spool, addresses)
            found = await fetch(visitor, transport, addresses, within_s=within_s, once=once)
        except FetchError as error:  # let out of the nursery, it would be a group
            found = error
        nursery.cancel_scope.cancel()
    return found


async def _tell(addresses: tuple[str, ...], within_s: float) -> None:
    await trio.sleep(TELL_AFTER_S)
    places = ", ".join(map(parsing.place_in, addresses))
    print(
        f"fetching what the invite leaves out from {places}, for {within_s:.0f} s at most", file=sys.stderr, flush=True
    )


def _transport(visitor: Visitor, spool: Path | None, addresses: tuple[str, ...]) -> Transport:
    from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport  # seconds to import
    from gossip.transport.pnet import PresharedKey

    config = Libp2pConfig(dial_timeout_s=KNOCK_S, data_connections=False)
    if spool is not None:
        config = replace(config, listen=(), via=addresses[0], spool=spool)
    psk = None if visitor.short.psk is None else PresharedKey(visitor.short.psk)
    return Libp2pTransport(config, visitor.identity.seed, admission=visitor, psk=psk)


def _failed(error: FetchError) -> RunError:
    said = "; ".join(f"{parsing.place_in(address)}: {why}" for address, why in error.tried.items())
    if error.final:
        return RunError(error.final, "ask an admin for a new invite")
    if error.turned_away:
        return RunError(f"no member gives what the invite leaves out ({said})", "ask an admin for a new invite")
    hint = "see that one of them runs and can be reached, or ask for a newer invite, or one made with --full"
    return RunError(f"what the invite leaves out could not be fetched ({said})", hint)
