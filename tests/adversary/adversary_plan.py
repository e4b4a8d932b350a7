"""A scenario and the moves that hostile nodes make in it: drawn by a seed, or read from a file.

Kinds of scenarios come in turn, and each seed begins with the moves whose turn it is, so that the first few dozen seeds
draw every kind there is; the rest is drawn freely.
"""

import json
import random
from collections.abc import Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import moves_answers
import moves_chains
import moves_first
import moves_floods
import moves_identities
import moves_layers
import moves_lies
import moves_login
import moves_members
import moves_payloads
import moves_regions
import moves_statements
import moves_sums
import moves_unlike
from adversary_move import MOVES, Move, draw_move
from adversary_scenario import KINDS, LATER, UNLIKE, Scenario, draw_scenario

FILES: Final = (
    moves_answers,
    moves_chains,
    moves_first,
    moves_floods,
    moves_identities,
    moves_layers,
    moves_lies,
    moves_login,
    moves_members,
    moves_payloads,
    moves_regions,
    moves_statements,
    moves_sums,
    moves_unlike,
)
"""Imported for what they register."""

DUE: Final = 3
"""Kinds of moves that a seed has to draw."""

MOST: Final = 5
"""Moves drawn freely."""

APT: Final = 5
"""How much more often a move is drawn where it is apt."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run needs, so that the same plan is the same run."""

    seed: int
    scenario: Scenario
    moves: tuple[Move, ...]

    def to_json(self) -> str:
        """As a file has it."""
        fields = {
            "seed": self.seed,
            "scenario": self.scenario.to_json(),
            "moves": [each.to_json() for each in self.moves],
        }
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan in a file."""
        fields: dict[str, Any] = json.loads(text)
        moves = tuple(Move.from_json(each) for each in fields["moves"])
        return cls(seed=fields["seed"], scenario=Scenario(**fields["scenario"]), moves=moves)

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """The same, by its path."""
        return cls.from_json(path.read_text("utf-8"))


CROWD_FROM_S: Final = 130.0
"""When crowds come to an open swarm: every honest node has closed its first round and has settled among its neighbours,
and nobody who comes now ends its probation before the run does. Nothing is promised of a crowd that was there before a
node began or settled, or that has served."""


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(seed)
    scenario = draw_scenario(_kind_of(seed), rng, seed)
    fitting = [kind for kind in sorted(MOVES) if scenario.kind in MOVES[kind].among]
    weights = [APT if scenario.kind in MOVES[kind].apt else 1 for kind in fitting]
    kinds = [*_due(seed), *rng.choices(fitting, weights, k=rng.randint(1, MOST))]
    drawn = [draw_move(kind, scenario, rng) for kind in kinds]
    if scenario.kind == "open":
        drawn = [replace(each, at=CROWD_FROM_S + each.at / 4) for each in drawn]
    moves = sorted(drawn, key=lambda each: (each.at, each.kind))
    return Plan(seed=seed, scenario=scenario, moves=tuple(moves))


def _kind_of(seed: int) -> str:
    later = [kind for kind, first in LATER.items() if seed >= first]
    return later[-1] if later else KINDS[seed % len(KINDS)]


def _belongs_to(among: Set[str]) -> str:
    """The first of the later kinds of scenario, where a move is for these alone; else none."""
    return min(among, key=LATER.__getitem__) if among <= LATER.keys() else ""


def _due(seed: int) -> tuple[str, ...]:
    """Of the moves that fit its scenario those that no seed before it has had to draw for longest."""
    if _kind_of(seed) in LATER:
        due_all = tuple(sorted(kind for kind, spec in MOVES.items() if _belongs_to(spec.among) == _kind_of(seed)))
        return due_all if _kind_of(seed) not in UNLIKE else due_all[seed % len(due_all) :][:1]
    queue = sorted(kind for kind, spec in MOVES.items() if not spec.among <= LATER.keys())
    random.Random(0).shuffle(queue)
    due: list[str] = []
    for number in range(seed + 1):
        due = [kind for kind in queue if _kind_of(number) in MOVES[kind].among][:DUE]
        queue = [*(kind for kind in queue if kind not in due), *due]
    return tuple(due)
