"""How often a crowd has enough members in one secure group to open it, and what choosing keys or staying away gives it;
and what a liar that some members see and others do not does to everybody's groups.

    python scripts/group_draw.py --members 28 --crowds 3-6 --rounds 2000
    python scripts/group_draw.py --members 28 --seen-by-half --rounds 400

Groups are those of `secure_average` (docs/how-to/secure-aggregation.md); t of a group's n members open anything. For
each crowd, one JSON line: the share of rounds in which it has t of a group when it

- `takes_part`: is drawn by what it did not choose, and is always there;
- `stays_away`: the same, and knows the draw ahead: in each round those of it are there that do best;
- `keys_tried`: has made its keys for one round to come, under `draw = "names"`: how many it made for each member,
  median over rounds, until t share a group. Under `draw = "grants"` there is nothing to make.

With `--seen-by-half`, for each way to cut members into groups: of the honest members the share that is in a sum that
opens, and of a view's groups the share that opens, means over rounds in which a random half sees the liar; and the
fewest and the mean number of groups without it.
"""

import argparse
import itertools
import json
import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import torch

from gossip.secure_aggregation.secure_group import default_threshold
from node.bench.lists import some_numbers
from node.system.script_end import ended_in_a_line
from p2ptrain.sync import SyncConfig, build
from p2ptrain.sync.group_cuts import CUTS
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
    parser.add_argument("--group", type=int, default=GROUP, help="the least members of a group")
    parser.add_argument("--cut", choices=CUTS, default="even", help="how members are cut into groups, for crowds")
    parser.add_argument("--seen-by-half", action="store_true", help="one liar that half of the members see")
    parser.add_argument("--rounds", type=int, default=2000)
    given = parser.parse_args()
    if min(given.members, given.rounds) < 1:
        parser.error("--members and --rounds must be 1 or more")
    try:
        _strategy("names", given.group, given.cut)
    except ValueError as error:
        parser.error(str(error))
    if given.seen_by_half:
        for cut in CUTS:
            told = {"members": given.members, "group": given.group, "cut": cut}
            print(json.dumps(told | seen_by_half(given.members, given.group, cut, given.rounds)), flush=True)
        return
    for crowd in given.crowds:
        draw = Draw(given.members, crowd, given.group, given.cut)
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

    def __init__(self, members: int, crowd: int, group: int, cut: str) -> None:
        names = [f"member{number:03d}" for number in range(members)]
        self.crowd, self.others = frozenset(names[members - crowd :]), names[: members - crowd]
        self.placements = {name: blake2b(name.encode(), digest_size=32).digest() for name in names}
        self._group = group
        self._by_grant, self._by_name = _strategy("grants", group, cut), _strategy("names", group, cut)

    def opens(self, round: int) -> bool:
        """Return whether some group has t of the crowd when all of it are there."""
        return self._opened(self.crowd, round)

    def opens_by_staying_away(self, round: int) -> bool:
        """Return the same where the best part of the crowd is there."""
        return any(self._opened(there, round) for there in _parts(self.crowd, self._group))

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


def seen_by_half(members: int, group: int, cut: str, rounds: int) -> dict[str, float]:
    """What one liar, seen by a random half of the honest members, leaves of their groups."""
    names, rng = [f"member{number:03d}" for number in range(members - 1)], random.Random(0)
    strategy = _strategy("names", group, cut)
    in_a_sum, opening, counts = [], [], []
    for round in range(rounds):
        views = [strategy.groups(there, round=round) for there in (names, [*names, "liar"])]
        own = {name: views[rng.random() < 0.5] for name in names}
        groups_of = {name: next((each for each in view if name in each), None) for name, view in own.items()}

        def opens(group: list[str], groups_of: Mapping[str, list[str] | None] = groups_of) -> bool:
            return sum(groups_of.get(name) == group for name in group) >= default_threshold(len(group))

        in_a_sum.append(sum(each is not None and opens(each) for each in groups_of.values()) / len(names))
        opening += [statistics.mean(map(opens, view)) for view in views if view]
        counts.append(len(views[0]))
    return {
        "in_a_sum": round_to(statistics.mean(in_a_sum)),
        "open": round_to(statistics.mean(opening or [0.0])),
        "fewest_groups": min(counts),
        "groups": round_to(statistics.mean(counts)),
    }


def round_to(value: float) -> float:
    """Return three digits behind the point."""
    return round(value, 3)


def _strategy(draw: str, group: int, cut: str) -> SecureAverage:
    """The strategy of the first member, which is no liar."""
    config = SyncConfig(strategy="secure_average", group=group, draw=draw, cut=cut)
    strategy = build(config, torch.zeros(8), own="member000")
    assert isinstance(strategy, SecureAverage)
    return strategy


def _has_threshold(groups: Sequence[Sequence[str]], crowd: Collection[str]) -> bool:
    return any(sum(name in crowd for name in group) >= default_threshold(len(group)) for group in groups)


def _parts(crowd: Collection[str], group: int) -> Iterator[tuple[str, ...]]:
    for size in range(default_threshold(group), len(crowd) + 1):
        yield from itertools.combinations(sorted(crowd), size)


if __name__ == "__main__":
    with ended_in_a_line():
        main()
