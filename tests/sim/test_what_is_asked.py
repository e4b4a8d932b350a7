"""The dashboards and alerts ask for nothing that a node does not serve: held to the page of a real one."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from asked import OF_PROMETHEUS, OF_TARGETS, Question, alerts, panels
from prometheus_client.parser import text_string_to_metric_families
from sim_swarm import Member, swarm
from typed_events import typed

from node.metrics.node_metrics import Metrics
from node.roles.trainer import announce_start
from node.training.round_report import readings

Served = dict[str, dict[str, set[str]]]
"""By name of a series: its labels, and the values that each has."""

AFTER_AN_EVENT: Served = {
    "p2ptrain_peer_rejected_total": {"peer": set(), "reason": set()},
    "p2ptrain_peer_clipped_total": {"peer": set()},
    "p2ptrain_peer_accepted_total": {"peer": set()},
    "p2ptrain_peer_layers": {"peer": set()},
    "p2ptrain_peer_fetched_first": {"peer": set()},
    "p2ptrain_peer_read_seconds_total": {"peer": set()},
    "p2ptrain_rung": {"rung": set()},
    "p2ptrain_paused_seconds_total": {"reason": set()},
    "p2ptrain_visits_total": {"result": set()},
    "p2ptrain_shift_deviation": {"signal": set()},
    **{f"p2ptrain_privacy_epsilon{kind}": {"delta": set()} for kind in ("", "_budget")},
    **{f"p2ptrain_visits_epsilon{kind}": {"delta": set()} for kind in ("", "_budget")},
    **{f"p2ptrain_budget{kind}": {"resource": set()} for kind in ("", "_used")},
    **{f"p2ptrain_gpu_memory_{kind}_bytes": {} for kind in ("allocated", "reserved", "free")},
}
"""What a node in good health, on a CPU, does not show: until somebody is refused or clipped, when its neighbours have
left, without the compressor `adaptive`, where it always trains, without a budget, a privatizer, noise for visitors, a
detector of shift or a GPU. Every panel that asks for these says what it means that it is empty."""

OPEN = {"peer"}
"""Labels whose values nobody knows beforehand."""


@pytest.fixture
async def page(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> str:
    """/metrics of a node that has trained with two others."""
    return (await pages_of_a_run(tmp_path))[0]


@pytest.fixture
async def pages(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> str:
    """The same, followed by the page of an observer of that run."""
    return "".join(await pages_of_a_run(tmp_path, observers=1))


async def pages_of_a_run(folder: Path, *, observers: int = 0) -> list[str]:
    async with swarm(folder) as members:
        run = {"rounds": 3}
        there = [await members.start(name, wait_for=2, train=run) for name in ("one", "two", "three")]
        for nth in range(observers):
            there.append(await members.start(f"observer-{nth}", train=run, node={"role": "observer"}))
        await members.finished()
        return [page_of(member, folder) for member in (there[0], *there[3:])]


def page_of(member: Member, folder: Path) -> str:
    announce_start(member.node, [], folder, None)  # `p2ptrain node` says it once it listens
    metrics = Metrics()
    metrics.live.watch(partial(readings, member.node))
    for event in member.events:
        metrics.observe(typed(event))
    return metrics.exposition().decode()


async def test_what_was_taken_is_told_by_neighbour_while_it_is_one(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with swarm(tmp_path) as members:
        one, *others = [await members.start(name, wait_for=2, train={"rounds": 20}) for name in ("one", "two", "three")]
        await trio.sleep(2.0)  # a round takes a quarter of a second
        taken = readings(one.node).accepted
        assert taken.keys() == {member.node.peer_id for member in others}
        assert min(taken.values()) >= 2
        await members.finished()
        assert readings(one.node).accepted == {}


def served_by(page: str) -> Served:
    served: Served = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = served.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return served


def faults(question: Question, served: Served) -> list[str]:
    """What it asks for in vain."""
    found, known = [], set(OF_TARGETS)
    for name, wanted in question.selectors:
        labels = {**{label: set() for label in OF_PROMETHEUS.get(name, ())}, **served.get(name, {})}
        known |= labels.keys()
        if name not in served and name not in OF_PROMETHEUS:
            found.append(f"no node serves {name}")
        for label, values in wanted.items():
            if label not in labels.keys() | OF_TARGETS:
                found.append(f"{name} has no label {label}")
            elif labels.get(label) and label not in OPEN and not values <= labels[label]:
                found.append(f"{name} never has {label} = {values - labels[label]}")
    found += [f"nothing there has a label {label}" for label in (question.grouped | question.shown) - known]
    return found if question.selectors else ["it asks for nothing"]


async def test_panels_and_alerts_ask_for_what_a_node_serves(pages: str) -> None:
    served = served_by(pages)
    taken = {name: labels for name, labels in served.items() if labels.keys() & OF_TARGETS}
    assert not taken, "the targets file sets that label: Prometheus would call the node's own `exported_...`"
    assert not AFTER_AN_EVENT.keys() & served.keys(), "it is served from the start: take it out of the list"
    for name in ("trainer", "relay"):  # no node of a swarm has both roles
        served["p2ptrain_info"].setdefault("role", set()).add(name)
    questions = [*panels(), *alerts()]
    assert len(questions) > 70
    assert not {question.asker: why for question in questions if (why := faults(question, served | AFTER_AN_EVENT))}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
async def test_promtool_finds_no_fault_with_the_page_of_a_node(page: str) -> None:
    done = await trio.run_process(
        ["promtool", "check", "metrics"], stdin=page.encode(), capture_stdout=True, capture_stderr=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_who_asks_for_what_comes_with_an_event_says_what_empty_means() -> None:
    askers = [each for each in panels() if any(name in AFTER_AN_EVENT for name, _ in each.selectors)]
    assert len(askers) >= 4
    assert not [each.asker for each in askers if not each.may_be_empty]


async def test_a_fault_is_found(page: str) -> None:
    served = served_by(page)
    for expr, shown, fault in (
        ("p2ptrain_rounds_won", (), "no node serves p2ptrain_rounds_won"),
        ('p2ptrain_queue_depth{kind="pulls"}', (), "p2ptrain_queue_depth has no label kind"),
        ('p2ptrain_queue_depth{queue=~"pulls|pushes"}', (), "p2ptrain_queue_depth never has queue = {'pushes'}"),
        ("sum by (colour) (p2ptrain_round)", (), "nothing there has a label colour"),
        ("sum by (node) (p2ptrain_round)", ("colour",), "nothing there has a label colour"),
        ("vector(1)", (), "it asks for nothing"),
    ):
        assert faults(Question("a panel", expr, frozenset(shown)), served) == [fault]
