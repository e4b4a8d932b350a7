"""What a run with regions wants of a node's settings: each mistake is one line that says what to do."""

import shlex
from pathlib import Path

import pytest
import torch

from node.config.commented_toml import to_commented_toml
from node.config.schema import from_raw, join_command
from node.config.sections import merged
from node.roles.assembly import check_runnable, run_info
from node.roles.residency_check import residency_in_words
from node.system.errors import UsageError

REGIONS = ["east", "west"]
VIA = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWFbpeWcEzygwyeGzVrUa1W8B5bqGdAN7xwhRdnEJCsGDH"


def closed(**sync: object) -> dict[str, dict[str, object]]:
    """A node of the east, which nothing leaves where nothing else is said."""
    settings = {"regions": REGIONS, "residency": {"east": "nothing"}, **sync}
    return {"sync": settings, "node": {"region": "east"}}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"node": {"region": "mars"}}, "none of the run's regions, which are none"),
        ({"sync": {"regions": REGIONS}}, "this node names none"),
        ({"sync": {"regions": REGIONS}, "node": {"region": "mars"}}, "which are east, west"),
        ({"sync": {"regions": REGIONS, "strategy": "allreduce"}, "node": {"region": "east"}}, "does not average"),
        ({"sync": {"regions": ["east", "West"]}, "node": {"region": "east"}}, "'West' is no region"),
        ({"sync": {"regions": ["east"]}, "node": {"region": "east"}}, "two or more"),
        ({"node": {"region": "-"}}, "'-' is no region"),
        ({"sync": {"regions": REGIONS, "region_compressor": "q2"}}, "take int8, or int4"),
        ({"sync": {"regions": REGIONS, "region_rejoin": "largest"}}, "mean"),
        ({"sync": {"regions": REGIONS, "region_momentum": 1.0}}, r"region_momentum must be in \[0, 1\), not 1.0"),
        ({"node": {"region": "auto"}}, "the run has no regions"),
        ({"sync": {"regions": REGIONS}, "node": {"region": "auto", "role": "observer"}}, "of role observer is of no"),
        (
            {"sync": {"regions": REGIONS}, "node": {"region": "auto"}, "network": {"via": VIA}},
            "through a relay no distance",
        ),
        ({"sync": {"regions": ["auto", "west"]}, "node": {"region": "west"}}, "no region can be called auto"),
        ({"sync": {"residency": {"east": "nothing"}}}, "residency names 'east', which is none of the regions: none"),
        (closed(residency={"mars": "nothing"}), "residency names 'mars'"),
        (closed(residency={"east": 1}), 'must be "nothing" or a number of members from 2 on, not 1'),
        (closed(residency={"east": "all"}), 'must be "nothing" or a number of members from 2 on, not '),
        (closed(residency={"west": 8}), "one is of 7 at most"),
        (closed(residency={"west": 3}, aggregator="krum"), "krum does not say of how many models"),
        (closed(residency={"west": 3}, strategy="streaming"), "averages a part of the model"),
        ({**closed(), "network": {"via": VIA}}, "not said to be in region east"),
        ({**closed(), "network": {"via": VIA, "via_region": "west"}}, "not said to be in region east"),
    ],
)
def test_a_mistake_is_refused(sections: dict[str, dict[str, object]], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_runnable(from_raw({"task": {"name": "digits"}, **sections}))


def test_a_trainer_may_find_out_its_region_by_itself() -> None:
    check_runnable(from_raw({"task": {"name": "digits"}, "sync": {"regions": REGIONS}, "node": {"region": "auto"}}))


def test_an_observer_of_a_run_with_regions_is_of_none() -> None:
    check_runnable(from_raw({"task": {"name": "digits"}, "sync": {"regions": REGIONS}, "node": {"role": "observer"}}))


def test_the_regions_and_how_often_make_the_run_and_their_order_does_not() -> None:
    def run_id(**sync: object) -> bytes:
        config = from_raw({"task": {"name": "digits"}, "sync": sync})
        return run_info(config, bytes(32), torch.zeros(2)).run_id

    assert run_id() == run_id(region_every=4), "in a flat swarm it says nothing"
    assert run_id(regions=REGIONS) == run_id(regions=REGIONS[::-1]) != run_id()
    assert run_id(regions=REGIONS) != run_id(regions=REGIONS, region_every=4)
    assert run_id(regions=REGIONS) != run_id(regions=REGIONS, residency={"east": "nothing"})
    assert run_id(regions=REGIONS, residency={"east": 2}) != run_id(regions=REGIONS, residency={"east": 3})


def test_a_policy_is_in_the_settings_only_where_it_is_set() -> None:
    def sync(**settings: object) -> dict[str, object]:
        return from_raw({"task": {"name": "digits"}, "sync": settings}).model_dump(mode="json")["sync"]

    assert "residency" not in sync()
    assert "residency" not in sync(regions=REGIONS)
    assert sync(regions=REGIONS, residency={"east": "nothing", "west": 3})["residency"] == {
        "east": "nothing",
        "west": 3,
    }


@pytest.mark.parametrize("network", [{}, {"via": VIA, "via_region": "east"}])
def test_a_node_of_a_closed_region_starts_where_its_relay_is_said_to_be_there(network: dict[str, object]) -> None:
    check_runnable(from_raw({"task": {"name": "digits"}, **closed(), "network": network}))


def test_the_policy_is_one_line() -> None:
    config = from_raw({"task": {"name": "digits"}, **closed(residency={"east": "nothing", "west": 3})})
    told = "nothing leaves east; averages of 3 members or more leave west; this node is of east"
    assert residency_in_words(config) == told
    assert residency_in_words(from_raw({"task": {"name": "digits"}})) is None


def test_a_policy_is_a_table_of_a_file_and_a_region_s_own_of_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "swarm.toml"
    file.write_text('[task]\nname = "digits"\n[sync]\nregions = ["east", "west"]\n[sync.residency]\neast = "nothing"\n')
    config = from_raw(merged([file], ["sync.residency.west=4"]))
    assert config.sync.residency == {"east": "nothing", "west": 4}
    again = tmp_path / "again.toml"
    again.write_text(to_commented_toml(config))
    assert from_raw(merged([again])).sync == config.sync
    command = shlex.split(join_command(config, "ADDRESS"))
    sets = [command[at + 1] for at, word in enumerate(command) if word == "--set"]
    joined = from_raw(merged((), sets))
    assert joined.sync == config.sync
    check_runnable(joined)
    assert joined.node.region == "auto", "its own, which it finds out: the line would end in an error without one"


def test_the_line_that_joins_names_no_default_of_a_run_with_regions() -> None:
    plain = from_raw({"task": {"name": "digits"}, **closed(residency={})})
    command = join_command(plain, "ADDRESS")
    assert "sync.regions=" in command
    assert "region_" not in command
    assert "residency" not in command
    rarer = from_raw({"task": {"name": "digits"}, "sync": {"regions": list(REGIONS), "region_every": 5}})
    assert "sync.region_every=5" in join_command(rarer, "ADDRESS")
