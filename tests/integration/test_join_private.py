"""`p2ptrain.join` with `[privacy]`: loops of their own over real libp2p, and what their nodes send of them."""

import json
import shutil
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_join import ALONE, PATIENCE_S, evaluate, loss_of, model_of, told, train, until
from torch import nn

import p2ptrain
from node.privacy.ledger import read_ledger
from node.privacy.privacy_report import report_of
from node.roles.joined import JoinedNode
from node.system.errors import RunError, UsageError
from node.training.node import Node
from p2ptrain.integrations.swarm import Swarm
from p2ptrain.training import private_moves
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.user_model import UserModel

pytestmark = [pytest.mark.paired, pytest.mark.slow]

CLIP = 0.05
PRIVATE: dict[str, object] = {
    **ALONE,
    "sync.compressor": "none",
    "privacy.privatizer": "update",
    "privacy.noise": 1e-6,  # so little that the clipped move is seen
    "privacy.clip": CLIP,
    "privacy.public_start": True,
}
PROGRAM = Path(__file__).with_name("killed_private_loop.py")
CANARY = 3.5
"""What a parameter is set to within a round; with the noise of a round nobody else has it."""


def joined(model: nn.Module, run_dir: Path, **more: Any) -> tuple[Swarm, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    settings = {**PRIVATE, **more.pop("settings", {})}
    swarm = p2ptrain.join(
        model, optimizer, **{"run_dir": run_dir, "inner_steps": 4, "settings": settings, "quiet": True, **more}
    )
    return swarm, optimizer


def vector(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def node_of(swarm: Swarm) -> Node:
    assert isinstance(swarm._joined, JoinedNode)
    assert swarm._joined.node is not None
    return swarm._joined.node


class Released:
    """What UserModel has released: each move before it was hidden and after, and the model that came of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.models: list[torch.Tensor] = []
        hide_, end_round = private_moves.hide_, UserModel.end_round

        def hiding(move_d: torch.Tensor, privacy: PrivateTraining) -> None:
            own_d = move_d.clone()
            hide_(move_d, privacy)
            self.moves.append((own_d, move_d.clone()))

        def ending(learner: UserModel) -> None:
            before = learner.vector()
            end_round(learner)
            if learner.is_private:
                assert torch.equal(learner.vector(), before + self.moves[-1][1])
                self.models.append(learner.vector())

        monkeypatch.setattr(private_moves, "hide_", hiding)
        monkeypatch.setattr(UserModel, "end_round", ending)


def test_what_a_neighbour_is_sent_is_the_clipped_and_noised_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = Released(monkeypatch)
    private, public = model_of(), model_of()
    seen: list[torch.Tensor] = []
    errors: list[BaseException] = []
    first, first_optimizer = joined(private, tmp_path / "private", wait_for=1, evaluate=evaluate)

    def neighbour() -> None:
        """One that protects nothing, and notes what it holds of the other's model after each of its steps."""
        try:
            until(lambda: bool(first.is_joined and first.addresses))
            optimizer = torch.optim.SGD(public.parameters(), lr=0.05)
            settings = {**ALONE, "sync.compressor": "none"}
            with p2ptrain.join(
                public,
                optimizer,
                peers=first.addresses,
                run_dir=tmp_path / "public",
                inner_steps=4,
                wait_for=1,
                settings=settings,
                quiet=True,
            ) as swarm:
                strategy = node_of(swarm).strategy
                for step in range(40):
                    train(public, optimizer, range(step, step + 1), factor=1.0, wait_s=0.02)
                    held = strategy.estimate(first_id[0]) if first_id else None
                    if held is not None:
                        seen.append(torch.frombuffer(bytearray(held), dtype=torch.float32))
        except BaseException as error:
            errors.append(error)

    first_id: list[str] = []
    thread = threading.Thread(target=neighbour)
    thread.start()
    start_d = vector(private)
    with first:
        first_id.append(first.peer_id)
        for step in range(40):
            train(private, first_optimizer, range(step, step + 1), factor=-20.0, wait_s=0.02)
            first.tell(loss=1.25, tokens=99)
        epsilon = first.epsilon
    thread.join(PATIENCE_S)
    assert errors == []
    assert len(released.moves) >= 4
    assert all(float(own_d.norm()) > 2 * CLIP for own_d, _ in released.moves[:3]), "there is something to clip"
    assert all(float(hidden_d.norm()) <= CLIP * 1.01 for _, hidden_d in released.moves)
    updates = [held for held in seen if not torch.equal(held, start_d)]
    assert len({held.numpy().tobytes() for held in updates}) >= 2, "it was sent new models"
    for held in updates:
        nearest = min(float((held - model_d).abs().max()) for model_d in released.models)
        assert nearest < 1e-5, "each is a model that was released"
    assert epsilon is not None
    assert epsilon > 0
    assert all(fields["train_loss"] is None and fields["tokens"] == 0 for fields in told(first, "round"))
    assert all(fields["epsilon"] is not None for fields in told(first, "round"))
    assert sum(read_ledger(first.run_dir / "privacy.jsonl").releases.values()) >= len(released.moves)


def test_a_move_that_was_not_released_is_in_nothing_but_the_programs_own_model(tmp_path: Path) -> None:
    """A newcomer's snapshot, the checkpoint at an interrupt, exports: in the midst of a round as after it."""
    model = model_of()
    settings = {"node.checkpoint_every": 1}
    swarm, optimizer = joined(model, tmp_path / "run", settings=settings, evaluate=evaluate)

    def cut() -> None:
        with swarm:
            train(model, optimizer, range(6))
            until(lambda: swarm.round >= 1)
            with torch.no_grad():
                model[0].weight.fill_(CANARY)  # type: ignore[index, union-attr, operator]
            other, _ = joined(model_of(), tmp_path / "new", peers=swarm.addresses, wait_for=1)
            own_id = swarm.peer_id
            with other:
                until(lambda: node_of(other).strategy.estimate(own_id) is not None)
                held = bytearray(node_of(other).strategy.estimate(own_id) or b"")
                assert float(torch.frombuffer(held, dtype=torch.float32).abs().max()) < 1.0
                other.leave(cut_short=True)
            swarm.export(tmp_path / "export")
            assert len(swarm.state_dict()) > 0
            assert float(vector(model)[0]) == CANARY, "the loop's own model has it"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut()
    exported = load_file(tmp_path / "export" / "model.safetensors")
    kept = p2ptrain.load(tmp_path / "run")
    for state in (exported, kept):
        assert max(float(it.abs().max()) for it in state.values()) < 1.0
    pattern = torch.full((4,), CANARY).numpy().tobytes()
    files = [each for each in (tmp_path / "run").rglob("*") if each.is_file()]
    assert len(files) > 5
    assert not [each for each in files if pattern in each.read_bytes()]


@pytest.mark.thorough
def test_once_the_budget_is_spent_the_loop_goes_on_alone_and_the_node_serves(tmp_path: Path) -> None:
    model = model_of()
    budget = {"privacy.noise": 2.0, "privacy.epsilon": 6.0}
    swarm, optimizer = joined(model, tmp_path, settings=budget)
    with swarm:
        assert not swarm.budget_spent
        with pytest.raises(UsageError, match="is not spent"):
            swarm.serve()
        rounds = 0
        for step in range(400):
            train(model, optimizer, range(step, step + 1))
            if swarm.budget_spent:
                break
        assert swarm.budget_spent
        public_d = vector(model)
        counted = swarm.global_step

        def closed_beside_more_steps() -> bool:  # a round has work for this thread, which does it after a step
            train(model, optimizer, range(1), wait_s=0.02)
            return swarm.round == counted // 4

        until(closed_beside_more_steps)
        assert swarm.global_step == counted, "those are the loop's own"
        rounds = swarm.round
        assert rounds == sum(read_ledger(swarm.run_dir / "privacy.jsonl").releases.values())
        newcomer, other_optimizer = joined(model_of(), tmp_path / "new", peers=swarm.addresses, wait_for=1)
        del other_optimizer
        with newcomer:
            assert newcomer.peers == [swarm.peer_id], "it serves on"
            newcomer.leave(cut_short=True)
        assert swarm.epsilon is not None
        assert swarm.epsilon <= 6.0
    kept = p2ptrain.load(tmp_path)
    kept_d = torch.cat([kept[name].flatten() for name in model.state_dict()])
    torch.testing.assert_close(kept_d, public_d, rtol=0, atol=0)
    (spent,) = told(swarm, "privacy_budget_spent")
    assert spent["would_be"] > 6.0
    again, optimizer = joined(model_of(seed=5), tmp_path, settings=budget)
    with again:
        assert again.budget_spent, "the ledger does not go back"
        train(model, optimizer, range(3))
    assert sum(read_ledger(swarm.run_dir / "privacy.jsonl").releases.values()) == rounds


def test_a_program_that_starts_again_with_a_model_of_its_own_publishes_the_runs(tmp_path: Path) -> None:
    """Whatever it says of its start: after the first release that model has seen the data."""
    model, begun_d = model_of(), vector(model_of())
    swarm, optimizer = joined(model, tmp_path, settings={"node.checkpoint_every": 0})
    with swarm:
        train(model, optimizer, range(6))
        swarm.leave(cut_short=True)
    shutil.rmtree(swarm.run_dir / "checkpoint")  # as where it was killed before the first one
    trained = model_of(seed=5)
    again, optimizer = joined(trained, tmp_path)
    with again:
        assert torch.equal(vector(trained), begun_d)
        assert torch.equal(node_of(again).strategy.anchor_d, begun_d)  # type: ignore[attr-defined]
    anew, _ = joined(model_of(seed=5), tmp_path)
    anew.begin_anew()
    with pytest.raises(UsageError, match="began with another model"), anew:
        pass
    (swarm.run_dir / "genesis.f32").unlink()
    with pytest.raises(RunError, match=r"no genesis\.f32"), joined(model_of(seed=5), tmp_path)[0]:
        pass


def test_what_would_let_a_move_out_is_refused_in_one_line(tmp_path: Path) -> None:
    model = model_of()
    for settings, words in (
        ({"privacy.public_start": False}, "privacy.public_start=true"),
        ({"privacy.privatizer": "example"}, "without privacy.rate"),
        ({"privacy.privatizer": "secure_update"}, "take privacy.privatizer=example or update"),
        ({"node.lane": "process"}, "node.lane=process"),
    ):
        with pytest.raises(UsageError) as refused:
            joined(model, tmp_path, settings=settings)
        assert words in refused.value.line()
    with (
        pytest.raises(UsageError, match="less than the first round spends"),
        joined(model, tmp_path / "poor", settings={"privacy.epsilon": 0.1})[0],
    ):
        pass
    swarm, optimizer = joined(model, tmp_path)
    with pytest.raises(UsageError, match="is not loaded"):
        swarm.load_state_dict({})
    with swarm:
        train(model, optimizer, range(2))
        with pytest.raises(UsageError, match="is not loaded"):
            swarm.load_state_dict(swarm.state_dict())
        assert loss_of(model, 3).isfinite()
    plain = p2ptrain.join(model_of(), run_dir=tmp_path / "plain", settings=ALONE, quiet=True)
    with plain:
        assert (plain.epsilon, plain.budget_spent) == (None, False)
        with pytest.raises(UsageError, match=r"no budget of privacy"):
            plain.serve()


def test_the_report_of_such_a_run_says_what_is_not_covered(tmp_path: Path) -> None:
    model = model_of()
    swarm, optimizer = joined(model, tmp_path)
    with swarm:
        train(model, optimizer, range(9))
    report = report_of(swarm.run_dir, tight=False)
    assert [(each.mechanism, each.noise, each.count) for each in report.releases] == [("update", 1e-6, 3)]
    words = {each.what: each.coverage.value for each in report.disclosures}
    assert words["the model that `join` is given"] == "public"
    assert words["what your program itself prints, saves or sends"] == "not covered"


def killed(folder: Path, restarts: int, *, privatizer: str = "update") -> None:
    words = [sys.executable, PROGRAM, folder, "7", str(restarts), privatizer]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    lives = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(lives) == restarts
    assert all(life["killed"] for life in lives), ran.stderr
    assert all(life["released"] <= life["written"] for life in lives), lives
    assert all(after["entries"] >= before["entries"] for before, after in pairwise(lives))
    busy = [after["released"] > before["released"] for before, after in pairwise(lives)]
    assert sum(busy) >= restarts // 2, "it released rounds in many of its lives"


@pytest.mark.thorough
def test_three_kills(tmp_path: Path) -> None:
    killed(tmp_path, 3)
