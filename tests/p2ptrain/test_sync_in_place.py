"""Rounds are closed in place, a slice at a time, and come to what whole vectors come to, to the last bit."""

from typing import Any

import pytest
import torch
from whole_vectors import WholeOuter, WholeRound

from p2ptrain import aggregate
from p2ptrain.outer import OUTER
from p2ptrain.sync import SyncConfig, build, mixing
from p2ptrain.sync.model_averaging import ModelAveraging

D = 9 * 4096 + 77
PEERS = ("a", "b", "c", "d")
"""Enough for krum with one liar, own model included."""

VARIANTS: dict[str, dict[str, Any]] = {
    "tracked_gossip": {},
    "bf16 estimates": {"estimates": "bf16"},
    "diloco": {"strategy": "diloco"},
    "diloco with krum": {"strategy": "diloco", "aggregator": "krum"},
    "diloco with a stage": {"strategy": "diloco", "aggregator": "nnm+trimmed_mean"},
    "noloco's step": {"outer": "noloco"},
    "async": {"strategy": "async", "every": 2},
    "streaming": {"strategy": "streaming"},
    "streaming in bf16": {"strategy": "streaming", "estimates": "bf16", "fragments": 3},
    "one fragment": {"strategy": "streaming", "fragments": 1},
    "one fragment, averaged": {"strategy": "streaming", "fragments": 1, "outer": "average"},
    "fragments, averaged": {"strategy": "streaming", "fragments": 2, "outer": "average", "mixing": 0.0},
    "sparse_loco": {"strategy": "sparse_loco", "gamma": None},
}


def outers_of(config: SyncConfig, count: int) -> list[WholeOuter]:
    built = OUTER.get(config.outer, **config.outer_options())
    alpha, beta = getattr(built, "alpha", 0.0), getattr(built, "beta", 1.0)
    return [WholeOuter(config.outer, config.outer_options(), alpha, beta) for _ in range(count)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_round_in_place_is_the_round_of_whole_vectors(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "SEGMENT_NUMEL", 4096 + 64)
    config = SyncConfig(**VARIANTS[variant])
    generator = torch.Generator().manual_seed(5)

    def moved(x_d: torch.Tensor) -> torch.Tensor:
        return x_d + 0.02 * torch.randn(D, generator=generator)

    genesis_d = torch.randn(D, generator=generator)
    node, *others = (build(config, genesis_d.clone(), own) for own in ("own", *PEERS))
    assert isinstance(node, ModelAveraging)
    outers = outers_of(config, len(node.encoder.schedule.parts))
    for peer in PEERS:
        node.track(peer, None)
    theta_d = genesis_d
    for round_ in range(7):
        for peer, other in zip(PEERS, others, strict=True):
            node.apply(peer, *other.encode(moved(genesis_d), round=round_))
        theta_d = moved(theta_d)
        node.encode(theta_d, round=round_)
        staleness = {} if round_ == 3 else {peer: number % 2 for number, peer in enumerate(PEERS)}
        weights = {peer: float((1 + late) ** -config.staleness_exponent) for peer, late in staleness.items()}
        whole = WholeRound(node, theta_d, weights, round_)
        rule = aggregate.get(config.aggregator, f=config.f, **config.rule_options()) if staleness else None
        index = round_ % len(outers)
        correction_d, anchor_d, snapshot_d = whole.close(
            rule, outers[index], clips=config.strategy == "sparse_loco", mixing=config.options.get("mixing", 0.0)
        )
        given_d = theta_d.clone()
        result = node.aggregate_(given_d, staleness, round=round_)
        assert torch.equal(result.correction_d, correction_d)
        assert torch.equal(result.anchor_d, anchor_d)
        assert result.snapshot_d is not None
        assert torch.equal(result.snapshot_d, snapshot_d)
        theta_d = theta_d + correction_d


class _Plain:
    """A plug-in's outer optimizer that knows whole vectors alone."""

    name = "plain"

    def step(self, phi_d: torch.Tensor, target_d: torch.Tensor) -> torch.Tensor:
        return phi_d + 0.5 * (target_d - phi_d)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        assert not state


@pytest.mark.parametrize("strategy", ["tracked_gossip", "streaming"])
def test_an_outer_optimizer_that_knows_whole_vectors_alone_is_one_too(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixing, "SEGMENT_NUMEL", 4096 + 64)
    theta_d = torch.randn(D, generator=torch.Generator().manual_seed(1))
    node = build(SyncConfig(strategy=strategy), torch.zeros(D))
    assert isinstance(node, ModelAveraging)
    node._outers = [_Plain() for _ in node._outers]
    result = node.aggregate_(theta_d.clone(), {}, round=0)
    part = node.encoder.schedule.part(0)
    assert torch.equal(part.of(result.anchor_d), 0.5 * part.of(theta_d))


def test_what_raises_in_the_midst_leaves_an_anchor_of_old_and_new_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "SEGMENT_NUMEL", 4096)
    theta_d = torch.ones(D)
    node = build(SyncConfig(strategy="diloco", alpha=0.0, beta=1.0), torch.zeros(D))
    assert isinstance(node, ModelAveraging)
    read, calls = type(node.encoder.schedule.part(0)).read, []

    def failing(part: Any, x_d: Any, at: slice) -> torch.Tensor:
        calls.append(at)
        if len(calls) > 9:
            raise MemoryError
        return read(part, x_d, at)

    monkeypatch.setattr(type(node.encoder.schedule.part(0)), "read", failing)
    with pytest.raises(MemoryError):
        node.aggregate_(theta_d.clone(), {}, round=0)
    assert set(node.anchor_d.tolist()) == {0.0, 1.0}
