"""What of a secure sum outlives the process: that it was begun."""

import pytest

from gossip.core.digests import digest_of
from gossip.core.errors import LocalError
from gossip.secure_aggregation.rounds_begun import MAX_BEGUN, RoundsBegun


def test_a_sum_is_begun_once_in_this_process_and_the_next(tmp_path):
    file = tmp_path / "begun"
    begun = RoundsBegun(file)
    begun.begin(digest_of(b"a"), 7)
    begun.begin(digest_of(b"b"), 7)  # another group of the same round
    for again in (begun, RoundsBegun(file)):
        with pytest.raises(LocalError, match="once"):
            again.begin(digest_of(b"a"), 7)
    RoundsBegun(file).begin(digest_of(b"c"), 6)  # from an older checkpoint, in another group


def test_of_sums_that_are_forgotten_the_round_is_known(tmp_path):
    file = tmp_path / "begun"
    begun = RoundsBegun(file)
    for round_ in range(MAX_BEGUN + 3):
        begun.begin(digest_of(b"%d" % round_), round_)
    for round_ in range(3):
        with pytest.raises(LocalError, match="rounds from 3 on"):
            RoundsBegun(file).begin(digest_of(b"%d" % round_), round_)
    with pytest.raises(LocalError, match="once"):
        RoundsBegun(file).begin(digest_of(b"3"), 3)
    RoundsBegun(file).begin(digest_of(b"another"), 3)


@pytest.mark.parametrize("content", [b"", b"\x93", b"nonsense", bytes(10_000), b"\x92\x00\x91\x92\xc4\x01a\x00"])
def test_a_damaged_file_is_one_line_and_begins_nothing(tmp_path, content):
    file = tmp_path / "begun"
    file.write_bytes(content)
    with pytest.raises(LocalError, match="does not say which secure sums"):
        RoundsBegun(file).begin(digest_of(b"a"), 1)
    assert file.read_bytes() == content


def test_what_cannot_be_written_is_not_begun(tmp_path):
    with pytest.raises(LocalError, match="cannot write"):
        RoundsBegun(tmp_path / "no folder" / "begun").begin(digest_of(b"a"), 1)


def test_without_a_file_it_is_remembered_for_the_process():
    begun = RoundsBegun()
    begun.begin(digest_of(b"a"), 1)
    with pytest.raises(LocalError, match="once"):
        begun.begin(digest_of(b"a"), 1)
