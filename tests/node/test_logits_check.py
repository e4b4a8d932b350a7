"""What members that share logits do not go with is refused in one line, before anything is trained."""

from types import SimpleNamespace
from typing import Any

import pytest

from node.config.schema import Config, from_raw
from node.roles.assembly import check_runnable, own_learner
from node.roles.logits_check import check_logits
from node.roles.trainer import _try_task
from node.swarm.agreed_settings import settings_of
from node.system.errors import UsageError
from p2ptrain.training import Trainer
from p2ptrain.training.logits_trainer import LogitsTrainer

LOGITS = {"train": {"shares": "logits"}, "task": {"name": "digits", "public": 20}}


def config_of(*parts: dict[str, Any]) -> Config:
    raw: dict[str, Any] = {}
    for part in parts:
        for section, keys in part.items():
            raw[section] = {**raw.get(section, {}), **keys}
    return from_raw(raw)


@pytest.mark.parametrize(
    ("with_it", "words"),
    [
        ({"node": {"role": "observer"}}, "node.role=observer"),
        ({"node": {"lane": "process"}}, "node.lane=process"),
        ({"train": {"local": ["6.*"]}}, "train.local"),
        ({"personal": {"strength": 0.1}}, "personal.strength"),
        ({"train": {"drift": "fedprox"}}, "train.drift=fedprox"),
        ({"train": {"step_normalization": "fednova"}}, "train.step_normalization"),
        ({"train": {"late_average": 0.1}}, "train.late_average"),
        ({"sync": {"strategy": "allreduce"}}, "sync.strategy=allreduce"),
        ({"sync": {"strategy": "secure_average"}}, "sync.strategy=secure_average"),
        ({"sync": {"aggregator": "zeno"}}, "sync.aggregator=zeno"),
        ({"sync": {"regions": ["a", "b"]}, "node": {"region": "a"}}, "sync.regions"),
        ({"shift": {"detector": "page_hinkley"}}, "shift.detector"),
        ({"budget": {"memory": "2GB"}}, "budget.memory"),
        ({"privacy": {"privatizer": "update"}}, "privacy.privatizer=update"),
    ],
)
def test_what_logits_do_not_go_with_is_one_line(with_it: dict[str, Any], words: str) -> None:
    config = config_of(LOGITS, with_it)
    with pytest.raises(UsageError, match=f"train.shares=logits does not go with {words}"):
        check_logits(config)
    check_logits(config_of({"task": {"name": "digits"}}, with_it))


def test_a_loop_of_one_s_own_is_refused() -> None:
    with pytest.raises(UsageError, match=r"p2ptrain\.join"):
        check_logits(config_of(LOGITS), user_loop=True)


def test_what_it_goes_with_is_built() -> None:
    for part in ({}, {"privacy": {"privatizer": "example"}}, {"sync": {"strategy": "diloco"}}):
        check_runnable(config_of(LOGITS, part))
    assert isinstance(own_learner(config_of(LOGITS), "peer"), LogitsTrainer)


def test_a_node_by_itself_tries_the_task_before_it_starts() -> None:
    """`up` tries it in a process of its own; `p2ptrain node` tries what it trains with, which is not the task's own
    trainer here."""
    config = config_of(LOGITS)
    told: list[object] = []
    node = SimpleNamespace(
        config=config,
        inner=SimpleNamespace(trainer=own_learner(config, "peer")),
        journal=SimpleNamespace(emit=told.append),
    )
    _try_task(node)  # type: ignore[arg-type]
    assert told == []
    assert type(own_learner(config_of({"task": {"name": "digits"}}), "peer")) is Trainer


def test_a_manifest_says_so_where_it_is_so_and_is_what_it_was_elsewhere() -> None:
    keys = {"shares", "public_digest", "distill_temperature", "distill_rate"}
    assert not keys & settings_of(config_of({"task": {"name": "digits"}}))["train"].keys()
    assert settings_of(config_of(LOGITS))["train"]["shares"] == "logits"
