"""`p2ptrain bench race` without root and without a network: tracks, curves, the start line, who races, tables."""

import csv
import io
import json
import os
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench_words import run as bench
from torch import nn

from node.bench import output, plot
from node.bench.race import hivemind_host, host, namespaces, race, recorded_task
from node.bench.race.contestants import CONTESTANTS, MUON, Contestant, Recipe, Rival, host_folder, wait_until
from node.bench.race.crew import Crew
from node.bench.race.curves import Point, seconds_to, steps_to, stretched
from node.bench.race.judge import Judge
from node.bench.race.recorded_task import RecordedByteLM
from node.bench.race.spec import HostPlan, RaceSpec
from node.bench.race.track import Speed, TrackWriter, read_track, speed
from node.events.event_types import Started
from node.events.log import EventLog
from node.system.errors import RunError, UsageError
from node.system.run_dir import EVENTS
from p2ptrain.tasks.base import Shard
from p2ptrain.training import Trainer
from p2ptrain.training.model import build_model
from p2ptrain.training.train_config import lr_at

CONFIGS = Path(__file__).parents[2] / "configs"

BEFORE_S = 100.0


@pytest.fixture
def spec(tmp_path: Path) -> RaceSpec:
    text = tmp_path / "text"
    text.write_bytes(bytes(range(32, 127)) * 800)
    return RaceSpec(
        hosts=2, steps=6, size="pico", data=str(text), batch=2, warmup_steps=2, keep_every=2, eval_examples=8
    )


def curve(*points: tuple[float, int, float]) -> list[Point]:
    return [Point(seconds=seconds, step=step, loss=loss) for seconds, step, loss in points]


def test_a_loss_is_reached_on_the_line_between_two_points():
    falling = curve((0, 0, 4.0), (10, 5, 3.0), (20, 10, 2.0), (30, 15, 2.5), (40, 20, 1.0))
    assert seconds_to(falling, 2.5) == 15
    assert steps_to(falling, 2.5) == 7.5
    assert seconds_to(falling, 2.0) == 20, "the first time, whatever came later"
    assert seconds_to(falling, 1.25) == pytest.approx(30 + 10 * 1.25 / 1.5)
    assert seconds_to(falling, 5.0) == 0
    assert seconds_to(falling, 0.9) is None
    assert seconds_to([], 1.0) is None


def test_a_curve_is_stretched_by_the_seconds_of_a_step():
    seconds_of = Speed(step_s=0.5, more_s=2.0).seconds
    assert stretched(curve((0, 0, 5.0), (3, 4, 4.0)), seconds_of) == curve((0.0, 0, 5.0), (4.0, 4, 4.0))


def test_a_track_is_read_while_it_is_written(tmp_path: Path):
    track, model = TrackWriter(tmp_path / "host"), nn.Linear(2, 1)
    track.step(0)
    track.keep(3, model)
    with (tmp_path / "host" / "track.jsonl").open("a") as file:
        file.write('{"step": 4, "a')
        file.flush()
        begun, kept = read_track(tmp_path / "host")
    assert (begun.step, begun.model, kept.step) == (0, None, 3)
    assert kept.model is not None
    assert begun.at <= kept.at <= time.time()
    assert read_track(tmp_path / "nobody") == []


def test_a_steps_time_leaves_out_the_first_few():
    def marks(*at: float) -> list[Any]:
        return [SimpleNamespace(step=step, at=each, model=None) for step, each in enumerate(at)]

    found = speed(marks(10, 19, 28, 30, 32, 34), 10.0)
    assert found == Speed(step_s=2, more_s=14)
    assert found.seconds(5) == 24
    assert found.seconds(10) == 34
    assert speed(marks(10, 19, 28, 30, 32), 10.0) is None


def at_the_start_line(folder: Path, spec: RaceSpec) -> RecordedByteLM:
    """The task of a node that is up, in a race that has started."""
    recorded = RecordedByteLM(folder, size=spec.size, data=spec.data)
    up(folder)
    (folder / recorded_task.GO).touch()
    return recorded


def up(folder: Path) -> None:
    """Write what a node writes once it listens."""
    with EventLog(folder / EVENTS) as log:
        log(Started(role="trainer", peer_id="me", addresses=[], pid=1, run_dir=None, metrics_url=None, token_file=None))


def test_a_node_waits_for_the_start_and_what_it_tries_before_is_on_no_track(spec: RaceSpec, tmp_path: Path):
    folder = tmp_path / "host"
    recorded = RecordedByteLM(folder, size=spec.size, data=spec.data)

    def batch() -> None:
        recorded.train_batch(0, seed=0, shard=Shard(count=2), size=2)

    batch()
    assert read_track(folder) == []
    assert not (folder / recorded_task.READY).exists()
    up(folder)
    waiting = threading.Thread(target=batch)
    waiting.start()
    while not (folder / recorded_task.READY).exists():
        time.sleep(0.001)
    assert waiting.is_alive()
    assert read_track(folder) == []
    (folder / recorded_task.GO).touch()
    waiting.join(10)
    assert [mark.step for mark in read_track(folder)] == [0]


def test_every_contestants_models_are_judged_by_the_same_examples(spec: RaceSpec, tmp_path: Path):
    recorded = at_the_start_line(tmp_path / "host", spec)
    trainer = Trainer(recorded, spec.train(), Shard(count=2))
    began = time.time()
    for _ in range(3):
        trainer.step()
    told = trainer.evaluate()
    trained = trainer.vector()
    judge, plain = Judge(spec), Trainer(spec.task(), replace(spec.train(), eval_examples=spec.eval_examples), Shard())
    genesis, kept = judge.curve(read_track(tmp_path / "host"), began)
    assert genesis.loss == pytest.approx(plain.evaluate(), abs=1e-4)
    assert kept.loss == pytest.approx(plain.evaluate(trained), abs=1e-4) != told, "a node sees fewer"
    assert (genesis.step, kept.step) == (0, 2), "two steps were done when the third one's batch was drawn"
    assert kept.seconds > 0
    assert judge.curve(read_track(tmp_path / "host"), time.time()) == [genesis], "what was kept before the start"


def test_a_recorded_task_trains_as_the_plain_one(spec: RaceSpec, tmp_path: Path):
    ours = Trainer(at_the_start_line(tmp_path / "host", spec), spec.train(), Shard(count=2))
    plain = Trainer(spec.task(), spec.train(), Shard(count=2))
    assert [ours.step() for _ in range(2)] == [plain.step() for _ in range(2)]


class Local:
    """A stepper with nobody else."""

    def __init__(self, model: nn.Module, plan: HostPlan) -> None:
        self.model, self.optimizers, self.rates = model, host.optimizers(plan, model), []

    def step(self, loss: Callable[[nn.Module], torch.Tensor], rate: float) -> None:
        self.rates.append(rate)
        for optimizer in self.optimizers:
            host.set_rate(optimizer, rate)
            optimizer.zero_grad()
        loss(self.model).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()


def plan_of(spec: RaceSpec, folder: Path, rank: int = 0, **options: object) -> HostPlan:
    return HostPlan(spec=spec, rank=rank, address="10.77.0.1", own_address="10.77.0.1", folder=folder, options=options)


def run_local(spec: RaceSpec, folder: Path, rank: int = 0, **options: object) -> tuple[nn.Module, Local]:
    task, plan = spec.task(), plan_of(spec, folder, rank, **options)
    model = build_model(task, spec.seed)
    local, shard = Local(model, plan), Shard(index=rank, count=spec.hosts)

    def loss(net: nn.Module, step: int) -> torch.Tensor:
        return task.loss(net, task.train_batch(step, seed=spec.seed, shard=shard, size=spec.batch))

    host.run(local, TrackWriter(folder), plan, model, loss, host.training(plan))
    return model, local


@pytest.mark.slow
@pytest.mark.parametrize(("own", "apart"), [({}, 1e-4), (MUON, 1e-2)], ids=["adamw", "muon"])
def test_a_rivals_host_does_the_steps_of_a_node_alone(
    spec: RaceSpec, tmp_path: Path, own: dict[str, Any], apart: float
):
    """Same batches, rates, clipping and optimizer: else a race would compare these."""
    model, local = run_local(spec, tmp_path / "host", train=own)
    config = replace(spec.train(), **own)
    trainer = Trainer(spec.task(), config, Shard(count=2))
    for _ in range(spec.steps):
        trainer.step()
    theirs = nn.utils.parameters_to_vector(model.parameters()).detach()
    moved = theirs - nn.utils.parameters_to_vector(build_model(spec.task(), spec.seed).parameters()).detach()
    assert float((theirs - trainer.vector()).norm() / moved.norm()) < apart
    assert local.rates == [lr_at(step, spec.steps, config) for step in range(spec.steps)]
    marks = read_track(tmp_path / "host")
    assert [mark.step for mark in marks if mark.model is None] == [1, 2, 3, 4, 5, 6]
    assert [mark.step for mark in marks if mark.model is not None] == [2, 4, 6]


def test_both_who_train_with_muon_do_it_alike():
    ours, theirs = CONTESTANTS.get("p2ptrain-muon"), CONTESTANTS.get("ddp-muon")
    assert isinstance(ours, Recipe)
    assert isinstance(theirs, Rival)
    spec = RaceSpec(hosts=4, steps=400)
    own = ours.config(spec, Path("run"), 0, "10.77.0.1", ()).train
    plan = plan_of(spec, Path("host"), **theirs.options)
    assert replace(own, rounds=400, inner_steps=1, eval_every=1) == replace(host.training(plan), eval_every=1)


def test_only_the_first_host_keeps_models(spec: RaceSpec, tmp_path: Path):
    run_local(spec, tmp_path / "host", rank=1)
    assert all(mark.model is None for mark in read_track(tmp_path / "host"))


def test_a_plan_is_the_same_after_a_command_line(spec: RaceSpec, tmp_path: Path):
    plan = plan_of(spec, tmp_path, 1, stepper="ddp", hook="bf16")
    assert HostPlan.from_json(plan.to_json()) == plan


def test_hivemind_is_asked_for_our_steps_between_two_averages(
    spec: RaceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: dict[str, Any] = {}

    class Table:
        def __init__(self, **given: object) -> None:
            asked.setdefault("tables", []).append(given)

        def get_visible_maddrs(self) -> list[str]:
            return ["/ip4/10.77.0.1/tcp/5"]

    class Averaging:
        def __init__(self, *, params: Any, optimizer: Any, scheduler: Any, **given: object) -> None:
            asked.update(given)
            self.inner = optimizer(params)
            self.scheduler = scheduler(self.inner)
            self.zero_grad, self.step = self.inner.zero_grad, self.inner.step

    compression = SimpleNamespace(Float16Compression=lambda: "fp16")
    fake = SimpleNamespace(DHT=Table, Optimizer=Averaging, compression=compression)
    monkeypatch.setitem(__import__("sys").modules, "hivemind", fake)
    task = spec.task()
    batch = task.train_batch(0, seed=0, shard=Shard(count=2), size=2)
    steppers = []
    for rank in range(2):
        plan = plan_of(spec, tmp_path / f"host-{rank}", rank, stepper="hivemind", inner_steps=3)
        model = build_model(task, 0)
        before = nn.utils.parameters_to_vector(model.parameters()).clone()
        steppers.append(hivemind_host.stepper(plan, model))
        steppers[-1].step(lambda net: task.loss(net, batch), 1.0)
        assert not torch.equal(before, nn.utils.parameters_to_vector(model.parameters()))
    assert asked["tables"][1]["initial_peers"] == ["/ip4/10.77.0.1/tcp/5"]
    assert asked["target_batch_size"] == 2 * 2 * 3
    assert asked["use_local_updates"] is True
    assert steppers[0]._optimizer.inner.param_groups[0]["lr"] == pytest.approx(lr_at(1, 6, spec.train()))
    assert [group["weight_decay"] for group in steppers[0]._optimizer.inner.param_groups] == [0.1, 0.0]


def test_our_recipe_is_the_shipped_one():
    shipped = tomllib.loads((CONFIGS / "local.toml").read_text())
    recipe = CONTESTANTS.get("p2ptrain")
    assert isinstance(recipe, Recipe)
    spec = RaceSpec(hosts=4, steps=400)
    assert recipe.settings == {"sync": shipped["sync"]}
    assert recipe.inner_steps == shipped["train"]["inner_steps"]
    assert spec.size == shipped["task"]["size"]
    assert (spec.batch, spec.learning_rate) == (shipped["train"]["batch_size"], shipped["train"]["learning_rate"])
    config = recipe.config(spec, Path("run"), 0, "10.77.0.1", ())
    for key, value in shipped["network"].items():
        assert getattr(config.network, key) == value, "a default of ours, too"


def test_nodes_begin_together_and_only_the_first_is_judged(spec: RaceSpec, tmp_path: Path):
    recipe = Recipe(name="ours", inner_steps=2)
    first, second = (recipe.config(spec, tmp_path, rank, f"10.77.0.{rank + 1}", ()) for rank in range(2))
    assert (first.train.rounds, first.train.eval_every, second.train.eval_every) == (3, 1, 3)
    assert (first.node.wait_for, first.node.shard_count, second.node.shard_index) == (1, 2, 1)
    assert first.network.listen == ("/ip4/10.77.0.1/tcp/4001",)
    assert first.train.threads == 1


def test_who_is_not_installed_does_not_race_and_the_table_says_so():
    absent = Rival(name="hivemind", synchronous=False, options={}, needs="a_module_that_is_not_there")
    assert "is not installed here, and does not race" in absent.absent()
    assert replace(absent, python=Path("/other/bin/python")).absent() == ""
    assert CONTESTANTS.get("ddp").absent() == ""


def test_only_namespaces_of_dead_processes_are_abandoned():
    dead = 2**22 + 1  # above the kernel's largest process number
    names = [
        f"p2ptrain-race-{os.getpid()}-hub",
        f"p2ptrain-race-{dead}-hub",
        f"p2ptrain-race-{dead}-3",
        "lab-0",
        "blue",
    ]
    assert namespaces.abandoned(names) == names[1:3]


def test_a_fast_link_may_send_a_ticks_bytes_at_once():
    assert namespaces.shape(5) == ["tbf", "rate", "5000000bit", "burst", "65536", "latency", "200ms"]
    assert namespaces.shape(1000)[4] == "500000"


@pytest.mark.slow
def test_without_root_it_says_so_in_a_line(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda name: name)
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    code, _, errors = bench(capsys, "race")
    assert (code, errors.splitlines()[-1]) == (
        2,
        "error: a race makes network namespaces, which only root may; run it as root",
    )


def test_a_process_that_ends_early_is_named_with_its_last_line(tmp_path: Path):
    with Crew() as crew:
        crew.start("ddp at host 1", ["sh", "-c", "read line; echo a reason >&2; exit 3"], tmp_path / "one")
        crew.check()
        crew.go()
        with pytest.raises(RunError) as caught:
            wait_until(lambda: False, crew, "never")
    assert caught.value.line() == "ddp at host 1 has ended early: exit code 3; a reason"


def test_at_its_end_a_crew_is_gone(tmp_path: Path):
    with Crew() as crew:
        crew.start("sleeper", ["sh", "-c", "echo $$; sleep 600"], tmp_path / "one")
        while not (tmp_path / "one" / "stdout").read_text():
            time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "one" / "stdout").read_text()), 0)


class FakeHosts:
    """Hosts that have sent 500 bytes more each time one looks."""

    def __init__(self, count: int, mbit: float) -> None:
        self.count, self.sent = count, 0

    def __enter__(self) -> "FakeHosts":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def bytes_sent(self) -> list[int]:
        self.sent += 500
        return [self.sent] * self.count


class FakeContestant:
    """On its first link it has done all steps, each in half a second; on the next one, where it is synchronous, five
    of six, each in `slow_s` seconds."""

    def __init__(self, name: str, *, synchronous: bool, slow_s: float) -> None:
        self.name, self.synchronous, self.slow_s, self.links = name, synchronous, slow_s, 0

    def absent(self) -> str:
        return ""

    def start(self, crew: Crew, hosts: Any, spec: RaceSpec, folder: Path) -> None:
        self.links += 1
        steps, step_s = (spec.steps, 0.5) if self.links == 1 else (spec.steps - self.synchronous, self.slow_s)
        for rank in range(spec.hosts):
            leave_track(spec, host_folder(folder, rank), steps, step_s, kept=rank == 0 and steps == spec.steps)

    def go(self, crew: Crew, spec: RaceSpec, folder: Path) -> None:
        """It has run long ago."""

    def done(self, spec: RaceSpec, folder: Path) -> bool:
        return any(mark.step == spec.steps for mark in read_track(host_folder(folder, 0)))


def leave_track(spec: RaceSpec, folder: Path, steps: int, step_s: float, *, kept: bool) -> None:
    """As of a run that began BEFORE_S ago. At its end the parameters were half of what they are at first."""
    TrackWriter(folder)
    began = time.time() - BEFORE_S
    lines: list[dict[str, object]] = [{"step": step, "at": began + step * step_s} for step in range(steps + 1)]
    if kept:
        vector = nn.utils.parameters_to_vector(build_model(spec.task(), 0).parameters()).detach() / 2
        np.save(folder / "last.npy", vector.numpy())
        lines.append({"step": steps, "at": began + steps * step_s, "model": "last.npy"})
    (folder / "track.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def raced(spec: RaceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[race.Race, list[dict[str, Any]]]:
    """A race of two on two links, to a loss that lies between that of the initial model and of half of it."""
    monkeypatch.setattr(race, "Hosts", FakeHosts)
    monkeypatch.setattr(race, "check_possible", lambda: None)
    contestants: Sequence[Any] = [
        FakeContestant("ddp", synchronous=True, slow_s=30.0),
        FakeContestant("ours", synchronous=False, slow_s=1.0),
        Rival(name="hivemind", synchronous=False, options={}, needs="a_module_that_is_not_there"),
    ]
    assert all(isinstance(each, Contestant) for each in contestants)
    judge = Judge(spec)
    half = judge.loss(nn.utils.parameters_to_vector(build_model(spec.task(), 0).parameters()).detach() / 2)
    to = round((judge.curve([], 0.0)[0].loss + half) / 2, 3)
    made = race.Race(
        contestants=contestants, links=[5, 1000], to=[to], spec=spec, limit_s=BEFORE_S + 1, out=tmp_path / "out"
    )
    return made, [dict(row) for row in made.run()]


def test_a_synchronous_run_that_would_take_too_long_is_computed_from_its_steps(
    raced: tuple[race.Race, list[dict[str, Any]]], tmp_path: Path
):
    made, rows = raced
    assert [(row["link_mbit"], row["contestant"]) for row in rows] == [
        (1000, "ddp"),
        (1000, "ours"),
        (5, "ddp"),
        (5, "ours"),
    ]
    fast, _, slow, ours = rows
    assert [row["computed"] for row in rows] == [False, False, True, False]
    reached = fast["to"][0]["seconds"]
    assert 0 < reached < 3.0
    assert (slow["step_s"], slow["steps_done"]) == (30.0, 5)
    assert slow["to"][0]["seconds"] == pytest.approx(reached / 0.5 * 30, rel=0.01)
    assert slow["curve"][-1]["seconds"] == 6 * 30.0
    assert slow["sent_kb_a_step"] == 0.1
    summary, shown = made.summaries(rows)[0], f"{made.to[0]:g}"
    assert output.table(summary).row_count == 4
    assert [str(row[f"to {shown}"]).startswith("~") for row in summary.rows] == [False, False, True, False]
    assert summary.rows[3][f"x {shown}"] == f"{slow['to'][0]['seconds'] / ours['to'][0]['seconds']:.2f}"
    assert any("a_module_that_is_not_there is not installed" in note for note in summary.notes)
    assert json.loads((tmp_path / "out" / "race.json").read_text()) == rows
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out" / "curves.csv").read_text())))
    assert {(line["link_mbit"], line["contestant"]) for line in lines if line["computed"] == "True"} == {("5", "ddp")}


def test_who_diverges_loses_and_the_race_goes_on(spec: RaceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Diverging(FakeContestant):
        def start(self, crew: Crew, hosts: Any, spec: RaceSpec, folder: Path) -> None:
            super().start(crew, hosts, spec, folder)
            last = host_folder(folder, 0) / "last.npy"
            np.save(last, np.full_like(np.load(last), np.nan))

    monkeypatch.setattr(race, "Hosts", FakeHosts)
    monkeypatch.setattr(race, "check_possible", lambda: None)
    contestants: Sequence[Any] = [
        Diverging("ddp", synchronous=True, slow_s=1.0),
        FakeContestant("ours", synchronous=False, slow_s=1.0),
    ]
    made = race.Race(contestants=contestants, links=[5], to=[1e-9], spec=spec, limit_s=150, out=tmp_path / "out")
    lost, ended = [dict(row) for row in made.run()]
    assert lost["final_loss"] is None
    assert lost["to"][0]["seconds"] is None
    assert [point["step"] for point in lost["curve"]] == [0]
    assert ended["final_loss"] > 0
    assert len(json.loads((tmp_path / "out" / "race.json").read_text())) == 2


@pytest.mark.slow
def test_a_race_is_drawn(raced: tuple[race.Race, list[dict[str, Any]]], tmp_path: Path):
    pytest.importorskip("matplotlib")
    made, rows = raced
    plot.write(tmp_path / "race.png", lambda figure: made.draw(rows, figure))
    assert (tmp_path / "race.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--links", "fast"), "--links 'fast' is no list of numbers above 0"),
        (("--to", "0"), "--to '0' is no list of numbers above 0"),
        (("--contestants", "nobody"), "there is no 'nobody'"),
        (("--out", "/nowhere/at/all"), "there is no folder /nowhere/at"),
    ],
)
def test_mistakes_are_one_line(capsys, words: tuple[str, ...], says: str):
    code, _, errors = bench(capsys, "race", *words)
    assert code == 2
    assert says in errors


def test_a_race_of_none_is_refused(spec: RaceSpec):
    with pytest.raises(ValueError, match="links"):
        race.Race(contestants=[], links=[], to=[2.0], spec=spec, limit_s=1)
    with pytest.raises(UsageError, match="no folder"):
        race.Race(contestants=[], links=[1], to=[2.0], spec=spec, limit_s=1, out=Path("/nowhere/at/all"))


def test_a_rivals_process_ends_with_its_parent(monkeypatch: pytest.MonkeyPatch):
    read, write = os.pipe()
    ended = threading.Event()
    monkeypatch.setattr(host.os, "dup", lambda fd: read)
    monkeypatch.setattr(host.os, "_exit", lambda code: ended.set())
    go = host._started_by_parent()
    assert not go.is_set()
    os.write(write, b"go\n")
    assert go.wait(5)
    assert not ended.is_set()
    os.close(write)
    assert ended.wait(5)
