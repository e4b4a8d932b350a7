"""Data parallel with compressed gradients: error feedback, one gradient for all, and where it does not run."""

import numpy as np
import pytest
import torch

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.sync import GradientStrategy, SyncConfig, averages_gradients, build, build_gradient

D = 3000
GENESIS = torch.zeros(D)
NAMES = ("a", "b", "c", "d")


def make(own: str, **options: object) -> GradientStrategy:
    return build_gradient(SyncConfig(strategy="gradient", **options), GENESIS, own)  # type: ignore[arg-type]


def gradient(step: int, own: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + ord(own))
    common_d = torch.randn(D, generator=torch.Generator().manual_seed(1))
    return common_d + torch.randn(D, generator=generator)


def one_step(nodes: dict[str, GradientStrategy], step: int) -> dict[str, torch.Tensor]:
    messages = {own: node.encode(gradient(step, own), step=step) for own, node in nodes.items()}
    for own, node in nodes.items():
        for peer in set(nodes) - {own}:
            node.apply(peer, *messages[peer])
    return {own: node.aggregate(set(nodes) - {own}, step=step) for own, node in nodes.items()}


@pytest.mark.parametrize("codec", ["none", "q2", "sign1", "topk", "powersgd", "warmup+sign1"])
def test_all_members_take_the_same_step(codec: str) -> None:
    nodes = {own: make(own, compressor=codec) for own in NAMES}
    assert all(isinstance(node, GradientStrategy) for node in nodes.values())
    for step in range(5):
        averaged = one_step(nodes, step)
        assert all(torch.equal(averaged[own], averaged["a"]) for own in NAMES)


def test_exact_payloads_are_synchronous_data_parallel() -> None:
    nodes = {own: make(own, compressor="none") for own in NAMES}
    for step in range(3):
        mean_d = torch.stack([gradient(step, own).double() for own in NAMES]).mean(0)
        np.testing.assert_allclose(one_step(nodes, step)["a"].double(), mean_d, rtol=0, atol=1e-5)


@pytest.mark.parametrize("codec", ["q2", "sign1", "topk"])
def test_what_is_lost_is_told_later(codec: str) -> None:
    """Error feedback by its definition, in float64: what was told adds up to the gradients but for the last error."""
    nodes = {own: make(own, compressor=codec) for own in NAMES}
    told = np.zeros(D)
    for step in range(30):
        told += one_step(nodes, step)["a"].double().numpy()
    given = np.array([[gradient(step, own).double().numpy() for step in range(30)] for own in NAMES])
    wanted = given.sum(axis=1).mean(axis=0)
    errors = [node.state_dict()["residual"].double().numpy() for node in nodes.values()]  # type: ignore[attr-defined]
    np.testing.assert_allclose(told + np.mean(errors, axis=0), wanted, rtol=0, atol=1e-3)
    assert np.linalg.norm(wanted - told) < 0.2 * np.linalg.norm(wanted)


def test_a_gradient_that_is_no_number_is_told_as_none() -> None:
    node, other = make("a"), make("b")
    message = node.encode(torch.full((D,), torch.nan), step=0)
    other.encode(gradient(0, "b"), step=0)
    other.apply("a", *message)
    assert torch.isfinite(other.aggregate(["a"], step=0)).all()


def test_a_refused_message_is_not_counted() -> None:
    node, liar_payload = make("a", compressor="none"), compress.get("none").encode(torch.full((D,), torch.nan))
    node.encode(gradient(0, "a"), step=0)
    for codec, payload in [("none", liar_payload), ("none", b""), ("nosuch", b"\0" * 4 * D)]:
        with pytest.raises(PayloadError):
            node.apply("b", codec, payload)
    with pytest.raises(PayloadError, match="our own name"):
        node.apply("a", "none", compress.get("none").encode(GENESIS))
    torch.testing.assert_close(node.aggregate(["b"], step=0), gradient(0, "a"))


def test_a_robust_rule_refuses_too_few_and_holds_a_liar() -> None:
    nodes = {own: make(own, compressor="none", aggregator="trimmed_mean", f=1) for own in NAMES}
    for own, node in nodes.items():
        node.encode(gradient(0, own), step=0)
        node.apply("liar", "none", compress.get("none").encode(torch.full((D,), 1e6)))
        with pytest.raises(ValueError, match="trimmed_mean"):
            node.aggregate(["liar"], step=0)
    averaged = one_step(nodes, 1)["a"]
    assert averaged.abs().max() < 10


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ValueError, match="own gradient comes first"):
        make("a").aggregate([], step=0)
    with pytest.raises(ValueError, match="shape"):
        make("a").encode(torch.zeros(D + 1), step=0)


def test_state_goes_on() -> None:
    through, before = make("a", compressor="topk"), make("a", compressor="topk")
    for step in range(3):
        for node in (through, before):
            node.encode(gradient(step, "a"), step=step)
            node.aggregate([], step=step)
    after = make("a", compressor="topk")
    after.load_state_dict(before.state_dict())  # type: ignore[attr-defined]
    assert after.encode(gradient(3, "a"), step=3) == through.encode(gradient(3, "a"), step=3)
    with pytest.raises(ValueError, match="another model"):
        after.load_state_dict({"residual": torch.zeros(D + 1)})  # type: ignore[attr-defined]


def test_a_node_refuses_it_and_says_what_to_do() -> None:
    assert averages_gradients("gradient")
    assert not averages_gradients("tracked_gossip")
    with pytest.raises(ValueError, match=r"use tracked_gossip with train.inner_steps = 1") as refused:
        build(SyncConfig(strategy="gradient"), GENESIS, "a")
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="averages models"):
        build_gradient(SyncConfig(), GENESIS, "a")
