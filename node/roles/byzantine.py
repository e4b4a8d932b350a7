"""A node that misbehaves: what an attack (`[attack]`, for experiments) changes when a node is built.

An attack declares its hooks (p2ptrain/attacks/base.py). Each replaces one part of the node: the task that it trains on,
the strategy that it publishes with, or its service, which then broadcasts more than an honest one. The rest is honest.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from gossip.core.api import (
    Head,
    NewFile,
    Observer,
    Recorder,
    RegionLayout,
    RunInfo,
    SnapshotSource,
    StateSource,
    Tracked,
    unrecorded,
)
from gossip.core.config import GossipConfig
from gossip.core.digests import NO_DIGEST, digest_of
from gossip.core.envelope import Scope, seal
from gossip.core.identity import Identity
from gossip.core.ids import Digest
from gossip.core.statements import UpdateHeaderBody, update_header_statement
from gossip.membership.private_swarm import PrivateMembership
from gossip.service import GossipService
from gossip.transport.base import Transport
from node.config.schema import AttackSection
from node.system.errors import UsageError
from p2ptrain.attacks import Attack, DataAttack, Misdeeds, ModelAttack, VectorAttack, WireAttack
from p2ptrain.sync import SyncStrategy, liar_of
from p2ptrain.tasks import Task

FORGED_BYTES = 4
"""Bytes of a signature that are overwritten: enough for 4 billion different forgeries."""


def attack_of(section: AttackSection) -> Attack | None:
    """Return the attack of a node; None for an honest one. Raises UsageError for one that no node can carry out."""
    attack = section.find()
    if isinstance(attack, DataAttack) and section.from_round:
        raise UsageError(f"the attack {section.name} trains on other data from the start", "leave out from_round")
    if attack is None or isinstance(attack, VectorAttack | ModelAttack | DataAttack | WireAttack):
        return attack
    message = f"the attack {section.name} tells each neighbour something else, and a node has one chain for all"
    raise UsageError(message, "it is for simulations; what a node can do of the kind is equivocation")


def poisoned(task: Task, attack: Attack | None) -> Task:
    """Return the task that the node trains on."""
    return attack.poison(task) if isinstance(attack, DataAttack) else task


def lying(strategy: SyncStrategy, attack: Attack | None, seed: int, *, from_round: int = 0) -> SyncStrategy:
    """Return the strategy that the node publishes with; it lies from `from_round` on."""
    if isinstance(attack, VectorAttack | ModelAttack):
        return liar_of(strategy, attack, generator=torch.Generator().manual_seed(seed), from_round=from_round)
    return strategy


def service_type(attack: Attack | None, *, from_round: int = 0) -> Callable[..., GossipService]:
    """Return the factory of the node's service; it takes the arguments of GossipService."""
    if isinstance(attack, WireAttack):
        return partial(ByzantineService, attack, from_round=from_round)
    return GossipService


class ByzantineService(GossipService):
    """Publishes as an honest service does, and then broadcasts what the attack adds."""

    def __init__(
        self,
        attack: WireAttack,
        *,
        from_round: int = 0,
        identity: Identity,
        transport: Transport,
        config: GossipConfig,
        run: RunInfo,
        rng: random.Random,
        snapshot_source: SnapshotSource,
        tracked: Tracked,
        observer: Observer,
        unix_time: Callable[[], float] = time.time,
        private: PrivateMembership | None = None,
        new_file: NewFile | None = None,
        layout: RegionLayout = RegionLayout(),
        recorder: Recorder = unrecorded,
        sums_begun: Path | None = None,
    ) -> None:
        super().__init__(
            identity=identity,
            transport=transport,
            config=config,
            run=run,
            rng=rng,
            snapshot_source=snapshot_source,
            tracked=tracked,
            observer=observer,
            unix_time=unix_time,
            private=private,
            new_file=new_file,
            layout=layout,
            recorder=recorder,
            sums_begun=sums_begun,
        )
        self._attack = attack
        self._from_round = from_round
        self._forger = Forger(identity, Scope(swarm=config.named, run=run.run_id), run.genesis)
        self._to_all = transport.publish

    async def publish(
        self,
        *,
        round: int,
        codec: str,
        payload: bytes,
        steps: int,
        tokens: int,
        state: StateSource | None = None,
        layers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Publish the true update, and then the round's misdeeds, once it has begun to lie."""
        before = self.head
        await super().publish(
            round=round, codec=codec, payload=payload, steps=steps, tokens=tokens, state=state, layers=layers
        )
        if round < self._from_round:
            return
        body = UpdateHeaderBody(round=round, kind="delta", codec=codec, size=len(payload), steps=steps, tokens=tokens)
        for raw in self._forger.broadcasts(self._attack.misdeeds(round), before, body):
            await self._to_all(raw)


class Forger:
    """Makes messages that no honest node would send. All of them differ, so that none is ignored as a duplicate."""

    def __init__(self, identity: Identity, scope: Scope, genesis: Digest) -> None:
        self._identity = identity
        self._scope = scope
        self._genesis = genesis
        self._numbers = itertools.count(1)

    def broadcasts(self, misdeeds: Misdeeds, before: Head, body: UpdateHeaderBody) -> Iterator[bytes]:
        """Yield all false messages of a round, whose true update is the successor of `before` with `body`."""
        for _ in range(misdeeds.twins):
            yield self.twin(before, body)
        for _ in range(misdeeds.epochs):
            yield self.first_link(before, body.round)
        if misdeeds.forgeries:
            template = self.twin(before, body)
            for _ in range(misdeeds.forgeries):
                yield self.forgery(template)

    def twin(self, before: Head, body: UpdateHeaderBody) -> bytes:
        """Return a validly signed successor of `before`, whose payload does not exist."""
        address = digest_of(b"twin %d" % next(self._numbers))
        return self._signed(before.epoch, before.seq + 1, before.digest, address, body)

    def first_link(self, before: Head, round: int) -> bytes:
        """Return a validly signed first link of a chain later than that of `before`, from the initial model."""
        body = UpdateHeaderBody(round=round, kind="genesis", genesis=self._genesis)
        return self._signed(before.epoch + next(self._numbers), 0, NO_DIGEST, NO_DIGEST, body)

    def forgery(self, envelope: bytes) -> bytes:
        """Return `envelope` with its signature, which is its end, replaced by an invalid one."""
        return envelope[:-FORGED_BYTES] + next(self._numbers).to_bytes(FORGED_BYTES, "big")

    def _signed(self, epoch: int, seq: int, prev: Digest, address: Digest, body: UpdateHeaderBody) -> bytes:
        statement = update_header_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body)
        return seal(self._identity, self._scope, statement).raw
