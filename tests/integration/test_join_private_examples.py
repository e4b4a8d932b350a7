"""`p2ptrain.join` with `privacy.privatizer = "example"`: loops whose steps are private one by one, over real libp2p."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from test_join import ALONE, WEIGHTS, loss_of, model_of, told, until
from test_join_private import joined, killed, node_of, vector
from torch import nn
from typer.testing import CliRunner

import p2ptrain
from node.cli.app import app
from node.privacy.ledger import read_ledger
from node.privacy.privacy_report import report_of
from node.system.errors import UsageError
from p2ptrain.integrations.swarm import Swarm
from p2ptrain.integrations.trainer_swarm import TrainerSwarm
from p2ptrain.privacy.allowance import BLOCK
from p2ptrain.tasks.base import Batch

pytestmark = [pytest.mark.paired, pytest.mark.slow]

COUNT, RATE = 200, 0.1
X = torch.randn(COUNT, 8, generator=torch.Generator().manual_seed(5))
Y = X @ WEIGHTS
PRIVATE: dict[str, object] = {"privacy.privatizer": "example", "privacy.rate": RATE, "privacy.noise": 2.0}


def examples_at(rows: list[int]) -> Batch:
    return X[rows], Y[rows]


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    inputs, targets = batch
    return (model(inputs).squeeze(-1) - targets).square().mean()


def train(swarm: Swarm, optimizer: torch.optim.Optimizer, most: int = 1000) -> int:
    """Return how many steps were taken."""
    taken = 0
    for _ in swarm.private_gradients(loss, examples_at, COUNT):
        optimizer.step()
        taken += 1
        if taken == most:
            break
    return taken


def foretold(steps: int) -> float:
    """What `p2ptrain privacy epsilon` says of so many steps."""
    words = ["privacy", "epsilon", "--noise", "2", "--rate", str(RATE), "--steps", str(steps), "--json"]
    return float(json.loads(CliRunner().invoke(app, words).stdout)["epsilon"])


def spent(swarm: Swarm) -> int:
    return sum(read_ledger(swarm.run_dir / "privacy.jsonl").releases.values())


def test_the_loop_ends_with_its_budget_and_the_node_serves_on(tmp_path: Path) -> None:
    model, start_d = model_of(), vector(model_of())
    swarm, optimizer = joined(model, tmp_path / "run", settings={**PRIVATE, "privacy.epsilon": 2.0})
    with swarm:
        steps = train(swarm, optimizer)
        assert swarm.budget_spent
        assert swarm.global_step == steps <= spent(swarm) <= steps + BLOCK
        assert swarm.epsilon == pytest.approx(foretold(spent(swarm)), rel=1e-3)
        assert foretold(spent(swarm)) <= 2.0 < foretold(spent(swarm) + BLOCK)
        assert train(swarm, optimizer) == 0
        with pytest.raises(UsageError, match="has no private gradient"):
            optimizer.step()
        assert sum(fields["steps"] for fields in told(swarm, "round")) == steps, "the last round is closed"
        own_id = swarm.peer_id
        newcomer, _ = joined(model_of(), tmp_path / "new", peers=swarm.addresses, wait_for=1)
        with newcomer:
            assert newcomer.peers == [own_id], "it serves on"
            until(lambda: bool(node_of(newcomer).strategy.estimate(own_id)))
            held = bytearray(node_of(newcomer).strategy.estimate(own_id) or b"")
            torch.testing.assert_close(torch.frombuffer(held, dtype=torch.float32), vector(model), rtol=0, atol=1e-6)
            newcomer.leave(cut_short=True)
    assert not torch.equal(vector(model), start_d)
    rounds = told(swarm, "round")
    assert all(fields["train_loss"] is None and fields["tokens"] == 0 for fields in rounds)
    (ended,) = told(swarm, "privacy_budget_spent")
    assert ended["would_be"] > 2.0
    report = report_of(swarm.run_dir, tight=False)
    assert [(each.mechanism, each.rate, each.count) for each in report.releases] == [("example", RATE, spent(swarm))]
    words = {each.what: each.coverage.value for each in report.disclosures}
    assert words["how many examples a step drew"] == "withheld"
    assert words["buffers, such as running means"] == "withheld"
    assert words["the model that `join` is given"] == "public"


def test_a_loop_that_its_budget_ends_has_its_last_round_closed_however_long_that_takes(tmp_path: Path) -> None:
    """The correction is applied by the loop's own thread: the round stayed open, and the node said to nobody that it is
    paused, for as long as the loop did something else."""
    swarm, optimizer = joined(model_of(), tmp_path / "run", settings={**PRIVATE, "privacy.epsilon": 2.0})
    with swarm:
        averager = node_of(swarm).averager
        at_once = averager.close

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            await trio.sleep(0.3)
            return await at_once(*args, **kwargs)

        averager.close = slowly  # type: ignore[method-assign]
        steps = train(swarm, optimizer)
        assert sum(fields["steps"] for fields in told(swarm, "round")) == steps
        assert node_of(swarm).state.settled.is_set(), "it serves on from here, as one that is paused"


def test_it_goes_on_by_its_run_folder_with_what_was_spent(tmp_path: Path) -> None:
    def begun(model: nn.Module) -> tuple[Swarm, torch.optim.Optimizer]:
        return _joined(model, torch.optim.Adam(model.parameters(), lr=0.01), tmp_path)

    model = model_of()
    swarm, optimizer = begun(model)
    with swarm:
        train(swarm, optimizer, 10)
        swarm.leave(cut_short=True)
    public_d, paid, moments = vector(model), spent(swarm), optimizer.state_dict()["state"]
    assert paid >= 10
    other = model_of(seed=5)
    again, optimizer = begun(other)
    with again:
        assert again.global_step == 10
        assert torch.equal(vector(other), public_d)
        assert torch.equal(optimizer.state_dict()["state"][0]["exp_avg"], moments[0]["exp_avg"])
        assert again.epsilon == pytest.approx(foretold(spent(again)), rel=1e-3)
        with pytest.raises(UsageError, match="is given a state"):
            optimizer.load_state_dict(optimizer.state_dict())
        with pytest.raises(UsageError, match="is not loaded"):
            again.load_state_dict({})
        train(again, optimizer)
    assert spent(again) > paid
    assert foretold(spent(again)) <= 1.5 < foretold(spent(again) + BLOCK)
    assert not (tmp_path / "node" / "privacy.jsonl").read_text().count('"torn"')


def _joined(model: nn.Module, optimizer: torch.optim.Optimizer, run_dir: Path) -> tuple[Swarm, torch.optim.Optimizer]:
    settings = {**ALONE, **PRIVATE, "privacy.public_start": True, "privacy.epsilon": 1.5}
    return p2ptrain.join(model, optimizer, run_dir=run_dir, inner_steps=4, settings=settings, quiet=True), optimizer


def test_what_a_loop_does_beside_its_private_steps_leaves_in_nothing(tmp_path: Path) -> None:
    """Each mistake is one line, and no round has anything of it."""
    model = model_of()
    swarm, optimizer = joined(model, tmp_path, settings=PRIVATE)
    with swarm:
        loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
        with pytest.raises(UsageError, match="has no private gradient"):
            optimizer.step()
        for _ in swarm.private_gradients(loss, examples_at, COUNT):
            loss_of(model, 0).backward()  # type: ignore[no-untyped-call]
            with pytest.raises(UsageError, match="is not the private one"):
                optimizer.step()
            break
        for _ in swarm.private_gradients(loss, examples_at, COUNT):
            with pytest.raises(UsageError, match="closure"):
                optimizer.step(lambda: 0.0)
            break
        with pytest.raises(UsageError, match="which counts the steps"):
            swarm.step()
        train(swarm, optimizer, 6)
        public_d = vector(model)
        assert swarm.global_step == 6
        with torch.no_grad():
            model[0].weight.fill_(9.0)  # type: ignore[index, union-attr, operator]
        with pytest.raises(UsageError, match="moved by something else"):
            train(swarm, optimizer)
    kept = p2ptrain.load(tmp_path)
    torch.testing.assert_close(torch.cat([kept[name].flatten() for name in model.state_dict()]), public_d)
    assert sum(fields["steps"] for fields in told(swarm, "round")) == 6, "the rest of a round is one more at the end"
    assert spent(swarm) >= 8, "what was drawn and not used is spent"


def test_a_loop_that_forgets_its_step_is_told_before_its_budget_is_gone(tmp_path: Path) -> None:
    swarm, optimizer = joined(model_of(), tmp_path, settings={**PRIVATE, "privacy.epsilon": 1.5})
    with swarm:
        with pytest.raises(UsageError, match="no step was taken by it"):
            for _ in swarm.private_gradients(loss, examples_at, COUNT):
                pass
        assert train(swarm, optimizer, 3) == 3
    assert spent(swarm) == 4


class Decaying(torch.optim.SGD):
    """Has a step of its own around the one that it inherits, as many optimizers have."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.mul_(0.99)
        found = super().step(closure)
        with torch.no_grad():
            for each in self.param_groups[0]["params"]:
                each.mul_(0.99)
        return found


def test_an_optimizer_that_calls_the_step_it_inherits_takes_one(tmp_path: Path) -> None:
    model = model_of()
    torch.optim.SGD(model.parameters())  # torch hooks a class's step when its first instance is made
    optimizer = Decaying(model.parameters(), lr=0.05)
    settings = {**ALONE, **PRIVATE, "privacy.public_start": True}
    with p2ptrain.join(model, optimizer, run_dir=tmp_path, inner_steps=4, settings=settings, quiet=True) as swarm:
        assert train(swarm, optimizer, 5) == 5
        assert swarm.global_step == 5
        assert swarm._learner is not None
        assert torch.equal(swarm._learner.vector(), vector(model))


def test_another_optimizer_of_the_model_is_refused_before_it_moves(tmp_path: Path) -> None:
    model = model_of()
    swarm, optimizer = joined(model, tmp_path, settings=PRIVATE)
    other = torch.optim.SGD([model[2].bias], lr=0.1)  # type: ignore[index]
    with swarm:
        for _ in swarm.private_gradients(loss, examples_at, COUNT):
            before_d = vector(model)
            with pytest.raises(UsageError, match="a second optimizer"):
                other.step()
            assert torch.equal(vector(model), before_d)
            optimizer.step()
            break
        assert swarm.global_step == 1
    other.step()  # it is the program's own again


def test_buffers_that_a_loop_changes_are_in_no_export_and_no_checkpoint(tmp_path: Path) -> None:
    """As running means are, of a forward pass in training mode for a log."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)).eval()
    swarm, optimizer = joined(model, tmp_path, settings=PRIVATE)
    with swarm:
        assert train(swarm, optimizer, 4) == 4
        swarm.export(tmp_path / "before")
        model.train()(X)
        model.eval()
        assert bool(model[1].running_mean.any())
        with pytest.raises(UsageError, match="a buffer or a frozen parameter"):
            swarm.export(tmp_path / "after")
        with pytest.raises(UsageError, match="a buffer or a frozen parameter"):
            train(swarm, optimizer, 1)
    kept = p2ptrain.load(tmp_path)
    assert not bool(kept["1.running_mean"].any())
    assert int(kept["1.num_batches_tracked"]) == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_has_no_gradients_of_what_its_parent_has_paid_for(tmp_path: Path) -> None:
    swarm, optimizer = joined(model_of(), tmp_path, settings=PRIVATE)
    with swarm:
        steps = swarm.private_gradients(loss, examples_at, COUNT)
        next(steps)
        optimizer.step()
        child = os.fork()
        if child == 0:
            try:
                next(steps)
            except UsageError as error:
                os._exit(7 if "is a fork" in str(error) else 1)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        next(steps)
        optimizer.step()
    assert spent(swarm) == 4


def test_a_folder_of_private_rounds_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its optimizer has seen gradients without noise."""

    def begun(settings: dict[str, object]) -> tuple[Swarm, nn.Module, torch.optim.Optimizer]:
        model = model_of()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        settings = {**ALONE, **settings, "privacy.public_start": True}
        swarm = p2ptrain.join(model, optimizer, run_dir=tmp_path, inner_steps=4, settings=settings, quiet=True)
        return swarm, model, optimizer

    by_rounds, model, optimizer = begun({"privacy.privatizer": "update"})
    with by_rounds:
        for seed in range(4):
            loss_of(model, seed).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    by_steps, _, _ = begun(PRIVATE)
    with pytest.raises(UsageError, match="has releases of update"), by_steps:
        pass


def test_what_it_wants_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"without privacy\.rate"):
        joined(model_of(), tmp_path / "a", settings={**PRIVATE, "privacy.rate": None})
    settings = {**ALONE, **PRIVATE, "privacy.public_start": True}
    bare = p2ptrain.join(model_of(), run_dir=tmp_path / "b", settings=settings, quiet=True)
    with pytest.raises(UsageError, match="give the optimizer"), bare:
        pass
    model = model_of()
    trainer = TrainerSwarm({"run_dir": tmp_path / "c", "settings": settings, "quiet": True}, to_resume="train()")
    with pytest.raises(UsageError, match="a Trainer computes gradients of batches"):
        trainer.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), dict, global_step=0)
    by_rounds, _ = joined(model_of(), tmp_path / "d")
    with by_rounds, pytest.raises(UsageError, match="of a loop whose examples are protected"):
        by_rounds.private_gradients(loss, examples_at, COUNT)
    over, optimizer = joined(model_of(), tmp_path / "e", settings=PRIVATE, rounds=2)
    with over:
        steps = train(over, optimizer)
    assert len(told(over, "round")) == 2, "it ends with the run"
    assert 2 <= steps <= spent(over) <= steps + BLOCK


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # the frameworks' own
def test_adapters_of_peft_are_trained_and_the_base_stays(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)
    tokens = torch.arange(12).repeat(30, 1).add(torch.arange(30)[:, None]).remainder(32)
    base = {name: it.clone() for name, it in model.named_parameters() if not it.requires_grad}

    def at(rows: list[int]) -> Batch:
        return {"input_ids": tokens[rows], "labels": tokens[rows]}

    def lm_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        found: torch.Tensor = model(**batch).loss
        return found

    optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad], lr=0.05)
    settings = {**ALONE, **PRIVATE, "privacy.public_start": True, "privacy.rate": 0.5, "privacy.noise": 0.3}
    before = float(lm_loss(model, at(list(range(30)))).detach())
    swarm = p2ptrain.join(model, optimizer, run_dir=tmp_path, inner_steps=5, settings=settings, quiet=True)
    with swarm:
        for step in swarm.private_gradients(lm_loss, at, len(tokens)):
            optimizer.step()
            if step == 39:
                break
    assert float(lm_loss(model, at(list(range(30)))).detach()) < before - 0.05
    named = dict(model.named_parameters())
    assert all(torch.equal(named[name], it) for name, it in base.items())
    assert all(it.grad is None for it in named.values() if not it.requires_grad)


@pytest.mark.thorough
def test_three_kills(tmp_path: Path) -> None:
    killed(tmp_path, 3, privatizer="example")
