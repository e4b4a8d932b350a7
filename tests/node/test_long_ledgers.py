"""Ledgers that have become long: entries are summed up, and at no moment less is known than was spent, nor twice."""

import errno
import json
import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from node.config.privacy_section import PrivacyConfig
from node.privacy import chained_log
from node.privacy.budget import PrivacyBudget
from node.privacy.chained_log import LedgerMark, check_mark
from node.privacy.ledger import LedgerContents, PrivacyLedger, read_ledger
from node.privacy.privacy_report import report_of
from node.system.errors import RunError
from node.system.run_dir import PRIVACY
from node.visits.visitor_ledger import VisitorLedger, read_visitor_ledger
from p2ptrain.privacy.base import Release

TAIL, REMEMBERED = 2_000, 40
"""Of the ledgers here: some ten entries, and the digests of forty."""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(chained_log, "TAIL_BYTES", TAIL)
    monkeypatch.setattr(chained_log, "REMEMBERED", REMEMBERED)
    return tmp_path / "privacy.jsonl"


def release(count: int = 20, *, noise: float = 1.0) -> Release:
    return Release(mechanism="example", noise=noise, rate=0.01, count=count)


def append(path: Path, times: int) -> LedgerMark:
    ledger = PrivacyLedger(path, clock=lambda: 5.0)
    for _ in range(times):
        ledger.append(release())
    ledger.close()
    return ledger.mark


def append_until_it_is_due(path: Path) -> int:
    """Append until the next entry comes with a new head. Returns how many entries there are."""
    ledger = PrivacyLedger(path, clock=lambda: 5.0)
    while not ledger._log._is_long():
        ledger.append(release())
    ledger.close()
    return ledger.mark.entries


def counted(path: Path) -> int:
    return sum(each.count for each in read_ledger(path).all_releases())


def has_head(path: Path) -> bool:
    return path.read_bytes().startswith(b'{"head": ')


def head(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes().splitlines()[0])
    return found


def test_a_long_ledger_and_its_memory_are_bounded_and_say_the_same(path: Path) -> None:
    reference, lengths = LedgerContents(), []
    ledger = PrivacyLedger(path)
    for number in range(400):
        each = release(number % 7 + 1, noise=1.0 + number % 3)
        ledger.append(each)
        reference.take(asdict(each))
        lengths.append(path.stat().st_size)
        assert len(ledger.contents.digests) <= 2 * REMEMBERED * chained_log.SHORT
    ledger.close()
    assert max(lengths) < 3 * TAIL
    assert sum(after < before for before, after in pairwise(lengths)) > 10
    for contents in (ledger.contents, read_ledger(path)):
        assert contents.releases == reference.releases
        assert contents.costliest == reference.costliest
        assert (contents.mark, contents.torn) == (ledger.mark, 0)
        assert contents.mark.entries == 400


def test_what_an_older_release_wrote_is_read_and_summed_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(chained_log, "TAIL_BYTES", 1 << 30)
        mark = append(path, 100)
    assert not has_head(path)
    assert len(read_ledger(path).digests) <= 2 * REMEMBERED * chained_log.SHORT
    before = path.stat().st_size
    append(path, 1)
    assert has_head(path)
    assert path.stat().st_size < before / 4
    assert len(head(path)["digests"]) == REMEMBERED * chained_log.SHORT
    assert counted(path) == 20 * 101
    check_mark(read_ledger(path), mark, path)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from([0.7, 1.0, 4.0]), st.integers(1, 30), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_is_appended_and_cut_nothing_is_forgotten(lives: list[tuple[int, float, int, bool]]) -> None:
    """Each life appends some, and may be cut in its last line; a cut line counts at least as much as it did."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(chained_log, "TAIL_BYTES", TAIL)
        path = Path(folder) / "privacy.jsonl"
        spent, cuts, marks = Counter[float](), 0, []
        for count, noise, times, is_cut in lives:
            ledger = PrivacyLedger(path)
            for _ in range(times):
                ledger.append(release(count, noise=noise))
                spent[noise] += count
                marks.append(ledger.mark)
            ledger.close()
            assert all(ledger.contents.begins_with(mark) for mark in marks)
            assert not any(ledger.contents.begins_with(LedgerMark(each.entries, "0" * 32)) for each in marks)
            if is_cut and marks:
                path.write_bytes(path.read_bytes()[:-9])
                cuts, marks = cuts + 1, marks[:-1]
        found = read_ledger(path)
        whole, known = Counter[float](), sum(each.count for each in found.all_releases())
        for each in found.all_releases():
            whole[each.noise] += each.count
        if not cuts:
            assert whole == spent
        assert known >= sum(spent.values()) - 30 * cuts, "a cut line is charged as the costliest"
        assert known <= sum(spent.values()) + 30 * cuts


STEPS = ("open", "fchmod", "write", "fsync", "replace", "close", "unlink")
"""What a ledger asks of the operating system."""


def kill_at(step: int, when: str) -> None:
    """Kill this process before or after its so-manieth call from here, or in the middle of what it writes."""
    calls = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                with suppress(OSError):
                    if when == "amid" and name == "write":
                        real(args[0], args[1][: len(args[1]) // 2])
                    elif when == "after":
                        real(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return called

    for name in STEPS:
        setattr(os, name, wrap(name, getattr(os, name)))


def live(path: Path, step: int, when: str, appended: Any) -> None:
    ledger = PrivacyLedger(path)
    kill_at(step, when)
    ledger.append(release())
    appended.send(True)
    os._exit(0)


@pytest.mark.parametrize("when", thorough_but({"amid"}, ["before", "amid", "after"]))
def test_killed_at_any_step_of_summing_up_it_has_what_was_spent_and_nothing_twice(when: str, path: Path) -> None:
    context = multiprocessing.get_context("fork")
    entries = append_until_it_is_due(path)
    long, steps = path.read_bytes(), 0
    while True:
        steps += 1
        for each in path.parent.iterdir():
            each.unlink()
        path.write_bytes(long)
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=live, args=(path, steps, when, theirs))
        child.start()
        theirs.close()
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        found = read_ledger(path)
        assert found.torn == 0
        assert entries <= found.mark.entries <= entries + 1
        assert counted(path) == 20 * found.mark.entries
        append(path, 1)  # by the next process; what is left beside it is in nobody's way
        assert has_head(path)
        assert counted(path) == 20 * (found.mark.entries + 1)
        assert list(path.parent.iterdir()) == [path]
        if child.exitcode == 0:
            assert ours.recv()
            break
    assert steps >= 8, "it has a head to write, to sync and to put in place"


def test_the_new_file_is_on_the_disk_before_it_is_in_place_and_its_place_before_anything_is_allowed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = append_until_it_is_due(path)
    ledger, seen = PrivacyLedger(path), list[tuple[str, int]]()
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        seen.append(("synced", os.fstat(descriptor).st_size))
        real_sync(descriptor)

    def replace(source: Path, target: Path) -> None:
        seen.append(("replaced", source.stat().st_size))
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(chained_log, "sync_folder", lambda folder: seen.append((str(folder), 0)))
    ledger.append(release())
    size = path.stat().st_size
    assert seen == [("synced", size), ("replaced", size), (str(path.parent), 0)]
    assert ledger.mark.entries == entries + 1


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["open", "fchmod", "write", "fsync", "replace"])
def test_where_there_is_no_room_for_a_head_the_file_goes_on_as_it_is(
    step: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = append_until_it_is_due(path)
    ledger, failures = PrivacyLedger(path), 0
    real = getattr(os, step)

    def once(*args: Any, **kwargs: Any) -> Any:
        nonlocal failures
        failures += 1
        return no_space() if failures == 1 else real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(os, step, once)
        ledger.append(release())
        assert not has_head(path)
        ledger.append(release())
    assert not has_head(path), "it is not tried at each entry"
    assert counted(path) == 20 * (entries + 2)
    assert list(path.parent.iterdir()) == [path]
    for _ in range(20):
        ledger.append(release())
    assert has_head(path)
    for _ in range(20):
        ledger.append(release())
        assert path.stat().st_size - ledger.contents.head_bytes < 1.5 * TAIL
    ledger.close()
    assert counted(path) == 20 * (entries + 42)


@pytest.mark.parametrize("how", ["done", "neither"])
def test_an_error_of_a_rename_is_believed_where_the_old_file_is_there(
    how: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network's file system may have renamed all the same; or somebody has removed the file."""
    entries = append_until_it_is_due(path)
    ledger, real = PrivacyLedger(path), os.replace

    def replace(source: Path, target: Path) -> None:
        if how == "done":
            real(source, target)
        else:
            target.unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        if how == "done":
            ledger.append(release())
        else:
            with pytest.raises(RunError, match="Input/output error; without it"):
                ledger.append(release())
    if how == "done":
        ledger.append(release())
        assert has_head(path)
        assert counted(path) == 20 * (entries + 2)
    else:
        with pytest.raises(RunError, match="Input/output error"):
            ledger.append(release())
    ledger.close()


def test_nothing_is_allowed_where_it_is_not_known_which_file_a_power_cut_leaves(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = append_until_it_is_due(path)
    ledger = PrivacyLedger(path)
    with monkeypatch.context() as patched:
        patched.setattr(chained_log, "sync_folder", no_space)
        with pytest.raises(RunError, match="No space left on device; without it no private step may be taken"):
            ledger.append(release())
    with pytest.raises(RunError, match="No space left"):
        ledger.append(release())
    assert ledger.mark.entries == entries
    ledger.close()


@pytest.mark.parametrize("step", ["write", "replace"])
def test_after_an_interruption_nothing_more_is_written(step: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the midst of it: the process no longer knows which file is there, or that it has the entry."""
    append_until_it_is_due(path)
    ledger, real = PrivacyLedger(path), getattr(os, step)

    def interrupted(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.append(release())
    before = path.read_bytes()
    with pytest.raises(RunError, match="it is not known what was written last"):
        ledger.append(release())
    assert path.read_bytes() == before
    ledger.close()
    append(path, 1)


def test_a_process_that_opened_the_file_before_it_was_replaced_does_not_have_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_until_it_is_due(path)
    first, real = PrivacyLedger(path), os.open

    def slow(*args: Any, **kwargs: Any) -> int:
        descriptor = real(*args, **kwargs)
        monkeypatch.setattr(os, "open", real)
        first.append(release())
        return descriptor

    monkeypatch.setattr(os, "open", slow)
    with pytest.raises(RunError, match="in use by another process"):
        PrivacyLedger(path)
    assert has_head(path)
    with pytest.raises(RunError, match="in use by another process"):
        PrivacyLedger(path)
    first.close()
    PrivacyLedger(path).close()


def test_a_name_for_a_file_elsewhere_stays_one_and_its_permissions_stay(path: Path) -> None:
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()
    path.symlink_to(elsewhere / "ledger")
    append_until_it_is_due(path)
    (elsewhere / "ledger").chmod(0o600)
    append(path, 1)
    assert path.is_symlink()
    assert has_head(elsewhere / "ledger")
    assert (elsewhere / "ledger").stat().st_mode & 0o777 == 0o600


def test_a_damaged_head_is_refused_wherever_it_is_damaged(path: Path) -> None:
    append_until_it_is_due(path)
    append(path, 1)
    whole = path.read_bytes()
    for at in range(0, whole.index(b"\n"), 11):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        for open_ in (PrivacyLedger, read_ledger):
            with pytest.raises(RunError, match=r"line 1 of .* is damaged"):
                open_(path)
    for size in range(len(b'{"head": '), whole.index(b"\n"), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(RunError, match=r"line 1 of .* is damaged"):
            read_ledger(path)
    path.write_bytes(whole + whole)
    with pytest.raises(RunError, match="is damaged"):
        read_ledger(path)
    later = {key: value for key, value in head(path).items() if key != "digest"} | {"head": 2}
    path.write_text(json.dumps({**later, "digest": chained_log._digest(later)}) + "\n")
    with pytest.raises(RunError, match="is damaged"):
        read_ledger(path)


def test_a_ledger_that_was_put_back_or_is_another_one_is_noticed(path: Path, tmp_path: Path) -> None:
    append(path, 30)
    old = path.read_bytes()
    mark = append(path, 50)
    assert has_head(path)
    path.write_bytes(old)
    with pytest.raises(RunError, match="has 30 entries, and the checkpoint beside it was made after 80"):
        check_mark(read_ledger(path), mark, path)
    ledger = PrivacyLedger(path, clock=lambda: 6.0)
    for _ in range(50 + REMEMBERED - 1):
        ledger.append(release())
    ledger.close()
    with pytest.raises(RunError, match="has other ones"):
        check_mark(read_ledger(path), mark, path)


def test_an_entry_before_those_that_are_remembered_is_known_by_its_number(path: Path) -> None:
    mark = append(path, 10)
    append(path, 20 * REMEMBERED)
    contents = read_ledger(path)
    assert contents.begins_with(mark)
    assert not contents.begins_with(LedgerMark(contents.mark.entries + 1, mark.digest))
    assert not contents.begins_with(LedgerMark(-1, mark.digest))


def test_a_cut_line_is_charged_as_the_costliest_that_was_summed_up(path: Path) -> None:
    ledger = PrivacyLedger(path)
    ledger.append(release(500))
    ledger.close()
    append_until_it_is_due(path)
    append(path, 2)
    assert has_head(path)
    assert head(path)["sum"]["costliest"]["count"] == 500
    before = counted(path)
    path.write_bytes(path.read_bytes()[:-9])
    assert counted(path) == before - 20 + 500
    append(path, 40)
    assert counted(path) == before - 20 + 500 + 40 * 20


def test_a_budget_and_a_report_are_those_of_all_entries(path: Path) -> None:
    settings = PrivacyConfig(privatizer="example", epsilon=2.0, delta=1e-5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chained_log, "TAIL_BYTES", 1 << 30)
        append(path, 60)
        whole = PrivacyBudget(settings, PrivacyLedger(path))
        whole.close()
    append(path, 1)
    assert has_head(path)
    budget = PrivacyBudget(settings, PrivacyLedger(path))
    assert budget.has_paid_for(release(61 * 20))
    assert not budget.has_paid_for(release(61 * 20 + 1))
    assert budget.epsilon > whole.epsilon
    assert budget.epsilon == pytest.approx(whole.with_release(release()))
    report = report_of(path.parent, tight=False)
    assert path.name == PRIVACY
    assert (report.entries, report.releases, report.torn) == (61, [release(61 * 20)], 0)
    budget.close()


def test_a_visitors_ledger_sums_up_what_each_key_has_spent(path: Path) -> None:
    keys = [bytes([nth]) * 32 for nth in range(4)]
    ledger = VisitorLedger(path, noise=1.05, delta=1e-3, epsilon=None)
    ledger.charge(keys)
    ledger.close()
    ledger = VisitorLedger(path, noise=1.15, delta=1e-3, epsilon=None)
    for number in range(100):
        ledger.charge(keys[: number % 4 + 1])
        if number == 50:
            ledger.close()
            path.write_bytes(path.read_bytes()[:-9])
            ledger = VisitorLedger(path, noise=1.1, delta=1e-3, epsilon=None)
    assert has_head(path)
    assert path.stat().st_size < 3 * TAIL
    ledger.close()
    found = read_visitor_ledger(path)
    assert (found.by_key, found.by_all) == (ledger.contents.by_key, ledger.contents.by_all)
    assert (found.least_noise, found.mark) == (ledger.contents.least_noise, ledger.mark)
    assert (found.by_all, found.least_noise) == (1.05**-2, 1.05)
    assert found.of(keys[3]) < found.of(keys[0])


def test_a_large_head_is_written_once_in_as_many_bytes_of_entries(path: Path) -> None:
    ledger, heads = VisitorLedger(path, noise=1.15, delta=1e-3, epsilon=None), 0
    ledger.charge([bytes([nth]) * 32 for nth in range(200)])
    for _ in range(40):
        before = ledger.contents.head_bytes
        ledger.charge([b"a" * 32])
        heads += ledger.contents.head_bytes != before
    assert ledger.contents.head_bytes > 8 * TAIL > 40 * 200
    assert heads == 1
    ledger.close()
