"""Random-k: one generator for all machines, uniform places, and nothing left out for long."""

import struct

import pytest
import torch
from compress_readers import read_int8, read_randomk, splitmix
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_codecs import read_none
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import PayloadError, Stateful
from p2ptrain.compress.randomk import RandomK
from p2ptrain.compress.splitmix import below, draws, signs


def refusal(name: str, payload: bytes, numel: int) -> str:
    try:
        compress.get(name).decode(payload, numel)
    except PayloadError as refused:
        return refused.reason
    return ""


def test_the_generator_gives_its_published_outputs() -> None:
    """Of seed 1234567, as in Vigna's reference and every port of it."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert draws(1234567, 0, 5).tolist() == published == splitmix(1234567, 5)


@given(seed=st.integers(0, 2**64 - 1), first=st.integers(0, 50), count=st.integers(0, 50))
def test_any_stretch_of_the_stream_is_the_streams(seed: int, first: int, count: int) -> None:
    assert draws(seed, first, count).tolist() == splitmix(seed, first + count)[first:]


@given(seed=st.integers(0, 2**64 - 1), bound=st.integers(1, 2**32 - 1))
def test_bounded_draws_and_signs_come_from_the_high_bits(seed: int, bound: int) -> None:
    z = draws(seed, 0, 20)
    assert below(z, bound).tolist() == [(draw >> 32) * bound >> 32 for draw in splitmix(seed, 20)]
    assert signs(seed, 20).tolist() == [-1.0 if draw >> 63 else 1.0 for draw in splitmix(seed, 20)]


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    numel=st.integers(1, 400),
    every=st.sampled_from([1, 2, 3, 16, 100, 65535]),
    seed=st.integers(0, 2**64 - 1),
    skip=st.integers(0, 5),
)
def test_decoding_agrees_with_the_slow_reader(numel: int, every: int, seed: int, skip: int) -> None:
    x_d = vector(numel)
    for inner, reader in (("none", read_none), ("int8", read_int8)):
        codec = compress.get(f"randomk+{inner}", every=every, seed=seed)
        for _ in range(skip + 1):
            payload = codec.encode(x_d)
        slow_d = torch.tensor(read_randomk(payload, numel, reader), dtype=torch.float64)
        decoded_d = compress.get(f"randomk+{inner}").decode(payload, numel)
        torch.testing.assert_close(decoded_d.double(), slow_d, atol=1e-12, rtol=1e-6)


@pytest.mark.parametrize("numel", [1, 7, 64, 1000, 70_001])
@pytest.mark.parametrize("every", [1, 3, 16, 99])
def test_in_every_turns_each_parameter_travels_once(numel: int, every: int) -> None:
    codec = compress.get("randomk+none", every=every)
    x_d = torch.arange(1.0, numel + 1)
    for _ in range(2):
        times_d = torch.zeros(numel)
        for _ in range(every):
            sent_d = codec.decode(codec.encode(x_d), numel)
            assert torch.equal(sent_d[sent_d != 0], x_d[sent_d != 0])
            times_d += sent_d != 0
        whole = numel - numel % every
        assert (times_d[:whole] == 1).all()
        assert (times_d[whole:] >= 1).all()


@pytest.mark.slow
def test_places_are_uniform_and_change_with_the_seed() -> None:
    firsts = []
    for seed in range(300):
        sent_d = RandomK(compress.get("none"), every=8, seed=seed).encode(torch.arange(1.0, 81))
        firsts.append(compress.get("randomk+none").decode(sent_d, 80).nonzero().reshape(-1) % 8)
    counts = torch.cat(firsts).bincount(minlength=8)
    assert (counts - 375).abs().max() < 5 * 375**0.5


def test_the_mean_error_is_the_share_that_stays() -> None:
    x_d = vector(1600) * torch.linspace(0, 3, 1600)
    codec = compress.get("randomk+none")
    errors = [float((codec.decode(codec.encode(x_d), 1600) - x_d).square().sum()) for _ in range(16)]
    assert sum(errors) / 16 == pytest.approx(15 / 16 * float(x_d.square().sum()), rel=1e-5)


def test_memory_is_one_count() -> None:
    codec, other, x_d = compress.get("randomk"), compress.get("randomk"), vector(5000)
    assert isinstance(codec, Stateful)
    assert isinstance(other, Stateful)
    payloads = [codec.encode(x_d) for _ in range(40)]
    assert len(set(payloads)) == 40
    for _ in range(17):
        other.encode(x_d)
    state = other.state_dict()
    restarted = compress.get("randomk")
    assert isinstance(restarted, Stateful)
    restarted.load_state_dict(state)
    assert restarted.encode(x_d) == payloads[17]
    restarted.reset()
    assert restarted.encode(x_d) == payloads[0]


@pytest.mark.parametrize(
    "state", [{"encodes": torch.tensor(-1)}, {"encodes": torch.tensor(1.0)}, {"turn": torch.tensor(1)}]
)
def test_a_state_of_something_else_is_refused(state: dict[str, torch.Tensor]) -> None:
    codec = compress.get("randomk")
    assert isinstance(codec, Stateful)
    with pytest.raises(ValueError, match=r"count|no state"):
        codec.load_state_dict(state)


@pytest.mark.parametrize(("every", "turn", "reason"), [(0, 0, "malformed"), (5, 5, "malformed"), (5, 4, "")])
def test_headers_are_checked(every: int, turn: int, reason: str) -> None:
    payload = struct.pack("<HHQ", every, turn, 1) + compress.get("none").encode(vector(20))
    assert refusal("randomk+none", payload, 100) == reason


@pytest.mark.parametrize("options", [{"every": 0}, {"every": 1 << 16}, {"seed": -1}, {"seed": 1 << 64}])
def test_options_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        compress.get("randomk", **options)
