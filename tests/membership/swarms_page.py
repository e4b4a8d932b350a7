"""What docs/private-swarms.md shows, made by the code."""

from types import ModuleType

from swarms import ADMIN, NOW, peer, secret

from gossip.core import keyfile, membership_limits
from gossip.membership import (
    Invite,
    InviteBundle,
    ManifestBody,
    ManifestChain,
    Role,
    ShortInvite,
    create_manifest,
    encode_invite_code,
    encode_short,
    make_invite,
    redeem,
    revoke_peer,
    rotate,
    rotated,
)


def invitation() -> InviteBundle:
    """The page's line."""
    chain = ManifestChain(
        create_manifest(ManifestBody(name="lab", admins=(ADMIN.public_key,)), b"n" * 16).signed_by(ADMIN)
    )
    granted = make_invite(ADMIN, chain.swarm, secret(), role=Role.TRAINER, issued_at=NOW, name="a guest", uses=1)
    return InviteBundle(invite=granted, secret=secret(), chain=chain)


def bound_invite() -> Invite:
    """The page's invite, bound to a region."""
    swarm = invitation().chain.swarm
    how = {"role": Role.TRAINER, "issued_at": NOW, "name": "a guest", "uses": 1, "region": "east"}
    return make_invite(ADMIN, swarm, secret(), **how)


def short_invite() -> ShortInvite:
    """The page's short line: the same invite, with the manifests at peer 1."""
    made = invitation()
    named = made.chain.newest.digest[: membership_limits.NAMED_BYTES]
    address = f"/ip4/198.51.100.1/tcp/4001/p2p/{peer(1).peer_id}"
    return ShortInvite(invite=made.invite, secret=made.secret, named=named, addresses=(address,))


def examples() -> dict[str, bytes | str]:
    """By their names on the page."""
    made = invitation()
    member = redeem(made.invite, made.secret, peer(1).peer_id, issued_at=NOW, nonce=b"r" * 16)
    successor = rotated(member, rotate(peer(1), peer(2).peer_id, issued_at=NOW))
    return {
        "manifest": made.chain.newest.raw,
        "invite": made.invite.raw,
        "bound": bound_invite().raw,
        "certificate": member.raw,
        "rotation": successor.rotations[0].raw,
        "revocation": revoke_peer(ADMIN, made.chain.swarm, peer(2).peer_id, issued_at=NOW, reason="left").raw,
        "line": encode_invite_code(made),
        "short line": encode_short(short_invite()),
    }


def bounds() -> dict[str, int]:
    """Every bound of the formats."""
    return {**_of(membership_limits, "KIB"), **_of(keyfile, "")}


def _of(module: ModuleType, but: str) -> dict[str, int]:
    name = module.__name__.rpartition(".")[2]
    return {
        f"{name}.{key}": value
        for key, value in vars(module).items()
        if key.isupper() and key != but and not key.startswith("_") and isinstance(value, int)
    }
