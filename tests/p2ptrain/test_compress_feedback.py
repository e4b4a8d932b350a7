"""Error feedback: what was sent adds up to what was given, but for a residual that stays bounded."""

import pytest
import torch
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import ErrorFeedback

D = 3000


def sent(codec: ErrorFeedback, x_d: torch.Tensor) -> torch.Tensor:
    return codec.decode(codec.encode(x_d), x_d.numel())


@pytest.mark.parametrize("name", ["int8", "q2", "sign1", "topk", "powersgd", "rotated+sign1", "lossless+topk"])
def test_what_was_sent_and_what_is_owed_add_up(name: str) -> None:
    codec, given_d, sent_d = ErrorFeedback(compress.get(name)), torch.zeros(D).double(), torch.zeros(D).double()
    for seed in range(30):
        given_d += vector(D, seed=seed)
        sent_d += sent(codec, vector(D, seed=seed))
    assert codec.residual_d is not None
    torch.testing.assert_close(sent_d + codec.residual_d, given_d, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["q2", "sign1", "topk"])
def test_the_residual_stays_within_its_bound(name: str) -> None:
    codec, largest = ErrorFeedback(compress.get(name)), 0.0
    delta = codec.contraction
    for seed in range(60):
        x_d = vector(D, seed=seed) + 0.3 * vector(D, seed=999)
        largest = max(largest, float(x_d.square().sum()))
        codec.encode(x_d)
        assert codec.residual_d is not None
        assert float(codec.residual_d.square().sum()) <= 4 * (1 - delta) / delta**2 * largest


def test_signs_alone_lose_what_feedback_brings() -> None:
    """Values below the block's mean size never get their size through as signs; with feedback their mean arrives."""
    x_d = vector(D)
    plain, codec = compress.get("sign1"), ErrorFeedback(compress.get("sign1"))
    mean_d = sum((sent(codec, x_d) for _ in range(100)), torch.zeros(D)) / 100
    assert (mean_d - x_d).norm() < 0.1 * x_d.norm()
    assert (plain.decode(plain.encode(x_d), D) - x_d).norm() > 0.5 * x_d.norm()


def test_payloads_are_the_codecs_own() -> None:
    x_d, codec = vector(D), ErrorFeedback(compress.get("q2"))
    assert (codec.name, codec.contraction, codec.gamma) == ("q2", 0.88, 1.0)
    assert codec.encode(x_d) == compress.get("q2").encode(x_d)


def test_a_vector_that_is_not_finite_is_encoded_and_leaves_no_trace() -> None:
    codec, x_d = ErrorFeedback(compress.get("q2")), vector(D)
    codec.encode(x_d)
    before_d = codec.residual_d
    assert before_d is not None
    payload = codec.encode(torch.full((D,), torch.nan))
    with pytest.raises(compress.PayloadError, match="nonfinite"):
        codec.decode(payload, D)
    assert codec.residual_d is before_d


def test_memory_is_the_residual_and_the_codecs_own() -> None:
    codec = ErrorFeedback(compress.get("randomk"))
    for seed in range(3):
        codec.encode(vector(D, seed=seed))
    state = codec.state_dict()
    assert state.keys() == {"residual", "inner.encodes"}
    expected = codec.encode(vector(D, seed=3))
    restarted = ErrorFeedback(compress.get("randomk"))
    restarted.load_state_dict(state)
    assert restarted.encode(vector(D, seed=3)) == expected
    restarted.reset()
    assert restarted.state_dict().keys() == {"inner.encodes"}
    fresh = ErrorFeedback(compress.get("randomk"))
    assert restarted.encode(vector(D)) == fresh.encode(vector(D))


@pytest.mark.parametrize(
    "state",
    [
        {"residual": torch.zeros(2, 2)},
        {"residual": torch.full((3,), torch.inf)},
        {"momentum": torch.zeros(3)},
        {"residual": torch.zeros(3), "inner.encodes": torch.tensor(1)},  # q2 remembers nothing
    ],
)
def test_a_state_of_something_else_is_refused(state: dict[str, torch.Tensor]) -> None:
    codec = ErrorFeedback(compress.get("q2"))
    with pytest.raises(ValueError, match=r"residual|state"):
        codec.load_state_dict(state)
    assert codec.residual_d is None


def test_another_length_is_our_mistake() -> None:
    codec = ErrorFeedback(compress.get("q2"))
    codec.encode(vector(D))
    with pytest.raises(ValueError, match="shape"):
        codec.encode(vector(10))
