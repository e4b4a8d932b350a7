"""Who was clipped: told by the rule as rows, by the strategy as peers, by the metric as a count."""

import pytest
import torch
from typed_events import said

from node.metrics.node_metrics import Metrics
from node.metrics.peer_metrics import MAX_PEERS
from p2ptrain import aggregate
from p2ptrain.aggregate.base import Clips
from p2ptrain.sync import SyncConfig, build

D = 64


def rows(*distances: float) -> torch.Tensor:
    """Vectors at these distances from zero, in directions of their own."""
    return torch.stack([torch.eye(D)[number] * distance for number, distance in enumerate(distances)])


def clipped_by(name: str, x_nd: torch.Tensor, **options: object) -> list[int]:
    rule = aggregate.get(name, f=1, **options)
    assert isinstance(rule, Clips)
    rule(x_nd)
    return list(rule.clipped)


@pytest.mark.parametrize("name", ["clipped_gossip", "arc+clipped_gossip"])
def test_clipped_gossip_tells_who_is_beyond_the_limit(name):
    x_nd = rows(0.0, 1.0, 9.0, 2.0, 8.0)
    found = clipped_by("clipped_gossip", x_nd, tau=4.0)
    assert found == [2, 4]
    if name != "clipped_gossip":  # a stage in front may have clipped before, and then fewer are left to clip
        assert set(clipped_by(name, x_nd, tau=4.0)) <= {2, 4}


def test_the_lost_are_told_too():
    x_nd = rows(0.0, 1.0, 1.0, 1.0)
    x_nd[3] = torch.inf
    assert 3 in clipped_by("clipped_gossip", x_nd, tau=4.0)


def test_nobody_is_clipped_where_all_are_near():
    assert clipped_by("clipped_gossip", rows(0.0, 1.0, 1.0, 1.0), tau=4.0) == []
    assert clipped_by("centered_clipping", rows(0.1, 0.1, 0.1, 0.1), tau=4.0) == []


def test_centered_clipping_tells_the_farther_ones():
    assert 4 in clipped_by("centered_clipping", rows(1.0, 1.0, 1.0, 1.0, 100.0))
    assert clipped_by("centered_clipping", rows(1.0, 1.0, 1.0, 1.0, 100.0), tau=5.0) == [4]


def test_rows_that_were_mixed_are_nobodys():
    rule = aggregate.get("bucketing+centered_clipping", f=1)
    rule(rows(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0))
    assert list(rule.clipped) == []


def test_the_mean_tells_nothing_of_the_kind():
    assert not isinstance(aggregate.get("trimmed_mean", f=1), Clips)


@pytest.mark.parametrize("aggregator", ["clipped_gossip", "centered_clipping", "trimmed_mean"])
def test_a_strategy_names_the_peer(aggregator):
    """The liar's name sorts before the others': a row taken for its neighbour would name another."""
    near = torch.zeros(D)
    tau = None if aggregator == "trimmed_mean" else 5.0
    strategy = build(SyncConfig(aggregator=aggregator, compressor="none", f=1, tau=tau), near, "own")
    for peer, distance in {"a-liar": 100.0, "b": 1.0, "c": 1.0, "d": 1.0}.items():
        vector = near.clone()
        vector[ord(peer[0]) - ord("a")] = distance
        strategy.track(peer, vector.numpy().tobytes())
    strategy.encode(near, round=0)
    result = strategy.aggregate(near, dict.fromkeys(["a-liar", "b", "c", "d"], 0), round=0)
    assert result.clipped == (() if aggregator == "trimmed_mean" else ("a-liar",))


def counts(metrics: Metrics) -> dict[str, float]:
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {it.labels["peer"]: it.value for it in samples if it.name == "p2ptrain_peer_clipped_total"}


def test_the_metric_counts_rounds_by_peer_and_its_labels_have_an_end():
    metrics = Metrics()
    assert counts(metrics) == {}
    for number in range(3):
        metrics.observe(said("round", round=number, steps=1, clipped=["liar", "b"][: 1 + number % 2]))
    assert counts(metrics) == {"liar": 3.0, "b": 1.0}
    for number in range(MAX_PEERS + 5):
        metrics.observe(said("round", round=9, steps=1, clipped=[f"peer-{number}"]))
    assert len(counts(metrics)) == MAX_PEERS + 1
    assert counts(metrics)["other"] == 7.0
