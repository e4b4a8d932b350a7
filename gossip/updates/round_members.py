"""With whom this node's rounds count, as far as that depends on rounds before: what the engine remembers of them.

Of all neighbours those have a seat that have served, and of new keys as many as may lie (probation.py). Among these the
swarm's round is voted on (rounds.py), and each is judged for the round that is open (standing.py). Two things change
with what has been: once a round had members enough to outvote the liars, a few neighbours are never believed again;
and of those far ahead of all others only the ones count with whom such rounds were held (decision 0145).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Set

from gossip.core.ids import PeerId
from gossip.core.limits import MAX_STOOD_WITH
from gossip.updates.probation import Probation
from gossip.updates.rounds import swarm_round
from gossip.updates.standing import ARRIVAL_S, LEAD_ROUNDS, Standing, standing, trusted_far_ahead


class RoundMembers:
    """Members of one node's rounds. `liars`: how many may be among the neighbours. `withstood_by`: how few members,
    own model included, withstand these; 0: no number does. `probation_rounds`: how many a new key has to serve."""

    def __init__(self, *, liars: int, withstood_by: int, max_staleness: int, probation_rounds: int) -> None:
        self.outvoted_liars = False
        """Whether there were ever members enough to outvote the liars. From then on a few are never believed."""
        self._stood_with: OrderedDict[PeerId, None] = OrderedDict()
        """Members of rounds that withstood the liars, the newest last."""
        self._begun_at = float("-inf")
        """When our newest chain began (seconds, monotonic)."""
        self._probation = Probation(rounds=probation_rounds, seats=liars)
        self._liars = liars
        self._withstood_by = withstood_by
        self._max_staleness = max_staleness

    # -- what happened

    def chain_began(self, now: float) -> None:
        """Note that a chain of ours begins."""
        self._begun_at = now

    def contributed(self, peer: PeerId) -> None:
        """Note that something new of a neighbour was accepted."""
        self._probation.contributed(peer)

    def round_closed(self, here: Collection[PeerId]) -> None:
        """Note that a round of ours closed with these neighbours."""
        self._probation.round_closed(here)

    def round_outvoted_liars(self, members: Iterable[PeerId]) -> None:
        """Note that a round with these members had enough to outvote the liars."""
        self.outvoted_liars = True
        # New keys have a seat in turn, or are there as we start again: who has not served has stood with nobody.
        for peer in filter(self._probation.is_no_newcomer, members):
            self._stood_with[peer] = None
            self._stood_with.move_to_end(peer)
        while len(self._stood_with) > MAX_STOOD_WITH:
            self._stood_with.popitem(last=False)

    def stood_before(self, peers: Collection[PeerId]) -> None:
        """Note that, before this process began, rounds with these members withstood the liars."""
        self._probation.vouch(peers)
        self.round_outvoted_liars(peers)

    # -- what follows

    @property
    def stood_with(self) -> Set[PeerId]:
        """Members of rounds that withstood the liars, in this process and before; the newest ones."""
        return self._stood_with.keys()

    @property
    def least_members(self) -> int:
        """How few members, own model included, a round has to have: with fewer it averages nothing, where there may be
        liars and a round of this run withstood them. 0: any number."""
        return self._withstood_by if self._liars > 0 and self.outvoted_liars else 0

    def seated(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """Return, of these, the established peers, and of those on probation as many as there may be liars."""
        return self._probation.seated(peers)

    def swarm_round(
        self, said: Mapping[PeerId, int | None], *, own: int | None, paused: Collection[PeerId] = ()
    ) -> int | None:
        """Return the highest round that enough of the seated neighbours have announced (rounds.py).

        Where there never were neighbours enough for that, the present ones are believed up to LEAD_ROUNDS beyond our
        `own` newest round, once all have served: a swarm of two has nobody else to ask, and nothing is promised there.
        """
        found = swarm_round(said, liars=self._liars, paused=paused)
        if found is None and not self.outvoted_liars and len(said) <= self._liars:
            found = self._word_of_few(said, own)
        return found

    def standing(
        self,
        round: int,
        applied: Mapping[PeerId, int | None],
        *,
        swarm: int | None,
        paused: Collection[PeerId],
        now: float,
    ) -> Standing:
        """Return what each of the seated neighbours is for `round`, given its newest applied round, the swarm's round,
        and for whom no round waits."""
        return standing(
            round,
            applied,
            self._max_staleness,
            liars=self._liars,
            trusted=trusted_far_ahead(
                applied.keys(),
                self._stood_with.keys(),
                outvoted_liars=self.outvoted_liars,
                liars=self._liars,
                withstands=self._withstood_by > 0,
            ),
            swarm=swarm,
            beginning=now < self._begun_at + ARRIVAL_S,
            paused=paused,
        )

    def donors(self, round: int, applied: Mapping[PeerId, int | None]) -> dict[PeerId, int]:
        """Return by how many rounds each of the seated neighbours is behind `round` whose model may be taken for that
        round's. Who may be a member of it does not matter, nor who is ahead."""
        return standing(round, applied, self._max_staleness).donors

    def _word_of_few(self, said: Mapping[PeerId, int | None], own: int | None) -> int | None:
        if own is None or not all(map(self._probation.has_served, said)):
            return None
        found = swarm_round(said, liars=0)
        return found if found is not None and found <= own + LEAD_ROUNDS else None
