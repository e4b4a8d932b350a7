"""Models and differences for visitors: exact bytes, and a mean that no crowd of liars moves beyond its bound."""

import hashlib
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain import compress, jit
from p2ptrain.aggregate import coordinate
from p2ptrain.compress import PayloadError
from p2ptrain.compress.blocks import CHUNK_NUMEL
from p2ptrain.visits.model_versions import (
    CODEC,
    VERSIONS_KEPT,
    ModelVersions,
    apply_difference,
    difference_between,
    version_of,
)
from p2ptrain.visits.visitor_mean import (
    DIFFERENCES,
    VisitorDifference,
    agreeing,
    checked_difference,
    staleness_weight,
    visitors_mean,
)

NUMEL = 2500
"""Two whole blocks, and one that is not."""

vectors = st.integers(0, 1 << 30).flatmap(
    lambda seed: st.sampled_from((1, 1023, 1024, NUMEL)).map(
        lambda numel: torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    )
)


def noise(seed: int, numel: int = NUMEL) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def left(x_d: torch.Tensor) -> VisitorDifference:
    return checked_difference(DIFFERENCES.encode(x_d), x_d.numel())


def mean_of(
    rows: list[torch.Tensor], *, own_norm: float = 1.0, share: float = 0.5, trim: float = 0.2, stale: int = 0
) -> torch.Tensor:
    found = [left(row) for row in rows]
    return visitors_mean(found, [stale] * len(found), numel=rows[0].numel(), own_norm=own_norm, share=share, trim=trim)


@given(vectors, st.floats(-30, 30))
@settings(max_examples=examples(60), deadline=None)
def test_a_model_is_an_int8_payload_with_powers_of_two_as_scales(x_d: torch.Tensor, exponent: float) -> None:
    x_d = x_d * 2.0**exponent
    payload = version_of(x_d, 3).payload
    read_d = compress.get("int8").decode(payload, x_d.numel())
    for start in range(0, x_d.numel(), CODEC.block):
        part, read = x_d[start : start + CODEC.block], read_d[start : start + CODEC.block]
        assert (part - read).abs().max() <= part.abs().max() / 127
    scales = np.frombuffer(payload[: 4 * -(-x_d.numel() // CODEC.block)], "<f4")
    assert (np.frexp(scales)[0] == 0.5).all()


def test_a_block_of_zeros_and_one_of_denormals_are_zeros() -> None:
    x_d = torch.zeros(2048)
    x_d[1024:] = 1e-42
    assert CODEC.decode(version_of(x_d, 0).payload, 2048).count_nonzero() == 0


@given(vectors, st.floats(0, 3), st.integers(0, 1 << 30))
@settings(max_examples=examples(60), deadline=None)
def test_a_difference_leads_to_the_newer_versions_very_bytes(x_d: torch.Tensor, moved: float, seed: int) -> None:
    older, newer = version_of(x_d, 0), version_of(x_d + moved * noise(seed, x_d.numel()), 1)
    difference = difference_between(newer.payload, older.payload, x_d.numel())
    assert apply_difference(older.payload, difference, x_d.numel()) == newer.payload


def test_the_difference_of_two_rounds_is_shorter_than_the_model() -> None:
    x_d = noise(1) * 0.1
    older, newer = version_of(x_d, 0), version_of(x_d + 0.001 * noise(2), 1)
    assert len(difference_between(newer.payload, older.payload, NUMEL)) < len(newer.payload) / 3


@given(st.binary(max_size=200))
@settings(max_examples=examples(200), deadline=None)
def test_bytes_that_are_no_difference_are_refused(junk: bytes) -> None:
    older = version_of(noise(1), 0).payload
    with pytest.raises(ValueError, match="difference"):
        apply_difference(older, junk, NUMEL)


@pytest.mark.parametrize("size", [0, 100, 1 << 24])
def test_a_difference_of_another_size_is_refused_and_never_unpacked_whole(size: int) -> None:
    older = version_of(noise(1), 0).payload
    with pytest.raises(ValueError, match="difference"):
        apply_difference(older, zlib.compress(bytes(size)), NUMEL)


def test_the_oldest_versions_go_and_each_knows_how_many_are_newer() -> None:
    versions = ModelVersions(NUMEL)
    assert versions.newest is None
    made = [version_of(noise(round_), round_) for round_ in range(VERSIONS_KEPT + 2)]
    for each in made:
        versions.publish(each)
    assert versions.newest is made[-1]
    assert [versions.is_kept(each.digest) for each in made] == [False, False, *[True] * VERSIONS_KEPT]
    assert [versions.staleness(each) for each in made[2:]] == list(range(VERSIONS_KEPT))[::-1]
    assert made[0].digest == hashlib.sha256(made[0].payload).digest()


def test_a_difference_is_kept_until_there_is_a_newer_version() -> None:
    versions = ModelVersions(NUMEL)
    first, second, third = (version_of(noise(round_), round_) for round_ in range(3))
    versions.publish(first)
    versions.publish(second)
    versions.keep_difference(first, second, b"to the second")
    assert versions.known_difference(first) == b"to the second"
    versions.publish(third)
    assert versions.known_difference(first) is None
    versions.keep_difference(first, second, b"came late")
    assert versions.known_difference(first) is None


def test_of_honest_visitors_it_is_the_mean() -> None:
    common = noise(0) * 0.01
    rows = [common + 0.001 * noise(seed) for seed in range(1, 9)]
    got = mean_of(rows, own_norm=10.0, share=1.0, trim=0.0)
    clip = min(sorted(float(row.norm()) for row in rows)[3:4])
    clipped = torch.stack([row * min(1.0, clip / float(row.norm())) for row in rows])
    assert torch.allclose(got, clipped.mean(0), atol=2e-4)


def test_no_loop_is_compiled_for_a_number_of_visitors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next round has another number."""

    def compiles(program: object) -> None:
        raise AssertionError("it compiles")

    monkeypatch.setattr(coordinate, "MeanOfMiddle", compiles)
    visitors, numel = 40, jit.WORTH // 32
    rows = [noise(seed, numel) for seed in range(2)]
    found = [left(rows[each % 2]) for each in range(visitors)]
    got = visitors_mean(found, [0] * visitors, numel=numel, own_norm=1e6, share=1.0, trim=0.2)
    assert torch.allclose(got, (rows[0] + rows[1]) / 2, atol=0.03)  # of int8, and one may be clipped a little


def test_a_stale_difference_counts_less() -> None:
    row = noise(1) * 0.001
    fresh, stale = mean_of([row], own_norm=10.0, stale=0), mean_of([row], own_norm=10.0, stale=3)
    assert torch.allclose(stale, fresh / 2)
    assert staleness_weight(0) == 1.0


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.floats(-20, 30)), min_size=1, max_size=12),
    st.floats(0.01, 1.0),
    st.floats(0.0, 0.49),
    st.floats(1e-6, 1e6),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_a_crowd_leaves_it_moves_the_host_by_its_share_at_most(
    crowd: list[tuple[int, float]], share: float, trim: float, own_norm: float
) -> None:
    rows = [noise(seed, 1100) * 2.0**exponent for seed, exponent in crowd]
    mean_d = mean_of(rows, own_norm=own_norm, share=share, trim=trim)
    assert torch.isfinite(mean_d).all()
    assert float(mean_d.norm()) <= share * own_norm * (1 + 1e-5)


def test_liars_that_are_fewer_than_is_trimmed_do_not_turn_the_mean_around() -> None:
    common = noise(0) * 0.01
    honest = [common + 0.002 * noise(seed) for seed in range(1, 9)]
    got = mean_of([*honest, -10 * common, -10 * common], own_norm=1.0, share=1.0, trim=0.2)
    assert torch.cosine_similarity(got, common, dim=0) > 0.9


def test_a_difference_without_length_moves_nothing() -> None:
    assert mean_of([torch.zeros(NUMEL)] * 3).count_nonzero() == 0


@pytest.mark.parametrize(
    ("hurt", "reason"),
    [
        (lambda raw: struct.pack("<f", float("nan")) + raw[4:], "nonfinite"),
        (lambda raw: struct.pack("<f", float("inf")) + raw[4:], "nonfinite"),
        (lambda raw: struct.pack("<f", 3e38) + raw[4:], "nonfinite"),
        (lambda raw: struct.pack("<f", -1.0) + raw[4:], "malformed"),
        (lambda raw: raw[:-1], "wrong_shape"),
        (lambda raw: raw + b"\0", "wrong_shape"),
    ],
)
def test_a_payload_that_is_no_finite_vector_is_refused(hurt, reason: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError) as refused:
        checked_difference(hurt(DIFFERENCES.encode(noise(1))), NUMEL)
    assert refused.value.reason == reason


@given(vectors, st.integers(0, 1 << 30))
@settings(max_examples=examples(40), deadline=None)
def test_what_agrees_has_no_negative_inner_product_with_own_steps(own_d: torch.Tensor, seed: int) -> None:
    rows = [noise(seed + nth, own_d.numel()) for nth in range(4)]
    found = [left(row) for row in rows]
    decoded = [DIFFERENCES.decode(each.payload, own_d.numel()).double() for each in found]
    assert agreeing(found, own_d) == [bool(row_d @ own_d.double() >= 0) for row_d in decoded]


def test_a_part_that_fp32_cannot_add_up_does_not_hide_that_the_rest_goes_against_own_steps() -> None:
    own_d = torch.full((3 * CHUNK_NUMEL,), 1e-3)
    lie_d = torch.full_like(own_d, -1.25e36)
    lie_d[:CHUNK_NUMEL] = 1.4e36
    assert agreeing([left(lie_d), left(-lie_d)], own_d) == [False, True]
