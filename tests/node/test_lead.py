"""Over whom a node has a lead that lasts."""

from sim_swarm import key_of

from node.training.lead import AHEAD_S, Lead

B, C, D = (key_of(name).peer_id for name in "bcd")


def test_a_lead_counts_over_those_that_have_trained_behind_for_long():
    lead = Lead()
    assert lead.over({B: 3, C: 3}, mine=20, now=0.0) == set()
    assert lead.over({B: 4, C: 3, D: 1}, mine=21, now=AHEAD_S / 2) == set()
    assert lead.over({B: 9, C: 3, D: 2}, mine=25, now=AHEAD_S) == {B}, "c stands still, d came later"
    assert lead.over({B: 10, C: 9, D: 7}, mine=27, now=1.5 * AHEAD_S) == {B, C, D}


def test_who_is_slower_is_nobody_to_go_back_to():
    lead = Lead()
    lead.over({B: 3, C: 3}, mine=20, now=0.0)
    assert lead.over({B: 3 + 75, C: 3 + 74}, mine=120, now=AHEAD_S) == {B}


def test_who_caught_up_meanwhile_is_counted_anew():
    lead = Lead()
    lead.over({B: 3, C: 3}, mine=20, now=0.0)
    lead.over({C: 4}, mine=21, now=AHEAD_S / 2)
    assert lead.over({B: 20, C: 5}, mine=22, now=AHEAD_S) == {C}
    lead.begin()
    assert lead.over({B: 30, C: 6}, mine=23, now=2 * AHEAD_S) == set()


def test_who_has_gone_back_itself_is_counted_from_there():
    """Of two that were ahead, the one less so goes back first, and trains on at our pace."""
    lead = Lead()
    lead.over({B: 700}, mine=900, now=0.0)
    assert lead.over({B: 300}, mine=910, now=AHEAD_S) == set()
    assert lead.over({B: 310}, mine=920, now=1.5 * AHEAD_S) == set()
    assert lead.over({B: 320}, mine=930, now=2 * AHEAD_S) == {B}
