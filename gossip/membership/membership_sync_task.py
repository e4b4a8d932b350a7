"""Keeps a private swarm's roster and manifests equal among its members, and acts on changes.

membership/anti_entropy.py decides. This file has the tasks: sending new items to all connected members, pulling where
digests differ, disconnecting former members, saving the files, and processing what an admin on this machine has signed.
It serves members and bootstrap nodes alike, so it knows nothing of engines.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from gossip.context import ServiceContext
from gossip.core.backoff import peer_in
from gossip.core.config import GossipConfig
from gossip.core.errors import GossipError, LocalError, Reason, RemoteError
from gossip.core.ids import PeerId
from gossip.core.limits import KIB
from gossip.core.member_messages import (
    MAX_PAGE_NUMBER,
    BucketsRequest,
    Known,
    MemberRequest,
    MembershipRequest,
    RosterRequest,
    TermsRequest,
    known_fields,
    pack_parts,
    unpack_parts,
)
from gossip.core.membership_limits import MAX_CHAIN, MAX_MANIFEST_BYTES, MAX_PAGE_BYTES
from gossip.core.messages import Refused, encode_answer, parse_bytes_answer, parse_known_answer
from gossip.membership import dump_roster
from gossip.membership.admission import Applied
from gossip.membership.anti_entropy import AntiEntropy, is_item
from gossip.membership.inbox_task import watch_inbox
from gossip.membership.invite import Role
from gossip.membership.private_swarm import PrivateMembership
from gossip.membership.roster_sync import differing
from gossip.session import Session, ask_once, open_session
from gossip.transport.base import Transport, TransportError
from gossip.updates.peer_score import PeerScores

LOOK_S: Final = 2.0
"""Seconds between two looks for memberships that have ended; their end is only accurate to five minutes anyway."""

SAVE_EVERY_S: Final = 5.0
"""Seconds between two saves of changes; what our own admin submits is saved at once."""

NEWS_PAUSE_S: Final = 0.1
"""Seconds in which news is collected for one message; a revocation crosses a swarm of ten steps in a second."""

MAX_OWED: Final = 8
"""Pages that wait for a member that is slow to answer; what is beyond them differs by digest, and is pulled."""

MAX_COMPARED: Final = 64
"""Members that we compare with at a heartbeat, in turn: eight times the default degree. A bootstrap node has more
members, and all of these compare with it."""

PULL_S: Final = 60.0
"""Seconds for one whole pull: a full roster has 1,200 pages, of which a member answers 40 a second."""


@dataclass(frozen=True, kw_only=True)
class ServicePorts:
    """What this task needs of its service. `offence` charges a peer, `refuse` only counts; `cut` disconnects a peer and
    forgets it; `inherit(successor, peer)` moves a peer's points to its successor."""

    transport: Transport
    config: GossipConfig
    jitter: Callable[[], float]
    warn: Callable[[str], None]
    offence: Callable[[PeerId, RemoteError], None]
    refuse: Callable[[PeerId, RemoteError], None]
    cut: Callable[[PeerId, RemoteError], None]
    inherit: Callable[[PeerId, PeerId], None]


def service_ports_of(
    context: ServiceContext, peer_scores: PeerScores, cut: Callable[[PeerId, RemoteError], None]
) -> ServicePorts:
    """Return the ports of a member's service."""
    return ServicePorts(
        transport=context.transport,
        config=context.config,
        jitter=context.engine.jitter,
        warn=context.warn,
        offence=context.offence,
        refuse=peer_scores.refuse,
        cut=cut,
        inherit=peer_scores.scores.inherit,
    )


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """One certificate of the roster. Times in unix seconds; `expires` None: never. `ended`: why it is no longer a
    membership, None while it is one."""

    peer: PeerId
    role: Role
    name: str
    joined_at: int
    expires: int | None
    connected: bool
    ended: Reason | None


class MembershipSync:
    """Spreads membership for one service. `anti_entropy` makes the decisions."""

    def __init__(self, private: PrivateMembership, anti_entropy: AntiEntropy, house: ServicePorts) -> None:
        self.anti_entropy = anti_entropy
        self._admission = private.admission
        self._private = private
        self._house = house
        self._news: list[bytes] = []
        self._woken = trio.Event()
        self._owed: dict[PeerId, deque[bytes]] = {}
        self._pulling: set[PeerId] = set()
        self._unsaved: set[str] = set()
        self._conflicts = len(private.admission.chain.conflicts)
        self._complained: set[str] = set()
        self._turn = 0
        self._nursery: trio.Nursery | None = None
        private.admission.learned = self._learned
        private.admission.take_manifests = self._take_manifests

    # -- the service's calls

    async def run(self) -> None:
        """Run until cancelled, then save what is not saved yet."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tell_news)
                nursery.start_soon(self._heartbeats)
                nursery.start_soon(self._look_out)
                nursery.start_soon(watch_inbox, self._private.files, self.submit, self._house.warn)
        finally:
            self._nursery = None
            self._save()

    def peer_connected(self, peer: PeerId) -> None:
        """Send a newly connected member what we know. A peer that had another key keeps that key's points, if it shows
        the rotation itself: a rotation that another peer brings may name any successor."""
        for old in self._admission.predecessors(peer):
            self._house.inherit(peer, old)
        self._tell(peer, b"")

    def peer_lost(self, peer: PeerId) -> None:
        """Forget a peer whose last connection is gone."""
        self._admission.forget(peer)

    def answer(self, peer: PeerId, request: MemberRequest) -> bytes:
        """Return the answer to a member. Raises RemoteError, which is charged to it."""
        match request:
            case MembershipRequest():
                applied = self.anti_entropy.on_told(peer, request, trio.current_time())
                self._follow_up(applied)
                if applied.error is not None:
                    raise applied.error
                self._consider(peer, request.known)
                return encode_answer(*known_fields(self.anti_entropy.known()))
            case BucketsRequest():
                return encode_answer(self.anti_entropy.roster_index.buckets)
            case RosterRequest(parts=parts, page=page):
                return encode_answer(self.anti_entropy.roster_index.page(unpack_parts(parts), page))
            case TermsRequest(above=above):
                return encode_answer(self.anti_entropy.manifest_above(above))

    def submit(self, signed: Iterable[bytes]) -> None:
        """Add what an admin has signed, items (`pack_item`) and manifests (`pack_manifests`), save it, and send it to
        everybody. Raises LocalError when the swarm refuses some of it; the rest is added."""
        errors = []
        for each in signed:
            applied = (
                self.anti_entropy.submit_items((each,)) if is_item(each) else self.anti_entropy.submit_manifests(each)
            )
            self._follow_up(applied)
            errors += [applied.error] if applied.error else []
        self._save()
        if self._nursery is not None:
            self._nursery.start_soon(self._visit_guides)
        if errors:
            raise LocalError(f"refused: {errors[0]}")

    def view(self) -> list[MemberView]:
        """Return all members on the roster, in the order of their joining."""
        connected, rows = self._house.transport.peers, []
        for each in sorted(self._admission.roster.certificates, key=lambda it: (it.joined_at, it.peer)):
            error = self._admission.why_out(each.peer, each)
            rows.append(
                MemberView(
                    peer=each.peer,
                    role=each.role,
                    name=each.grant.name,
                    joined_at=each.joined_at,
                    expires=each.grant.expires,
                    connected=each.peer in connected,
                    ended=error.reason if error else None,
                )
            )
        return rows

    # -- what follows from a change

    def _learned(self, item: bytes) -> None:
        """Pass on the item of a newcomer that was admitted."""
        self.anti_entropy.changed((item,))
        self._tell_on((item,))

    def _take_manifests(self, dump: bytes) -> None:
        """Add what a peer that refuses us sends to show why. It has no connection that could be charged."""
        applied = self.anti_entropy.submit_manifests(dump)
        self._follow_up(applied)
        if applied.error is not None and applied.error.reason is Reason.EQUIVOCATION:
            self._warn_of_fork(applied.error)

    def _follow_up(self, applied: Applied) -> None:
        if len(self._admission.chain.conflicts) > self._conflicts:
            self._conflicts = len(self._admission.chain.conflicts)
            self._unsaved.add("manifests")
        if not applied.new:
            return
        self._tell_on(tuple(each for each in applied.new if is_item(each)))
        if not all(map(is_item, applied.new)):
            self._unsaved.add("manifests")
            self._private.on_manifest(self._admission.chain.newest)
        self._cut(applied.cut)

    def _tell_on(self, items: tuple[bytes, ...]) -> None:
        self._unsaved.add("roster")
        self._news += items
        self._woken.set()

    def _cut(self, peers: Iterable[PeerId]) -> None:
        for peer in peers:
            error = self.anti_entropy.why_out(peer) or RemoteError(Reason.NO_MEMBER, "no member any more")
            self._house.cut(peer, error)

    def _blame(self, peer: PeerId, error: RemoteError) -> None:
        """Charge a member's error. A fork is the admins' fault: a member that saw the other side of it first does no
        wrong."""
        if error.reason is Reason.EQUIVOCATION:
            self._house.refuse(peer, error)
            self._warn_of_fork(error)
        else:
            self._house.offence(peer, error)

    def _warn_of_fork(self, error: RemoteError) -> None:
        self._warn_once(
            f"the admins have signed two manifests: {error.detail}; ours stays until a newer one, or until this node "
            "takes an invite by an admin of the other side"
        )

    def _warn_once(self, words: str) -> None:
        if words not in self._complained and len(self._complained) < MAX_CHAIN:
            self._complained.add(words)
            self._house.warn(words)

    # -- telling

    async def _tell_news(self) -> None:
        while True:
            await self._woken.wait()
            self._woken, items = trio.Event(), self._news
            self._news = []
            page = self.anti_entropy.news_page(items, trio.current_time())
            for peer in self._house.transport.peers:
                self._tell(peer, page)
            await trio.sleep(NEWS_PAUSE_S)

    async def _heartbeats(self) -> None:
        while True:
            peers = sorted(self._house.transport.peers)
            for at in range(min(len(peers), MAX_COMPARED)):
                self._tell(peers[(self._turn + at) % len(peers)], b"")
            self._turn += MAX_COMPARED
            await trio.sleep(self._house.config.heartbeat_s * self._house.jitter())

    def _tell(self, peer: PeerId, page: bytes) -> None:
        if peer in self._owed:
            self._owed[peer].append(page)
        elif self._nursery is not None:
            self._owed[peer] = deque((page,), maxlen=MAX_OWED)
            self._nursery.start_soon(self._tell_all, peer)

    async def _tell_all(self, peer: PeerId) -> None:
        house, owed = self._house, self._owed[peer]
        try:
            while owed:
                request = MembershipRequest.of(self.anti_entropy.known(), owed.popleft())
                raw = await ask_once(house.transport, peer, request, house.config.request_timeout_s, KIB)
                self._consider(peer, parse_known_answer(raw))
        except (Refused, TransportError):
            pass  # it is charged by its own rules, or gone
        except RemoteError as error:
            self._blame(peer, error)
        finally:
            del self._owed[peer]

    async def _visit_guides(self) -> None:
        """Visit bootstrap nodes, which stay connected to nobody for long, to bring them what an admin signed."""
        house = self._house
        for address in dict.fromkeys((*house.config.peers, *self._admission.chain.newest.terms.bootstrap)):
            with suppress(GossipError), trio.move_on_after(house.config.dial_timeout_s):
                if peer_in(address) not in house.transport.peers:
                    self._tell(await house.transport.dial(address), b"")

    # -- pulling

    def _consider(self, peer: PeerId, theirs: Known) -> None:
        free = peer not in self._pulling and self._nursery is not None
        if free and self.anti_entropy.wants_of(peer, theirs, trio.current_time()):
            assert self._nursery is not None
            self._pulling.add(peer)
            self._nursery.start_soon(self._pull, peer, theirs)

    async def _pull(self, peer: PeerId, theirs: Known) -> None:
        house = self._house
        try:
            with trio.move_on_after(PULL_S):
                async with open_session(house.transport, peer, house.config.request_timeout_s) as session:
                    await self._pull_manifests(session, peer, theirs)
                    await self._pull_roster(session, peer, theirs)
        except (Refused, TransportError):
            pass
        except RemoteError as error:
            self._blame(peer, error)
        finally:
            self._pulling.discard(peer)

    async def _pull_manifests(self, session: Session, peer: PeerId, theirs: Known) -> None:
        for _ in range(MAX_CHAIN):
            if not self.anti_entropy.wants_manifest(peer, theirs):
                return
            newest = self._admission.chain.newest
            above = min(newest.version, theirs.version - 1)  # of a fork, theirs
            answer = await session.ask(TermsRequest(above=above), MAX_MANIFEST_BYTES + KIB)
            raw = parse_bytes_answer(answer, MAX_MANIFEST_BYTES)
            if not raw:
                return
            applied = self.anti_entropy.on_manifest(peer, raw, theirs)
            self._follow_up(applied)
            if applied.error is not None:
                raise applied.error
            if not applied.new:  # it may have come another way meanwhile
                return

    async def _pull_roster(self, session: Session, peer: PeerId, theirs: Known) -> None:
        ours = self.anti_entropy.roster_index
        if theirs.roster == ours.digest:
            return
        answer = await session.ask(BucketsRequest(), len(ours.buckets) + KIB)
        parts = pack_parts(differing(ours.buckets, parse_bytes_answer(answer, len(ours.buckets))))
        for number in range(MAX_PAGE_NUMBER):
            answer = await session.ask(RosterRequest(parts=parts, page=number), MAX_PAGE_BYTES + KIB)
            page = parse_bytes_answer(answer, MAX_PAGE_BYTES)
            if not page:
                return
            applied = self.anti_entropy.on_page(peer, page, theirs, trio.current_time())
            self._follow_up(applied)
            if applied.error is not None:
                raise applied.error

    # -- looking out

    async def _look_out(self) -> None:
        saved_at = trio.current_time()
        while True:
            await trio.sleep(LOOK_S)
            # If there are more members than the admission remembers, the roster still says who is revoked.
            strangers = {peer for peer in self._house.transport.peers if self.anti_entropy.role_of(peer) is None}
            self._cut(self._admission.cut() | strangers)
            why = self._admission.why_out(self._house.transport.peer_id, self._admission.own)
            if why is not None:
                self._warn_once(f"our own membership has ended: {why}")
            if trio.current_time() >= saved_at + SAVE_EVERY_S:
                saved_at = trio.current_time()
                await self._save_some()

    async def _save_some(self) -> None:
        """Save what has changed. A large roster is written in a thread: a slow disk takes too long for the event
        loop."""
        dump = dump_roster(self._admission.roster) if "roster" in self._unsaved else b""
        if len(dump) <= self._house.config.hash_in_thread_above:
            self._save()
            return
        saved = False
        try:
            self._save_manifests()
            self._unsaved.discard("roster")  # what changes while it is written is saved next time
            await trio.to_thread.run_sync(self._private.files.save_roster_dump, dump)
            saved = True
        except LocalError as error:
            self._warn_once(str(error))
        finally:
            if not saved:  # a cancelled one, too: the end saves what is not saved yet
                self._unsaved.add("roster")

    def _save(self) -> None:
        try:
            self._save_manifests()
            if self._unsaved:
                self._private.files.save_roster(self._admission.roster)
            self._unsaved.clear()
        except LocalError as error:
            self._warn_once(str(error))

    def _save_manifests(self) -> None:
        if "manifests" in self._unsaved:
            self._private.files.save_manifests(self._admission.chain)
            self._unsaved = {"roster"}  # other admins may have dropped some of it
