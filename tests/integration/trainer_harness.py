"""Training scripts of the frameworks (trainer_script.py) as real processes: started, killed as `kill -9` does it, and
what they have printed."""

import json
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from processes_harness import HERE, Event, Program

SCRIPT = HERE / "trainer_script.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)
"""Two processes, which talk over gloo."""
ACCELERATE = (
    "-m",
    "accelerate.commands.launch",
    "--multi_gpu",
    "--num_processes",
    "2",
    "--main_process_port",
    "0",
    SCRIPT,
)
"""The same, as Accelerate does it."""


class Script(Program):
    """`trainer_script.py FRAMEWORK OUT WORDS`, by Python or a launcher."""

    def __init__(self, framework: str, out: Path, *words: object, launcher: Sequence[object] = (SCRIPT,)) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        super().__init__(out, framework, out, *words, run=launcher, real=launcher[0] != SCRIPT)

    def _tree(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)

    def kill(self) -> None:
        """`kill -9` of all of its processes, which get no word in."""
        tree = self._tree()
        for process in tree:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        psutil.wait_procs(tree[1:], timeout=30)
        if tree:
            self.end()

    def losses(self) -> dict[int, str]:
        """The loss of each step so far, bit for bit."""
        return {event["step"]: event["loss"] for event in self.heard("step")}

    def digests(self) -> set[str]:
        """Of the models with which the ranks have ended."""
        return {event["digest"] for event in self.heard("done")}


def whole(framework: str, out: Path, *words: object, launcher: Sequence[object] = (SCRIPT,)) -> Script:
    """Run a script to its end, which must be in order."""
    with Script(framework, out, *words, launcher=launcher) as script:
        code = script.end()
        assert code == 0, script.stderr[-3000:]
    return script


def killed(
    framework: str, out: Path, *words: object, at: int, ranks: int = 1, launcher: Sequence[object] = (SCRIPT,)
) -> Script:
    """Run a script and kill it after step `at`, with nothing of it left but what lies on the disk."""
    with Script(framework, out, *words, "--halt-at", at, launcher=launcher) as script:
        script.hear("halted", count=ranks)
        script.kill()
    return script


def told(run_dir: Path, *events: str) -> list[Event]:
    """What the node in a run folder has told, of these kinds."""
    lines = (run_dir / "node" / "events.jsonl").read_text().splitlines()
    return [fields for fields in map(json.loads, lines) if fields["event"] in events]


def same(found: Iterable[Script], expected: Script) -> None:
    """All that scripts have printed of their steps is what one has that nobody interrupted, and so is the model at the
    end."""
    losses = expected.losses()
    seen: set[int] = set()
    last = expected
    for script in found:
        own = script.losses()
        assert own == {step: losses[step] for step in own}
        seen |= set(own)
        last = script
    assert seen == set(losses)
    assert last.digests() == expected.digests()
    assert len(expected.digests()) == 1
