"""How the first members of a region begin, where other regions have begun before.

Later members of a region join its neighbours, as in a swarm of its own (joining.py). The first ones have nobody to
join: alone they would begin with round 0 and the initial model, and stay behind the other regions for good. So they
take the mean of the other regions' models, and the round in which these are.

What is believed. A region's model is one of 2 f + 1 of its members, as for any move by it, and where one region may lie
(four or more) it takes three others. Connected members say in which round their region is: that is believed within one
period of the newest model, so that a lie about it moves a start by no more. What is only said is not waited for longer
than any other claim. A region that begins by itself nevertheless is averaged with the others as ever, only later.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from statistics import median_low

import trio

from gossip.core.api import RegionalView, RegionClaim
from node.events.event_types import Joined, WaitingFor, WarningEvent
from node.training.node import Node
from node.training.region_turns import RegionTurns

BRIDGES_S = 5.0
"""How long a node that has met somebody waits for a member of each region beside its own, since one that begins by
itself is behind those that do not. Hellos bring addresses within the first second, a dial takes a few handshakes."""

NEIGHBOURS_S = 1.0
"""How long it then waits for neighbours who have begun: they go before other regions. The same hellos bring them."""

UNCONFIRMED_S = 20.0
"""How long it waits for the announcements of a model that must be there by the round that members of a region say."""

MODELS_S = 60.0
"""How long it waits for models that enough members have announced: a 100 MB model over a 20 Mbit/s link takes 40 s."""

LOOK_AGAIN_S = 0.1
"""Seconds between two looks at what has come."""

NOTHING_YET = -1
"""The round of a region whose connected members have published nothing."""


class Beginning(Enum):
    """Where a node begins that has no neighbours to join."""

    OTHERS = auto()
    """With the other regions: it has begun."""
    NEIGHBOURS = auto()
    """With neighbours who have begun, as it turned out: nothing is changed."""
    ALONE = auto()
    """By itself: nothing is changed."""


async def join_regions(node: Node, *, neighbours_first: bool) -> Beginning:
    """Begin with the model and in the round of the regions that are further; alone where there is none, too few of them
    are heard, or most neighbours have begun by themselves. `neighbours_first`: not where one has begun before."""
    if node.regions is None or not node.service.regions_beside:
        return Beginning.ALONE
    await _meet(node)
    if neighbours_first and regions_further(node):
        await trio.sleep(NEIGHBOURS_S)
        if _speakers(node):
            return Beginning.NEIGHBOURS
    fewest, told = node.regions.averaging.fewest_to_open(len(node.service.regions_beside)), False
    began = trio.current_time()
    while (claims := regions_further(node)) and not _has_begun(node):
        if len(claims) < fewest:
            return _alone(node, f"{_where(claims)}: too few regions to be believed")
        views = {region: view for region, view in node.service.regional_views().items() if region in claims}
        waited_s = trio.current_time() - began
        awaited = any(_awaits(node, claim, views.get(region), waited_s) for region, claim in claims.items())
        if not awaited and await _begin(node, claims, views, fewest):
            return Beginning.OTHERS
        if not awaited and (waited_s >= MODELS_S or not views):
            return _alone(node, f"{_where(claims)}, and too few of their models came")
        if not told:
            told = True
            node.journal.emit(WaitingFor(message=f"{_where(claims)}: waiting for their models"))
        await trio.sleep(LOOK_AGAIN_S)
    if ended := _ended(node):
        return _alone(node, f"{', '.join(f'region {region}' for region in ended)} is at the end of its rounds")
    return Beginning.ALONE


def regions_further(node: Node) -> dict[str, RegionClaim]:
    """Return the regions that are further, and not at their end, with their rounds as far as they are believed. One
    round is enough: a few that lie between regions cost a turn's models, which come too late for the turn of the one
    and too early for that of the other."""
    ended = _ended(node)
    return {
        region: claim
        for region, claim in _believed(node).items()
        if node.state.round < claim.round and region not in ended
    }


def bear_out(node: Node, rounds: Iterable[int]) -> bool:
    """Return whether neighbours who say these rounds are where another region is: a few may have joined it."""
    if node.regions is None:
        return False
    every, there = node.regions.averaging.every, [claim.round for claim in regions_further(node).values()]
    return any(abs(round_ - each) <= every for round_ in rounds for each in there)


def _believed(node: Node) -> dict[str, RegionClaim]:
    """The claims, each bounded by the newest model that was announced: of one a period later the next would be here."""
    if node.regions is None:
        return {}
    every = node.regions.averaging.every
    return {
        region: replace(claim, round=max(claim.announced or 0, min(claim.round, (claim.announced or 0) + every)))
        for region, claim in node.service.region_claims().items()
        if claim.round > NOTHING_YET
    }


def _ended(node: Node) -> list[str]:
    return [region for region, claim in _believed(node).items() if claim.round >= node.state.rounds_at(claim.round) - 1]


async def _meet(node: Node) -> None:
    """Wait until a member of each region beside ours is connected, or enough say that their regions are further, if
    there is anybody at all."""
    ends_at = trio.current_time() + BRIDGES_S
    fewest = _turns(node).averaging.fewest_to_open(len(node.service.regions_beside))
    while trio.current_time() < ends_at and len(regions_further(node)) < fewest:
        if not node.config.network.peers and not node.service.neighbours() and not node.service.bridge_ids:
            return
        if node.service.region_claims().keys() >= node.service.regions_beside:
            return
        await trio.sleep(LOOK_AGAIN_S)


def _speakers(node: Node) -> bool:
    """Whether a neighbour is further than we may be behind it."""
    most = node.state.round + node.config.network.max_staleness
    return any(it.gives and it.round > most for it in node.service.neighbours().values())


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
    """Begin at the mean of the models; where none can be there yet, at the initial one in the others' round. Return
    False, with nothing changed, where too few are here or can be read."""
    if len(views) < fewest and (views or any(_has_model(node, claim) for claim in claims.values())):
        return False
    at = median_low(claims[region].round for region in views or claims)
    entered = min(at + 1, node.state.rounds_at(at + 1) - 1)
    async with node.strategy_lock:
        theta_d = await _turns(node).begin_at(node, list(views.values()))
        if theta_d is None:
            return False
        snapshot = await node.executor.offload(node.snapshots.cut) if views else None
        await node.service.begin_epoch(epoch=node.next_epoch(), round=at, snapshot=snapshot)
    node.inner.replace(theta_d, at_step=node.config.train.first_step(entered))
    node.state.enter_round(entered)
    donors: list[str] = sorted({model.peer for view in views.values() for model in view.models})
    node.journal.emit(Joined(round=entered, donors=len(donors), peers=donors, regions=sorted(views or claims)))
    return True


def _alone(node: Node, because: str) -> Beginning:
    message = f"{because}: training begins with the initial model, in the first round"
    node.journal.emit(WarningEvent(message=message))
    return Beginning.ALONE


def _where(claims: Mapping[str, RegionClaim]) -> str:
    return ", ".join(f"region {region} is said to be at round {claim.round + 1}" for region, claim in claims.items())


def _turns(node: Node) -> RegionTurns:
    assert node.regions is not None, "join_regions has looked"
    return node.regions
