"""How a node closes a round with others: the extension point between a strategy and the network.

A strategy names its averager (`StrategySpec.averager`). The runtime needs to know nothing else about its kind.
"""

from typing import TYPE_CHECKING, Protocol

from gossip.core.api import Fetch, RoundView
from node.training.inner_loop import Phase
from p2ptrain.sync import RoundResult

if TYPE_CHECKING:  # a node holds its averager
    from node.training.node import Node


class Averager(Protocol):
    """Closes the rounds of one node's strategy."""

    fetches: Fetch
    """What is fetched from neighbours while the node trains: "updates", to track their models, or "nothing"."""
    waits_for_group: bool
    """Whether steps of the next phase count only once the round's group is complete. Its members have to meet again,
    and so end their phases together."""

    def least_s(self, node: "Node") -> float:
        """Return the seconds that a round's exchange takes even where phases are shorter: closing waits at least so
        long."""

    async def close(self, node: "Node", phase: Phase, *, at_most_s: float) -> tuple[RoundView, RoundResult]:
        """Close the node's current round, in which it trained `phase`, within `at_most_s` seconds.

        Returns what the network saw of the round, and its effect on the model. Raises RunError where the node's own
        training has diverged. The strategy's lock is held while the strategy is used, but not while waiting for peers.
        """
