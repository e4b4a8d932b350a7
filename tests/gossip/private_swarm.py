"""A private swarm over the in-memory network: an admin, members with folders, a wall clock that runs with trio's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from gossip_swarm import CONFIG, FakeRuntime, Swarm, identity, until

from gossip.core.errors import Reason
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.membership import (
    Authority,
    Certificate,
    Invite,
    Manifest,
    ManifestBody,
    ManifestChain,
    Role,
    create_manifest,
    make_invite,
    next_version,
    pack_item,
    pack_manifests,
    redeem,
    revoke_peer,
)
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.private_swarm import PrivateMembership

NOW = 1_800_000_000
"""Unix seconds at the start of every test."""
ADMIN = Authority(b"\x64" * 32)
OTHER_ADMIN = Authority(b"\x65" * 32)
TERMS = ManifestBody(name="lab", admins=(ADMIN.public_key,))


def chain() -> ManifestChain:
    return ManifestChain(create_manifest(TERMS, b"n" * 16).signed_by(ADMIN))


SWARM = chain().swarm


def now() -> float:
    """The tests' clock begins at 0."""
    return NOW + trio.current_time()


def secret(number: int) -> Identity:
    return Identity(number.to_bytes(4, "big") + b"\x55" * 28)


def invite(
    number: int,
    *,
    role: Role = Role.TRAINER,
    uses: int | None = 1,
    expires: int | None = None,
    admin=ADMIN,
    region: str = "",
) -> Invite:
    how = {"role": role, "uses": uses, "expires": expires, "region": region}
    return make_invite(admin, SWARM, secret(number), issued_at=NOW - 3600, name=f"node {number}", **how)


def certificate(number: int, granted: Invite | None = None, of: int | None = None, at: int = NOW - 60) -> Certificate:
    """What a node shows that redeemed an invite: its own one, or that of number `of`."""
    taken = invite(number) if granted is None else granted
    holder = secret(number if of is None else of)
    return redeem(taken, holder, identity(number).peer_id, issued_at=at, nonce=number.to_bytes(16, "big"))


def revocation(peer: PeerId, reason: str = "it left the lab") -> bytes:
    return pack_item(revoke_peer(ADMIN, SWARM, peer, issued_at=NOW, reason=reason))


def version(last: Manifest, admin: Authority = ADMIN, *, number: int | None = None, **changed: object) -> Manifest:
    terms = ManifestBody(name="lab", admins=(ADMIN.public_key,), **changed)  # type: ignore[arg-type]
    return next_version(last, terms, applies_at=10, version=number).signed_by(admin)


class PrivateSwarm(Swarm):
    """Nodes with a membership each, kept in folders of their own."""

    def __init__(self, nursery: trio.Nursery, folder: Path, seed: int) -> None:
        super().__init__(nursery, CONFIG, seed)
        self.folder = folder
        self.applied: dict[PeerId, list[int]] = {}
        """Versions of the manifest that each node was told of."""

    def files(self, number: int) -> MembershipFiles:
        return MembershipFiles(self.folder / f"{number}")

    def enroll(self, number: int, shown: Certificate | None = None, **granted: object) -> MembershipFiles:
        """A folder as `join` leaves it."""
        files = self.files(number)
        files.save_certificate(shown or certificate(number, invite(number, **granted)))  # type: ignore[arg-type]
        files.save_manifests(chain())
        return files

    def private(self, number: int) -> PrivateMembership:
        """What the node's folder holds, as at its start."""
        peer = identity(number).peer_id
        told = self.applied.setdefault(peer, [])
        return PrivateMembership.load(
            self.files(number), peer, now=now, on_manifest=lambda newest: told.append(newest.version)
        )

    async def enter(self, number: int, peers: tuple[FakeRuntime, ...] = (), **how: object) -> FakeRuntime:
        """Start a node from its folder; one that has none is enrolled as a trainer."""
        if not self.files(number).joined:
            self.enroll(number)
        private = self.private(number)
        node = self.make(number, peers=tuple(each.address for each in peers), private=private, **how)  # type: ignore[arg-type]
        await self.launch(node)
        if node.service.role is Role.TRAINER:
            await node.begin(epoch=1000 + int(trio.current_time()))
        return node

    async def enter_all(self, *numbers: int, **how: object) -> list[FakeRuntime]:
        """Several that know the first, and have met."""
        first = await self.enter(numbers[0], **how)
        nodes = [first, *[await self.enter(number, (first,), **how) for number in numbers[1:]]]
        await until(lambda: all(len(rosters(node)) == len(nodes) for node in nodes))
        await until(lambda: all(node.service.neighbours() for node in nodes))
        return nodes

    async def stop(self, *nodes: FakeRuntime) -> None:
        for node in nodes:
            node.scope.cancel()
            self.nodes.remove(node)
        await trio.sleep(0.1)


def rosters(node: FakeRuntime) -> dict[PeerId, Reason | None]:
    """Whom a node's roster has, and why each is no member any more."""
    return {each.peer: each.ended for each in node.service.roster_view()}


def met(node: FakeRuntime, peer: PeerId) -> bool:
    return peer in node.transport.peers or peer in node.service.neighbours()


def manifests(*each: Manifest) -> bytes:
    return pack_manifests(each)


@asynccontextmanager
async def private_swarm(folder: Path, seed: int = 1) -> AsyncIterator[PrivateSwarm]:
    async with trio.open_nursery() as nursery:
        it = PrivateSwarm(nursery, folder, seed)
        yield it
        it.check()
        nursery.cancel_scope.cancel()
