"""A node's parts, which the loops in `sync_loop.py` and `joining.py` share. What rounds change is in `run_state.py`."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import trio

from gossip.eager_lock import EagerLock
from gossip.service import GossipService
from node.config.schema import Config
from node.events.journal import Journal
from node.metrics.energy import Meter
from node.privacy.budget import PrivacyBudget
from node.selection.chooser import Chooser
from node.system.process_use import ProcessUse
from node.training.averagers.base import Averager
from node.training.checkpoint import CheckpointStore
from node.training.epochs import EpochCounter
from node.training.estimates import HeldEstimates
from node.training.executors import Executor
from node.training.executors.base import SideWork, Spent, not_asked
from node.training.executors.thread import ThreadExecutor
from node.training.former_member import Outside
from node.training.inner_loop import InnerLoop
from node.training.pace import Pace
from node.training.part_times import PartTimes
from node.training.region_turns import RegionTurns
from node.training.run_state import RunState
from node.training.run_watch import RunWatch
from node.training.snapshots import SnapshotCutter
from node.training.update_counts import UpdateCounts
from node.visits.visitors import Visitors
from p2ptrain.sync.base import SyncStrategy
from p2ptrain.training.late_average import LateAverage

if TYPE_CHECKING:
    from node.training.pausing import Pauses
    from node.training.shift_watching import Shifts
    from node.training.warming_up import WarmUp

SMALL_MODEL = 1 << 15
"""Parameters up to which encoding, decoding and aggregating (1.1, 0.3 and 3.4 ms, measured) run on the event loop. A
hand-over to a thread and back takes 20 to 50 ms where more threads compute than there are cores, and a round has one
for each neighbour, one after another."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Node:
    """The parts of one node, built by roles/assembly.py. None is replaced while the node runs."""

    state: RunState
    """Its place in the run: everything that rounds change."""
    counts: UpdateCounts
    """Counts of updates, own and neighbours'."""
    watch: RunWatch
    """Warns the operator of what goes wrong while it trains."""
    executor: Executor
    """Computes beside the event loop."""
    inner: InnerLoop
    strategy: SyncStrategy
    averager: Averager
    """Closes the strategy's rounds."""
    estimates: HeldEstimates
    """Which peers' estimates the strategy holds. Use it under the strategy's lock."""
    regions: RegionTurns | None = None
    """Averages with other regions; None for a strategy that cannot."""
    late: LateAverage
    """The mean of late weights, which is evaluated and exported."""
    strategy_lock: EagerLock = field(default_factory=EagerLock)
    service: GossipService
    checkpoints: CheckpointStore
    journal: Journal
    epochs: EpochCounter
    """Which chain epochs this identity has used."""
    peer_id: str
    genesis: str = ""
    """The first digits of the initial model's digest: the same at all members."""
    refusals: deque[str]
    """The newest reasons for which peers refused us, or we them."""
    outside: Outside | None = None
    """Decides when this node has to stop as a former member of its swarm. None in an open swarm."""
    meter: Meter | None = None
    """Measures the energy of training; None: it is not measured."""
    use: ProcessUse = field(default_factory=ProcessUse)
    """CPU time and memory of its processes."""
    privacy: PrivacyBudget | None = None
    """What its data may tell, and have told; None: nothing protects them."""
    pauses: "Pauses | None" = None
    """When it trains; None: always."""
    chooser: Chooser | None = None
    """Chooses whose updates are fetched first; None: everybody's alike."""
    shifts: "Shifts | None" = None
    """Watches its own data for shift; None: nothing does."""
    warm_up: "WarmUp | None" = None
    """Shares statistics of its data, and warms up by others'; None: neither."""
    visitors: Visitors | None = None
    """Devices that are no members, and what they left; None: there are none."""
    snapshots: SnapshotCutter
    """Cuts the node's public model."""
    closing_times: PartTimes = field(default_factory=PartTimes)
    """Durations of the parts of the newest closing."""

    @property
    def config(self) -> Config:
        """Return the configuration that applies now."""
        return self.state.config

    @property
    def pace(self) -> Pace:
        """Return the pace: how many steps a round has, and how long each peer takes for one."""
        return self.state.pace

    def next_epoch(self) -> int:
        """Return a chain epoch above all used before, already on disk. Raises RunError when the disk does not take
        it."""
        return self.epochs.advance()

    @property
    def utilization(self) -> float:
        """Return the share of the time since training began in which this node computed on the task."""
        wall = self.journal.wall_seconds
        return self.inner.compute_seconds / wall if wall > 0 else 0.0

    async def compute(self, function: Callable[[], T], spent: Spent = not_asked, work: SideWork = SideWork.OTHER) -> T:
        """Run one piece of a round's work on vectors, on the event loop where the model is small and nothing is
        evaluated, otherwise in the executor. `spent` is called with the seconds that it took."""
        is_short = self.inner.trainer.numel <= SMALL_MODEL and not self.config.sync.needs_judge
        if is_short and isinstance(self.executor, ThreadExecutor):
            await trio.lowlevel.checkpoint()
            return self.executor.here(function, spent)
        return await self.executor.offload(function, spent, work)

    def queues(self) -> dict[str, int]:
        """Return the current depth of each queue: the network's, tasks that wait for the strategy (one at a time may
        use it), trained rounds that are not closed yet (0 or 1), and corrections that training has not applied yet."""
        network: dict[str, int] = {str(name): depth for name, depth in self.service.queues().items()}
        return network | {
            "strategy": self.strategy_lock.waiting,
            "closing": int(self.state.closing),
            "corrections": self.inner.waiting,
        }

    def forget(self, peers: Iterable[str]) -> None:
        """Let the strategy forget these peers, and the pace of their rounds. Call it under the strategy's lock."""
        for peer in peers:
            self.strategy.forget(peer)
            self.pace.took(peer, None)
