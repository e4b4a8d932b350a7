"""How a model is cut into the stages of a pipeline, and a step's batches into micro-batches."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.byte_lm import SIZES, ByteGPT
from p2ptrain.tasks.byte_lm.gpt_stages import cut_stages
from p2ptrain.tasks.calling import TaskFaultError
from p2ptrain.training.flat import trainable
from p2ptrain.training.site.batch_shares import (
    GivenOutput,
    batch_share,
    inputs_of,
    micro_batches,
    padded,
    padded_examples,
)
from p2ptrain.training.site.cut_model import check_parallel
from p2ptrain.training.site.pipeline_cut import only_of, stage_holders
from p2ptrain.training.site.site_config import SiteConfig


class Masked:
    """Predicts where the target is not negative."""

    name = "masked"

    def tokens(self, batch: Any) -> int:
        return int((batch[1] >= 0).sum())


# The model


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_stages_of_a_gpt_compute_what_it_computes(stages: int) -> None:
    model, tokens = ByteGPT(SIZES["nano"]), torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))
    x = tokens
    for stage in cut_stages(model, stages):
        x = stage(x)
    assert torch.equal(x, model(tokens))


def test_blocks_are_shared_out_evenly_and_the_embedding_is_in_the_first_stage_and_the_last() -> None:
    with torch.device("meta"):  # who has what goes by names
        model = ByteGPT(SIZES["base"])
    stages = cut_stages(model, 4)
    assert [len(stage.blocks) for stage in stages] == [3, 3, 3, 4]  # type: ignore[arg-type]
    holders = dict(zip([name for name, _ in trainable(model)], stage_holders(Masked(), model, stages, 4), strict=True))  # type: ignore[arg-type]
    assert holders["embedding.weight"] == (0, 3)
    assert holders["norm.weight"] == (3,)
    assert [holders[f"blocks.{block}.qkv.weight"] for block in (0, 2, 3, 12)] == [(0,), (0,), (1,), (3,)]


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(TaskError, match="5 stages of a pipeline want as many blocks, and the model has 4"):
        cut_stages(ByteGPT(SIZES["nano"]), 5)


class Tied(nn.Module):
    """Whose output layer has the embedding's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.out = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8, bias=False)
        self.out.weight = self.embedding.weight


def holders_of(model: nn.Module, *stages: Sequence[nn.Module], ranks: int) -> list[tuple[int, ...]]:
    return stage_holders(Masked(), model, [nn.Sequential(*stage) for stage in stages], ranks)  # type: ignore[arg-type]


def test_a_tied_parameter_is_held_by_the_ranks_of_both_its_stages() -> None:
    model = Tied()
    assert holders_of(model, [model.embedding], [model.middle], [model.out], ranks=3) == [(0, 2), (1,), (1,)]
    with pytest.raises(TaskError, match=r"parameter embedding\.weight would be in two stages of one rank"):
        holders_of(model, [model.embedding], [model.middle], [model.out], ranks=2)


def test_stages_that_are_not_the_model_are_refused() -> None:
    model = Tied()
    with pytest.raises(TaskError, match=r"cut_stages of the task masked has left out parameter middle\.weight"):
        holders_of(model, [model.embedding], [model.out], ranks=2)
    with pytest.raises(TaskError, match="parameters that are none of the model's"):
        holders_of(model, [model.embedding, model.middle], [model.out, nn.Linear(8, 8)], ranks=2)
    model.middle.bias.requires_grad_(False)
    with pytest.raises(TaskError, match=r"buffers or frozen parameters: leave site\.pipeline at 1"):
        holders_of(model, [model.embedding, model.middle], [model.out], ranks=2)


def test_a_rank_keeps_the_values_of_its_stages_alone_under_all_their_names() -> None:
    model = Tied()
    shapes = [tuple(each.shape) for _, each in trainable(model)]
    with only_of(model, [model.out]):
        model.out.weight = nn.Parameter(torch.ones(8, 4))  # as a shard takes a parameter's place
    assert model.embedding.weight is model.out.weight
    assert [(name, each.is_meta) for name, each in trainable(model)] == [
        ("embedding.weight", False),
        ("middle.weight", True),
        ("middle.bias", True),
    ]
    assert [tuple(each.shape) for _, each in trainable(model)] == shapes


def test_tied_parameters_of_other_ranks_stay_one() -> None:
    model = Tied()
    with only_of(model, [model.middle]):
        pass
    assert model.embedding.weight is model.out.weight
    assert model.out.weight.is_meta
    assert not model.middle.weight.is_meta


class Whole(Masked):
    """Compares the examples of a batch."""

    whole_batches = True

    def cut_stages(self, model: nn.Module, stages: int) -> list[nn.Module]:
        raise AssertionError


def test_a_task_without_stages_is_refused() -> None:
    site = SiteConfig(pipeline=2)
    with pytest.raises(TaskError, match="the task masked does not say how its model is cut into stages; one does"):
        check_parallel(Masked(), site, lambda method: {"cut_stages": ["one"]}[method])  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="the loss of the task masked compares the examples of a batch"):
        check_parallel(Whole(), site, lambda method: [])  # type: ignore[arg-type]


# The batches


@pytest.mark.parametrize(
    ("site", "batch", "accumulation", "ranks", "count"),
    [
        (SiteConfig(pipeline=2), 16, 1, 2, 8),
        (SiteConfig(pipeline=2), 4, 1, 2, 4),
        (SiteConfig(pipeline=2), 16, 3, 2, 12),
        (SiteConfig(pipeline=2), 16, 3, 4, 12),
        (SiteConfig(pipeline=2), 16, 4, 4, 8),
        (SiteConfig(pipeline=2, tensor=2), 16, 1, 4, 8),
        (SiteConfig(pipeline=2, micro_batches=2), 16, 1, 2, 2),
        (SiteConfig(pipeline=3), 9, 1, 3, 9),
        (SiteConfig(pipeline=4, pipeline_schedule="interleaved"), 12, 1, 4, 12),
    ],
)
def test_a_step_is_cut_into_micro_batches(
    site: SiteConfig, batch: int, accumulation: int, ranks: int, count: int
) -> None:
    assert site.micro_batch_count(batch, accumulation, ranks) == count


@pytest.mark.parametrize(
    ("site", "batch", "accumulation", "ranks", "line"),
    [
        (SiteConfig(pipeline=2), 5, 1, 4, r"train\.batch_size=5 cannot be shared out evenly among 2 pipelines"),
        (SiteConfig(pipeline=2), 1, 1, 2, "wants at least 2 as the number of equal micro-batches a step"),
        (SiteConfig(pipeline=2, pipeline_schedule="interleaved"), 3, 1, 2, "wants a multiple of 2 as the number"),
        (SiteConfig(pipeline=2, micro_batches=3), 8, 1, 2, "does not fit: .* 1 x 8 examples a step into 2, 4, 8"),
    ],
)
def test_a_step_that_cannot_be_cut_is_refused(
    site: SiteConfig, batch: int, accumulation: int, ranks: int, line: str
) -> None:
    with pytest.raises(TaskError, match=line):
        site.micro_batch_count(batch, accumulation, ranks)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ({"pipeline": 0}, "pipeline must be at least 1, not 0"),
        ({"pipeline_schedule": "gpipe"}, "pipeline_schedule must be one of 1f1b, interleaved, not 'gpipe'"),
        ({"micro_batches": -1}, "micro_batches must be at least 0, not -1"),
    ],
)
def test_settings_that_cannot_be(words: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        SiteConfig(**words)


def test_interleaved_stages_are_two_for_each_rank() -> None:
    assert SiteConfig(pipeline=4).stages == 4
    assert SiteConfig(pipeline=4, pipeline_schedule="interleaved").stages == 8
    assert SiteConfig(pipeline_schedule="interleaved").stages == 1, "without a pipeline"


def test_micro_batches_are_a_ranks_share_and_weigh_as_their_predictions() -> None:
    batch = torch.arange(8).view(8, 1), torch.tensor([[0], [0], [-1], [-1], [0], [0], [0], [0]])
    found = [each for rank in range(2) for each in micro_batches(Masked(), batch, rank, 2, 2)]  # type: ignore[arg-type]
    assert torch.equal(torch.cat([each.batch[0] for each in found]), batch[0])
    assert [each.predictions for each in found] == [2, 0, 2, 2]
    assert [each.share for each in found] == [2 / 6, 0, 2 / 6, 2 / 6]


@pytest.mark.parametrize(("examples", "rank", "ranks"), [(6, 0, 2), (1, 0, 2), (9, 1, 2)])
def test_a_batch_of_another_length_is_the_tasks_fault(examples: int, rank: int, ranks: int) -> None:
    batch = torch.zeros(examples, 1), torch.zeros(examples, 1)
    with pytest.raises(TaskFaultError, match="cannot cut into micro-batches of 2 examples"):
        micro_batches(Masked(), batch, rank, ranks, 2)  # type: ignore[arg-type]


def test_a_batch_that_is_no_pair_is_the_tasks_fault() -> None:
    with pytest.raises(TaskFaultError, match="no pair of tensors, inputs and targets"):
        inputs_of(Masked(), {"inputs": torch.zeros(2)})  # type: ignore[arg-type]


def test_ranks_evaluate_as_many_examples_whatever_their_shares_are() -> None:
    batch = torch.arange(7).view(7, 1), torch.tensor([[0], [0], [0], [-1], [-1], [-1], [-1]])
    assert padded_examples(batch, 2, 2) == 4
    assert padded_examples(batch, 2, 3) == 6
    assert padded_examples(batch, 8, 2) == 8, "each of eight ranks has all seven"
    kept = batch_share(Masked(), batch, 1, 2, keeps_empty=True)  # type: ignore[arg-type]
    assert (len(kept.batch[0]), kept.predictions) == (4, 0)
    assert padded(batch[0], 9)[-3:].flatten().tolist() == [6, 6, 6]
    assert padded(batch[0], 7) is batch[0]


def test_a_model_that_has_computed_returns_what_came_of_it() -> None:
    output = torch.ones(2, 3)
    given = GivenOutput(output, trains=False)
    assert given(torch.zeros(2, 5)) is output
    assert not given.training
    assert GivenOutput(output, trains=True).training
