"""What all tests share: hypothesis draws the same examples in every run, so that a failure is a change's; and torch
computes in one thread, so that a test's time and its last bits are those of no other machine, and of no other test."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before fixtures of any scope. The network's tests know no torch, and it is not imported for them."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of real processes, which are known by their harness, are marked `alone`: nobody has to remember it."""
    for item in items:
        names = vars(item.module).values() if isinstance(item, pytest.Function) else ()
        if any(getattr(each, "__module__", "") == "processes_harness" for each in names):
            item.add_marker("alone")


@pytest.fixture(scope="module")
def seeded_scheduling() -> Iterator[None]:
    """Trio shuffles its ready tasks on purpose; seeded, as hypothesis does it, a failure can be had again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        yield
