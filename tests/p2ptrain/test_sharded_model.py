"""A model that four ranks hold by parts: read, corrected and kept as if it were whole."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from p2ptrain.training.tensor_block import TensorBlock, are_whole

HERE = Path(__file__).parent
RANKS = 4
CUTS = ("fsdp", "tensor_parallel", "both", "replicated_shards")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(RANKS, marks=pytest.mark.thorough)])  # a quarter of a minute
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank of `sharded_ranks.py` has found."""
    out = tmp_path_factory.mktemp("ranks")
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "sharded_ranks.py"]
    done = subprocess.run(
        [sys.executable, *words, str(out)],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("cut", CUTS)
def test_the_vector_is_that_of_one_process(ranks: list[dict[str, Any]], cut: str) -> None:
    leader = ranks[0][cut]
    assert leader["names"]
    assert leader["ranks"] == list(range(RANKS))
    assert leader["vector"] < 1e-6
    assert leader["added"] < 1e-6


@pytest.mark.parametrize("cut", CUTS)
def test_the_optimizers_state_is_that_of_one_process_and_goes_on_from_one(
    ranks: list[dict[str, Any]], cut: str
) -> None:
    leader = ranks[0][cut]
    assert leader["left_out"] == []
    assert leader["same entries"]
    assert leader["state"] < 1e-6
    assert leader["loaded"] < 1e-5, "further steps, and then model and optimizer of one process"


@pytest.mark.parametrize("cut", CUTS)
def test_another_optimizers_state_is_refused_in_all_ranks(ranks: list[dict[str, Any]], cut: str) -> None:
    assert all("its optimizer is Adamw" in each[cut]["refused"] for each in ranks)


def test_ranks_keep_what_rounding_takes_of_their_parts(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["rounded"] == {"rounded": True, "far": 0.0}


def test_what_cannot_be_averaged_is_refused_in_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(ranks):
        found = each["refusals"]
        assert "is in float64 and the model sharded" in found["float64"]
        assert "is frozen and sharded" in found["frozen"]
        assert "was replaced, moved or converted" in found["replaced"]
        assert "ended between two rounds" in found["left"]
        assert "all of them join together" in found["one rank alone"], rank
        assert "does not fit a model" in found["shape"]


def test_a_rank_that_does_not_answer_is_told(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["silent"].startswith("rank 1 of this model cannot be reached: ")


def test_a_node_may_ask_for_names_in_the_midst_of_a_step(ranks: list[dict[str, Any]]) -> None:
    assert all(each["asked"] < 1e-6 for each in ranks)


def test_an_evaluation_before_the_join_and_before_a_correction_leaves_no_copies(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert each["evaluated"]["ranks"] == list(range(RANKS))
        assert each["evaluated"]["far"] < 1e-5


def test_state_that_is_cut_unlike_any_parameter_is_left_out(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["unheld"]
    assert all("cut unlike any parameter" in line for line in ranks[0]["unheld"])


def test_what_several_ranks_have_whole_becomes_the_leaders(ranks: list[dict[str, Any]]) -> None:
    assert all(each["levelled"] == [0.0] * len(each["levelled"]) for each in ranks)


def test_the_optimizers_state_is_put_together_in_a_file(ranks: list[dict[str, Any]]) -> None:
    found = ranks[0]["filed"]
    assert found.pop("moments") == 10
    assert found == {"filed": True, "in memory": True, "same": True, "names": True}


def test_an_interrupted_correction_is_not_saved(ranks: list[dict[str, Any]]) -> None:
    assert "ended between two rounds" in ranks[0]["interrupted"]["interrupted"]


def test_a_state_that_lacks_a_tensor_is_refused_in_all_ranks(ranks: list[dict[str, Any]]) -> None:
    assert all("a tensor is missing" in each["interrupted"]["missing"] for each in ranks)


@pytest.mark.parametrize(
    ("blocks", "whole"),
    [
        pytest.param([((0, 0), (2, 4)), ((2, 0), (1, 4)), ((3, 0), (0, 4))], True, id="rows, and an empty part"),
        pytest.param([((0, 0), (3, 2)), ((0, 2), (3, 2))], True, id="columns"),
        pytest.param([((0, 0), (2, 4))], False, id="a row is nobody's"),
        pytest.param([((0, 0), (2, 4)), ((1, 0), (1, 4))], False, id="a row is two parts', and one nobody's"),
        pytest.param(
            [((0, 0), (2, 3)), ((0, 2), (2, 3))], False, id="as many values as there are, and one column twice"
        ),
    ],
)
def test_blocks_are_the_whole_or_not(blocks: list[tuple[tuple[int, ...], tuple[int, ...]]], whole: bool) -> None:
    assert are_whole([TensorBlock(*each) for each in blocks], 12) is whole
