"""A child process for the supervisor's edge cases, which a real node cannot be made to show on demand.

python fake_node.py BEHAVIOUR NAME [PEERS_FILE]
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 20.0
"""A test that goes wrong leaves no process behind for longer."""


def tell(event: str, **fields: object) -> None:
    print(json.dumps({"ts": time.time(), "event": event, **fields}), flush=True)


def wait(condition) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)  # for a file, or a signal: what a node of its own process has to look for


def main(behaviour: str, name: str, peers_file: str) -> int:
    stopped = []
    ignoring = behaviour == "ignores_sigint"
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignoring else lambda *_: stopped.append(True))
    addresses, page = [f"/ip4/127.0.0.1/tcp/1/p2p/{name}"], f"http://127.0.0.1:940{name[-1]}"
    large = {"parameters": 124_000_000} if behaviour in ("saves_long", "hangs_large") else {}
    tell("started", peer_id=name, addresses=addresses, pid=os.getpid(), metrics_url=page, **large)
    if behaviour == "meets":  # until the peers file names everyone
        wait(lambda: len(Path(peers_file).read_text().splitlines()) == 2)
        tell("finished", summary={"met": Path(peers_file).read_text().split()})
        return 0
    if behaviour == "leaves_a_child":  # which holds stdout open
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({PATIENCE_S})"])
        Path(peers_file).with_name(f"{name}.child").write_text(str(child.pid))
    if behaviour in ("dies", "leaves_a_child"):
        print("Traceback: something broke", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "loses_its_folder":
        shutil.rmtree(Path(peers_file).with_name(name))
        return 1
    if behaviour == "fails":
        tell("failed", error="no data", hint="")
        return 2
    if behaviour == "rubbish":
        sys.stdout.buffer.write(b"not json\n" + b"x" * (3 << 20) + b'\n{"event": 3}\n[1]\n\xff\xfe\n')
        tell("finished", summary={})
        return 0
    if behaviour == "stays":
        tell("finished", summary={})
        wait(lambda: False)
    if behaviour == "closes_stdout":
        os.close(1)
        wait(lambda: stopped)
        return 0
    wait(lambda: stopped)  # "runs", "ignores_sigint", "saves_long", "hangs_large"
    if behaviour == "saves_long":
        time.sleep(1.0)  # of a real disk
    if behaviour == "hangs_large":
        wait(lambda: False)
    tell("interrupted", summary={})
    return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
