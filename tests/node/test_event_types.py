"""Typed events: records as they were before there were types, and records of releases that know other things."""

import json
from dataclasses import MISSING, FrozenInstanceError, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typed_events import said

from gossip.core.api import EventName, GossipEvent
from gossip.core.errors import Reason
from gossip.core.ids import PeerId
from node.events.event_types import (
    Banned,
    Event,
    LearnerStarted,
    RoundClosed,
    RoundTrained,
    Started,
    WarningEvent,
    kinds,
    parse,
)
from node.events.gossip_events import translate
from node.events.log import EventLog, event_in, read_events

BEFORE = Path(__file__).parents[1] / "data" / "events-before-types.jsonl"
"""One line of each kind, written by the release before events had types (commit fcc3e49)."""


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in BEFORE.read_text(encoding="utf-8").splitlines()]


def test_every_record_of_the_release_before_comes_back_as_it_was():
    told = records()
    newer = {
        "region",
        "regions",
        "paused",
        "unpaused",
        "budget_planned",
        "chosen",
        "privacy_budget_spent",
        "secure_round",
        "shift",
        "statistics_shared",
        "warmed_up",
    }
    assert {record["event"] for record in told} == {kind.name for kind in kinds()} - newer
    for record in told:
        event = parse(record)
        assert event is not None
        assert event.to_record() == record


def test_a_record_has_the_type_that_its_fields_say():
    rounds = [parse(record) for record in records() if record["event"] == "round"]
    assert [type(event) for event in rounds] == [RoundTrained, RoundClosed]
    started = [parse(record) for record in records() if record["event"] == "started"]
    assert [type(event) for event in started] == [LearnerStarted, Started]


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"ts": 1.0},
        {"ts": 1.0, "event": "of_the_future"},
        {"ts": 1.0, "event": ["round"]},
        {"event": "waiting", "message": "no time"},
        {"ts": "1", "event": "waiting"},
        {"ts": 1.0, "event": "round", "round": "3"},
        {"ts": 1.0, "event": "evaluated", "eval_loss": 2.0},
    ],
)
def test_what_says_nothing_is_no_event(record):
    assert parse(record) is None


def test_fields_of_other_releases_are_passed_over_and_missing_ones_have_defaults():
    event = parse({"ts": 1.0, "event": "warning", "message": "look", "colour": "red"})
    assert event == WarningEvent(ts=1.0, message="look", about=None, recovered=None)
    event = parse({"ts": 1, "event": "round", "round": 3, "steps": 20})
    assert isinstance(event, RoundTrained)
    assert (event.train_loss, event.staleness, event.gpu_share) == (None, None, None)
    assert (event.closed_by, event.clipped, event.energy_j, event.tokens) == ("", [], {}, 0)


@pytest.mark.parametrize("role", [None, [], {}, 3])
def test_a_start_in_a_role_that_is_no_word_is_a_learners(role):
    assert isinstance(parse({"ts": 1.0, "event": "started", "role": role}), LearnerStarted)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(sorted({f.name for kind in kinds() for f in fields(kind)})), st.from_type(object))
)
def test_no_value_is_an_end_of_it(values):
    for kind in kinds():
        event = parse({**values, "ts": 1.0, "event": kind.name, "round": 7})
        assert event is not None
        hints = get_type_hints(type(event))
        for field in fields(event):
            if hints[field.name] in (int, str, float, bool):
                accepted = (int, float) if hints[field.name] is float else (hints[field.name],)
                assert isinstance(getattr(event, field.name), accepted)


def test_types_are_frozen_and_say_what_they_are():
    for kind in kinds():
        assert kind.__doc__
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert all(field.default in (MISSING, None) or field.name == "ts" for field in fields(kind)), kind
    with pytest.raises(FrozenInstanceError):
        said("waiting", message="a").message = "b"


def test_the_network_tells_in_the_same_words():
    for name in get_args(EventName):
        reason = Reason.FORGED if name in {"rejected", "banned", "equivocation"} else None
        event = translate(GossipEvent(name=name, peer=PeerId("p"), reason=reason, detail="why"))
        record = event.to_record()
        if name == "warning":
            assert record == {"ts": 0.0, "event": "warning", "message": "why"}
            continue
        told = {"ts": 0.0, "event": name, "peer": "p", "detail": "why"}
        assert record == (told | {"reason": "forged"} if reason else told)


def test_secrets_are_hidden_before_anybody_hears_and_the_event_keeps_its_type(tmp_path):
    heard: list[Event] = []
    with EventLog(tmp_path / "e.jsonl", sinks=[heard.append], clock=lambda: 5.0) as emit:
        emit.redact.learn("a long secret of this node")
        told = emit(Banned(peer="p", detail="it said: a long secret of this node", reason="forged"))
        plain = WarningEvent(message="nothing to hide")
        emit(plain)
    assert heard[0] is told
    assert told == Banned(ts=5.0, peer="p", detail="it said: [secret]", reason="forged")
    assert list(read_events(tmp_path / "e.jsonl")) == heard
    assert plain.ts == 0.0, "the log tells a copy"
    assert event_in(b'{"ts": 1, "event": "round"}\n') is None
