"""What all tests share: hypothesis draws the same examples in every run, and trio, which shuffles its ready tasks on
purpose, shuffles them the same way, so that a failure is a change's; and torch draws from one seed and computes in one
thread, so that a test's time and its last bits are those of no other machine, and of no other test."""

import gc
import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.doctest import DoctestModule
from compiled_files import compile_part
from hypothesis import settings
from sizes import examples, share

collect_ignore = ["plug_ins"]  # to collect it for doctests is to put it on the path: installed, for every later test

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=examples(100))
settings.load_profile("repeatable")

gc.disable()  # until all is imported and collected: it makes hundreds of thousands of objects, none of them garbage


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--share`."""
    parser.addoption("--share", type=share, default=None, metavar="K/N", help="run one test of N: part K, any number")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several processes each compiles a part of what all of them import."""
    if (worker := getattr(session.config, "workerinput", None)) is not None:
        compile_part(session.config, int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """No doctests are looked for in helpers and in scripts of other processes, which would be imported for it."""
    is_helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_helper and collection_path.name != "conftest.py" else None


class ExamplesOnly:
    """A plugin of its own, as what a conftest has itself is asked about the files of its folder alone."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Iterator[None]:
        """A module without an example is not imported to look for one: integrations with frameworks take seconds."""
        found = yield
        if file_path.suffix != ".py" or ">>>" in file_path.read_text(encoding="utf-8"):
            return found
        return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_configure(config: pytest.Config) -> None:
    """Ours asks about the modules of every folder."""
    config.pluginmanager.register(ExamplesOnly())


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not walk it again and again, which took a fifteenth of the time. Nor
    need it now, as half a second would find next to nothing."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before fixtures of any scope. The network's tests know no torch, and it is not imported for them."""
    if (scheduler := sys.modules.get("trio._core._run")) is not None:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        scheduler._r.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
        torch.default_generator.manual_seed(0)  # a model that a test draws is the same whatever ran before it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of real processes, which are known by their harness, are marked `alone`: nobody has to remember it. Those
    that only wait for events, and ask of none when it comes, say that they are `paired`. Of all, a share is left."""
    for item in items:
        real = isinstance(item, pytest.Function) and _has_processes(item.module)
        if real and item.get_closest_marker("paired") is None:
            item.add_marker("alone")
    if (wanted := config.getoption("--share")) is not None:
        items[:] = [item for item in items if wanted.has(item.nodeid)]
    items[:] = _mixed(items)


@cache
def _has_processes(module: ModuleType) -> bool:
    return any(getattr(each, "__module__", "") == "processes_harness" for each in vars(module).values())


def _mixed(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Files that mostly wait between files that compute, and whole simulated swarms first: no process that shares the
    tests with others is left alone with a long file, nor are all of them waiting at once."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waits = {path for path, of_it in files.items() if any(item.get_closest_marker("paired") for item in of_it)}
    waiting = (files[path] for path in files if path in waits)
    computing = (files[path] for path in sorted(files.keys() - waits, key=lambda path: path.parent.name != "sim"))
    while turn := [*islice(waiting, 1), *islice(computing, 2)]:
        yield from chain.from_iterable(turn)
