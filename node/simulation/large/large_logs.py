"""Logs of some nodes of a large simulation, in the folders and words of real ones: `report` and `page` read them.

A log of each of thousands would be gigabytes that nobody looks at: the swarm's are of those whose held-out loss is
measured (`EVALUATED` in large_swarm.py), which the seed draws among the honest. What this mode does not have (memory,
refusals, times of a processor) is left empty in them.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from node.events.event_types import Evaluated, Finished, Interrupted, LearnerStarted, RoundTrained
from node.events.log import EventLog
from node.simulation.large.large_node import LargeNode
from node.simulation.member import UNIX_START
from node.system.run_dir import EVENTS, make_dir
from p2ptrain.sync import RoundResult
from p2ptrain.tasks import Task


class LargeLogs:
    """Writes `FOLDER/NODE/events.jsonl` of these nodes. A context manager: the files are closed in the end. RunError
    where one cannot be written."""

    def __init__(self, folder: Path, task: Task, parameters: int) -> None:
        self._folder = folder
        self._task = task
        self._parameters = parameters
        self._logs: dict[int, EventLog] = {}
        self._files = ExitStack()
        self._now = 0.0
        """The virtual second of the event that is written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def started(self, node: LargeNode, now: float) -> None:
        """It starts, or is back."""
        if node.index not in self._logs:
            make_dir(folder := self._folder / node.name)
            log = EventLog(folder / EVENTS, clock=lambda: UNIX_START + self._now)
            self._logs[node.index] = self._files.enter_context(log)
        sync = node.config.sync
        self._now = now
        self._logs[node.index](
            LearnerStarted(
                role=node.config.node.role,
                peer_id=node.peer_id,
                addresses=[],
                pid=None,
                run_dir=None,
                metrics_url=None,
                token_file=None,
                device="cpu",
                parameters=self._parameters,
                task=self._task.name,
                genesis="",
                metric=self._task.metric,
                units={},
                aggregator=sync.aggregator,
                compressor=sync.compressor,
                f=sync.f,
                robust_margin=None,
            )
        )

    def closed(
        self, node: LargeNode, now: float, staleness: dict[str, int], result: RoundResult, *, by: str, sent: int
    ) -> None:
        """A round is closed, by the quorum, the deadline or alone; all in all `sent` bytes were sent."""
        began, tokens = node.told_s, node.config.train.batch_size * node.global_step
        self._now = now
        self._logs[node.index](
            RoundTrained(
                round=node.round,
                rounds=node.config.train.rounds,
                neighbours=len(node.neighbours),
                members=result.members,
                fresh=sum(lag == 0 for lag in staleness.values()),
                closed_by=by,
                payload_bytes_sent=node.payload_bytes,
                payload_bytes_received=0,
                snapshot_bytes_sent=0,
                snapshot_bytes_received=0,
                accepted=0,
                rejected=0,
                rejected_by_reason=None,
                robust_margin=None,
                round_s=now - began,
                collect_s=None,
                staleness=dict(staleness),
                peers_known=0,
                rss_bytes=None,
                bytes_sent=sent,
                train_loss=node.loss_sum / node.loss_steps if node.loss_steps else None,
                steps=node.loss_steps,
                inner_steps=node.config.train.steps_in(min(node.round, node.config.train.rounds - 1)),
                tokens=tokens,
                tokens_per_s=tokens / node.busy_s if node.busy_s > 0 else 0.0,
                updates_in_time=None,
                exchange_s=node.exchange_s,
                payload_bytes=node.message_bytes,
                compression_ratio=None,
                consensus_distance=result.consensus_distance,
                clipped=list(result.clipped),
                link_bytes_per_s=None,
                rung="",
                close_s=None,
                publish_s=None,
                aggregate_s=None,
                step_s=node.step_s,
                compute_s=node.busy_s,
                weights=None,
                energy_j={},
                skipped_steps=0,
                late_steps=0,
                utilization=None,
                cpu_s=None,
                gpu_share=None,
                gpu_memory_bytes=None,
                learning_rate=None,
            )
        )
        node.told_s, node.loss_sum, node.loss_steps = now, 0.0, 0

    def evaluated(self, node: LargeNode, now: float, loss: float) -> None:
        """Its model's held-out loss was measured."""
        self._now = now
        self._logs[node.index](Evaluated(round=node.round, eval_loss=loss, output_divergence=None, own={}))

    def ended(self, node: LargeNode, now: float) -> None:
        """It has finished, or is gone: for good or for a while."""
        self._now = now
        self._logs[node.index](Finished(summary=None) if node.finished else Interrupted(summary=None))
