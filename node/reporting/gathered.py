"""What was read of nodes' logs for one report, and what several parts of the report ask of it."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.page.members import points_for
from node.reporting.node_story import Moments, NodeStory
from node.reporting.thinning import Frames
from node.system import text

MAX_METRIC: Final = 40
"""Most characters of a metric's name, which stands at axes."""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """Everything that was read."""

    stories: Sequence[NodeStory]
    frames: Frames
    moments: Moments
    notes: Sequence[str]


def gather(logs: Sequence[tuple[Path, Path]], notes: Iterable[str] = ()) -> Gathered:
    """Read the logs, one after the other. RunError where one cannot be read."""
    frames, moments = Frames(), Moments()
    names = _names([log for log, _ in logs])
    points = points_for(len(logs))
    stories = [NodeStory(number, names[log], run, points) for number, (log, run) in enumerate(logs)]
    for story, (log, _) in zip(stories, logs, strict=True):
        story.read(log, frames, moments)
    said = [*notes, *(note for story in stories for note in _notes(story)), *_twice(stories)]
    if frames.left_out:
        said.append(f"{text.plural(frames.left_out, 'exchange')} left out of the picture: it holds no more")
    return Gathered(stories=stories, frames=frames, moments=moments, notes=said)


def _names(logs: Sequence[Path]) -> dict[Path, str]:
    """Return each log's folder, with folders above it where several have the same name."""
    depth: dict[Path, int] = dict.fromkeys(logs, 1)
    while True:
        names = {log: "/".join(log.absolute().parent.parts[-depth[log] :]) for log in logs}
        seen: dict[str, list[Path]] = {}
        for log, name in names.items():
            seen.setdefault(name, []).append(log)
        twice = [log for each in seen.values() if len(each) > 1 for log in each]
        deeper = [log for log in twice if depth[log] < len(log.absolute().parent.parts)]
        if not deeper:
            return {log: f"{name}/{log.name}" if log in twice else name for log, name in names.items()}
        for log in deeper:
            depth[log] += 1


def _notes(story: NodeStory) -> list[str]:
    said = story.counts.notes(story.name)
    if not story.counts.events:
        said.append(f"{story.name}: there is no event in it")
    if story.uncounted_bytes:
        said.append(f"{story.name} is of a release that did not count all bytes sent")
    if story.links_left_out:
        said.append(f"{story.name}: {story.links_left_out} comings and goings of neighbours were not looked through")
    return said


def _twice(stories: Sequence[NodeStory]) -> list[str]:
    known: dict[str, str] = {}
    said = []
    for story in stories:
        peer = story.progress.peer_id
        if peer and peer in known:
            said.append(f"{known[peer]} and {story.name} are logs of the same node: it counts twice")
        known.setdefault(peer, story.name)
    return said


def span_of(stories: Sequence[NodeStory]) -> tuple[float, float]:
    """Return when the first of their events was and when the last; 0 where there are none."""
    first = [story.first_ts for story in stories if story.first_ts is not None]
    last = [story.last_ts for story in stories if story.last_ts is not None]
    return (min(first), max(last)) if first and last else (0.0, 0.0)


def metric_of(stories: Iterable[NodeStory]) -> str:
    """Return the unit of their losses."""
    return next((story.progress.metric for story in stories if story.progress.metric), "")[:MAX_METRIC]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
