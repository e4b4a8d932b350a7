"""Ranks of a model that hold slices of the strategy's vectors: one process's bits, and a share of its memory each."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sliced_ranks import CONFIG, PEERS, ROUNDS, digest, model_of, step
from vectors import vector

from p2ptrain.sync import build
from p2ptrain.training.parameter_vector import ParameterVector

HERE = Path(__file__).parent
SLACK_BYTES = 40 << 20
"""What allocators, messages and chunks take beside vectors of 33 MB, and gloo."""

pytestmark = pytest.mark.thorough  # beside test_sliced_averaging.py, where threads stand for ranks


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process comes to, and the folder of its neighbours' messages."""
    out = tmp_path_factory.mktemp("messages")
    model = model_of()
    whole = ParameterVector(model)
    genesis_d = whole.vector()
    found: dict[str, Any] = {"out": out, "genesis": digest(genesis_d), "payloads": [], "rounds": []}
    node: Any = build(CONFIG, genesis_d, "own")
    others = {peer: build(CONFIG, genesis_d, peer) for peer in PEERS}
    for peer in PEERS:
        node.track(peer, None)
    for round_ in range(ROUNDS):
        step(model, round_)
        theta_d = whole.vector()
        found["payloads"].append(hashlib.blake2b(node.encode(theta_d, round=round_).payload).hexdigest())
        for seed, (peer, other) in enumerate(others.items(), 10 * round_):
            message = other.encode(genesis_d + 0.01 * vector(whole.numel, seed=seed), round=round_)
            (out / f"{peer}-{round_}").write_bytes(message.payload)
            node.apply(peer, *message)
        result = node.aggregate_(theta_d, dict.fromkeys(PEERS, 0), round=round_)
        whole.add_(result.correction_d)
        found["rounds"].append([digest(result.anchor_d), result.consensus_distance, result.members])
    return found | {"vector": digest(whole.vector()), "snapshot": digest(node.public_d)}


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, expected: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank of `sliced_ranks.py` has found."""
    cut, count = request.param
    out = expected["out"]
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "sliced_ranks.py"]
    done = subprocess.run(
        [sys.executable, *words, str(out), cut],
        cwd=HERE,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
            "MALLOC_MMAP_THRESHOLD_": str(1 << 20),  # what is freed is given back, and not counted
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(count)]


in_cuts = pytest.mark.parametrize(
    "ranks",
    [("fsdp", 2), ("tp", 2), ("fsdp", 4), ("tp", 4)],
    ids=str,
    indirect=True,
)


@in_cuts
def test_ranks_come_to_what_one_process_does(ranks: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    leader = ranks[0]
    assert leader["genesis"] == expected["genesis"]
    assert leader["payloads"] == expected["payloads"], "to the bit"
    for (anchor, distance, members), (expected_anchor, expected_distance, count) in zip(
        leader["rounds"], expected["rounds"], strict=True
    ):
        assert anchor == expected_anchor
        assert distance == pytest.approx(expected_distance, rel=1e-5)
        assert members == count == len(PEERS) + 1
    assert leader["vector"] == leader["whole"] == expected["vector"]
    assert leader["snapshot"] == expected["snapshot"]
    assert leader["loaded"] == expected["rounds"][-1][0], "the anchor"


@in_cuts
def test_a_rank_holds_its_share_of_each_vector_and_little_more(ranks: list[dict[str, Any]]) -> None:
    share = 4 * ranks[0]["numel"] / len(ranks)
    vectors = 1 + 1 + 1 + len(PEERS)  # the anchor, own estimate, genesis, the neighbours'
    block_bytes = 4 << 16
    for rank in ranks:
        assert vectors * share - vectors * block_bytes <= rank["held"] <= vectors * (share + block_bytes)
        # Beside these the model after a round's steps, as much of what is on its way to it, and of a sum.
        assert rank["grown"] <= (vectors + 3) * share + SLACK_BYTES
    assert max(rank["grown"] for rank in ranks) < vectors * 4 * ranks[0]["numel"], "one process would need more"


@in_cuts
def test_slices_that_are_gone_or_fail_are_told(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["ended"] == "the vectors of this model are no longer whole: the swarm was left"
    assert ranks[0]["lost"].startswith("rank 1 of this model has failed with its slice: ")
