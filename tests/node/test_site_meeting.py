"""The ranks of a site meet, or end: torchrun sees those that end, and none that hangs."""

import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.distributed_c10d import PrefixStore

from node.config.schema import from_raw
from node.roles.site import SiteStart, _grouped, _welcome
from node.system.errors import RunError
from node.system.ranks import SiteProcess


def start_of(timeout_s: float) -> SiteStart:
    config = from_raw({"task": {"name": "digits"}, "train": {"device": "cpu"}, "site": {"timeout_s": timeout_s}})
    return SiteStart(config=config, peer_id="peer", meeting="meeting")


def test_a_rank_that_does_not_come_ends_the_meeting_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = HashStore(), 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now < 1 and not store.check(["meeting/here/1"]):
            store.set("meeting/here/1", "")

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", pause)
    with pytest.raises(RunError, match="rank 2 of this site has not come within 30 s") as refused:
        _welcome(store, start_of(10), 3)
    assert "site.timeout_s" in refused.value.hint
    assert 30 < now < 31


def test_ranks_that_come_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    store.set("meeting/here/1", "")
    _welcome(store, start_of(10), 2)
    assert not store.check(["welcome/any"])


def stops_after_the_first_group(folder: Path) -> None:
    """A rank that is stopped there, and killed at the end of the test."""
    store = FileStore(str(folder / "store"), 2)
    dist.init_process_group(
        "gloo", store=PrefixStore("meeting", store), rank=1, world_size=2, timeout=timedelta(seconds=200)
    )
    os.kill(os.getpid(), signal.SIGSTOP)


def leads(folder: Path) -> None:
    store = FileStore(str(folder / "store"), 2)
    _grouped(store, start_of(1), SiteProcess(rank=0, count=2, local_rank=0))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_rank_that_stops_while_the_groups_are_made_ends_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """They would wait for it for ever: nobody watches yet."""
    spawned = multiprocessing.get_context("spawn")
    ranks = [spawned.Process(target=each, args=(tmp_path,)) for each in (leads, stops_after_the_first_group)]
    for rank in ranks:
        rank.start()
    try:
        ranks[0].join(120)
        assert ranks[0].exitcode == 1
        assert "rank 0 of this site ends: a rank of this site has not answered" in capfd.readouterr().err
        assert ranks[1].exitcode is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
