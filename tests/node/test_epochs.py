"""An identity uses no epoch twice: not after a crash, a power cut, with a damaged file or a clock set back."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from disk_crashes import failing_disk
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.limits import MAX_COUNTER
from node.system.errors import RunError
from node.training.epochs import MAX_EPOCH, EpochCounter

NOW = 1_785_000_000.0
"""Unix seconds, in 2026."""
YEAR = 365 * 86_400.0
MOST_CALLS = 50


@dataclass
class Start:
    """A process that uses an epoch."""

    path: Path
    clock: float = NOW
    checkpoint: int = 0
    warnings: list[str] = field(default_factory=list)

    def epoch(self) -> int:
        counter = EpochCounter(self.path, unix_time=lambda: self.clock, warn=self.warnings.append)
        counter.note(self.checkpoint)
        epoch = counter.advance()
        assert counter.used == epoch
        return epoch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch"


def damage(path: Path, data: bytes, *, written: float = NOW) -> None:
    path.write_bytes(data)
    os.utime(path, (written, written))


def test_the_clock_decides_where_there_is_nothing_else(path: Path) -> None:
    assert Start(path).epoch() == int(NOW * 1000)
    assert path.read_text() == f"{int(NOW * 1000)}\n"


def test_a_clock_that_was_set_back_a_year_changes_nothing(path: Path) -> None:
    first = Start(path).epoch()
    back = Start(path, clock=NOW - YEAR)
    assert [back.epoch(), back.epoch()] == [first + 1, first + 2]
    assert not back.warnings


def test_it_is_durable_before_it_is_used(path: Path) -> None:
    Start(path).epoch()
    with failing_disk(path.parent) as disk:
        Start(path).epoch()
    beside = disk.calls[0][1]
    folder = path.parent.name
    assert disk.calls == [
        ("open", beside),
        ("write", beside),
        ("fsync", beside),
        ("rename", f"{beside} epoch"),
        ("open", folder),
        ("fsync", folder),
    ]


@pytest.mark.parametrize("how", ["error", "kill"])
@pytest.mark.parametrize("power", [True, False], ids=["crash", "power cut"])
def test_no_epoch_comes_twice_wherever_a_start_is_cut_short(how, power: bool, tmp_path: Path) -> None:
    for number in range(MOST_CALLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / "epoch"
        used = [Start(path).epoch()]
        with failing_disk(folder, fails_at=number, how=how) as disk:
            try:
                used.append(Start(path, clock=NOW - YEAR).epoch())
            except RunError as error:
                assert "cannot write" in str(error)  # noqa: PT017
        if not power:
            disk.cut_power()
        again = Start(path, clock=NOW - YEAR)
        used += [again.epoch(), again.epoch()]
        assert used == sorted(set(used))
        assert not again.warnings
        if len(disk.calls) <= number:
            return
    pytest.fail("it never ended")


@pytest.mark.parametrize("data", [b"", b"\0" * 13, b"x\n", b"-5\n", b"17850", b"1e400\n", b"9" * 17, b"9" * 5000])
def test_a_damaged_file_leaves_its_age_and_the_checkpoint(data: bytes, path: Path) -> None:
    first = Start(path).epoch()
    damage(path, data, written=NOW + 0.01)
    back = Start(path, clock=NOW - YEAR)
    assert first < back.epoch() < first + 60_000
    assert bool(back.warnings) == (data != b"17850"), "a number without its line's end may be an older release's"
    damage(path, data, written=0.0)
    assert Start(path, clock=NOW - YEAR, checkpoint=first + 7).epoch() == first + 8


def test_a_file_cut_to_nothing_with_a_clock_set_back_is_told_of(path: Path) -> None:
    first = Start(path).epoch()
    damage(path, b"", written=NOW)
    back = Start(path, clock=NOW - YEAR)
    assert back.epoch() > first
    (warning,) = back.warnings
    assert "is damaged" in warning


def test_a_file_that_cannot_be_read_counts_as_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Start(path).epoch()
    os.utime(path, (NOW, NOW))

    def unreadable(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    back = Start(path, clock=NOW - YEAR)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", unreadable)
        assert back.epoch() > first
    assert back.warnings


def test_what_an_older_release_wrote_is_read(path: Path) -> None:
    damage(path, str(int(NOW * 1000)).encode(), written=NOW)
    old = Start(path, clock=NOW - YEAR)
    assert int(NOW * 1000) < old.epoch() <= int(NOW * 1000) + 2
    assert not old.warnings


def test_what_an_older_release_reads_is_written(path: Path) -> None:
    epoch = Start(path).epoch()
    assert int(path.read_text(encoding="ascii")) == epoch


@given(data=st.one_of(st.binary(max_size=80), st.from_regex(rb"[0-9]{1,20}\n?", fullmatch=True)))
def test_any_bytes_give_an_epoch_that_others_can_read(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("any") / "epoch"
    damage(path, data)
    epoch = Start(path, checkpoint=5).epoch()
    assert int(NOW * 1000) <= epoch <= MAX_COUNTER
    if data.endswith(b"\n") and data[:-1].isdigit() and int(data) <= MAX_EPOCH:
        assert epoch > int(data)
