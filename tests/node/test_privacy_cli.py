"""`p2ptrain privacy`: an epsilon before a run, and what was told after it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from sim_swarm import Member, Swarm, played
from typed_events import said

from node.cli import main
from node.config.schema import from_raw
from node.events.log import older, to_line
from node.privacy.disclosures import Coverage, disclosures
from node.privacy.privacy_report import report_of
from node.system.run_dir import CONFIG, EVENTS, PRIVACY, VISITORS_PRIVACY
from node.visits.visitor_ledger import VisitorLedger
from p2ptrain.privacy.accounting import epsilon_of
from p2ptrain.privacy.base import Release


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["privacy", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_an_epsilon_before_a_run(capsys) -> None:
    code, out, _ = run(capsys, "epsilon", "--noise", "1", "--rate", "0.01", "--steps", "1000")
    assert (code, out) == (0, "epsilon 2.101 at delta 1e-05: noise 1, rate 0.01, 1000 steps\n")
    code, out, _ = run(capsys, "epsilon", "--noise", "1", "--rate", "0.01", "--steps", "1000", "--json")
    found = json.loads(out)
    assert found["epsilon"] == epsilon_of([Release(mechanism="", noise=1.0, rate=0.01, count=1000)], 1e-5)
    assert (found["noise"], found["delta"]) == (1.0, 1e-5)
    code, out, _ = run(capsys, "epsilon", "--noise-for", "2", "--rate", "0.01", "--steps", "1000", "--json")
    assert 1.98 < json.loads(out)["epsilon"] <= 2
    code, out, _ = run(capsys, "epsilon", "--noise", "1e-200", "--steps", "1", "--json")
    assert (code, "Infinity" in out) == (0, False), "which is no JSON"
    assert json.loads(out)["epsilon"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "10"), "give --noise or --noise-for"),
        (("--steps", "10", "--noise", "1", "--noise-for", "2"), "give --noise or --noise-for"),
        (("--steps", "10", "--noise", "nan"), "noise must be a number above 0"),
        (("--steps", "10", "--noise", "1", "--rate", "0"), "a rate is above 0"),
        (("--steps", "10", "--noise", "1", "--delta", "1"), "delta is above 0"),
        (("--steps", "10", "--noise-for", "-1"), "epsilon must be a number above 0"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, words: tuple[str, ...], said: str) -> None:
    code, out, err = run(capsys, "epsilon", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def private_run(folder: Path) -> Member:
    """A node that spends its budget, with the files that a real one leaves."""
    privacy = {"privatizer": "example", "noise": 2.0, "rate": 0.02, "epsilon": 0.3}

    async def members(swarm: Swarm) -> Member:
        other = await swarm.start("other", train={"rounds": 20})
        private = await swarm.start("private", wait_for=1, privacy=privacy, train={"rounds": 20})
        await swarm.finished()
        for member in (private, other):
            (member.folder / EVENTS).write_text("".join(to_line(event) for event in member.events))
            (member.folder / CONFIG).write_text(member.node.config.to_toml())
        return private

    return played(members, folder)


def test_a_report_after_a_run(tmp_path: Path, capsys) -> None:
    member = private_run(tmp_path)
    code, out, _ = run(capsys, "report", str(tmp_path), "--json")
    assert code == 0
    other, private = map(json.loads, out.splitlines())
    assert (other["privatizer"], other["epsilon"], other["entries"]) == ("none", 0, 0)
    assert [each["coverage"] for each in other["disclosures"]] == ["not covered"]
    assert 0.2 < private["epsilon"] <= private["budget"] == 0.3
    assert private["tight_epsilon"] is None or private["tight_epsilon"] <= private["epsilon"]
    assert private["refused"]
    assert private["bytes_sent"] == member.told("round")[-1]["bytes_sent"] > 0
    assert private["sends"]
    assert private["rounds"] == len(member.told("round"))
    assert private["gaps"] == []
    code, out, _ = run(capsys, "report", str(member.folder))
    assert f"epsilon {private['epsilon']:.4g} of 0.3 at delta 1e-05 (RDP), and training stopped there" in out
    assert "not covered losses and metrics on held-out examples" in out


def test_a_report_counts_what_was_sent_after_the_budget_was_spent_and_by_each_process(tmp_path: Path, capsys) -> None:
    member = private_run(tmp_path)
    last = member.told("round")[-1]
    ended = {"event": "interrupted", "ts": 0.0, "summary": {"bytes_sent": last["bytes_sent"] + 5_000_000}}
    again = {**last, "bytes_sent": 2_000_000}
    (member.folder / EVENTS).write_text("".join(to_line(event) for event in (last, ended, again)))
    found = report_of(member.folder, tight=False)
    assert (found.bytes_sent, found.sends) == (last["bytes_sent"] + 7_000_000, True)
    _, out, _ = run(capsys, "report", str(member.folder))
    assert "left the machine: at least 7." in out


def test_a_start_in_which_nothing_was_trained_is_not_counted_again(tmp_path: Path) -> None:
    """`up` or `node` of a run whose rounds are done ends with the summary of the process before it."""
    member = private_run(tmp_path)
    last = member.told("round")[-1]
    ended = {"event": "finished", "ts": 0.0, "summary": {"bytes_sent": last["bytes_sent"]}}
    resumed = {"event": "resumed", "ts": 0.0, "round": last["round"], "checkpoint": "checkpoint"}
    (member.folder / EVENTS).write_text("".join(to_line(event) for event in (last, ended, resumed, ended)))
    assert report_of(member.folder, tight=False).bytes_sent == last["bytes_sent"]


def test_an_epsilon_that_is_no_number_is_none_in_a_reports_json(tmp_path: Path) -> None:
    found = replace(report_of(tmp_path, tight=False), epsilon=math.inf)
    assert found.as_json()["epsilon"] is None
    assert replace(found, epsilon=1.5).as_json()["epsilon"] == 1.5


def test_a_report_says_what_no_epsilon_covers(tmp_path: Path) -> None:
    member = private_run(tmp_path)
    events = [event for event in member.events if event["event"] == "round"]
    bare = [{key: value for key, value in events[0].items() if not key.startswith("epsilon")}]
    (member.folder / EVENTS).write_text("".join(to_line(event) for event in bare + events))
    assert report_of(member.folder, tight=False).gaps == ["1 of its rounds were trained without protection"]
    (member.folder / PRIVACY).unlink()
    assert "privacy.jsonl is not there, or is empty: nobody knows what was spent" in report_of(member.folder).gaps


def test_a_report_says_that_the_beginning_of_a_log_is_gone(tmp_path: Path) -> None:
    """Logs are bounded, and what was said there of rounds without protection goes with the oldest lines."""
    member = private_run(tmp_path)
    log = member.folder / EVENTS
    first, *others = member.told("round")
    started = said("started").to_record()
    without = [{**each, "epsilon": None} for each in (first, *others[:2])]
    older(log).write_text("".join(to_line(each) for each in (started, *without)))
    log.write_text("".join(map(to_line, others[2:])))
    assert report_of(member.folder, tight=False).gaps == ["3 of its rounds were trained without protection"]
    older(log).write_text("".join(map(to_line, [without[-1], started])))
    assert report_of(member.folder, tight=False).gaps == [
        "1 of its rounds were trained without protection",
        f"the beginning of its log is gone, as logs are bounded: of rounds before {without[-1]['round']} nobody knows "
        "here which were trained without protection, nor what was sent",
    ]


def test_a_cut_line_counts_in_a_report(tmp_path: Path) -> None:
    member = private_run(tmp_path)
    before = report_of(member.folder, tight=False)
    ledger = member.folder / PRIVACY
    ledger.write_bytes(ledger.read_bytes() + b'{"ent')
    after = report_of(member.folder, tight=False)
    assert (after.torn, after.entries) == (1, before.entries)
    assert after.epsilon > before.epsilon


def test_a_report_has_the_most_that_a_visitors_key_has_spent(tmp_path: Path, capsys) -> None:
    visits = {"listen": "127.0.0.1:8443", "noise": 1.15, "trim": 0.0, "delta": 1e-3, "epsilon": 8.0}
    (tmp_path / CONFIG).write_text(from_raw({"task": {"name": "digits"}, "visits": visits}).to_toml())
    (tmp_path / EVENTS).touch()
    ledger = VisitorLedger(tmp_path / VISITORS_PRIVACY, noise=1.15, delta=1e-3, epsilon=8.0)
    ledger.charge([b"a" * 32, b"b" * 32])
    ledger.charge([b"a" * 32, b"c" * 32])
    ledger.close()
    twice = epsilon_of([Release(mechanism="", noise=1.15, rate=1.0, count=2)], 1e-3)
    code, out, _ = run(capsys, "report", str(tmp_path), "--json")
    told = json.loads(out)["visitors"]
    assert (code, told["keys"], told["sums"], told["torn"], told["budget"]) == (0, 3, 2, 0, 8.0)
    assert told["epsilon"] == pytest.approx(twice)
    _, out, _ = run(capsys, "report", str(tmp_path))
    assert f"epsilon {twice:.4g} of 8 at delta 0.001 at most of a key (RDP), 3 keys in 2 sums" in out
    assert "covered     visitors' data" in out
    path = tmp_path / VISITORS_PRIVACY
    path.write_bytes(path.read_bytes() + b'{"ent')
    torn = report_of(tmp_path, tight=False).visitors
    assert torn is not None
    assert (torn.torn, torn.epsilon > twice) == (1, True)
    assert "1 line that cannot be read, charged to every key" in run(capsys, "report", str(tmp_path))[1]


def test_a_report_says_that_a_visitors_ledger_is_lost(tmp_path: Path) -> None:
    member = private_run(tmp_path)
    last = {**member.told("round")[-1], "visits_epsilon": 1.5}
    (member.folder / EVENTS).write_text(to_line(last))
    lost = "visitors.jsonl is not there, or is empty: nobody knows what visitors have spent"
    assert report_of(member.folder, tight=False).gaps == [lost]
    VisitorLedger(member.folder / VISITORS_PRIVACY, noise=1.0, delta=1e-3, epsilon=None).charge([b"a" * 32])
    found = report_of(member.folder, tight=False)
    assert found.gaps == []
    assert found.visitors is not None, "though noise is off in its settings now"


def test_what_is_told_follows_the_settings() -> None:
    def covered(**sections: dict[str, object]) -> dict[str, Coverage]:
        config = from_raw({"task": {"name": "digits"}, **sections})
        return {each.what: each.coverage for each in disclosures(config)}

    example = covered(privacy={"privatizer": "example"})
    assert example["training loss"] is Coverage.WITHHELD
    assert example["how many examples a step drew"] is Coverage.WITHHELD
    assert "how many examples a step drew" not in covered(privacy={"privatizer": "update"})
    assert "visitors' data" not in example
    assert "the optimizer's state in checkpoints" not in example
    assert covered(privacy={"privatizer": "update"})["the optimizer's state in checkpoints"] is Coverage.UNCOVERED
    assert (
        covered(privacy={"privatizer": "example"}, visits={"listen": "127.0.0.1:8443"})["visitors' data"]
        is Coverage.UNCOVERED
    )
    sums = {"strategy": "secure_average", "clipping_range": 1.0, "sum_noise": 0.5, "sum_clip": 0.2}
    protected = {"privatizer": "secure_update", "noise": 0.5, "clip": 0.2}
    of_sums = covered(privacy=protected, sync=sums)
    config = from_raw({"task": {"name": "digits"}, "privacy": protected, "sync": sums})
    (of_groups,) = (each for each in disclosures(config) if each.what.startswith("sums of groups"))
    assert "at most n - t of a group of n" in of_groups.why, "with more of them the others add less than is counted"
    distance = "distance of the own move from the mean (consensus distance)"
    assert of_sums[distance] is Coverage.UNCOVERED, "it is computed from less noise than is counted"
    assert distance not in example
    assert len(covered()) == 1
