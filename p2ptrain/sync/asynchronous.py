"""Async: rounds that close over the neighbours that are there, staleness weights, and momentum that waits (2401.09135).

    theta' = theta + gamma Agg over {0} and {w_j (xhat_j - xhat)}, w_j = (1 + staleness_j)^-exponent
    phi <- DelayedNesterov(phi, theta')

Nobody is waited for in any strategy here: a round closes at a quorum or a deadline. What stale updates spoil is the
momentum; outer/delayed_nesterov.py lets it move once in N rounds. Dynamic local updates (DyLU), by which a slow node
does fewer steps a round so that its updates come less late, are the runtime's: training/pace.py.
Guarantee: the aggregator's; plain mean by default. `sync.every` is N.
Cost: as tracked_gossip with int4 payloads, and two vectors.
"""

from p2ptrain.sync.checks import check_momentum
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.tracked_gossip import among_all


def method() -> StrategySpec:
    """Delayed momentum."""
    return StrategySpec(
        name="async",
        models=among_all,
        compressor="int4",
        aggregator="mean",
        f=0,
        outer="delayed_nesterov",
        ends_at_anchor=True,
        check=check_momentum,
    )
