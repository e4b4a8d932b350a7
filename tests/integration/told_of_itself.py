"""A program that tells what it was started with and, where it is told to, waits for a signal."""

import json
import os
import random
import signal
import sys

import psutil


def main() -> None:
    """Tell, and end with 7."""
    told = {
        "argv": sys.argv[1:],
        "cwd": os.getcwd(),  # noqa: PTH109
        "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
        "path": sys.path[0],
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "environment": {name: value for name, value in sorted(os.environ.items()) if name != "_"},
        "name": __name__,
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "command": [word for word in psutil.Process().cmdline() if word],
        "parent": os.getppid(),
    }
    print(json.dumps({"event": "told", **told, "drawn": random.random()}), flush=True)
    if "wait" in sys.argv:
        signal.pause()
    sys.exit(7)


if __name__ == "__main__":
    main()
