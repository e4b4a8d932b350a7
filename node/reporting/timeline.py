"""What happened when, as a picture that can be played: who took whose updates, rounds, comings and goings."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from node.reporting.document import Timeline
from node.reporting.gathered import Gathered, span_of
from node.reporting.node_story import Moments, NodeStory
from node.reporting.partitions import splits
from node.reporting.thinning import PICTURED
from node.system import text


def timeline_of(gathered: Gathered, numbers: Mapping[str, int]) -> Timeline:
    """Return the exchanges, rounds and moments of all logs, as one picture. `numbers`: nodes by peer id."""
    stories = [story for story in gathered.stories if story.counts.events][:PICTURED]
    start, _ = span_of(stories)
    places = {story.number: place for place, story in enumerate(stories)}
    members: list[tuple[str, str, bool]] = [(story.name, str(story.run), True) for story in stories]
    others: dict[str, int] = {}
    left_out = 0
    frames = []
    for end, frame in gathered.frames.ordered():
        edges = []
        for (peer, reader), count in frame.exchanges.items():
            if reader not in places:
                continue
            author = places.get(numbers[peer]) if peer in numbers else others.get(peer)
            if author is None and peer not in numbers and len(members) < PICTURED:
                author = others[peer] = len(members)
                members.append((text.peer(peer), str(gathered.stories[reader].run), False))
            if author is None:
                left_out += count
            elif author != places[reader]:
                edges.append((author, places[reader], count))
        rounds = [(places[node], *told) for node, told in frame.rounds.items() if node in places]
        frames.append((round(max(0.0, end - start), 3), edges, rounds))
    if frames and (over := round(span_of(stories)[1] - start, 3)) > frames[-1][0]:
        frames.append((over, [], []))  # how it ended
    moments = gathered.moments
    _tell_rounds(gathered, moments)
    names = {story.number: story.name for story in gathered.stories}
    listed = [
        (
            round(max(0.0, ts - start), 3),
            places.get(node, -1),
            kind,
            words if node in places or kind == "partition" else f"{names[node]} {words}",
        )
        for ts, node, kind, words in moments.listed()
    ]
    said = []
    if (hidden := len(gathered.stories) - len(stories)) > 0:
        said.append(f"{text.plural(hidden, 'more node')} not drawn.")
    if len(members) > len(stories):
        said.append(f"{text.plural(len(members) - len(stories), 'member')} without a log here, as others see them.")
    if left_out:
        said.append(f"{left_out} exchanges of members that are not drawn.")
    ends = [
        (
            None if story.first_ts is None else round(story.first_ts - start, 3),
            None if story.last_ts is None else round(story.last_ts - start, 3),
            story.progress.state,
        )
        for story in stories
    ]
    return Timeline(
        members=members,
        frames=frames,
        moments=listed,
        counts=moments.counts(),
        ends=[*ends, *((None, None, "no log") for _ in others)],
        note=" ".join(said),
    )


def _tell_rounds(gathered: Gathered, moments: Moments) -> None:
    """Add when the foremost node closed each round, as far as the frames tell rounds apart."""
    most: dict[Path, int] = {}
    for end, frame in gathered.frames.ordered():
        for node, (closed, _) in frame.rounds.items():
            run = gathered.stories[node].run
            if closed > most.get(run, 0):
                most[run] = closed
                moments.add(end - gathered.frames.width_s / 2, node, "round", f"closed round {closed}, the foremost")


def tell_splits(stories: Sequence[NodeStory], numbers: Mapping[str, int], moments: Moments) -> None:
    """Add when a run fell into parts without a path to each other, and when it was one again."""
    names = {story.number: story.name for story in stories}
    for split in splits(stories, numbers):
        *small, large = sorted(split.parts, key=len)
        parts = [" and ".join(names.get(each, str(each)) for each in part) for part in small]
        count = text.plural(len(split.parts), "part")
        words = f"{count} without a path to each other: {', '.join(parts)}; {len(large)} others"
        moments.add(split.start, small[0][0], "partition", words)
        if split.end is not None:
            moments.add(split.end, small[0][0], "partition", f"one swarm again, after {split.end - split.start:.1f} s")
