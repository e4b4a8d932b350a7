"""A node's parts: what the loops in `sync_loop.py` and `joining.py` share. What rounds change is in `run_state.py`."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from gossip.service import GossipService
from node.config.schema import Config
from node.events.journal import Journal
from node.metrics.energy import Meter
from node.training.averagers.base import Averager
from node.training.checkpoint import CheckpointStore
from node.training.epochs import EpochCounter
from node.training.estimates import HeldEstimates
from node.training.executors import Executor
from node.training.executors.base import Spent, not_asked
from node.training.executors.thread import ThreadExecutor
from node.training.former_member import Outside
from node.training.inner_loop import InnerLoop
from node.training.pace import Pace
from node.training.part_times import PartTimes
from node.training.run_state import RunState
from node.training.run_watch import RunWatch
from node.training.update_counts import UpdateCounts
from p2ptrain.sync.base import SyncStrategy

SMALL_MODEL = 1 << 15
"""Parameters up to which encoding, decoding and aggregating (1.1, 0.3 and 3.4 ms, measured) are done on the event loop.
The way to a thread and back takes 20 to 50 ms where more threads want to compute than there are cores, and there are as
many in a row as neighbours."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Node:
    """The parts of one node, put together by roles/assembly.py. None is exchanged while the node lives."""

    state: RunState
    """Where it is in the run: what rounds change."""
    counts: UpdateCounts
    """Of updates, own and neighbours'."""
    watch: RunWatch
    """Tells the operator of what goes wrong meanwhile."""
    executor: Executor
    """Computes beside the event loop."""
    inner: InnerLoop
    strategy: SyncStrategy
    averager: Averager
    """Closes the strategy's rounds."""
    estimates: HeldEstimates
    """Whose estimates the strategy holds. Under the strategy's lock."""
    strategy_lock: trio.Lock = field(default_factory=trio.Lock)
    service: GossipService
    checkpoints: CheckpointStore
    journal: Journal
    epochs: EpochCounter
    """Which chain epochs this identity has used."""
    peer_id: str
    genesis: str = ""
    """Of the initial model, the first digits of its digest: all members have the same."""
    refusals: deque[str]
    """Why peers refused us, or we them, of late."""
    outside: Outside | None = None
    """Knows when this node is to stop, as its swarm has put it out. None in an open swarm."""
    meter: Meter | None = None
    """What training costs in energy; None: nobody measures."""
    closing_times: PartTimes = field(default_factory=PartTimes)
    """Of the newest closing."""

    @property
    def config(self) -> Config:
        """The configuration as it holds now."""
        return self.state.config

    @property
    def pace(self) -> Pace:
        """How many steps a round has, and who takes how long for it."""
        return self.state.pace

    def next_epoch(self) -> int:
        """A chain epoch above every one used before, already on disk. RunError when the disk does not take it."""
        return self.epochs.advance()

    @property
    def utilization(self) -> float:
        """Share of the time since training began in which this node computed on the task."""
        wall = self.journal.wall_seconds
        return self.inner.compute_seconds / wall if wall > 0 else 0.0

    async def compute(self, function: Callable[[], T], spent: Spent = not_asked) -> T:
        """Run one piece of a round's work on vectors: on the event loop where the model is small, and beside it by the
        executor where it is not. `spent` is told what it took."""
        if self.inner.trainer.numel <= SMALL_MODEL and isinstance(self.executor, ThreadExecutor):
            await trio.lowlevel.checkpoint()
            return self.executor.here(function, spent)
        return await self.executor.offload(function, spent)

    def queues(self) -> dict[str, int]:
        """What waits or is under way now: the network's queues, tasks that wait for the strategy (one at a time may use
        it), trained rounds that are not closed yet (0 or 1), and corrections that training has yet to take up."""
        network: dict[str, int] = {str(name): depth for name, depth in self.service.queues().items()}
        return network | {
            "strategy": self.strategy_lock.statistics().tasks_waiting,
            "closing": int(self.state.closing),
            "corrections": self.inner.waiting,
        }

    def forget(self, peers: Iterable[str]) -> None:
        """Let the strategy forget these, and the pace of their rounds. Under the strategy's lock."""
        for peer in peers:
            self.strategy.forget(peer)
            self.pace.took(peer, None)
