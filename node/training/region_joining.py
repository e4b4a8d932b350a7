"""How the first members of a region begin, where other regions have begun before.

Later members of a region join its neighbours, as in a swarm of its own (joining.py). The first ones have nobody to
join: alone they would begin with round 0 and the initial model, and stay behind the other regions for good. So they
take the mean of the other regions' models, and the round in which these are.

What is believed. A region's model is one of 2 f + 1 of its members, as for any move by it, and where one region may lie
(four or more) it takes three others. Connected members say in which round their region is: that is believed within one
period of the newest model, so that a lie about it moves a start by no more. What is only said is not waited for longer
than any other claim. A region that begins by itself nevertheless is averaged with the others as ever, only later.
"""

from collections.abc import Mapping
from statistics import median_low

import trio

from gossip.core.api import RegionalView, RegionClaim
from node.events.event_types import Joined, WaitingFor, WarningEvent
from node.training.node import Node
from node.training.region_turns import RegionTurns

BRIDGES_S = 5.0
"""How long a node that has met somebody waits for a member of another region, since one that begins by itself is behind
those that do not. Hellos bring addresses within the first second, and a dial takes no longer than a few handshakes."""

UNCONFIRMED_S = 20.0
"""How long it waits for the announcements of a model that must be there by the round that members of a region say."""

MODELS_S = 60.0
"""How long it waits for models that enough members have announced: a 100 MB model over a 20 Mbit/s link takes 40 s."""

LOOK_AGAIN_S = 0.1
"""Seconds between two looks at what has come."""


async def join_regions(node: Node) -> bool:
    """Begin with the model and in the round of the regions that are further. Return False, with nothing changed, where
    there is none, too few of them are heard, or our own region has begun by itself."""
    if node.regions is None or not node.service.regions_beside:
        return False
    await _meet(node)
    fewest, told = node.regions.averaging.fewest_to_open(len(node.service.regions_beside)), False
    began = trio.current_time()
    while (claims := regions_further(node)) and not _has_begun(node):
        if len(claims) < fewest:
            return _alone(node, f"{_where(claims)}: too few regions to be believed")
        views = {region: view for region, view in node.service.regional_views().items() if region in claims}
        waited_s = trio.current_time() - began
        if not any(_awaits(node, claim, views.get(region), waited_s) for region, claim in claims.items()):
            return await _begin(node, claims, views, fewest)
        if not told:
            told = True
            node.journal.emit(WaitingFor(message=f"{_where(claims)}: waiting for their models"))
        await trio.sleep(LOOK_AGAIN_S)
    return False


def regions_further(node: Node) -> dict[str, RegionClaim]:
    """Return the regions that are further, and not at their end. One round is enough: a few that lie between regions
    cost a turn's models, which come too late for the turn of the one and too early for that of the other."""
    claims, rounds = node.service.region_claims().items(), node.config.train.rounds
    return {region: claim for region, claim in claims if node.state.round < claim.round < rounds - 1}


async def _meet(node: Node) -> None:
    """Wait until a member of another region is connected, if there is anybody at all."""
    ends_at = trio.current_time() + BRIDGES_S
    while not node.service.bridge_ids and trio.current_time() < ends_at:
        if not node.config.network.peers and not node.service.neighbours():
            return
        await trio.sleep(LOOK_AGAIN_S)


def _has_begun(node: Node) -> bool:
    """Whether most neighbours train already, and are not further than we are: those that are have joined the others."""
    neighbours, most = node.service.neighbours().values(), node.state.round + node.config.network.max_staleness
    return 2 * sum(it.gives and it.round <= most for it in neighbours) > len(neighbours)


def _awaits(node: Node, claim: RegionClaim, view: RegionalView | None, waited_s: float) -> bool:
    if claim.announced is not None:
        return (view is None or view.round < claim.announced) and waited_s < MODELS_S
    return view is None and _has_model(node, claim) and waited_s < UNCONFIRMED_S


def _has_model(node: Node, claim: RegionClaim) -> bool:
    """Whether a region has published a model by then."""
    averaging = _turns(node).averaging
    return claim.round >= averaging.every - averaging.lag - 1


async def _begin(node: Node, claims: Mapping[str, RegionClaim], views: Mapping[str, RegionalView], fewest: int) -> bool:
    """Begin at the mean of the models; where none can be there yet, at the initial one in the others' round."""
    if len(views) < fewest and (views or any(_has_model(node, claim) for claim in claims.values())):
        return _alone(node, f"{_where(claims)}, and too few of their models came")
    every = _turns(node).averaging.every
    at = median_low(_within_a_period(claims[region], views.get(region), every) for region in views or claims)
    entered = min(at + 1, node.state.rounds_at(at + 1) - 1)
    async with node.strategy_lock:
        theta_d = await _turns(node).begin_at(node, list(views.values()))
        if theta_d is None:
            return _alone(node, f"{_where(claims)}, and too few of their models could be read")
        snapshot = await node.executor.offload(node.snapshots.cut) if views else None
        await node.service.begin_epoch(epoch=node.next_epoch(), round=at, snapshot=snapshot)
    node.inner.replace(theta_d, at_step=node.config.train.first_step(entered))
    node.state.enter_round(entered)
    donors: list[str] = sorted({model.peer for view in views.values() for model in view.models})
    node.journal.emit(Joined(round=entered, donors=len(donors), peers=donors))
    return True


def _within_a_period(claim: RegionClaim, view: RegionalView | None, every: int) -> int:
    """The round that a region is said to be at, as far as its newest model bears it out: the next one would be here."""
    newest = 0 if view is None else view.round
    return max(newest, min(claim.round, newest + every))


def _alone(node: Node, because: str) -> bool:
    message = f"{because}: training begins with the initial model, in the first round"
    node.journal.emit(WarningEvent(message=message))
    return False


def _where(claims: Mapping[str, RegionClaim]) -> str:
    return ", ".join(f"region {region} is said to be at round {claim.round + 1}" for region, claim in claims.items())


def _turns(node: Node) -> RegionTurns:
    assert node.regions is not None, "join_regions has looked"
    return node.regions
