"""The state machine of secure sums: exact sums, members that leave at every stage, and what is opened when too few
stay."""

import numpy as np
import pytest
from secure_members import (
    TIMEOUT_S,
    Sum,
    check,
    group_of,
    inputs_of,
    nothing_opened,
    peers_of,
    summed,
)

from gossip.core.errors import LocalError
from gossip.core.secure_statements import SecureStage
from gossip.secure_aggregation.secure_group import SecureGroup, SecureSumError
from gossip.secure_aggregation.secure_sum import SecureSumming

BEFORE = (SecureStage.KEYS, SecureStage.SHARES, SecureStage.MASKED, SecureStage.HELD)
"""Stages after which a member's vector need not be in the sum."""
AFTER = (SecureStage.AGREED, SecureStage.OPENED)


@pytest.mark.parametrize(("members", "bits"), [(4, 8), (5, 13), (7, 32)])
def test_all_come_to_the_exact_sum(members, bits):
    group = group_of(members, bits=bits, count=131)
    played = Sum(group, inputs_of(group), seed=members)
    outcomes = played.play()
    check(played, outcomes)
    for it in outcomes.values():
        assert it.result is not None
        assert it.result.survivors == group.members
        assert np.array_equal(it.result.values(), summed(played.inputs, range(members), bits))
        assert it.ended_at == 0.0  # nobody waited
        assert it.charged == []


@pytest.mark.thorough
@pytest.mark.parametrize("stage", BEFORE)
@pytest.mark.parametrize("tells_all", [True, False])
def test_of_sixteen_three_leave_at_a_stage_and_the_sum_of_the_others_is_exact(stage, tells_all):
    group = group_of(16, count=515, owners=1)
    leaves = dict.fromkeys((2, 7, 15), stage)
    played = Sum(group, inputs_of(group), seed=3, leaves=leaves, tells_all=tells_all)
    outcomes = played.play()
    check(played, outcomes)
    for it in outcomes.values():
        assert it.result is not None, it.failure
        places = [group.members.index(peer) for peer in it.result.survivors]
        assert set(range(16)) - set(leaves) <= set(places)
        if it.result.whole:
            assert np.array_equal(it.result.values(), summed(played.inputs, places, group.bits))
        assert it.result.whole or stage is SecureStage.HELD


@pytest.mark.thorough
@pytest.mark.parametrize("stage", [*BEFORE, *AFTER])
def test_with_four_owners_a_part_it_is_whole_whenever_three_leave(stage):
    """Who could not pull the vector of one that left is left out with it: then more than three may be missing."""
    group = group_of(16, count=515, owners=4)
    leaves = dict.fromkeys((4, 5, 6), stage)  # in a row: the first three owners of one part
    played = Sum(group, inputs_of(group), seed=4, leaves=leaves)
    outcomes = played.play()
    check(played, outcomes)
    for it in outcomes.values():
        assert it.result is not None, it.failure
        places = {group.members.index(peer) for peer in it.result.survivors}
        missing = set(leaves) | (set(range(16)) - places)
        assert it.result.whole or (len(missing) > 3 and stage is SecureStage.HELD)
        assert stage is SecureStage.HELD or missing == set(leaves)


@pytest.mark.thorough
@pytest.mark.parametrize("stage", BEFORE)
def test_when_one_more_leaves_than_may_nothing_is_opened(stage):
    group = group_of(16, count=131)
    leaves = dict.fromkeys(range(16 - group.threshold + 1), stage)
    played = Sum(group, inputs_of(group), seed=5, leaves=leaves)
    outcomes = played.play()
    check(played, outcomes)
    assert nothing_opened(played)
    for it in outcomes.values():
        assert it.result is None
        assert f"{group.threshold} must" in it.failure


@pytest.mark.parametrize("stage", [*BEFORE, *AFTER])
def test_one_of_five_leaves_at_a_stage(stage):
    group = group_of(5, owners=2)
    played = Sum(group, inputs_of(group), seed=6, leaves={1: stage})
    outcomes = played.play()
    check(played, outcomes)
    for it in outcomes.values():
        assert it.result is not None, it.failure
        assert it.result.whole
        assert set(it.result.survivors) >= set(peers_of(group, [0, 2, 3, 4]))


@pytest.mark.parametrize("stage", BEFORE)
def test_two_of_five_leave_and_nothing_is_opened(stage):
    group = group_of(5)
    played = Sum(group, inputs_of(group), seed=7, leaves=dict.fromkeys((0, 3), stage))
    outcomes = played.play()
    check(played, outcomes)
    assert nothing_opened(played)
    assert all(it.result is None and "4 must" in it.failure for it in outcomes.values())


def test_who_is_silent_as_the_first_proposer_costs_a_turn():
    group = group_of(5)
    first = min(range(5), key=lambda place: Sum(group, inputs_of(group)).members[0]._turn_of[place])
    played = Sum(group, inputs_of(group), lies={first: lambda said, to, rng: [] if said.seq == 4 else [said]})
    outcomes = played.play()
    check(played, outcomes)
    for place, it in outcomes.items():
        assert place == first or (it.result is not None and it.result.survivors == group.members)
        assert it.ended_at < TIMEOUT_S


def test_the_seeds_digest_is_of_this_sum_alone():
    group = group_of(4)
    digests = {Sum(group, inputs_of(group), seed=seed).play()[0].result.seeds for seed in range(3)}
    assert len(digests) == 3


def test_groups_that_are_none_are_refused():
    members = group_of(5).members
    sizes = {"members": members, "round": 1, "count": 10, "bits": 12}
    assert SecureGroup(**sizes).threshold == 4
    for wrong, said in [
        ({"members": members[:3]}, "4 to 64 members"),
        ({"members": (*members, members[0])}, "each once"),
        ({"bits": 7}, "8 to 32 bits"),
        ({"bits": 33}, "8 to 32 bits"),
        ({"threshold": 3}, "4 to 4"),
        ({"threshold": 5}, "4 to 4"),
        ({"owners": 0}, "1 to 5 owners"),
        ({"owners": 6}, "1 to 5 owners"),
        ({"count": 0}, "1 to"),
        ({"chunk_bytes": 11}, "no eight values"),
        ({"round": -1}, "a round is 0"),
    ]:
        with pytest.raises(LocalError, match=said):
            SecureGroup(**{**sizes, **wrong})
    names = {SecureGroup(**{**sizes, **change}).name for change in [{}, {"round": 2}, {"bits": 13}, {"owners": 2}]}
    assert len(names) == 4


def test_values_that_do_not_fit_are_refused():
    group = group_of(4, bits=12, count=8)
    times = {"began": 0.0, "gather_until": 1.0, "ends_at": 2.0}
    fine = np.zeros(8, np.uint32)
    for me, values, said in [
        (group_of(5).members[4], fine, "not of the group"),
        (group.members[0], fine[:7], "shape"),
        (group.members[0], fine.astype(np.int64), "uint32"),
        (group.members[0], fine + np.uint32(1 << 12), "above 12 bits"),
    ]:
        with pytest.raises(LocalError, match=said):
            SecureSumming(group, me, values, **times)


def test_a_sum_whose_parts_lack_says_so():
    group = group_of(5)
    played = Sum(group, inputs_of(group), seed=8, leaves={2: SecureStage.AGREED}, tells_all=True)
    outcomes = played.play()
    check(played, outcomes)
    for it in outcomes.values():
        assert it.result is not None
        assert not it.result.whole
        assert [part.owner for part in it.result.parts if part.values is None] == [group.members[2]]
        with pytest.raises(LocalError, match="1 parts of the sum"):
            it.result.values()
        assert not isinstance(LocalError("x"), SecureSumError)
