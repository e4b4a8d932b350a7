"""A node's place in its run: what rounds change, and what follows from it. The parts that stay are in `Node`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import trio

from node.config.schema import Config
from node.system.errors import RunError
from node.training.lead import Lead
from node.training.pace import Pace

CATCH_UP_FACTOR = 0.5
"""A lagging node's phases are shorter by this factor for every round that it is behind. A node that is a little slower
settles at a lag where it does nearly all of its steps. One with a fortieth of the speed still closes each round."""


class ManifestSettings(Protocol):
    """The settings of a private swarm, which its manifests may change while a run goes on."""

    def apply(self, trained: int, closed: int) -> None:
        """Apply the settings that are right while round `trained` is trained and round `closed` is closed next."""

    def rounds_in(self, round_: int) -> int:
        """Return how many rounds the run has by the settings that apply in round `round_`."""


@dataclass(kw_only=True)
class RunState:
    """The state that a node's loops share. Only `sync_loop.synchronize`, and `joining` for it, changes the round."""

    config: Config
    """The configuration that applies now: a private swarm's manifest may replace it."""
    pace: Pace
    manifests: ManifestSettings | None = None
    """None in an open swarm, where all rounds have the same settings."""
    round: int = 0
    """The round being trained, or (between a phase and the closing of its round) being closed."""
    swarm_round: int = 0
    """The neighbours' median round, as of `look_around`."""
    closed_round: int | None = None
    """The newest round that this process has closed."""
    neighbours: int = 0
    """Number of neighbours when the last round was closed."""
    link_speed: float | None = None
    """Bytes a second to the slowest neighbour that a quorum waits for, at the newest message (bandwidth.py)."""
    idle_rounds: int = 0
    """Rounds in a row without a step taken (divergence.py)."""
    owes_checkpoint: bool = False
    """Whether the newest checkpoint that was due could not be written: it is tried again after every round."""
    owes_epoch: bool = False
    """Whether the disk did not take the epoch of a new chain: the others' model is taken when it does."""
    unsaved: str | None = None
    """Why the model of the last round, or at an interruption, could not be written; None where it could."""
    saved_round: int | None = None
    """The round of the newest checkpoint that this process has written."""
    put_out: RunError | None = None
    """Why this node stops, where it is a former member of its private swarm."""
    trainer_lost_in: int | None = None
    """The round in which the process that trains was lost last; None: it never was."""
    device_lost: str = ""
    """What was said when the device that trains was lost; empty: it was not."""
    spent_at: float | None = None
    """When the budget of its data's privacy was found to be spent, by trio's clock; None: it is not."""
    closing: bool = False
    """Whether a round is being closed, while the next one is trained."""
    _entered: trio.Event = field(default_factory=trio.Event)
    """Set when the next round is entered."""
    training_over: trio.Event = field(default_factory=trio.Event)
    """Set once the last phase has ended and nobody takes a step any more; its round may still be being closed."""
    settled: trio.Event = field(default_factory=trio.Event)
    """Set once that round is closed as well, and its correction is applied."""
    held: Callable[[], bool] = lambda: False
    """Whether training is to stand still: a phase with any steps ends then, once it may."""
    lead: Lead = field(default_factory=Lead)
    """For how long neighbours have trained too far behind this node."""
    rolled_back: bool = False
    """Whether this process has gone back to where the others are (rollback.py)."""
    shift_factor: float = 1.0
    """On the learning rate, for some rounds after the node's data have shifted."""
    _gathering: bool = False
    _uncounted: int = 0

    def __post_init__(self) -> None:
        self._local_rate = self.config.sync.spec().local_rate

    @property
    def finished(self) -> bool:
        """Return whether no phase is left to train: the last round is trained, or being closed."""
        return self.round + self.closing >= self.config.train.rounds

    def end_after(self, rounds: int) -> None:
        """Let the run end once `rounds` rounds are closed: the loop that trains takes no more steps."""
        self.config = self.config.model_copy(update={"train": replace(self.config.train, rounds=max(1, rounds))})

    @property
    def private(self) -> bool:
        """Return whether the run is a private swarm's: then its settings are those of the swarm's manifest."""
        return self.manifests is not None

    def rounds_at(self, round_: int) -> int:
        """Return how many rounds the run has by the settings of round `round_`, which this node may be far from."""
        return self.config.train.rounds if self.manifests is None else self.manifests.rounds_in(round_)

    @property
    def last_round(self) -> bool:
        """Return whether the round being closed is the run's last."""
        return self.round + 1 == self.config.train.rounds

    @property
    def behind(self) -> int:
        """Return how many rounds the neighbours' median was ahead at the last `look_around`."""
        return max(0, self.swarm_round - self.round)

    @property
    def lost(self) -> bool:
        """Return whether the neighbours are so far ahead that our update would be too stale for them to use."""
        return self.behind > self.config.network.max_staleness

    def look_around(self, seen: int | None) -> None:
        """Note the neighbours' round, None where none is known. Call it on the event loop: the training thread must not
        read the network's tables."""
        self.swarm_round = self.round if seen is None else seen

    def enough(self, steps: int) -> bool:
        """Return whether a phase may end: its steps are done, training is to pause, or the node lags and has done its
        least; and the round before it is closed, for one round closes at a time. So a phase lasts at least as long as
        that round's exchange. Steps before that round's group is complete do not count. So the members of a group end
        their phases together, even where they began them at different times."""
        if self._gathering:
            self._uncounted = steps
        if self.closing:
            return False
        if self.held():
            return True
        lag = self.behind
        share = CATCH_UP_FACTOR**lag if lag >= self.config.node.catch_up_rounds else 1.0
        return steps - self._uncounted >= math.ceil(share * self.pace.steps)

    def schedule_step(self, steps: int) -> int:
        """Return the learning rate's place in the schedule after so many steps of a phase. It follows the swarm's
        rounds, so a node that does fewer steps a round has the same rate as the others, and ends at the same one."""
        round_ = self.round + self.closing
        first, most = self.config.train.first_step(round_), self.config.train.steps_in(round_)
        return first + min(steps * most // self.pace.steps, most - 1)

    def rate_factor(self, steps: int) -> float:
        """Return the factor on the learning rate after so many steps of a phase: the strategy's for the planned steps,
        1 for most, and a kth of it once the phase is k times as long, because an exchange outlasts the plan. So nodes
        move little further apart than configured, however long the others take (docs/decisions/0035)."""
        return self._local_rate * self.shift_factor * min(1.0, self.pace.steps / (steps + 1))

    @property
    def overlap_steps(self) -> int:
        """Return tau: how many steps late a closed round may be applied."""
        return self.config.node.overlap_steps or self.pace.steps

    def checkpoint_due(self) -> bool:
        """Return whether a checkpoint is written once the current round is closed."""
        every = self.config.node.checkpoint_every
        # There is none of the model that goes on, nor of what was ever held against liars.
        went_back = self.rolled_back and (self.saved_round is None or self.saved_round > self.round + 1)
        return self.last_round or self.owes_checkpoint or went_back or (every > 0 and (self.round + 1) % every == 0)

    def evaluation_due(self) -> bool:
        """Return whether the model is evaluated once the current round is closed."""
        return self.last_round or (self.round + 1) % self.config.train.eval_every == 0

    def begin_closing(self, *, waits_for_group: bool) -> None:
        """Note that the current round's phase is over. `waits_for_group`: steps count from `gathered` on."""
        self.closing = True
        self._gathering = waits_for_group
        self._uncounted = 0
        self.apply_manifests()

    def gathered(self) -> None:
        """Note that the group of the round being closed is complete, or that this node no longer waits for it."""
        self._gathering = False

    def enter_round(self, number: int) -> None:
        """Go on with round `number`; nothing is being closed any more."""
        self.round = number
        self.closing = self._gathering = False
        self._entered.set()
        self._entered = trio.Event()
        self.apply_manifests()

    async def until_closed(self) -> None:
        """Wait while a round is being closed: no longer than its deadline."""
        while self.closing:
            await self._entered.wait()

    def apply_manifests(self) -> None:
        """Apply the settings of the next rounds, and the schedule's steps of the one that is trained."""
        if self.manifests is not None:
            self.manifests.apply(self.round + self.closing, self.round)
        self.pace.begin(self.config.train.steps_in(self.round + self.closing))
