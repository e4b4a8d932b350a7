"""A user's own model as a learner: names, vectors, states, with nothing of the user's replaced."""

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from p2ptrain.tasks import Shard, TaskError
from p2ptrain.training import TrainConfig, UserModel
from p2ptrain.training.flat import fingerprint
from p2ptrain.training.loop_turn import LoopTurn
from p2ptrain.training.names import canonical
from p2ptrain.training.parameter_vector import ParameterVector
from p2ptrain.training.user_model import measures_of, torch_optimizer, unwrapped


def small(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)


def learner(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> UserModel:
    return UserModel(model, optimizer, TrainConfig(), Shard(), data_seed=3)


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for step in range(steps):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step))
        model(x.to(next(model.parameters()))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("wrapped", "bare"),
    [
        ("module.blocks.0.weight", "blocks.0.weight"),
        ("_orig_mod.module.weight", "weight"),
        ("layers.1._checkpoint_wrapped_module._fsdp_wrapped_module.bias", "layers.1.bias"),
        ("base_model.model.q.lora_A.mine.weight", "q.lora_A.weight"),
        ("q.lora_embedding_A.default", "q.lora_embedding_A"),
        ("head.modules_to_save.other.weight", "head.modules_to_save.weight"),
        ("modules.weight", "modules.weight"),
    ],
)
def test_names_are_those_of_the_bare_model(wrapped: str, bare: str) -> None:
    assert canonical(wrapped) == bare


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own import
def test_wrapped_compiled_and_bare_members_agree(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(small())
        compiled = torch.compile(small())
        within = small()
        within[0] = torch.compile(within[0])  # type: ignore[assignment]  # a part of a model, too
        assert len({fingerprint(each) for each in (small(), parallel, compiled, within)}) == 1
        assert unwrapped(torch.compile(parallel)) is parallel.module
    finally:
        torch.distributed.destroy_process_group()
    other = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    assert fingerprint(other) != fingerprint(small())


def test_a_vector_is_read_and_added_with_every_tensor_left_where_it_is() -> None:
    model = small()
    places = [parameter.data_ptr() for parameter in model.parameters()]
    values = ParameterVector(model)
    x_d = values.vector()
    assert torch.equal(x_d, nn.utils.parameters_to_vector(model.parameters()).detach())
    values.add_(torch.arange(values.numel, dtype=torch.float32))
    assert torch.equal(values.vector(), x_d + torch.arange(values.numel))
    values.load_(x_d)
    assert torch.equal(values.vector(), x_d)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    with pytest.raises(ValueError, match="does not fit a model of 43 parameters"):
        values.add_(torch.zeros(3))


def test_small_corrections_of_bf16_weights_are_not_lost() -> None:
    """Alone each is far below a weight's last bit: without the rests a thousand of them change nothing."""
    model = small(dtype=torch.bfloat16)
    values = ParameterVector(model)
    before_d = values.vector()
    for _ in range(1_000):
        values.add_(torch.full((values.numel,), 1e-5))
    moved_d = values.vector() - before_d
    assert float((moved_d - 0.01).abs().max()) < 0.0005
    plain = torch.full((1,), 0.5, dtype=torch.bfloat16)
    for _ in range(1_000):
        plain += 1e-5
    assert float(plain) == 0.5, "or the test would show nothing"


def test_rests_come_back_with_a_state() -> None:
    """A resumed bf16 model is the one that was saved, its rests included: the same corrections lead to the same."""
    model, other = small(dtype=torch.bfloat16), small(seed=9, dtype=torch.bfloat16)
    ours, theirs = learner(model), learner(other)
    correction_d = 1e-4 * torch.randn(ours.numel, generator=torch.Generator().manual_seed(4))
    for _ in range(3):
        ours.correct(correction_d)
    rounded_d = nn.utils.parameters_to_vector(model.parameters()).detach().float()
    assert not torch.equal(ours.vector(), rounded_d), "there are rests"
    theirs.load_state_dict({name: value.clone() for name, value in ours.state_dict().items()})
    for _ in range(20):
        assert torch.equal(theirs.vector(), ours.vector())
        ours.correct(correction_d)
        theirs.correct(correction_d)
    exact_d = rounded_d + 20 * correction_d
    assert float((ours.vector() - exact_d).abs().max()) < 0.005


def test_only_what_learns_travels() -> None:
    model = small()
    model[0].requires_grad_(False)
    values = ParameterVector(model)
    assert values.names == ["2.weight", "2.bias"]
    with pytest.raises(TaskError, match="no trainable parameter"):
        ParameterVector(model.requires_grad_(False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_sharded_model_is_refused_in_one_line(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        sharded = fully_shard(small())
        with pytest.raises(TaskError, match="all of them join together"):
            ParameterVector(sharded)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_brings_back_model_optimizer_and_counters(dtype: torch.dtype) -> None:
    model = small(dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ours = learner(model, optimizer)
    stepped(model, optimizer, 3)
    ours.global_step = 3
    state = {name: value.clone() for name, value in ours.state_dict().items()}
    stepped(model, optimizer, 2)
    expected_d = ours.vector()

    other = small(seed=9, dtype=dtype)
    theirs = learner(other, torch.optim.AdamW(other.parameters(), lr=1e-2))
    theirs.load_state_dict(state)
    assert theirs.global_step == 3
    assert theirs.optimizer is not None
    stepped(other, theirs.optimizer, 2)
    # The vector is fp32, and a checkpoint's parameters with it.
    torch.testing.assert_close(theirs.vector(), expected_d, rtol=0, atol=0 if dtype is torch.float32 else 1e-7)


def test_a_state_of_another_model_changes_nothing() -> None:
    model, other = small(), nn.Linear(2, 2)
    ours = learner(model)
    before_d = ours.vector()
    with pytest.raises(ValueError, match="6 trained parameters"):
        ours.load_state_dict(learner(other).state_dict())
    assert torch.equal(ours.vector(), before_d)
    with pytest.raises(ValueError, match="counters"):
        ours.load_state_dict({})


def test_a_state_without_parameters_leaves_those_that_are_there() -> None:
    model = small()
    ours = learner(model)
    before_d = ours.vector()
    ours.load_state_dict({"counters": torch.tensor([5, 0, 0])})
    assert (ours.global_step, torch.equal(ours.vector(), before_d)) == (5, True)


def test_evaluations_see_a_copy() -> None:
    model = small()
    seen: list[nn.Module] = []

    def evaluate(given: nn.Module) -> dict[str, float]:
        seen.append(given)
        return {"loss": float(sum(parameter.sum() for parameter in given.parameters())), "accuracy": 0.5}

    ours = UserModel(model, None, TrainConfig(), Shard(), data_seed=0, evaluate=evaluate)
    found = ours.measure(torch.ones(ours.numel))
    assert found.loss == pytest.approx(43)
    assert found.own == {"accuracy": 0.5}
    assert seen[0] is not model
    assert not seen[0].training
    assert model.training
    assert ours.evaluate() == pytest.approx(sum(each.sum().item() for each in model.parameters()))


def test_layers_frozen_after_the_join_stay_in_vector_layout_and_evaluation() -> None:
    model = small()
    ours = UserModel(model, None, TrainConfig(), Shard(), data_seed=0, evaluate=lambda given: float(given[0].bias[0]))  # type: ignore[index]
    model.requires_grad_(False)
    model[2].requires_grad_()
    assert ours.evaluate(torch.full((ours.numel,), 7.0)) == 7
    layout = ours.layout()
    assert layout is not None
    assert layout.numel == ours.numel == ours.vector().numel()
    assert not layout.untrained
    ours.load_state_dict(ours.state_dict())
    assert not model[0].weight.requires_grad, "and stay frozen"


def test_doubts_are_told() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    doubts = " ".join(learner(model, optimizer).doubts())
    assert "BatchNorm" in doubts
    assert "bf16" in doubts
    assert "2 of 4 trainable tensors are not in the optimizer" in doubts
    assert learner(small()).doubts() == []


def test_the_torch_optimizer_is_found_inside_wrappers() -> None:
    inner = torch.optim.SGD(small().parameters(), lr=0.1)

    class Wrapper:
        optimizer = inner

    assert torch_optimizer(Wrapper()) is inner
    assert torch_optimizer(inner) is inner
    with pytest.raises(TaskError, match=r"call swarm\.step\(\)"):
        torch_optimizer(object())


def test_what_evaluate_returns_is_a_number_or_a_dict_with_a_loss() -> None:
    assert measures_of(2.5).loss == 2.5
    assert measures_of(torch.tensor(2.5)).loss == 2.5
    with pytest.raises(TaskError, match="without 'loss': accuracy"):
        measures_of({"accuracy": 1.0})
    with pytest.raises(TaskError, match="no number"):
        measures_of(None)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="no number"):
        measures_of({"loss": torch.ones(2)})  # type: ignore[dict-item]


def test_metrics_of_evaluate_are_few_finite_and_have_names() -> None:
    found = measures_of({"loss": 1.0, "a\nb": 1.0, "nan": float("nan"), **{f"k{i}": 1.0 for i in range(10_000)}})
    assert list(found.own) == [f"k{i}" for i in range(15)]


def test_what_is_frozen_is_named_whatever_it_is_held_in() -> None:
    def identity(seed: int, dtype: torch.dtype = torch.float32, change: float = 0.0) -> bytes:
        model = small(seed)
        with torch.no_grad():
            model[0].weight[0, 0] += change
            model[2].weight.zero_()  # what is trained does not count
        model[0].requires_grad_(False).to(dtype)
        return learner(nn.Sequential(*model)).identity

    assert identity(1) == identity(1, torch.bfloat16)
    assert len({identity(1), identity(2), identity(1, change=0.1)}) == 3
    assert learner(small()).identity == b""
    quantized = small()
    quantized.register_parameter("packed", nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False))
    assert learner(quantized).identity == b""


def test_layers_thawed_or_added_after_the_join_are_told_once() -> None:
    model = small()
    model[0].requires_grad_(False)
    ours = learner(model)
    ours.doubts()
    assert ours.doubts() == [], "nothing has changed"
    model[0].requires_grad_()
    assert len(told := ours.doubts()) == 1
    assert "0.weight and 1 more began to need gradients after the join" in told[0]
    assert ours.doubts() == []
    model.append(nn.Linear(3, 1, bias=False))
    assert "0.weight and 2 more" in ours.doubts()[0]
    assert ours.numel == ours.vector().numel() == 15


def test_a_layer_that_was_replaced_or_converted_is_refused() -> None:
    model = small()
    ours = learner(model)
    before_d = ours.vector()
    model[2] = nn.Linear(4, 3)
    with pytest.raises(TaskError, match=r"2\.weight was replaced or converted after the join"):
        ours.vector()
    model = small()
    ours = learner(model)
    model.to(torch.bfloat16)
    with pytest.raises(TaskError, match=r"0\.weight was replaced or converted"):
        ours.state_dict()
    assert torch.equal(learner(small()).vector(), before_d)


def test_all_bits_of_float64_are_kept() -> None:
    model = small(dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 2**-40)  # bits that fp32 has no room for
    ours = learner(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    ours.correct(torch.full((ours.numel,), 2.0**-60))
    ours.correct(torch.full((ours.numel,), 0.5))
    for parameter, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, was + 2.0**-60 + 0.5)
    assert any("float64 are shared in fp32" in doubt for doubt in ours.doubts())

    other = learner(small(seed=9, dtype=torch.float64))
    other.load_state_dict({name: value.clone() for name, value in ours.state_dict().items()})
    assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: small().to("meta"), r"0\.weight is on the meta device"),
        (lambda: nn.Sequential(nn.LazyLinear(3)), "weight has no shape yet"),
        (lambda: nn.Sequential(nn.ReLU()), "no trainable parameter"),
        (lambda: nn.Sequential(nn.PReLU(0)), "no trainable parameter"),
        (lambda: nn.ParameterList([torch.ones(2, dtype=torch.complex64)]), "complex64"),
        (lambda: sharing("whole"), r"0\.weight and 1\.weight share memory"),
        (lambda: sharing("overlapping"), r"0\.weight and 1\.weight share memory"),
        (lambda: sharing("expanded"), r"0\.weight is expanded"),
    ],
)
def test_what_cannot_be_averaged_is_refused_in_one_line(build: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(TaskError, match=words) as refused:
        learner(build())
    assert "\n" not in str(refused.value)


def sharing(how: str) -> nn.Sequential:
    """Two layers whose weights lie in one piece of memory."""
    memory = torch.arange(32, dtype=torch.float32)
    weights = {
        "whole": (memory[:16].view(4, 4), memory[:16].view(4, 4)),
        "overlapping": (memory[:16].view(4, 4), memory[12:28].view(4, 4)),
        "expanded": (memory[:1].expand(4, 4), memory[:16].view(4, 4)),
        "parts": (memory[:16].view(4, 4), memory[16:].view(4, 4)),
        "columns": (memory.view(4, 8)[:, :4], memory.view(4, 8)[:, 4:]),
        "transposed": (memory[:16].view(4, 4).T, memory[16:].view(4, 4)),
    }[how]
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    for layer, weight in zip(model, weights, strict=True):
        layer.weight = nn.Parameter(weight)
    return model


@pytest.mark.parametrize("how", ["parts", "columns", "transposed"])
def test_parts_of_one_memory_are_corrected_where_they_are(how: str) -> None:
    model = sharing(how)
    values = ParameterVector(model)
    expected = [
        parameter.detach() + step.view(4, 4)
        for parameter, step in zip(model.parameters(), torch.arange(32.0).split(16), strict=True)
    ]
    places = [(parameter.data_ptr(), parameter.stride()) for parameter in model.parameters()]
    values.add_(torch.arange(32.0))
    assert all(torch.equal(parameter, right) for parameter, right in zip(model.parameters(), expected, strict=True))
    assert [(parameter.data_ptr(), parameter.stride()) for parameter in model.parameters()] == places
    assert torch.equal(values.vector(), torch.cat([right.reshape(-1) for right in expected]))


def test_tied_parameters_are_corrected_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight  # type: ignore[union-attr]
    values = ParameterVector(model)
    before = model[0].weight.detach().clone()  # type: ignore[union-attr,operator]
    values.add_(torch.ones(16))
    assert values.names == ["0.weight"]
    assert torch.equal(model[1].weight, before + 1)  # type: ignore[arg-type]


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    """As where it keeps fp32 copies of its own, or was made before the model was replaced."""
    copies = [parameter.detach().clone().requires_grad_() for parameter in small().parameters()]
    with pytest.raises(TaskError, match=r"\(SGD\) holds none of the model's trainable parameters"):
        learner(small(), torch.optim.SGD(copies, lr=0.1))


class KeepsActivations(nn.Module):
    """Keeps what its last pass has computed, as for a second loss or a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.layer(x)
        self.kept = [self.last.tanh()]
        return self.kept[0]


def test_a_model_that_keeps_activations_can_be_evaluated() -> None:
    model = KeepsActivations()
    ours = UserModel(
        model, None, TrainConfig(), Shard(), data_seed=0, evaluate=lambda given: float(given.layer.bias.sum())
    )
    loss = model(torch.ones(2, 6)).sum()
    assert ours.evaluate(torch.ones(ours.numel)) == 4
    loss.backward()
    assert model.last.grad_fn is not None, "the user's own is as it was"


def test_an_evaluation_of_the_live_model_leaves_the_modes_of_its_parts() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 1))
    model[0].eval()  # as one does while fine-tuning
    seen: list[list[bool]] = []

    def evaluate(given: nn.Module) -> float:
        seen.append([each.training for each in given.modules()])
        return 1.0

    ours = UserModel(model, None, TrainConfig(), Shard(), data_seed=0, evaluate=evaluate)
    assert ours.evaluate_live() == 1
    assert seen == [[False] * 4]
    assert [each.training for each in model.modules()] == [True, False, True, True]


def test_changes_from_outside_and_steps_are_counted() -> None:
    """The other ranks of a DDP model ask whether there was one."""
    ours = learner(small())
    ours.correct(torch.zeros(ours.numel))
    assert ours.changes == 1
    ours.load_vector(ours.vector())
    assert ours.changes == 2
    ours.newest_loss = 2.5
    assert ours.take_step() == 2.5
    assert math.isnan(ours.take_step() or 0.0), "told once"
    assert ours.counters().tolist() == [2, 0, 0]
    ours.ended = True
    assert ours.take_step() is None
    assert ours.global_step == 2


def test_buffers_and_frozen_layers_come_back_with_a_state() -> None:
    def made(value: float) -> nn.Sequential:
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        model[0].running_mean.fill_(value)  # type: ignore[union-attr,operator]
        model[0].weight.requires_grad_(False).fill_(value)  # type: ignore[union-attr,operator]
        return model

    other = made(1.0)
    learner(other).load_state_dict(learner(made(5.0)).state_dict())
    assert other[0].running_mean.tolist() == other[0].weight.tolist() == [5.0] * 3  # type: ignore[union-attr,operator]


def test_a_state_is_a_copy_and_a_view_is_not() -> None:
    model = small()
    ours = learner(model, optimizer := torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    stepped(model, optimizer)
    state, view = ours.state_dict(), ours.state_view()
    key = "optimizer.0.momentum_buffer"
    before = state[key].clone()
    stepped(model, optimizer)
    assert torch.equal(state[key], before)
    assert not torch.equal(view[key], before)


def test_evaluations_wait_for_their_turn_and_leave_the_random_numbers_alone() -> None:
    turn, seen = LoopTurn(), list[float]()

    def evaluate(given: nn.Module) -> float:
        torch.manual_seed(1)
        return float(torch.rand(()))

    ours = UserModel(small(), None, TrainConfig(), Shard(), data_seed=0, evaluate=evaluate, turn=turn)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert ours.evaluate_live() == ours.evaluate()
    turn.take_back()
    thread = threading.Thread(target=lambda: seen.append(ours.evaluate(ours.vector())))
    thread.start()
    thread.join(0.05)
    assert seen == [], "the loop's own code runs"
    turn.lend()
    thread.join(20)
    assert len(seen) == 1
    assert torch.equal(torch.rand(3), expected)
