"""Nodes of one run folder that protect the same examples are told so; others are not."""

from pathlib import Path
from typing import Any

import pytest

from node.config.schema import from_raw
from node.events.event_types import Event, WarningEvent
from node.roles.shared_shards import warn_of_shared_examples
from node.system.run_dir import CONFIG

PRIVATE = "[privacy]\nprivatizer = 'example'\n"
SHARD = "[node]\nshard_index = 1\nshard_count = 4\n"


def warned(folder: Path, **node: Any) -> list[str]:
    events: list[Event] = []
    raw = {"task": {"name": "digits"}, "privacy": {"privatizer": "example"}, "node": node}
    (folder / "own").mkdir(exist_ok=True)
    warn_of_shared_examples(from_raw(raw), "peer", folder / "own", events.append)
    return [it.message for it in events if isinstance(it, WarningEvent)]


def other(folder: Path, text: str, name: str = "other") -> None:
    (folder / name).mkdir()
    (folder / name / CONFIG).write_text(text)


def test_another_node_with_the_same_shard_is_named(tmp_path: Path) -> None:
    other(tmp_path, "[task]\nname = 'digits'\n" + PRIVATE + SHARD)
    (told,) = warned(tmp_path, shard_index=1, shard_count=4)
    assert "same examples as other (shard 1 of 4)" in told
    assert "adds up" in told


def test_all_that_have_the_whole_of_the_data_share_it(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        other(tmp_path, "[task]\nname = 'digits'\n" + PRIVATE, name)
    (told,) = warned(tmp_path)
    assert "a, b, c and 2 more" in told


@pytest.mark.parametrize(
    "text",
    [
        "[task]\nname = 'digits'\n" + PRIVATE + SHARD.replace("= 1", "= 2"),
        "[task]\nname = 'byte-lm'\n" + PRIVATE + SHARD,
        "[task]\nname = 'digits'\n" + SHARD,  # protects nothing: it has told all that it may
        "[task]\nname = 'digits'\n" + PRIVATE + "[node]\nshard_count = 4\n",  # its peer id says which
        "no settings",
    ],
)
def test_other_nodes_are_not(tmp_path: Path, text: str) -> None:
    other(tmp_path, text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert warned(tmp_path, shard_index=1, shard_count=4) == []


@pytest.mark.parametrize("called", ["is_file", "read_bytes", "open", "iterdir"])
def test_folders_of_another_user_end_no_start(tmp_path: Path, called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other(tmp_path, "[task]\nname = 'digits'\n" + PRIVATE + "[node]\nshard_count = 4\n")
    (tmp_path / "own").mkdir()

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, called, refuse)
    assert warned(tmp_path, shard_index=1, shard_count=4) == []
