"""The visitors' ledger: each key pays for its own sums, a line is on the disk before its sum, and none is forgotten."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as fewer
from hypothesis import strategies as st
from sizes import examples

from node.privacy.chained_log import NOTHING
from node.system.errors import RunError
from node.visits import visitor_ledger
from node.visits.visitor_ledger import VisitorLedger, epsilon_of_sum, read_visitor_ledger
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release

DELTA, NOISE = 1e-3, 1.15
ONE, TWO, OTHER = (bytes([nth]) * 32 for nth in range(3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "visitors.jsonl"


def opened(path: Path, *, noise: float = NOISE, epsilon: float | None = 8.0) -> VisitorLedger:
    return VisitorLedger(path, noise=noise, delta=DELTA, epsilon=epsilon)


def spent(*noises: float) -> float:
    return epsilon_of([Release(mechanism="", noise=noise, rate=1.0, count=1) for noise in noises], DELTA)


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6))
@fewer(max_examples=examples(50))
def test_one_number_says_what_sums_of_any_noise_spend(noises: list[float]) -> None:
    assert epsilon_of_sum(sum(noise**-2 for noise in noises), DELTA) == pytest.approx(spent(*noises), rel=1e-9)


def test_a_key_pays_for_the_sums_that_it_is_in_and_is_refused_before_its_budget_is_exceeded(path: Path) -> None:
    ledger, sums = opened(path), 0
    while ledger.allows(ONE):
        ledger.charge([ONE])
        sums += 1
    assert spent(*[NOISE] * sums) <= 8.0 < spent(*[NOISE] * (sums + 1))
    assert ledger.epsilon == ledger.epsilon_for(ONE) == pytest.approx(spent(*[NOISE] * sums))
    assert ledger.allows(TWO), "nobody spends another's"
    assert ledger.epsilon_for(TWO) == 0.0
    ledger.close()
    again = opened(path)
    assert not again.allows(ONE)
    assert again.epsilon == ledger.epsilon
    again.close()


def test_other_noise_is_counted_with_what_was_spent_before(path: Path) -> None:
    ledger = opened(path)
    ledger.charge([ONE, TWO])
    ledger.close()
    ledger = opened(path, noise=3.0)
    ledger.charge([ONE])
    assert ledger.epsilon_for(ONE) == pytest.approx(spent(NOISE, 3.0))
    assert ledger.epsilon_for(TWO) == pytest.approx(spent(NOISE))
    ledger.close()


def test_a_key_is_in_a_sum_once(path: Path) -> None:
    ledger = opened(path)
    with pytest.raises(ValueError, match="once"):
        ledger.charge([ONE, TWO, ONE])
    assert ledger.mark == NOTHING
    ledger.close()


def test_a_line_is_synced_before_charge_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, synced, real = opened(path), list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(path.stat().st_size), real(descriptor)))
    ledger.charge([ONE])
    assert synced == [path.stat().st_size]
    assert synced[0] > 0
    ledger.close()


@pytest.mark.parametrize("cut", [2, 40, 150])
def test_a_line_that_was_cut_is_charged_to_every_key(cut: int, path: Path) -> None:
    ledger = opened(path)
    ledger.charge([ONE])
    ledger.charge([ONE, TWO])
    ledger.close()
    path.write_bytes(path.read_bytes()[:-cut])
    ledger = opened(path)
    assert ledger.contents.torn == 1
    assert ledger.epsilon_for(TWO) == ledger.epsilon_for(OTHER) == pytest.approx(spent(NOISE))
    assert ledger.epsilon_for(ONE) == ledger.epsilon == pytest.approx(spent(NOISE, NOISE))
    ledger.charge([TWO])
    ledger.close()
    for each in (ledger, opened(path)):
        assert each.epsilon_for(ONE) == pytest.approx(spent(NOISE, NOISE))
        assert each.epsilon_for(TWO) == pytest.approx(spent(NOISE, NOISE))
        assert each.epsilon_for(OTHER) == pytest.approx(spent(NOISE))
    assert [json.loads(line)["what"] for line in path.read_bytes().splitlines() if line.endswith(b"}")][-2:] == [
        "torn",
        "released",
    ]


def test_a_damaged_line_and_a_second_process_are_refused(path: Path) -> None:
    ledger = opened(path)
    ledger.charge([ONE])
    ledger.charge([TWO])
    with pytest.raises(RunError, match="in use by another process"):
        opened(path)
    mark = ledger.mark
    ledger.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0].replace(b"00", b"11") + lines[1])
    with pytest.raises(RunError, match=r"line 1 of .* is damaged"):
        opened(path)
    path.write_bytes(lines[0])
    ledger = opened(path)
    with pytest.raises(RunError, match="has 1 entries"):
        ledger.check(mark)
    ledger.close()


def test_on_a_full_disk_no_visitor_is_counted_from_then_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    ledger = opened(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(RunError, match="No space left on device; without it no visitor may be counted"):
            ledger.charge([ONE])
    with pytest.raises(RunError, match="No space left"):
        ledger.charge([ONE])
    ledger.close()


def test_a_ledger_knows_so_many_keys_and_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitor_ledger, "MOST_KEYS", 2)
    ledger = opened(path)
    ledger.charge([ONE, TWO])
    assert ledger.is_full
    assert ledger.knows(ONE)
    assert not ledger.knows(OTHER)
    ledger.close()


def _charges_for_ever(path: Path, made: Path) -> None:
    """Charge and then make a sum, again and again: `made` has one byte for each."""
    ledger = opened(path, epsilon=None)
    with made.open("ab", buffering=0) as sums:
        while True:
            ledger.charge([ONE])
            sums.write(b".")


def test_a_host_that_is_killed_between_ledger_and_model_has_spent_at_least_what_it_told(tmp_path: Path) -> None:
    path, made = tmp_path / "visitors.jsonl", tmp_path / "made"
    for nth in range(4):
        host = multiprocessing.get_context("fork").Process(target=_charges_for_ever, args=(path, made))
        host.start()
        sums = nth * 10
        while not made.exists() or made.stat().st_size < sums + 7:  # real processes: there is nothing to wait on
            assert host.is_alive()
        host.kill()
        host.join()
        contents = read_visitor_ledger(path)
        entries = contents.mark.entries + contents.torn
        assert made.stat().st_size <= entries <= made.stat().st_size + nth + 1
