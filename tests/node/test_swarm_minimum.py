"""The least memory and speed that a swarm's manifest names, and a newcomer's machine is checked against."""

import itertools
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from swarm_harness import DIGITS, appointed_role, founded, joined, line_of, mistake, said

from gossip.membership import Role
from node.config.schema import from_raw
from node.swarm import agreed_settings
from node.swarm.accept_invite import membership, read_invite
from node.swarm.minimum import check_minimum
from node.system.errors import UsageError
from p2ptrain import tasks
from p2ptrain.training import speed

HERE = {"train": {"device": "cpu", "threads": 1}}
RAW = {**DIGITS, "train": {**DIGITS["train"], **HERE["train"]}}


def ticking(seconds: float) -> speed.Clock:
    """A clock that goes on by so much whenever it is read."""
    reads = itertools.count()
    return lambda: next(reads) * seconds


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Clocks that go on by the first of these whenever they are read: 0.1 s, so that nothing takes long."""
    pace, now = [0.1], [0.0]

    def read() -> float:
        now[0] += pace[0]
        return now[0]

    monkeypatch.setattr("node.swarm.minimum.time.perf_counter", read)
    return pace


def test_a_rate_is_operations_over_the_median_of_times() -> None:
    config = from_raw(RAW).train
    assert speed.matmul_rate(config, ticking(0.1)) == pytest.approx(2 * 512**3 / 0.1)
    threads = torch.get_num_threads()
    task = tasks.get("digits")
    per_step = config.batch_size * config.grad_accumulation
    assert speed.token_rate(task, config, ticking(1.0)) == pytest.approx(per_step)
    assert speed.token_rate(task, config, ticking(4.0)) == pytest.approx(per_step / 4)
    assert torch.get_num_threads() == threads


def test_a_manifest_says_nothing_of_it_unless_it_was_chosen(tmp_path: Path) -> None:
    plain = founded(tmp_path / "plain", RAW).chain.newest.terms.settings
    assert agreed_settings.MINIMUM not in plain
    with_memory = founded(tmp_path / "memory", RAW, min_memory_bytes=5).chain.newest.terms.settings
    assert with_memory == {**plain, "minimum": {"memory_bytes": 5}}
    assert agreed_settings.digest_of_recipe(with_memory) == agreed_settings.digest_of_recipe(plain)
    anyway = {**RAW, "node": {"below_minimum": True}}
    assert founded(tmp_path / "own", anyway).chain.newest.terms.settings == plain


def test_a_slower_machine_is_told_what_is_needed_and_what_was_measured(
    tmp_path: Path, steady: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    per_step = from_raw(RAW).train.batch_size
    made = founded(tmp_path / "lab", RAW, min_tokens_per_s=8.0 * per_step)
    least = made.chain.newest.terms.settings["minimum"]
    assert least == {"tokens_per_s": 8.0 * per_step, "operations_per_token": pytest.approx(2 * 512**3 / per_step)}
    member = joined(tmp_path / "fast", made.line, HERE)  # this machine: 10 steps a second
    assert member.raw["task"]["name"] == "digits"
    steady[0] = 0.2  # half as fast
    (tmp_path / "invite").write_text(made.line)
    for command in ("node", "doctor"):
        wrong = mistake(
            capsys, command, "--invite", tmp_path / "invite", "--run-dir", tmp_path / "slow", "--set", "train.threads=1"
        )
        assert f"trains {8 * per_step} tokens/s, and this machine would train about {5 * per_step} " in wrong
        assert "it multiplies 1.34 GFLOP/s, and 2.15 are needed" in wrong
        assert "--set node.below_minimum=true" in wrong
    assert not (tmp_path / "slow").exists()
    joined(tmp_path / "slow", made.line, {**HERE, "node": {"below_minimum": True}})
    again = membership(tmp_path / "slow", {}, None)
    assert again is not None
    assert again.raw["node"]["below_minimum"] is True


@pytest.mark.thorough
def test_doctor_looks_on_where_its_owner_joins_all_the_same(
    tmp_path: Path, steady: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    made = founded(tmp_path / "lab", RAW, min_tokens_per_s=1e9)
    (tmp_path / "invite").write_text(made.line)
    words = ("doctor", "--invite", tmp_path / "invite", "--run-dir", tmp_path / "slow", "--set", "train.threads=1")
    words += ("--measure", "0")
    assert "--set node.below_minimum=true" in mistake(capsys, *words)
    code, out, _ = said(capsys, *words, "--set", "node.below_minimum=true", "--json")
    assert code == 0, out


def test_who_trains_nothing_or_is_a_member_already_is_not_measured(
    tmp_path: Path, steady: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = founded(tmp_path / "lab", RAW, min_tokens_per_s=1.0)
    joined(tmp_path / "member", made.line, HERE)
    monkeypatch.setattr(speed, "matmul_rate", lambda *_: pytest.fail("it was measured"))
    assert membership(tmp_path / "member", {}, None) is not None
    for role in (Role.OBSERVER, Role.BOOTSTRAP):
        appointed_role(made.folder, tmp_path / role.value, role)
    with pytest.raises(pytest.fail.Exception):
        membership(tmp_path / "new", HERE, read_invite(line_of(made.folder)))


def test_a_machine_with_less_memory_than_was_chosen_is_told_so(tmp_path: Path) -> None:
    most = psutil.virtual_memory().total
    made = founded(tmp_path / "lab", RAW, min_memory_bytes=2.0 * most)
    with pytest.raises(UsageError, match=r"needs .*B of memory, and this machine has") as told:
        membership(tmp_path / "b", HERE, read_invite(made.line))
    assert "node.below_minimum=true" in str(told.value.hint)
    joined(tmp_path / "b", made.line, {**HERE, "node": {"below_minimum": True}})
    joined(tmp_path / "c", founded(tmp_path / "other", RAW, min_memory_bytes=0.5 * most).line, HERE)


@pytest.mark.parametrize("speed_said", ["\x1b[2J", -1, True, None, {}])
@pytest.mark.parametrize("key", ["tokens_per_s", "operations_per_token"])
def test_a_least_speed_that_is_no_number_is_not_joined_nor_printed(speed_said: Any, key: str) -> None:
    least = {"tokens_per_s": 1.0, "operations_per_token": 1.0, key: speed_said}
    with pytest.raises(UsageError, match="no number") as told:
        check_minimum({"minimum": least}, RAW, joins=True)
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--min-speed", "inf"), "--min-speed must be a positive number"),
        (("--min-memory", "inf"), "--min-memory must be a positive number"),
        (("--min-speed", "0"), "0.001"),
        (("--task", "external", "--min-speed", "5"), "in the members' own programs"),
    ],
)
def test_a_mistake_of_the_founder_s_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], what: str
) -> None:
    out = tmp_path / "lab"
    given = words if "--task" in words else ("--task", "digits", *words)
    assert what in mistake(capsys, "swarm", "create", "x", "--out", out, "--no-passphrase", *given)
    assert not out.exists()
