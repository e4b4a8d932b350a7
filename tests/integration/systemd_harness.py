"""A user's systemd of its own, which ends with the test: in new namespaces and a control group of its own.

It wants root, util-linux, and systemd's hierarchy of control groups, which may be written. Nothing of this machine's
own systemd, if it has one, is asked or changed.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

SYSTEMD = Path("/usr/lib/systemd/systemd")
GROUPS = Path("/sys/fs/cgroup/systemd")
"""Systemd's own hierarchy, where the resources have hierarchies of the first version."""

INSIDE = """
set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/systemd/system
mkdir -p -m 700 /run/user/0
export XDG_RUNTIME_DIR=/run/user/0
/usr/lib/systemd/systemd --user --unit=basic.target > /dev/null 2>&1 &
for i in $(seq 200); do [ -S /run/user/0/systemd/private ] && break; sleep 0.1; done
bash -eu -c "$1"
"""


def in_systemd(script: str, env: dict[str, str], *, within_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a shell script beside a fresh manager. All processes of both are killed when it ends."""
    group = GROUPS / f"p2ptrain-test-{os.getpid()}"
    group.mkdir()
    enter = f"echo $$ > {group}/cgroup.procs && exec unshare --mount --pid --fork --kill-child --ipc --cgroup bash -c"
    try:
        return subprocess.run(
            ["bash", "-c", f'{enter} "$0" inside "$1"', INSIDE, script],
            env=env,
            capture_output=True,
            text=True,
            timeout=within_s,
            stdin=subprocess.DEVNULL,
        )
    finally:
        for folder in sorted(group.rglob("*"), key=lambda path: -len(path.parts)):
            if folder.is_dir():
                folder.rmdir()
        group.rmdir()


@cache
def can_run() -> bool:
    """Whether a manager can be had here."""
    if os.geteuid() or not SYSTEMD.exists() or not os.access(GROUPS, os.W_OK) or shutil.which("unshare") is None:
        return False
    try:
        done = in_systemd("systemctl --user is-system-running", dict(os.environ), within_s=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
