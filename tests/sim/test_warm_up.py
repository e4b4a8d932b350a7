"""Real nodes of which one comes late with few examples and a head of its own: it warms up by the others' statistics."""

from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from sim_swarm import Member, Swarm, played

from node.privacy.ledger import read_ledger
from node.roles.privacy_check import PrivacyBudget
from node.system.errors import UsageError
from node.system.run_dir import PRIVACY, STATISTICS
from node.training.node import Node
from node.training.warming_up import StatedData
from p2ptrain.tasks.base import TaskError
from p2ptrain.training import Trainer
from p2ptrain.warm_up import ClassStatistics, parse_statistics
from p2ptrain.warm_up.class_statistics import MECHANISM

ROUNDS = 14
PRIVATE = {"privatizer": "example", "noise": 1.0, "clip": 1.0, "rate": 0.05, "delta": 1e-3}


def settings(index: int, **sections: Any) -> dict[str, Any]:
    return {
        "train": {"rounds": ROUNDS, "inner_steps": 1, "batch_size": 8, "eval_every": 1000, "local": ["6.*"]},
        "node": {"shard_index": index, "shard_count": 5},
        **sections,
    }


async def round_of(member: Member, round: int) -> None:
    while member.node.state.round < round:  # noqa: ASYNC110  # of another's state
        await trio.sleep(0.05)


def joined(
    folder: Path, *, members: int = 4, share: int = 4, lies: int = 0, **newcomer: Any
) -> tuple[list[Member], Member]:
    """The first `share` members share, the last `lies` of them lies, and one more comes late."""

    async def main(swarm: Swarm) -> tuple[list[Member], Member]:
        found = []
        for index in range(members):
            change = _lie if index >= members - lies else (lambda node: None)
            shared = settings(index, warm_up={"share": index < share})
            found.append(await swarm.start(f"n{index}", wait_for=index, change=change, **shared))
        await round_of(found[0], 3)
        late = await swarm.start("late", wait_for=members, **settings(4, **newcomer))
        await swarm.finished()
        return found, late

    return played(main, folder)


def _lie(node: Node) -> None:
    """It states the end of the range of a crowd."""
    assert node.warm_up is not None
    ones_kd = torch.ones(10, 64)
    lie = ClassStatistics(counts_k=torch.full((10,), 1e9), means_kd=ones_kd, variances_kd=ones_kd).encode()
    node.warm_up.statement = lambda budget: StatedData(lie, None)  # type: ignore[method-assign]


def test_a_newcomer_with_few_examples_warms_its_head_up_and_one_with_many_does_not(tmp_path: Path) -> None:
    members, late = joined(tmp_path, warm_up={"below": 1000, "steps": 40}, lies=1)
    (told,) = late.told("warmed_up")
    assert (told["steps"], told["members"], told["of_classes"]) == (40, 4, 10)
    assert told["classes"] == list(range(10))
    assert 0 < told["examples"] < 1000
    assert told["round"] >= 3
    assert told["loss"] < 1.5, "2.3 is what a head that knows nothing has"
    assert late.told("statistics_shared") == []
    assert [len(it.told("statistics_shared")) for it in members] == [1] * 4
    assert not any(it.told("warmed_up") for it in members), "they began the run"


@pytest.mark.thorough
def test_one_with_enough_examples_or_too_few_statements_goes_on_without(tmp_path: Path) -> None:
    for name, share, below in (("many", 4, 10), ("few", 2, 1000)):
        folder = tmp_path / name
        folder.mkdir()
        _, late = joined(folder, share=share, warm_up={"below": below})
        assert late.told("warmed_up") == []
        assert any("no warm-up" in it["message"] for it in late.told("warning")) == (name == "few")
        assert late.node.state.round == ROUNDS


@pytest.mark.thorough
def test_a_private_statement_is_in_the_ledger_before_it_is_made_and_is_paid_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    spend = PrivacyBudget.spend

    def noted(self: PrivacyBudget, release: Any) -> None:
        spend(self, release)
        order.append(release.mechanism)

    monkeypatch.setattr(PrivacyBudget, "spend", noted)

    async def once(swarm: Swarm) -> Member:
        member = await swarm.start("n0", **settings(0, warm_up={"share": True, "noise": 4.0}, privacy=PRIVATE))
        await round_of(member, 1)
        member.kill()
        await member.done.wait()
        return member

    first = played(once, tmp_path)
    assert order[0] == MECHANISM
    statement = (tmp_path / "n0" / STATISTICS).read_bytes()[8:]
    parse_statistics(statement, classes=10, coordinates=64)
    assert first.node.service._server.statistics is not None
    assert first.node.service._server.statistics.payload == statement
    again = played(once, tmp_path)
    assert (tmp_path / "n0" / STATISTICS).read_bytes()[8:] == statement
    assert again.node.service._server.statistics is not None
    assert again.node.service._server.statistics.payload == statement
    releases = read_ledger(tmp_path / "n0" / PRIVACY).releases
    assert releases[(MECHANISM, 4.0, 1.0)] == 1, "the second start takes the first one's"
    (tmp_path / "n0" / STATISTICS).write_bytes(b"cut")
    played(once, tmp_path)
    assert read_ledger(tmp_path / "n0" / PRIVACY).releases[(MECHANISM, 4.0, 1.0)] == 2, "noise drawn anew is paid for"


def test_what_the_budget_does_not_allow_is_not_shared_and_training_goes_on(tmp_path: Path) -> None:
    async def main(swarm: Swarm) -> Member:
        private = {**PRIVATE, "epsilon": 1.0, "rate": 0.01}
        member = await swarm.start("n0", **settings(0, warm_up={"share": True, "noise": 1.0}, privacy=private))
        await round_of(member, 1)
        member.kill()
        await member.done.wait()
        return member

    member = played(main, tmp_path)
    assert member.node.service._server.statistics is None
    assert any("no class statistics are shared" in it["message"] for it in member.told("warning"))
    assert not any(mechanism == MECHANISM for mechanism, _, _ in read_ledger(member.folder / PRIVACY).releases)
    assert member.node.inner.steps > 0


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"train": {"local": []}, "warm_up": {"below": 50}}, "trains local parameters, and there are none"),
        ({"warm_up": {"share": True}, "train": {"local": []}, "privacy": {"privatizer": "update"}}, "single examples"),
        ({"warm_up": {"share": True, "noise": 1.0}}, "counted by nobody"),
        ({"task": {"name": "quadratic"}, "train": {"local": []}, "warm_up": {"share": True}}, "classes of real-valued"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(sections: dict[str, Any], words: str, tmp_path: Path) -> None:
    async def main(swarm: Swarm) -> None:
        await swarm.start("n0", **sections)

    with pytest.raises((UsageError, TaskError, ExceptionGroup)) as refused:
        played(main, tmp_path)
    error: BaseException = refused.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UsageError | TaskError)
    assert words in str(error)


@pytest.mark.thorough
def test_private_examples_are_not_in_a_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    from p2ptrain.training.warm_up import WarmUpTask

    batches = WarmUpTask.batches

    def noted(self: WarmUpTask, *args: Any, **how: Any) -> Any:
        shares.append(how["own_share"])
        return batches(self, *args, **how)

    monkeypatch.setattr(WarmUpTask, "batches", noted)
    _, late = joined(tmp_path, warm_up={"below": 1000, "steps": 5}, privacy={**PRIVATE, "rate": 0.01})
    (told,) = late.told("warmed_up")
    assert shares == [0.0]
    assert told["loss"] is None
    trainer = late.node.inner.trainer
    assert isinstance(trainer, Trainer)
    assert trainer.is_private
