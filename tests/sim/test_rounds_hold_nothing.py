"""A node holds as much after three times the rounds: counted in bytes of our own allocations, and in containers."""

import gc
import tracemalloc
from pathlib import Path

import pytest
import trio
from census import census
from sim_strangers import until
from sim_swarm import Member, swarm

from node.events.event_types import Event
from node.events.progress import NodeProgress
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed, FeedPosition, LiveSnapshot
from node.training.node import Node
from node.training.round_report import moment, readings

ROOT = Path(__file__).parents[2]
OURS = [tracemalloc.Filter(True, str(ROOT / package / "*")) for package in ("gossip", "node", "p2ptrain")]

WARM = 120
ROUNDS = 60
"""After the first WARM, in which caches fill that have a bound."""

LOW = 8
BOUNDS = (
    "gossip.engine.MAX_SEEN",
    "gossip.updates.hash_chain.RECENT_LINKS",
    "node.page.feed.MAX_LINES",
    "trio._core._run.DEADLINE_HEAP_MIN_PRUNE_THRESHOLD",
)
"""Caches that would go on filling for thousands of rounds."""

SLACK_BYTES = 100 * ROUNDS
"""Of what two nodes hold together after 2 * ROUNDS more: some of it is in use when the count is taken. libp2p's event
(trap 21), which this network has not, was thirty times as much."""


class Watched:
    """All that a real node's process makes of its events, and a page that is open."""

    def __init__(self) -> None:
        self.metrics, self.progress = Metrics(), NodeProgress("watched")
        self.feed = Feed(self.progress)
        self.place = FeedPosition()

    def put_into(self, node: Node) -> None:
        self.metrics.live.watch(lambda: readings(node))
        self.feed.watch(lambda: moment(node, None))
        count = 0

        def emit(event: Event) -> None:
            nonlocal count
            count += 1
            for sink in (self.metrics.observe, self.progress.observe, self.feed.observe):
                sink(event.at(trio.current_time()))
            if count % 10 == 0:
                self.feed.news(self.place)
                self.metrics.exposition()

        node.journal.emit = emit


def held_now() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces(OURS)


def grown(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[tracemalloc.StatisticDiff]:
    """By line, the largest first."""
    return sorted(after.compare_to(before, "lineno"), key=lambda each: -each.size_diff)


@pytest.mark.thorough
async def test_three_times_the_rounds_hold_as_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    for name in BOUNDS:
        monkeypatch.setattr(name, LOW)
    monkeypatch.setattr("node.page.history.MAX_POINTS", LOW)
    monkeypatch.setattr("node.page.feed.Curve.__init__.__defaults__", (LOW,))
    async with swarm(tmp_path) as members:
        train = {"rounds": 10**6, "inner_steps": 1, "batch_size": 1, "eval_every": 10**6}
        watched = [Watched() for _ in range(2)]
        nodes: list[Member] = [
            await members.start(f"n{number}", wait_for=1, step_seconds=0.02, train=train, change=each.put_into)
            for number, each in enumerate(watched)
        ]

        async def rounds(count: int) -> None:
            await until(lambda: min(member.node.state.round for member in nodes) >= count, 10_000.0)

        tracemalloc.start(1)
        try:
            await rounds(WARM + ROUNDS)  # what was there before is not counted, until something else takes its place
            once = held_now()
            counted = [census((member.node, each)) for member, each in zip(nodes, watched, strict=True)]
            await rounds(WARM + 3 * ROUNDS)
            more = grown(once, held_now())
        finally:
            tracemalloc.stop()
        assert sum(each.size_diff for each in more) < SLACK_BYTES, "\n".join(map(str, more[:10]))
        for before, member, each in zip(counted, nodes, watched, strict=True):
            after = census((member.node, each))
            longer = {name: size for name, size in after.items() if size > before.get(name, 0) + LOW}
            assert longer == {}
        assert isinstance(watched[0].feed._moment(), LiveSnapshot)
