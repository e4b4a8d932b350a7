"""Ranks that ask each other whether they are there: who is told what, where even the question does not come back."""

import threading
from typing import Any

import pytest

from node.roles import site
from node.roles.site import GUARDED, RankWatch


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "BEAT_S", 0.01)


def test_a_barrier_that_never_comes_back_is_a_lost_rank_told_once(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    back, told, heard = threading.Event(), [], threading.Event()

    def barrier(*_: Any, **__: Any) -> None:
        back.wait(30)
        raise RuntimeError("timed out")

    def lost(why: str) -> None:
        told.append(why)
        heard.set()

    monkeypatch.setattr(site.dist, "monitored_barrier", barrier)
    RankWatch(None, 0.05).start(lost)  # type: ignore[arg-type]
    assert heard.wait(30)
    assert told == [f"a rank of this site has not answered for site.timeout_s ({GUARDED} times)"]
    back.set()
    for thread in threading.enumerate():
        if thread.name == "ranks":
            thread.join(30)
    assert len(told) == 1, "the barrier's own end says nothing more"


def test_while_ranks_answer_nobody_is_lost(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    enough = threading.Semaphore(0)
    monkeypatch.setattr(site.dist, "monitored_barrier", lambda *_, **__: enough.release())
    watch = RankWatch(None, 0.05)  # type: ignore[arg-type]
    watch.start(told.append)
    for _ in range(40):
        assert enough.acquire(timeout=30)
    watch.ended = True
    assert not told
