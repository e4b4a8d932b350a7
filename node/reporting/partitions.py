"""When a swarm fell into parts that exchanged nothing: read off the links that its nodes said came and went.

A link is up while either end says so. Parts are counted among nodes whose logs are there, that have had a link, and
that have neither ended nor done all their rounds: who arrives or leaves in order parts nobody.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from node.reporting.node_story import NodeStory

LEAST_S: Final = 1.0
"""Shortest split that counts: links of one partition are lost and found within a second of each other. Chosen."""


_Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Split:
    """A swarm of several parts. `end` is None where it never healed."""

    start: float
    end: float | None
    parts: _Parts


def splits(stories: Sequence[NodeStory], numbers: Mapping[str, int]) -> list[Split]:
    """Return the splits of one run, in order of time. `numbers`: nodes by peer id.

    A split begins with a lost link: parts that have not met yet are none.
    """
    ends = {story.number: end for story in stories if (end := _end_of(story)) is not None}
    up: set[tuple[int, int]] = set()
    alive: set[int] = set()
    found: list[Split] = []
    since, parts = 0.0, _Parts()
    for ts, node, peer, comes in _changes(stories, numbers, ends):
        if peer is None:
            alive.discard(node)
        elif comes:
            up.add((node, peer))
            alive |= {each for each in (node, peer) if ts < ends.get(each, ts)}
        else:
            up.discard((node, peer))
        if comes and not parts:
            continue
        now = _parts(alive, up)
        if len(now) > 1:
            since = since if parts else ts
            parts = max(parts, now, key=len)
        elif parts:
            found.append(Split(since, ts if now else None, parts))
            parts = _Parts()
    if parts:
        found.append(Split(since, None, parts))
    last = max(ends.values(), default=0.0)
    return [split for split in found if (last if split.end is None else split.end) - split.start >= LEAST_S]


def _changes(
    stories: Sequence[NodeStory], numbers: Mapping[str, int], ends: Mapping[int, float]
) -> Iterator[tuple[float, int, int | None, bool]]:
    """Yield time, node, peer and whether the link came, in order; no peer: the node has ended."""
    logs: list[list[tuple[float, int, int | None, bool]]] = [[(end, node, None, False)] for node, end in ends.items()]
    for story in stories:
        links = ((link.ts, story.number, numbers[link.peer], link.up) for link in story.links if link.peer in numbers)
        logs.append(sorted(links, key=lambda each: each[0]))
    yield from heapq.merge(*logs, key=lambda each: each[0])


def _end_of(story: NodeStory) -> float | None:
    """Return when it had done all, ended, or was last heard of."""
    it = story.progress
    return it.last_round_at if it.rounds and it.rounds_done >= it.rounds else it.ended_at or story.last_ts


def _parts(alive: set[int], up: set[tuple[int, int]]) -> _Parts:
    near: dict[int, set[int]] = {node: set() for node in alive}
    for one, other in up:
        if one in near and other in near:
            near[one].add(other)
            near[other].add(one)
    parts, left = [], set(alive)
    while left:
        part, todo = set(), [min(left)]
        while todo:
            node = todo.pop()
            if node not in part:
                part.add(node)
                todo += near[node] - part
        parts.append(tuple(sorted(part)))
        left -= part
    return tuple(parts)
