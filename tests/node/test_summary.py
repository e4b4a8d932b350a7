import json

import pytest

from node.events.summary import (
    NodeSummary,
    SwarmSummary,
    SwarmTotals,
    last_evaluation,
    mean,
    read_node_summary,
    to_json,
    write_atomic,
)
from node.system.errors import UsageError

KEYS = [
    "peer_id", "rounds", "steps", "tokens", "wall_s", "compute_s", "utilization",
    "train_loss_first", "train_loss_last", "eval_loss_first", "eval_loss_last", "consensus_distance",
    "payload_bytes_sent", "payload_bytes_received", "dense_bytes_equivalent", "compression_ratio",
    "updates_accepted", "updates_rejected", "neighbours", "aggregator", "compressor", "resumed_from",
    "updates_in_time", "eval_round", "own",
    "bytes_sent", "bytes_received", "parameters", "sent_bits", "published_bits",
]  # fmt: skip
SWARM_KEYS = [
    "eval_loss_first", "eval_loss_last", "eval_loss_mean_model", "consensus_distance", "honest", "byzantine", "wall_s",
    "updates_in_time", "own", "bytes_sent", "sent_bits", "published_bits", "all_reduce_bits",
]  # fmt: skip


def summary(**changes: object) -> NodeSummary:
    fields = dict.fromkeys(KEYS, 0) | {"updates_rejected": {"forged": 1}, "resumed_from": None} | changes
    return NodeSummary(**fields)


def test_the_keys_are_the_contract():
    totals = SwarmTotals(**dict.fromkeys(SWARM_KEYS, 0))
    whole = to_json(SwarmSummary(nodes=(summary(),), swarm=totals))
    assert list(to_json(summary())) == KEYS
    assert set(whole) == {"nodes", "swarm"}
    assert list(whole["swarm"]) == SWARM_KEYS
    assert list(whole["nodes"][0]) == KEYS


def test_it_is_written_and_read_back(tmp_path):
    path = tmp_path / "summary.json"
    write_atomic(summary(rounds=7), path)
    assert json.loads(path.read_text())["rounds"] == 7
    assert read_node_summary(path) == summary(rounds=7)
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


def test_what_an_older_release_wrote_is_read_and_has_no_share(tmp_path):
    path = tmp_path / "summary.json"
    later = ("updates_in_time", "bytes_sent", "bytes_received", "parameters", "sent_bits", "published_bits")
    path.write_text(json.dumps({key: value for key, value in to_json(summary()).items() if key not in later}))
    assert read_node_summary(path) == summary(**dict.fromkeys(later))


def test_the_last_losses_are_those_of_the_same_round():
    level = [summary(eval_loss_last=0.1, eval_round=40), summary(eval_loss_last=0.2, eval_round=40)]
    stale = summary(eval_loss_last=0.9, eval_round=10)
    assert last_evaluation([*level, stale]) == pytest.approx(0.15)
    assert last_evaluation([summary(eval_loss_last=0.5, eval_round=None)] * 2) == 0.5  # of an older release


def test_there_may_be_none(tmp_path):
    assert read_node_summary(tmp_path / "summary.json") is None


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff"])
def test_what_is_none_is_named(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"summary\.json"):
        read_node_summary(path)


@pytest.mark.parametrize(("values", "expected"), [([1.0, None, 3.0], 2.0), ([None], None), ([], None)])
def test_the_mean_is_of_those_that_are_there(values, expected):
    assert mean(values) == expected
