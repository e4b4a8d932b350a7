"""A node listens where it listened last, and nothing in the file can hinder it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.transport.libp2p.kept_ports import MAX_PORTS_BYTES, KeptPorts


def test_a_port_is_kept_by_its_host(tmp_path: Path) -> None:
    file = tmp_path / "ports"
    ports = KeptPorts(file)
    assert ports.of("0.0.0.0") == 0
    ports.keep("0.0.0.0", 40_001)
    ports.keep("::", 40_002)
    ports.keep("0.0.0.0", 40_003)
    again = KeptPorts(file)
    assert (again.of("0.0.0.0"), again.of("::"), again.of("127.0.0.1")) == (40_003, 40_002, 0)


def test_without_a_file_nothing_is_kept_and_one_that_cannot_be_written_hinders_nothing(tmp_path: Path) -> None:
    for ports in (KeptPorts(), KeptPorts(tmp_path / "no folder" / "ports")):
        ports.keep("0.0.0.0", 40_001)
    assert KeptPorts().of("0.0.0.0") == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["0.0.0.0 0", "0.0.0.0 65536", "0.0.0.0 -1", "0.0.0.0", " 4001", "0.0.0.0 4001 x"])
def test_a_line_that_names_no_port_is_passed_over(tmp_path: Path, line: str) -> None:
    (tmp_path / "ports").write_text(f"{line}\n:: 4002\n")
    ports = KeptPorts(tmp_path / "ports")
    assert (ports.of("0.0.0.0"), ports.of("::")) == (0, 4002)


@given(st.binary(max_size=200))
def test_any_bytes_are_ports_or_none(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.mktemp("kept") / "ports"
    file.write_bytes(data)
    assert 0 <= KeptPorts(file).of("0.0.0.0") <= 65_535


def test_no_more_is_read_than_a_file_has(tmp_path: Path) -> None:
    (tmp_path / "ports").write_bytes(b"x" * MAX_PORTS_BYTES + b"\n0.0.0.0 4001\n")
    assert KeptPorts(tmp_path / "ports").of("0.0.0.0") == 0
