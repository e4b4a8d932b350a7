"""Who trains on what: by hashes of examples and peer ids, not by a rank among the members of the moment."""

import numpy as np
import pytest

from node.config.schema import from_raw
from node.roles.assembly import own_data
from p2ptrain.tasks.hf.dealing import Dealing, Part

SHARDS, MEMBERS = 8, 80
CONFIG = from_raw({"task": {"name": "hf-lm"}, "node": {"shard_count": SHARDS}})
KEYS = np.random.default_rng(0).integers(0, 2**64, 8000, dtype=np.uint64)
DEALING = Dealing(KEYS)


def examples_of(members: list[str]) -> dict[str, frozenset[int]]:
    """By member, the examples that it trains on."""
    return {each: frozenset(DEALING.of_shard(own_data(CONFIG, each)[0]).tolist()) for each in members}


def test_who_joins_or_leaves_moves_nobody_elses_examples() -> None:
    members = [f"peer-{number}" for number in range(MEMBERS)]
    before = examples_of(members)
    for gone in members[:5]:
        after = examples_of([each for each in members if each != gone])
        assert after == {each: examples for each, examples in before.items() if each != gone}
    joined = examples_of([*members, "newcomer"])
    assert {each: joined[each] for each in members} == before


def test_with_a_part_more_only_what_goes_to_it_moves() -> None:
    members = [f"peer-{number}" for number in range(MEMBERS)]
    more = from_raw({"task": {"name": "hf-lm"}, "node": {"shard_count": SHARDS + 1}})
    stayed = 0
    for member in members:
        before, after = own_data(CONFIG, member)[0], own_data(more, member)[0]
        assert after.index in (before.index, SHARDS)
        if after.index == before.index:
            stayed += 1
            kept, had = DEALING.of_shard(after), DEALING.of_shard(before)
            assert set(kept.tolist()) <= set(had.tolist())
            assert len(kept) == pytest.approx(len(had) * SHARDS / (SHARDS + 1), rel=0.05)
    assert stayed == pytest.approx(MEMBERS * SHARDS / (SHARDS + 1), rel=0.1)


def test_what_one_member_trains_on_is_a_shard_of_its_own_order_and_all_is_trained_on_by_some() -> None:
    members = [f"peer-{number}" for number in range(MEMBERS)]
    examples = examples_of(members)
    everything = frozenset[int]().union(*examples.values())
    held_out = set(DEALING.held_out().tolist())
    own = {
        number for each in members for number in DEALING.of_shard(own_data(CONFIG, each)[0], Part.OWN_HELD_OUT).tolist()
    }
    assert len(set(examples.values())) == SHARDS
    assert everything | held_out | own == set(range(len(KEYS)))
    assert not everything & (held_out | own)
    for each in examples.values():
        assert abs(len(each) / len(everything) - 1 / SHARDS) < 0.02
    gone = [each for each in members if examples[each] != examples["peer-0"]]  # all of one shard leave
    lost = everything - frozenset[int]().union(*examples_of(gone).values())
    assert lost == examples["peer-0"], "only their share is no longer trained on"
    assert len({own_data(CONFIG, each)[1] for each in members}) == MEMBERS
