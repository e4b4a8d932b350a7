"""What secure averaging does not go with is refused in one line, before anything is summed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from node.config.schema import from_raw
from node.planning.payload_sizes import check_plannable
from node.roles.assembly import check_runnable, network_for
from node.roles.secure_check import check_secure
from node.system.errors import UsageError
from node.training.visiting import check_visits
from node.up.plan import make_plan
from p2ptrain.sync import SecureStrategy, build


def raw_of(sync: dict[str, Any] | None = None, **sections: dict[str, Any]) -> dict[str, Any]:
    return {"task": {"name": "digits"}, "sync": {"strategy": "secure_average", **(sync or {})}, **sections}


@pytest.mark.parametrize(
    ("sync", "sections", "words"),
    [
        (
            {},
            {"network": {"degree": 2}},
            "a group has 4 members, who all have to know each other, and network.degree=2",
        ),
        ({"group": 12}, {"network": {"degree": 10}}, "is enough for 11"),
        ({"members": 12}, {}, "the run has 12 members, .* network.degree=8 is enough for 9"),
        ({}, {"privacy": {"privatizer": "update", "noise": 0.5, "clip": 0.2}}, "cuts noise of standard deviation 0.1"),
    ],
)
def test_settings_that_would_open_nothing_or_cut_the_noise(
    sync: dict[str, Any], sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as wrong:
        check_runnable(from_raw(raw_of(sync, **sections)))
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    ("sync", "sections"),
    [
        ({}, {"network": {"degree": 3}}),
        ({"members": 12}, {"network": {"degree": 11}}),
        ({"clipping_range": 0.4}, {"privacy": {"privatizer": "update", "noise": 0.5, "clip": 0.2}}),
        ({}, {"privacy": {"privatizer": "example", "noise": 0.5}}),
        ({"members": 12}, {"node": {"role": "observer"}}),
    ],
)
def test_settings_that_are_enough(sync: dict[str, Any], sections: dict[str, Any]) -> None:
    check_secure(from_raw(raw_of(sync, **sections)))


def test_other_strategies_may_know_fewer() -> None:
    check_secure(from_raw({"task": {"name": "digits"}, "network": {"degree": 1}}))


def test_visits_regions_and_plans_are_refused() -> None:
    visits = {"listen": "127.0.0.1:8443", "plain": True}
    with pytest.raises(UsageError, match="nobody is to see more than sums"):
        check_visits(from_raw(raw_of(visits=visits)))
    regions = raw_of({"regions": ["east", "west"]}, node={"region": "east"})
    with pytest.raises(UsageError, match="does not average between regions"):
        check_runnable(from_raw(regions))
    with pytest.raises(ValueError, match="masks and shares as well, which no plan counts"):
        check_plannable(from_raw(raw_of()).sync)


def test_a_swarm_smaller_than_a_group_is_refused_before_it_starts(tmp_path: Path) -> None:
    config = from_raw(raw_of())
    with pytest.raises(UsageError, match="a group has 4 members, and there are 3 nodes"):
        make_plan(config, run_dir=tmp_path, nodes=3, byzantine=0, cores=2)
    assert len(make_plan(config, run_dir=tmp_path, nodes=4, byzantine=0, cores=2).nodes) == 4
    other = from_raw({"task": {"name": "digits"}})
    assert len(make_plan(other, run_dir=tmp_path, nodes=1, byzantine=0, cores=2).nodes) == 1


@pytest.mark.parametrize("sync", [{}, {"refresh": 1}, {"bits": 29}, {"group": 8, "refresh": 2, "bits": 24}])
def test_sums_of_the_largest_group_are_let_through(sync: dict[str, Any]) -> None:
    """A sum may be longer than a snapshot, which has 32 bits a parameter: more than that travels in a round."""
    numel, config = 300_000, from_raw(raw_of(sync, network={"degree": 32}))
    strategy = build(config.sync, torch.zeros(numel), "own")
    assert isinstance(strategy, SecureStrategy)
    members = 2 * config.sync.options["group"] - 1
    assert strategy.published_size(members) <= network_for(config, numel).max_payload_bytes


def test_a_sum_above_the_limit_is_refused_at_the_start() -> None:
    numel = 300_000
    raw = raw_of({"refresh": 1}, network={"max_payload_bytes": 4 * numel})
    with pytest.raises(UsageError, match="a secure sum of this model has 1425008 bytes, above"):
        network_for(from_raw(raw), numel)
    assert network_for(from_raw(raw_of(network={"max_payload_bytes": 4 * numel})), numel).max_payload_bytes == 4 * numel
