"""What may leave a region, as all members of the run agree on it: the policy, and who is held to be of our region.

A region without a policy lets its members' averaged models out, as every region does. One with a policy lets out those
alone that are an average of so many members' models, or nothing. Such a region *guards* what its members hold: a peer
is served by us only once its record says that it is of our region, and a circuit to a member of ours leads through a
relay of ours. A region's label is its member's signed claim: this holds as far as members tell the truth of where they
are.
"""

from collections.abc import Callable, Container

from gossip.core.api import RegionLayout
from gossip.core.ids import PeerId
from gossip.reachability.relay import parse_circuit


def closed_regions(layout: RegionLayout) -> frozenset[str]:
    """Return the regions that nothing may leave."""
    return frozenset(label for label, least in layout.residency.items() if least == 0)


class Residency:
    """The policy, as one node is held to it. `region_of`: the label in a peer's record, None where none is known.
    `at_home`: peers that stand in our region as the operator of this node says."""

    def __init__(
        self, layout: RegionLayout, region_of: Callable[[PeerId], str | None], at_home: Container[PeerId] = ()
    ) -> None:
        self._own = layout.own
        self._least = layout.residency
        self._closed = closed_regions(layout)
        self._region_of = region_of
        self._at_home = at_home
        self.guards = layout.own in layout.residency
        """Whether our region has a policy."""

    def admits(self, peer: PeerId) -> bool:
        """Return whether a peer may be a neighbour or a listener of ours: of a region with a policy those alone whose
        label is known."""
        return not self.guards or self._region_of(peer) == self._own

    def serves(self, peer: PeerId) -> bool:
        """Return whether a neighbour that was admitted may still be served: its record may have gone since, and does
        not name another region."""
        return not self.guards or self._region_of(peer) in (None, self._own)

    def leaves(self, region: str, peer: PeerId) -> bool:
        """Return whether a region's model may go to this peer."""
        return region not in self._closed or self._region_of(peer) == region

    def least(self, region: str) -> int:
        """Return of how many members' models a region's model must be an average, as its author says; 0: it need not
        say."""
        return self._least.get(region, 0)

    def crosses(self, peer: PeerId) -> bool:
        """Return whether what goes to a peer leaves our region, or what comes from it comes from another one. Where
        our region has a policy, a peer without a label is a neighbour that was admitted with ours."""
        region = self._region_of(peer)
        return bool(self._own) and region != self._own and not (region is None and self.guards)

    def region_of(self, peer: PeerId) -> str:
        """Return a peer's label, "" where none is known."""
        return self._region_of(peer) or ""

    def may_dial(self, address: str) -> bool:
        """Return whether an address may be dialled: a circuit to a member of our region, or to who has not said of
        which it is, only through a relay of ours."""
        circuit = parse_circuit(address)
        if circuit is None or not self.guards:
            return True
        relay, peer = circuit
        if self._region_of(peer) not in (None, "", self._own):
            return True
        return relay in self._at_home or self._region_of(relay) == self._own
