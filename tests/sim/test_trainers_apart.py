"""Nodes whose trainer is at the other end of a channel (`node.lane = "process"`), under the virtual clock: they compute
the same bits as others, and go on when it dies."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from remote_trainers import ThreadChild, apart, threads_as_children
from sim_swarm import STEP_SECONDS, Member, swarm

from gossip.transport.memory.network import LinkQuality
from node.system.errors import RunError, translate
from node.system.tensor_channel import supported
from node.training.remote_trainer import RemoteTrainer
from p2ptrain.tasks.hf import open_base
from p2ptrain.training import Trainer

TINY = Path(__file__).parents[1] / "data" / "tiny-llama.json"

pytestmark = pytest.mark.skipif(not supported(), reason="needs memfd and sequenced datagrams")


SLOW: dict[str, Any] = {"step_seconds": 1.5 * STEP_SECONDS, "node": {"catch_up_rounds": 100}}


@pytest.fixture
def born(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ThreadChild]]:
    with threads_as_children(monkeypatch) as children:
        yield children


def kept(member: Member) -> dict[str, torch.Tensor]:
    """All tensors of its newest checkpoint."""
    found = member.node.checkpoints.newest()
    assert found is not None
    return dict(found.tensors)


async def trained(folder: Path, count: int, **settings: Any) -> list[dict[str, torch.Tensor]]:
    """What `count` nodes keep after all rounds."""
    folder.mkdir()  # noqa: ASYNC240  # the clock is virtual
    async with swarm(folder) as members:
        nodes = [await members.start(f"n{number}", wait_for=count - 1, **settings) for number in range(count)]
        await members.finished()
    return [kept(node) for node in nodes]


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await trio.sleep(STEP_SECONDS / 10)


def trainer_warnings(member: Member) -> list[str]:
    return [fields["message"] for fields in member.told("warning") if fields.get("about") == "trainer"]


@pytest.mark.parametrize(
    "settings",
    [
        {"train": {"rounds": 4}},
        pytest.param(
            {"train": {"drift": "scaffold"}, "sync": {"aggregator": "zeno", "f": 1}}, marks=pytest.mark.thorough
        ),
        pytest.param({"train": {"rounds": 4}, "sync": {"strategy": "mime"}}, marks=pytest.mark.thorough),
        pytest.param({"train": {"rounds": 4}, "sync": {"strategy": "des_loc"}}, marks=pytest.mark.thorough),
    ],
    ids=["plain", "with a drift correction and a judge", "with gradients averaged", "with moments averaged"],
)
async def test_a_swarm_computes_the_same_bits(
    settings: dict[str, Any], tmp_path: Path, born: list[ThreadChild], autojump_clock: trio.testing.MockClock
) -> None:
    here = await trained(tmp_path / "here", 3, **settings)
    there = await trained(tmp_path / "there", 3, trainer_of=apart, **settings)
    assert len(born) == 3
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.thorough
async def test_so_does_a_swarm_of_adapters(
    tmp_path: Path,
    born: list[ThreadChild],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    pytest.importorskip("peft")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data.jsonl").write_text("\n".join(json.dumps({"text": f"{n} {n * n}"}) for n in range(400)))
    open_base(str(TINY), "AutoModelForCausalLM").build().save_pretrained(tmp_path / "base")  # type: ignore[operator]
    task = {"name": "hf-lm", "length": 16, "data": str(tmp_path / "data.jsonl"), "model": str(tmp_path / "base")}
    settings = {
        "task": {**task, "lora": 2},
        "train": {"rounds": 2, "inner_steps": 2, "eval_examples": 8, "batch_size": 2},
    }
    here = await trained(tmp_path / "here", 2, **settings)
    there = await trained(tmp_path / "there", 2, trainer_of=apart, **settings)
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


async def test_another_trainer_goes_on_from_the_newest_model(
    tmp_path: Path,
    born: list[ThreadChild],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    taken, take_over = list[dict[str, torch.Tensor]](), RemoteTrainer.take_over

    def noted(trainer: RemoteTrainer, *given: Any) -> None:
        take_over(trainer, *given)
        taken.append(trainer.state_dict())

    monkeypatch.setattr(RemoteTrainer, "take_over", noted)
    async with swarm(tmp_path) as members:
        node = await members.start("one", trainer_of=apart, node={"checkpoint_every": 1})
        await until(lambda: node.node.state.round == 3 and node.node.inner.phase_steps == 3)
        before, anchor_d = kept(node), node.node.strategy.state_dict()["anchor"].clone()
        born[0].kill()
        await members.finished()
    (after,) = taken
    assert torch.equal(after.pop("parameters"), anchor_d)
    assert after["counters"].tolist()[0] == 3 * 5
    assert [name for name, value in after.items() if not torch.equal(value, before[f"trainer.{name}"])] == []
    assert trainer_warnings(node) == [
        "the process that trains was killed by SIGKILL: another one begins round 4 again, from the newest model; "
        "where memory ran out (dmesg says so), lower train.batch_size",
        "training goes on in process 1",
    ]
    assert [fields["round"] for fields in node.told("round")] == list(range(1, 9))
    assert node.node.inner.trainer.global_step == 8 * 5, "no data is left out, and none is counted twice"
    assert node.eval_loss < node.told("evaluated")[0]["eval_loss"]


async def test_one_that_dies_while_a_round_is_closed_gets_what_comes_of_it(
    tmp_path: Path,
    born: list[ThreadChild],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The round's correction belongs to the model that is lost: the anchor has it already."""
    taken, take_over = list[tuple[bool, int, bool]](), RemoteTrainer.take_over

    def noted(trainer: RemoteTrainer, anchor_d: torch.Tensor, *given: Any) -> None:
        take_over(trainer, anchor_d, *given)
        own = node.node
        is_newest = torch.equal(trainer.vector(), own.strategy.state_dict()["anchor"])
        taken.append((own.state.closing, own.inner.waiting, is_newest))

    monkeypatch.setattr(RemoteTrainer, "take_over", noted)
    async with swarm(tmp_path, link=LinkQuality(latency_s=STEP_SECONDS)) as members:
        await members.start("other", wait_for=1)
        node = await members.start("one", wait_for=1, trainer_of=apart)
        await until(lambda: node.node.state.round == 2 and node.node.state.closing)
        before = node.node.strategy.state_dict()["anchor"].clone()
        born[0].kill()
        await members.finished()
    assert taken == [(False, 0, True)]
    assert trainer_warnings(node)[0].startswith(
        "the process that trains was killed by SIGKILL: another one begins round 4"
    )
    assert len(node.told("round")) == 8
    assert not torch.equal(before, node.node.strategy.state_dict()["anchor"])


async def test_a_second_death_in_one_round_ends_the_node(
    tmp_path: Path, born: list[ThreadChild], autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path, keep_errors=True) as members:
        node = await members.start("one", trainer_of=apart, train={"rounds": 2, "inner_steps": 1000})
        await until(lambda: node.node.inner.phase_steps == 3)
        born[0].kill()
        await until(lambda: len(trainer_warnings(node)) == 2)
        born[1].kill()
        await members.finished()
    assert node.error is not None
    told = translate(node.error)
    assert isinstance(told, RunError)
    assert told.message.startswith("the process that trains was killed by SIGKILL, for the second time in round 1")
    assert len(born) == 2


async def test_stopped_without_a_trainer_it_names_what_is_left(
    tmp_path: Path, born: list[ThreadChild], autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path, keep_errors=True) as members:
        node = await members.start("one", trainer_of=apart, node={"checkpoint_every": 1})
        await until(lambda: node.node.state.round == 3 and node.node.inner.phase_steps == 3)
        born[0].kill()
        node.stop.set()
        await members.finished()
    assert node.error is not None
    told = translate(node.error).message
    assert told.startswith("the process that trains was killed by SIGKILL; the newest checkpoint is ")
    assert told.endswith("round-00000003")


async def test_deaths_in_several_rounds_are_each_made_good(
    tmp_path: Path, born: list[ThreadChild], autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        node = await members.start("one", trainer_of=apart)
        for number in range(3):
            await until(lambda: node.node.state.round == 1 + 2 * number)  # noqa: B023
            born[number].kill()
        await members.finished()
    assert len(born) == 4
    assert len(node.told("round")) == 8


@pytest.mark.thorough
async def test_a_death_after_the_last_step_costs_nothing(
    tmp_path: Path, born: list[ThreadChild], autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        others = [await members.start(f"n{number}", wait_for=2, **SLOW) for number in range(2)]
        node = await members.start("one", trainer_of=apart, wait_for=2)
        await until(lambda: node.node.state.training_over.is_set())
        born[0].kill()
        await members.finished()
    assert len(born) == 2, "the last evaluation wants a model's code"
    assert [len(each.told("round")) for each in (node, *others)] == [8, 8, 8]
    assert node.told("evaluated")[-1]["round"] == 8
    assert kept(node)["trainer.parameters"].isfinite().all()
    assert "after its last step" in trainer_warnings(node)[0]


async def test_a_model_that_dies_at_each_evaluation_ends_the_node(
    tmp_path: Path,
    born: list[ThreadChild],
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    def measure(trainer: Trainer, x_d: torch.Tensor | None = None) -> None:
        born[-1].kill()

    monkeypatch.setattr(Trainer, "measure", measure)
    async with swarm(tmp_path, keep_errors=True) as members:
        node = await members.start("one", trainer_of=apart)
        await members.finished()
    assert node.error is not None
    told = translate(node.error).message
    assert told == "the process that trains was killed by SIGKILL; no checkpoint was written before"
    assert len(born) == 2


@pytest.mark.thorough
async def test_an_observer_evaluates_there(
    tmp_path: Path, born: list[ThreadChild], autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        for name in "abc":
            await members.start(name, wait_for=2)
        seen = await members.start("observer", wait_for=1, node={"role": "observer"}, trainer_of=apart)
        await members.finished()
    losses = [fields["eval_loss"] for fields in seen.told("evaluated")]
    assert losses[-1] < losses[0]
    assert kept(seen)["trainer.parameters"].isfinite().all()
