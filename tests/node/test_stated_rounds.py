"""What of a region's model outlives the process: after which rounds it was stated."""

import pytest

from gossip.core.errors import LocalError
from node.training.stated_rounds import MAX_ROUNDS, StatedRounds


def test_a_round_is_stated_once_in_this_process_and_the_next(tmp_path):
    file = tmp_path / "stated"
    stated = StatedRounds(file)
    assert stated.state(13)
    for again in (stated, StatedRounds(file)):
        assert not again.state(13)
    assert StatedRounds(file).state(5), "from an older checkpoint, in a round in which it was not drawn"


def test_of_rounds_that_are_forgotten_none_is_stated_again(tmp_path):
    file = tmp_path / "stated"
    stated = StatedRounds(file)
    assert all(stated.state(8 * at) for at in range(MAX_ROUNDS + 3))
    for _ in range(2):
        again = StatedRounds(file)
        assert not any(again.state(8 * at) for at in range(MAX_ROUNDS + 3))
        assert not again.state(1), "it may have been stated before those that are remembered"
    assert StatedRounds(file).state(10**15)
    assert file.stat().st_size < 4096


@pytest.mark.parametrize("content", [b"", b"[1", b"{}", b'["a"]', b"[true]", b"[1.5]", b"[" * 4000, b"\xff", b"null"])
def test_a_damaged_file_is_one_line_and_states_nothing(tmp_path, content):
    file = tmp_path / "stated"
    file.write_bytes(content)
    with pytest.raises(LocalError, match="remove it"):
        StatedRounds(file).state(1)
    assert file.read_bytes() == content


def test_what_cannot_be_written_is_not_stated_and_tried_again(tmp_path):
    stated = StatedRounds(tmp_path / "later" / "stated")
    with pytest.raises(LocalError, match="cannot write"):
        stated.state(1)
    (tmp_path / "later").mkdir()
    assert stated.state(1)


def test_without_a_file_it_is_remembered_for_the_process():
    stated = StatedRounds()
    assert stated.state(1)
    assert not stated.state(1)
