"""A private swarm made of fixed keys, for the tests of membership: what its admins sign, and a gate with a clock."""

from collections.abc import Sequence

from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.membership import (
    Authority,
    Certificate,
    Invite,
    InviteBundle,
    Manifest,
    ManifestBody,
    ManifestChain,
    MembershipAdmission,
    Policy,
    Role,
    Roster,
    appoint,
    appointed,
    create_manifest,
    make_invite,
    next_version,
    pack_item,
    redeem,
)

NOW = 1_800_000_000
"""The tests' time, unix seconds."""
ADMINS = tuple(Authority(bytes([100 + at]) * 32) for at in range(4))
ADMIN = ADMINS[0]
HOME = Identity(b"\x01" * 32)
"""The creator's own node, appointed by the admin."""
PSK = b"\x2a" * 32

TYPICAL = {
    "task": {"name": "gpt", "data": "corpus", "hash": "5f0c7d9a1be34c22"},
    "model": {"layers": 6, "heads": 8, "width": 512, "context": 256},
    "train": {"seed": 7, "batch_size": 16, "inner_steps": 20, "inner_lr": 0.001},
    "sync": {"strategy": "gossip", "compressor": "q2", "aggregator": "trimmed_mean", "f": 1, "gamma": 1.0},
}
"""Settings as a swarm is likely to have them."""


def peer(number: int) -> Identity:
    """One of many nodes."""
    return Identity(number.to_bytes(4, "big") + b"\x07" * 28)


def bootstrap(*numbers: int) -> tuple[str, ...]:
    """Addresses of nodes."""
    return tuple(f"/ip4/198.51.100.{each}/tcp/4001/p2p/{peer(each).peer_id}" for each in numbers)


def terms(admins: Sequence[Authority] = (ADMIN,), **changed: object) -> ManifestBody:
    """What an ordinary swarm decides, or something else."""
    usual: dict[str, object] = {"name": "lab", "run": "first", "bootstrap": bootstrap(1, 2), "settings": TYPICAL}
    return ManifestBody(admins=tuple(sorted(each.public_key for each in admins)), **{**usual, **changed})  # type: ignore[arg-type]


def founding(admins: Sequence[Authority] = (ADMIN,), nonce: bytes = b"n" * 16, **changed: object) -> Manifest:
    """A signed first version."""
    return create_manifest(terms(admins, **changed), nonce).signed_by(*admins)


def chain_of(admins: Sequence[Authority] = (ADMIN,), **changed: object) -> ManifestChain:
    """A chain of one version."""
    return ManifestChain(founding(admins, **changed))


CHAIN = chain_of()
SWARM = CHAIN.swarm


def after(chain: ManifestChain, *signers: Authority, applies_at: int = 10, **changed: object) -> Manifest:
    """The next version, signed by these."""
    admins = changed.pop("admins", (ADMIN,))
    return next_version(chain.newest, terms(admins, **changed), applies_at=applies_at).signed_by(*signers)  # type: ignore[arg-type]


def secret(number: int = 0) -> Identity:
    """An invite's secret."""
    return Identity(number.to_bytes(4, "big") + b"\x55" * 28)


def invite(
    number: int = 0,
    admin: Authority = ADMIN,
    chain: ManifestChain = CHAIN,
    *,
    role: Role = Role.TRAINER,
    uses: int | None = 1,
    expires: int | None = NOW + 3600,
    name: str = "a guest",
) -> Invite:
    """One of many invites."""
    return make_invite(
        admin, chain.swarm, secret(number), role=role, issued_at=NOW - 60, uses=uses, expires=expires, name=name
    )


def certificate(node: Identity, granted: Invite | None = None, number: int = 0, *, at: int = NOW) -> Certificate:
    """What `node` shows that took up an invite."""
    taken = invite(number) if granted is None else granted
    return redeem(taken, secret(number), node.peer_id, issued_at=at, nonce=node.seed[:16])


def appointment(node: Identity, admin: Authority = ADMIN, chain: ManifestChain = CHAIN) -> Certificate:
    """What `node` shows that an admin appointed."""
    return appointed(appoint(admin, chain.swarm, node.peer_id, role=Role.TRAINER, issued_at=NOW - 100, name="home"))


def line_parts(chain: ManifestChain = CHAIN, psk: bytes | None = None) -> InviteBundle:
    """What a line holds."""
    return InviteBundle(invite=invite(chain=chain), secret=secret(), chain=chain, psk=psk)


class Door:
    """A gate with a clock that the test turns; `learned` is what it would pass on."""

    def __init__(
        self, chain: ManifestChain = CHAIN, node: Identity = HOME, shows: Certificate | None = None, now: float = NOW
    ) -> None:
        self.now = now
        self.learned: list[bytes] = []
        self.chain = ManifestChain(next(iter(chain)))
        self.roster = Roster(chain.swarm, chain.newest.terms.admins)
        own = appointment(node, chain=chain) if shows is None else shows
        self.admission = MembershipAdmission(
            peer=node.peer_id,
            certificate=own,
            chain=self.chain,
            roster=self.roster,
            now=lambda: self.now,
            learned=self.learned.append,
        )

    def refusal(self, who: PeerId, shown: Certificate | bytes) -> Reason | None:
        """Why a peer is not let in; None when it is."""
        try:
            self.admission.admit(who, shown if isinstance(shown, bytes) else shown.raw)
        except RemoteError as error:
            return error.reason
        return None


def policy_chain(policy: Policy, *allow: Identity) -> ManifestChain:
    """A swarm of another policy."""
    return chain_of(policy=policy, allow=frozenset(each.peer_id for each in allow))


def items_of(*members: Certificate) -> list[bytes]:
    """As they are gossiped."""
    return [pack_item(each) for each in members]
