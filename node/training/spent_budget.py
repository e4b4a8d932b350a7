"""What a node does once the budget of its data's privacy is spent: it serves, follows, and takes no more steps.

It tells its neighbours that it is paused, without a time of its return, so that no round waits for it. It serves what
it has published, follows their updates, and regularly takes their model, as a node does that was away (joining.py). So
it evaluates the swarm's model, keeps it in checkpoints, and gives it to newcomers. All of that is made of what others
told, and of its own releases, which were accounted for: nothing new of its data leaves.

Its pause has no end in this run: so it names the longest return that a pause may name, a week. Where all neighbours
say that, nobody trains any more, and it ends after some time. Their word is a claim, and ends nothing but serving: who
still trains, or may be asked to, does not read it.
"""

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final

import torch
import trio

from gossip.core.ids import PeerId
from gossip.updates.announced_pauses import MAX_SAID_S, WORD_S
from node.events.event_types import PrivacyBudgetSpent, WarningEvent
from node.system.text import plural
from node.training import round_report
from node.training.joining import rejoin
from node.training.node import Node

LOOK_S: Final = 0.1
"""Seconds between two checks of the swarm's round: far below the time of a round over a network."""

FOR_GOOD_S: Final = MAX_SAID_S - WORD_S
"""Seconds to its return from which a neighbour is taken not to come back in this run: it says a week, again and again
before a word ends. A pause of a policy that long is none that is waited for here."""

ALL_SPENT_S: Final = 60.0
"""Seconds after which it ends where every neighbour has paused for good: some of them may be started again with a
larger budget, or others come. Chosen."""

NOBODY_HERE_S: Final = 600.0
"""Seconds after which it ends where no neighbour is here, nor was one meanwhile: its link may be down. Chosen."""

AGAIN_S: Final = 10.0
"""Seconds until the others' model is asked for again, where too few gave theirs. Chosen."""


def is_spent(node: Node) -> bool:
    """Return whether the node takes no more steps on its data, as those would exceed its budget."""
    return node.privacy is not None and node.privacy.refused is not None


def tell_spent(node: Node) -> None:
    """Emit that the budget is spent, and count the time from now on."""
    assert node.privacy is not None, "is_spent"
    settings, refused = node.privacy.settings, node.privacy.refused
    assert refused is not None, "is_spent"
    assert settings.epsilon is not None, "only a budget refuses"
    node.state.spent_at = trio.current_time()
    node.journal.emit(
        PrivacyBudgetSpent(
            round=node.state.round,
            epsilon=node.privacy.epsilon,
            budget=settings.epsilon,
            delta=settings.delta,
            would_be=refused.epsilon,
        )
    )


class Due(Enum):
    """Why a node that serves on does something."""

    BEHIND = auto()
    """The others are so far ahead that their model is taken."""
    OVER = auto()
    """The others are at the run's end."""
    NOBODY = auto()
    """Nobody here trains any more."""


async def serve_on(node: Node) -> None:
    """Serve and follow the others until they have done the run's last round, or nobody trains any more."""
    quiet = QuietTime()
    while not node.state.finished:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.service.say_paused, lambda: MAX_SAID_S)
            due = await _until_due(node, quiet)
            nursery.cancel_scope.cancel()
        if due is Due.NOBODY:
            _tell_nobody_trains(node)
            return
        if node.service.neighbours() and await rejoin(node):
            if due is Due.OVER:
                node.state.enter_round(node.config.train.rounds)
            await _keep(node)
        elif due is Due.OVER:
            at = node.state.round
            message = f"the others have left, and what is here is a model of round {at}, not of the last"
            node.journal.emit(WarningEvent(message=message))
            return
        else:
            await trio.sleep(AGAIN_S)


class QuietTime:
    """For how long nobody here may train any more."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._somebody = False
        """Whether there was a neighbour meanwhile."""

    def is_over(self, returns: Mapping[PeerId, float | None], neighbours: Collection[PeerId], now: float) -> bool:
        """Return whether that is so for long enough. `returns`: in how many seconds each of the paused ones is back, as
        it says; None: unknown."""
        if any((returns.get(peer) or 0.0) < FOR_GOOD_S for peer in neighbours):
            self._since, self._somebody = None, False
            return False
        if self._since is None:
            self._since = now
        self._somebody = self._somebody or bool(neighbours)
        return now - self._since >= (ALL_SPENT_S if self._somebody else NOBODY_HERE_S)


def _tell_nobody_trains(node: Node) -> None:
    here, rounds = len(node.service.neighbours()), node.config.train.rounds
    who = f"so has {plural(here, 'neighbour')}" if here == 1 else f"so have all {here} neighbours"
    others = who if here else "no other member is here"
    message = (
        f"this node has spent its privacy budget, and {others}: nobody trains any more, and it ends at round "
        f"{node.state.round} of {rounds}; start it again with a larger privacy.epsilon"
    )
    node.journal.emit(WarningEvent(message=message, about="privacy"))


async def _until_due(node: Node, quiet: QuietTime) -> Due:
    """Wait until there is something to do."""
    heard, claimed = node.state.round, 0
    while True:
        train = node.config.train  # an admin may give more rounds meanwhile
        seen, here = node.service.swarm_round(), node.service.neighbours()
        node.state.look_around(seen)
        heard = heard if seen is None else max(heard, seen + 1)
        claimed = max([claimed, *(it.round + 1 for it in here.values())])
        # One liar must not end it while others are here: the claims of few count once they all have left.
        if heard >= train.rounds or (not here and claimed >= train.rounds):
            return Due.OVER
        if quiet.is_over(node.service.paused_neighbours(), here, trio.current_time()):
            return Due.NOBODY
        if heard - node.state.round >= max(train.eval_every, node.config.network.max_staleness + 1):
            return Due.BEHIND
        await trio.sleep(LOOK_S)


async def _keep(node: Node) -> None:
    """Evaluate and save the model that was taken."""
    state = await node.executor.drive(node.inner.state())
    theta_d = state["parameters"]
    assert isinstance(theta_d, torch.Tensor), "a model is a vector"
    await round_report.evaluate(node, rounds=node.state.round)
    await round_report.save(node, theta_d, state, next_round=node.state.round, last=node.state.finished)
