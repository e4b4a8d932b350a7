"""What closing a round of a group is, whatever the group does with its members' vectors: pack, announce, finish."""

from collections.abc import Callable
from typing import TypeVar

from node.training.divergence import diverged, why_refused
from node.training.executors import SideWork
from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.sync import RoundResult

MARK = b"\0"
MARK_CODEC = "met"
"""The codec that a header names whose payload is a mark without meaning."""

T = TypeVar("T")


async def packed(node: Node, pack: Callable[[], T]) -> T:
    """Return what `pack` makes of the round's own vector, beside the training. Raises RunError where that is not
    finite, or cannot be packed."""
    try:
        async with node.strategy_lock:
            with node.pace.work():
                return await node.executor.offload(pack, work=SideWork.ENCODE)
    except ValueError as error:
        raise diverged(node, why_refused(error)) from error


async def announce(node: Node, phase: Phase, payload: bytes, *, codec: str, size: int) -> None:
    """Announce the round by the next update header, with `size` bytes published for it."""
    await node.service.publish(
        round=node.state.round, codec=codec, payload=payload, steps=phase.steps, tokens=phase.tokens
    )
    node.counts.note_published(size)
    node.pace.took(node.peer_id, phase.steps)


async def finished(node: Node, finish: Callable[[], RoundResult]) -> RoundResult:
    """Return what `finish` makes of the round, beside the training. Models that were fetched to enter the run are
    dropped before."""
    async with node.strategy_lock:
        node.forget(node.estimates.forget_all_but(()))
        with node.pace.work():
            return await node.executor.offload(finish, work=SideWork.AGGREGATE)
