"""What a privatizer does not go with is refused in one line, before anything is trained; nothing goes on without it."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from node.config.auto_rate import find_rate
from node.config.schema import Config, from_raw
from node.privacy.budget import PrivacyBudget
from node.privacy.ledger import PrivacyLedger
from node.roles.assembly import check_runnable, own_trainer
from node.roles.privacy_check import check_privacy, privacy_budget
from node.roles.site_check import check_site
from node.roles.visitors_privacy import visitor_ledger
from node.system.errors import UsageError
from node.system.ranks import SiteProcess
from node.system.run_dir import PRIVACY
from node.visits.visitor_ledger import VisitorLedger
from p2ptrain.privacy.allowance import unaccounted
from p2ptrain.privacy.base import Release
from p2ptrain.training import Trainer

EXAMPLE = {"privatizer": "example"}
UPDATE = {"privatizer": "update"}
SUMS = {"privatizer": "secure_update", "noise": 0.5, "clip": 0.2}
SECURE = {"strategy": "secure_average", "clipping_range": 1.0, "sum_noise": 0.5, "sum_clip": 0.2}


def raw_of(privacy: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return {"task": {"name": "digits"}, "privacy": privacy, **sections}


@pytest.mark.parametrize(
    ("privacy", "sections", "words"),
    [
        (EXAMPLE, {"node": {"lane": "process"}}, "node.lane=process"),
        (UPDATE, {"node": {"lane": "process"}}, "node.lane=process"),
        (EXAMPLE, {"task": {"name": "external"}}, "p2ptrain.join"),
        (EXAMPLE, {"train": {"compile": True}}, "train.compile"),
        (EXAMPLE, {"budget": {"memory": "8GiB"}}, "budget.memory"),
        (UPDATE, {"budget": {"memory": "8GiB"}}, "budget.memory"),
        (UPDATE, {"sync": {"strategy": "mime"}}, "sync.strategy=mime"),
        (UPDATE, {"sync": {"strategy": "des_loc"}}, "sync.strategy=des_loc"),
        (SUMS, {}, "sync.strategy=tracked_gossip without sync.sum_noise"),
        (SUMS, {"sync": {"strategy": "secure_average"}}, "sync.strategy=secure_average without sync.sum_noise"),
        (SUMS, {"sync": SECURE | {"sum_noise": 0.4}}, "other sync.sum_noise or sum_clip"),
        (SUMS, {"sync": SECURE | {"sum_clip": 0.3}}, "other sync.sum_noise or sum_clip"),
        (SUMS, {"sync": SECURE, "node": {"lane": "process"}}, "node.lane=process"),
    ],
)
def test_what_it_does_not_go_with(privacy: dict[str, Any], sections: dict[str, Any], words: str) -> None:
    config = from_raw(raw_of(privacy, **sections))
    for attempt in (lambda: check_runnable(config), lambda: own_trainer(config, "peer")):
        with pytest.raises(UsageError) as refused:
            attempt()
        assert words in str(refused.value)
        assert f"privacy.privatizer={privacy['privatizer']}" in str(refused.value)
        assert "\n" not in refused.value.line()


def test_noise_in_sums_goes_with_what_all_members_set() -> None:
    check_privacy(from_raw(raw_of(SUMS, sync=SECURE)))


def test_a_loop_of_the_users_own_has_it_once_its_start_is_said_to_be_public_and_its_rate_is_set() -> None:
    external = {"task": {"name": "external"}}
    with pytest.raises(UsageError, match=r"p2ptrain\.join.*privacy\.public_start=true"):
        check_privacy(from_raw(raw_of(UPDATE, **external)), user_loop=True)
    check_privacy(from_raw(raw_of(UPDATE | {"public_start": True}, **external)), user_loop=True)
    with pytest.raises(UsageError, match=r"without privacy\.rate; set it to the batch"):
        check_privacy(from_raw(raw_of(EXAMPLE | {"public_start": True}, **external)), user_loop=True)
    check_privacy(from_raw(raw_of(EXAMPLE | {"public_start": True, "rate": 0.1}, **external)), user_loop=True)
    with pytest.raises(UsageError, match="=example or update"):
        check_privacy(from_raw(raw_of(SUMS | {"public_start": True}, sync=SECURE, **external)), user_loop=True)
    with pytest.raises(UsageError, match="public_start and a task"):
        check_privacy(from_raw(raw_of(UPDATE | {"public_start": True})))


def test_no_site_has_it() -> None:
    process = SiteProcess(rank=0, count=2, local_rank=0, local_count=2, restarts=0)
    with pytest.raises(UsageError, match=r"a site has no privacy\.privatizer=example"):
        check_site(from_raw(raw_of(EXAMPLE)), process, run_dir_given=True)


def test_no_rate_is_searched_for_on_private_data() -> None:
    with pytest.raises(UsageError, match="no privatizer covers it"):
        find_rate(raw_of(EXAMPLE, train={"learning_rate": "auto"}), lambda trial: None)


@pytest.mark.parametrize("privacy", [EXAMPLE, UPDATE])
def test_nothing_is_trained_where_nobody_writes_down_what_is_told(privacy: dict[str, Any]) -> None:
    config = from_raw(raw_of(privacy))
    with pytest.raises(UsageError, match="nothing here writes down what is told"):
        own_trainer(config, "peer")
    observer = from_raw(raw_of(privacy, node={"role": "observer"}))
    assert not own_trainer(observer, "peer").is_private, "it takes no step"


@pytest.mark.parametrize("privacy", [EXAMPLE, UPDATE])
def test_a_nodes_trainer_spends_what_its_settings_say(privacy: dict[str, Any]) -> None:
    spent: list[Release] = []
    config = from_raw(raw_of(privacy | {"noise": 0.8}, node={"shard_count": 4, "shard_index": 0}))
    trainer = own_trainer(config, "peer", spend=spent.append)
    assert isinstance(trainer, Trainer)
    assert trainer.is_private
    trainer.begin_round()
    trainer.ask_ahead(6)
    trainer.take_step()
    (release,) = spent
    expected = (6, 16 / 360) if privacy is EXAMPLE else (1, 1.0)
    assert (release.mechanism, release.noise) == (privacy["privatizer"], 0.8)
    assert (release.count, release.rate) == (expected[0], pytest.approx(expected[1]))


def test_a_budget_that_nobody_counts_is_refused() -> None:
    config = from_raw(raw_of(EXAMPLE | {"epsilon": 2.0}))
    with pytest.raises(UsageError, match="nobody counts here what is spent"):
        own_trainer(config, "peer", spend=unaccounted)
    assert own_trainer(config, "peer", spend=lambda release: None).is_private


def test_by_default_a_nodes_trainer_protects_nothing() -> None:
    trainer = own_trainer(from_raw({"task": {"name": "digits"}}), "peer")
    assert not trainer.is_private


def test_data_that_were_protected_are_not_trained_on_without(tmp_path: Path) -> None:
    off = from_raw({"task": {"name": "digits"}})

    def opened(config: Config) -> PrivacyBudget | None:
        with privacy_budget(config, tmp_path, lambda event: None) as budget:
            return budget

    assert opened(off) is None
    assert opened(from_raw(raw_of(EXAMPLE))) is not None
    assert opened(off) is None, "nothing was released"
    ledger = PrivacyLedger(tmp_path / PRIVACY)
    ledger.append(Release(mechanism="example", noise=1.0, rate=0.1, count=6))
    ledger.close()
    with pytest.raises(UsageError, match=r"this node's data were protected, and \[privacy\] is off now") as caught:
        opened(off)
    assert "move that file away" in caught.value.line()
    assert opened(from_raw({"task": {"name": "digits"}, "node": {"role": "observer"}})) is None, "it trains on nothing"
    (tmp_path / PRIVACY).rename(tmp_path / "kept.jsonl")
    assert opened(off) is None


@pytest.mark.parametrize(
    ("before", "now", "goes_on"),
    [
        ("update", EXAMPLE, False),  # Adam's moments are of gradients that no noise covers
        ("example", UPDATE, False),  # its steps hide single examples, and not all that the member has
        ("secure_update", UPDATE, False),  # the checkpoint has moves that only a sum hid
        ("class_statistics", UPDATE, False),
        ("class_statistics", EXAMPLE, True),
        ("example", EXAMPLE, True),
        ("update", UPDATE | {"noise": 3.0, "clip": 0.1}, True),
    ],
)
def test_a_folder_has_one_privatizer(before: str, now: dict[str, Any], goes_on: bool, tmp_path: Path) -> None:
    ledger = PrivacyLedger(tmp_path / PRIVACY)
    ledger.append(Release(mechanism=before, noise=1.0, rate=1.0, count=1))
    ledger.close()
    with ExitStack() as stack:
        if not goes_on:
            words = rf"has releases of {before}, and privacy\.privatizer is {now['privatizer']}"
            stack.enter_context(pytest.raises(UsageError, match=words))
        with privacy_budget(from_raw(raw_of(now)), tmp_path, lambda event: None) as budget:
            assert budget is not None
            assert budget.epsilon > 0


def test_visitors_who_were_protected_are_not_served_without(tmp_path: Path) -> None:
    visits = {"listen": "127.0.0.1:1", "trim": 0.0}

    def opened(noise: float | None) -> VisitorLedger | None:
        with_noise = {} if noise is None else {"noise": noise}
        config = from_raw({"task": {"name": "digits"}, "visits": visits | with_noise})
        with visitor_ledger(config, tmp_path, lambda event: None) as ledger:
            if ledger is not None:
                ledger.charge([bytes(32)])
            return ledger

    assert opened(None) is None
    assert opened(1.0) is not None
    with pytest.raises(UsageError, match=r"visitors' data were protected, and visits\.noise is off now"):
        opened(None)
