"""What a node does once the budget of its data's privacy is spent: it serves, follows, and takes no more steps.

It tells its neighbours that it is paused, without a time of its return, so that no round waits for it. It serves what
it has published, follows their updates, and regularly takes their model, as a node does that was away (joining.py). So
it evaluates the swarm's model, keeps it in checkpoints, and gives it to newcomers. All of that is made of what others
told, and of its own releases, which were accounted for: nothing new of its data leaves.
"""

from typing import Final

import torch
import trio

from node.events.event_types import PrivacyBudgetSpent, WarningEvent
from node.training import round_report
from node.training.joining import rejoin
from node.training.node import Node

LOOK_S: Final = 0.1
"""Seconds between two checks of the swarm's round: far below the time of a round over a network."""

AGAIN_S: Final = 10.0
"""Seconds until the others' model is asked for again, where too few gave theirs. Chosen."""


def is_spent(node: Node) -> bool:
    """Return whether the node takes no more steps on its data, as those would exceed its budget."""
    return node.privacy is not None and node.privacy.refused is not None


def tell_spent(node: Node) -> None:
    """Emit that the budget is spent."""
    assert node.privacy is not None, "is_spent"
    settings, refused = node.privacy.settings, node.privacy.refused
    assert refused is not None, "is_spent"
    assert settings.epsilon is not None, "only a budget refuses"
    node.journal.emit(
        PrivacyBudgetSpent(
            round=node.state.round,
            epsilon=node.privacy.epsilon,
            budget=settings.epsilon,
            delta=settings.delta,
            would_be=refused.epsilon,
        )
    )


async def serve_on(node: Node) -> None:
    """Serve and follow the others until they have done the run's last round. Without others, until cancelled."""
    while not node.state.finished:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.service.say_paused, lambda: None)
            over = await _until_due(node)
            nursery.cancel_scope.cancel()
        if node.service.neighbours() and await rejoin(node):
            if over:
                node.state.enter_round(node.config.train.rounds)
            await _keep(node)
        elif over:
            at = node.state.round
            message = f"the others have left, and what is here is a model of round {at}, not of the last"
            node.journal.emit(WarningEvent(message=message))
            return
        else:
            await trio.sleep(AGAIN_S)


async def _until_due(node: Node) -> bool:
    """Wait until the others are so far ahead that their model is taken; return whether they are at the run's end."""
    heard, claimed = node.state.round, 0
    while True:
        train = node.config.train  # an admin may give more rounds meanwhile
        seen, here = node.service.swarm_round(), node.service.neighbours().values()
        node.state.look_around(seen)
        heard = heard if seen is None else max(heard, seen + 1)
        claimed = max([claimed, *(it.round + 1 for it in here)])
        # One liar must not end it while others are here: the claims of few count once they all have left.
        if heard >= train.rounds or (not here and claimed >= train.rounds):
            return True
        if heard - node.state.round >= max(train.eval_every, node.config.network.max_staleness + 1):
            return False
        await trio.sleep(LOOK_S)


async def _keep(node: Node) -> None:
    """Evaluate and save the model that was taken."""
    state = await node.executor.drive(node.inner.state())
    theta_d = state["parameters"]
    assert isinstance(theta_d, torch.Tensor), "a model is a vector"
    await round_report.evaluate(node, rounds=node.state.round)
    await round_report.save(node, theta_d, state, next_round=node.state.round, last=node.state.finished)
