"""The section [selection]: what it refuses in one line, and that by default there is nothing to choose."""

import pytest

from node.config.schema import Config, from_raw, load
from node.system.errors import UsageError


def test_by_default_everybody_is_fetched_from_alike() -> None:
    assert Config().selection.find() is None


def test_options_go_to_the_policy() -> None:
    config = load(sets=["selection.policy=useful", "selection.options={link=0.25}", "selection.most=5"])
    assert config.selection.find() is not None
    assert config.selection.options == {"link": 0.25}
    assert config.selection.most == 5
    assert load(sets=[]).selection.most == 4


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"policy": "usefull"}, "unknown selection.policy 'usefull', did you mean useful?"),
        ({"policy": "useful", "options": {"link": 9.0}}, "link must lie in 0..4, not 9"),
        ({"policy": "random", "options": {"link": 1.0}}, "random"),
        ({"policy": "nearest", "most": 1}, "selection.most"),
        ({"oldest": 0}, "selection.oldest"),
        ({"explore": 1.5}, "selection.explore"),
    ],
)
def test_what_cannot_be_is_one_line(raw: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_raw({"selection": raw})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_there_must_be_one_more_than_the_aggregator_needs() -> None:
    sync = {"f": 2}
    assert from_raw({"sync": sync, "selection": {"policy": "useful", "most": 5}}).selection.most == 5
    with pytest.raises(UsageError, match=r"selection.most=4 is too few: trimmed_mean with sync.f=2 needs 4"):
        from_raw({"sync": sync, "selection": {"policy": "useful", "most": 4}})


@pytest.mark.parametrize("strategy", ["noloco", "gossip_pga", "moshpit", "allreduce"])
def test_where_members_agree_on_whom_to_meet_nobody_may_be_passed_over(strategy: str) -> None:
    with pytest.raises(UsageError, match="members agree on whom to meet"):
        from_raw({"sync": {"strategy": strategy}, "selection": {"policy": "nearest"}})


def test_refinements_go_without_a_selection() -> None:
    with pytest.raises(UsageError, match="refinements"):
        from_raw({"sync": {"layers": ["int8"]}, "selection": {"policy": "nearest"}})
