"""`p2ptrain.join` with the node in a process of its own (`node.lane = "process"`): real processes, over loopback."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from processes_harness import PATIENCE_S, Program
from test_join import ALONE, evaluate, joined, model_of, told, train, until
from torch import nn

import p2ptrain
from node.swarm.create import CreateRequest, create
from node.swarm.inviting import Wish
from node.system.errors import RunError
from node.system.tensor_channel import supported
from p2ptrain.integrations.swarm import Swarm

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.paired,
    pytest.mark.slow,
    pytest.mark.skipif(not supported(), reason="needs memfd and sequenced datagrams"),
]

APART = {**ALONE, "node.lane": "process"}


def program() -> psutil.Process:
    """The node's process."""
    alive = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    return next(each for each in alive if "node.roles.joined_program" in each.cmdline())


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def apart(model: nn.Module, optimizer: object, run_dir: Path, **more: Any) -> Swarm:
    return joined(model, optimizer, run_dir, **{"settings": APART, **more})


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_alone_it_changes_nothing_and_the_folder_goes_on_bit_for_bit(tmp_path: Path) -> None:
    plain = model_of()
    train(plain, adam(plain), range(23))

    model = model_of()
    optimizer = adam(model)
    with apart(model, optimizer, tmp_path, evaluate=evaluate) as swarm:
        held = program()
        assert held.pid in {fields["pid"] for fields in told(swarm, "started")}
        assert not [each for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"]
        train(model, optimizer, range(10))
        assert (swarm.global_step, swarm.peers) == (10, [])
    assert not held.is_running()
    assert told(swarm, "evaluated")[-1]["eval_loss"] == pytest.approx(evaluate(model), rel=1e-6)
    again = model_of(seed=7)
    optimizer = adam(again)
    with apart(again, optimizer, tmp_path) as swarm:
        assert swarm.global_step == 10
        train(again, optimizer, range(10, 23))
        state = swarm.leave()
    assert equal(plain, again)
    assert sum(fields["steps"] for fields in told(swarm, "round")) == 23
    assert state["round"] == len(told(swarm, "round"))


def test_a_loop_waits_for_its_rounds_where_it_is_told_to(tmp_path: Path) -> None:
    model = model_of()
    optimizer, script = adam(model), Path(__file__).with_name("quiet_loop.py")
    with Program(tmp_path, tmp_path / "first", run=[script]) as neighbour:
        peers, settings = [neighbour.hear("listens")["address"]], {**APART, "node.overlap": False}
        with apart(model, optimizer, tmp_path / "here", peers=peers, wait_for=1, settings=settings) as swarm:
            train(model, optimizer, range(60), wait_s=0.02)
            rounds = told(swarm, "round")
    assert len(rounds) >= 10
    assert {fields["late_steps"] for fields in rounds} == {0}
    assert max(fields["members"] for fields in rounds) == 2


def test_another_node_takes_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    first, model = tmp_path / "first", model_of()
    optimizer = adam(model)
    script = Path(__file__).with_name("quiet_loop.py")
    with Program(first, first, run=[script]) as neighbour:
        address = neighbour.hear("listens")["address"]
        with apart(model, optimizer, tmp_path / "here", peers=[address], wait_for=1) as swarm:
            at = swarm.addresses
            train(model, optimizer, range(40), wait_s=0.02)
            program().kill()
            train(model, optimizer, range(40, 41))
            assert swarm.addresses == at, "where the neighbours look for it"
            steps = 41
            while not told(swarm, "round") or told(swarm, "round")[-1]["members"] < 2 or len(swarm.peers) < 1:
                train(model, optimizer, range(steps, steps + 1), wait_s=0.02)
                steps += 1
                assert steps < 2000
            assert evaluate(model) < 0.5 * evaluate(model_of())
        said = [fields["message"] for fields in told(swarm, "warning")]
        assert any("was killed by SIGKILL: another one goes on" in each for each in said)


def test_a_node_that_dies_at_once_again_is_no_more_replaced(tmp_path: Path) -> None:
    model = model_of()
    optimizer = adam(model)

    def killed() -> None:
        program().kill()
        train(model, optimizer, range(1))

    def loop() -> None:
        with apart(model, optimizer, tmp_path, inner_steps=50):
            killed()
            killed()

    with pytest.raises(RunError, match="was killed by SIGKILL; it was the second one in round 0"):
        loop()


def test_a_node_whose_loop_is_killed_leaves_the_swarm(tmp_path: Path) -> None:
    with Program(tmp_path, tmp_path / "run", run=[Path(__file__).with_name("quiet_loop.py")]) as loop:
        loop.hear("listens")
        until(lambda: any((tmp_path / "run").glob("*/checkpoint/*")))
        node = psutil.Process(loop.pid).children()[0]
        loop.process.kill()
        node.wait(PATIENCE_S)
    events = [json.loads(line) for line in (tmp_path / "run" / "node" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "failed"
    assert events[-1]["error"] == "the process that trains has ended"
    model = model_of(seed=3)
    with apart(model, adam(model), tmp_path / "run") as swarm:
        assert swarm.global_step > 0, "the newest checkpoint is whole"


def test_ctrl_c_saves_the_model(tmp_path: Path) -> None:
    with Program(tmp_path, tmp_path / "run", run=[Path(__file__).with_name("quiet_loop.py")]) as loop:
        loop.hear("listens")
        time.sleep(0.5)
        loop.interrupt(signal.SIGINT)
        assert loop.end() == 130
        weight = loop.hear("interrupted")["first"]
    assert p2ptrain.load(tmp_path / "run")["0.weight"][0, 0].item() == weight


def test_a_private_swarm_and_errors_of_its_node(tmp_path: Path) -> None:
    own = {"network": {"listen": ["/ip4/127.0.0.1/tcp/0"]}}
    raw = {"task": {"name": "external"}, "train": {"rounds": 3, "inner_steps": 4}, **own}
    create(tmp_path / "lab", raw, CreateRequest(name="lab", psk=True, first=Wish()), None)
    model = model_of()
    optimizer = adam(model)
    with p2ptrain.join(model, optimizer, swarm=tmp_path / "lab", settings=APART, quiet=True) as swarm:
        with pytest.raises(RunError, match="is in use by process"):
            apart(model_of(), None, tmp_path / "lab").__enter__()
        taken = 0
        while swarm.round < 3 and taken < 5_000:  # rounds are longer where the other process waits for a core
            train(model, optimizer, range(taken, taken + 1))
            taken += 1
            time.sleep(0.005)
        train(model, optimizer, range(taken, taken + 5))
        assert (swarm.round, swarm.global_step) == (3, taken + 5), "it goes on alone"
