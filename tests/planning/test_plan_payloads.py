"""Bytes of a round: what the codecs and strategies themselves make."""

import pytest
import torch

from node.bench.swarm.simulated_allreduce import SimulatedMember, exchange
from node.config.schema import from_raw
from node.planning.payload_sizes import encoded_bits, ring_copies, round_traffic, shared_out_s
from p2ptrain.sync import build

MIB = 1 << 20


def config(strategy: str, degree: int, **sync: object):
    return from_raw({"sync": {"strategy": strategy, **sync}, "network": {"degree": degree}})


@pytest.mark.parametrize("compressor", ["none", "fp16", "int8", "q2", "sign1", "topk"])
def test_a_published_payload_is_as_long_as_what_the_strategy_encodes(compressor):
    numel, chosen = 40_000, config("tracked_gossip", 3, compressor=compressor)
    found = round_traffic(chosen, numel, nodes=4)
    theta_d = torch.randn(numel, generator=torch.Generator().manual_seed(3))
    strategy = build(chosen.sync, torch.zeros(numel))
    assert found.payload_bytes == len(strategy.encode(theta_d, round=0).payload)
    assert found.copies == 3
    assert found.sent_bytes == found.most_sent_bytes == 3 * found.payload_bytes


@pytest.mark.parametrize("strategy", ["allreduce", "moshpit"])
def test_an_exchange_sends_what_simulated_members_send(strategy):
    numel, names = 600_000, [f"{number:06d}" for number in range(4)]
    chosen = config(strategy, 3)
    found = round_traffic(chosen, numel, nodes=4)
    nodes = {name: SimulatedMember(build(chosen.sync, torch.zeros(numel), name), set(names) - {name}) for name in names}
    done = exchange(nodes, {name: torch.full((numel,), 1e-3) for name in names}, 0)
    assert found.payload_bytes == pytest.approx(len(done.packed[names[0]]), rel=0.02)
    assert found.sent_bytes == pytest.approx(sum(done.sent.values()) / 4, rel=0.02)
    assert found.most_sent_bytes == pytest.approx(max(done.sent.values()), rel=0.02)


def test_the_smallest_models_are_one_part_whose_owner_sends_it_to_all():
    found = round_traffic(config("allreduce", 7), 30_000, nodes=8)
    assert found.copies == ring_copies(8) == 1.75
    assert found.most_sent_bytes == pytest.approx(7 * found.payload_bytes, rel=1e-3)
    small = round_traffic(config("allreduce", 7), 2_000_000, nodes=8)
    assert small.most_sent_bytes < 2.1 * small.payload_bytes
    large = round_traffic(config("allreduce", 7), 1_000_000_000, nodes=8)
    assert large.most_sent_bytes == pytest.approx(1.75 * large.payload_bytes, rel=0.03)


def test_fragments_and_exact_rounds_are_averaged_and_their_peak_is_told():
    whole = round_traffic(config("diloco", 2, compressor="int4", format="e3m0"), 200_000, nodes=3)
    fragment = round_traffic(config("streaming", 2), 200_000, nodes=3)
    assert fragment.payload_bytes == pytest.approx(whole.payload_bytes / 4, rel=0.03)
    exact = round_traffic(config("gossip_pga", 2), 200_000, nodes=3)
    assert exact.peak_bytes == pytest.approx(4 * 200_000, rel=0.01)
    assert exact.payload_bytes == pytest.approx((7 * 4.125 + 32) / 8 / 8 * 200_000, rel=0.01)


def test_a_payload_that_grows_by_its_root_is_not_extrapolated_in_proportion():
    small = round_traffic(config("tracked_gossip", 1, compressor="powersgd"), 1 << 18, nodes=2)
    large = round_traffic(config("tracked_gossip", 1, compressor="powersgd"), 1 << 26, nodes=2)
    assert large.payload_bytes == pytest.approx(16 * small.payload_bytes, rel=0.3)
    q2 = [round_traffic(config("tracked_gossip", 1), numel, nodes=2).payload_bytes for numel in (1 << 18, 1 << 26)]
    assert q2[1] == 256 * q2[0]


def test_what_no_plan_can_know_is_refused_in_one_line():
    with pytest.raises(ValueError, match="adaptive sends what the link carries"):
        round_traffic(config("tracked_gossip", 2, compressor="adaptive"), 1000, nodes=3)
    with pytest.raises(ValueError, match="layers are sent as far as each link carries them"):
        round_traffic(config("tracked_gossip", 2, compressor="topk", layers=("q2",)), 1000, nodes=3)
    with pytest.raises(ValueError, match="averages at every step"):
        round_traffic(config("gradient", 2), 1000, nodes=3)


def test_a_node_alone_sends_nothing():
    assert round_traffic(config("tracked_gossip", 8), 1000, nodes=1).sent_bytes == 0


def test_bits_are_the_codecs_own():
    assert encoded_bits("q2") == pytest.approx(2.03, abs=0.01)
    assert encoded_bits("topk", ratio=1 / 64, value_bits=2) == pytest.approx(0.23, abs=0.01)


def test_a_slow_author_is_helped_as_decision_23_measured():
    """58 s for 14 MiB over 256 KiB/s to seven with 5 MiB/s each, where alone it took 400."""
    helped = shared_out_s(14 * MIB, 7, 256 * 1024, 5 * MIB)
    assert 56 <= helped <= 58
    assert shared_out_s(14 * MIB, 7, 5 * MIB, 1) == pytest.approx(7 * 14 / 5), "helpers that have nothing do not harm"
