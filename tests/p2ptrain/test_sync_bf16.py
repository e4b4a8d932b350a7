"""Estimates in bf16: authors and followers round alike, and what rounding loses goes into the next update."""

import itertools
from pathlib import Path

import pytest
import torch

from p2ptrain import compress
from p2ptrain.compress import PayloadError
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync import SYNC_STRATEGIES, SyncConfig, SyncStrategy, averages_gradients, build
from p2ptrain.sync.base import InPlace
from p2ptrain.sync.vectors import check_bytes, from_bytes, rounded, set_values, to_bytes, values_of

D = 70_001
"""More than a chunk of a fragment, and no multiple of a block."""

TRACKING = [
    name
    for name in SYNC_STRATEGIES.names()
    if not averages_gradients(name) and SYNC_STRATEGIES.get(name).averager == "gossip"
]


def vector(seed: int) -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


def pair(name: str, **options: object) -> tuple[SyncStrategy, SyncStrategy]:
    config = SyncConfig(strategy=name, estimates="bf16", **options)
    one, other = build(config, vector(0), "one"), build(config, vector(0), "other")
    one.track("other", None)
    other.track("one", None)
    return one, other


def test_rounding_is_to_the_nearest_and_to_even() -> None:
    ties = torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -1.0 - 2.0**-8, 2.0**-133 * 3, 0.0, -0.0])
    x_d = torch.cat([vector(1) * 10.0**scale for scale in (-38, -5, 0, 7)] + [ties])
    held_d = torch.empty(x_d.numel(), dtype=torch.bfloat16)
    set_values(held_d, slice(0, x_d.numel()), x_d.numpy().copy())
    assert torch.equal(held_d.view(torch.int16), x_d.to(torch.bfloat16).view(torch.int16))
    assert torch.equal(torch.from_numpy(values_of(held_d, slice(0, x_d.numel()))), held_d.float())


@pytest.mark.parametrize("name", TRACKING)
def test_a_follower_holds_the_author_s_bits_after_every_message(name: str) -> None:
    one, other = pair(name)
    theta_d = vector(0)
    for round_ in range(3):
        theta_d = theta_d + 0.1 * vector(round_ + 1)
        message = one.encode(theta_d, round=round_)
        other.apply("one", message.codec, message.payload)
        assert other.estimate("one") == one.snapshot(), round_
    assert len(one.snapshot()) == 2 * D, "half the bytes"
    late = build(SyncConfig(strategy=name, estimates="bf16"), vector(0), "late")
    late.track("one", one.snapshot())
    assert late.estimate("one") == one.snapshot()


def test_what_rounding_loses_is_sent_again() -> None:
    one, _ = pair("tracked_gossip", compressor="none")
    theta_d = vector(0) + 3e-3 * vector(1)
    for round_ in range(2):
        one.encode(theta_d, round=round_)
    held_d = from_bytes(one.snapshot(), D, torch.bfloat16)
    assert torch.equal(held_d, theta_d.to(torch.bfloat16)), "an exact codec brings the estimate to the nearest bf16"
    drifting = theta_d.clone()
    for round_ in range(2, 12):  # far below a step of bf16 each, and above it together
        drifting += 4e-4 * theta_d
        one.encode(drifting, round=round_)
    held_d = from_bytes(one.snapshot(), D, torch.bfloat16)
    assert torch.equal(held_d, drifting.to(torch.bfloat16))
    assert not torch.equal(held_d, theta_d.to(torch.bfloat16))


def test_a_refused_message_changes_no_bit() -> None:
    one, other = pair("tracked_gossip", compressor="none")
    theta_d = vector(0)
    theta_d[-1] = 2.0**39
    message = one.encode(theta_d, round=0)
    other.apply("one", message.codec, message.payload)
    before = other.estimate("one")
    with pytest.raises(PayloadError, match="nonfinite"):  # all but the last value are good
        other.apply("one", message.codec, torch.cat([vector(3)[:-1], torch.tensor([2.0**40])]).numpy().tobytes())
    for bad in (to_bytes(vector(0)), b"\xff" * 2 * D):
        with pytest.raises(PayloadError):
            other.track("one", bad)
    assert other.estimate("one") == before


@pytest.mark.parametrize(("name", "estimates"), list(itertools.product(TRACKING, ("fp32", "bf16"))))
def test_in_place_is_the_same_to_the_last_bit(name: str, estimates: str) -> None:
    results = []
    for in_place in (False, True):
        config = SyncConfig(strategy=name, estimates=estimates)
        nodes = [build(config, vector(0), f"peer{index}") for index in range(3)]
        said = [node.encode(vector(0) + 0.1 * vector(5 + index), round=0) for index, node in enumerate(nodes)]
        node, theta_d = nodes[0], vector(0) + 0.1 * vector(5)
        for index in (1, 2):
            node.track(f"peer{index}", None)
            node.apply(f"peer{index}", said[index].codec, said[index].payload)
        for round_ in range(2):
            assert isinstance(node, InPlace)
            close = node.aggregate_ if in_place else node.aggregate
            result = close(theta_d.clone(), {"peer1": 0, "peer2": 1}, round=round_)
            results.append((result.correction_d.clone(), result.anchor_d.clone(), result.consensus_distance))
    for plain, own in zip(results[:2], results[2:], strict=True):
        assert torch.equal(plain[0], own[0])
        assert torch.equal(plain[1], own[1])
        assert plain[2] == own[2]


def test_plain_aggregation_leaves_what_it_was_given() -> None:
    one, other = pair("tracked_gossip")
    theta_d = vector(0) + vector(1)
    message = other.encode(vector(0) + vector(2), round=0)
    one.apply("other", message.codec, message.payload)
    first = one.aggregate(theta_d, {"other": 0}, round=0)
    assert torch.equal(theta_d, vector(0) + vector(1))
    kept_d = first.anchor_d.clone()
    one.aggregate(theta_d + vector(3), {"other": 0}, round=1)
    assert torch.equal(first.anchor_d, kept_d)


def test_members_that_hold_estimates_otherwise_are_in_another_run() -> None:
    fp32, bf16 = SyncConfig(), SyncConfig(estimates="bf16")
    assert fp32.run_key() == ""
    assert bf16.run_key() == "estimates bf16"
    assert SyncConfig(strategy="moshpit", estimates="bf16").run_key().endswith("estimates bf16")
    with pytest.raises(ValueError, match="estimates must be fp32 or bf16"):
        SyncConfig(estimates="fp16")
    with pytest.raises(PayloadError, match="wrong_shape"):
        check_bytes(to_bytes(vector(0)), D, torch.bfloat16)


def test_a_newcomer_s_start_comes_from_a_file_as_from_memory(tmp_path: object) -> None:
    from pathlib import Path

    from p2ptrain.saved.nameless_file import NamelessFile

    assert isinstance(tmp_path, Path)
    for estimates in ("fp32", "bf16"):
        node = build(SyncConfig(estimates=estimates), vector(0), "own")
        assert isinstance(node, InPlace)
        node.track("before", None)
        node.keep_genesis_in(NamelessFile(tmp_path))
        node.track("after", None)
        assert node.estimate("after") == node.estimate("before")
        assert node.estimate("after") == to_bytes(rounded(vector(0), SyncConfig(estimates=estimates).estimate_dtype))
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_neighbours_at_the_initial_model_part_also_when_it_went_to_a_file(tmp_path: Path) -> None:
    one = build(SyncConfig(), vector(0), "one")
    assert isinstance(one, InPlace)
    one.track("other", None)
    one.track("third", None)
    one.keep_genesis_in(NamelessFile(tmp_path))
    one.apply("other", "none", compress.get("none").encode(vector(1)))
    assert one.estimate("third") == to_bytes(vector(0))
    assert one.estimate("other") == to_bytes(vector(0) + vector(1))
