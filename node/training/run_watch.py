"""A node's warnings to its operator: each is given once when a problem begins and once when it is over."""

import math
from collections import deque

from gossip.service import GossipService
from node.events.event_types import WarningEvent
from node.events.journal import Journal
from node.training.in_time import FarBehind, InTime, Lengthened, Lengths, apart_words, late_words, lengthened_words
from node.training.inner_loop import Phase
from node.training.run_state import RunState
from node.training.update_counts import UpdateCounts
from p2ptrain.aggregate import topology

REFUSED_TOLD = 2
"""Updates refused, with none accepted, after which a node warns that it learns alone. Chosen: the third one bans a
neighbour whose codec this node lacks, and a single one may be cut short."""

SETTLED_ROUNDS = 10
"""Rounds before a warning of too few members: as many as before one of late updates (in_time.LEAST_ROUNDS). Chosen."""

JOINS_TOLD = 4
"""Times that a node takes its neighbours' model within JOINS_WITHIN rounds, after which it warns. Chosen: once at the
start, and once after an outage, are as it should be."""

JOINS_WITHIN = 100
"""Measured: a node with a tenth of the others' CPU did so every 12 rounds."""


def may_roll_back(service: GossipService, state: RunState) -> bool:
    """Return whether a node that is ahead of its neighbours might take their model: there are more than may lie of
    those that may take it back (rollback.py)."""
    believed = service.neighbour_ids & service.stood_with if service.outvoted_liars else service.neighbour_ids
    return len(believed) > state.config.sync.f and not (service.regions_beside or state.rolled_back)


class RunWatch:
    """Watches a run, and warns its operator. `needed_members`: with fewer, own model included, the aggregator's promise
    about its f liars does not hold. `promises`: whether it makes that promise (plain mean makes none)."""

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
        self._far_behind = FarBehind()
        self._journal = journal
        self._service = service
        self._state = state
        self._counts = counts
        self._promises = promises
        self._margin_holds = True
        """Whether the promise holds, as last reported, or assumed at first."""
        self._margin_held = False
        """Whether the promise ever held."""
        self._margin_looks = 0
        self._micro_batch: int | None = state.config.node.micro_batch or None
        """Examples at a time, as last reported."""
        self._joined: deque[int] = deque(maxlen=JOINS_TOLD)
        """Rounds at which it took the neighbours' model lately."""
        self._told: set[str] = set()
        """Topics of the warnings that are given once in a run."""

    def robust_margin(self, members: int) -> int:
        """Return how many members may leave before the promise about f liars fails; below 0 it has failed, or the
        aggregator makes no such promise. It uses the graph where it is known, else the number of members
        (topology.py)."""
        if not self._promises:
            return -1
        theirs = [it.neighbours for it in self._service.neighbours().values()]
        mu_2 = topology.known_connectivity(len(theirs), theirs, self._service.peers_known)
        # Only members count: a neighbour too stale to be one has no part in this round.
        mu_2 = mu_2 if math.isinf(mu_2) else float(members)
        return topology.robust_margin(members - 1, self._state.config.sync.f, mu_2, needed=self.needed_members)

    def check_margin(self, members: int) -> None:
        """Warn when the promise about f liars stops holding, and report when it holds again; called once a round. With
        f = 0 nothing was promised, and nothing is reported."""
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
        """Return whether too few members are worth a warning. In its first rounds a node still meets them, and a node
        that was always alone has no neighbour that could lie."""
        if not self._promises:
            return True
        return self._margin_looks > SETTLED_ROUNDS and (members > 1 or self._margin_held)

    def note_metrics_fault(self, fault: str) -> None:
        """Warn once when the task fails at its own metrics: training goes on without them."""
        if fault:
            self._tell_once("metrics", f"no metrics of the task's own: {fault}")

    def check_skipped(self, skipped: int) -> None:
        """Warn once when steps begin to be skipped."""
        if skipped:
            self._tell_once(
                "skipped",
                f"{skipped} step{'s' * (skipped != 1)} skipped: loss or gradient is not finite; if it goes on, lower "
                "train.learning_rate, or look for such values in the data",
            )

    def check_micro_batch(self, size: int | None) -> None:
        """Warn when a batch does not fit into memory any more, and `size` examples go through the model at a time."""
        if size is None or size == self._micro_batch:
            return
        self._micro_batch = size
        if self._state.config.privacy.privatizer == "example":  # how many a step has is told to nobody
            at_a_time = f"at most {size} of the examples that a step draws"
            instead = f"privacy.chunk={size} says"
        else:
            at_a_time = f"{size} of a batch's {self._state.config.train.batch_size} examples"
            instead = f"train.batch_size={size} and train.grad_accumulation say"
        message = (
            f"out of memory: {at_a_time} now go through the model at a time, with the same gradient, more slowly; "
            f"{instead} so from the start"
        )
        self._journal.emit(WarningEvent(message=message, about="micro_batch"))

    def check_compiled(self, fault: str) -> None:
        """Warn once that steps are not compiled although they were to be."""
        if fault:
            self._tell_once("compile", f"train.compile: steps are not compiled, and as quick as without it ({fault})")

    def check_outer(self) -> None:
        """Warn once of outer momentum that was set and cannot pay in the rounds that there are."""
        config = self._state.config
        if words := config.sync.doubt(config.train.rounds):
            self._tell_once("outer", words)

    def check_refused(self) -> None:
        """Warn once when none of the neighbours' first updates could be used."""
        refused = self._counts.refused.total()
        if refused >= REFUSED_TOLD and not self._counts.deltas:
            self._tell_once(
                "refused", f"none of the {refused} updates of neighbours so far could be taken: this node learns alone"
            )

    def note_joined(self, entered: int) -> None:
        """Warn once when the node takes its neighbours' model again and again: nothing that it trains is used then."""
        self._joined.append(entered)
        within = entered - self._joined[0]
        if len(self._joined) == JOINS_TOLD and within <= JOINS_WITHIN:
            self._tell_once(
                "joined",
                f"fell behind and took the neighbours' model {JOINS_TOLD} times within {within} rounds: they refuse "
                "updates of who begins anew so often; if this machine is slower than theirs, set node.pace=dylu on "
                "all; else see p2ptrain doctor",
            )

    def _tell_once(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._journal.emit(WarningEvent(message=message))

    def _check_apart(self) -> None:
        """Warn once where most neighbours train without this node, in rounds long over here."""
        said = {peer: it.round if it.gives else None for peer, it in self._service.neighbours().items()}
        others = self._far_behind.look(self._state.round, said, self._state.config.network.max_staleness)
        if others.most:
            self._tell_once("apart", apart_words(others, goes_back=may_roll_back(self._service, self._state)))

    def check_arrivals(self, phase: Phase) -> None:
        """Check at the end of a phase which updates of the round before have arrived, and whether rounds last longer
        than planned. Warn when too few arrived, when enough do again, and when rounds have become longer."""
        state = self._state
        lengths = Lengths(
            inner_steps=state.config.train.steps_in(state.round),
            schedule=state.config.train.inner_steps_schedule,
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
            if self.in_time.is_low:
                self._check_apart()
        steps = self._lengthened.add(phase.steps, state.pace.steps)
        if steps is not None:
            self._journal.emit(WarningEvent(message=lengthened_words(steps, lengths), about="round_length"))
