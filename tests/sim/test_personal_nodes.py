"""Whole nodes whose models stay personal: rounds close as ever, what is shared is averaged and nothing else is sent, a
node that is restarted goes on with its own, and the run's folder is enough for the cross-site table."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from sim_swarm import Member, Swarm, played

from node.reporting.cross_site import OWN_MODEL, PERSONAL_MODEL, cross_site, cross_site_lines, cross_site_section
from node.system.errors import RunError, UsageError
from node.system.run_dir import EVENTS
from node.training.evaluation import build_models, find_models, mean_model
from p2ptrain.saved.models import models_of, state_dict
from p2ptrain.sync import SYNC_STRATEGIES, averages_gradients
from p2ptrain.training import Trainer
from p2ptrain.training.ditto import PERSONAL, DittoTrainer

HEAD = {"6.weight", "6.bias"}
WHOLE, SHARED = 9226, 9226 - 650
TASK = {"name": "digits", "partition": "dirichlet", "alpha": 0.1}


async def start(members: Swarm, name: str, *, index: int = 0, count: int = 2, **sections: Any) -> Member:
    train = {"rounds": 4, "inner_steps": 3, "eval_every": 2, "local": ["6.*"], **sections.pop("train", {})}
    node = {"checkpoint_every": 1, "shard_index": index, "shard_count": count}
    return await members.start(name, task=TASK, train=train, node=node, **sections)


def play(folder: Path, **sections: Any) -> list[Member]:
    async def main(members: Swarm) -> list[Member]:
        found = [await start(members, f"n{each}", index=each, wait_for=1, **sections) for each in range(2)]
        await members.finished()
        return found

    members = played(main, folder)
    for member in members:
        (member.folder / EVENTS).touch()  # that a real node writes its own into
    return members


def head_of(member: Member) -> dict[str, torch.Tensor]:
    trainer = member.node.inner.trainer
    assert isinstance(trainer, Trainer)
    return trainer.local_values()


def others_estimate(member: Member, other: Member) -> torch.Tensor:
    found = member.node.strategy.estimate_model(str(other.node.peer_id))
    assert isinstance(found, torch.Tensor)
    return found


EVERY = [name for name in SYNC_STRATEGIES.names() if not averages_gradients(name)]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, marks=[] if name in ("tracked_gossip", "allreduce") else pytest.mark.thorough)
        for name in EVERY
    ],
)
def test_rounds_close_with_every_strategy_over_a_shorter_vector(tmp_path: Path, strategy: str) -> None:
    members = play(tmp_path, sync={"strategy": strategy})
    for member in members:
        assert member.node.inner.trainer.numel == SHARED
        assert len(member.told("round")) == 4
    one, other = (head_of(each) for each in members)
    assert set(one) == HEAD
    assert not torch.equal(one["6.weight"], other["6.weight"]), "each is its own"


@pytest.mark.parametrize(
    "codec", ["q2", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fp16", "topk", "sign1", "int8"))]
)
def test_any_codec_sends_as_much_less(tmp_path: Path, codec: str) -> None:
    sent = []
    for number, local in enumerate(([], ["6.*"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        members = play(folder, sync={"compressor": codec}, train={"local": local, "rounds": 2})
        sent.append(members[0].node.counts.mean_bytes)
    assert sent[1] < sent[0]
    assert sent[1] / sent[0] == pytest.approx(SHARED / WHOLE, abs=0.03)


def test_another_pattern_is_another_run(tmp_path: Path) -> None:
    async def main(members: Swarm) -> Member:
        await start(members, "n0", train={"rounds": 2})
        other = await start(members, "n1", index=1, train={"local": ["1.*"], "rounds": 2})
        await members.finished()
        return other

    other = played(main, tmp_path)
    assert not other.told("neighbour_up")
    assert not other.node.estimates


def test_a_restarted_node_goes_on_with_its_own(tmp_path: Path) -> None:
    async def main(members: Swarm) -> None:
        await start(members, "n0", personal={"strength": 0.1})
        await members.finished()

    played(main, tmp_path)
    (saved,) = models_of(tmp_path / "n0").models
    local = {name: value for name, value in saved.untrained.items() if name in HEAD}
    assert set(local) == HEAD

    async def again(members: Swarm) -> Member:
        return await start(members, "n0", personal={"strength": 0.1}, train={"rounds": 5})

    member = played(again, tmp_path)
    assert member.resumed
    trainer = member.node.inner.trainer
    assert isinstance(trainer, DittoTrainer)
    assert all(torch.equal(value, local[name]) for name, value in trainer.local_values().items())
    assert torch.equal(trainer.personal.vector(), saved.tensors["trainer.personal.parameters"])


def test_a_restart_under_another_pattern_is_refused_in_a_line(tmp_path: Path) -> None:
    async def main(members: Swarm, local: list[str]) -> None:
        await start(members, "n0", train={"local": local, "rounds": 2})
        await members.finished()

    played(partial(main, local=["1.*"]), tmp_path)
    for local in ([], ["4.*"], ["6.*"]):
        with pytest.raises((RunError, ExceptionGroup)) as refused:
            played(partial(main, local=local), tmp_path)
        told = refused.value.exceptions[0] if isinstance(refused.value, ExceptionGroup) else refused.value
        assert "another model" in str(told)
        assert "\n" not in str(told)


def test_a_newcomer_has_its_own_from_the_start(tmp_path: Path) -> None:
    async def main(members: Swarm) -> tuple[Member, Member]:
        train = {"rounds": 24, "learning_rate": 0.02}
        first = await start(members, "n0", train=train, sync={"f": 0})
        await trio.sleep(2)
        late = await start(members, "n1", index=1, train=train, sync={"f": 0})
        before = head_of(late)
        assert all(torch.equal(value, Trainer(*_as(late)).local_values()[name]) for name, value in before.items())
        await members.finished()
        return first, late

    first, late = played(main, tmp_path)
    assert len(first.told("round")) == 24
    assert late.told("joined"), "it takes the others' shared model"
    assert not torch.equal(head_of(first)["6.weight"], head_of(late)["6.weight"])


def _as(member: Member) -> tuple[Any, ...]:
    trainer = member.node.inner.trainer
    assert isinstance(trainer, Trainer)
    return trainer.task, trainer.config, trainer.shard


def test_the_folder_is_enough_for_every_model_on_every_split(tmp_path: Path) -> None:
    members = play(tmp_path, personal={"strength": 0.1})
    found = cross_site(tmp_path)
    assert [split.node for split in found.splits] == ["n0", "n1"]
    assert set(found.losses) == {OWN_MODEL, PERSONAL_MODEL} == set(found.accuracies)
    for place, member in enumerate(members):
        trainer = member.node.inner.trainer
        assert isinstance(trainer, DittoTrainer)
        told = member.told("evaluated")[-1]["own"]
        assert found.losses[PERSONAL_MODEL][place][place] == pytest.approx(told[PERSONAL], rel=1e-5)
        assert found.losses[OWN_MODEL][place][place] == pytest.approx(told["own shard"], rel=1e-5)
    assert found.splits[0].predictions + found.splits[1].predictions == 359
    assert any(found.lacking(split) for split in found.splits)
    lines = cross_site_lines(cross_site_section(found))
    assert lines[1].split()[:4] == ["Model", "of", "Own", "split"]
    share = found.accuracies[OWN_MODEL][0][0]
    assert share is not None
    assert lines[2].split()[:2] == ["n0", f"{100 * share:.1f}%"]
    assert found.as_json()["splits"][0]["lacking"] == found.lacking(found.splits[0])


def test_models_are_exported_whole_and_their_mean_has_the_mean_of_heads(tmp_path: Path) -> None:
    members = play(tmp_path)
    found = models_of(tmp_path)
    heads = [head_of(member)["6.weight"] for member in members]
    one = state_dict(models_of(tmp_path, "n1").models)
    assert torch.equal(one["6.weight"], heads[1])
    assert set(one) == set(state_dict(found.models)) >= HEAD | {"0.weight"}
    torch.testing.assert_close(state_dict(found.models)["6.weight"], (heads[0] + heads[1]) / 2)
    loaded = build_models(find_models(tmp_path))
    mean_d = mean_model(loaded)
    model = loaded[0].trainer.model_with(mean_d)
    torch.testing.assert_close(dict(model.state_dict()), state_dict(found.models))


def test_data_dealt_alike_have_no_table(tmp_path: Path) -> None:
    async def main(members: Swarm) -> None:
        train = {"rounds": 1, "inner_steps": 1, "local": ["6.*"]}
        await members.start("n0", task={"name": "digits"}, train=train, node={"checkpoint_every": 1})
        await members.finished()

    played(main, tmp_path)
    (tmp_path / "n0" / EVENTS).touch()
    with pytest.raises(UsageError, match="test split"):
        cross_site(tmp_path)
