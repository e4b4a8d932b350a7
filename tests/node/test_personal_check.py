"""What models that stay personal do not go with is refused in one line, before anything is trained."""

from typing import Any

import pytest

from node.config.run_settings import may_change
from node.config.schema import Config, changed, from_raw
from node.roles.assembly import check_runnable, own_trainer, run_info
from node.roles.personal_check import check_personal
from node.roles.site_check import check_site
from node.roles.task_check import check_task
from node.system.errors import UsageError
from node.system.ranks import SiteProcess
from p2ptrain.tasks import Shard
from p2ptrain.tasks.digits import Digits
from p2ptrain.training import Trainer
from p2ptrain.training.batched_trainer import check_batched
from p2ptrain.training.ditto import DittoTrainer

LOCAL = {"train": {"local": ["6.*"]}}
DITTO = {"personal": {"strength": 0.1}}


def config_of(*parts: dict[str, Any]) -> Config:
    raw: dict[str, Any] = {"task": {"name": "digits"}}
    for part in parts:
        for section, keys in part.items():
            raw[section] = {**raw.get(section, {}), **keys}
    return from_raw(raw)


@pytest.mark.parametrize(
    ("what", "with_it", "words"),
    [
        (LOCAL, {"node": {"lane": "process"}}, "node.lane=process"),
        (LOCAL, {"task": {"name": "external"}}, "p2ptrain.join"),
        (LOCAL, {"privacy": {"privatizer": "update"}}, "privacy.privatizer=update"),
        (LOCAL, {"train": {"local_steps": 2}, "node": {"pace": "dylu"}}, "node.pace=dylu"),
        (DITTO, {"node": {"lane": "process"}}, "node.lane=process"),
        (DITTO, {"task": {"name": "external"}}, "p2ptrain.join"),
        (DITTO, {"privacy": {"privatizer": "example"}}, "privacy"),
        (DITTO, {"budget": {"memory": "8GiB"}}, "budget.memory"),
        (DITTO, {"budget": {"disk": "8GiB"}}, "budget.disk"),
    ],
)
def test_what_it_does_not_go_with(what: dict[str, Any], with_it: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_runnable(config_of(what, with_it))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert ("train.local" if what is LOCAL else "personal.strength") in str(refused.value)


@pytest.mark.parametrize("what", [LOCAL, DITTO])
def test_a_loop_of_the_users_own_and_a_site_have_neither(what: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="join"):
        check_personal(config_of(what), user_loop=True)
    ranks = SiteProcess(rank=0, count=2, local_rank=0, restarts=0)
    with pytest.raises(UsageError, match="a site has no"):
        check_site(config_of(what), ranks, run_dir_given=True)


def test_models_that_are_stepped_together_have_no_local_parameters() -> None:
    with pytest.raises(ValueError, match=r"train\.local"):
        check_batched(Digits(), config_of(LOCAL).train)


def test_local_parameters_go_with_private_examples() -> None:
    check_runnable(config_of(LOCAL, {"privacy": {"privatizer": "example"}}))


def test_a_personal_model_is_a_machines_own_and_local_parameters_are_the_runs() -> None:
    assert may_change("personal", "strength")
    assert not may_change("train", "local")
    assert changed(config_of(LOCAL), ("train",)) == ['train.local=[ "6.*", ]']
    assert changed(Config(), ("train",)) == []


def test_who_trains_gets_its_personal_model() -> None:
    trainer = own_trainer(config_of(LOCAL, DITTO), "peer")
    assert isinstance(trainer, DittoTrainer)
    assert trainer.local is not None
    assert type(own_trainer(config_of(DITTO, {"node": {"role": "observer"}}), "peer")) is Trainer
    assert type(own_trainer(config_of(), "peer")) is Trainer


def test_another_pattern_is_another_run() -> None:
    runs = set()
    for local in ([], ["6.*"], ["1.*"], ["4.*"]):
        config = config_of({"train": {"local": local}})
        trainer = own_trainer(config, "peer")
        runs.add(run_info(config, trainer.fingerprint, trainer.vector()).run_id)
    assert len(runs) == 4


class Plain:
    """A task without splits of its own."""

    name, metric = "plain", "nats"

    def __init__(self) -> None:
        self._of = Digits()
        self.build_model, self.train_batch = self._of.build_model, self._of.train_batch
        self.eval_batches, self.loss, self.tokens = self._of.eval_batches, self._of.loss, self._of.tokens


@pytest.mark.parametrize("what", [LOCAL, DITTO])
def test_a_task_without_own_splits_is_told_so(what: dict[str, Any]) -> None:
    assert any("shard_eval_batches" in line for line in check_task(config_of(what), Plain(), Shard()))
    assert not any("shard_eval_batches" in line for line in check_task(config_of(), Plain(), Shard()))
