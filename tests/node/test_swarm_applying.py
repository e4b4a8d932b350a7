"""A newer manifest at a trainer: from its round on, for training and for closing, and once."""

from types import SimpleNamespace
from typing import Any

import pytest

from gossip.membership import Authority, ManifestBody, ManifestChain, create_manifest, next_version
from node.config.schema import Config
from node.events.event_types import Event
from node.swarm import agreed_settings
from node.swarm.effective_manifest import holding, rounds_of
from node.training.manifest_updates import follow_manifests
from node.training.node import Node
from node.training.pace import Pace
from node.training.run_state import RunState

ADMIN = Authority(b"\x07" * 32)


class Parts:
    """As much of a node as a manifest touches."""

    def __init__(self, *, round: int = 0, config: Config | None = None) -> None:
        pace = Pace("own", 20, f=0, own="own", clock=lambda: 0.0)
        self.state = RunState(config=config or Config(), pace=pace, round=round)
        self.settled: list[Any] = []
        self.inner = SimpleNamespace(trainer=SimpleNamespace(config=self.config.train))
        self.service = SimpleNamespace(round_closer=SimpleNamespace(settle=self.settled.append))

    @property
    def config(self) -> Config:
        return self.state.config


def chain(*versions: tuple[int, dict[str, Any]]) -> ManifestChain:
    """A first version with the defaults, and these: (applies_at, changes)."""
    terms = ManifestBody(name="lab", admins=(ADMIN.public_key,), settings=agreed_settings.settings_of(Config()))
    made = ManifestChain(create_manifest(terms, b"n" * 16).signed_by(ADMIN))
    for at, changes in versions:
        extend(made, at, changes)
    return made


def extend(made: ManifestChain, at: int, changes: dict[str, Any]) -> None:
    from dataclasses import replace

    terms = made.newest.terms
    after = replace(terms, settings=agreed_settings.changed(terms.settings, changes))
    made.accept(next_version(made.newest, after, applies_at=at).signed_by(ADMIN))


def follow(node: Parts, made: ManifestChain) -> tuple[Any, list[tuple[str, dict[str, Any]]]]:
    told: list[tuple[str, dict[str, Any]]] = []

    def emit(event: Event) -> None:
        fields = {name: value for name, value in event.to_record().items() if name not in {"ts", "event"}}
        told.append((event.name, fields))

    real: Node = node  # type: ignore[assignment]
    return follow_manifests(real, made, emit), told


def test_training_begins_by_it_a_phase_before_the_round_is_closed_by_it() -> None:
    node, made = Parts(), chain((3, {"train.learning_rate": 0.5, "network.quorum": 0.5}))
    _, told = follow(node, made)
    rates = []
    state = node.state
    for state.round in range(5):
        for state.closing in (False, True):
            node.state.apply_manifests()
            rates.append(
                (
                    node.state.round,
                    node.state.closing,
                    node.inner.trainer.config.learning_rate,
                    node.config.network.quorum,
                )
            )
    before, after = Config().train.learning_rate, 0.5
    assert rates[4] == (2, False, before, Config().network.quorum)
    assert rates[5] == (2, True, after, Config().network.quorum)
    assert rates[6] == (3, False, after, 0.5)
    assert [event for event, _ in told] == ["manifest"]
    assert told[0][1] == {"version": 2, "applies_at": 3, "round": 3, "changes": {"train.learning_rate": 0.5}}
    assert [each.quorum for each in node.settled] == [0.5]


def test_a_node_that_starts_late_begins_with_what_holds_in_its_round() -> None:
    node = Parts(round=9)
    _, told = follow(node, chain((3, {"train.clip_norm": 2.0}), (20, {"train.clip_norm": 3.0})))
    assert node.config.train.clip_norm == 2.0
    assert [fields["version"] for _, fields in told] == [2]


def test_one_that_goes_on_behind_takes_back_what_does_not_hold_yet() -> None:
    made = chain((20, {"train.clip_norm": 3.0}))
    newest = Config().model_copy(update={"train": type(Config().train)(clip_norm=3.0)})
    node = Parts(config=newest, round=5)
    follow(node, made)
    assert node.inner.trainer.config.clip_norm == Config().train.clip_norm


@pytest.mark.parametrize(("at", "late"), [(3, True), (8, False)])
def test_what_is_heard_while_training(at: int, late: bool) -> None:
    node, made = Parts(round=5), chain()
    heard, told = follow(node, made)
    extend(made, at, {"train.learning_rate": 0.5})
    heard(made.newest)
    assert (node.config.train.learning_rate == 0.5) is late
    assert [event for event, _ in told] == (["warning", "manifest"] if late else [])


def test_a_version_about_members_alone_is_told_and_changes_nothing() -> None:
    node, made = Parts(round=5), chain()
    heard, told = follow(node, made)
    extend(made, 0, {})
    heard(made.newest)
    assert node.config == Config()
    assert [(event, fields["changes"]) for event, fields in told] == [("manifest", {})], "and it is not late"


def test_what_this_program_cannot_apply_is_said_and_passed_over() -> None:
    node = Parts(round=5)
    _, told = follow(node, chain((0, {"train.learning_rate": -1.0})))
    assert node.config == Config()
    assert told[0][0] == "warning"


@pytest.mark.parametrize("at", [60, 70], ids=["where it ends", "behind its end"])
def test_a_finished_member_that_hears_of_more_rounds_has_them_at_once(at: int) -> None:
    node, made = Parts(round=60), chain()
    heard, told = follow(node, made)
    extend(made, at, {"train.rounds": 80, "train.learning_rate": 0.5})
    heard(made.newest)
    assert (node.config.train.rounds, node.config.train.learning_rate) == (80, 0.5)
    assert [event for event, _ in told] == ["manifest"]


def test_what_holds_where_rounds_were_added_more_than_once() -> None:
    late = {"train.clip_norm": 9.0}
    made = chain((70, late), (70, {"train.rounds": 80}), (80, {"train.rounds": 90}), (95, {"train.clip_norm": 5.0}))
    held = [holding(made, round_).version for round_ in (0, 59, 60, 79, 80, 89, 90, 95)]
    assert held == [1, 1, 3, 3, 4, 4, 4, 5]
    assert rounds_of(made) == 90, "and what holds from round 95 alone never comes"
    assert rounds_of(chain((30, {"train.rounds": 40}))) == 40


def test_a_newcomer_at_round_0_knows_how_many_rounds_there_are_where_the_others_stand() -> None:
    node = Parts()
    follow(node, chain((60, {"train.rounds": 80})))
    assert [node.config.train.rounds, node.state.rounds_at(59), node.state.rounds_at(70)] == [60, 60, 80]
