"""What a forked child lets go of."""

import os
import socket
import stat
from pathlib import Path

import pytest

from node.system.forks import ForkGuard

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are listed in /proc")


def is_socket_in_child(descriptor: int) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(int(stat.S_ISSOCK(os.fstat(descriptor).st_mode)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_socket_that_takes_the_number_of_a_file_closed_since_is_let_go_of(tmp_path: Path) -> None:
    before = os.open(os.devnull, os.O_RDONLY)
    guard = ForkGuard(tmp_path)
    os.close(before)
    with socket.socket() as late:
        assert late.fileno() == before, "the lowest free number"
        assert not is_socket_in_child(before)
        guard.end()
        assert is_socket_in_child(before), "guarded no more"


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_socket_of_the_users_from_before_is_kept(tmp_path: Path) -> None:
    with socket.socket() as theirs:
        guard = ForkGuard(tmp_path)
        assert is_socket_in_child(theirs.fileno())
        guard.end()
