"""Simulated swarms: the same events from the same seed, and what happens to nodes happens to real ones."""

import gc
import itertools
import json
import math
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from simulated import FAITHFUL, LIBRARY, ROOT, played, ran, result_of, scenario_in
from sizes import thorough_but

from node.cli.app import main
from node.events.event_types import (
    CheckpointFailed,
    CheckpointWritten,
    Event,
    Finished,
    Interrupted,
    NeighbourLost,
    Resumed,
    RoundTrained,
)
from node.events.log import read_events
from node.simulation import member, twin
from node.simulation.scenario import Invariants
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import Played, play
from node.simulation.verdict import broken_invariants, judged, replay_command
from node.system.errors import RunError
from node.system.run_dir import EVENTS, node_dirs

LONG = ("train.rounds=12", "train.eval_every=12")

COSTLY = ("unequal-links", "region-cut-off", "diurnal", "week-in-an-hour", "sites-apart", "liars-30")
"""Scenarios whose shortest run takes a second of a core or more: `make thorough` has them."""


def left_by(folder: Path, text: str, *sets: str) -> tuple[Played, dict[str, list[Event]]]:
    """What was played, and all events of each node from its folder."""
    out = folder / "out"
    found = play(scenario_in(folder, text, *sets), folder=out)
    return found, {node.name: list(read_events(node / EVENTS)) for node in node_dirs(out)}


def of(kind: type[Event], events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def seconds(event: Event) -> float:
    return event.ts - member.UNIX_START


# -- determinism


def test_the_same_seed_gives_the_same_events_and_another_seed_others(tmp_path: Path) -> None:
    one, again, other = (judged(played(tmp_path, seed=seed)) for seed in (1, 1, 2))
    assert one.events_digest == again.events_digest != other.events_digest
    assert (one.loss_mean, one.bytes_sent_max, one.virtual_s) == (
        again.loss_mean,
        again.bytes_sent_max,
        again.virtual_s,
    )
    assert one.broken == ()
    assert one.finished == one.honest == 4


@pytest.mark.thorough
def test_another_process_gives_the_same_events_and_leaves_folders_as_up_does(tmp_path: Path) -> None:
    path, out = scenario_in(tmp_path).path, tmp_path / "run"
    one = result_of(str(path), "--out", str(out))
    other = result_of(str(path), hash_seed="7")
    assert one["events_digest"] == other["events_digest"]
    assert (one["honest_bans"], one["crypto"], one["rounds_max"]) == (0, "shared", 3)
    names = [folder.name for folder in node_dirs(out)]
    assert names == ["home-0", "home-1", "home-2", "home-3"]
    for name in names:
        left = {each.name for each in (out / name).iterdir()}
        assert left >= {"events.jsonl", "summary.json", "config.toml", "identity.key", "checkpoint", "epoch"}
        events = list(read_events(out / name / EVENTS))
        assert [event.round for event in of(RoundTrained, events)] == [1, 2, 3]
        assert len(of(Finished, events)) == 1
    kept = json.loads((out / "simulation.json").read_text())
    assert kept["events_digest"] == one["events_digest"]
    assert set(kept["versions"]) >= {"python", "torch", "trio", "p2ptrain"}
    assert load_scenario(out / "scenario.toml").scenario == scenario_in(tmp_path).scenario


INJECTED = """
import sys
from pathlib import Path
from node.simulation import twin
from node.simulation.scenario_file import load_scenario
from node.simulation.verdict import judged

def known_to(self, member):
    return tuple(self.members[name].address for name in {name for name in self.members if name != member.name})

twin.Twin.known_to = known_to
print(judged(twin.play(load_scenario(Path(sys.argv[1]), ["train.rounds=1"]))).events_digest)
"""


def test_what_is_assumed_of_a_device_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], fixed: None) -> None:
    path = tmp_path / "bare.toml"
    path.write_text('[train]\nrounds = 1\n[[nodes]]\nname = "bare"\ncount = 2\n[links.lan]\n')
    assert main(["simulate", str(path)]) == 0
    assert "bare: no device is set, and a step is assumed to take 0.05 s; --calibration" in capsys.readouterr().out
    with_one = scenario_in(tmp_path).path
    assert main(["simulate", str(with_one), "--set", "train.rounds=1"]) == 0
    assert "no device is set" not in capsys.readouterr().out


@pytest.mark.thorough
def test_an_order_that_follows_hashes_is_caught(tmp_path: Path) -> None:
    path = str(scenario_in(tmp_path).path)
    digests = {ran(path, hash_seed=seed, code=INJECTED).stdout for seed in ("1", "2")}
    assert len(digests) == 2
    assert all(len(digest.strip()) == 32 for digest in digests)


@pytest.mark.thorough
def test_crypto_changes_no_event(tmp_path: Path) -> None:
    shared, each = (judged(played(tmp_path, "", f"crypto={how}", "train.rounds=1")) for how in ("shared", "each"))
    assert shared.events_digest == each.events_digest
    assert (shared.crypto, each.crypto) == ("shared", "each")


def test_a_node_that_looks_at_the_clock_ends_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(member.Member, "unix_time", lambda self: time.time())
    with pytest.raises(BaseExceptionGroup) as found:
        played(tmp_path)
    assert "time.time" in str(found.value.exceptions[0]) or "time.time" in repr(found.value)


# -- what happens to nodes


def test_who_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    text = """
[[events]]
kind = "kill"
at_s = 2.0
nodes = ["home-3"]

[[events]]
kind = "restart"
at_s = 4.0
nodes = ["home-3"]
"""
    found, events = left_by(tmp_path, text, *LONG)
    assert judged(found).broken == ()
    mine = events["home-3"]
    resumed = of(Resumed, mine)
    assert found.twin.members["home-3"].starts == 2
    assert len(resumed) == 1
    assert resumed[0].round == of(CheckpointWritten, [it for it in mine if seconds(it) < 2])[-1].round > 0
    assert not [it for it in mine if 2.0 < seconds(it) < 4.0], "who is dead says nothing"
    assert of(RoundTrained, mine)[-1].round == 12


@pytest.mark.thorough
def test_who_leaves_says_goodbye_and_is_not_waited_for(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "leave"\nat_s = 2.0\nnodes = ["home-3"]\n'
    found, events = left_by(tmp_path, text, *LONG)
    assert len(of(Interrupted, events["home-3"])) == 1
    assert found.twin.members["home-3"].told.rounds < 12
    assert [len(of(Finished, events[f"home-{number}"])) for number in range(3)] == [1, 1, 1]
    assert found.virtual_s < 60
    lost = of(NeighbourLost, events["home-0"])
    assert any(2.0 <= seconds(event) <= 4.0 for event in lost)


def test_who_joins_late_takes_the_swarms_model(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "join"\nat_s = 2.5\nnodes = ["home"]\nshare = 0.25\n'
    found, events = left_by(tmp_path, text, *LONG)
    assert judged(found).broken == ()
    late = [name for name, told in events.items() if seconds(told[0]) >= 2.5]
    assert len(late) == 1
    assert of(RoundTrained, events[late[0]])[0].round > 1


HALVES = 'kind = "partition"\ngroups = [["home-0", "home-1"], ["home-2", "home-3"]]'


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(f"{HALVES}\nfor_s = 1.5", id="partition"),
        pytest.param('kind = "region_loss"\nregion = "europe"\nfor_s = 1.5', id="loss", marks=pytest.mark.thorough),
        pytest.param(f'{HALVES}\n[[events]]\nkind = "heal"\nat_s = 3.0', id="heal", marks=pytest.mark.thorough),
    ],
)
def test_a_cut_is_seen_and_mended(tmp_path: Path, event: str) -> None:
    rounds = ("train.rounds=24", "train.eval_every=24")  # nodes dial again within seconds
    found, events = left_by(tmp_path, f"\n[[events]]\nat_s = 1.5\n{event}\n", *rounds)
    assert judged(found).broken == ()
    assert found.twin.network.reachable(*(found.twin.members[f"home-{n}"].peer_id for n in (0, 2)))
    lost = of(NeighbourLost, events["home-0"])
    assert any(1.4 <= seconds(told) <= 1.6 for told in lost)
    apart = [it for it in of(RoundTrained, events["home-0"]) if 1.7 < seconds(it) < 2.9]
    assert {it.neighbours for it in apart} <= {0, 1}
    assert of(RoundTrained, events["home-0"])[-1].neighbours >= 2, "more than its half of a partition has"


@pytest.mark.thorough
def test_a_stalled_node_falls_behind(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "stall"\nat_s = 1.5\nnodes = ["home-3"]\nfor_s = 2.0\n'
    found, events = left_by(tmp_path, text, *LONG)
    assert judged(found).broken == ()
    assert max(event.fresh for event in of(RoundTrained, events["home-0"]) if 2.0 < seconds(event) < 3.4) == 2
    assert found.twin.members["home-0"].told.staleness > 0


def test_a_skewed_clock_shows_in_the_log_alone(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "clock_skew"\nat_s = 0.5\nnodes = ["home-3"]\nahead_s = -3600.0\n'
    found, events = left_by(tmp_path, text)
    assert judged(found).broken == ()
    assert seconds(events["home-3"][-1]) < -3500
    assert seconds(events["home-0"][-1]) > 0


def test_a_full_disk_is_reported_and_an_emptied_one_is_used(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "disk_full"\nat_s = 0.0\nnodes = ["home-3"]\nfor_s = 2.0\n'
    found, events = left_by(tmp_path, text, *LONG)
    assert judged(found).broken == ()
    failed = of(CheckpointFailed, events["home-3"])
    assert failed
    assert max(seconds(it) for it in failed) <= 2.0 < min(seconds(it) for it in of(CheckpointWritten, events["home-3"]))


@pytest.mark.thorough
def test_a_disk_that_stays_full_is_a_failure_with_a_replay(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "disk_full"\nat_s = 0.0\nnodes = ["home-3"]\n'
    result = judged(played(tmp_path, text))
    assert len(result.broken) == 1
    assert result.broken[0].startswith("home-3 failed: trained 3 rounds, but the model was not saved")


@pytest.mark.thorough
def test_of_two_events_of_a_kind_the_longer_one_lasts(tmp_path: Path) -> None:
    events = "".join(
        f'[[events]]\nkind = "disk_full"\nat_s = {at_s}\nfor_s = {for_s}\nnodes = ["home-0"]\n'
        for at_s, for_s in ((0.1, 100.0), (0.2, 0.3))
    )
    members = played(tmp_path, events).members
    assert members["home-0"].disk.full
    assert not members["home-1"].disk.full


def test_a_slow_disk_takes_its_time(tmp_path: Path) -> None:
    text = '\n[[events]]\nkind = "disk_stall"\nat_s = 0.0\nnodes = ["home-3"]\ntakes_s = 3.0\n'
    quick, slow = judged(played(tmp_path)), judged(played(tmp_path, text))
    assert slow.virtual_s > quick.virtual_s + 3


@pytest.mark.thorough
def test_an_honest_node_turns(tmp_path: Path) -> None:
    text = '\n[attack]\nname = "sign_flip"\n\n[[events]]\nkind = "attack"\nat_s = 2.0\nnodes = ["home-3"]\n'
    found, events = left_by(tmp_path, text, *LONG)
    liar = found.twin.members["home-3"]
    assert (liar.lied, liar.starts, liar.config.attack.name) == (True, 2, "sign_flip")
    assert [it.name for it in found.twin.honest] == ["home-0", "home-1", "home-2"]
    assert len(of(Resumed, events["home-3"])) == 1


@pytest.mark.thorough
def test_a_hidden_node_dials_and_is_not_dialled(tmp_path: Path) -> None:
    found = played(
        tmp_path, '\n[links.router]\nnat = "symmetric"\n\n[[nodes]]\nname = "hid"\ncount = 2\nlink = "router"\n'
    )
    assert judged(found).finished == 6
    assert found.twin.network.hidden(found.twin.members["hid-0"].peer_id)
    assert not found.twin.network.hidden(found.twin.members["home-0"].peer_id)


@pytest.mark.thorough
def test_sessions_end_and_begin_again(tmp_path: Path) -> None:
    text = """
[sessions.breaks]
kind = "trace"
intervals_s = [[0, 1], [1.4, 2.4], [2.8, 100]]

[[nodes]]
name = "guest"
count = 1
link = "home"
device = "desktop"
session = "breaks"
"""
    found, events = left_by(tmp_path, text, *LONG)
    assert judged(found).broken == ()
    assert found.twin.members["guest-0"].starts == len(of(Resumed, events["guest-0"])) + 1 == 3


# -- the verdict


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("verdict"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rounds_min": 4}, "rounds_min: home-0 (3), home-1 (3), home-2 (3), home-3 (3) closed fewer than 4 rounds"),
        ({"loss_max": 0.1}, "loss_max: the mean held-out loss is"),
        ({"utilization_min": 1.0}, "utilization_min: the mean is 0."),
        ({"bytes_max": 1000}, "bytes_max: a node sent"),
        ({"recovers_within": 3}, ""),
        ({"all_finish": True, "finish_share": 1.0, "rounds_min": 3, "loss_max": 9.0, "bytes_max": 10**9}, ""),
    ],
)
def test_each_invariant_can_be_broken(found: Played, asked: dict[str, Any], said: str) -> None:
    scenario = found.twin.scenario.model_copy(update={"invariants": Invariants(**asked)})
    lines = list(broken_invariants(scenario, found.twin.honest))
    assert len(lines) == bool(said)
    assert all(line.startswith(said) for line in lines)


def test_bans_among_honest_and_unfinished_nodes_are_told(tmp_path: Path) -> None:
    one = played(tmp_path, "", "train.rounds=1")
    first, second, *_ = one.twin.honest
    first.told.banned.append(str(second.peer_id))
    first.finished = False
    first.told.staleness = 3
    asked = Invariants(all_finish=True, finish_share=0.9, staleness_max=2)
    lines = list(broken_invariants(one.twin.scenario.model_copy(update={"invariants": asked}), one.twin.honest))
    assert [line.partition(":")[0] for line in lines] == [
        "all_finish",
        "finish_share",
        "no_honest_ban",
        "staleness_max",
    ]
    assert "home-0 banned home-1" in lines[2]


def test_an_observer_that_fails_and_a_liar_that_never_lied_are_told(tmp_path: Path) -> None:
    text = '[[nodes]]\nname = "watch"\nsettings = { node = { role = "observer" } }\n'
    text += '[[nodes]]\nname = "liar"\nattack = { name = "sign_flip" }\n'
    one = played(tmp_path, text, "train.rounds=1")
    assert judged(one).broken == ()
    observer, liar = one.members["watch-0"], one.members["liar-0"]
    observer.error, liar.error, liar.told.rounds = RunError("no space"), RunError("no attack"), 0
    assert judged(one).broken == ("watch-0 failed: no space", "liar-0 failed: no attack")


def test_a_liar_that_ends_alone_is_no_failure(tmp_path: Path) -> None:
    one = played(tmp_path, "", "train.rounds=1")
    liar = one.twin.honest[0]
    liar.error, liar.lied = RunError("it learned alone"), True
    assert judged(one).broken == ()
    liar.lied = False
    assert judged(one).broken == ("home-0 failed: it learned alone",)


def test_where_all_turn_nobody_is_left_to_judge_by(tmp_path: Path) -> None:
    text = '[attack]\nname = "sign_flip"\n[[events]]\nkind = "attack"\nat_s = 0.5\nnodes = ["*"]\n'
    asked = "[assert]\nall_finish = true\nfinish_share = 1.0\n"
    (line,) = judged(played(tmp_path, text + asked)).broken
    assert line.startswith("no node is left to judge by")


def test_a_loss_that_is_no_number_is_told_and_is_null_in_json(tmp_path: Path) -> None:
    """As in the large mode, where no node ends at once."""
    event = '[[events]]\nkind = "stall"\nat_s = 0.5\nfor_s = 0.1\nnodes = ["home-0"]\n'
    one = played(tmp_path, event, "train.rounds=1")
    one.twin.honest[0].told.losses.append((30.0, 1, math.nan))
    result = judged(one)
    assert result.broken == ("home-0 has diverged: its held-out loss is nan",)
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert told["loss_mean"] is told["groups"][0]["loss"] is None
    for node in one.twin.honest:
        node.told.losses[:] = [(0.0, 0, 2.0), (30.0, 1, math.nan)]
    asked = one.twin.scenario.model_copy(update={"invariants": Invariants(recovers_within=3)})
    assert any(line.startswith("recovers_within") for line in broken_invariants(asked, one.twin.honest))


@pytest.mark.parametrize(("until_s", "said"), [(60.0, "60"), (1234567.5, "1234567.5"), (0.1234567, "0.1234567")])
def test_the_command_that_plays_it_again_ends_it_when_it_ended(tmp_path: Path, until_s: float, said: str) -> None:
    loaded = scenario_in(tmp_path, "", f"until_s={until_s!r}")
    assert f" --until {said} " in replay_command(loaded)


@pytest.mark.parametrize("name", ["round", "é"])
def test_the_folders_name_changes_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Played, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).mkdir()
    there = judged(play(scenario_in(tmp_path), folder=Path(name)))
    assert there.events_digest == judged(found).events_digest


def test_who_believes_in_as_many_as_before_is_not_kept_anew(tmp_path: Path) -> None:
    """A week of virtual time has as many seconds as ten runs of a million."""
    kept = list(played(tmp_path, "", "train.rounds=24", "train.eval_every=24").twin.believed.values())
    assert len({id(sizes) for sizes in kept}) < len(kept)
    assert all(one is other for one, other in pairwise(kept) if one == other)


# -- the command


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.simulation.sealed.hashes_are_fixed", lambda: True)


def test_a_broken_invariant_is_code_1_and_a_line_that_plays_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fixed: None
) -> None:
    path = scenario_in(tmp_path, "\n[assert]\nloss_max = 0.01\n").path
    assert main(["simulate", str(path), "--seed", "4", "--until", "99.5", "--set", "train.rounds=1"]) == 1
    shown = capsys.readouterr()
    assert "broken: loss_max: " in shown.err
    assert f"play it again: p2ptrain simulate {path} --seed 4 --until 99.5 --set train.rounds=1\n" in shown.err
    assert "home" in shown.out


def test_a_livelock_is_code_1_with_the_task_and_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fixed: None
) -> None:
    async def busy(self: member.Member) -> None:
        while True:
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(member.Member, "attend", busy)
    monkeypatch.setattr(twin, "MOST_STEPS", 500)
    assert main(["simulate", str(scenario_in(tmp_path).path)]) == 1
    error = capsys.readouterr().err
    assert "broken: livelock at 0 s: 2000 steps in a virtual second, by home-" in error
    assert "play it again: p2ptrain simulate" in error


def test_an_error_of_ours_names_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fixed: None
) -> None:
    def broken(self: twin.Twin, member: member.Member) -> tuple[str, ...]:
        raise ZeroDivisionError("here")

    monkeypatch.setattr(twin.Twin, "_all_over", broken)
    assert main(["simulate", str(scenario_in(tmp_path).path)]) == 1
    assert "; play it again: p2ptrain simulate " in capsys.readouterr().err


def test_ctrl_c_is_130_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fixed: None
) -> None:
    async def interrupted(self: twin.Twin) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(twin.Twin, "_all_over", interrupted)
    assert main(["simulate", str(scenario_in(tmp_path).path)]) == 130
    assert capsys.readouterr().err == ""


def test_a_folder_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fixed: None
) -> None:
    assert main(["simulate", str(scenario_in(tmp_path).path), "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


# -- interrupted


def test_ctrl_c_while_the_loop_waits_ends_it_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The loop asks for the machine's events between any two moments: there KeyboardInterrupt would come out of the
    loop itself, and trio would warn of a run that was abandoned."""
    manager: Any = sys.modules["trio._core._io_epoll"].EpollIOManager
    asked, get_events = itertools.count(), manager.get_events

    def interrupted(self: object, timeout: float) -> object:
        if next(asked) == 300:
            signal.raise_signal(signal.SIGINT)
        return get_events(self, timeout)

    monkeypatch.setattr(manager, "get_events", interrupted)
    # A shell's background job ignores SIGINT, and so would the test.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            played(tmp_path)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()
    assert next(asked) > 300
    assert [str(warning.message) for warning in recwarn if warning.category is RuntimeWarning] == []


# -- the library

SHORT = ("train.rounds=2", "train.inner_steps=2", "train.eval_every=2", "train.batch_size=8", "node.linger_s=1.0")
"""Two rounds: that it runs, and that no honest node bans another. What it asserts is for longer tests."""


def shortened(path: Path, seed: int) -> Played:
    groups = load_scenario(path).scenario.nodes
    fewer = [f"nodes.{group.name}.count={min(6 // len(groups), group.count)}" for group in groups]
    if path.stem == "behind-nat":  # of four nodes two can be dialled, and two rounds are too short for a circuit
        fewer.append("node.wait_for=2")
    return play(load_scenario(path, (*SHORT, *fewer, "assert={}"), seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", thorough_but([1], [1, 2]))
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.thorough if path.stem in COSTLY else (), id=path.stem) for path in FAITHFUL],
)
def test_a_short_run_of_each_scenario(path: Path, seed: int) -> None:
    result = judged(shortened(path, seed))
    assert result.broken == ()
    assert result.rounds_max == 2


MINUTES = {"region-cut-off", "unequal-links", "week-in-an-hour"}
"""Scenarios of minutes of a core: with one seed, too, only the soak plays them."""


def is_brief(path: Path, seed: int) -> bool:
    return seed == 1 and path.stem not in MINUTES


@pytest.mark.parametrize(
    ("path", "seed"),
    [
        pytest.param(path, seed, marks=pytest.mark.thorough if is_brief(path, seed) else pytest.mark.soak)
        for path in FAITHFUL
        for seed in range(1, 21)
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_each_scenario_keeps_its_promises(path: Path, seed: int) -> None:
    result = judged(play(load_scenario(path, seed=seed)))
    assert result.broken == (), result.replay


DISTURBED = """
[[events]]
at_s = 0.6
kind = "kill"
nodes = ["home-1"]

[[events]]
at_s = 1.2
kind = "restart"
nodes = ["home-1"]

[[events]]
at_s = 0.4
kind = "stall"
for_s = 0.5
nodes = ["home-2"]

[attack]
name = "sign_flip"

[sync]
f = 1

[[nodes]]
name = "liar"
count = 1
lies = true
"""

FAR_APART = """
[links.dsl]
up = "2 Mbit/s"
down = "20 Mbit/s"
loss = 0.002
jitter_ms = 20
queue_ms = 200
slow_start = true
nat = "port_restricted"

[[nodes]]
name = "far"
count = 2
region = "australia"
link = "dsl"
"""

PLAY_ALL = """
import json, sys
from pathlib import Path
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.simulation.verdict import judged
path, *seeds = sys.argv[1:]
loaded = {seed: load_scenario(Path(path), ["train.rounds=8"], seed=int(seed)) for seed in seeds}
print(json.dumps({seed: judged(play(each)).events_digest for seed, each in loaded.items()}))
"""


@pytest.mark.soak
@pytest.mark.parametrize("text", ["", DISTURBED, FAR_APART], ids=["alike", "disturbed", "far_apart"])
def test_two_processes_agree_on_twenty_seeds(tmp_path: Path, text: str) -> None:
    """The second plays the seeds from the last to the first: what was played before leaves nothing behind."""
    path, seeds = str(scenario_in(tmp_path, text).path), [str(seed) for seed in range(1, 21)]
    done = [ran(path, *order, hash_seed="0", code=PLAY_ALL, timeout=3600) for order in (seeds, seeds[::-1])]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    one, other = (json.loads(each.stdout) for each in done)
    assert one == other
    assert len(set(one.values())) == len(seeds)


def test_the_library_is_there() -> None:
    assert len(FAITHFUL) == 15
    page = (ROOT / "docs" / "how-to" / "rehearse.md").read_text(encoding="utf-8")
    assert [path.stem for path in LIBRARY if f"`{path.stem}`" not in page] == []


LATE = """
[[nodes]]
name = "late"
link = "home"
device = "desktop"
starts_s = 3.0
settings = { node = { wait_for = 6 } }
"""


@pytest.mark.thorough
def test_who_comes_to_a_swarm_that_trains_does_not_wait_for_more_than_there_are(tmp_path):
    """It awaits six neighbours of a swarm of four, whose training takes 18 s: not the 60 s of wait_timeout_s."""
    course = play(scenario_in(tmp_path, LATE, "train.rounds=60", "train.eval_every=60"))
    late = course.members["late-0"]
    assert late.error is None
    assert late.finished
    assert 8 < late.told.closed[0][0] < 13, "five seconds after the last one came, and then the models of the others"


def test_who_was_answered_and_left_alone_says_so(tmp_path):
    course = play(scenario_in(tmp_path, LATE, "train.rounds=12", "train.eval_every=12"))
    assert "4 peers answered, and left before enough others came" in course.members["late-0"].error.message
