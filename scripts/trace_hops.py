"""List the files of p2ptrain/, gossip/ and node/ that one value passes, from a step to a neighbour's corrected model.

    python scripts/trace_hops.py

Four nodes run in one process, over the in-memory network and a virtual clock (tests/sim_swarm.py). A file counts when a
function of it is handed, or returns, the vector, the payload, or one of CARRIERS, in rounds 4 to 9.
"""

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
import trio  # noqa: E402
import trio.testing  # noqa: E402
from sim_swarm import swarm  # noqa: E402

from node.system.script_end import ended_in_a_line  # noqa: E402

CARRIERS = {
    *("Message", "Update", "Payload", "Phase", "RoundResult", "RoundView", "UpdateHeader", "Download"),
    *("PartialBlob", "BlobFetch", "FetchPayload", "MixInputs", "Rows", "MultiSourceFetch"),
}
"""Classes whose objects hold the value, or stand for it."""

LEAST_NUMEL = 1000
LEAST_BYTES = 300
"""From here on a tensor is taken for a model, and bytes for a payload: the model of the digits has some 2,400
parameters, and its update in q2 some 700 bytes. Chosen: a header has 200 to 300 bytes."""

FIRST, LAST = 3, 9
TRAIN = {"rounds": 12, "inner_steps": 5, "batch_size": 16, "threads": 1, "warmup_steps": 5, "eval_every": 100}


def is_value(thing: object) -> bool:
    """Whether it is the value, or carries it."""
    if isinstance(thing, torch.Tensor):
        return thing.numel() >= LEAST_NUMEL
    if isinstance(thing, bytes | bytearray | memoryview):
        return len(thing) >= LEAST_BYTES
    return type(thing).__name__ in CARRIERS


class Trace:
    """A profile function that notes files and functions, in the order in which the value passes them first."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = {}
        self.listens = False
        self._folders = tuple(f"{ROOT / name}/" for name in ("p2ptrain", "gossip", "node"))

    def __call__(self, frame: FrameType, event: str, returned: Any) -> None:
        """As `sys.setprofile` calls it."""
        code = frame.f_code
        if not self.listens or event not in {"call", "return"} or not code.co_filename.startswith(self._folders):
            return
        names = self.seen.get(path := str(Path(code.co_filename).relative_to(ROOT)), [])
        if code.co_name in names:
            return
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        things = [returned] if event == "return" else [frame.f_locals.get(name) for name in given]
        if any(map(is_value, things)):
            self.seen.setdefault(path, names).append(code.co_name)


async def run(trace: Trace) -> None:
    """Run a small swarm, and listen while its middle rounds last."""
    with tempfile.TemporaryDirectory() as folder:
        async with swarm(Path(folder)) as members:
            first = await members.start("n0", wait_for=3, train=TRAIN)
            for name in ("n1", "n2", "n3"):
                await members.start(name, wait_for=3, train=TRAIN)

            async def listen() -> None:
                for count in (FIRST, LAST):
                    while len(first.told("round")) < count:  # noqa: ASYNC110  # events of a test's swarm wake nobody
                        await trio.sleep(0.05)
                    trace.listens = count == FIRST

            async with trio.open_nursery() as nursery:
                nursery.start_soon(listen)
                await members.finished()


if __name__ == "__main__":
    with ended_in_a_line():
        trace = Trace()
        sys.setprofile(trace)
        trio.run(run, trace, clock=trio.testing.MockClock(autojump_threshold=0))
        sys.setprofile(None)
        print(f"{len(trace.seen)} files")
        for path, names in trace.seen.items():
            print(f"  {path}: {', '.join(names)}")
