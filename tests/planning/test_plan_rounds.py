"""The time of a round: properties that hold of any link, and the constraint that binds."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from node.planning import round_timing
from node.planning.round_timing import PlannedLink, RoundWork, Transfer, bits_for_utilization, round_times

sizes = st.floats(min_value=1e2, max_value=1e11)
rates = st.floats(min_value=1e4, max_value=1e12)
times = st.floats(min_value=1e-4, max_value=1e3)
works = st.builds(
    RoundWork,
    step_s=times,
    inner_steps=st.integers(1, 500).map(float),
    codec_s=st.floats(0, 100),
    evaluation_s=st.floats(0, 10),
    crowding=st.sampled_from([0.0, 2.0]),
)
transfers = st.builds(Transfer, sent_bytes=sizes, received_bytes=sizes, payload_bytes=sizes, one_ways=st.just(3.0))
links = st.builds(PlannedLink, up_bits_s=rates, down_bits_s=rates, rtt_s=st.floats(0, 1))
overlaps = st.one_of(st.none(), st.just(0.0), times)


@given(works, transfers, links, overlaps)
def test_utilization_is_a_share_and_a_round_is_no_shorter_than_its_steps(work, transfer, link, overlap_s):
    found = round_times(work, transfer, link, overlap_s=overlap_s)
    assert 0 <= found.utilization <= 1
    assert found.round_s >= work.planned_s
    assert found.utilization == pytest.approx(work.planned_s / found.round_s, rel=1e-6)
    assert found.bound in found.words
    assert found.late_steps >= 0
    assert found.round_s * (1 + 1e-9) >= max(found.send_s, found.receive_s, found.latency_s, found.bound_s)


@given(works, transfers, links, overlaps, st.floats(1, 100))
def test_a_faster_link_is_never_slower(work, transfer, link, overlap_s, times_):
    before = round_times(work, transfer, link, overlap_s=overlap_s)
    for key in ("up_bits_s", "down_bits_s"):
        faster = PlannedLink(**{**vars(link), key: getattr(link, key) * times_, "rtt_s": 0.0})
        slower = PlannedLink(**{**vars(link), "rtt_s": 0.0})
        after = round_times(work, transfer, faster, overlap_s=overlap_s)
        assert after.round_s <= round_times(work, transfer, slower, overlap_s=overlap_s).round_s
        assert after.round_s <= before.round_s


@given(works, transfers, links, overlaps, st.floats(1, 100))
def test_more_bytes_are_never_cheaper(work, transfer, link, overlap_s, times_):
    more = Transfer(**{**vars(transfer), "sent_bytes": transfer.sent_bytes * times_})
    before, after = (round_times(work, each, link, overlap_s=overlap_s) for each in (transfer, more))
    assert after.round_s >= before.round_s
    assert after.utilization <= before.utilization


@given(works, transfers, links)
def test_beside_training_an_exchange_never_costs_more_than_before_it(work, transfer, link):
    beside, waiting = (round_times(work, transfer, link, overlap_s=each) for each in (None, 0.0))
    assert beside.round_s <= waiting.round_s


@pytest.mark.parametrize(
    ("bound", "link", "sent", "received", "codec_s"),
    [
        (round_timing.COMPUTING, (1e9, 1e9, 0.01), 1e6, 1e6, 0.0),
        (round_timing.UPLINK, (1e6, 1e9, 0.01), 1e7, 1e7, 0.0),
        (round_timing.DOWNLINK, (1e9, 1e6, 0.01), 1e7, 1e7, 0.0),
        (round_timing.LATENCY, (1e9, 1e9, 30.0), 1e4, 1e4, 0.0),
        (round_timing.CODECS, (1e9, 1e9, 0.01), 1e6, 1e6, 50.0),
    ],
)
def test_what_binds_is_named(bound, link, sent, received, codec_s):
    up, down, rtt_s = link
    found = round_times(
        RoundWork(step_s=1.0, inner_steps=10, codec_s=codec_s),
        Transfer(sent_bytes=sent, received_bytes=received, payload_bytes=sent / 2, one_ways=3),
        PlannedLink(up_bits_s=up, down_bits_s=down, rtt_s=rtt_s),
    )
    assert found.bound == bound
    assert found.words.startswith(f"{bound}: ")


def test_the_words_are_those_of_the_round():
    found = round_times(
        RoundWork(step_s=1.0, inner_steps=60),
        Transfer(sent_bytes=127.5e6, received_bytes=1.0, payload_bytes=1.0, one_ways=0),
        PlannedLink(up_bits_s=20e6, down_bits_s=1e9, rtt_s=0.0),
    )
    assert found.send_s == 51
    assert found.words == "computing: 60 s of 60 s"
    waiting = round_times(
        RoundWork(step_s=1.0, inner_steps=9),
        Transfer(sent_bytes=127.5e6, received_bytes=1.0, payload_bytes=1.0, one_ways=0),
        PlannedLink(up_bits_s=20e6, down_bits_s=1e9, rtt_s=0.0),
        overlap_s=0.0,
    )
    assert waiting.words == "uplink: 51 s of 60 s"


def test_a_short_exchange_that_training_waits_for_does_not_bind():
    found = round_times(
        RoundWork(step_s=1.0, inner_steps=60),
        Transfer(sent_bytes=2.5e6, received_bytes=1.0, payload_bytes=1.0, one_ways=0),
        PlannedLink(up_bits_s=20e6, down_bits_s=1e9, rtt_s=0.0),
        overlap_s=0.0,
    )
    assert found.words == "computing: 60 s of 61 s"


def test_shared_cores_make_work_beside_training_count():
    def of(crowding: float) -> float:
        work = RoundWork(step_s=0.1, inner_steps=10, codec_s=0.1, crowding=crowding)
        link = PlannedLink(up_bits_s=1e9, down_bits_s=1e9, rtt_s=0.0)
        transfer = Transfer(sent_bytes=1.0, received_bytes=1.0, payload_bytes=1.0, one_ways=0)
        return round_times(work, transfer, link).round_s

    assert of(0.0) == pytest.approx(1.0)
    assert of(2.0) == pytest.approx(1.2)


@given(works, transfers, st.floats(0.05, 0.9))
def test_the_link_for_a_utilization_gives_it_and_little_less_does_not(work, transfer, wanted):
    assume(work.evaluation_s == 0 or work.planned_s / work.train_s > 0.95)
    needed = bits_for_utilization(work, transfer, wanted, overlap_s=0.0)
    if needed > 1e17:
        return

    def reached(bits: float) -> float:
        link = PlannedLink(up_bits_s=bits, down_bits_s=bits, rtt_s=0.0)
        return round_times(work, transfer, link, overlap_s=0.0).utilization

    assert reached(needed) >= wanted
    assert reached(needed * 0.99) < wanted or needed <= 2


def test_steps_beyond_the_planned_ones_count_by_the_nodes_own_rule():
    """Step s of a phase is taken at a rate of planned / s, at most 1 (LargeNode.rate_factor, RunState)."""
    for planned, more in ((3, 200), (8, 500), (32, 8), (16, 0)):
        rates = sum(min(1.0, planned / step) for step in range(1, planned + more + 1))
        assert round_timing.effective_steps(planned, more) == pytest.approx(rates, rel=0.05)
