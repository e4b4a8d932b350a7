"""Where a node is in its run: what rounds change, and what follows of it. The parts that stay are `Node`'s."""

import math
from dataclasses import dataclass
from typing import Protocol

from node.config.schema import Config
from node.system.errors import RunError
from node.training.pace import Pace

CATCH_UP_FACTOR = 0.5
"""A lagging node's phases are shorter by this factor for every round that it is behind: one that is a little slower
settles at a lag where it does nearly all of its steps, and one of a fortieth of the speed still closes each round."""


class ManifestSettings(Protocol):
    """The settings of a private swarm, which its manifests may change while a run goes on."""

    def apply(self, trained: int, closed: int) -> None:
        """Let those settings hold that are right while round `trained` is trained and round `closed` is closed next."""

    def rounds_in(self, round_: int) -> int:
        """How many rounds the run has by the settings that hold in a round."""


@dataclass(kw_only=True)
class RunState:
    """The joined state of a node's loops. `sync_loop.synchronize`, and `joining` for it, moves the round."""

    config: Config
    """As it holds now: a private swarm's manifest may replace it."""
    pace: Pace
    manifests: ManifestSettings | None = None
    """None in an open swarm, where no round has other settings."""
    round: int = 0
    """The round being trained, or (between a phase and the closing of its round) being closed."""
    swarm_round: int = 0
    """The neighbours' median round, as of `look_around`."""
    closed_round: int | None = None
    """The newest round that this process has closed."""
    neighbours: int = 0
    """As of the last closed round."""
    link_speed: float | None = None
    """Bytes a second to the slowest neighbour that a quorum waits for, as of the newest message (bandwidth.py)."""
    idle_rounds: int = 0
    """Rounds in a row of which no step was taken (divergence.py)."""
    owes_checkpoint: bool = False
    """Whether the newest one that was due could not be written: it is tried again after every round."""
    unsaved: str | None = None
    """Why the model of the last round, or of an interruption, could not be written, if it could not."""
    put_out: RunError | None = None
    """Why this node stops, where its private swarm has put it out."""
    closing: bool = False
    """Whether a round is being closed, while the next one is trained."""
    _gathering: bool = False
    _uncounted: int = 0

    @property
    def finished(self) -> bool:
        """Whether there is no further phase to train: the last round is trained, or being closed."""
        return self.round + self.closing >= self.config.train.rounds

    @property
    def private(self) -> bool:
        """Whether it is a private swarm's: then its settings are those of the swarm's manifest."""
        return self.manifests is not None

    def rounds_at(self, round_: int) -> int:
        """How many rounds the run has, as the settings of a round say that this node may be far from."""
        return self.config.train.rounds if self.manifests is None else self.manifests.rounds_in(round_)

    @property
    def last_round(self) -> bool:
        """Whether the round being closed is the run's last."""
        return self.round + 1 == self.config.train.rounds

    @property
    def behind(self) -> int:
        """How many rounds the neighbours (their median) were ahead when last looked at."""
        return max(0, self.swarm_round - self.round)

    @property
    def lost(self) -> bool:
        """Whether the neighbours are so far ahead that our update would be too stale for them to use."""
        return self.behind > self.config.network.max_staleness

    def look_around(self, seen: int | None) -> None:
        """Take note of the neighbours' round, None where none is known: on the event loop, for the training thread must
        not read the network's tables."""
        self.swarm_round = self.round if seen is None else seen

    def enough(self, steps: int) -> bool:
        """Whether a phase may end: its steps are done, or it lags and has done its least; and the round before it is
        closed, for one round closes at a time. So a phase lasts at least as long as that round's exchange. Steps before
        the group of that round is there do not count: so the members of a group end their phases together, however
        unlike they began them."""
        if self._gathering:
            self._uncounted = steps
        if self.closing:
            return False
        lag = self.behind
        share = CATCH_UP_FACTOR**lag if lag >= self.config.node.catch_up_rounds else 1.0
        return steps - self._uncounted >= math.ceil(share * self.pace.steps)

    def schedule_step(self, steps: int) -> int:
        """The learning rate's place in the schedule after so many steps of a phase: it follows the swarm's rounds, so
        that a node that does fewer steps a round has the same rate as the others, and ends at the same one."""
        inner_steps = self.config.train.inner_steps
        return (self.round + self.closing) * inner_steps + min(steps * inner_steps // self.pace.steps, inner_steps - 1)

    def rate_factor(self, steps: int) -> float:
        """What is left of the learning rate after so many steps of a phase: all of it for the steps that were planned,
        and 1/k of it in a phase that is k times as long by now, as an exchange outlasts them. So nodes go little
        further from each other than they were set to, however long the others take (docs/decisions/0035)."""
        return min(1.0, self.pace.steps / (steps + 1))

    @property
    def overlap_steps(self) -> int:
        """tau: how many steps late a closed round may be applied."""
        return self.config.node.overlap_steps or self.pace.steps

    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is written once the current round is closed."""
        every = self.config.node.checkpoint_every
        return self.last_round or self.owes_checkpoint or (every > 0 and (self.round + 1) % every == 0)

    def evaluation_due(self) -> bool:
        """Whether the model is evaluated once the current round is closed."""
        return self.last_round or (self.round + 1) % self.config.train.eval_every == 0

    def begin_closing(self, *, waits_for_group: bool) -> None:
        """The current round's phase is over. `waits_for_group`: steps count from `gathered` on."""
        self.closing = True
        self._gathering = waits_for_group
        self._uncounted = 0
        self.apply_manifests()

    def gathered(self) -> None:
        """All members of the group of the round being closed are there, or this node waits for them no longer."""
        self._gathering = False

    def enter_round(self, number: int) -> None:
        """Go on with round `number`; nothing is being closed any more."""
        self.round = number
        self.closing = self._gathering = False
        self.apply_manifests()

    def apply_manifests(self) -> None:
        """Let the settings of the rounds that come next hold."""
        if self.manifests is not None:
            self.manifests.apply(self.round + self.closing, self.round)
