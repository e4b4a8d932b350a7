"""How many liars a round withstands: the aggregator for its members, with the f that they allow.

With fewer members than the configured f needs the aggregator runs with the largest f that they allow, as long as no
round had a larger one: a swarm of two averages, and promises nothing. **Once a round has held an f, no later round runs
with a smaller one**: a liar that can keep honest neighbours away (or waits until they have finished) would else be
alone with its victim, at f = 0. Such a round aggregates nothing; the node keeps what it learned, and takes part again
when there are enough. docs/decisions/0010 has the reasons.
"""

from collections.abc import Mapping

from p2ptrain import aggregate
from p2ptrain.aggregate import Aggregator


class FaultTolerance:
    """Finds the round's aggregator. State: `held`, the largest f with which a round was aggregated."""

    def __init__(self, aggregator: str, f: int, options: Mapping[str, object] | None = None) -> None:
        self.aggregator = aggregator
        self.f = f
        self._options = options or {}
        self.held = 0
        self._rules: dict[int, Aggregator] = {}
        """By f. Kept from round to round: some draw lots, and must not draw the same ones again."""

    def rule(self, members: int) -> tuple[Aggregator | None, bool]:
        """Return the aggregator for so many members, own vector included, and whether it withstands the configured f.

        None: there are too few, and nobody is to be listened to.
        """
        for f in range(min(self.f, members - 1), self.held - 1, -1):
            rule = self._with(f)
            if members >= rule.minimum():
                self.held = max(self.held, rule.f)
                return rule, rule.f >= self.f
        return None, False

    def resume(self, held: int) -> None:
        """Go on where a checkpoint says that `held` was held: as far as what is configured now can hold it."""
        self.held = min(held, self._with(self.f).f)

    def _with(self, f: int) -> Aggregator:
        if f not in self._rules:
            self._rules[f] = aggregate.get(self.aggregator, f=f, **self._options)
        return self._rules[f]
