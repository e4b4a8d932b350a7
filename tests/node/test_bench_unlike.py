"""Tasks of the tables of robustness: what each shard holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.bench.swarm.heterogeneous import STRETCHES, HalvedDigits, SmallText
from node.bench.swarm.presets import asked
from p2ptrain import tasks
from p2ptrain.tasks import Shard, TaskError

NAME = "node.bench.swarm.heterogeneous:small_text"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_bytes(bytes(range(256)) * 800)  # 200 KB: 100 blocks
    return path


@pytest.fixture(scope="module")
def halved():
    return HalvedDigits()  # here, for what it imports takes a second


@given(st.integers(1, 30))
def test_each_half_has_half_of_the_digits(halved, count):
    found = [halved.examples(Shard(index=index, count=count)) for index in range(count)]
    assert np.array_equal(np.sort(np.concatenate(found)), np.arange(len(halved.train.labels)))
    for index, mine in enumerate(found):
        kinds = np.unique(halved.train.labels.numpy()[mine] // 5)
        assert list(kinds) == ([0, 1] if count == 1 else [index % 2])
    sizes = [len(mine) for mine in found]
    assert max(sizes[::2]) - min(sizes[::2]) <= 1


@pytest.mark.slow
@given(st.integers(1, 30), st.sampled_from([0.1, 0.3, 100.0]))
def test_every_block_of_a_text_is_one_shards(text, count, alpha):
    split = SmallText(text, "dirichlet", alpha).split
    found = [split.train_blocks(Shard(index=index, count=count)) for index in range(count)]
    dealt = np.concatenate(found)
    empty = sum(np.array_equal(mine, [0]) for mine in found)
    assert len(dealt) - empty <= len(np.unique(dealt)) <= len(dealt)
    assert set(dealt) == set(range(split.blocks)) - set(split.held_out_blocks())


def test_stretches_are_shared_out_unevenly(text):
    def shares(alpha: float) -> np.ndarray:
        split = SmallText(text, "dirichlet", alpha).split
        stretches = np.array_split(np.setdiff1d(np.arange(split.blocks), split.held_out_blocks()), STRETCHES)
        mine = [split.train_blocks(Shard(index=index, count=4)) for index in range(4)]
        return np.array([[np.isin(stretch, each).mean() for stretch in stretches] for each in mine])

    assert shares(0.1).max(axis=0).mean() > 0.7
    assert shares(1e4).max(axis=0).mean() < 0.4


def test_the_deal_is_the_same_for_everybody(text):
    first, second = (tasks.get(NAME, data=str(text), partition="dirichlet") for _ in range(2))
    batches = [task.train_batch(3, seed=1, shard=Shard(index=2, count=5), size=4)[0] for task in (first, second)]
    assert batches[0].tolist() == batches[1].tolist()
    assert sum(each.numel() for each in first.build_model().parameters()) < 40_000


@pytest.mark.parametrize("options", [{"partition": "label"}, {"alpha": 0.0}, {"alpha": float("nan")}])
def test_options_that_cannot_be(text, options):
    with pytest.raises(TaskError):
        SmallText(text, **options)


def test_a_study_takes_them_with_a_partition(text):
    words = {"task": NAME, "data": text, "partition": "iid,dirichlet", "aggregator": "mean", "attack": "none"}
    found = asked("robust", {**words, "byzantine": "0"}, quick=False).recipes({})
    assert [each.config.task.options["partition"] for each in found] == ["iid", "dirichlet"]
