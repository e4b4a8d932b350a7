"""What every task must keep: the built-in ones and the example of a user's own pass one suite."""

from pathlib import Path

import numpy as np
import pytest
import torch

from p2ptrain.tasks import TASKS, Generative, Shard, Task, get
from p2ptrain.tasks.base import HasExamples
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.example_gradients import (
    ExampleGradients,
    agree_in_one_pass,
    can_autocast,
    check_example_gradients,
    norms_of,
)
from p2ptrain.training.flat import trainable
from p2ptrain.training.machine import Machine
from p2ptrain.training.model import build_model

REPOSITORY = Path(__file__).parents[2]
TINY_LLAMA = str(REPOSITORY / "tests/data/tiny-llama.json")
EXAMPLE = "examples.my_task:create"
VARIANTS = [
    ("byte-lm", {"context": 32}),
    ("byte-lm", {"context": 32, "partition": "domain"}),
    ("digits", {}),
    ("digits", {"partition": "dirichlet", "alpha": 0.3}),
    ("digits", {"partition": "label"}),
    ("digits", {"model": "wide", "public": 300}),
    ("digits", {"model": "conv"}),
    ("hf-lm", {"length": 32, "model": TINY_LLAMA}),
    ("hf-lm", {"length": 32, "model": TINY_LLAMA, "lora": 4, "lora_alpha": 16}),
    ("hf-vision", {}),
    ("quadratic", {"spread": 0.1}),
    ("quadratic", {"spread": 0.1, "condition": 3.0}),
    (EXAMPLE, {}),
]
STEPS = 30


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Random letters, so that no two windows are alike, and a refrain, so that there is something to learn."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_bytes(b"".join(b"the word is " + rng.bytes(6).hex().encode() + b"\n" for _ in range(4000)))
    return path


@pytest.fixture(scope="module")
def domains(corpus, tmp_path_factory):
    """The corpus as two domains."""
    folder, text = tmp_path_factory.mktemp("domains"), corpus.read_bytes()
    for name, part in {"first": text[: len(text) // 2], "second": text[len(text) // 2 :]}.items():
        (folder / name).mkdir()
        (folder / name / "text.txt").write_bytes(part)
    return folder


@pytest.fixture(
    params=VARIANTS,
    ids=lambda variant: "-".join([variant[0], *(Path(str(value)).stem for value in variant[1].values())]),
)
def task(request, corpus, domains, monkeypatch):
    name, options = request.param
    monkeypatch.chdir(REPOSITORY)
    data = domains if options.get("partition") == "domain" else corpus
    return get(name, **options, **({"data": data} if name in ("byte-lm", "hf-lm") else {}))


def examples(batches):
    """Each example as bytes, to be compared across batches."""
    return {x.numpy().tobytes() + y.numpy().tobytes() for xs, ys in batches for x, y in zip(xs, ys, strict=True)}


def train_examples(task, shard, batches=20):
    return examples(task.train_batch(step, seed=0, shard=shard, size=32) for step in range(batches))


def test_the_suite_covers_every_registered_task():
    assert {name for name, _ in VARIANTS if ":" not in name} == set(TASKS.names())


def test_it_is_a_task(task):
    assert isinstance(task, Task)
    assert task.name
    assert task.metric


def test_a_batch_is_a_function_of_its_arguments(task):
    def batch(step, seed, index):
        return task.train_batch(step, seed=seed, shard=Shard(index=index, count=4), size=8)

    first, others = batch(5, 1, 2), [batch(6, 1, 2), batch(5, 2, 2), batch(5, 1, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, batch(5, 1, 2), strict=True))
    assert not any(torch.equal(first[0], other[0]) for other in others)


def test_a_batch_has_the_size_asked_for(task):
    inputs, targets = batch = task.train_batch(0, seed=0, shard=Shard(), size=7)
    assert len(inputs) == len(targets) == 7
    assert task.tokens(batch) % 7 == 0


def test_shards_are_disjoint(task):
    shards = [train_examples(task, Shard(index=index, count=3)) for index in range(3)]
    assert all(shards)
    assert sum(map(len, shards)) == len(set.union(*shards))


def test_the_held_out_split_is_trained_on_by_nobody(task):
    held_out = examples(task.eval_batches(10_000))
    assert held_out
    assert not held_out & train_examples(task, Shard(), batches=100)


def test_evaluation_is_fixed_and_bounded(task):
    once, again = task.eval_batches(50), task.eval_batches(50)
    assert sum(len(targets) for _, targets in once) == 50
    assert len(examples(once)) == 50
    assert examples(once) == examples(again)
    assert sum(len(targets) for _, targets in task.eval_batches(1)) == 1


def test_the_model_follows_torchs_generator(task):
    def parameters(seed):
        torch.manual_seed(seed)
        return torch.cat([parameter.reshape(-1) for parameter in task.build_model().parameters()])

    assert torch.equal(parameters(1), parameters(1))
    assert not torch.equal(parameters(1), parameters(2))


@pytest.mark.slow
def test_the_loss_is_a_finite_scalar_and_falls(task):
    config = TrainConfig(rounds=3, inner_steps=STEPS // 3, warmup_steps=3, device="cpu", eval_examples=64)
    trainer = Trainer(task, config, Shard(index=0, count=2))
    before = trainer.evaluate()
    losses = [trainer.step() for _ in range(STEPS)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.9 * losses[0]
    # A shard of a few labels only cannot make the model better at the others.
    if getattr(task, "partition", "iid") == "iid":
        assert trainer.evaluate() < 0.9 * before


def test_who_can_speak_does(task):
    if not isinstance(task, Generative):
        assert not hasattr(task, "generate")
        return
    model = task.build_model()
    said = [task.generate(model, "the ", length=12, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert said[0].startswith("the ")
    assert said[0] == said[1] != said[2]


def test_every_task_of_ours_names_its_examples(task):
    assert isinstance(task, HasExamples) == (type(task).__module__.partition(".")[0] == "p2ptrain")


def test_examples_are_the_shards_and_each_is_one_of_its_number_alone(task):
    if not isinstance(task, HasExamples):
        pytest.skip("a task of a user's own, without them")
    shards = [Shard(index=index, count=3) for index in range(3)]
    counts = [task.example_count(shard) for shard in shards]
    assert min(counts) > 0
    found = [examples([task.examples_at(shard, range(count))]) for shard, count in zip(shards, counts, strict=True)]
    assert [len(each) for each in found] == counts, "none is there twice"
    assert len(set.union(*found)) == sum(counts), "nor in two shards"
    assert not set.union(*found) & examples(task.eval_batches(10_000)) or task.name == "quadratic"
    few = [counts[0] - 1, 0, 3]
    together = task.examples_at(shards[0], few)
    alone = [task.examples_at(shards[0], [number]) for number in few]
    assert all(torch.equal(torch.cat([each[at] for each in alone]), together[at]) for at in range(2))
    plain = task.train_batch(0, seed=0, shard=shards[0], size=3)
    assert [(it.dtype, it.shape) for it in together] == [(it.dtype, it.shape) for it in plain]


def test_gradients_of_examples_are_those_of_a_loop_of_single_examples(task):
    """In the types that the trainer computes in; the check before a run has the same limit in fp64."""
    if not isinstance(task, HasExamples):
        pytest.skip("a task of a user's own, without them")
    config = TrainConfig(device="cpu")
    model, machine = build_model(task, 0), Machine.of(config)
    batch = task.examples_at(Shard(index=1, count=3), [0, 2, 1, 4])
    check_example_gradients(task.loss, model, machine, batch)
    one_pass = agree_in_one_pass(task.loss, model, machine, batch)
    for way in (False, True) if one_pass else (False,):
        found = ExampleGradients(task.loss, model, machine, one_pass=way)(batch)
        norms = norms_of(found)
        for number in range(4):
            model.zero_grad(set_to_none=True)
            task.loss(model, tuple(it[number : number + 1] for it in batch)).backward()
            whole = torch.cat([each.grad.flatten() for _, each in trainable(model)])
            off = torch.cat([found[name][number].flatten() - each.grad.flatten() for name, each in trainable(model)])
            assert float(off.norm() / whole.norm()) < 1e-6
            assert float(norms[number]) == pytest.approx(float(whole.double().norm()), rel=1e-6)


def test_gradients_of_examples_are_computed_in_half_precision_too(task):
    """As a GPU does by default. Where vmap cannot, the model's own type is used."""
    if not isinstance(task, HasExamples):
        pytest.skip("a task of a user's own, without them")
    model = build_model(task, 0)
    batch = task.examples_at(Shard(index=1, count=3), [0, 2, 1, 4])
    half = Machine.of(TrainConfig(device="cpu", precision="bf16"))
    autocast = can_autocast(task.loss, model, half, batch)
    found = ExampleGradients(task.loss, model, half, autocast=autocast)(batch)
    exact = ExampleGradients(task.loss, model, Machine.of(TrainConfig(device="cpu")))(batch)
    if task.name == "byte-lm":
        assert autocast
        assert not all(torch.equal(found[name], it) for name, it in exact.items()), "it is rounded"
    for name, it in exact.items():
        assert found[name].dtype == it.dtype
    off = norms_of({name: found[name] - it for name, it in exact.items()})
    assert torch.all(off < 0.1 * norms_of(exact)), "what bf16 rounds, and no more"
