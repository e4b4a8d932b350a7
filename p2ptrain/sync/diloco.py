"""DiLoCo: the average over all neighbours, and Nesterov momentum on what it moved (2311.08105).

    Delta = theta' - phi, theta' the members' mean model; v <- 0.9 v + Delta; phi <- phi + 0.7 (Delta + 0.9 v)

Every member takes the outer step on its own anchor. With everybody's neighbour being everybody, exact payloads and no
update late, all anchors are one and this is the paper's algorithm; elsewhere anchors differ by what codecs lose and
updates miss, and the step towards a common theta' draws them together again (the momentum of a difference dies out,
since theta' does not depend on own phi: |eigenvalue| 0.52 at 0.9 and 0.7). With codecs coarser
than int4 it does not: they are refused (checks.py).
0.9 and 0.7 are the paper's, for rounds of 500 steps. Where neither is set, the rounds of the run decide, down to plain
averaging in a hundred of them (outer/momentum.py).
Guarantee: the aggregator's; plain mean, as in the paper, withstands nobody. `sync.aggregator` sets another one.
Cost: as tracked_gossip with exact payloads, 4 bytes a parameter, unless `sync.compressor` is set; and one vector.
"""

from p2ptrain.sync.checks import check_momentum
from p2ptrain.sync.strategy_spec import StrategySpec
from p2ptrain.sync.tracked_gossip import among_all


def method() -> StrategySpec:
    """All neighbours, Nesterov."""
    return StrategySpec(
        name="diloco",
        models=among_all,
        compressor="none",
        aggregator="mean",
        f=0,
        outer="nesterov",
        ends_at_anchor=True,
        check=check_momentum,
    )
