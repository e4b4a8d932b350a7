"""Training data as examples: rows of JSON, JSONL and Parquet files, and blocks of whole lines of everything else.

    {"text": "..."}                                                     a document
    {"messages": [{"role": "user", "content": "..."}, ...]}             a conversation

Suffixes count in either case. A `.json` file is a list of rows, or a row in each line, where its first one is such a
row; else it is text, as what lies between the sources of a program.

An example has a key, a hash of its content. Who holds it, and whether anyone trains on it, follows from the key alone:
not from its place in a file, nor from who is in the swarm.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from p2ptrain.tasks.base import TaskError
from p2ptrain.tasks.byte_lm.corpus import Source, open_corpus
from p2ptrain.tasks.hf.extras import require

Message: TypeAlias = Mapping[str, Any]

KEY_BYTES: Final = 8
"""Of an example's key: among a billion examples some 0.03 pairs share one, which costs these two the same shard."""

LEAST_BLOCK_CHARS: Final = 1024
"""Of text without rows: some 25 lines. Smaller blocks would put the end of a paragraph into another shard."""

PARQUET_ROWS: Final = 1024
"""Rows that are read from a Parquet file at once: a few megabytes of text."""

_LINES: Final = (".jsonl", ".ndjson")
_PARQUET: Final = ".parquet"
_JSON: Final = ".json"


@dataclass(frozen=True, kw_only=True)
class Example:
    """A document, or a conversation."""

    text: str = ""
    messages: tuple[Message, ...] = ()

    @property
    def key(self) -> int:
        """A hash of the content, 64 bits: the same on every machine. Of what JSON does not have, as times in Parquet
        files, it is of their text."""
        content = json.dumps(list(self.messages), sort_keys=True, default=str) if self.messages else self.text
        return int.from_bytes(hashlib.blake2b(_encoded(content), digest_size=KEY_BYTES).digest(), "big")


def files_of(data: str | Path | None) -> list[Source]:
    """Return the files of `data` in the order of their names; none for the default, the text of Python's own library.
    TaskError where there is nothing to read."""
    if data is None:
        return []
    root = Path(data).expanduser()
    try:
        found = [Source.of(path) for path in (_below(root) if root.is_dir() else [root])]
    except OSError as error:
        raise TaskError(f"data {str(root)!r} cannot be read: {error.strerror}; give a file or a folder") from error
    if not any(source.size for source in found):
        raise TaskError(f"data {str(root)!r} holds nothing; give a file or a folder with --data")
    return found


def read_examples(files: list[Source], *, block_chars: int) -> Iterator[Example]:
    """Yield the examples of `files`, or of the default text where there are none. Text without rows is cut into blocks
    of `block_chars` characters or more. TaskError, with file and line, for a row that is none."""
    if not files:
        yield from _blocks(bytes(open_corpus(None)).decode("utf-8", "replace"), block_chars)
    for source in files:
        kind = source.path.suffix.lower()
        if kind in _LINES:
            yield from _jsonl(source.path)
        elif kind == _PARQUET:
            yield from _parquet(source.path)
        elif kind == _JSON and (text := _text_of(source.path)) and _begins_with_row(text):
            yield from _rows_of(text, source.path)
        else:
            yield from _blocks(_text_of(source.path), block_chars)


def has_rows(files: list[Source]) -> bool:
    """Return whether any of the files consists of rows."""
    kinds = [(source.path, source.path.suffix.lower()) for source in files]
    return any(kind in (*_LINES, _PARQUET) for _, kind in kinds) or any(
        _begins_with_row(_text_of(path)) for path, kind in kinds if kind == _JSON
    )


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"data file {str(path)!r} is no UTF-8 text; give .json, .jsonl, .parquet or text") from error
    except OSError as error:
        raise TaskError(f"data file {str(path)!r} cannot be read: {error.strerror}") from error


def _blocks(text: str, block_chars: int) -> Iterator[Example]:
    block: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        block.append(line)
        size += len(line)
        if size >= block_chars:
            yield Example(text="".join(block))
            block, size = [], 0
    if block:
        yield Example(text="".join(block))


def _jsonl(path: Path) -> Iterator[Example]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _example(_json(line, f"{path}:{number}"), f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"data file {str(path)!r} cannot be read: {error}") from error


def _begins_with_row(text: str) -> bool:
    """Whether the first value of a JSON file, or the first of its list, is an object like a row."""
    text = text.lstrip("\ufeff \t\r\n").removeprefix("[").lstrip()
    try:
        first, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and ("text" in first or "messages" in first)


def _rows_of(text: str, path: Path) -> Iterator[Example]:
    """Of a JSON file: a list, or a row in each line."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("["):
        rows = _json(text, str(path))
        assert isinstance(rows, list)
        for number, row in enumerate(rows, 1):
            yield _example(row, f"{path}, row {number}")
        return
    for number, line in enumerate(text.split("\n"), 1):  # strings of JSON may hold other ends of lines, such as U+2028
        if line.strip():
            yield _example(_json(line, f"{path}:{number}"), f"{path}:{number}")


def _json(line: str, place: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place} is no JSON: {error}") from error


def _parquet(path: Path) -> Iterator[Example]:
    parquet, errors = require("pyarrow.parquet"), require("pyarrow.lib")
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in ("text", "messages") if name in file.schema_arrow.names]
            if not names:
                raise TaskError(f"data file {str(path)!r} has neither a column 'text' nor 'messages'")
            number = 0
            for batch in file.iter_batches(PARQUET_ROWS, columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield _example(row, f"{path}, row {number}")
    except (OSError, errors.ArrowException) as error:
        raise TaskError(f"data file {str(path)!r} cannot be read: {error}") from error


def _example(row: object, place: str) -> Example:
    if isinstance(row, dict):
        text, messages = row.get("text"), row.get("messages")
        if isinstance(messages, list) and messages and all(map(_is_message, messages)):
            return Example(messages=tuple(messages))
        if isinstance(text, str) and text and messages is None:
            return Example(text=text)
    raise TaskError(f'{place}: a row is {{"text": "..."}} or {{"messages": [{{"role": ..., "content": ...}}, ...]}}')


def example_of(row: Mapping[str, Any], place: str, column: str | None) -> Example | None:
    """Return the example of a row of `datasets`, whose text or messages are in `column`; None where that is empty, as
    half of the lines of a text are. TaskError for a row that is none."""
    if column is not None and column not in row:
        raise TaskError(f"{place}: it has no column {column!r}, but {', '.join(map(str, row))}")
    value = (row.get("messages") or row.get("text")) if column is None else row[column]
    if value in ("", None) and (column is not None or "text" in row or "messages" in row):
        return None
    if column is None and value is None:
        raise TaskError(f"{place}: it has neither a column 'text' nor 'messages', but {', '.join(map(str, row))}")
    return _example({"messages" if isinstance(value, list) else "text": value}, place)


def _is_message(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
