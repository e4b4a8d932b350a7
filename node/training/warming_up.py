"""Class statistics of the node's data for newcomers, and its own warm-up where it is one with few examples.

    a member:    own examples ── (privacy ledger) ── noise ── statement, kept in a file ── neighbours that ask
    a newcomer:  the swarm's model ── neighbours' statements ── trimmed means ── synthetic examples ── local parameters

Only local parameters are warmed up: they are new, while the shared ones are the swarm's, which know its classes.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gossip.core.atomic_file import write_atomic
from gossip.core.limits import MAX_STATISTICS_BYTES
from node.config.schema import Config
from node.config.warm_up_section import WarmUpConfig
from node.events.event_types import StatisticsShared, WarmedUp, WarningEvent
from node.privacy.budget import PrivacyBudget
from node.system.errors import RunError, UsageError, cannot_write
from node.training.node import Node
from p2ptrain.privacy.base import Release
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.training import Learner, Trainer
from p2ptrain.training.warm_up import WarmUpTask
from p2ptrain.warm_up import ClassStatistics, SharedStatistics, parse_statistics, robust_statistics
from p2ptrain.warm_up.class_statistics import encoded_bytes, release_of

_NOISE: Final = struct.Struct("<d")
"""Before a kept statement: by how much it was noised, whatever is set since."""


@dataclass(frozen=True)
class StatedData:
    """What a node states of its data."""

    payload: bytes
    noise: float | None
    """As `StatisticsShared.noise`."""


class WarmUp:
    """What a node shares of its data, and how it begins. `file` keeps a noised statement, so that it is paid for once;
    None: nothing keeps it."""

    def __init__(
        self,
        settings: WarmUpConfig,
        trainer: Trainer,
        noise: float | None,
        file: Path | None,
        *,
        first_round: Release | None = None,
    ) -> None:
        """`noise`: of the statement, where the data are protected; None: they are not. `first_round`: what that spends.
        TaskError for another task than classification of real-valued inputs; UsageError where a statement of its inputs
        would be too large."""
        self.settings, self.trainer, self.noise, self._file = settings, trainer, noise, file
        self._first_round = [] if first_round is None else [first_round]
        self.task = WarmUpTask(trainer.task, trainer.shard)
        size = encoded_bytes(self.task.classes, self.task.coordinates)
        if size > MAX_STATISTICS_BYTES:
            shape = f"{self.task.classes} classes of {self.task.coordinates} numbers"
            raise UsageError(f"[warm_up]: statistics of {shape} have {size} bytes, above {MAX_STATISTICS_BYTES}")

    def is_for(self, node: Node) -> bool:
        """Return whether this node is to warm up: it has taken the swarm's model, and has few examples."""
        return node.state.round > 0 and self.task.examples < self.settings.below

    def statement(self, budget: PrivacyBudget | None) -> StatedData | None:
        """Return what the node states of its data; None where its budget has no place for it beside a first round.
        Where the data are protected, that is written down before any noise is drawn, and the statement is kept for the
        next start. `budget`: None in a simulation as well, where nobody counts."""
        if self.noise is None:
            return StatedData(self.task.sums().statistics().encode(), None)
        if (kept := self._kept()) is not None:
            assert kept.noise is not None, "what has none is not kept"
            release = release_of(kept.noise)  # a ledger that was lost has it written anew
            return kept if budget is None or budget.has_paid_for(release) or self._pays(budget, release) else None
        sums, release = self.task.sums(), release_of(self.noise)
        if budget is not None and not budget.allows(budget.with_release(release, *self._first_round)):
            return None
        self._keep(bytes(2 * (_NOISE.size + encoded_bytes(self.task.classes, self.task.coordinates))))
        if budget is not None and not self._pays(budget, release):
            return None
        stated = StatedData(sums.noised(self.noise, SecretRandom()).encode(), self.noise)
        self._keep(_NOISE.pack(self.noise) + stated.payload)
        return stated

    def heard(self, statements: Mapping[str, bytes], f: int) -> tuple[SharedStatistics | None, list[str]]:
        """Return what the neighbours' statements say together, and whose are none of this task."""
        found: list[ClassStatistics] = []
        others: list[str] = []
        for peer, payload in statements.items():
            try:
                found.append(parse_statistics(payload, classes=self.task.classes, coordinates=self.task.coordinates))
            except ValueError:
                others.append(peer)
        return robust_statistics(found, f=f), others

    def train(self, statistics: SharedStatistics) -> float:
        """Train the local parameters, and return the newest loss."""
        trainer, settings = self.trainer, self.settings
        batches = self.task.batches(
            statistics,
            steps=settings.steps,
            size=trainer.config.batch_size,
            own_share=0.0 if trainer.is_private else settings.own_share,
            seed=trainer.data_seed,
        )
        return trainer.train_local(batches, settings.learning_rate)

    def _pays(self, budget: PrivacyBudget, release: Release) -> bool:
        """Write it down, where a first round is left after it; return whether it was."""
        if not budget.allows(budget.with_release(release, *self._first_round)):
            return False
        budget.spend(release)
        return True

    def _keep(self, data: bytes) -> None:
        """Write the file. It is done once with zeros, and room to replace them, before anything is paid: a disk that
        is full would have every start pay anew."""
        if self._file is None:
            return
        try:
            write_atomic(self._file, data)
        except OSError as error:
            raise cannot_write(self._file, error, "and start the node again") from error

    def _kept(self) -> StatedData | None:
        """Return the statement of an earlier start; None where there is none of this task."""
        if self._file is None:
            return None
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunError(f"cannot read {self._file}: {error.strerror}", "make it a file that it may read") from error
        try:
            (noise,) = _NOISE.unpack(data[: _NOISE.size])
            payload = data[_NOISE.size :]
            parse_statistics(payload, classes=self.task.classes, coordinates=self.task.coordinates)
        except (struct.error, ValueError):
            return None
        return StatedData(payload, noise) if 0 < noise < math.inf else None


def warm_up_for(config: Config, learner: Learner, file: Path | None) -> WarmUp | None:
    """Return what shares statistics and warms up; None for a node that does neither. UsageError or TaskError where it
    cannot."""
    if not config.warm_up.on or config.node.role != "trainer":
        return None
    if not isinstance(learner, Trainer):
        message = "[warm_up] wants a task that the node trains itself, in one process"
        raise UsageError(message, "leave node.lane at thread, or leave [warm_up] out")
    noise = (config.warm_up.noise or config.privacy.noise) if config.privacy.on else None
    return WarmUp(config.warm_up, learner, noise, file, first_round=learner.release_of(config.train.steps_in(0)))


async def share_statistics(node: Node) -> None:
    """Give this node's statistics to every neighbour that asks, from now on, where it is to."""
    warm_up = node.warm_up
    if warm_up is None or not warm_up.settings.share:
        return
    stated = await node.executor.offload(lambda: warm_up.statement(node.privacy))
    if stated is None:
        message = "no class statistics are shared: with a first round they would spend more than privacy.epsilon allows"
        node.journal.emit(WarningEvent(message=message, about="warm_up"))
        return
    node.service.share_statistics(stated.payload)
    node.journal.emit(StatisticsShared(bytes=len(stated.payload), noise=stated.noise))


async def warm_up_newcomer(node: Node) -> None:
    """Train the local parameters on synthetic examples, before the first round, where this node is to."""
    warm_up = node.warm_up
    if warm_up is None or not warm_up.is_for(node):
        return
    await node.executor.drive(node.inner.settling())  # the model that was joined with is still to be applied
    statements = {str(peer): payload for peer, payload in (await node.service.neighbours_statistics()).items()}
    statistics, others = warm_up.heard(statements, node.config.sync.f)
    if others:
        message = f"class statistics of {', '.join(others)} are none of this task, and were passed over"
        node.journal.emit(WarningEvent(message=message, about="warm_up"))
    if statistics is None:
        least = 2 * node.config.sync.f + 1
        message = f"no warm-up: of no class {least} neighbours share statistics ({len(statements)} share any)"
        node.journal.emit(WarningEvent(message=message, about="warm_up"))
        return
    loss = await node.executor.offload(lambda: warm_up.train(statistics))
    node.journal.emit(
        WarmedUp(
            round=node.state.round,
            steps=warm_up.settings.steps,
            examples=warm_up.task.examples,
            members=len(statements) - len(others),
            classes=list(statistics.classes),
            of_classes=warm_up.task.classes,
            loss=loss if not warm_up.trainer.is_private else None,
        )
    )
