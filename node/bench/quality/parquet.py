"""Rows as a Parquet file, with pyarrow (the extra `bench`). Checked before anything is measured."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from node.bench.base import Row
from node.system.errors import UsageError


def check(folder: Path | None) -> None:
    """Make the folder. UsageError where it cannot be, or no Parquet file can be written."""
    if folder is None:
        return
    if importlib.util.find_spec("pyarrow") is None:
        raise UsageError("--out needs pyarrow, which is not installed", "run: pip install 'pyarrow>=20'")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be a folder: {error.strerror}", "give another") from None


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows, whole or not at all. What is no number and no text is a column of JSON."""
    import pyarrow
    from pyarrow import parquet

    keys = dict.fromkeys(key for row in rows for key in row)
    table = pyarrow.table({key: [_cell(row.get(key)) for row in rows] for key in keys})
    new = path.with_suffix(".new")
    parquet.write_table(table, new)
    new.replace(path)


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)
