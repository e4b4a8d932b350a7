"""A node that misbehaves: what an attack (`[attack]`, for experiments) changes when a node is put together.

An attack says which hooks it has (p2ptrain/attacks/base.py), and each is put where it belongs: another task to train
on, another strategy to publish by, a service that broadcasts more than an honest one. The rest of the node is honest.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import torch

from gossip.core.api import Head, Observer, RunInfo, SnapshotSource, StateSource, Tracked
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
"""How much of a signature is overwritten: enough for 4 billion different forgeries."""


def attack_of(section: AttackSection) -> Attack | None:
    """The attack of a node; None for an honest one. UsageError for one that no node can carry out."""
    attack = section.find()
    if attack is None or isinstance(attack, VectorAttack | ModelAttack | DataAttack | WireAttack):
        return attack
    message = f"the attack {section.name} tells each neighbour something else, and a node has one chain for all"
    raise UsageError(message, "it is for simulations; what a node can do of the kind is equivocation")


def poisoned(task: Task, attack: Attack | None) -> Task:
    """The task that the node trains on."""
    return attack.poison(task) if isinstance(attack, DataAttack) else task


def lying(strategy: SyncStrategy, attack: Attack | None, seed: int) -> SyncStrategy:
    """The strategy that the node publishes by."""
    if isinstance(attack, VectorAttack | ModelAttack):
        return liar_of(strategy, attack, generator=torch.Generator().manual_seed(seed))
    return strategy


def service_type(attack: Attack | None) -> Callable[..., GossipService]:
    """What makes the node's service, with the arguments of GossipService."""
    return partial(ByzantineService, attack) if isinstance(attack, WireAttack) else GossipService


class ByzantineService(GossipService):
    """Publishes as everybody does, and then broadcasts what the attack says."""

    def __init__(
        self,
        attack: WireAttack,
        *,
        identity: Identity,
        transport: Transport,
        config: GossipConfig,
        run: RunInfo,
        rng: random.Random,
        snapshot_source: SnapshotSource,
        tracked: Tracked,
        observer: Observer,
        private: PrivateMembership | None = None,
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
            private=private,
        )
        self._attack = attack
        self._forger = Forger(identity, Scope(swarm=config.named, run=run.run_id), run.genesis)
        self._to_all = transport.publish

    async def publish(
        self, *, round: int, codec: str, payload: bytes, steps: int, tokens: int, state: StateSource | None = None
    ) -> None:
        """The true update, and the misdeeds of its round."""
        before = self.head
        await super().publish(round=round, codec=codec, payload=payload, steps=steps, tokens=tokens, state=state)
        body = UpdateHeaderBody(round=round, kind="delta", codec=codec, size=len(payload), steps=steps, tokens=tokens)
        for raw in self._forger.broadcasts(self._attack.misdeeds(round), before, body):
            await self._to_all(raw)


class Forger:
    """Makes the bytes that no honest node would. Each is another one, so that none is passed over as a repetition."""

    def __init__(self, identity: Identity, scope: Scope, genesis: Digest) -> None:
        self._identity = identity
        self._scope = scope
        self._genesis = genesis
        self._numbers = itertools.count(1)

    def broadcasts(self, misdeeds: Misdeeds, before: Head, body: UpdateHeaderBody) -> Iterator[bytes]:
        """All of a round's, the true update being the successor of `before` with `body`."""
        for _ in range(misdeeds.twins):
            yield self.twin(before, body)
        for _ in range(misdeeds.epochs):
            yield self.first_link(before, body.round)
        if misdeeds.forgeries:
            template = self.twin(before, body)
            for _ in range(misdeeds.forgeries):
                yield self.forgery(template)

    def twin(self, before: Head, body: UpdateHeaderBody) -> bytes:
        """A well-signed successor of `before` with a payload that there is not."""
        address = digest_of(b"twin %d" % next(self._numbers))
        return self._signed(before.epoch, before.seq + 1, before.digest, address, body)

    def first_link(self, before: Head, round: int) -> bytes:
        """A well-signed beginning of a chain later than that of `before`, from the initial model."""
        body = UpdateHeaderBody(round=round, kind="genesis", genesis=self._genesis)
        return self._signed(before.epoch + next(self._numbers), 0, NO_DIGEST, NO_DIGEST, body)

    def forgery(self, envelope: bytes) -> bytes:
        """`envelope`, which ends in its signature, with another one that does not hold."""
        return envelope[:-FORGED_BYTES] + next(self._numbers).to_bytes(FORGED_BYTES, "big")

    def _signed(self, epoch: int, seq: int, prev: Digest, address: Digest, body: UpdateHeaderBody) -> bytes:
        statement = update_header_statement(epoch=epoch, seq=seq, prev=prev, address=address, body=body)
        return seal(self._identity, self._scope, statement).raw
