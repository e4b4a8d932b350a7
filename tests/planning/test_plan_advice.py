"""What is recommended: near the best of a grid, and ready to run."""

import math
import shlex
import tomllib
from dataclasses import replace

import pytest
from plan_requests import request
from shown_commands import wrong
from test_calibrated import MACHINE

from node.config.schema import load
from node.planning.advice import NOTCHES, advise, best_inner_steps, runnable, sensitivities
from node.planning.forecast import forecast
from node.planning.rehearsal import scenario_toml
from node.planning.run_settings_file import commands, settings_toml
from node.up.plan import make_plan

PLANS = [
    {"parameters": 125e6, "up": 20e6},
    {"parameters": 125e6, "up": 1e6, "nodes": 4},
    {"parameters": 1e9, "up": 100e6, "nodes": 30, "length": 2048},
    {"parameters": 5e5, "up": 5e6, "device": "cpu-core", "length": 64},
    {"parameters": 125e6, "up": 10e9, "nodes": 3},
    {"parameters": 125e6, "up": 10e9, "settings": {"train": {"eval_every": 1, "eval_examples": 2000}}},
]


def notch(steps: int) -> int:
    return max(index for index, each in enumerate(NOTCHES) if each <= steps)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_h_is_within_a_notch_of_the_best_of_all(plan):
    found = best_inner_steps(request(**plan))
    grid = sorted({min(500, round(1.12**power)) for power in range(56)})
    every = {steps: forecast(request(**plan).with_settings(train={"inner_steps": steps})) for steps in grid}
    best = min(every, key=lambda steps: every[steps].days_to_equal_loss)
    assert abs(notch(found.request.config.train.inner_steps) - notch(best)) <= 1, best
    assert found.days_to_equal_loss <= 1.1 * every[best].days_to_equal_loss


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_no_neighbouring_notch_of_h_is_better(plan):
    asked = request(**plan)
    found = best_inner_steps(asked)
    place = NOTCHES.index(found.request.config.train.inner_steps)
    for steps in NOTCHES[max(0, place - 1) : place + 2]:
        other = forecast(asked.with_settings(train={"inner_steps": steps}))
        assert other.days_to_equal_loss >= found.days_to_equal_loss, steps


@pytest.mark.slow
@pytest.mark.parametrize("liars", [0, 1])
def test_the_recommended_is_the_best_of_what_was_compared(liars):
    found = advise(request(parameters=125e6), liars=liars)
    assert found.best is found.others[0]
    assert [each.days_to_equal_loss for each in found.others] == sorted(
        each.days_to_equal_loss for each in found.others
    )
    strategies = {each.request.config.sync.strategy for each in found.others}
    assert ("allreduce" in strategies) == (liars == 0), "owners of parts are believed"
    assert all(each.request.config.sync.f == liars for each in found.others)


def test_a_swarm_that_is_larger_than_an_exchange_is_not_told_to_reduce_all_at_once():
    found = advise(request(parameters=125e6, nodes=200), liars=0)
    assert {each.request.config.sync.strategy for each in found.others} == {"tracked_gossip"}


@pytest.mark.slow
@pytest.mark.parametrize("liars", [0, 1])
def test_the_settings_load_and_up_takes_them(tmp_path, liars):
    best = runnable(advise(request(parameters=3e8, nodes=6), liars=liars).best)
    file = tmp_path / "plan.toml"
    file.write_text(settings_toml(best, has_task=False))
    config = load([file])
    assert config.sync == best.request.config.sync
    assert config.train.inner_steps == best.request.config.train.inner_steps
    assert config.train.rounds == best.rounds
    assert config.network.max_payload_bytes > 4 * 3e8, "a newcomer's model has to pass"
    plan = make_plan(config, run_dir=tmp_path / "run", nodes=6, byzantine=0, cores=2)
    assert len(plan.nodes) == 6
    assert "[task] is yours" in file.read_text()
    assert "[task] is yours" not in settings_toml(best, has_task=True)


def test_the_commands_have_arguments_that_there_are(tmp_path):
    best = runnable(forecast(request(nodes=200)))
    shown = commands(best, str(tmp_path / "plan.toml"))
    assert [shlex.split(each)[1] for each in shown] == ["up", "swarm", "node"]
    assert {each: why for each in shown if (why := wrong(each))} == {}


def test_the_scenario_says_the_same_as_the_plan():
    best = runnable(forecast(request(nodes=20, availability=0.5, settings={"train": {"inner_steps": 30}})))
    raw = tomllib.loads(scenario_toml(best))
    assert raw["nodes"] == [
        {"name": "member", "count": 10, "region": "anywhere", "device": "planned", "link": "planned"}
    ]
    assert raw["links"]["planned"] == {"up": 2.5e6, "down": 12.5e6, "slow_start": True}
    assert raw["regions"][0]["latency_ms"] == {"anywhere": 40.0}
    assert raw["devices"]["planned"]["step_s"] == best.step_s
    assert raw["train"]["inner_steps"] == 30
    assert raw["until_s"] > best.rounds * best.times.round_s


def test_the_scenario_of_a_measured_machine_has_steps_as_its_nodes_had():
    asked = replace(request(parameters=5e5, device="cpu-core", length=64), calibration=MACHINE)
    found = runnable(forecast(asked))
    device = tomllib.loads(scenario_toml(found))["devices"]["planned"]
    swarm = MACHINE.swarm
    mean_s = device["step_s"] * math.exp(device["round_sigma"] ** 2 / 2)
    assert device["round_sigma"] == swarm.round_sigma
    assert mean_s / found.step_s == pytest.approx(swarm.step_s / MACHINE.step.median_s)
    alone = runnable(forecast(replace(asked, calibration=replace(MACHINE, swarm=None))))
    assert tomllib.loads(scenario_toml(alone))["devices"]["planned"]["step_s"] == alone.step_s


def test_a_file_for_adapters_says_what_it_lacks():
    whole = request(parameters=7e9)
    adapters = replace(whole, shape=whole.shape.with_trained(40e6))
    said = "40,000,000 trained parameters: without lora = RANK"
    assert said in settings_toml(runnable(forecast(adapters)), has_task=True)
    assert said not in settings_toml(runnable(forecast(whole)), has_task=True)


def test_simulate_reads_the_scenario(tmp_path):
    simulation = pytest.importorskip("node.simulation.scenario_file")
    file = tmp_path / "scenario.toml"
    file.write_text(scenario_toml(runnable(forecast(request(nodes=20)))))
    assert simulation.load_scenario(file).scenario.nodes[0].count == 20


def test_half_and_twice_of_each_input_go_the_way_they_must():
    asked = request(up=2e6, settings={"train": {"inner_steps": 20}})
    around = {each.what: each for each in sensitivities(asked)}
    days = forecast(asked).days
    assert around["uplink"].twice.days < days < around["uplink"].half.days
    assert around["members"].twice.days < days
    assert around["tokens"].half.days == pytest.approx(days / 2, rel=0.02)
    assert around["device"].twice.step_s == pytest.approx(forecast(asked).step_s / 2)
    assert around["degree"].half.sent_gb < around["degree"].twice.sent_gb


def test_an_evaluation_of_a_scenario_is_no_longer_where_steps_gather_gradients() -> None:
    once, gathered = (
        forecast(request(nodes=8).with_settings(train={"grad_accumulation": count, "batch_size": 4}))
        for count in (1, 8)
    )
    one, other = (tomllib.loads(scenario_toml(each))["devices"]["planned"]["evaluate_s"] for each in (once, gathered))
    assert gathered.step_s == pytest.approx(8 * once.step_s)
    assert other == pytest.approx(one)
