"""Rows of results from Parquet files of any writer, with pyarrow (the extra `bench`)."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from node.system.errors import RunError, UsageError

ResultRow = dict[str, Any]

MAX_ROWS: Final = 200_000
"""Most rows of all files: curves of so many take some 2 GB. A sweep has 100,000 at most."""

MAX_FILE_BYTES: Final = 2 << 30
"""Largest file that is opened."""

JSON_COLUMNS: Final = ("curve", "varied", "settings", "trial", "recipe", "refused")
"""Columns of JSON (node/bench/quality/parquet.py)."""

UNREAD: Final = ("recipe", "settings", "refused")
"""Columns that a report does not need."""


def read_rows(paths: Sequence[Path]) -> list[ResultRow]:
    """Return the rows of all files. UsageError without pyarrow, RunError on what is no such file."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"reading {paths[0]} needs pyarrow, which is not installed", "run: pip install 'pyarrow>=20'")
    from pyarrow import ArrowException, parquet

    rows: list[ResultRow] = []
    for path in paths:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise RunError(f"{path} has more than {MAX_FILE_BYTES >> 30} GiB", "give a part of it")
            file = parquet.ParquetFile(path)
            columns = [name for name in file.schema_arrow.names if name not in UNREAD]
            if len(rows) + file.metadata.num_rows > MAX_ROWS:
                raise RunError(f"{path} brings more than {MAX_ROWS:,} rows", "report on a part of them")
            rows += [_parsed(row) for row in file.read(columns=columns).to_pylist()]
        except (OSError, ArrowException, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise RunError(f"{path} is no table of results: {reason}", "leave it out, or write it again") from None
    return rows


def _parsed(row: ResultRow) -> ResultRow:
    return {key: _value(key, value) for key, value in row.items()}


def _value(key: str, value: Any) -> Any:
    if key not in JSON_COLUMNS or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
