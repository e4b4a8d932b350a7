"""examples/notebook.ipynb in real Jupyter kernels: two of them meet, one is interrupted, run again and restarted."""

import asyncio
import json
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
PATIENCE_S = 240.0
ENDLESS = 100_000

pytestmark = [
    pytest.mark.paired,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Jupyter's own
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Event = dict[str, Any]


def cells() -> list[dict[str, Any]]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert isinstance(found, list)
    return found


def code(**given: object) -> list[str]:
    """What its cells run, with these values in place of the first cell's."""
    sources = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    assert all(f"{name} = " in sources[0] or f"{name}, " in sources[0] for name in given)
    sources[0] += "".join(f"\n{name} = {value!r}" for name, value in given.items())
    return sources


def events(run_dir: Path, kind: str) -> list[Event]:
    file = run_dir / "node" / "events.jsonl"
    if not file.is_file():
        return []
    lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [fields for fields in map(json.loads, lines) if fields["event"] == kind]


def until(run_dir: Path, kind: str, count: int) -> list[Event]:
    ends = time.monotonic() + PATIENCE_S
    while len(found := events(run_dir, kind)) < count:
        assert time.monotonic() < ends, f"no {kind}"
        time.sleep(0.05)
    return found


def test_the_notebook_in_git_has_no_outputs() -> None:
    for cell in cells():
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(NOTEBOOK.parents[1]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")


@pytest.mark.thorough
def test_two_notebooks_learn_what_only_the_other_has(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")

    def notebook(**given: object) -> Any:
        made = nbformat.read(NOTEBOOK, as_version=4)
        sources = iter(code(**given))
        for cell in made.cells:
            if cell.cell_type == "code":
                cell.source = next(sources)
        return made

    async def ran() -> list[Any]:
        first = notebook(RUN_DIR=str(tmp_path / "a"))
        running = asyncio.create_task(nbclient.NotebookClient(first, timeout=PATIENCE_S).async_execute())
        starting = asyncio.create_task(asyncio.to_thread(until, tmp_path / "a", "started", 1))
        await asyncio.wait([running, starting], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running  # it has failed
        started, *_ = await starting
        (address,) = (each for each in started["addresses"] if each.startswith("/ip4/127.0.0.1/"))
        second = notebook(RUN_DIR=str(tmp_path / "b"), PEERS=[address], ONLY="56789")
        await nbclient.NotebookClient(second, timeout=PATIENCE_S).async_execute()
        await running
        return [first, second]

    for made in asyncio.run(ran()):
        *_, training, learned = [cell for cell in made.cells if cell.cell_type == "code"]
        said = "".join(output["text"] for output in training.outputs)  # a KeyError for anything but plain lines
        assert "listens" in said
        assert "finished" in said
        *rows, loss = learned.outputs[0]["text"].splitlines()
        theirs = [float(row.split()[-1].rstrip("%")) for row in rows if "theirs" in row]
        assert len(theirs) == 5
        assert sum(theirs) / len(theirs) > 40, "nobody has shown it these digits but the other's model"
        assert float(loss.removeprefix("held-out loss ")) < 1.6, "guessing among ten is 2.3"


class Kernel:
    """A Jupyter kernel, and what is asked of it."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(cwd=str(folder))

    def begin(self, source: str) -> str:
        """Have it run a cell; one interrupted before must not take it along, as under "run all"."""
        return str(self.client.execute(source, stop_on_error=False))

    def until(self, cell: str, run_dir: Path, kind: str, count: int) -> list[Event]:
        """Wait for so many events while this cell runs. Where it ends before, say what it said."""
        ends = time.monotonic() + PATIENCE_S
        while len(found := events(run_dir, kind)) < count:
            if (reply := self._reply_there(cell)) is not None:
                raise AssertionError(f"the cell ended with {len(found)} {kind} of {count}: {reply}")
            assert time.monotonic() < ends, f"{len(found)} {kind} of {count}"
            time.sleep(0.05)
        return found

    def _reply_there(self, message: str) -> dict[str, Any] | None:
        try:
            answer = self.client.get_shell_msg(timeout=0)
        except queue.Empty:
            return None
        return dict(answer["content"]) if answer["parent_header"].get("msg_id") == message else None

    def reply(self, message: str) -> dict[str, Any]:
        while True:
            answer = self.client.get_shell_msg(timeout=PATIENCE_S)
            if answer["parent_header"].get("msg_id") == message:
                found = answer["content"]
                assert isinstance(found, dict)
                return found

    def run(self, source: str) -> dict[str, Any]:
        return self.reply(self.begin(source))

    def restart(self) -> None:
        self.manager.restart_kernel()
        self.client.wait_for_ready(timeout=PATIENCE_S)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    pytest.importorskip("ipykernel")
    made = Kernel(tmp_path)
    yield made
    made.close()


@pytest.mark.thorough
def test_a_cell_is_interrupted_run_again_and_a_kernel_restarted(tmp_path: Path, kernel: Kernel) -> None:
    run = tmp_path / "run"
    *before, training, _ = code(RUN_DIR=str(run), ROUNDS=ENDLESS)
    training = training.replace("wait_for=1", "wait_for=0")
    for times in (1, 2):  # the whole of it twice: in a kernel, and in the one that takes its place
        assert [kernel.run(source)["status"] for source in before] == ["ok"] * len(before)
        for again in (0, 1):
            begun = kernel.begin(training)
            kernel.until(begun, run, "round", len(events(run, "round")) + 3)
            kernel.manager.interrupt_kernel()
            answer = kernel.reply(begun)
            assert answer["ename"] == "KeyboardInterrupt", answer
            assert len(events(run, "resumed")) == 2 * times - 2 + again
        assert len(events(run, "interrupted")) == 2 * times, "at once, with the model saved"
        kernel.restart()
    # Restarted in the middle of training: what it had is kept.
    assert [kernel.run(source)["status"] for source in before] == ["ok"] * len(before)
    begun = kernel.begin(training)
    kernel.until(begun, run, "resumed", 4)
    kernel.until(begun, run, "checkpoint", len(events(run, "checkpoint")) + 2)
    kernel.restart()
    assert [kernel.run(source)["status"] for source in before] == ["ok"] * len(before)
    begun = kernel.begin(training)
    *_, newest = kernel.until(begun, run, "resumed", 5)
    assert newest["round"] >= events(run, "checkpoint")[0]["round"]


@pytest.mark.thorough
def test_a_cell_that_joins_without_a_block_says_that_it_has_joined(tmp_path: Path, kernel: Kernel) -> None:
    *before, training, _ = code(RUN_DIR=str(tmp_path / "run"))
    head, _, _ = training.partition("with p2ptrain.join(")
    joining = head + f'swarm = p2ptrain.join(model, optimizer, run_dir="{tmp_path / "run"}").__enter__()'
    for source in [*before, joining]:
        assert kernel.run(source)["status"] == "ok"
    again = kernel.run(joining)
    assert again["ename"] == "RunError"
    assert "this very process; leave the swarm that was joined with it first" in again["evalue"]
    assert kernel.run("swarm.leave(cut_short=True)")["status"] == "ok"
    assert kernel.run(joining)["status"] == "ok"
    kernel.restart()  # idle, and joined
    until(tmp_path / "run", "interrupted", 2)
