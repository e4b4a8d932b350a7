"""A private swarm that lives: members with gates over real libp2p on loopback, publishing rounds at a pace, in a thread
of its own for as long as a file of tests lasts. What strangers do is played in its event loop, or beside it."""

import random
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio
from libp2p_harness import until
from members_harness import RUN

from gossip.core.api import GossipEvent, Head, RoundView, Update
from gossip.core.config import GossipConfig
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.membership import (
    Authority,
    Certificate,
    Invite,
    ManifestBody,
    ManifestChain,
    Role,
    appoint,
    appointed,
    create_manifest,
    make_invite,
    psk_fingerprint,
    redeem,
)
from gossip.membership.membership_files import MembershipFiles
from gossip.membership.private_swarm import PrivateMembership
from gossip.service import GossipService
from gossip.transport.base import Stream
from gossip.transport.libp2p.libp2p_transport import Libp2pConfig, Libp2pTransport
from gossip.transport.pnet import PresharedKey

PACE_S: Final = 0.4
"""Of a round: many times what its messages take, so that what is measured is the pace and not the machine."""
PATIENCE_S: Final = 30.0
CONFIG: Final = {"heartbeat_s": 4.0, "redial_min_s": 0.25, "min_deadline_s": 5.0}
"""A deadline that is far away: a neighbour that never publishes is seen in the rounds' time."""

ADMIN: Final = Authority(b"\x71" * 32)
NOBODY: Final = Authority(b"\x72" * 32)
"""A key that is no admin's."""


def swarm_of(admin: Authority, name: str, psk: bytes | None = None) -> ManifestChain:
    """A founding manifest, signed."""
    terms = ManifestBody(name=name, admins=(admin.public_key,), psk_fingerprint=psk)
    return ManifestChain(create_manifest(terms, b"n" * 16).signed_by(admin))


def invited(
    chain: ManifestChain, secret: Identity, admin: Authority = ADMIN, *, ends_in_s: int = 3600, **how: Any
) -> Invite:
    """An invite of an hour ago."""
    now = int(time.time())
    how = {"role": Role.TRAINER, "name": "a guest", "uses": 1, **how}
    return make_invite(admin, chain.swarm, secret, issued_at=now - 3600, expires=now + ends_in_s, **how)


def redeemed(invite: Invite, secret: Identity, peer: PeerId) -> Certificate:
    """Its membership for a peer, taken up a minute ago."""
    return redeem(invite, secret, peer, issued_at=int(time.time()) - 60, nonce=bytes(16))


def key_of(number: int) -> Identity:
    """Of one of the members."""
    return Identity(number.to_bytes(4, "big") + b"\x31" * 28)


def payload_of(peer: PeerId, round_: int) -> bytes:
    """An update: what no stranger may get a byte of."""
    return random.Random(f"{peer} {round_}").randbytes(64 * 1024)


class Witness(GossipService):
    """A service that keeps who ever came to it, by whatever way."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.met: set[PeerId] = set()

    async def handle_stream(self, protocol: str, stream: Stream) -> None:
        self.met.add(stream.remote)
        await super().handle_stream(protocol, stream)

    def handle_message(self, forwarder: PeerId, data: bytes) -> bool:
        self.met.add(forwarder)
        return super().handle_message(forwarder, data)

    def peer_connected(self, peer: PeerId) -> None:
        self.met.add(peer)
        super().peer_connected(peer)


class Resident:
    """One member, and what it has seen."""

    def __init__(self, number: int, folder: Path, peers: tuple[str, ...] = ()) -> None:
        """`folder`: of its membership, which was kept there (`join`)."""
        identity = key_of(number)
        self.peer = identity.peer_id
        private = PrivateMembership.load(MembershipFiles(folder), self.peer)
        self.admission = private.admission
        psk = private.files.load_psk()
        self.transport = Libp2pTransport(Libp2pConfig(), identity.seed, admission=self.admission, psk=psk)
        self.events: list[GossipEvent] = []
        self.updates: list[Update] = []
        self.closed: list[tuple[float, RoundView]] = []
        self.service = Witness(
            identity=identity,
            transport=self.transport,
            config=GossipConfig(peers=peers, **CONFIG),
            run=RUN,
            rng=random.Random(number),
            snapshot_source=self._snapshot,
            observer=self.events.append,
            private=private,
        )
        self.publishes = self.service.role is Role.TRAINER
        self.scope = trio.CancelScope()

    @property
    def address(self) -> str:
        return self.transport.addresses[0]

    def lines(self, *words: str) -> list[str]:
        """What the operator was told that has these words in it."""
        told = [event.detail for event in self.events if event.name == "warning"]
        return [line for line in told if all(word in line for word in words)]

    async def _snapshot(self) -> tuple[Head, bytes]:
        return self.service.head, payload_of(self.peer, 0)

    async def live(self, finished: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.service.run)
                nursery.start_soon(self._consume)
                if self.publishes:
                    nursery.start_soon(self.rounds, finished)
                task_status.started()

    async def _consume(self) -> None:
        async for update in self.service.updates:
            self.updates.append(update)
            self.service.accepted(update)

    async def rounds(self, finished: trio.Event) -> None:
        round_ = self.service.swarm_round() or 0
        await self.service.begin_epoch(epoch=int(time.time()), round=round_, snapshot=None)
        while not finished.is_set():
            round_ += 1
            await trio.sleep(PACE_S)
            if self.service.role is None:  # it has been put out, and knows it
                return
            await self.service.publish(
                round=round_, codec="none", payload=payload_of(self.peer, round_), steps=1, tokens=1
            )
            view = await self.service.close_round(round_, at_most_s=PATIENCE_S)
            self.closed.append((trio.current_time(), view))


class LiveSwarm:
    """Three members. `play` runs something in their event loop."""

    def __init__(self, folder: Path, psk: bytes | None = None) -> None:
        self.chain = swarm_of(ADMIN, "lab", None if psk is None else psk_fingerprint(psk))
        self.psk = None if psk is None else PresharedKey(psk)
        self.residents: list[Resident] = []
        self.used = Identity(b"\x55" * 32)
        self.used_invite = invited(self.chain, self.used)
        """An invite with one use, which the third member has taken."""
        self.finished = trio.Event()
        self._folder, self._psk = folder, psk
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._up = threading.Event()
        self._error: BaseException | None = None

    def play(self, what: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Await it beside the members, at most `PATIENCE_S`."""

        async def patiently() -> Any:
            with trio.fail_after(PATIENCE_S):
                return await what(*args)

        return trio.from_thread.run(patiently, trio_token=self._token)

    @property
    def peers(self) -> frozenset[PeerId]:
        return frozenset(each.peer for each in self.residents)

    def among_themselves(self) -> None:
        """Nobody else has a connection, a place among the neighbours or in the book, or ever came in."""
        self.play(self._among_themselves)

    async def _among_themselves(self) -> None:
        for each in self.residents:
            others = self.peers - {each.peer}
            assert each.transport.peers <= others
            assert each.service.neighbours().keys() <= others
            assert each.service.peers_known <= len(others)
            assert each.service.met <= others
            assert each.admission.cut() == frozenset()

    def round_s(self, count: int) -> float:
        """The median time of the next so many rounds of every member."""
        return float(self.play(self._round_s, count))

    async def _round_s(self, count: int) -> float:
        begun = [len(each.closed) for each in self.residents]
        await until(
            lambda: all(len(each.closed) > at + count for each, at in zip(self.residents, begun, strict=True)),
            PATIENCE_S,
        )
        return statistics.median(
            later - sooner
            for each, at in zip(self.residents, begun, strict=True)
            for (sooner, _), (later, _) in zip(each.closed[at:], each.closed[at + 1 :], strict=False)
        )

    def run(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._up.set()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for number in range(3):
                shows = redeemed(self.used_invite, self.used, key_of(number).peer_id) if number == 2 else None
                await self.admit(number, shows)
            await self.settled()
            self._up.set()
            await trio.sleep_forever()

    async def admit(self, number: int, shows: Certificate | None = None, role: Role = Role.TRAINER) -> Resident:
        """One more, by a certificate or appointed; the others are known to it."""
        peer, files = key_of(number).peer_id, MembershipFiles(self._folder / str(number))
        grant = appoint(ADMIN, self.chain.swarm, peer, role=role, issued_at=int(time.time()) - 3600)
        files.save_manifests(self.chain)
        files.save_certificate(shows or appointed(grant))
        if self._psk is not None and not (files.folder / "swarm.key").exists():
            files.save_psk(self._psk)
        return await self.start(number)

    async def start(self, number: int) -> Resident:
        """One that was admitted, with what it has on disk."""
        known = tuple(each.address for each in self.residents)
        one = Resident(number, self._folder / str(number), known)
        self.residents.append(one)
        assert self._nursery is not None
        await self._nursery.start(one.live, self.finished)
        return one

    async def settled(self) -> None:
        """All trainers are neighbours, and rounds go on."""
        trainers = [each for each in self.residents if each.publishes]
        await until(
            lambda: all(
                len(each.closed) > 1 and len(each.service.neighbours()) == len(trainers) - 1 for each in trainers
            ),
            PATIENCE_S,
        )

    def finish(self) -> None:
        """No more rounds: what was sent is received."""
        self.play(self._finish)

    async def _finish(self) -> None:
        self.finished.set()
        stats = [each.service.stats for each in self.residents]
        await until(
            lambda: (
                sum(each.payload_bytes_sent for each in stats) == sum(each.payload_bytes_received for each in stats)
            ),
            PATIENCE_S,
        )

    def stop(self) -> None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()


@contextmanager
def living_swarm(folder: Path, psk: bytes | None = None) -> Iterator[LiveSwarm]:
    """A swarm in a thread, with rounds going on; what it ended of is raised."""
    swarm = LiveSwarm(folder, psk)
    thread = threading.Thread(target=swarm.run)
    thread.start()
    try:
        assert swarm._up.wait(PATIENCE_S), "the swarm did not come up"
        if swarm._error is not None:
            raise swarm._error
        yield swarm
    finally:
        if swarm._token is not None:
            with suppress(trio.RunFinishedError):
                swarm._token.run_sync_soon(swarm.stop)
        thread.join(PATIENCE_S)
