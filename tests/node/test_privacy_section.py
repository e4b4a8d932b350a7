"""The section [privacy]: what it refuses in one line, and that by default nothing is protected."""

import pytest

from node.config.privacy_section import PrivacyConfig
from node.config.run_settings import may_change
from node.config.schema import Config, differing, from_raw, load
from node.system.errors import UsageError


def test_by_default_nothing_is_protected() -> None:
    assert not Config().privacy.on
    assert Config().privacy.find().unit == "nothing"


def test_settings_go_to_the_privatizer() -> None:
    config = load(sets=["privacy.privatizer=example", "privacy.noise=0.8", "privacy.clip=0.5", "privacy.epsilon=4"])
    privatizer = config.privacy.find()
    assert privatizer.unit == "example"
    release = privatizer.release(rate=0.01, count=20)
    assert release is not None
    assert (release.mechanism, release.noise, release.rate, release.count) == ("example", 0.8, 0.01, 20)
    assert config.privacy.epsilon == 4


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"privatizer": "exampel"}, "unknown privacy.privatizer 'exampel', did you mean example?"),
        ({"privatizer": "example", "noise": 0.0}, "privacy.noise"),
        ({"privatizer": "example", "noise": float("nan")}, "privacy.noise"),
        ({"privatizer": "example", "clip": float("inf")}, "privacy.clip"),
        ({"privatizer": "example", "clip": -1.0}, "privacy.clip"),
        ({"privatizer": "update", "noise": 1e300, "clip": 1e300}, "noise times clip"),
        ({"privatizer": "example", "rate": 0.0}, "privacy.rate"),
        ({"privatizer": "example", "rate": 1.5}, "privacy.rate"),
        ({"privatizer": "update", "rate": 0.5}, "draws none"),
        ({"privatizer": "example", "delta": 1.0}, "privacy.delta"),
        ({"privatizer": "example", "epsilon": 0.0}, "privacy.epsilon"),
        ({"privatizer": "example", "chunk": 0}, "privacy.chunk"),
        ({"epsilon": 2.0}, "privacy.epsilon=2 limits nothing"),
    ],
)
def test_what_cannot_be_is_one_line(raw: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_raw({"privacy": raw})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_it_is_a_machines_own_and_no_part_of_what_members_agree_on() -> None:
    config = from_raw({"privacy": {"privatizer": "update", "noise": 2.0}})
    assert differing(config, ("task", "train", "sync")) == {"task": {}, "train": {}, "sync": {}}
    assert may_change("privacy", "noise")
    assert PrivacyConfig() == Config().privacy
