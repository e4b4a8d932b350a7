"""How a node that trained alone goes back to where the others are.

A first node began, and several came at once. None of them could take its word: from where each stands, it is what the
one liar is that f = 1 allows for (joining.py). So they began together, in the first round, and it is as far ahead of
them as when they came, for good: an update of one side is never in time for the other. It is the same with a member
that comes back alone, where all went down at once.

It goes back when more than f and more than half of its neighbours have trained behind it for long, where newcomers
count in full once they have served (gossip/updates/probation.py). It takes their model as a newcomer does. Where no
round of the run was ever held against f liars it trusts the others no more by that than it would have at its start.
Where one was, it counts those alone with whom it was: no crowd of new keys takes a member out of a swarm that stood.
What such a crowd could do is to have a node that was always alone lose what it trained alone: so that is kept beside
the checkpoints. Neighbours that are slower are no reason, and it does so once in a life: a node that is faster than all
others would only lose its steps. docs/decisions/0145 has more.
"""

import trio

from node.events.event_types import WarningEvent
from node.training.joining import rejoin
from node.training.node import Node
from node.training.run_watch import may_roll_back


async def roll_back(node: Node) -> bool:
    """Take the others' model and round where enough have trained behind this node for long. Return False, with nothing
    changed, where they have not, or too few of them give their model."""
    state = node.state
    is_over = state.finished or state.training_over.is_set()  # nobody would train on from there
    if is_over or not may_roll_back(node.service, state) or not _are_behind(node):
        return False
    state.lead.begin()
    trained = state.round + 1
    if not await rejoin(node):
        return False
    state.rolled_back = True
    message = (
        f"most neighbours trained behind this node, which had trained {trained} rounds: it took their model, and goes "
        f"on with them in round {state.round + 1}"
    )
    node.journal.emit(WarningEvent(message=f"{message}; {await _keep_own(node)}"))
    return True


def _are_behind(node: Node) -> bool:
    """Return whether more than f and more than half of the neighbours have trained too far behind this node for long.
    A vote upwards, as of `swarm_round`, would be no evidence: one liar that says a low round lowers it."""
    neighbours, oldest = node.service.neighbours(), node.state.round - node.config.network.max_staleness
    behind = {peer: it.round for peer, it in neighbours.items() if it.gives and it.round < oldest}
    over = node.state.lead.over(behind, mine=node.state.round, now=trio.current_time())
    if node.service.outvoted_liars:
        over &= node.service.stood_with
    seated = node.service.seated(neighbours)
    return len(over.intersection(seated)) > max(node.config.sync.f, len(seated) // 2)


async def _keep_own(node: Node) -> str:
    """Keep the newest checkpoint of what was trained alone, and return what is to be said of it."""
    try:
        kept = await node.executor.offload(node.checkpoints.set_all_aside)
    except OSError as error:
        return f"checkpoints of its own model are still the newest in {node.checkpoints.folder} ({error.strerror})"
    return "it had no checkpoint of its own" if kept is None else f"its own model is kept in {kept}"
