"""A trainer at the other end of a channel (`RemoteTrainer`): what it answers, and what it says of its task's faults."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_trainers import ThreadChild, apart, threads_as_children

from node.config.schema import Config, from_raw
from node.roles.assembly import own_trainer
from node.system.errors import RunError, translate
from node.system.process_use import ProcessUse
from node.system.tensor_channel import supported
from node.training.remote_trainer import RemoteTrainer, TrainerLostError
from p2ptrain.inner.inner_state import BufferPart, whole_buffers

pytestmark = pytest.mark.skipif(not supported(), reason="needs memfd and sequenced datagrams")

FAULTY = """
import sys
from p2ptrain.tasks.digits import Digits

class Faulty(Digits):
    def loss(self, model, batch):
        {line}

def create():
    return Faulty()
"""


@pytest.fixture
def born(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ThreadChild]]:
    with threads_as_children(monkeypatch) as children:
        yield children


def config_of(**sections: dict[str, Any]) -> Config:
    return from_raw({"task": {"name": "digits"}, "train": {"threads": 1, "batch_size": 8}, **sections})


def states(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.state_dict().items()}


def test_it_answers_what_a_trainer_here_does(tmp_path: Path, born: list[ThreadChild]) -> None:
    config = config_of()
    here, there = own_trainer(config, "peer"), apart(tmp_path, config, "peer")
    for name in ("numel", "metric", "units", "evaluates", "fingerprint", "identity", "shard", "data_seed", "device"):
        assert getattr(there, name) == getattr(here, name), name
    assert there.layout() == here.layout()
    assert (there.steps_elsewhere, there.micro_batch, there.compile_fault) == (False, None, "")
    x_d = here.vector() + 0.01
    others = [x_d + 0.1, x_d - 0.1]
    for each in (here, there):
        each.begin_round()
    assert [there.take_step(3, rate_factor=0.5) for _ in range(3)] == [here.step(3, rate_factor=0.5) for _ in range(3)]
    assert (there.global_step, there.tokens, there.learning_rate) == (3, here.tokens, here.learning_rate)
    assert there.measure(x_d).loss == here.measure(x_d).loss
    assert there.evaluate() == here.evaluate()
    assert there.judge(x_d, 5) == here.judge(x_d, 5) != here.judge(x_d, 6)
    assert there.divergence(x_d, iter(others)) == here.divergence(x_d, others) != 0
    assert there.divergence(x_d, iter([])) is None
    for each in (here, there):
        each.correct(x_d)
        each.config = replace(each.config, learning_rate=1.0)  # as a newer manifest
        each.take_step()
    assert there.learning_rate == here.learning_rate
    one, other = states(here), states(there)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    there.load_vector(x_d)
    assert torch.equal(there.vector(), x_d)
    with pytest.raises(ValueError, match="state lacks"):
        there.load_state_dict({"parameters": x_d})
    there.load_state_dict(one)
    assert torch.equal(there.vector(), one["parameters"])


def test_moments_come_and_parts_of_them_go_back(tmp_path: Path, born: list[ThreadChild]) -> None:
    config = config_of(sync={"strategy": "des_loc"}, train={"threads": 1, "batch_size": 8})
    here, there = own_trainer(config, "peer"), apart(tmp_path, config, "peer")
    for each in (here, there):
        each.take_step()
    one, other = here.inner_state(), there.inner_state()
    assert one.gradient_d is None
    assert {*one.moments} == {"exp_avg", "exp_avg_sq"} == {*other.moments}
    assert all(torch.equal(value, other.moments[name]) for name, value in one.moments.items())
    one.moments["exp_avg"].zero_()
    assert here.inner_state().moments["exp_avg"].any(), "a copy"
    for each in (here, there):
        each.take_optimizer_state([BufferPart("exp_avg", slice(3, 5), torch.tensor([7.0, 8.0]))])
        with pytest.raises(ValueError, match="of another model"):
            each.take_optimizer_state([BufferPart("exp_avg", slice(each.numel, each.numel + 2), torch.ones(2))])
    for each in (here, there):
        assert each.inner_state().moments["exp_avg"][3:5].tolist() == [7.0, 8.0]


def test_gradients_and_the_optimizers_state_come_and_go(tmp_path: Path, born: list[ThreadChild]) -> None:
    config = config_of(sync={"strategy": "mime"}, train={"optimizer": "muon", "threads": 1, "batch_size": 8})
    here, there = own_trainer(config, "peer"), apart(tmp_path, config, "peer")
    assert there.optimizer_place() == here.optimizer_place()
    for each in (here, there):
        each.take_step()
    one, other = here.inner_state().gradient_d, there.inner_state().gradient_d
    assert one is not None
    assert other is not None
    assert one.any()
    assert torch.equal(one, other)
    state = {name: torch.rand_like(buffer) for name, buffer in here.optimizer.buffers.items()}
    for each in (here, there):
        each.take_optimizer_state(whole_buffers(state))
    one, other = states(here), states(there)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert torch.equal(one["momentum"], state["momentum"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("raise KeyError('no such row')", "{file}:7 raised KeyError: 'no such row'; mend it there"),
        ("return model(batch[0])", "{file}:6: loss() returned a tensor of shape"),
        ("sys.exit(3)", "{file}:7 ended the program (exit code 3); raise an exception there"),
    ],
)
def test_faults_of_a_task_are_told_with_their_place(
    line: str, says: str, tmp_path: Path, born: list[ThreadChild], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "faulty_there.py"
    file.write_text(FAULTY.format(line=line))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faulty_there", raising=False)
    trainer = apart(tmp_path, config_of(task={"name": "faulty_there:create"}), "peer")
    with pytest.raises(Exception) as found:
        trainer.take_step()
    told = translate(found.value)
    assert isinstance(told, RunError)
    assert told.line().startswith(says.format(file=file)), told.line()


def test_a_task_is_tried_there(tmp_path: Path, born: list[ThreadChild], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "untried_there.py").write_text(FAULTY.format(line="return model(batch[0]).sum().detach()"))
    monkeypatch.syspath_prepend(tmp_path)
    trainer = apart(tmp_path, config_of(task={"name": "untried_there:create"}), "peer")
    with pytest.raises(Exception, match="the loss does not depend on any parameter"):
        trainer.check_task()


def test_after_a_death_nothing_trains_until_a_state_is_given(tmp_path: Path, born: list[ThreadChild]) -> None:
    trainer = apart(tmp_path, config_of(), "peer")
    initial_d = trainer.vector()
    trainer.begin_round()
    trainer.take_step()
    trained = states(trainer)
    born[0].kill()
    assert trainer.measure(initial_d).loss > 0, "by another process"
    for act in (trainer.take_step, trainer.vector, trainer.begin_round, trainer.state_dict):
        with pytest.raises(TrainerLostError, match="was killed by SIGKILL"):
            act()
    trainer.restart()
    assert len(born) == 2, "it has one already"
    trainer.take_over(initial_d, trained)
    assert torch.equal(trainer.vector(), initial_d)
    assert (trainer.global_step, trainer.tokens) == (0, 0), "the step is taken again"
    found = states(trainer)
    assert [name for name in found if not torch.equal(found[name], trained[name])] == ["parameters", "counters"]
    trainer.take_step()
    assert trainer.global_step == 1


def test_one_that_is_closed_is_not_replaced(tmp_path: Path, born: list[ThreadChild]) -> None:
    trainer: RemoteTrainer = apart(tmp_path, config_of(), "peer")
    trainer.close()
    with pytest.raises(TrainerLostError):
        trainer.measure(torch.zeros(trainer.numel))
    trainer.restart()
    assert len(born) == 1


def test_memory_and_time_of_both_processes_count() -> None:
    words = "sum(range(3_000_000)); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        own, both = ProcessUse(), ProcessUse(lambda: other.pid)
        assert both.rss_bytes() > own.rss_bytes()
        took = both.cpu_s() - own.cpu_s()
        assert took > 0.01
        other.communicate(b"\n")
        assert both.cpu_s() - own.cpu_s() >= 0.9 * took, "what a dead one took stays counted"
