"""Secure averaging: a round's differences are summed under masks in groups, and nobody sees more than the sums.

The round is announced after the sum, by an update header of the node's hash chain as in every averager. Its payload is
the sum of its group, the same bytes at all who have it: their signatures on one address certify the sum to the other
groups, which pull it from any of them. Who has no sum announces a mark without meaning, which nobody fetches.

Where nothing is opened (too few members, or too many left), the round closes with own values, and an event says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import trio

from gossip.core.api import Fetch, RoundView
from gossip.core.errors import LocalError
from gossip.core.ids import PeerId
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSum, default_threshold
from gossip.updates.certified_payload import PayloadQuorum
from node.events.event_types import KEPT, OPENED, SecureRound, WarningEvent
from node.training.averagers.group_round import MARK, MARK_CODEC, announce, finished, packed
from node.training.executors import SideWork
from node.training.inner_loop import Phase
from node.training.node import Node
from p2ptrain.compress.base import PayloadError
from p2ptrain.sync import GroupSum, RoundResult, SecureStrategy, SyncStrategy
from p2ptrain.sync.fixed_point import Words_d
from p2ptrain.sync.packing import LEAST_PART_BYTES, part_bytes_for
from p2ptrain.sync.secure_average import NO_PLACEMENTS

SUM_CODEC: Final = "secure_sum"
"""The codec that a header names whose payload is a group's sum."""

SUM_SHARE: Final = 0.7
"""Share of the time of a round's closing in which the own group's sum is to be opened. In the rest the other groups'
are pulled, which are as large as one of them. A sum has five stages of two round trips, the others' one."""

GATHER_SHARE: Final = 0.6
"""Share of a sum's time in which the members of a group may come to it, and the first four stages end. Half of that is
for coming: phases end apart, and without t members nothing is opened."""

LEAST_S: Final = 12.0
"""Seconds that a round's closing gets at least, however short phases are. Measured: with 4 no sum of five processes on
two busy cores was opened in 239 rounds, as they came to it up to a second apart; with 12 each of 92 was, after 3 to 8 s
(docs/benchmarks.md)."""


CLIPPED_TOLD: Final = 0.01
"""Share of values beyond the clipping range from which the operator is told. Chosen: what is cut is told in later
rounds, and one value in a hundred delays little."""


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """The groups of a round, as this node sees them."""

    groups: Sequence[Sequence[str]]
    own: int
    """The place of the own one; -1: there is none."""
    there: int
    """The members that are there, this one included."""

    @property
    def mine(self) -> Sequence[str]:
        """The own group's members; nobody where there is none."""
        return self.groups[self.own] if self.own >= 0 else ()


class SecureAverager:
    """Averager of a `SecureStrategy`. Raises ValueError for any other strategy."""

    fetches: Final[Fetch] = "nothing"
    waits_for_group: Final = True

    def __init__(self, strategy: SyncStrategy) -> None:
        if not isinstance(strategy, SecureStrategy):
            raise ValueError(f"the strategy {strategy.name!r} names the averager secure, and has no secure sums")
        self._strategy = strategy
        self._clips = False
        """Whether many values are beyond the clipping range, as last told."""

    def least_s(self, node: Node) -> float:
        """Return `LEAST_S`: nobody fetches updates, so there is nothing to time."""
        return LEAST_S

    async def close(self, node: Node, phase: Phase, *, at_most_s: float) -> tuple[RoundView, RoundResult]:
        """Sum the round's difference with the own group, announce it, read the other groups' sums, and close it."""
        with node.closing_times.measure("collect"):
            return await self._close(node, phase, trio.current_time() + at_most_s)

    async def _close(self, node: Node, phase: Phase, ends_at: float) -> tuple[RoundView, RoundResult]:
        round = node.state.round
        groups = self._groups(node)
        members = max(1, len(groups.mine))
        words_v = await packed(node, partial(self._strategy.pack, phase.theta_d, round=round, members=members))
        opened, why = await self._sum(node, groups, words_v, ends_at)
        node.state.gathered()
        whole = opened is not None and not opened.missing
        payload = self._strategy.published(opened) if opened is not None and whole else MARK
        await announce(node, phase, payload, codec=SUM_CODEC if whole else MARK_CODEC, size=len(payload))
        sums = await self._others(node, groups, opened, ends_at)
        view = await node.service.close_round(round, at_most_s=max(0.0, ends_at - trio.current_time()))
        finish = partial(self._strategy.finish_, phase.theta_d, sums, groups.own, round=round)
        result = await finished(node, finish)
        node.journal.emit(self._event(round, groups, sums, why))
        self._check_clipping(node)
        return view, result

    def _check_clipping(self, node: Node) -> None:
        """Tell the operator once that many values are cut, and once that few are again."""
        share = self._strategy.clipped_share
        if (share >= CLIPPED_TOLD) == self._clips:
            return
        self._clips = not self._clips
        message = "few values are beyond sync.clipping_range any more"
        if self._clips:
            message = (
                f"{share:.1%} of the values were beyond sync.clipping_range, and are told in later rounds: "
                "give the run a larger range, fewer steps a round, or a lower learning rate"
            )
        node.journal.emit(WarningEvent(message=message, about="clipping", recovered=not self._clips))

    def _groups(self, node: Node) -> _Groups:
        """The groups among the members that are there, as all of them find them."""
        here, placements = [str(peer) for peer in node.service.members(node.state.round)], NO_PLACEMENTS
        if self._strategy.draws_by_grant:
            found = node.service.placements(map(PeerId, (*here, node.peer_id)))
            placements = {str(peer): placement for peer, placement in found.items()}
        groups = self._strategy.groups(here, round=node.state.round, placements=placements)
        own = next((place for place, group in enumerate(groups) if node.peer_id in group), -1)
        return _Groups(groups=groups, own=own, there=len(here) + 1)

    async def _sum(self, node: Node, groups: _Groups, words_v: Words_d, ends_at: float) -> tuple[GroupSum | None, str]:
        """The own group's sum, as far as it came, and otherwise why there is none."""
        if not groups.mine:
            why = f"{groups.there} members are there, fewer than a secure group has"
            return None, "no group has this member: its grant is not for it alone" if groups.groups else why
        ahead = node.service.swarm_round()
        if ahead is not None and ahead > node.state.round:
            return None, "the others have closed this round"
        seconds = SUM_SHARE * max(0.0, ends_at - trio.current_time())
        try:
            group = SecureGroup(
                members=tuple(map(PeerId, groups.mine)),
                round=node.state.round,
                count=words_v.size,
                bits=(width := self._strategy.width(len(groups.mine))),
                owners=self._strategy.owners,
                chunk_bytes=part_bytes_for(words_v.size * width // 8, LEAST_PART_BYTES),
            )
            opened = await node.service.sum_securely(group, words_v, gather_s=GATHER_SHARE * seconds, timeout_s=seconds)
        except LocalError as error:  # nothing was opened, or this round was begun before a restart
            return None, str(error)
        return _group_sum(groups.mine, opened, words_v.size), ""

    async def _others(
        self, node: Node, groups: _Groups, opened: GroupSum | None, ends_at: float
    ) -> dict[int, GroupSum]:
        """The groups' sums by place: own one as opened, or else, like the others', as its members certify it."""
        sums: dict[int, GroupSum] = {} if opened is None else {groups.own: opened}
        wanted = [place for place in range(len(groups.groups)) if place not in sums or sums[place].missing]

        async def pull(place: int) -> None:
            found = await self._certified(node, groups.groups[place], ends_at)
            if found is not None:
                sums[place] = found

        async with trio.open_nursery() as nursery:
            for place in wanted:
                nursery.start_soon(pull, place)
        return sums

    async def _certified(self, node: Node, members: Sequence[str], ends_at: float) -> GroupSum | None:
        certificate = PayloadQuorum(
            peers=tuple(map(PeerId, members)),
            round=node.state.round,
            codec=SUM_CODEC,
            size=self._strategy.published_size(len(members)),
            threshold=default_threshold(len(members)),
        )
        left_s = max(0.0, ends_at - trio.current_time())
        payload = await node.service.pull_certified(certificate, timeout_s=left_s)
        if payload is None:
            return None
        try:
            return await node.executor.offload(partial(self._strategy.read, payload, members), work=SideWork.DECODE)
        except PayloadError:  # so many of its members signed what is no sum: it counts as absent
            return None

    def _event(self, round: int, groups: _Groups, sums: Mapping[int, GroupSum], why: str) -> SecureRound:
        own = sums.get(groups.own)
        return SecureRound(
            round=round + 1,
            members=len(groups.mine),
            survivors=0 if own is None else len(own.survivors),
            groups=len(groups.groups),
            groups_here=len(sums),
            clipped_share=self._strategy.clipped_share,
            result=KEPT if own is None else OPENED,
            why=why or None,
        )


def _group_sum(members: Sequence[str], opened: SecureSum, values: int) -> GroupSum:
    """What was opened, with the values that did not come named."""
    words_v = np.zeros(values, np.uint32)
    for part in opened.parts:
        if part.values is not None:
            words_v[part.part] = part.values
    return GroupSum(
        members=members,
        survivors=frozenset(map(str, opened.survivors)),
        words_v=words_v,
        missing=tuple(part.part for part in opened.parts if part.values is None),
    )
