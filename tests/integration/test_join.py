"""`p2ptrain.join`: loops of their own, in threads of this process, over real libp2p on loopback."""

import copy
import json
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from torch import nn

import p2ptrain
from node.config.schema import load
from node.system.errors import RunError, UsageError
from node.training.run_state import RunState
from p2ptrain import tasks
from p2ptrain.integrations.swarm import ENDLESS, Swarm, settings_of
from p2ptrain.training.user_model import UserModel

pytestmark = [pytest.mark.paired, pytest.mark.slow]

ALONE: dict[str, object] = {
    "network.listen": ["/ip4/127.0.0.1/tcp/0"],
    "network.upnp": False,
    "node.metrics_port": -1,
    "node.linger_s": 1.0,
}
WEIGHTS = torch.linspace(-1, 1, 8)
PATIENCE_S = 120.0
"""Only a broken test waits so long."""


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loss_of(model: nn.Module, seed: int, factor: float = 1.0) -> torch.Tensor:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(seed))
    return (model(x).squeeze(-1) - factor * (x @ WEIGHTS)).square().mean()


def evaluate(model: nn.Module) -> float:
    return loss_of(model, 10_000).item()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, *, factor: float = 1.0, wait_s: float = 0.0
) -> None:
    for step in steps:
        loss_of(model, step, factor).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(wait_s)


def told(swarm: Swarm, event: str) -> list[dict[str, Any]]:
    lines = (swarm.run_dir / "events.jsonl").read_text().splitlines()
    return [fields for fields in map(json.loads, lines) if fields["event"] == event]


def test_three_loops_train_one_model(tmp_path: Path) -> None:
    swarms: dict[int, Swarm] = {}
    models = {index: model_of() for index in range(3)}
    errors: list[BaseException] = []
    seen: dict[int, tuple[int, int]] = {}

    def loop(index: int, peers: list[str]) -> None:
        try:
            optimizer = torch.optim.AdamW(models[index].parameters(), lr=1e-2)
            swarm = p2ptrain.join(
                models[index],
                optimizer,
                peers=peers,
                run_dir=tmp_path / str(index),
                inner_steps=5,
                wait_for=2,
                evaluate=evaluate,
                settings=ALONE,
                quiet=True,
            )
            swarms[index] = swarm
            with swarm:
                train(models[index], optimizer, range(150), factor=float(index), wait_s=0.03)
                seen[index] = swarm.round, len(swarm.peers)
        except BaseException as error:
            errors.append(error)

    threads: list[threading.Thread] = []
    drawn = random.getstate(), np.random.get_state(legacy=False)  # the user's own
    for index in range(3):  # each knows all before it, so that nobody begins while two still look for each other
        known = [address for earlier in range(index) for address in swarms[earlier].addresses]
        threads.append(threading.Thread(target=loop, args=(index, known)))
        threads[-1].start()
        until(lambda index=index: index in swarms and bool(swarms[index].is_joined and swarms[index].addresses))  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []
    assert random.getstate() == drawn[0], "no node draws from the process's random numbers"
    assert str(np.random.get_state(legacy=False)) == str(drawn[1])
    assert all(round_ >= 3 for round_, _ in seen.values())
    rounds = told(swarms[0], "round")
    assert max(fields["members"] for fields in rounds) == 3
    assert sum(fields["accepted"] for fields in rounds[-1:]) >= 4
    # Alone each learns a factor of its own: 0, 1 and 2. The first one's loss of factor 1 falls by the others' work.
    assert min(fields["eval_loss"] for fields in told(swarms[0], "evaluated")) < 0.5 * evaluate(model_of())
    alone = model_of()
    train(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), range(150), factor=0.0)
    assert evaluate(alone) > 0.8 * evaluate(model_of())
    summary = json.loads((swarms[1].run_dir / "summary.json").read_text())
    assert summary["steps"] == 150


def test_a_loop_waits_for_its_rounds_where_it_is_told_to(tmp_path: Path) -> None:
    settings = {**ALONE, "node.overlap": False}
    models = [model_of() for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in models]
    errors: list[BaseException] = []

    swarm = joined(models[0], optimizers[0], tmp_path / "a", wait_for=1, settings=settings)

    def other() -> None:
        try:
            until(lambda: bool(swarm.is_joined and swarm.addresses))
            with joined(models[1], optimizers[1], tmp_path / "b", wait_for=1, peers=list(swarm.addresses)):
                train(models[1], optimizers[1], range(60), factor=1.0, wait_s=0.02)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    with swarm:
        train(models[0], optimizers[0], range(60), factor=0.0, wait_s=0.02)
        rounds = told(swarm, "round")
    thread.join(PATIENCE_S)
    assert errors == []
    assert len(rounds) >= 10
    assert {fields["late_steps"] for fields in rounds} == {0}
    assert max(fields["members"] for fields in rounds) == 2


def until(true: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    ends = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.02)


def joined(model: nn.Module, optimizer: object, run_dir: Path, **more: Any) -> Swarm:
    return p2ptrain.join(
        model, optimizer, **{"run_dir": run_dir, "inner_steps": 4, "settings": ALONE, "quiet": True, **more}
    )


class Decaying(torch.optim.AdamW):
    """Has a step of its own around the one that it inherits, as many optimizers have."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise ValueError("it did not work")
        return super().step(closure)


def test_an_optimizer_that_calls_the_step_it_inherits_takes_one_also_after_one_that_failed(tmp_path: Path) -> None:
    model = model_of()
    torch.optim.AdamW(model.parameters())  # torch hooks a class's step when its first instance is made
    optimizer = Decaying(model.parameters(), lr=1e-2)
    with joined(model, optimizer, tmp_path) as swarm:
        train(model, optimizer, range(5))
        assert swarm.global_step == 5
        optimizer.fails = True
        with pytest.raises(ValueError, match="it did not work"):
            train(model, optimizer, range(1))
        optimizer.fails = False
        train(model, optimizer, range(5, 10))
        assert swarm.global_step == 10


def test_alone_it_changes_nothing_and_the_folder_goes_on_bit_for_bit(tmp_path: Path) -> None:
    plain = model_of()
    train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), range(23))

    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with joined(model, optimizer, tmp_path):
        train(model, optimizer, range(10))
    again = model_of(seed=7)  # what it begins with does not matter: the folder's is loaded
    optimizer = torch.optim.AdamW(again.parameters(), lr=1e-2)
    with joined(again, optimizer, tmp_path) as swarm:
        assert swarm.global_step == 10
        train(again, optimizer, range(10, 23))
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), again.parameters(), strict=True))
    assert sum(fields["steps"] for fields in told(swarm, "round")) == 23, "those since the last round, too"


def test_a_state_goes_on_in_a_process_that_loads_the_rest_itself(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with joined(model, optimizer, tmp_path, settings={**ALONE, "node.checkpoint_every": 0}) as swarm:
        train(model, optimizer, range(9))
        state = swarm.state_dict()
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        momentum = copy.deepcopy(optimizer.state_dict())
        train(model, optimizer, range(9, 20))
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()

    other = model_of(seed=5)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    with joined(other, optimizer, tmp_path) as swarm:  # what the folder has is loaded, and then replaced
        other.load_state_dict(saved)  # model, optimizer and then others: as `accelerator.load_state` does
        optimizer.load_state_dict(momentum)
        swarm.load_state_dict(state)
        assert swarm.global_step == 9
        train(other, optimizer, range(9, 20))
        with pytest.raises(UsageError, match="once steps were taken"):
            swarm.load_state_dict(state)
    assert torch.equal(nn.utils.parameters_to_vector(other.parameters()).detach(), expected)


def test_an_exception_in_the_loop_saves_the_model_and_is_the_loops_own(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    swarm = joined(model, optimizer, tmp_path)

    def cut() -> None:
        with swarm:
            train(model, optimizer, range(6))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut()
    assert told(swarm, "interrupted"), "at once: its neighbours are not waited for, as at the end of a block"
    kept = p2ptrain.load(tmp_path)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """As at a terminal: what a shell starts in the background ignores SIGINT, and waits for ever here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_while_a_round_is_copied_is_the_loops_own_and_saves_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = UserModel.vector
    waiting = [signal.SIGINT]

    def interrupted(model: UserModel) -> torch.Tensor:
        if swarm.round and waiting and threading.current_thread() is threading.main_thread():
            signal.raise_signal(waiting.pop())
        return real(model)

    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with joined(model, optimizer, tmp_path) as swarm:
        monkeypatch.setattr(UserModel, "vector", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, range(10_000), wait_s=0.005)  # the node may take its time for the first round
        kept = p2ptrain.load(tmp_path)
        assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
        train(model, optimizer, range(9, 20))  # a loop that goes on all the same does so alone
    assert told(swarm, "interrupted")


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_at_the_end_saves_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(state: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monkeypatch.setattr(RunState, "until_closed", never)  # a last round that others keep waiting
    swarm = joined(model, optimizer, tmp_path).__enter__()
    train(model, optimizer, range(6))
    with pytest.raises(KeyboardInterrupt):
        swarm.leave()
    kept = p2ptrain.load(tmp_path)
    assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert "p2ptrain" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("kind", ["accumulated", "scaled", "foreach", "fused"])
def test_what_counts_is_the_optimizers_own_step(tmp_path: Path, kind: str) -> None:
    model = model_of()
    options = {kind: True} if kind in ("foreach", "fused") else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaled", init_scale=2.0)
    with joined(model, optimizer, tmp_path) as swarm:
        for step in range(12):
            loss = loss_of(model, step)
            if kind == "scaled" and step == 5:
                loss = loss * torch.inf
            scaler.scale(loss).backward()
            if kind != "accumulated" or step % 3 == 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        expected = {"accumulated": 4, "scaled": 11}.get(kind, 12)
        assert swarm.global_step == expected


def test_without_an_optimizer_the_loop_counts(tmp_path: Path) -> None:
    model = model_of()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)  # type: ignore[index]
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)  # type: ignore[index]
    with joined(model, None, tmp_path) as swarm:
        for step in range(8):
            loss = loss_of(model, step)
            loss.backward()
            first.step()
            second.step()
            swarm.step(loss=loss.item())
        assert swarm.global_step == 8
    assert 0.1 < told(swarm, "round")[0]["train_loss"] < 10


def test_what_it_cannot_do_it_says_in_one_line(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters())
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    swarm = joined(model, optimizer, tmp_path / "a")
    with pytest.raises(UsageError, match="inside `with"):
        _ = swarm.round
    with swarm:
        loss_of(model, 0).backward()
        with pytest.raises(UsageError, match=r"second optimizer \(SGD\)"):
            other.step()
        with pytest.raises(UsageError, match=r"leave swarm\.step\(\) out"):
            swarm.step()
        with pytest.raises(UsageError, match="no evaluate"):
            swarm.evaluate()
        with pytest.raises(RunError, match="in use by this very process"), joined(model_of(), None, tmp_path / "a"):
            pass
    other.step()  # out of the block it is nobody's business
    with (
        pytest.raises(RunError, match="is of a model of 161 parameters"),
        joined(nn.Linear(2, 2), None, tmp_path / "a"),
    ):
        pass
    with pytest.raises(UsageError, match="is no setting"):
        joined(model, None, tmp_path, settings={"listen": 3})
    with pytest.raises(UsageError, match="here it is the loop's"):
        joined(model, None, tmp_path, settings={"sync.strategy": "mime"})
    with pytest.raises(UsageError, match="list of addresses"):
        joined(model, None, tmp_path, peers="/ip4/127.0.0.1/tcp/1")
    with pytest.raises(UsageError, match="neither a line"):
        joined(model, None, tmp_path, swarm="nonsense")
    with pytest.raises(UsageError, match="is no swarm's folder"):
        p2ptrain.join(model, swarm=tmp_path)

    async def inside_trio() -> None:
        with joined(model, None, tmp_path / "b"):
            pass

    with pytest.raises(UsageError, match=r"inside trio\.run.*to_thread"):
        trio.run(inside_trio)
    with pytest.raises(tasks.TaskError, match=r"p2ptrain\.join"):
        tasks.get(load(sets=["task.name=external"]).task.name)


def test_a_run_has_an_end_where_one_is_given(tmp_path: Path) -> None:
    assert settings_of(run_dir=tmp_path / "a").config.train.rounds == ENDLESS
    assert settings_of(run_dir=tmp_path / "b", rounds=3).config.train.rounds == 3


def test_steps_are_spread_over_rounds_where_there_is_an_end(tmp_path: Path) -> None:
    spread = {"train.inner_steps_schedule": "post_local"}
    with pytest.raises(UsageError, match="a run whose end is known") as refused:
        settings_of(run_dir=tmp_path / "a", settings=spread)
    assert "rounds=" in refused.value.line()
    train = settings_of(run_dir=tmp_path / "b", rounds=4, inner_steps=5, settings=spread).config.train
    assert [train.steps_in(round_) for round_ in range(4)] == [1, 1, 9, 9]


def test_a_model_goes_home(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with joined(model, optimizer, tmp_path / "run", evaluate=evaluate) as swarm:
        train(model, optimizer, range(5))
        assert (swarm.shard.index, swarm.shard.count) == (0, 1)
        assert swarm.evaluate() == pytest.approx(evaluate(model))
        folder = swarm.export(tmp_path / "home")
        with pytest.raises(UsageError, match="not empty"):
            swarm.export(tmp_path / "home")
    from safetensors.torch import load_file

    assert torch.equal(load_file(folder / "model.safetensors")["0.weight"], model.state_dict()["0.weight"])


def test_a_run_with_an_end_lets_the_loop_go_on_alone(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with joined(model, optimizer, tmp_path, rounds=2) as swarm:
        for step in range(30):
            train(model, optimizer, range(step, step + 1))
            assert 0 <= swarm.round <= 2, "no question ends a loop that goes on"
        assert swarm.global_step == 30
        assert swarm.peers == []
        assert swarm.peer_id in swarm.addresses[0]
        assert swarm.state_dict()["round"] == 2
    assert json.loads((swarm.run_dir / "summary.json").read_text())["rounds"] == 2
    with pytest.raises(RunError, match="all its rounds are done"), joined(model, optimizer, tmp_path, rounds=2):
        pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_forked_workers_hold_neither_sockets_nor_the_folder(tmp_path: Path) -> None:
    """As DataLoader's workers are: with the node's thread beside them in the parent."""
    model = model_of()
    forked = multiprocessing.get_context("fork")
    found: Any = forked.Queue()

    def held() -> None:
        links = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]
        tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        inodes = {line.split()[9] for table in tables for line in table}
        found.put([link for link in links if str(tmp_path) in link or link.strip("socket:[]") in inodes])

    def children() -> list[str]:
        child = forked.Process(target=held)
        child.start()
        answer: list[str] = found.get(timeout=PATIENCE_S)
        child.join(20)
        return answer

    with joined(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path / "run") as swarm:
        assert swarm.addresses, "it listens"
        assert children() == []
        assert swarm.round == 0, "and goes on"


def test_the_initial_model_is_the_next_starts_own_until_something_was_trained(tmp_path: Path) -> None:
    def genesis_of(model: nn.Module) -> str:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with joined(model, optimizer, tmp_path) as swarm:
            train(model, optimizer, range(2))
        genesis: str = told(swarm, "started")[-1]["genesis"]
        return genesis

    wrong = genesis_of(model_of(seed=3))
    assert genesis_of(model_of()) == wrong, "the folder goes on with what it was begun with"
    shutil.rmtree(tmp_path / "node" / "checkpoint")  # as where the others have refused it before the first step
    assert genesis_of(model_of()) != wrong


@pytest.mark.parametrize("how", ["cut", "nan"])
def test_a_damaged_initial_model_is_named(tmp_path: Path, how: str) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with joined(model, optimizer, tmp_path) as swarm:
        train(model, optimizer, range(2))
    file = swarm.run_dir / "genesis.f32"
    file.write_bytes(file.read_bytes()[:-3] if how == "cut" else b"\xff" * file.stat().st_size)
    with pytest.raises(RunError, match=r"genesis\.f32 is damaged"), joined(model_of(), None, tmp_path):
        pass


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_that_ends_does_not_wait_for_its_parents_swarm(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with joined(model, optimizer, tmp_path) as swarm:
        train(model, optimizer, range(6))
        child = os.fork()
        if child == 0:  # as `sys.exit` in the block does
            with suppress(BaseException):
                train(model, optimizer, range(6))
                swarm.leave(cut_short=True)
            os._exit(0)
        until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
        assert swarm.global_step == 6


def test_members_over_unlike_frozen_parameters_refuse_each_other(tmp_path: Path) -> None:
    def with_base(seed: int) -> nn.Module:
        torch.manual_seed(9)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        torch.manual_seed(seed)
        nn.init.normal_(model[0].weight)
        model[0].requires_grad_(False)
        return model

    models = [with_base(1), with_base(2), with_base(1)]
    optimizers = [torch.optim.SGD(model[2].parameters(), lr=0.05) for model in models]  # type: ignore[index]
    with joined(models[0], optimizers[0], tmp_path / "0") as first:
        peers = {"peers": first.addresses, "settings": {**ALONE, "node.wait_for": 1, "node.wait_timeout_s": 3.0}}
        with (
            pytest.raises(RunError, match="frozen parameters"),
            joined(models[1], optimizers[1], tmp_path / "1", **peers),
        ):
            pass
        with joined(models[2], optimizers[2], tmp_path / "2", **peers) as same:
            assert same.peers


def test_a_run_that_begins_anew_keeps_its_key_and_nothing_else(tmp_path: Path) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with joined(model, optimizer, tmp_path) as swarm:
        train(model, optimizer, range(5))
        known = swarm.peer_id
    other = model_of(seed=4)
    before = nn.utils.parameters_to_vector(other.parameters()).detach()
    again = joined(other, torch.optim.SGD(other.parameters(), lr=0.1), tmp_path)
    again.begin_anew()
    with again:
        assert (again.global_step, again.round, again.peer_id) == (0, 0, known)
        assert torch.equal(nn.utils.parameters_to_vector(other.parameters()).detach(), before)
        with pytest.raises(UsageError, match="before the block is entered"):
            again.begin_anew()
