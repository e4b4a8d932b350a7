"""What a node tells its operator of while it runs, once when it begins and once when it is over."""

import math

from gossip.service import GossipService
from node.events.event_types import WarningEvent
from node.events.journal import Journal
from node.training.in_time import InTime, Lengthened, Lengths, late_words, lengthened_words
from node.training.inner_loop import Phase
from node.training.run_state import RunState
from node.training.update_counts import UpdateCounts
from p2ptrain.aggregate import topology

REFUSED_TOLD = 2
"""Updates refused, and none taken, after which a node says that it learns alone. Chosen: the third one bans a neighbour
whose codec this node has not, and one may be cut short."""

SETTLED_ROUNDS = 10
"""Rounds before too few members are told of: as many as before late updates are (in_time.LEAST_ROUNDS). Chosen."""


class RunWatch:
    """`needed_members`: with fewer, own model included, the aggregator's promise about its f liars does not hold.
    `promises`: whether it makes that promise (plain mean makes none)."""

    def __init__(
        self,
        *,
        journal: Journal,
        service: GossipService,
        state: RunState,
        counts: UpdateCounts,
        needed_members: int,
        promises: bool,
    ) -> None:
        self.needed_members = needed_members
        self.in_time = InTime()
        self._lengthened = Lengthened()
        self._journal = journal
        self._service = service
        self._state = state
        self._counts = counts
        self._promises = promises
        self._margin_holds = True
        """As was last told, or taken for granted."""
        self._margin_held = False
        """Whether it ever did."""
        self._margin_looks = 0
        self._told: set[str] = set()
        """What is told once in a run."""

    def robust_margin(self, members: int) -> int:
        """How many members may leave before the promise about f liars fails; below 0 it has failed, or is not one that
        the aggregator makes at all. By the graph where it is known, else by the members' number (topology.py)."""
        if not self._promises:
            return -1
        theirs = [it.neighbours for it in self._service.neighbours().values()]
        mu_2 = topology.known_connectivity(len(theirs), theirs, self._service.peers_known)
        # Of the members: who is too stale to be one has no say in this round's mesh.
        mu_2 = mu_2 if math.isinf(mu_2) else float(members)
        return topology.robust_margin(members - 1, self._state.config.sync.f, mu_2, needed=self.needed_members)

    def check_margin(self, members: int) -> None:
        """Once a round: say so when the promise about f liars stops holding, or holds again. Nothing to say where none
        was asked for."""
        holds = self.robust_margin(members) >= 0
        self._margin_looks += 1
        self._margin_held = self._margin_held or holds
        sync = self._state.config.sync
        if sync.f == 0 or holds == self._margin_holds or not (holds or self._lacks_members(members)):
            return
        self._margin_holds = holds
        message = (
            f"{sync.aggregator} withstands no liar, and sync.f is {sync.f}: one lying neighbour may ruin the model"
        )
        if self._promises:
            averages = ": until then nothing is averaged" if self._margin_held else ""
            few = f"a lying one may do harm; sync.f = {sync.f} is withstood from {self.needed_members} on{averages}"
            state = f"sync.f = {sync.f} is withstood again" if holds else few
            message = f"{members} member{'s' * (members != 1)} here, own model included: {state}"
        self._journal.emit(WarningEvent(message=message))

    def _lacks_members(self, members: int) -> bool:
        """Whether too few members are something to look at. In its first rounds a node still meets them, and one that
        was always alone has nobody beside it who could lie."""
        if not self._promises:
            return True
        return self._margin_looks > SETTLED_ROUNDS and (members > 1 or self._margin_held)

    def note_metrics_fault(self, fault: str) -> None:
        """Say so when the task fails at its own metrics, once: training goes on without them."""
        if fault:
            self._tell_once("metrics", f"no metrics of the task's own: {fault}")

    def check_skipped(self, skipped: int) -> None:
        """Say so when steps begin to be skipped."""
        if skipped:
            self._tell_once(
                "skipped",
                f"{skipped} steps skipped: loss or gradient is not finite; lower train.learning_rate if it goes on",
            )

    def check_refused(self) -> None:
        """Say so when none of the first updates of neighbours could be taken."""
        refused = self._counts.refused.total()
        if refused >= REFUSED_TOLD and not self._counts.deltas:
            self._tell_once(
                "refused", f"none of the {refused} updates of neighbours so far could be taken: this node learns alone"
            )

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._journal.emit(WarningEvent(message=message))

    def check_arrivals(self, phase: Phase) -> None:
        """At the end of a phase: see whose updates of the round before have arrived meanwhile, and whether rounds last
        longer than planned. Say so when too few do, when enough do again, and when rounds have become longer."""
        state = self._state
        lengths = Lengths(
            inner_steps=state.config.train.inner_steps,
            step_seconds=phase.step_seconds,
            exchange_s=self._service.exchange_seconds(),
            longest_s=state.config.network.initial_deadline_s,
        )
        if state.closed_round is not None and state.closed_round == state.round - 1:
            turn = self.in_time.add(self._service.arrivals(state.closed_round))
            if turn is not None:
                again = f"{self.in_time.share or 0:.0%} of the neighbours' updates arrive in time again"
                words = late_words(self.in_time, lengths) if turn == "fell" else again
                recovered = turn == "recovered"
                self._journal.emit(WarningEvent(message=words, about="updates_in_time", recovered=recovered))
        steps = self._lengthened.add(phase.steps, state.pace.steps)
        if steps is not None:
            self._journal.emit(WarningEvent(message=lengthened_words(steps, lengths), about="round_length"))
