"""Ranks of one loop that take unlike numbers of steps are told so, in place of waiting for each other."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.config.schema import Config
from node.roles.joined_ranks import FollowingNode, LeadingNode, LoopNode, Ranks, _Word
from node.system.errors import RunError
from p2ptrain.training.user_model import UserModel


class SpokenRanks:
    """Ranks of which rank 0 says these words, or whose rank 0 this is."""

    def __init__(self, *words: _Word) -> None:
        self.words, self.said = list(words), list[_Word]()
        self.shared, self.shards = 0, None
        self.learner = SimpleNamespace(changes=0, take_step=lambda: None)

    def say(self, word: _Word = _Word.ON) -> _Word:
        self.said.append(word)
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


def test_rank_0_says_that_it_leaves_before_its_last_correction() -> None:
    ranks = SpokenRanks()

    def stop(*, cut_short: bool) -> None:
        ranks.learner.changes += 1

    inner: Any = SimpleNamespace(stop=stop, step=lambda: None)
    nobody = cast(Callable[[], UserModel], None)
    node = LeadingNode(cast(LoopNode, inner), cast(Ranks, ranks), nobody, cast(Config, None), Path())
    node.step()
    node.stop(cut_short=False)
    assert ranks.said == [_Word.ON, _Word.LEAVING, _Word.CHANGED]
    assert ranks.shared == 1
