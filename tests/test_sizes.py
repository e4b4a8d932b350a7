"""The suite's shares: together they have each test once, whatever other tests there are."""

import pytest
from sizes import Share, share


def test_each_test_is_in_one_share_and_shares_are_about_as_large() -> None:
    names = [f"tests/test_{file}.py::test_it[{number}]" for file in range(40) for number in range(40)]
    found = [[name for name in names if Share(part, 8).has(name)] for part in range(8)]
    assert sorted(name for each in found for name in each) == sorted(names)
    assert all(150 < len(each) < 250 for each in found)
    assert Share(4, 8).has("tests/test_a.py::test_it"), "in every process alike"


@pytest.mark.parametrize(("words", "found"), [("3/8", Share(3, 8)), ("1203/8", Share(3, 8)), ("091/8", Share(3, 8))])
def test_any_number_names_a_share(words: str, found: Share) -> None:
    assert share(words) == found


@pytest.mark.parametrize("words", ["", "3", "3/0", "a/8", "3/8/2"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"share|invalid literal"):
        share(words)
