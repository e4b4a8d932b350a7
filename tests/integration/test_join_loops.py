"""`p2ptrain.join` in the loops that people write: what they use goes on as without it, and after a second start.

Alone a member is corrected by nothing: its parameters are those of the same loop without the swarm, bit for bit.
"""

import copy
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_join import ALONE, joined, told, until
from torch import nn

from node.system.errors import RunError, UsageError
from p2ptrain.integrations.swarm import Swarm

pytestmark = [pytest.mark.paired, pytest.mark.slow]

STEPS, FIRST = 11, 5
"""All, and those before the second start: in the midst of a round."""


@dataclass
class Loop:
    """A model, an optimizer, and what belongs to a loop beside them."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    forward: Callable[[torch.Tensor], torch.Tensor]
    after: Callable[[int], None] = lambda step: None
    """Called after each step."""
    rest: list[Any] = field(default_factory=list)
    """What has a state that the user keeps."""

    def run(self, steps: range) -> None:
        for step in steps:
            x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(step))

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = self.forward(x).square().mean()
                loss.backward()
                return loss.detach()

            if isinstance(self.optimizer, torch.optim.LBFGS):
                self.optimizer.step(closure)  # type: ignore[arg-type]
            else:
                closure()
                self.optimizer.step()
            self.after(step)


class Tied(nn.Module):
    """An embedding that is the output layer, too, with sparse gradients where asked."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6, sparse=sparse)
        self.out = nn.Linear(6, 20, bias=False)
        if sparse:
            del self.out
        else:
            self.out.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(x.flatten(1)[:, :5].mul(7).long().abs() % 20)
        return self.out(rows) if hasattr(self, "out") else rows


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))


def lbfgs() -> Loop:
    model = net()
    return Loop(model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), model)


def groups() -> Loop:
    model = net()
    parts = [{"params": list(model[2].parameters()), "lr": 1e-3}, {"params": list(model[0].parameters())}]
    return Loop(model, torch.optim.AdamW(parts, lr=1e-2), model)


def scheduled() -> Loop:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    return Loop(model, optimizer, model, lambda step: schedule.step(), [schedule])


def channels_last() -> Loop:
    model = net().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    return Loop(model, optimizer, lambda x: model(x.to(memory_format=torch.channels_last)))


def compiled() -> Loop:
    model = torch.compile(net(), backend="eager")
    return Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2), model)  # type: ignore[arg-type]


def averaged() -> Loop:
    model = net()
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return Loop(model, optimizer, model, lambda step: mean.update_parameters(model), [mean])


def tied() -> Loop:
    torch.manual_seed(0)
    model = Tied()
    return Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2), model)


def sparse() -> Loop:
    torch.manual_seed(0)
    model = Tied(sparse=True)
    return Loop(model, torch.optim.SparseAdam(list(model.parameters()), lr=1e-2), model)


def double() -> Loop:
    model = net().double()
    return Loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2), lambda x: model(x.double()))


LOOPS: list[Callable[[], Loop]] = [lbfgs, groups, scheduled, channels_last, compiled, averaged, tied, sparse, double]


def numbers(loop: Loop) -> list[torch.Tensor]:
    own = [each for part in loop.rest if isinstance(part, nn.Module) for each in part.parameters()]
    return [each.detach().clone() for each in (*loop.model.parameters(), *own)]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own import
@pytest.mark.parametrize("make", LOOPS)
def test_a_loop_goes_on_as_without_the_swarm(tmp_path: Path, make: Callable[[], Loop]) -> None:
    plain = make()
    plain.run(range(STEPS))
    first = make()
    with joined(first.model, first.optimizer, tmp_path) as swarm:
        first.run(range(FIRST))
        assert swarm.global_step == FIRST
    second = make()
    for mine, kept in zip(second.rest, first.rest, strict=True):
        mine.load_state_dict(copy.deepcopy(kept.state_dict()))
    if second.rest and not isinstance(second.rest[0], nn.Module):  # a schedule's rate is the optimizer's
        for group in second.optimizer.param_groups:
            group["lr"] = second.rest[0].get_last_lr()[0]
    with joined(second.model, second.optimizer, tmp_path) as swarm:
        assert swarm.global_step == FIRST
        second.run(range(FIRST, STEPS))
    assert all(torch.equal(one, other) for one, other in zip(numbers(plain), numbers(second), strict=True))
    assert len(told(swarm, "round")) == 4


def test_an_optimizer_in_the_backward_pass_is_refused_and_counts_by_hand(tmp_path: Path) -> None:
    model = net()
    last = torch.optim.SGD(list(model.parameters())[-1:], lr=0.1)
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def step_now(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step_now)
    x = torch.randn(2, 3, 4, 4)
    with joined(model, None, tmp_path) as swarm:
        for _ in range(6):
            model(x).square().mean().backward()
            swarm.step()
        assert swarm.global_step == 6
    optimizers[list(model.parameters())[-1]] = last  # type: ignore[index]
    with (
        joined(model, last, tmp_path / "wrong"),
        pytest.raises(UsageError, match=r"steps in the backward pass.*call swarm\.step\(\)"),
    ):
        model(x).square().mean().backward()


def test_a_skipped_step_of_a_fused_optimizer_is_one_that_changes_nothing(tmp_path: Path) -> None:
    """It decides by itself, on its device, and so it counts."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with joined(model, optimizer, tmp_path) as swarm:
        for step in range(3):
            loss = model(torch.ones(2, 3, 4, 4)).square().mean() * (torch.inf if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert swarm.global_step == 3
    assert all(bool(each.isfinite().all()) for each in model.parameters())


def test_layers_thawed_in_the_block_are_told(tmp_path: Path) -> None:
    loop = groups()
    loop.model[0].requires_grad_(False)  # type: ignore[index]
    with joined(loop.model, loop.optimizer, tmp_path) as swarm:
        loop.run(range(4))
        loop.model[0].requires_grad_()  # type: ignore[index]
        loop.run(range(4, 12))

        def is_told() -> bool:
            loop.run(range(11, 12))  # a doubt is looked for between two steps
            return any("0.weight and 1 more" in fields["message"] for fields in told(swarm, "warning"))

        until(is_told)
        loop.run(range(12, 24))
    said = [fields["message"] for fields in told(swarm, "warning")]
    assert sum("began to need gradients after the join" in each for each in said) == 1


def test_a_layer_replaced_in_the_block_ends_the_run_in_one_line(tmp_path: Path) -> None:
    loop = groups()

    def replaced() -> None:
        with joined(loop.model, loop.optimizer, tmp_path):
            loop.run(range(2))
            loop.model[2] = nn.Linear(16, 2)  # type: ignore[index,operator]
            loop.run(range(2, 12))

    with pytest.raises(UsageError, match=r"2\.weight was replaced or converted after the join") as refused:
        replaced()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: net().to("meta"), r"0\.weight is on the meta device"),
        (lambda: nn.Sequential(nn.ReLU()), "no trainable parameter"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), "no shape yet"),
    ],
)
def test_models_that_cannot_join_are_refused_in_one_line(
    tmp_path: Path, model: Callable[[], nn.Module], words: str
) -> None:
    swarm = joined(model(), None, tmp_path)
    with pytest.raises(UsageError, match=words) as refused:
        swarm.__enter__()
    assert "\n" not in str(refused.value)
    assert not swarm.is_joined


def test_two_models_in_one_process_and_one_after_the_other(tmp_path: Path) -> None:
    """As the two nets of a GAN: two swarms in one loop."""
    one, other, plain = groups(), tied(), groups()
    with joined(one.model, one.optimizer, tmp_path / "one") as first:
        with joined(other.model, other.optimizer, tmp_path / "other") as second:
            for step in range(6):
                one.run(range(step, step + 1))
                other.run(range(step, step + 1))
            assert (first.global_step, second.global_step) == (6, 6)
            again = joined(one.model, None, tmp_path / "third")
            with pytest.raises(UsageError, match="in a swarm already"):
                again.__enter__()
        one.run(range(6, 8))
    with joined(one.model, one.optimizer, tmp_path / "later") as later:
        one.run(range(8, 11))
        assert later.global_step == 3
    plain.run(range(11))
    assert all(torch.equal(a, b) for a, b in zip(numbers(plain), numbers(one), strict=True))
    assert "p2ptrain" not in [thread.name for thread in threading.enumerate()]


def drawing(run_dir: Path | None, evaluates: bool, **settings: object) -> tuple[list[torch.Tensor], Swarm | None]:
    """What a loop that draws from all global random numbers comes to, with a swarm's evaluations and without."""
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1))
    model[1].eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(64, 6))
    evaluations: list[str] = []

    def evaluate(given: nn.Module) -> float:
        evaluations.append(threading.current_thread().name)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        return sum(given(x).square().mean().item() for (x,) in torch.utils.data.DataLoader(data, 16, shuffle=True))

    def loop(swarm: Swarm | None) -> None:
        for epoch in range(6):
            for (x,) in torch.utils.data.DataLoader(data, 8, shuffle=True):
                noise = random.random() + float(np.random.rand())
                (model(x) - noise).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if swarm is not None and evaluates and epoch % 2:
                swarm.evaluate()

    if run_dir is None:
        loop(None)
        return list(model.state_dict().values()), None
    both: dict[str, object] = {**ALONE, "train.eval_every": 1, **settings}
    with joined(model, optimizer, run_dir, settings=both, evaluate=evaluate if evaluates else None) as swarm:
        loop(swarm)
    assert len(evaluations) >= 6 if evaluates else not evaluations
    return list(model.state_dict().values()), swarm


def check_evaluations_disturb_nothing(tmp_path: Path, **settings: object) -> None:
    plain, _ = drawing(None, evaluates=False)
    without, _ = drawing(tmp_path / "without", evaluates=False, **settings)
    with_them, swarm = drawing(tmp_path / "with", evaluates=True, **settings)
    assert swarm is not None
    assert len(told(swarm, "evaluated")) >= 3
    for one, other, third in zip(plain, without, with_them, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_a_run_with_evaluations_is_the_one_without_bit_for_bit(tmp_path: Path) -> None:
    check_evaluations_disturb_nothing(tmp_path)


@pytest.mark.thorough
def test_and_so_where_the_node_is_a_process_of_its_own(tmp_path: Path) -> None:
    check_evaluations_disturb_nothing(tmp_path, **{"node.lane": "process"})


def test_a_pause_of_the_loop_holds_up_an_evaluation_and_nothing_else(tmp_path: Path) -> None:
    """Validation of its own, say, for minutes: the node's page, neighbours and codecs go on."""
    loop = groups()
    threads: list[int] = []

    def evaluate(given: nn.Module) -> float:
        threads.append(threading.get_ident())
        return 1.0

    settings = {**ALONE, "train.eval_every": 1}
    with joined(loop.model, loop.optimizer, tmp_path, settings=settings, evaluate=evaluate) as swarm:
        begun = len(threads)
        loop.run(range(4))  # to the end of a round
        for _ in range(50):
            assert swarm.round in (0, 1), "it answers"
        assert len(swarm.addresses) > 0
        until(lambda: swarm.round == 1 or len(threads) > begun)
        loop.run(range(4, 6))
    assert threading.get_ident() not in threads
    assert len(threads) >= 3


def test_what_evaluate_raises_is_said_with_its_place(tmp_path: Path) -> None:
    loop = groups()

    def evaluate(given: nn.Module) -> float:
        return float(given(torch.zeros(1, 9)).sum())  # of another shape

    def train() -> None:
        with joined(loop.model, loop.optimizer, tmp_path, settings=ALONE, evaluate=evaluate):
            loop.run(range(8))

    with pytest.raises(RunError, match=r"test_join_loops\.py:\d+ raised ") as told_of:
        train()
    log = tmp_path / "node" / "node.log"
    assert str(told_of.value).endswith(f"mend it there; {log} has the traceback")
    assert "in evaluate" in log.read_text()


def test_a_loop_that_diverges_is_told_whose_learning_rate_is_to_be_lowered(tmp_path: Path) -> None:
    loop = groups()

    def train() -> None:
        with joined(loop.model, loop.optimizer, tmp_path):
            loop.run(range(2))
            with torch.no_grad():
                loop.model[2].bias.fill_(torch.nan)  # type: ignore[index,operator,union-attr]
            loop.run(range(2, 12))

    with pytest.raises(RunError, match=r"diverged in round 1.*with a lower learning rate in your own loop$"):
        train()


def test_exporters_are_fed_as_by_any_node(tmp_path: Path) -> None:
    loop = groups()
    settings = {**ALONE, "monitoring.exporters": ["tensorboard"]}
    with joined(loop.model, loop.optimizer, tmp_path, settings=settings) as swarm:
        loop.run(range(6))
    written = b"".join(file.read_bytes() for file in (swarm.run_dir / "tensorboard").glob("*tfevents*"))
    assert b"members" in written


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node.role", "observer"),
        ("node.role", "bootstrap"),
        ("train.drift", "scaffold"),
    ],
)
def test_a_setting_that_needs_steps_of_the_nodes_own_is_refused(tmp_path: Path, key: str, value: str) -> None:
    """A loop would wait for its first step for ever, or its steps not be what the swarm agreed on."""
    with pytest.raises(UsageError, match=rf"{key} = {value}"):
        joined(net(), None, tmp_path / "run", settings={**ALONE, key: value})
    assert not (tmp_path / "run").exists()


def test_late_weights_of_a_run_without_an_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train.late_average averages the last rounds") as refused:
        joined(net(), None, tmp_path / "run", settings={**ALONE, "train.late_average": 0.2})
    assert "rounds=" in refused.value.hint
    assert not (tmp_path / "run").exists()
