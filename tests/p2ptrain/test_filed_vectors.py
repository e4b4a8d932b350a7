"""Neighbours' estimates in files: the same bits as in memory, no memory of their size, nothing left behind, and nothing
lost where the disk refuses them. The disk refuses by the kernel's own limit on the size of files."""

import ctypes
import errno
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from p2ptrain.saved.filed_vector import FiledVector, LostVectorError
from p2ptrain.saved.nameless_file import NamelessFile
from p2ptrain.sync import SyncConfig, build
from p2ptrain.sync.model_averaging import ModelAveraging
from p2ptrain.sync.vectors import set_values, values_of, whole

D = 70_001
PEERS = ("one", "two", "three")

every_precision = pytest.mark.parametrize("estimates", ["fp32", "bf16"])


def vector(seed: int, numel: int = D) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def node_of(config: SyncConfig, folder: Path | None, refused: list[OSError], numel: int = D) -> ModelAveraging:
    node = build(config, vector(0, numel), "own")
    assert isinstance(node, ModelAveraging)
    if folder is not None:
        node.keep_estimates_in(partial(NamelessFile, folder), refused.append)
    return node


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to make a file larger than this (EFBIG)."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def in_file(node: ModelAveraging, peer: str) -> bool:
    """Whether the estimate lies in a file now."""
    model = node._known.models[peer]
    return isinstance(model, FiledVector) and model._held is None


@pytest.mark.parametrize(
    ("strategy", "estimates", "genesis_in_file"),
    [
        ("tracked_gossip", "fp32", True),
        ("diloco", "bf16", False),
        ("streaming", "bf16", True),
        ("async", "fp32", False),
    ],
)
def test_rounds_are_the_same_to_the_last_bit(
    tmp_path: Path, estimates: str, strategy: str, genesis_in_file: bool
) -> None:
    """Neighbours come, tell their models, are left and come again with a snapshot; and a late joiner adopts."""
    config, refused = SyncConfig(strategy=strategy, estimates=estimates), list[OSError]()
    filed, held = node_of(config, tmp_path, refused), node_of(config, None, refused)
    if genesis_in_file:
        for node in (filed, held):
            node.keep_genesis_in(NamelessFile(tmp_path))
    others = {peer: node_of(config, None, refused) for peer in PEERS}
    for node in (filed, held):
        for peer in PEERS:
            node.track(peer, None)
    theta_d = vector(1)
    for round_ in range(4):
        messages = {peer: other.encode(vector(7 * round_ + number), round=round_)
                    for number, (peer, other) in enumerate(others.items())}  # fmt: skip
        results = []
        for node in (filed, held):
            for peer, message in messages.items():
                if round_ == 2 and peer == "two":
                    node.forget(peer)
                    node.track(peer, others[peer].snapshot())
                else:
                    node.apply(peer, message.codec, message.payload)
            node.encode(theta_d, round=round_)
            results.append(node.aggregate_(theta_d.clone(), dict.fromkeys(PEERS, 0), round=round_))
        one, other = results
        assert torch.equal(one.correction_d, other.correction_d)
        assert torch.equal(one.anchor_d, other.anchor_d)
        assert one.consensus_distance == other.consensus_distance
        theta_d = theta_d + one.correction_d
    assert all(in_file(filed, peer) for peer in PEERS)
    for peer, author in others.items():
        assert filed.estimate(peer) == held.estimate(peer) == author.snapshot()
        view = filed.estimate_view(peer)
        assert isinstance(view, NamelessFile)
        assert view[0 : len(view)] == author.snapshot(), "what others are told of it"
        assert torch.equal(filed.estimate_model(peer), held.estimate_model(peer))  # type: ignore[arg-type]
    assert torch.equal(filed.adopt(dict.fromkeys(PEERS, 0)), held.adopt(dict.fromkeys(PEERS, 0)))
    assert not refused


def test_nothing_is_seen_of_the_files_and_nothing_stays(tmp_path: Path) -> None:
    before = open_files()
    node = node_of(SyncConfig(), tmp_path, [])
    other = node_of(SyncConfig(), None, [])
    message = other.encode(vector(1), round=0)
    for peer in PEERS:
        node.track(peer, None)
        node.apply(peer, message.codec, message.payload)
    assert not list(tmp_path.iterdir()), "no name: another process cannot open one, and a crash leaves none"
    assert open_files() == before + len(PEERS)
    node.forget("one")
    node.track("two", other.snapshot())
    assert open_files() == before + len(PEERS) - 1, "who is forgotten gives room, and who comes again takes it once"
    del node
    assert open_files() == before


@every_precision
def test_a_disk_without_room_means_memory(tmp_path: Path, estimates: str) -> None:
    refused: list[OSError] = []
    config = SyncConfig(estimates=estimates)
    node, other = node_of(config, tmp_path, refused), node_of(config, None, refused)
    node.track("one", None)
    message = other.encode(vector(1), round=0)
    with largest_file(D):  # less than two bytes a parameter
        node.apply("one", message.codec, message.payload)
    assert not in_file(node, "one")
    assert node.estimate("one") == other.snapshot()
    assert [error.strerror for error in refused] == ["File too large"]


@every_precision
def test_a_write_that_the_disk_refuses_loses_nothing(tmp_path: Path, estimates: str) -> None:
    """As on a file system that copies on write: there was room for the file, and now there is none for a change."""
    refused: list[OSError] = []
    config = SyncConfig(estimates=estimates)
    numel = 3 * (1 << 18) + 5  # some chunks of a codec
    node, other = node_of(config, tmp_path, refused, numel), node_of(config, None, refused, numel)
    node.track("one", None)
    for round_, limit in enumerate((1 << 40, numel, 1 << 40)):
        message = other.encode(vector(round_ + 1, numel), round=round_)
        with largest_file(limit):
            node.apply("one", message.codec, message.payload)
        assert node.estimate("one") == other.snapshot()
        assert in_file(node, "one") == (round_ == 0)
    assert len(refused) == 1, "it is told once"


def test_a_refused_payload_changes_no_bit(tmp_path: Path) -> None:
    refused: list[OSError] = []
    config = SyncConfig(compressor="none")
    node, other = node_of(config, tmp_path, refused), node_of(config, None, refused)
    node.track("one", None)
    message = other.encode(vector(1), round=0)
    node.apply("one", message.codec, message.payload)
    worst_d = torch.zeros(D)
    worst_d[-1] = torch.inf
    with pytest.raises(ValueError, match="nonfinite"):
        node.apply("one", "none", worst_d.numpy().tobytes())
    assert node.estimate("one") == other.snapshot()


def test_a_file_that_cannot_be_read_is_no_fault_of_a_peer(tmp_path: Path) -> None:
    file = NamelessFile(tmp_path)
    model = FiledVector(D, torch.float32, file, [].append)
    os.ftruncate(file._descriptor, 4 * D // 2)  # as a disk that lost the rest
    with pytest.raises(LostVectorError, match="cannot be read from the disk"):
        values_of(model, slice(D - 10, D))


def test_room_is_reserved_before_anything_is_written(tmp_path: Path) -> None:
    file = NamelessFile(tmp_path)
    FiledVector(D, torch.float32, file, [].append)
    assert 512 * os.fstat(file._descriptor).st_blocks >= 4 * D
    with largest_file(4 * D - 1), pytest.raises(OSError, match="File too large"):
        FiledVector(D, torch.float32, NamelessFile(tmp_path), [].append)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    model: Any = FiledVector(D, dtype, NamelessFile(tmp_path), [].append)
    held_d = torch.zeros(D, dtype=dtype)
    for at in (slice(0, D), slice(5, 6), slice(D - 3, D), slice(100, 50_000)):
        value = vector(at.stop)[at].numpy()
        set_values(model, at, value.copy())
        set_values(held_d, at, value.copy())
    assert torch.equal(whole(model), held_d)
    assert model.numel() == D
    assert bytes(model.source()[0 : D * dtype.itemsize]) == held_d.view(torch.uint8).numpy().tobytes()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel says what is resident")
@every_precision
def test_an_estimate_in_a_file_takes_no_memory(tmp_path: Path, estimates: str) -> None:
    """Three estimates, updated and averaged: resident memory is lower by all of them, at the peak too."""
    numel, config = 9_000_000, SyncConfig(estimates=estimates)  # beside which buffers of threads are little
    other = node_of(config, None, [], numel)
    message = other.encode(vector(1, numel), round=0)
    peaks = []
    for folder in (None, tmp_path, None):  # at first the libraries' own memory grows
        node = node_of(config, folder, [], numel)
        node.keep_genesis_in(NamelessFile(tmp_path))
        theta_d = vector(2, numel)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        for peer in PEERS:
            node.track(peer, None)
            node.apply(peer, message.codec, message.payload)
        node.aggregate_(theta_d, dict.fromkeys(PEERS, 0), round=0)
        peaks.append(_status("VmHWM") - before)
        del node, theta_d
    _, filed, held = peaks
    estimate = numel * config.estimate_dtype.itemsize
    assert held - filed > 0.8 * len(PEERS) * estimate


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def test_a_file_system_that_reserves_no_room_takes_a_vector_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(number: int) -> Callable[..., None]:
        def refuse(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return refuse

    monkeypatch.setattr(os, "posix_fallocate", unknown(errno.EOPNOTSUPP))
    file = NamelessFile(tmp_path)
    file.reserve(100)
    assert len(file) == 100
    assert file[0:100] == bytes(100)
    monkeypatch.setattr(os, "posix_fallocate", unknown(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        file.reserve(200)
