"""Data that are too much to keep: read in their own order by `datasets`, in streaming, a segment of rows at a time.

Which rows a step trains on follows from its number alone. Steps k P to (k + 1) P - 1 train on segment k: the rows from
k S on, S of them. A segment's tokens are a store in the cache like any other, and lie there until newer ones take
their place. Nothing is shuffled while reading, for what a shuffle buffer holds no state of the library has: the rows of
a segment are drawn in an order of the seed, and the segments come in the order of the data. After the last
whole segment the first one follows.

A node that goes on at segment k finds its tokens in the cache, or the state of the reader as it was at its beginning;
where neither is left, the rows before are read again. All three give the same rows.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from p2ptrain.tasks.base import Shard, TaskError
from p2ptrain.tasks.byte_lm.corpus import cache_folder
from p2ptrain.tasks.hf.base_model import one_line
from p2ptrain.tasks.hf.dealing import Numbers, Part
from p2ptrain.tasks.hf.extras import require
from p2ptrain.tasks.hf.hub import hub_name
from p2ptrain.tasks.hf.sources import Example, example_of, files_of
from p2ptrain.tasks.hf.text_encoder import TextEncoder
from p2ptrain.tasks.hf.token_rows import RowConfig, TokenRows, TokenSplit
from p2ptrain.tasks.hf.token_store import TokenStore, cached_store, drop_oldest

ROWS: Final = 16_384
"""Of a segment: of web pages some 16M tokens, 80 MB in the cache, which keeps eight."""

STEPS: Final = 1000
"""On a segment: with 16 rows of 1024 tokens a batch 16M tokens, so about once through it."""

KEPT_STREAMS: Final = 4
"""Folders in the cache, the least recently used dropped first: the segments of one and the same data each."""

SEGMENTS: Final = "segments"
"""The file with their number."""

COMMIT_CHARS: Final = 40


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """What to read. TaskError for a dataset of the hub without a commit: a branch may be another one tomorrow."""

    data: str
    """A file or folder that `datasets` can read, or user/name@commit of the hub."""
    split: str = "train"
    subset: str | None = None
    """Of datasets that have several (`datasets` calls it name, or config)."""
    column: str | None = None
    """With the text, or the messages; None: `text` or `messages`."""

    def __post_init__(self) -> None:
        name = hub_name(self.data)
        if name is not None and (name.revision is None or len(name.revision) != COMMIT_CHARS):
            hint = f"name a commit (on its page under History), so that all steps read the same: {name.repo}@COMMIT"
            raise TaskError(f"{self.data} is no folder here; of the hub, {hint}")

    @property
    def key(self) -> str:
        """What changes with the rows: the commit, or the files' names, sizes and times."""
        files = [] if hub_name(self.data) is not None else files_of(self.data)
        said = [[str(each.path.absolute()), each.size, each.changed_ns] for each in files]
        return json.dumps([self.data, self.split, self.subset, self.column, said])

    def open(self) -> Any:
        """Return the `IterableDataset`. TaskError where it cannot be read."""
        library, name = require("datasets"), hub_name(self.data)
        logging.getLogger("datasets").setLevel(logging.ERROR)
        path = str(Path(self.data).expanduser().absolute()) if name is None else name.repo
        options = {} if name is None else {"revision": name.revision}
        if name is None and Path(path).is_file():
            options, path = {"data_files": path}, _builder_of(Path(path))
        with self.told():
            return library.load_dataset(path, name=self.subset, split=self.split, streaming=True, **options)

    def told(self) -> Any:
        """Make one line of what the library raises."""
        name = hub_name(self.data)
        hint = (
            ""
            if name is None
            else f" (where there is a network: hf download {name.repo} --repo-type dataset --revision {name.revision} "
            "--local-dir FOLDER; then give that folder)"
        )
        return one_line(f"the data {self.data} cannot be read by datasets{hint}")


def stream_source(
    data: str | Path | None,
    *,
    stream: int | None,
    stream_steps: int | None,
    split: str | None,
    subset: str | None,
    column: str | None,
) -> StreamSource | None:
    """Return what is to be streamed; None where data are read whole. TaskError for options of the one with the
    other."""
    name = None if data is None else hub_name(str(data))
    if stream is None and (name is None or name.revision is None):
        if stream_steps is not None or split is not None or subset is not None or column is not None:
            raise TaskError("stream_steps, split, subset and column are for streamed data: give stream=ROWS as well")
        return None
    if data is None:
        raise TaskError("stream is for data of your own: give them with --data")
    return StreamSource(data=str(data), split=split or "train", subset=subset, column=column)


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """How much of a stream is held, and for how long. TaskError for numbers that cannot be."""

    rows: int = ROWS
    steps: int = STEPS

    def __post_init__(self) -> None:
        if self.rows < 1 or self.steps < 1:
            raise TaskError("stream and stream_steps must be 1 or more")


class SegmentReader:
    """Reads segments of a stream, each a list of rows. `folder` keeps the states at their beginnings."""

    def __init__(self, source: StreamSource, rows: int, folder: Path) -> None:
        self._source, self._rows, self._folder = source, rows, folder
        self._dataset: Any = None
        self._iterator: Iterator[Mapping[str, Any]] = iter(())
        self._next = -1
        """The segment that begins where the iterator stands."""

    def read(self, segment: int) -> list[Example] | None:
        """Return the examples of a segment; None where the data end before it does. The first one may be shorter.
        TaskError where they cannot be read."""
        with self._source.told():
            if segment != self._next:
                self._seek(segment)
            rows = list(islice(self._iterator, self._rows))
            self._next = segment + 1
            if not rows or (segment and len(rows) < self._rows):
                return None
            self._keep_state()
        place, column = f"the data {self._source.data}", self._source.column
        found = (example_of(row, f"{place}, row {segment * self._rows + n}", column) for n, row in enumerate(rows, 1))
        return [each for each in found if each is not None]

    def known_count(self) -> int | None:
        """Return how many whole segments the data have; None where nobody has come to their end yet."""
        try:
            return max(1, int((self._folder / SEGMENTS).read_text("ascii")))
        except (OSError, ValueError):
            return None

    def count(self) -> int:
        """Return how many whole segments the data have, at least 1, by reading all of them. The number is kept."""
        with self._source.told():
            count = max(1, sum(1 for _ in self._source.open()) // self._rows)
            _write(self._folder / SEGMENTS, str(count))
        return count

    def _seek(self, segment: int) -> None:
        self._dataset = self._source.open()
        state = self._state(segment)
        if state is not None:
            self._dataset.load_state_dict(state)
        self._iterator = iter(self._dataset)
        if state is None:
            for _ in islice(self._iterator, segment * self._rows):
                pass

    def _state(self, segment: int) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self._folder / f"state-{segment}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return state

    def _keep_state(self) -> None:
        _write(self._folder / f"state-{self._next}.json", json.dumps(self._dataset.state_dict()))


class StreamedSplit:
    """The rows of a stream's examples, dealt: what `TokenSplit` is for data that are kept. TaskError where the first
    segment has too few."""

    def __init__(self, source: StreamSource, stream: StreamConfig, encoder: TextEncoder, config: RowConfig) -> None:
        digest = hashlib.blake2b(
            source.key.encode(errors="replace") + b"\0" + str(stream.rows).encode(), digest_size=12
        )
        digest.update(encoder.digest + encoder.rules_digest)
        self._folder = cache_folder() / f"stream-{digest.hexdigest()}"
        self._stream, self._encoder, self._config = stream, encoder, config
        self._reader = SegmentReader(source, stream.rows, self._folder)
        first = self._segment(0)
        if first is None:
            raise TaskError(f"the data {source.data} have no row in {source.split}")
        self.store: TokenStore = first
        """Of the first segment, which is held out from for all."""
        self._first = TokenSplit(first, config)
        self.held_out = self._first.held_out
        self._newest = (0, self._first)
        self._count = self._reader.known_count()
        drop_oldest(self._folder.parent, "stream-*", KEPT_STREAMS)

    def rows(self, shard: Shard, part: Part = Part.TRAIN) -> TokenRows:
        """Return the shard's rows of the first segment, to train on or held out for it. TaskError where it has none to
        train on."""
        return self._first.rows(shard, part)

    def draw(self, step: int, *, seed: int, shard: Shard, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of one batch, from the segment of its step: each of the shard's once, in an order of the
        seed, and where there are more steps than rows, then again in another."""
        segment, at = divmod(step, self._stream.steps)
        split, times = self._split(segment)
        return split.draw(at, seed=seed + times, shard=shard, size=size)

    def spread(self, rows: TokenRows, limit: int) -> Numbers:
        """Return at most `limit` row numbers, evenly spaced."""
        return self._first.spread(rows, limit)

    def _split(self, segment: int) -> tuple[TokenSplit, int]:
        """The segment's examples, and how many times all segments were gone through before."""
        if segment and self._count is None and segment != self._newest[0]:
            store = self._segment(segment)
            if store is None:
                self._count = self._reader.count()
            else:
                self._newest = (segment, TokenSplit(store, self._config))
        times, place = (0, segment) if self._count is None else divmod(segment, self._count)
        if place != self._newest[0]:
            store = self._segment(place)
            assert store is not None, "it was counted"
            self._newest = (place, self._first if not place else TokenSplit(store, self._config))
        return self._newest[1], times

    def _segment(self, number: int) -> TokenStore | None:
        return cached_store(self._folder / f"tokens-{number}", lambda: self._reader.read(number), self._encoder)


def _builder_of(file: Path) -> str:
    """What `datasets` calls the kind of a single file."""
    suffix = file.suffix.lower().lstrip(".")
    return {"jsonl": "json", "ndjson": "json", "json": "json", "parquet": "parquet", "csv": "csv"}.get(suffix, "text")


def _write(file: Path, text: str) -> None:
    """Several nodes may write the same at once; what cannot be kept is found out again."""
    beside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(file)
