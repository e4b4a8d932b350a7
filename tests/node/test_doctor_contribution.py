"""What `p2ptrain doctor` says that a machine would contribute: figures that follow of measured steps, and its page."""

import itertools
import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from node.cli.app import main
from node.config.schema import Config, load
from node.doctor import contribution, examine, machine, peer_checks, router
from node.doctor.contribution import Measurement, findings_of, measured
from node.doctor.finding import Finding, Measuring, Model, Subject
from node.metrics.energy import Meter
from node.system import left_threads
from p2ptrain import tasks
from p2ptrain.inner.filed_optimizer import FiledOptimizer
from p2ptrain.sync import build
from p2ptrain.tasks.base import Shard
from p2ptrain.training import Trainer
from p2ptrain.training.ditto import DittoTrainer
from p2ptrain.training.speed import Clock, StepRates, step_rates

RATES = StepRates(step_s=0.5, steps=9, examples=16, tokens=1024.0, micro_batch=None)
FOUND = Measurement(rates=RATES, watts=None, watts_by="", peak_bytes=400_000_000, device_peak_bytes=None)


def digits(*sets: str) -> Config:
    return load(sets=["task.name=digits", "train.device=cpu", "train.threads=1", *sets])


def trainer_of(config: Config) -> Trainer:
    return Trainer(tasks.get("digits"), config.train, Shard())


def ticking(*seconds: float) -> Clock:
    """A clock that goes on by these in turn, whenever it is read, then by the last one."""
    now = itertools.accumulate(itertools.chain(seconds, itertools.repeat(seconds[-1])))
    return lambda: next(now)


def page_of(it: contribution.Contribution, config: Config, asked: Measuring) -> dict[str, Finding]:
    model = SimpleNamespace(shared=9226, logits=None)
    return {each.check: each for each in findings_of(it, config, model, asked)}  # type: ignore[arg-type]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> list[Finding]:
        return []

    monkeypatch.setattr(router, "router", nothing)
    monkeypatch.setattr(peer_checks, "peers", nothing)
    monkeypatch.setattr(examine, "_multicast", nothing)


def test_the_first_step_is_not_counted_and_the_median_is() -> None:
    config = digits("train.batch_size=8", "train.grad_accumulation=3")
    trainer = trainer_of(config)
    # Read before and after each step: 9 s for the first, then 1, 7, 1, 1 s.
    clock = ticking(0, 9, 0, 1, 0, 7, 0, 1, 0, 1)
    found = step_rates(trainer, clock, 19.0)
    assert (found.step_s, found.steps, found.examples, found.tokens) == (1.0, 4, 24, 24.0)
    assert trainer.global_step == 5


@pytest.mark.parametrize("for_s", [2.0, 9.0])
def test_a_first_step_that_takes_all_the_time_is_not_the_speed(for_s: float) -> None:
    trainer = trainer_of(digits())
    found = step_rates(trainer, ticking(0, 9, 0, 1), for_s)
    assert (found.step_s, found.steps, trainer.global_step) == (1.0, 1, 2)
    assert found.tokens == found.examples


def test_steps_that_are_measured_for_longer_end_within_the_time_and_one_step() -> None:
    trainer = trainer_of(digits())
    found = step_rates(trainer, ticking(*[0, 12] * 20), 60.0)
    assert (found.step_s, trainer.global_step) == (12.0, 5)


def test_a_day_follows_of_a_step() -> None:
    config = digits("train.inner_steps=10", "train.batch_size=16", "train.eval_examples=48", "train.eval_every=2")
    it = contribution.contribution(config, 9226, FOUND, Measuring())
    # An evaluation: a third of three batches' time, every other round.
    assert it.round_s == pytest.approx(10 * 0.5 + 0.25)
    assert it.rounds_a_day == pytest.approx(86_400 / 5.25)
    assert it.steps_a_day == pytest.approx(864_000 / 5.25)
    assert (it.examples_per_s, it.tokens_per_s, it.steps_per_s) == (32.0, 2048.0, 2.0)
    assert it.neighbours == config.network.degree


def test_at_the_swarms_pace_a_round_has_the_steps_that_fit() -> None:
    config = digits("train.inner_steps=10", "train.batch_size=16", "train.eval_examples=48", "train.eval_every=2")
    it = contribution.contribution(config, 9226, FOUND, Measuring(round_s=3.25))
    assert (it.steps_a_round, it.rounds_a_day) == (pytest.approx(6), pytest.approx(86_400 / 3.25))


def test_a_round_is_never_shorter_than_a_step_and_the_line_says_so() -> None:
    config = digits("train.inner_steps=10", "train.batch_size=16", "train.eval_examples=48", "train.eval_every=2")
    asked = Measuring(round_s=0.1)
    it = contribution.contribution(config, 9226, FOUND, asked)
    assert (it.steps_a_round, it.round_s) == (1, 0.75)
    assert it.steps_a_day == pytest.approx(86_400 / 0.75)
    assert "100 ms are shorter than a step" in page_of(it, config, asked)["rounds"].seen
    enough = Measuring(round_s=0.75)
    fits = contribution.contribution(config, 9226, FOUND, enough)
    assert "shorter" not in page_of(fits, config, enough)["rounds"].seen


def test_training_that_waits_takes_no_more_steps_than_planned_and_the_line_says_what_is_left_out() -> None:
    config = digits("train.inner_steps=10", "node.overlap=false")
    asked, own = Measuring(round_s=30.0), Measuring()
    it = contribution.contribution(config, 9226, FOUND, asked)
    assert (it.steps_a_round, it.steps_a_day) == (10, pytest.approx(10 * 86_400 / 30))
    assert "training waits" in page_of(it, config, asked)["rounds"].seen
    paced = page_of(contribution.contribution(config, 9226, FOUND, own), config, own)["rounds"]
    assert "node.overlap = false), whose time is not in it" in paced.fix
    beside = digits("train.inner_steps=10")
    assert contribution.contribution(beside, 9226, FOUND, asked).steps_a_round > 50
    assert "waits" not in page_of(it, beside, asked)["rounds"].seen


def test_small_rates_are_not_zero() -> None:
    config = digits()
    slow = replace(FOUND, rates=StepRates(step_s=3.92, steps=2, examples=1, tokens=1.0, micro_batch=None))
    it = contribution.contribution(config, 9226, slow, Measuring(round_s=200_000.0))
    page = page_of(it, config, Measuring(round_s=200_000.0))
    assert page["speed"].seen == "0.255 tokens/s: 0.255 steps/s of 3.92 s (median of 2)"
    assert ": 0.432 rounds and 22.0k steps a day" in page["rounds"].seen


@pytest.mark.parametrize("compressor", ["q2", "int8", "none"])
def test_bytes_are_those_of_the_codec_on_the_model(compressor: str) -> None:
    config = digits(f"sync.compressor={compressor}", "train.inner_steps=10")
    trainer = trainer_of(config)
    strategy = build(config.sync, trainer.vector(), judge=lambda model_d, round: 0.0)
    for _ in range(5):
        trainer.step()
    real = len(strategy.encode(trainer.vector(), round=0).payload)
    it = contribution.contribution(config, trainer.numel, FOUND, Measuring(neighbours=3))
    assert it.payload_bytes == pytest.approx(real, rel=0.02)
    assert it.up_bytes_a_day is not None
    alone = 3 * real * it.rounds_a_day
    assert alone < it.up_bytes_a_day < 1.02 * alone + it.rounds_a_day * 3 * (1800 + 630 * it.round_s)
    assert it.link_bits_per_s == pytest.approx(8 * it.up_bytes_a_day / 86_400)


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (["sync.compressor=adaptive"], "adaptive sends what the link carries"),
        (["sync.strategy=gradient", "sync.compressor=q2"], "gradient averages at every step"),
    ],
)
def test_where_bytes_are_not_known_it_is_said_why(sets: list[str], why: str) -> None:
    config = digits(*sets)
    it = contribution.contribution(config, 9226, FOUND, Measuring())
    assert it.up_bytes_a_day is it.payload_bytes is it.link_bits_per_s is None
    line = page_of(it, config, Measuring())["bytes"]
    assert (line.level, why in line.seen, "follows" in line.seen) == ("unknown", True, False)


def test_a_bound_that_lengthens_rounds_is_told() -> None:
    for bound, level in ((140_000, "warning"), (10**10, "ok")):
        config = digits("train.inner_steps=1", f"network.up_bytes_per_s={bound}", "sync.compressor=none")
        quick = replace(FOUND, rates=replace(RATES, step_s=0.001))
        it = contribution.contribution(config, 9226, quick, Measuring())
        assert page_of(it, config, Measuring())["bytes"].level == level


def test_energy_is_what_counters_say_and_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    config = digits()
    for counted, expected in (({"rapl": 20.0, "estimate": 7.0}, (20.0, "rapl")), ({"estimate": 7.0}, (None, ""))):
        seen: dict[str, itertools.count[float]] = {name: itertools.count(0.0, step) for name, step in counted.items()}
        meter = Meter(counters={name: lambda read=read: next(read) for name, read in seen.items()})  # type: ignore[misc]
        monkeypatch.setattr(contribution, "meter_for", lambda *args, meter=meter, **more: meter)
        # 1 s from the first reading of the clock to the sixth: one at either end, two for each of the steps.
        found = measured(trainer_of(config), config, 0.1, ticking(0.2))
        assert (found.watts, found.watts_by) == (pytest.approx(expected[0]) if expected[0] else None, expected[1])


def test_what_energy_costs_is_known_where_watts_and_price_are() -> None:
    config, counted = digits(), replace(FOUND, watts=50.0, watts_by="nvml")
    given = contribution.contribution(config, 9226, counted, Measuring(price_kwh=0.25))
    assert (given.kwh_a_day, given.cost_a_day) == (pytest.approx(1.2), pytest.approx(0.3))
    plug = contribution.contribution(config, 9226, counted, Measuring(watts=100.0))
    assert (plug.kwh_a_day, plug.watts_by, plug.cost_a_day) == (pytest.approx(2.4), "--watts", None)
    unknown = contribution.contribution(config, 9226, FOUND, Measuring(price_kwh=0.25))
    line = page_of(unknown, config, Measuring())["energy"]
    assert (unknown.cost_a_day, line.level, "--watts" in line.fix) == (None, "unknown", True)


def test_the_page_has_figures_for_people_and_programs(
    offline: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["doctor", "--task", "digits", "--run-dir", str(tmp_path / "run"), "--measure", "100ms"]
    assert main([*asked, "--json", "--watts", "60", "--price-kwh", "0.5"]) == 0
    page = json.loads(capsys.readouterr().out)
    given = page["contribution"]
    assert given["steps_timed"] >= 1
    assert given["tokens_per_s"] == pytest.approx(given["examples_per_s"])
    assert given["cost_a_day"] == pytest.approx(60 * 24 / 1000 * 0.5)
    assert given["peak_bytes"] > 50_000_000
    checks = [it["check"] for it in page["findings"]]
    assert checks.index("memory") < checks.index("speed") < checks.index("rounds")
    assert {"bytes", "energy", "peak"} <= set(checks)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["--measure", "0"], ["--role", "observer"], ["--role", "bootstrap"]])
def test_nothing_is_measured_where_nothing_is_trained(
    words: list[str], offline: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["doctor", "--task", "digits", "--run-dir", str(tmp_path / "run"), "--json", *words])
    page = json.loads(capsys.readouterr().out)
    assert page["contribution"] is None
    assert "speed" not in {it["check"] for it in page["findings"]}


def test_a_machine_that_is_too_slow_is_told_so_and_left_behind(
    offline: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended = threading.Event()

    def never(*_: object) -> None:
        ended.wait(20)

    monkeypatch.setattr(contribution, "measured", never)
    monkeypatch.setattr(examine, "A_STEP_S", 0.05)
    asked = ["doctor", "--task", "digits", "--run-dir", str(tmp_path / "run"), "--measure", "50ms"]
    try:
        assert main([*asked, "--json"]) == 0
    finally:
        ended.set()
    page = json.loads(capsys.readouterr().out)
    line = next(it for it in page["findings"] if it["check"] == "speed")
    assert (line["level"], page["contribution"]) == ("unknown", None)
    assert "slower than 0.1 s for a first step of 16 examples" in line["seen"]


def test_work_that_was_cancelled_before_its_thread_began_is_not_left_behind() -> None:
    import trio

    async def cancelled() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await left_threads.in_thread(lambda: None)

    before = set(left_threads._RUNNING)  # of the tests before, as long as their steps take
    trio.run(cancelled)
    assert set(left_threads._RUNNING) <= before


def test_a_device_without_room_is_a_problem_of_one_line(
    offline: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def full(*_: object, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 MiB.")

    monkeypatch.setattr("p2ptrain.tasks.digits.Digits.loss", full)
    assert main(["doctor", "--task", "digits", "--run-dir", str(tmp_path / "run"), "--measure", "50ms", "--json"]) == 1
    line = next(it for it in json.loads(capsys.readouterr().out)["findings"] if it["check"] == "speed")
    assert line["level"] == "problem"
    assert "with one example at a time" in line["seen"]


def test_a_site_is_measured_by_its_ranks_alone(tmp_path: Path) -> None:
    import trio

    config = digits("site.tensor=2")
    model = replace(machine.model_of(Subject(**_of(digits(), tmp_path))), parameters=9226)
    subject = Subject(**_of(config, tmp_path), measuring=Measuring())
    given, lines = trio.run(examine._contribution, subject, model, lambda line: None)
    assert given is None
    assert [(line.level, "site.tensor=2" in line.seen) for line in lines] == [("unknown", True)]
    assert isinstance(model, Model)


@pytest.mark.parametrize(
    ("sets", "has"),
    [
        (["node.micro_batch=4"], lambda it: it.micro_batch == 4),
        (["node.optimizer_on=disk"], lambda it: isinstance(it.optimizer, FiledOptimizer)),
        (["personal.strength=0.1"], lambda it: isinstance(it, DittoTrainer)),
        (["privacy.privatizer=example", "privacy.noise=1.0"], lambda it: it.is_private),
        (["budget.cpu=1"], lambda it: it.machine.threads == 1),
    ],
    ids=["micro-batch", "optimizer-on-disk", "personal", "private", "cores"],
)
def test_steps_are_measured_as_the_node_takes_them(
    sets: list[str], has: Callable[[Trainer], bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import trio

    seen: list[Trainer] = []

    def noted(trainer: Trainer, config: Config, for_s: float) -> Measurement:
        seen.append(trainer)
        return measured(trainer, config, 0.01)

    monkeypatch.setattr(contribution, "measured", noted)
    config = load(sets=["task.name=digits", "train.device=cpu", *sets])
    subject = Subject(**_of(config, tmp_path), measuring=Measuring())
    model = machine.model_of(subject)
    given, lines = trio.run(examine._contribution, subject, model, lambda line: None)
    assert given is not None, lines
    assert has(seen[0])
    assert not list(tmp_path.iterdir())


def test_a_budget_of_memory_is_measured_with_what_it_moves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = digits("budget.memory=1GB", "train.batch_size=16")
    subject = Subject(**_of(config, tmp_path), measuring=Measuring())
    model = machine.model_of(subject)

    def only_few(config: Config) -> int:
        return 0 if config.node.micro_batch == 2 else 10**12

    monkeypatch.setattr(machine, "needs_of", lambda *_, **__: only_few)
    machine.as_planned(subject, model)
    assert model.trainer is not None
    assert model.trainer.micro_batch == 2
    assert isinstance(model.trainer.optimizer, FiledOptimizer)
    monkeypatch.setattr(machine, "needs_of", lambda *_, **__: lambda config: 10**12)
    refused = machine.model_of(subject)
    machine.as_planned(subject, refused)
    assert refused.trainer is not None
    assert refused.trainer.micro_batch is None


def test_who_shares_logits_sends_these_and_takes_public_steps_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import trio

    def quick(trainer: Trainer, config: Config, for_s: float, **more: Any) -> Measurement:
        return measured(trainer, config, 0.01, **more)

    monkeypatch.setattr(contribution, "measured", quick)
    config = digits("task.public=30", "train.shares=logits", "sync.compressor=none")
    subject = Subject(**_of(config, tmp_path), measuring=Measuring())
    model = machine.model_of(subject)
    assert model.logits is not None
    given, lines = trio.run(examine._contribution, subject, model, lambda line: None)
    assert given is not None, lines
    assert given.payload_bytes == pytest.approx(4 * 300, rel=0.1)
    assert model.logits._public_steps.global_step == given.steps_timed + 1
    assert any("bits a logit)" in line.seen for line in lines)


@pytest.mark.parametrize(("cpu", "slowed"), [(0.25, 4.0), (1.5, 1.0)])
def test_a_quota_of_less_than_the_threads_makes_steps_longer(cpu: float, slowed: float) -> None:
    config = digits(f"budget.cpu={cpu}")  # one thread
    found = measured(trainer_of(config), config, 0.1, ticking(0.2))
    assert found.rates.step_s == pytest.approx(slowed * 0.2)


def _of(config: Config, folder: Path) -> dict[str, Any]:
    return {"network": config.network, "node": config.node, "learning": config, "run_dir": folder / "run"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--watts", "-1"], "--watts: a number above 0, not -1"),
        (["--price-kwh", "1e308"], "--price-kwh: a number above 0, not 1e+308; 1e+09 at most"),
        (["--round-time", "1e303h"], "--round-time: no round takes longer than a year"),
        (["--price-kwh", "nan"], "--price-kwh: a number above 0, not nan"),
        (["--price-kwh", str(math.inf)], "--price-kwh: a number above 0, not inf"),
        (["--measure", "5"], "--measure: '5' is no time"),
        (["--round-time", "0"], "--round-time: a round takes some time"),
        (["--neighbours", "0"], "--neighbours: 1 or more, not 0"),
        (["--neighbours", "99"], "--neighbours 99: this node would have 8 at most"),
    ],
)
def test_wrong_words_end_with_2_and_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "--task", "digits", "--run-dir", str(tmp_path / "run"), *words]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"error: {said}")
