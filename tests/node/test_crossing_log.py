"""The record of what crosses between regions: whole lines or none."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gossip.core.api import Crossing
from gossip.core.digests import digest_of
from gossip.core.ids import PeerId
from node.events.crossing_log import CrossingLog

CROSSING = Crossing(
    direction="sent",
    peer=PeerId("other"),
    from_region="east",
    to_region="west",
    model_of="east",
    round=7,
    averaged=3,
    address=digest_of(b"a model"),
    size=1000,
)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Within the block no file grows beyond this: as on a full disk a write is cut, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_says_what_crossed(tmp_path: Path) -> None:
    assert CrossingLog(tmp_path / "log", clock=lambda: 12.3456)(CROSSING)
    assert json.loads((tmp_path / "log").read_text()) == {
        "ts": 12.346,
        "direction": "sent",
        "peer": "other",
        "from": "east",
        "to": "west",
        "model_of": "east",
        "round": 7,
        "averaged": 3,
        "digest": digest_of(b"a model").hex(),
        "bytes": 1000,
    }


def test_a_line_that_was_cut_by_a_full_disk_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "log"
    log = CrossingLog(file, clock=lambda: 1.0)
    assert log(CROSSING)
    before = file.read_bytes()
    for room in (0, 10):
        with files_of_at_most(len(before) + room):
            assert not log(CROSSING)
        assert file.read_bytes() == before
    assert log(CROSSING)
    assert [json.loads(line)["bytes"] for line in file.read_text().splitlines()] == [1000, 1000]


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    assert not CrossingLog(tmp_path / "gone" / "log")(CROSSING)


def test_a_line_of_which_a_part_is_left_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert CrossingLog(file, clock=lambda: 1.0)(CROSSING)
    line = file.read_bytes()
    file.write_bytes(line + line[:50])
    for _ in range(2):
        assert CrossingLog(file, clock=lambda: 1.0)(CROSSING)
    assert file.read_bytes() == line + line[:50] + b"\n" + 2 * line
