"""Ranks of one loop that take unlike numbers of steps are told so, in place of waiting for each other."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.config.schema import Config
from node.roles.joined import JoinedNode
from node.roles.joined_ranks import FollowingNode, LeadingNode, LedNode, Ranks, _Word
from node.system.errors import RunError
from p2ptrain.training.user_model import UserModel


class SpokenRanks:
    """Ranks of which rank 0 says these words, or whose rank 0 this is."""

    def __init__(self, *words: _Word) -> None:
        self.words, self.said = list(words), list[_Word]()
        self.shared, self.shards, self.untold = 0, None, 0
        self.noted = 0
        self.learner = SimpleNamespace(changes=0, take_step=lambda: None, note_step=self.note)

    def note(self) -> None:
        self.noted += 1

    def say(self, word: _Word = _Word.ON, untold: int = 0) -> _Word:
        self.said.append(word)
        self.untold = untold
        return self.words.pop(0) if self.words else word

    def share_parameters(self) -> None:
        self.shared += 1


def following(*words: _Word) -> tuple[FollowingNode, SpokenRanks]:
    ranks = SpokenRanks(*words)
    return FollowingNode(cast(Ranks, ranks), cast(Callable[..., UserModel], None), lambda folder: None), ranks


def test_a_rank_that_has_fewer_steps_than_rank_0_ends_with_a_line() -> None:
    node, _ = following(_Word.ON, _Word.CHANGED)
    node.step()
    with pytest.raises(RunError, match="rank 0 takes more steps"):
        node.stop(cut_short=False)


def test_a_rank_that_has_more_steps_than_rank_0_ends_with_a_line() -> None:
    node, _ = following(_Word.ON, _Word.LEAVING)
    node.step()
    with pytest.raises(RunError, match="this rank takes more steps"):
        node.step()


def test_ranks_that_leave_together_have_the_last_correction() -> None:
    node, ranks = following(_Word.CHANGED, _Word.LEAVING, _Word.CHANGED)
    node.step()
    node.stop(cut_short=False)
    assert ranks.shared == 2


class CountingNode:
    """A node that may be told of so many steps later, each time."""

    def __init__(self, ranks: SpokenRanks, *untold: int) -> None:
        self._ranks, self._untold = ranks, list(untold)
        self.told = list[int]()

    def step(self, taken: int = 1) -> None:
        self.told.append(taken)

    def untold(self) -> int:
        return self._untold.pop(0) if self._untold else 0

    def stop(self, *, cut_short: bool) -> None:
        self._ranks.learner.changes += not cut_short


def leading(*untold: int) -> tuple[LeadingNode, SpokenRanks, CountingNode]:
    ranks = SpokenRanks()
    inner, nobody = CountingNode(ranks, *untold), cast(Callable[[], UserModel], None)
    return LeadingNode(cast(LedNode, inner), cast(Ranks, ranks), nobody, cast(Config, None), Path()), ranks, inner


def test_rank_0_says_that_it_leaves_before_its_last_correction() -> None:
    node, ranks, _ = leading()
    node.step()
    node.stop(cut_short=False)
    assert ranks.said == [_Word.ON, _Word.LEAVING, _Word.CHANGED]
    assert ranks.shared == 1


def test_a_word_is_for_several_steps_and_none_is_lost_at_the_end() -> None:
    node, ranks, inner = leading(0, 2, 3)
    for _ in range(7):
        node.step()
    assert inner.told == [1, 1, 3], "and two steps since"
    assert ranks.said == [_Word.ON] * 3
    assert ranks.noted == 4
    node.stop(cut_short=False)
    assert inner.told == [1, 1, 3, 2]
    assert ranks.said == [_Word.ON, _Word.ON, _Word.ON, _Word.LEAVING, _Word.CHANGED]


def test_a_loop_that_is_interrupted_between_two_words_says_none() -> None:
    node, ranks, inner = leading(2)
    node.step()
    node.step()
    node.stop(cut_short=True)
    assert (inner.told, ranks.said) == ([1], [_Word.ON])


def test_another_rank_waits_for_no_word_in_between() -> None:
    node, ranks = following(_Word.ON, _Word.ON, _Word.LEAVING)
    node.step()
    ranks.untold = 2
    for _ in range(3):
        node.step()
    assert len(ranks.said) == 2
    with pytest.raises(RunError, match="this rank takes more steps"):
        node.step()


@pytest.mark.parametrize(
    ("changed", "untold"),
    [({}, "0.2 of 0.5"), ({"overlap": 10}, "0.1 of 0.5"), ({"private": object()}, 0), ({"ending": True}, 0)],
)
def test_how_many_steps_a_node_need_not_count_at_once(changed: dict[str, Any], untold: object) -> None:
    of = {"overlap": 20, "private": None, "ending": False} | changed
    node = SimpleNamespace(
        state=SimpleNamespace(overlap_steps=of["overlap"]),
        pace=SimpleNamespace(steps=20),
        inner=SimpleNamespace(untold=lambda share, most_s: f"{share:.1f} of {most_s}"),
    )
    joined = SimpleNamespace(node=node, _ending=of["ending"], _private=of["private"])
    assert JoinedNode.untold(cast(JoinedNode, joined)) == untold
