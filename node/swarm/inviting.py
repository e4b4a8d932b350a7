"""`swarm invite`: a line that lets somebody in, and the same as a picture."""

import time
from dataclasses import dataclass
from io import StringIO

from gossip.core.identity import Identity
from gossip.membership import InviteBundle, Role, encode_invite_code, encode_short, make_invite, shorten
from gossip.membership.settings import Settings
from gossip.membership.signed import Signer
from node.swarm import agreed_settings
from node.swarm.folder import SwarmFolder
from node.system.errors import UsageError

MAX_QR_CHARS = 2953
"""Of the largest code (version 40) with the least redundancy, in bytes (ISO/IEC 18004)."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What an invite is to give. `expires`: unix seconds, of the membership; `uses`: None is any number. `full`: a line
    that holds the manifests, too. `region`: the only one that members by it may be of; "": any."""

    role: Role = Role.TRAINER
    expires: int | None = None
    uses: int | None = 1
    name: str = ""
    full: bool = False
    region: str = ""


def give(folder: SwarmFolder, authority: Signer, wish: Wish, *, now: int | None = None) -> str:
    """Sign an invite, record it, and return its line: a full one also where the manifest names no address at which a
    newcomer could ask for the rest. UsageError when the key is no admin's, on a region that is none of the swarm's, and
    on an invite by which nobody could train; LocalError on a name or a number out of bounds."""
    chain = folder.chain()
    if authority.public_key not in chain.newest.terms.admins:
        raise UsageError("this key is no admin's of the swarm", "an admin's invite is needed: ask one")
    check_region_wish(wish, chain.newest.terms.settings)
    check_uses_wish(wish, chain.newest.terms.settings)
    secret = Identity.generate()
    invite = make_invite(
        authority,
        chain.swarm,
        secret,
        role=wish.role,
        issued_at=int(time.time()) if now is None else now,
        name=wish.name,
        expires=wish.expires,
        uses=wish.uses,
        region=wish.region,
    )
    invitation = InviteBundle(invite=invite, secret=secret, chain=chain, psk=folder.psk())
    short = None if wish.full else shorten(invitation)
    line = encode_invite_code(invitation) if short is None else encode_short(short)
    folder.record(invite)
    return line


def check_region_wish(wish: Wish, settings: Settings) -> None:
    """Raise UsageError where an invite is to bind to a region that the swarm has not, or somebody who is of none."""
    if not wish.region:
        return
    regions = agreed_settings.regions_in(settings)
    if wish.region not in regions:
        there = f"they are {', '.join(regions)}" if regions else "it has none (sync.regions)"
        raise UsageError(f"--region {wish.region}: it is none of the swarm's regions: {there}")
    if wish.role is not Role.TRAINER:
        raise UsageError(f"--region {wish.region}: a member of role {wish.role.value} is of no region", "leave it out")


def check_uses_wish(wish: Wish, settings: Settings) -> None:
    """Raise UsageError where several trainers were to come by one invite, and groups are drawn by grants."""
    if wish.role is Role.TRAINER and wish.uses != 1 and agreed_settings.draws_by_grants(settings):
        raise UsageError(
            f"--uses {wish.uses or 0}: with sync.draw=grants who comes by an invite for several is in no group",
            "give each member an invite of its own (--uses 1)",
        )


def qr(line: str) -> str:
    """Return the line as a picture of block characters. UsageError when it is too long for one."""
    import segno

    if len(line) > MAX_QR_CHARS:
        raise UsageError(f"the line has {len(line)} letters, too many for a picture", "send the line itself")
    out = StringIO()
    segno.make(line, error="l", micro=False, boost_error=False).terminal(out=out, compact=True, border=2)
    return out.getvalue()
