"""What a node says once in its life: secure sums that it begins, models of its region that it states."""

from pathlib import Path

import pytest

from gossip.core.digests import digest_of
from gossip.core.errors import LocalError
from gossip.core.ids import Digest
from gossip.core.said_once import MAX_NAMES, SaidOnce


def said(file: Path | None) -> SaidOnce:
    return SaidOnce(file, "which secure sums were begun")


def named(number: int) -> Digest:
    return digest_of(b"%d" % number)


def test_a_thing_is_said_once_in_this_process_and_the_next(tmp_path):
    file = tmp_path / "said"
    once = said(file)
    assert once.first(named(1), 7)
    assert once.first(named(2), 7), "another group of the same round"
    for again in (once, said(file)):
        assert not again.first(named(1), 7)
    assert said(file).first(named(3), 6), "from an older checkpoint, in another group"
    assert file.stat().st_mode & 0o777 == 0o600


def test_of_things_that_are_forgotten_the_round_is_known(tmp_path):
    file = tmp_path / "said"
    once = said(file)
    assert all(once.first(named(at), 8 * at) for at in range(MAX_NAMES + 3))
    for _ in range(2):
        again = said(file)
        assert not any(again.first(named(at), 8 * at) for at in range(MAX_NAMES + 3))
        assert not again.first(named(1000), 16), "it may have been said with those that are forgotten"
    assert said(file).first(named(1000), 17)
    assert said(file).first(named(2000), 10**15)
    assert file.stat().st_size < 4096


@pytest.mark.parametrize(
    "content", [b"", b"\x93", b"nonsense", bytes(10_000), b"\x92\x00\x91\x92\xc4\x01a\x00", b"\x93\x00\x90\x00"]
)
def test_a_damaged_file_is_one_line_and_nothing_is_said(tmp_path, content):
    file = tmp_path / "said"
    file.write_bytes(content)
    with pytest.raises(LocalError, match=r"does not say which secure sums were begun .*: put back"):
        said(file).first(named(1), 1)
    assert file.read_bytes() == content


def test_what_cannot_be_written_is_not_said_and_tried_again(tmp_path):
    once = said(tmp_path / "later" / "said")
    with pytest.raises(LocalError, match="cannot write which secure sums were begun"):
        once.first(named(1), 1)
    (tmp_path / "later").mkdir()
    assert once.first(named(1), 1)


def test_without_a_file_it_is_remembered_for_the_process():
    once = said(None)
    assert once.first(named(1), 1)
    assert not once.first(named(1), 1)
