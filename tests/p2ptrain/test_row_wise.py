"""Gradients of single examples in one pass: where they are a loop's, and all that has to be left to vmap."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from p2ptrain import privacy, tasks
from p2ptrain.tasks import Shard
from p2ptrain.tasks.base import Batch
from p2ptrain.training import TrainConfig, Trainer, example_gradients, row_wise
from p2ptrain.training.example_gradients import ExampleGradients, agree_in_one_pass
from p2ptrain.training.flat import trainable
from p2ptrain.training.machine import Machine
from p2ptrain.training.private_training import PrivateTraining
from p2ptrain.training.row_wise import NotRowWiseError, row_wise_gradients

MACHINE = Machine.of(TrainConfig(device="cpu"))
WIDTH, CLASSES, POSITIONS = 6, 4, 3

Loss = Callable[[nn.Module, Batch], torch.Tensor]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def batch_of(*shape: int) -> Batch:
    return torch.randn(*shape, WIDTH, dtype=torch.float64), torch.randint(CLASSES, shape)


def chain(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *more, nn.Linear(WIDTH, CLASSES)).double()


def by_a_loop(loss: Loss, model: nn.Module, batch: Batch) -> list[dict[str, torch.Tensor]]:
    names, parameters = zip(*trainable(model), strict=True)
    found = []
    for number in range(len(batch[0])):
        alone = tuple(it[number : number + 1] for it in batch)
        found.append(dict(zip(names, torch.autograd.grad(loss(model, alone), parameters), strict=True)))
    return found


def assert_as_a_loop(loss: Loss, model: nn.Module, batch: Batch) -> None:
    found = row_wise_gradients(loss, model, trainable(model), batch)
    expected = by_a_loop(loss, model, batch)
    assert set(found) == set(expected[0])
    for name, it in found.items():
        torch.testing.assert_close(it, torch.stack([alone[name] for alone in expected]), rtol=1e-10, atol=1e-12)


def frozen_first() -> nn.Module:
    model = chain(nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU())
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: nn.Linear(WIDTH, CLASSES).double(),
    "with norms": lambda: chain(nn.LayerNorm(WIDTH), nn.GELU()),
    "without biases": lambda: chain(nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()),
    "a norm without parameters": lambda: chain(nn.LayerNorm(WIDTH, elementwise_affine=False), nn.SiLU()),
    "chains in a chain": lambda: chain(nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH)), nn.Sequential()),
    "one activation used twice": lambda: chain(act := nn.Tanh(), nn.Linear(WIDTH, WIDTH), act),
    "frozen parts": frozen_first,
}


@pytest.mark.parametrize("shape", [(5,), (5, POSITIONS), (1,)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_chain_are_a_loops(name: str, shape: tuple[int, ...]) -> None:
    model, batch = MODELS[name](), batch_of(*shape)
    assert_as_a_loop(loss_of, model, batch)
    assert agree_in_one_pass(loss_of, model, MACHINE, batch)
    assert all(parameter.grad is None for parameter in model.parameters()), "the trainer's gradients are left alone"


def test_positions_are_flattened_and_normalized_together() -> None:
    last = nn.Linear(POSITIONS * WIDTH, CLASSES)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm((POSITIONS, WIDTH)), nn.Flatten(), last).double()
    inputs, labels = batch_of(5, POSITIONS)
    assert_as_a_loop(loss_of, model, (inputs, labels[:, 0]))


def test_a_vector_for_each_example_may_be_computed_of_one_number() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(1, CLASSES)).double()
    assert_as_a_loop(loss_of, model, (torch.randn(5, 1, dtype=torch.float64), torch.arange(5) % CLASSES))


class OwnLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class OwnChain(nn.Sequential):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + self[-1](input)


class Adapted(nn.Module):
    """As LoRA wraps a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.low, self.high = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.base(input) + self.high(self.low(input))


class Choice(nn.Module):
    """Calls one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.one(input)


def with_layer_used_twice() -> nn.Module:
    twice = nn.Linear(WIDTH, WIDTH)
    return chain(twice, nn.Tanh(), twice)


def with_last_layer_used_twice() -> nn.Module:
    twice = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(twice, nn.Tanh(), twice).double()


def with_tied_weights() -> nn.Module:
    model = chain(nn.Linear(WIDTH, WIDTH))
    model[1].weight = model[0].weight
    return model


def with_weight_used_outside() -> nn.Module:
    model = chain(nn.Tanh())
    model[0].forward = lambda input: functional.linear(input, model[0].weight) @ model[0].weight
    return model


def hooked(add: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = chain(nn.Tanh())
        add(model[0])
        return model

    return build


def with_own_parameter() -> nn.Module:
    model = chain(nn.Tanh())
    model[1].register_parameter("scale", nn.Parameter(torch.ones(1)))
    return model


def with_own_tensors() -> nn.Module:
    class OwnParameter(nn.Parameter): ...

    model = chain(nn.Tanh())
    model[0].weight = OwnParameter(model[0].weight.detach())
    return model


LEFT_TO_VMAP: dict[str, Callable[[], nn.Module]] = {
    "a layer used twice": with_layer_used_twice,
    "a last layer used twice": with_last_layer_used_twice,
    "tied weights": with_tied_weights,
    "a weight used outside of its layer": with_weight_used_outside,
    "a subclass of Linear": lambda: chain(OwnLinear(WIDTH, WIDTH)),
    "a subclass of Sequential": lambda: OwnChain(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).double(),
    "a layer within a layer of low rank": lambda: chain(Adapted()),
    "a layer that is not called": lambda: chain(Choice()),
    "a parametrized layer": lambda: chain(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))),
    "a hook before": hooked(lambda it: it.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))),
    "a hook after": hooked(lambda it: it.register_forward_hook(lambda module, inputs, output: output * 2)),
    "a hook on gradients": hooked(lambda it: it.register_full_backward_hook(lambda module, returned, given: None)),
    "an activation in place": lambda: chain(nn.ReLU(inplace=True)),
    "a parameter that no layer knows": with_own_parameter,
    "a parameter of a type of its own": with_own_tensors,
    "dropout": lambda: chain(nn.Dropout(0.5)),
    "statistics of the batch": lambda: chain(nn.BatchNorm1d(WIDTH, track_running_stats=False)),
    "softmax over the examples": lambda: chain(nn.Softmax(dim=0)),
    "flattened examples": lambda: chain(nn.Flatten(0)),
}


@pytest.mark.parametrize("name", LEFT_TO_VMAP)
def test_what_is_no_plain_chain_is_not_computed_in_one_pass(name: str) -> None:
    model, batch = LEFT_TO_VMAP[name](), batch_of(5)
    with pytest.raises(NotRowWiseError):
        row_wise_gradients(loss_of, model, trainable(model), batch)
    assert not agree_in_one_pass(loss_of, model, MACHINE, batch)


@pytest.mark.parametrize("name", [name for name in LEFT_TO_VMAP if name.startswith(("a layer", "tied", "a subclass"))])
def test_vmap_computes_it_then(name: str) -> None:
    model, batch = LEFT_TO_VMAP[name](), batch_of(5)
    each = ExampleGradients(loss_of, model, MACHINE, one_pass=True)
    found, expected = each(batch), each.by_vmap(batch)
    assert all(torch.equal(found[name], it) for name, it in expected.items())


def test_a_norm_over_the_examples_is_not_computed_in_one_pass() -> None:
    """It has the batch's shape, so that nothing else would say so."""
    model = chain(nn.LayerNorm((5, WIDTH)))
    with pytest.raises(NotRowWiseError, match="a LayerNorm goes over the examples"):
        row_wise_gradients(loss_of, model, trainable(model), batch_of(5))


def test_flattened_examples_are_not_computed_in_one_pass() -> None:
    """Its rows would be positions."""
    model = chain(nn.Flatten(0, 1))
    with pytest.raises(NotRowWiseError, match="a Flatten goes over some dimensions alone"):
        row_wise_gradients(loss_of, model, trainable(model), batch_of(5, POSITIONS))


def test_a_hook_on_all_modules_is_seen() -> None:
    model, batch = chain(), batch_of(5)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 2)
    try:
        with pytest.raises(NotRowWiseError, match="a hook is on all modules"):
            row_wise_gradients(loss_of, model, trainable(model), batch)
    finally:
        handle.remove()


def test_what_is_changed_after_the_comparison_is_seen_in_the_next_call() -> None:
    model, batch = chain(nn.Tanh()), batch_of(5)
    each = ExampleGradients(loss_of, model, MACHINE, one_pass=agree_in_one_pass(loss_of, model, MACHINE, batch))
    plain = each.in_one_pass(batch)
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    changed = each(batch)
    expected = by_a_loop(loss_of, model, batch)
    for name, it in changed.items():
        torch.testing.assert_close(it, torch.stack([alone[name] for alone in expected]))
        assert not torch.allclose(it, plain[name])


def masked(model: nn.Module, batch: Batch) -> torch.Tensor:
    """A mean over what counts in the whole batch: an example's share depends on the others' masks."""
    each = functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), reduction="none")
    return (each * batch[2].flatten()).sum() / batch[2].sum()


def with_places_left_out(model: nn.Module, batch: Batch) -> torch.Tensor:
    labels = torch.where(batch[2] > 0, batch[1], -100)
    return functional.cross_entropy(model(batch[0]).flatten(0, 1), labels.flatten(), ignore_index=-100)


def weighted(model: nn.Module, batch: Batch) -> torch.Tensor:
    weight = torch.arange(1.0, CLASSES + 1, dtype=torch.float64)
    return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), weight=weight)


def contrasted(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Each example's output over all others'."""
    return (model(batch[0]).log_softmax(0) * batch[2][..., None]).mean() + model(batch[0]).square().sum()


@pytest.mark.parametrize("loss", [masked, with_places_left_out, weighted, contrasted])
def test_no_loss_mixes_examples(loss: Loss) -> None:
    """Each example's is that of a batch of one, whatever the loss makes of a batch: else clipping bounds nothing."""
    mask = (torch.arange(5)[:, None] >= torch.arange(POSITIONS)[None]).double()  # 1, 2, 3, 3 and 3 places
    batch = *batch_of(5, POSITIONS), mask
    assert_as_a_loop(loss, chain(nn.Tanh()), batch)
    others = batch[0].clone(), batch[1], batch[2]
    others[0][1:] *= 1e3
    model = chain(nn.Tanh())
    found, changed = (row_wise_gradients(loss, model, trainable(model), each) for each in (batch, others))
    assert all(torch.allclose(it[0], changed[name][0], rtol=1e-12) for name, it in found.items())
    assert not all(torch.allclose(it[1], changed[name][1]) for name, it in found.items())


def test_an_example_whose_values_are_none_spoils_no_other() -> None:
    model, (inputs, labels) = chain(nn.LayerNorm(WIDTH), nn.GELU()), batch_of(5)
    expected = row_wise_gradients(loss_of, model, trainable(model), (inputs, labels))
    spoiled = inputs.clone()
    spoiled[2], spoiled[3, 0] = torch.nan, torch.inf
    found = row_wise_gradients(loss_of, model, trainable(model), (spoiled, labels))
    for name, it in found.items():
        assert torch.equal(it[[0, 1, 4]], expected[name][[0, 1, 4]])
        assert not it[2].isfinite().any()


def decayed(model: nn.Module, batch: Batch) -> torch.Tensor:
    return loss_of(model, batch) + sum(each.square().sum() for each in model.parameters())


def of_scaled_inputs(model: nn.Module, batch: Batch) -> torch.Tensor:
    return loss_of(model, (batch[0] * 2, batch[1]))


def by_a_name(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(input=batch[0]), batch[1])


def with_an_option(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0], scale=2), batch[1])


def through_the_first_layer(model: nn.Module, batch: Batch) -> torch.Tensor:
    return loss_of(model, batch) + functional.linear(batch[0], model[0].weight).square().sum()


def by_type(model: nn.Module, batch: Batch) -> torch.Tensor:
    return loss_of(model, batch) * (2 if isinstance(model, nn.Module) else 1)


def not_a_number(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch[0])


def at_random(model: nn.Module, batch: Batch) -> torch.Tensor:
    return loss_of(model, batch) * torch.rand(())


@pytest.mark.parametrize(
    "loss", [decayed, of_scaled_inputs, by_a_name, through_the_first_layer, by_type, not_a_number, at_random]
)
def test_a_loss_that_asks_more_of_the_model_is_left_to_vmap(loss: Loss) -> None:
    assert not agree_in_one_pass(loss, chain(nn.Tanh()), MACHINE, batch_of(5))


@pytest.mark.parametrize("loss", [decayed, of_scaled_inputs, by_a_name, with_an_option, not_a_number])
def test_a_loss_that_asks_more_in_a_later_step_is_seen(loss: Loss) -> None:
    model, batch = chain(nn.Tanh()), batch_of(5)
    with pytest.raises(NotRowWiseError):
        row_wise_gradients(loss, model, trainable(model), batch)


def test_a_loss_that_knows_the_layers_from_elsewhere_is_left_to_vmap() -> None:
    """Of a copy of the model it would say nothing."""
    model = chain(nn.Tanh())

    def loss(given: nn.Module, batch: Batch) -> torch.Tensor:
        return loss_of(given, batch) + functional.linear(batch[0], model[0].weight).square().sum()

    assert not agree_in_one_pass(loss, model, MACHINE, batch_of(5))
    assert agree_in_one_pass(loss, copy.deepcopy(model), MACHINE, batch_of(5)), "of which it knows nothing"


@pytest.mark.parametrize("layer", [nn.Linear, nn.LayerNorm])
def test_a_wrong_formula_is_found(layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    right = row_wise._PARTS[layer]

    def mixed(*given: object) -> dict[str, torch.Tensor]:
        return {name: it + 1e-5 * it.roll(1, 0) for name, it in right(*given).items()}

    model, batch = chain(nn.LayerNorm(WIDTH)), batch_of(5)
    assert agree_in_one_pass(loss_of, model, MACHINE, batch)
    monkeypatch.setitem(row_wise._PARTS, layer, mixed)
    assert not agree_in_one_pass(loss_of, model, MACHINE, batch)


def test_autocast_is_left_to_vmap() -> None:
    half = Machine.of(TrainConfig(device="cpu", precision="bf16"))
    model, (inputs, labels) = chain(nn.Tanh()).float(), batch_of(5)
    batch = inputs.float(), labels
    assert not agree_in_one_pass(loss_of, model, half, batch)
    each = ExampleGradients(loss_of, model, half, one_pass=True)
    found, expected = each(batch), each.by_vmap(batch)
    assert all(torch.equal(found[name], it) for name, it in expected.items())
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(NotRowWiseError, match="autocast"):
        ExampleGradients(loss_of, model, MACHINE).in_one_pass(batch)
    own = ExampleGradients(loss_of, model, half, autocast=False, one_pass=True).in_one_pass(batch)
    assert own["0.weight"].dtype == torch.float32, "where autocast is not taken, one pass can be"


class Chosen:
    """Draws these examples, and noise of a seed."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self._generator = torch.tensor(numbers), torch.Generator().manual_seed(1)

    def drawn(self, count: int, rate: float) -> torch.Tensor:
        return self.numbers

    def normals(self, count: int) -> torch.Tensor:
        return torch.randn(count, generator=self._generator, dtype=torch.float64)


def private_gradient(task: str, **options: object) -> tuple[bool, torch.Tensor]:
    protection = PrivateTraining(
        privatizer=privacy.get("example", noise=1e-3, clip=0.1), rate=0.05, chunk=3, source=Chosen([0, 2, 3, 5, 7])
    )
    config = TrainConfig(device="cpu", threads=1)
    trainer = Trainer(tasks.get(task, **options), config, Shard(index=0, count=8), privacy=protection)
    assert trainer._private_steps is not None
    return trainer._private_steps._gradients.one_pass, trainer.gradient()[1]


@pytest.mark.parametrize("model", ["mlp", "wide"])
def test_a_trainer_of_a_chain_makes_the_same_private_gradient_in_one_pass(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []

    def counted(*given: object) -> dict[str, torch.Tensor]:
        passes.append(given)
        return row_wise_gradients(*given)

    monkeypatch.setattr(example_gradients, "row_wise_gradients", counted)
    in_one_pass, found_d = private_gradient("digits", model=model)
    assert in_one_pass
    assert len(passes) == 2 + 2, "two to compare, and two chunks of a step"
    monkeypatch.setattr(example_gradients, "row_wise_gradients", None)  # raises, and is found not to agree
    in_one_pass, expected_d = private_gradient("digits", model=model)
    assert not in_one_pass
    assert float((found_d - expected_d).norm() / expected_d.norm()) < 1e-6


def test_other_tasks_are_left_to_vmap() -> None:
    for task, options in (("digits", {"model": "conv"}), ("quadratic", {})):
        in_one_pass, gradient_d = private_gradient(task, **options)
        assert not in_one_pass
        assert gradient_d.isfinite().all()
