"""What a task measures itself, from its method to everything that shows it."""

import io
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio.testing
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from sim_swarm import swarm
from torch import nn
from typed_events import typed

from node.bench.swarm.baselines import AllShards
from node.events.lines import describe
from node.events.log import to_line
from node.events.progress import MAX_OWN, NodeProgress
from node.exporters.base import numbers
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed, FeedPosition
from node.page.replay import earlier_rounds
from node.top.screen import screen
from node.top.source import Watched
from p2ptrain.attacks.label_flip import Mislabelled
from p2ptrain.tasks import Batch, Shard, TaskFaultError
from p2ptrain.tasks.digits import Digits
from p2ptrain.tasks.metrics import MAX_METRICS, MAX_NAME_CHARS, checked_metrics, metric_units, own_metrics
from p2ptrain.training import TrainConfig, Trainer
from p2ptrain.training.preflight import preflight

CONFIG = TrainConfig(device="cpu", threads=1, eval_examples=300, rounds=4, eval_every=2, inner_steps=2)
STARTED = {"ts": 1.0, "event": "started", "metric": "nats", "units": {"accuracy": "%"}}


def evaluated(after: int, **own: float) -> dict[str, Any]:
    return {"ts": 1.0 + after, "event": "evaluated", "round": after, "eval_loss": 0.5, "own": own}


def test_of_another_s_log_only_numbers_are_shown() -> None:
    progress = NodeProgress()
    odd: dict[str, Any] = {"huge": 10**400, "nan": math.nan, "yes": True, "text": "1", "fine": 2, "low": -1.5}
    progress.observe(typed(evaluated(1, **odd)))
    assert progress.own == {"fine": 2, "low": -1.5}


class Scored(Digits):
    units: ClassVar[dict[str, str]] = {"accuracy": "%", "x" * 100: "too long"}

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        right = model(batch[0]).argmax(1) == batch[1]
        return {"accuracy": 100 * float(right.float().mean()), "endless": math.inf}


def test_they_are_means_over_the_held_out_predictions() -> None:
    task = Scored()
    trainer = Trainer(task, CONFIG, Shard())
    found = trainer.measure()
    (images, labels), *_ = [tuple(each[:300] for each in task.held_out)]
    right = trainer.model_with()(images).argmax(1) == labels
    assert len(task.eval_batches(300)) > 1, "one batch would be no mean"
    assert found.own == {"accuracy": pytest.approx(100 * float(right.float().mean()))}  # what is endless is left out
    assert found.loss == trainer.evaluate()
    assert metric_units(task) == {"accuracy": "%"}


def test_wrappers_pass_them_on_and_a_task_without_has_none() -> None:
    for wrapped in (Mislabelled(Scored(), 10), AllShards(Scored(), 2)):
        assert Trainer(wrapped, CONFIG, Shard()).measure().own.keys() == {"accuracy"}
        assert metric_units(wrapped) == {"accuracy": "%"}
    for plain in (Digits(), Mislabelled(Digits(), 10), AllShards(Digits(), 2)):
        assert own_metrics(plain) is None
        assert Trainer(plain, CONFIG, Shard()).measure().own == {}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([1.0], "returned a list; return a dict"),
        ({f"m{number}": 1.0 for number in range(MAX_METRICS + 1)}, "returned 17 numbers"),
        ({"x" * (MAX_NAME_CHARS + 1): 1.0}, "cannot be a metric's name"),
        ({"a\nb": 1.0}, "cannot be a metric's name"),
        ({1: 1.0}, "cannot be a metric's name"),
        ({"a": "many"}, "a value of metrics\\(\\) is no number"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_the_launch(found: object, says: str) -> None:
    class Wrong(Digits):
        def metrics(self, model: nn.Module, batch: Batch) -> object:
            return found

    with pytest.raises(TaskFaultError, match=says):
        checked_metrics(Wrong(), found)
    with pytest.raises(TaskFaultError, match=says):
        preflight(Wrong(), CONFIG, Shard())


async def test_a_node_tells_them_and_trains_on_where_they_fail(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Scored):
        def metrics(self, model: nn.Module, batch: Batch) -> dict[str, float]:
            raise KeyError("accuracy")

    from p2ptrain.tasks import TASKS

    monkeypatch.setitem(TASKS._factories, "scored", Scored)
    monkeypatch.setitem(TASKS._factories, "failing", Failing)
    for name, own in (("scored", {"accuracy"}), ("failing", set())):
        async with swarm(tmp_path) as members:
            member = await members.start(name, task={"name": name})
            await members.finished()
        told = member.told("evaluated")
        assert len(told) > 1
        assert all(it["own"].keys() == own for it in told)
        warnings = [it["message"] for it in member.told("warning")]
        said = [words for words in warnings if words.startswith("no metrics of the task's own")]
        assert len(said) == (name == "failing")
        assert all("test_own_metrics.py" in words and "KeyError: 'accuracy'" in words for words in said)


def test_the_page_has_them_by_name_with_each_point_and_their_units() -> None:
    progress = NodeProgress("n")
    feed, place = Feed(progress), FeedPosition()
    for event in (STARTED, evaluated(0), evaluated(2, accuracy=50.0), evaluated(4, accuracy=60.0, f1=0.5)):
        progress.observe(typed(event))
        feed.observe(typed(event))
    told = json.loads(feed.news(place))
    assert told["held_out"]["rows"] == [[0, 0.5], [2, 0.5], [4, 0.5]]
    assert {name: it["rows"] for name, it in told["own"].items()} == {"accuracy": [[2, 50], [4, 60]], "f1": [[4, 0.5]]}
    assert told["state"]["own"] == {"accuracy": 60.0, "f1": 0.5}
    assert (told["state"]["units"], told["state"]["metric"]) == ({"accuracy": "%"}, "nats")
    assert feed.status()["own"] == {"accuracy": 60.0, "f1": 0.5}


async def test_the_page_has_those_of_earlier_processes(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("".join(map(to_line, (evaluated(0), evaluated(2, accuracy=50.0), evaluated(2, accuracy=55.0)))))
    assert earlier_rounds(log, log.stat().st_size).own == {"accuracy": [(2, 55.0)]}
    feed = Feed(NodeProgress("n"), log=log)
    feed.observe(typed(evaluated(4, f1=0.5, accuracy=60.0)))
    await feed.replay()
    own = json.loads(feed.news(FeedPosition()))["own"]
    assert own["accuracy"]["rows"] == [[2, 55], [4, 60]]


def test_whatever_is_told_their_number_is_bounded() -> None:
    assert MAX_OWN == MAX_METRICS
    many = {f"m{number}": 1.0 for number in range(100)}
    progress = NodeProgress("n")
    feed = Feed(progress)
    for event in (evaluated(1, **many), evaluated(2, **{f"n{number}": 1.0 for number in range(100)})):
        progress.observe(typed(event))
        feed.observe(typed(event))
    assert len(progress.own) == MAX_OWN
    assert len(json.loads(feed.news(FeedPosition()))["own"]) == MAX_OWN


def test_prometheus_has_one_family_by_name() -> None:
    metrics = Metrics()
    for event in (STARTED, evaluated(2, accuracy=50.0, gone=1.0), evaluated(4, accuracy=60.0, f1=0.5)):
        metrics.observe(typed(event))
    families = text_string_to_metric_families(metrics.exposition().decode())
    (own,) = [family for family in families if family.name == "p2ptrain_own_metric"]
    assert {sample.labels["name"]: sample.value for sample in own.samples} == {"accuracy": 60.0, "f1": 0.5}


def test_exporters_lines_and_top_have_them() -> None:
    event = evaluated(4, accuracy=60.25, f1=0.5)
    assert dict(numbers(event)) == {"eval_loss": 0.5, "own/accuracy": 60.25, "own/f1": 0.5}
    assert describe(typed(event))[0].plain.endswith("eval loss 0.500  accuracy 60.25  f1 0.5")
    nodes = []
    for value in (60.0, 70.0):
        progress = NodeProgress("n")
        for it in (STARTED, evaluated(4, accuracy=value)):
            progress.observe(typed(it))
        nodes.append(Watched(progress))
    out = io.StringIO()
    Console(file=out, width=80).print(screen(nodes, now=10.0))
    assert out.getvalue().splitlines()[1].strip() == "accuracy 65 %"
