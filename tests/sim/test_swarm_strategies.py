"""Four real nodes under every strategy that a node can run: `p2ptrain node --set sync.strategy=X` in small."""

import itertools
import tomllib
from pathlib import Path

import pytest
import torch
import trio.testing
from sim_swarm import swarm

from node.config.schema import from_raw
from node.system.errors import UsageError
from p2ptrain.sync import ALLREDUCE, SECURE, SYNC_STRATEGIES, ModelAveraging, averages_gradients

ROUNDS = 3
NAMES = [name for name in SYNC_STRATEGIES.names() if not averages_gradients(name)]


@pytest.mark.parametrize("strategy", NAMES)
async def test_four_nodes_run_it(strategy: str, tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    in_groups = SYNC_STRATEGIES.get(strategy).averager in (ALLREDUCE, SECURE)
    async with swarm(tmp_path) as members:
        for number in range(4):
            await members.start(
                f"n{number}",
                wait_for=3,
                sync={"strategy": strategy},
                train={"rounds": ROUNDS, "eval_every": ROUNDS},
                node={"checkpoint_every": 1},
            )
        await members.finished()
        nodes = [member.node for member in members.members.values()]
        for member in members.members.values():
            rounds = member.told("round")
            assert [fields["round"] for fields in rounds] == list(range(1, ROUNDS + 1))
            assert not member.told("rejected")
            assert member.eval_loss < member.node.journal.first["eval_loss"]
            assert (member.node.service.stats.updates_accepted > 0) != in_groups
            if strategy == "noloco":
                assert {fields["members"] for fields in rounds} == {2}
        for node, other in itertools.permutations(nodes, 2):  # what each holds of the others is what they said
            assert isinstance(node.strategy, ModelAveraging)
            assert not (in_groups and node.strategy.estimates), "in a group nobody is tracked"
            if other.peer_id in node.strategy.estimates:
                held_d = node.strategy.estimates[other.peer_id]
                assert held_d.numpy().tobytes() == other.strategy.snapshot()
        resumed = await members.start("n0", sync={"strategy": strategy}, train={"rounds": ROUNDS + 1})
        assert resumed.resumed
        assert torch.equal(resumed.node.strategy.state_dict()["anchor"], nodes[0].strategy.state_dict()["anchor"])


async def test_momentum_that_cannot_pay_is_told_once(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with swarm(tmp_path) as members:
        for name, sync in (("chosen", {"alpha": 0.9}), ("unset", {})):
            await members.start(name, wait_for=1, sync={"strategy": "diloco", **sync}, train={"rounds": ROUNDS})
        await members.finished()
        told = {
            name: [fields["message"] for fields in member.told("warning") if "alpha" in fields["message"]]
            for name, member in members.members.items()
        }
    assert told["unset"] == []
    (message,) = told["chosen"]
    assert message.startswith("nesterov with alpha = 0.9 averages over 10 rounds, and cannot pay in 3: ")


def test_a_strategys_parts_come_with_its_name() -> None:
    config = from_raw({"sync": {"strategy": "noloco"}})
    assert (config.sync.compressor, config.sync.aggregator, config.sync.f) == ("fp16", "mean", 0)
    own = {key: value for key, value in vars(config.sync).items() if value is not None and key != "options"}
    assert from_raw({"sync": own | dict(config.sync.options)}).sync == config.sync
    assert from_raw(tomllib.loads(config.to_toml())) == config


async def test_what_averages_gradients_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as refused:
        async with swarm(tmp_path) as members:
            await members.start("n0", sync={"strategy": "gradient"})
    (error,) = refused.value.exceptions
    assert isinstance(error, ValueError)
    assert "use tracked_gossip with train.inner_steps = 1" in str(error)


@pytest.mark.parametrize("name", ["rotated+q2", "lossless+topk"])
def test_composed_names_reach_the_strategy(name: str) -> None:
    assert from_raw({"sync": {"compressor": name}}).sync.compressor == name
    with pytest.raises(UsageError, match="'rotatde', did you mean rotated"):
        from_raw({"sync": {"compressor": "rotatde+q2"}})
