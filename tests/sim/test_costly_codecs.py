"""A neighbour that publishes twenty updates a second by the slowest codec there is: what it takes, and what it spoils.

Time is virtual, so that reading is given a price: what q2 and the slowest codec take for 3.2M parameters, eighteen
times as long. One thing at a time is read, as in a real node.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import pytest
import torch
import trio
from sim_strangers import stranger
from sim_swarm import Member, put_part, swarm

from gossip.core.api import NeighbourStatus
from gossip.core.work_limit import PEER_BURST_S, PEER_SHARE, ROUND_UPDATES, ROUNDS_SAVED
from node.training.executors import InlineExecutor
from node.training.executors.base import SideWork, Spent, not_asked
from node.training.node import Node
from p2ptrain import compress

T = TypeVar("T")

NODES = 5
ROUNDS = 30
STEP_S = 0.2
STEPS = 5
PER_S = 20.0
SLOWEST = "lossless+topk"
READ_S = {"q2": 0.005, SLOWEST: 18 * 0.005}
WRITE_S = 0.010
"""By q2."""


class PricedExecutor(InlineExecutor):
    """Reading takes virtual time, by codec, and so does writing; all else none."""

    def __init__(self) -> None:
        super().__init__(STEP_S)
        self.price = 0.0
        self._one = trio.Lock()

    async def offload(self, function: Callable[[], T], spent: Spent = not_asked, work: SideWork = SideWork.OTHER) -> T:
        async with self._one:
            self.price = 0.0
            try:
                return function()
            finally:
                await trio.sleep(self.price)
                spent(self.price)


@dataclass
class Priced:
    """A node whose reading and writing has its price; `read`: seconds by peer, since its first round."""

    read: dict[str, float] = field(default_factory=dict)

    def put_into(self, node: Node) -> None:
        executor = PricedExecutor()
        put_part(node, "executor", executor)
        apply, encode = node.strategy.apply, node.strategy.encode

        def priced_apply(peer: str, codec: str, payload: bytes) -> None:
            executor.price = READ_S[codec]
            if node.state.round > 0:  # before it has trained there is nothing that reading holds up
                self.read[peer] = self.read.get(peer, 0.0) + executor.price
            apply(peer, codec, payload)

        def priced_encode(theta_d: torch.Tensor, **rest: Any) -> Any:
            executor.price = WRITE_S
            return encode(theta_d, **rest)

        node.strategy.apply = priced_apply  # type: ignore[method-assign]
        node.strategy.encode = priced_encode  # type: ignore[method-assign]


@dataclass
class Outcome:
    members: list[Member]
    priced: list[Priced]
    liar: str = ""
    tracked: list[bool] = field(default_factory=list)

    @property
    def loss(self) -> float:
        return fmean(member.eval_loss for member in self.members)

    def seconds(self, number: int) -> float:
        """From a node's first closed round to its last."""
        rounds = self.members[number].told("round")
        return float(rounds[-1]["at"] - rounds[0]["at"])

    def share(self, number: int) -> float:
        """Of that time, what a node has spent on reading what the liar published."""
        return self.priced[number].read.get(self.liar, 0.0) / self.seconds(number)


async def play(folder: Path, *, liar: bool) -> Outcome:
    async with swarm(folder) as members:
        priced = [Priced() for _ in range(NODES)]
        train = {"rounds": ROUNDS, "eval_every": ROUNDS, "inner_steps": STEPS, "learning_rate": 1e-2}
        nodes = [
            await members.start(
                f"n{number}",
                wait_for=NODES - 1,
                change=priced[number].put_into,
                node={"shard_index": number, "shard_count": NODES},
                train=train,
                sync={"f": 1},
            )
            for number in range(NODES)
        ]
        outcome = Outcome(nodes, priced)
        if not liar:
            await members.finished()
            return outcome
        genesis = nodes[0].node.strategy.snapshot()  # where nothing moves from
        async with stranger(members, nodes[0], 1, model=genesis) as service:
            outcome.liar = str(service._engine.me)
            await service.wait_for_neighbours(NODES, 60.0)
            with trio.CancelScope() as publishing:

                async def until_all_are_done() -> None:
                    await members.finished()
                    publishing.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(until_all_are_done)
                    await flood(service, nodes, outcome)
        return outcome


async def flood(service: Any, nodes: list[Member], outcome: Outcome) -> None:
    """Well-formed updates, each of the round in which the swarm is, that say that nothing has moved."""
    numel = nodes[0].node.inner.trainer.numel
    payload = compress.get(SLOWEST).encode(torch.zeros(numel))
    await service.begin_epoch(epoch=1, round=0, snapshot=None)
    while True:
        await service.publish(
            round=nodes[0].node.state.round, codec=SLOWEST, payload=payload, steps=STEPS, tokens=STEPS * 16
        )
        theirs: list[NeighbourStatus] = [
            member.node.service.neighbours()[service._engine.me]
            for member in nodes
            if service._engine.me in member.node.service.neighbour_ids
        ]
        outcome.tracked.append(all(it.tracked for it in theirs))
        await trio.sleep(1 / PER_S)


@pytest.mark.thorough
async def test_the_slowest_codec_twenty_times_a_second_takes_a_small_share_and_spoils_nothing(
    tmp_path: Path, autojump_clock: object
) -> None:
    (tmp_path / "clean").mkdir()
    (tmp_path / "flooded").mkdir()
    clean = await play(tmp_path / "clean", liar=False)
    flooded = await play(tmp_path / "flooded", liar=True)
    bound = ROUND_UPDATES * WRITE_S / (STEPS * STEP_S) + PEER_SHARE
    bound += (PEER_BURST_S + ROUNDS_SAVED * WRITE_S + READ_S[SLOWEST]) / clean.seconds(0)
    assert PER_S * READ_S[SLOWEST] > 1.0, "all of a thread, if it were read as it comes"
    for number, member in enumerate(flooded.members):
        assert 0.0 < flooded.share(number) <= bound < 0.1
        (told,) = member.told("throttled")
        assert told["peer"] == flooded.liar
        assert "90.0 ms to read, and ours 10.0 to write" in told["detail"]
        assert not member.told("banned")
        assert len(member.told("round")) == ROUNDS
        assert all(fields["members"] >= NODES for fields in member.told("round")[2:]), "nobody honest is left out"
        assert flooded.seconds(number) < 1.05 * clean.seconds(number), "rounds take as long"
    assert flooded.loss <= 1.15 * clean.loss
    assert fmean(flooded.tracked[20:]) > 0.5, "it is followed all the same, by snapshots where it must be"
