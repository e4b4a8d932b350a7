"""What works on a GPU's tensors works there alone: every aggregator, inner optimizer and drift correction, and what
goes between device and host. On a "cuda" that needs none (tests/shadow_devices.py), with the values that a CPU gives.

What works on the host alone, the codecs and all that is sent, refuses other tensors, and stays there also where a
program makes its tensors on another device by default.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from shadow_devices import CPU, CUDA, put, shadowed, values_of
from sizes import thorough_but
from test_aggregators import NAMES as AGGREGATORS
from test_aggregators import at_least
from test_aggregators import build as build_aggregator
from test_compressors import Make, every_compressor
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError
from vectors import vector

from node.bench import baseline
from node.bench.gpu import CODECS
from p2ptrain import aggregate, drift, inner
from p2ptrain.aggregate import Weighted
from p2ptrain.compress import Stateful
from p2ptrain.inner import muon
from p2ptrain.tasks.base import Batch, Shard
from p2ptrain.tasks.batches import moved
from p2ptrain.training import TrainConfig, Trainer, device_copies
from p2ptrain.training.user_model import UserModel


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """The first use of the fake mode imports torch's compiler, which takes a second."""
    with shadowed():
        put(torch.ones(1)).add_(1)


every_aggregator = pytest.mark.parametrize("name", AGGREGATORS)


@every_aggregator
def test_an_aggregator_stays_on_the_device(name: str) -> None:
    x_nd = at_least(build_aggregator(name, 1))
    expected_d = build_aggregator(name, 1)(x_nd)
    with shadowed():
        found_d = build_aggregator(name, 1)(put(x_nd))
    assert found_d.device == CUDA
    torch.testing.assert_close(values_of(found_d), expected_d, rtol=1e-5, atol=1e-5)


# After stages the lost row may be as far from several others.
@pytest.mark.parametrize("name", thorough_but({"trimmed_mean", "krum"}, aggregate.names()))
def test_so_it_does_where_a_liar_sends_nan(name: str) -> None:
    rule = build_aggregator(name, 1)
    x_nd = at_least(rule)
    x_nd[-1, 3] = torch.nan
    expected_d = rule(x_nd)
    with shadowed():
        found_d = build_aggregator(name, 1)(put(x_nd))
    assert found_d.device == CUDA
    torch.testing.assert_close(values_of(found_d), expected_d, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", [each for each in AGGREGATORS if isinstance(build_aggregator(each, 1), Weighted)])
def test_a_weighted_one_too(name: str) -> None:
    rule = build_aggregator(name, 1)
    assert isinstance(rule, Weighted)
    x_nd = at_least(rule)
    weights = [1.0 + row % 3 for row in range(len(x_nd))]
    expected_d = rule.weighted(x_nd, weights)
    with shadowed():
        found_d = rule.weighted(put(x_nd), weights)
    assert found_d.device == CUDA
    torch.testing.assert_close(values_of(found_d), expected_d, rtol=1e-5, atol=1e-5)


@every_compressor
def test_a_codec_refuses_what_is_not_on_the_host(make: Make) -> None:
    with shadowed(), pytest.raises(ValueError, match="CPU vector"):
        make().encode(put(vector(3000)))


@every_compressor
def test_a_codec_stays_on_the_host(make: Make) -> None:
    """With "meta" for a default device, where nothing can be computed."""
    x_d, codec, other = vector(3000), make(), make()
    payloads = [codec.encode(x_d) for _ in range(2)]
    expected_d = codec.decode(payloads[1], 3000)
    with torch.device("meta"):
        assert [other.encode(x_d) for _ in range(2)] == payloads
        found_d = other.decode(payloads[1], 3000)
        state = other.state_dict() if isinstance(other, Stateful) else {}
    assert torch.equal(found_d, expected_d)
    assert {each.device for each in state.values()} <= {CPU}


@pytest.mark.parametrize("name", CODECS)
def test_the_plain_codecs_of_bench_gpu_stay_on_the_device(name: str) -> None:
    plain = baseline.codec(name)
    assert plain is not None
    encode, decode = plain
    x_d = vector(3000)
    expected_d = decode(encode(x_d), 3000)
    with shadowed():
        encoded = encode(put(x_d))
        found_d = decode(encoded, 3000)
    assert {each.device for each in (*encoded, found_d)} == {CUDA}
    torch.testing.assert_close(values_of(found_d), expected_d)


class Placed(nn.Sequential):
    """Layers that can go to "cuda": torch's own way puts a tensor in another's place, which fake ones do not let."""

    def to(self, *args: Any, **kwargs: Any) -> "Placed":
        """Put new parameters in the old ones' place."""
        for module in self.modules():
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(parameter.detach().to(*args, **kwargs)))
        return self


@dataclass
class Line:
    """Two layers and a batch of eight, as little as an optimizer for hidden matrices takes."""

    name: str = "line"
    metric: str = "error"

    def build_model(self) -> nn.Module:
        return Placed(nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3))

    def train_batch(self, step: int, *, seed: int, shard: Shard, size: int) -> Batch:
        return {"x": torch.ones(size, 4), "y": torch.ones(size, 3)}

    def eval_batches(self, limit: int) -> list[Batch]:
        return [self.train_batch(0, seed=0, shard=Shard(), size=8)]

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return (model(batch["x"]) - batch["y"]).square().mean()

    def tokens(self, batch: Batch) -> int:
        return len(batch["x"])


def a_round_of(trainer: Trainer, grads: list[torch.Tensor], correction_d: torch.Tensor) -> dict[str, torch.Tensor]:
    """Everything of a round but the gradients themselves; all that a checkpoint has of it."""
    trainer.begin_round()
    for grad_d in grads:
        trainer.optimizer.gradient_point()
        assert trainer.apply_gradient(grad_d)
    trainer.begin_round()
    trainer.correct(correction_d)
    for grad_d in grads:
        assert trainer.apply_gradient(grad_d)
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    trainer.load_vector(trainer.vector())
    return trainer.state_dict()


@pytest.fixture(params=[64, device_copies.STAGED_BYTES], ids=["small buffers", "one buffer"])
def _buffers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes between device and host does so in many pieces, or in one."""
    monkeypatch.setattr(device_copies, "STAGED_BYTES", request.param)


through_buffers = pytest.mark.usefixtures("_buffers")


@through_buffers
def test_copies_stay_on_their_sides() -> None:
    values = [vector(200).view(10, 20), vector(60, seed=1).view(20, 3).t(), vector(70, seed=2).bfloat16()]
    with shadowed():
        there = [put(each.clone()) for each in values]
        here = [put(torch.zeros_like(each), CPU) for each in values]
        copies = device_copies.copies_for(CUDA)
        copies.gather(list(zip(there, here, strict=True))).finish()
        copies.deliver(here, [(each,) for each in there], device_copies.add)
        copies.deliver(here, [(each, each) for each in there], lambda index, part, places: places[1].add_(part))
    for value, gathered, thrice in zip(values, here, there, strict=True):
        assert (gathered.device, thrice.device) == (CPU, CUDA)
        assert torch.equal(values_of(gathered), value)
        assert torch.equal(values_of(thrice), value + value + value)


@pytest.mark.parametrize(
    ("optimizer", "correction"),
    thorough_but(
        {*product(inner.names(), ["none"]), *product(["sgd"], drift.names())}, product(inner.names(), drift.names())
    ),
)
def test_steps_and_corrections_on_the_device(optimizer: str, correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "STAGED_BYTES", 160)  # a vector in three pieces
    monkeypatch.setitem(muon.ITERATED_IN, "cuda", torch.float32)  # as here: to compare all else by its bits

    def trainer(device: str) -> Trainer:
        config = TrainConfig(optimizer=optimizer, drift=correction, device=device, precision="fp32", warmup_steps=0)
        return Trainer(Line(), config, Shard())

    here = trainer("cpu")
    grads = [vector(here.numel, seed=seed) for seed in range(3)]
    correction_d = vector(here.numel, seed=7) / 10
    expected = a_round_of(here, grads, correction_d)
    with shadowed():
        there = trainer("cuda:0")
        assert {there.flat.data_d.device, there.flat.grad_d.device, there.device} == {CUDA}
        assert there.vector().device == CPU
        found = a_round_of(there, [put(each, CPU) for each in grads], put(correction_d, CPU))
    assert found.keys() == expected.keys()
    assert {each.device for each in found.values()} == {CPU}
    for name, value in expected.items():
        torch.testing.assert_close(values_of(found[name]), value)


def test_evaluation_on_the_device() -> None:
    config = TrainConfig(device="cpu", precision="fp32")
    here = Trainer(Line(), config, Shard())
    with shadowed():
        there = Trainer(Line(), TrainConfig(device="cuda:0", precision="fp32"), Shard())
        assert there.evaluate() == pytest.approx(here.evaluate())
        assert there.judge(there.vector(), 3) == pytest.approx(here.judge(here.vector(), 3))


@through_buffers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_corrections_of_a_users_model(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Line().build_model().to(dtype)
    correction_d = vector(sum(each.numel() for each in model.parameters())) / 100
    config = TrainConfig()
    start = [each.detach().clone() for each in model.parameters()]
    here = UserModel(model, None, config, Shard(), data_seed=0)
    here.correct(correction_d)
    here.correct(correction_d)
    with shadowed():
        moving = Line().build_model()
        for own, value in zip(list(moving.named_parameters()), start, strict=True):
            layer, name = own[0].split(".")
            setattr(moving[int(layer)], name, nn.Parameter(put(value)))  # type: ignore[index]
        there = UserModel(moving, None, config, Shard(), data_seed=0)
        assert there.device == CUDA
        there.correct(put(correction_d, CPU))
        there.correct(put(correction_d, CPU))
        found_d = there.vector()
        there.load_vector(found_d)
        again_d = there.state_dict()["parameters"]
    assert found_d.device == again_d.device == CPU
    assert torch.equal(values_of(found_d), here.vector())
    assert torch.equal(values_of(again_d), here.vector())


def test_what_a_users_model_gives_is_on_the_host_wherever_tensors_are_made() -> None:
    """`torch.set_default_device("cuda")` holds in the thread that trains, which takes the snapshots."""
    model = Line().build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    learner = UserModel(model, optimizer, TrainConfig(), Shard(), data_seed=0)
    learner.optimizer.state[next(model.parameters())]["count"] = 3.0  # type: ignore[union-attr]
    with torch.device("meta"):
        vector_d, state = learner.vector(), learner.state_dict()
    assert vector_d.device == CPU
    assert {each.device for each in state.values()} == {CPU}


def test_a_trainers_state_is_on_the_host_wherever_tensors_are_made() -> None:
    trainer = Trainer(Line(), TrainConfig(device="cpu"), Shard())
    with torch.device("meta"):
        assert {each.device for each in trainer.state_dict().values()} == {CPU}


def test_batches_go_to_the_device_whole() -> None:
    batch = {"x": vector(8), "more": [vector(2), (vector(3), "words")]}
    with shadowed():
        inside = {"x": put(batch["x"], CPU), "more": [put(vector(2), CPU), (put(vector(3), CPU), "words")]}  # type: ignore[arg-type]
        there = moved(inside, CUDA)
    assert {there["x"].device, there["more"][0].device, there["more"][1][0].device} == {CUDA}
    assert there["more"][1][1] == "words"
    assert torch.equal(values_of(there["x"]), batch["x"])  # type: ignore[arg-type]


def test_operations_across_devices_are_refused() -> None:
    """What all of these tests rest on."""
    with shadowed():
        there_d, here_d = put(vector(8)), put(vector(8), CPU)
        for mistake in (
            lambda: there_d + here_d,
            lambda: there_d.add_(here_d),
            lambda: torch._foreach_add_([there_d], [here_d]),
            lambda: torch.mv(there_d.view(2, 4), torch.zeros(4), out=there_d[:2]),
            lambda: torch.where(there_d > 0, here_d, there_d),
        ):
            with pytest.raises((FakeTensorDeviceMismatchError, AssertionError)):
                mistake()
