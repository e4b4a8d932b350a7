"""How often a crowd has enough members in one secure group to open it, and what choosing keys or staying away gives it.

    python scripts/group_draw.py --members 28 --crowds 3-6 --rounds 2000

Groups are those of `secure_average` (docs/how-to/secure-aggregation.md); t of a group's n members open anything. For
each crowd, one JSON line: the share of rounds in which it has t of a group when it

- `takes_part`: is drawn by what it did not choose, and is always there;
- `stays_away`: the same, and knows the draw ahead: in each round those of it are there that do best;
- `keys_tried`: has made its keys for one round to come, under `draw = "names"`: how many it made for each member,
  median over rounds, until t share a group. Under `draw = "grants"` there is nothing to make.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Final

import torch

from gossip.secure_aggregation.secure_group import default_threshold
from node.bench.lists import some_numbers
from p2ptrain.sync import SyncConfig, build
from p2ptrain.sync.secure_average import SecureAverage

GROUP: Final = 4
KEYS: Final = 10_000
"""Keys that are made for a member at most."""
CHOSEN_ROUNDS: Final = 50


def main() -> None:
    """Measure each crowd."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=28)
    parser.add_argument("--crowds", type=some_numbers, default="3-6", help="numbers of liars, such as 3-6")
    parser.add_argument("--rounds", type=int, default=2000)
    given = parser.parse_args()
    for crowd in given.crowds:
        draw = Draw(given.members, crowd)
        told = {
            "members": given.members,
            "crowd": crowd,
            "takes_part": sum(map(draw.opens, range(given.rounds))) / given.rounds,
            "stays_away": sum(map(draw.opens_by_staying_away, range(given.rounds))) / given.rounds,
            "keys_tried": statistics.median(map(draw.keys_tried, range(CHOSEN_ROUNDS))),
        }
        print(json.dumps(told), flush=True)


class Draw:
    """The draw of a swarm in which the last members are the crowd."""

    def __init__(self, members: int, crowd: int) -> None:
        names = [f"member{number:03d}" for number in range(members)]
        self.crowd, self.others = frozenset(names[members - crowd :]), names[: members - crowd]
        self.placements = {name: blake2b(name.encode(), digest_size=32).digest() for name in names}
        self._by_grant, self._by_name = _strategy("grants"), _strategy("names")

    def opens(self, round: int) -> bool:
        """Return whether some group has t of the crowd when all of it are there."""
        return self._opened(self.crowd, round)

    def opens_by_staying_away(self, round: int) -> bool:
        """Return the same where the best part of the crowd is there."""
        return any(self._opened(there, round) for there in _parts(self.crowd))

    def keys_tried(self, round: int) -> int:
        """Return how many names each of the crowd's members tried, by turns, until t share a group in this round."""
        chosen, best = sorted(self.crowd), 0
        for number in range(KEYS):
            for at in range(len(chosen)):
                tried = [*chosen[:at], f"key{at}-{number}", *chosen[at + 1 :]]
                groups = self._by_name.groups([*self.others, *tried], round=round)
                together = max(sum(name in tried for name in group) for group in groups)
                chosen, best = (tried, together) if together >= best else (chosen, best)
                if _has_threshold(groups, chosen):
                    return number + 1
        return KEYS

    def _opened(self, crowd: Collection[str], round: int) -> bool:
        groups = self._by_grant.groups([*self.others, *crowd], round=round, placements=self.placements)
        return _has_threshold(groups, crowd)


def _strategy(draw: str) -> SecureAverage:
    """The strategy of the first member, which is no liar."""
    config = SyncConfig(strategy="secure_average", group=GROUP, draw=draw)  # type: ignore[call-arg]
    strategy = build(config, torch.zeros(8), own="member000")
    assert isinstance(strategy, SecureAverage)
    return strategy


def _has_threshold(groups: Sequence[Sequence[str]], crowd: Collection[str]) -> bool:
    return any(sum(name in crowd for name in group) >= default_threshold(len(group)) for group in groups)


def _parts(crowd: Collection[str]) -> Iterator[tuple[str, ...]]:
    for size in range(default_threshold(GROUP), len(crowd) + 1):
        yield from itertools.combinations(sorted(crowd), size)


if __name__ == "__main__":
    main()
