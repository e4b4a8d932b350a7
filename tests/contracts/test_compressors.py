"""What every compressor must hold, whatever its insides: base.py's contract, on ordinary and on hostile input."""

import math
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples
from vectors import vector

from p2ptrain import compress
from p2ptrain.compress import Compressor, PayloadError, Stateful

REASONS = {"wrong_shape", "malformed", "nonfinite"}
SIZES = [1, 2, 3, 7, 8, 9, 1023, 1024, 1025, 4095, 4096, 4097, 70_001]
MAGNITUDES = [1e-45, 1e-42, 1e-30, 1e-3, 1.0, 1e30, 3.4e38]
OPTIONS: dict[str, list[dict[str, object]]] = {
    "int4": [{"format": "uniform"}, {"format": "e3m0"}],
    "topk": [{"ratio": 1 / 64, "value_bits": 2}, {"ratio": 0.008, "value_bits": 3}, {"ratio": 1.0, "value_bits": 7}],
}
"""Settings beside a member's own that must hold the same."""

Make = Callable[[], Compressor]
"""A new compressor: one that remembers nothing yet."""
MAKES = [partial(compress.get, name, **each) for name in compress.names() for each in [{}, *OPTIONS.get(name, [])]]

every_compressor = pytest.mark.parametrize(
    "make", MAKES, ids=lambda make: " ".join([*make.args, *(f"{key}={each}" for key, each in make.keywords.items())])
)


def squared(x_d: torch.Tensor) -> float:
    return float((x_d.double() ** 2).sum())


def assert_contracts(codec: Compressor, x_d: torch.Tensor) -> None:
    y_d = codec.decode(codec.encode(x_d), x_d.numel())
    assert y_d.shape == x_d.shape
    assert y_d.dtype == torch.float32
    assert torch.isfinite(y_d).all()
    # Rounding: relative of fp32, and absolute of the smallest fp32 that arithmetic is exact with.
    allowed = squared(x_d) * (1 + 1e-5) + x_d.numel() * 1.2e-38**2
    assert squared(y_d - x_d.double()) <= allowed


@every_compressor
def test_is_a_compressor(make: Make) -> None:
    codec = make()
    assert isinstance(codec, Compressor)
    assert 0 < codec.contraction <= 1
    assert 0 < codec.gamma <= 1


@every_compressor
@pytest.mark.parametrize("numel", SIZES)
def test_contracts_at_every_size(make: Make, numel: int) -> None:
    assert_contracts(make(), vector(numel))


@every_compressor
def test_contraction_is_what_it_claims_on_a_gaussian(make: Make) -> None:
    codec, x_d = make(), vector(200_000)
    claimed = codec.contraction  # before: encoding may change that of the next payload
    error = squared(codec.decode(codec.encode(x_d), x_d.numel()) - x_d)
    assert error <= (1 - claimed) * squared(x_d)


@every_compressor
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_contracts_at_every_magnitude(make: Make, magnitude: float) -> None:
    assert_contracts(make(), vector(5000).clamp(-1, 1) * magnitude)


@every_compressor
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_contracts_on_one_large_value_among_zeros(make: Make, magnitude: float) -> None:
    x_d = torch.zeros(3000)
    x_d[1500] = -magnitude
    assert_contracts(make(), x_d)


@every_compressor
@settings(max_examples=examples(50), deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60))
def test_contracts_on_any_finite_vector(make: Make, values: list[float]) -> None:
    assert_contracts(make(), torch.tensor(values))


@every_compressor
def test_zero_stays_zero(make: Make) -> None:
    codec = make()
    assert not codec.decode(codec.encode(torch.zeros(5001)), 5001).any()


@every_compressor
def test_same_input_same_bytes(make: Make) -> None:
    x_d = vector(10_000)
    assert make().encode(x_d.clone()) == make().encode(x_d)


@every_compressor
def test_the_name_builds_its_like(make: Make) -> None:
    codec = make()
    assert compress.get(codec.name).name == codec.name


@every_compressor
def test_the_name_alone_reads_every_payload(make: Make) -> None:
    """Receivers know the name, and none of the sender's options."""
    codec, x_d = make(), vector(6000)
    payload = codec.encode(x_d)
    assert torch.equal(compress.get(codec.name).decode(payload, 6000), codec.decode(payload, 6000))


@every_compressor
def test_a_memory_can_be_kept_and_forgotten(make: Make) -> None:
    codec, x_d = make(), vector(6000)
    first = codec.encode(x_d)
    if isinstance(codec, Stateful):
        resumed = make()
        assert isinstance(resumed, Stateful)
        resumed.load_state_dict(codec.state_dict())
        assert resumed.encode(x_d) == codec.encode(x_d)
        codec.reset()
    assert codec.encode(x_d) == first


@every_compressor
def test_encode_leaves_its_input_alone(make: Make) -> None:
    x_d = vector(5000)
    before_d = x_d.clone()
    make().encode(x_d)
    assert torch.equal(x_d, before_d)


@pytest.mark.slow
@every_compressor
def test_repeated_differences_converge(make: Make) -> None:
    """Error feedback by tracking: what one payload loses, the next ones bring."""
    codec, x_d, estimate_d = make(), vector(4500), torch.zeros(4500)
    for _ in range(max(40, math.ceil(10 / codec.contraction))):
        estimate_d = estimate_d + codec.decode(codec.encode(x_d - estimate_d), 4500)
    assert squared(x_d - estimate_d) <= 1e-2 * squared(x_d)


@every_compressor
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 4999])
def test_nonfinite_values_travel_and_are_refused(make: Make, bad: float, place: int) -> None:
    codec, x_d = make(), vector(5000)
    x_d[place] = bad
    with pytest.raises(PayloadError) as refused:
        codec.decode(codec.encode(x_d), 5000)
    assert refused.value.reason == "nonfinite"


@every_compressor
@pytest.mark.parametrize("numel", [1, 5, 1024, 5000])
def test_every_other_length_is_refused(make: Make, numel: int) -> None:
    codec = make()
    payload = codec.encode(vector(numel))
    for wrong in (b"", payload[:-1], payload[:1], payload + b"\0", payload + payload):
        with pytest.raises(PayloadError) as refused:
            codec.decode(wrong, numel)
        assert refused.value.reason == "wrong_shape"


@every_compressor
def test_another_models_payload_is_refused(make: Make) -> None:
    codec = make()
    payload = codec.encode(vector(5000))
    for numel in (1, 4000, 6000, 1 << 40):  # the last would need 4 TiB if the length were not looked at first
        with pytest.raises(PayloadError) as refused:
            codec.decode(payload, numel)
        assert refused.value.reason == "wrong_shape"


def assert_decodes_or_refuses(codec: Compressor, payload: bytes, numel: int) -> None:
    reason, y_d = "", torch.empty(0)
    try:
        y_d = codec.decode(payload, numel)
    except PayloadError as refused:
        reason = refused.reason
    assert reason in REASONS or (y_d.shape == (numel,) and torch.isfinite(y_d).all())


@every_compressor
@settings(max_examples=examples(100), deadline=None)
@given(junk=st.binary(max_size=300), numel=st.integers(1, 300))
def test_any_bytes_decode_or_are_refused(make: Make, junk: bytes, numel: int) -> None:
    assert_decodes_or_refuses(make(), junk, numel)


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """What a liar may do to a payload: overwrite, cut out, repeat, insert; often near its beginning, in the headers."""
    edit = st.tuples(st.sampled_from("owcri"), places(), places(), st.binary(min_size=1, max_size=9))
    edits = draw(st.lists(edit, min_size=1, max_size=6))

    def mutate(payload: bytes) -> bytes:
        for kind, first, second, raw in edits:
            at, to = sorted((int(first * len(payload)), int(second * len(payload))))
            match kind:
                case "o" | "w":
                    payload = payload[:at] + raw[: len(payload) - at] + payload[at + len(raw) :]
                case "c":
                    payload = payload[:at] + payload[to:]
                case "r":
                    payload = payload[:to] + payload[at:]
                case "i":
                    payload = payload[:at] + raw + payload[at:]
        return payload

    return mutate


def places() -> st.SearchStrategy[float]:
    """Shares of a payload's length, half of them small."""
    return st.floats(0, 1) | st.floats(0, 0.02)


@pytest.mark.slow
@every_compressor
@settings(max_examples=examples(40), deadline=None)
@given(mutate=mutations(), numel=st.sampled_from([1, 2, 17, 300, 1025, 4096, 5001]))
def test_mutated_payloads_decode_or_are_refused(make: Make, mutate: Callable[[bytes], bytes], numel: int) -> None:
    codec = make()
    assert_decodes_or_refuses(codec, mutate(codec.encode(vector(numel))), numel)


@pytest.mark.slow
@every_compressor
def test_no_bytes_make_decoding_allocate_more_than_the_vector_needs(make: Make) -> None:
    """A few times the vector, and 8 MiB of scratch. Headers are where a payload could ask for more."""
    codec, numel = make(), 200_000
    payload = codec.encode(vector(numel))
    tracemalloc.start()
    try:
        for at in range(24):
            for value in (0, 1, 127, 128, 255):
                assert_decodes_or_refuses(codec, payload[:at] + bytes([value]) + payload[at + 1 :], numel)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 32 * numel + (8 << 20)


@every_compressor
def test_decodes_from_a_memoryview(make: Make) -> None:
    codec = make()
    payload = codec.encode(vector(3000))
    framed = memoryview(b"frame" + payload + b"rest")[5 : 5 + len(payload)]
    assert torch.equal(codec.decode(framed, 3000), codec.decode(payload, 3000))


@every_compressor
@pytest.mark.parametrize("x_d", [torch.zeros(0), torch.zeros(2, 2), torch.zeros(3, dtype=torch.float64)])
def test_what_is_no_flat_fp32_vector_is_our_mistake(make: Make, x_d: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="flat fp32"):
        make().encode(x_d)
