"""Lists of numbers as scripts take them from argparse."""

import argparse

import pytest

from node.bench.lists import some_numbers


def test_ranges_and_numbers_are_read_each_once() -> None:
    assert some_numbers("0-2") == [0, 1, 2]
    assert some_numbers("4,1-2,4") == [4, 1, 2]


@pytest.mark.parametrize("text", ["x", "", "3-1", "-1", "1-2-3", "1.5"])
def test_what_is_no_list_is_told_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="no list of numbers such as 0-4"):
        some_numbers(text)
