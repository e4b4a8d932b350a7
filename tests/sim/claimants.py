"""Peers that train nothing and claim what they like: a round, and a model of their own. All else they do is honest."""

import random
from dataclasses import dataclass, field, replace

import torch
import trio
from sim_swarm import Member, Swarm

from gossip.core.api import Head, Tracked
from gossip.core.identity import Identity
from gossip.core.ids import PeerId
from gossip.service import GossipService
from p2ptrain import compress


@dataclass
class Claimant:
    """One such peer, member of the run for as long as its `scope` lasts."""

    service: GossipService
    address: str
    model: bytes
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def peer(self) -> PeerId:
        return self.service._engine.me

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.service.run)
                nursery.start_soon(self._take_everything)
                task_status.started()

    async def say(self, round: int, *, epoch: int = 10**6) -> None:
        """Begin a chain at this round, with the own model."""
        await self.service.begin_epoch(epoch=epoch, round=round, snapshot=self.model)

    async def keep_up(self, like: Member, *, every_s: float) -> None:
        """Publish an update of nothing for each round that an honest node enters, as a member that trains would."""
        payload = compress.get("q2").encode(torch.zeros(like.node.inner.trainer.numel))
        at = like.node.state.round
        await self.say(at)
        while not like.done.is_set():
            await trio.sleep(every_s)
            if like.node.state.round > at:
                at += 1
                await self.service.publish(round=at, codec="q2", payload=payload, steps=5, tokens=80)

    async def leave(self) -> None:
        await self.service.say_goodbye(1.0)
        self.scope.cancel()

    async def _take_everything(self) -> None:
        async for update in self.service.updates:
            self.service.accepted(update)


async def claim(
    it: Swarm,
    nursery: trio.Nursery,
    like: Member,
    number: int,
    *,
    value: float,
    peers: tuple[str, ...] | None = None,
    network: str | None = "",
) -> Claimant:
    """A claimant in the run of `like`, whose model is `value` everywhere. `peers`: whom it dials; None: everybody."""
    key = Identity((1000 + number).to_bytes(32, "big"))
    transport = it.network.attach(key.peer_id, network=network)
    everybody = tuple(member.transport.addresses[0] for member in it.members.values() if not member.done.is_set())
    trainer = like.node.inner.trainer
    model = (trainer.vector() * 0 + value).numpy().tobytes()

    async def source() -> tuple[Head, bytes]:
        return service.head, model

    async def nothing(peer: PeerId) -> bytes | None:
        return None

    service = GossipService(
        identity=key,
        transport=transport,
        config=replace(like.node.service._context.config, peers=everybody if peers is None else peers),
        run=like.node.service._run_info,
        rng=random.Random(number),
        snapshot_source=source,
        tracked=Tracked(estimate=nothing),
    )
    claimant = Claimant(service, transport.addresses[0], model)
    await nursery.start(lambda *, task_status: claimant.live(task_status=task_status))
    return claimant
