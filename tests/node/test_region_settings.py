"""What a run with regions wants of a node's settings: each mistake is one line that says what to do."""

import pytest
import torch

from node.config.schema import from_raw
from node.roles.assembly import check_runnable, run_info
from node.system.errors import UsageError

REGIONS = ["east", "west"]
VIA = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWFbpeWcEzygwyeGzVrUa1W8B5bqGdAN7xwhRdnEJCsGDH"


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
        ({"node": {"region": "auto"}}, "the run has no regions"),
        ({"sync": {"regions": REGIONS}, "node": {"region": "auto", "role": "observer"}}, "of role observer is of no"),
        (
            {"sync": {"regions": REGIONS}, "node": {"region": "auto"}, "network": {"via": VIA}},
            "through a relay no distance",
        ),
        ({"sync": {"regions": ["auto", "west"]}, "node": {"region": "west"}}, "no region can be called auto"),
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
