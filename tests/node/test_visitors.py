"""What a host takes of visitors: every bound, every claim, and what a liar gets for it."""

import struct
from pathlib import Path

import pytest
import torch
import trio
from hypothesis import given
from hypothesis import settings as fewer
from hypothesis import strategies as st
from sizes import examples
from visit_harness import NUMEL, RUN, VisitedHost, key_of, noise, settings, signed_by

from node.config.schema import from_raw
from node.roles.assembly import own_trainer
from node.system.errors import UsageError
from node.training.pace import Pace
from node.training.run_state import RunState
from node.training.visiting import visitors_for
from node.visits import visitors
from node.visits.difference_head import HEAD_BYTES, LeftDifference, parsed_difference
from node.visits.refusals import Refusal, RefusedVisitError
from node.visits.visit_bounds import BODIES_EACH, MODELS_EACH, VisitBounds, visitor_network
from node.visits.visitors import RESULTS
from p2ptrain.visits.model_versions import CODEC, VERSIONS_KEPT, apply_difference
from p2ptrain.visits.visitor_mean import DIFFERENCES

heads = st.builds(
    LeftDifference,
    key=st.binary(min_size=32, max_size=32),
    round=st.integers(0, (1 << 64) - 1),
    model=st.binary(min_size=32, max_size=32),
    signature=st.binary(min_size=64, max_size=64),
    payload=st.binary(min_size=50, max_size=50),
)


@pytest.fixture
def host() -> VisitedHost:
    """A host that knows its own steps."""
    host = VisitedHost()
    host.close_round()
    host.close_round()
    return host


async def refusal_of(host: VisitedHost, left: LeftDifference | bytes, caller: str = "127.0.0.1") -> Refusal:
    with pytest.raises(RefusedVisitError) as refused:
        await host.take(left, caller)
    return refused.value.refusal


# -- the bytes


@given(heads)
@fewer(max_examples=examples(100))
def test_a_body_is_read_as_it_was_written(left: LeftDifference) -> None:
    assert parsed_difference(left.to_bytes(), 50) == left


@given(st.binary(max_size=400), st.integers(0, 200))
@fewer(max_examples=examples(100))
def test_a_body_of_another_length_is_refused(body: bytes, size: int) -> None:
    if len(body) == HEAD_BYTES + size:
        return
    with pytest.raises(RefusedVisitError) as refused:
        parsed_difference(body, size)
    assert refused.value.refusal is Refusal.WRONG_SIZE


@given(heads, st.integers(0, 1 << 20))
@fewer(max_examples=examples(60))
def test_every_byte_but_the_signature_is_signed(left: LeftDifference, at: int) -> None:
    raw = bytearray(left.to_bytes())
    at = at % (len(raw) - 64)
    raw[at if at < HEAD_BYTES - 64 else at + 64] ^= 1
    assert parsed_difference(bytes(raw), 50).signed(RUN.run_id) != left.signed(RUN.run_id)


def test_a_signature_is_for_one_run(host: VisitedHost) -> None:
    left = host.left_by("one")
    left.check_signature(RUN.run_id)
    with pytest.raises(RefusedVisitError):
        left.check_signature(b"another run's id")


# -- what is taken


async def test_a_difference_moves_the_model_with_the_next_round(host: VisitedHost) -> None:
    await host.take(host.left_by("one", 0.1 * noise(3)))
    visited_d = host.close_round()
    assert visited_d is not None
    assert torch.cosine_similarity(visited_d, noise(3), dim=0) > 0.999
    assert host.close_round() is None, "it counts once"
    assert host.visitors.counts["accepted"] == 1


async def test_fewer_than_the_buffer_wait() -> None:
    host = VisitedHost(buffer=2)
    host.close_round()
    host.close_round()
    await host.take(host.left_by("one"))
    assert host.close_round() is None
    await host.take(host.left_by("two"))
    assert host.close_round() is not None


async def test_what_waits_until_its_model_is_forgotten_is_dropped() -> None:
    host = VisitedHost(buffer=2)
    host.close_round()
    host.close_round()
    await host.take(host.left_by("one"))
    for _ in range(VERSIONS_KEPT):
        host.close_round()
    await host.take(host.left_by("two"))
    assert host.close_round() is None


async def test_a_visitor_that_took_several_rounds_counts_less(host: VisitedHost) -> None:
    late = host.left_by("late", 0.01 * noise(3))
    host.close_round()
    host.close_round()
    host.close_round()
    await host.take(late)
    visited_d = host.close_round()
    assert visited_d is not None
    assert float(visited_d.norm()) == pytest.approx(float(0.01 * noise(3).norm()) / 2, rel=1e-2)


async def test_before_own_steps_are_known_nothing_counts_and_nothing_is_lost() -> None:
    host = VisitedHost()
    host.close_round()
    host.visitors.follow(1)  # another model took its place
    await host.take(host.left_by("one"))
    assert host.close_round() is None
    assert host.close_round() is not None


async def test_own_steps_are_those_without_corrections_and_visitors(host: VisitedHost) -> None:
    await host.take(host.left_by("one", 5 * noise(3)))
    host.close_round()
    after_d = host.model_d + torch.nn.functional.normalize(noise(4), dim=0)
    correction_d = 7 * noise(5)
    closed = host.visitors.begin_closing().close(after_d + correction_d, correction_d, round=host.round)
    assert closed.own_norm == pytest.approx(1.0, rel=1e-3)


async def test_with_agreement_lies_that_undo_the_hosts_steps_count_for_nothing() -> None:
    host = VisitedHost(agreement=True, share=1.0)
    host.close_round()
    host.close_round()
    own_d = torch.nn.functional.normalize(noise(1), dim=0)
    for liar in range(5):
        await host.take(host.left_by(f"liar {liar}", -10 * own_d + 0.1 * noise(liar)))
    assert host.close_round() is None
    across_d = noise(7) - (noise(7) @ own_d) * own_d
    for liar in range(5):
        await host.take(host.left_by(f"liar {liar}", -own_d))
    await host.take(host.left_by("honest", 0.01 * (own_d + 0.1 * across_d)))
    visited_d = host.close_round()
    assert visited_d is not None
    assert torch.cosine_similarity(visited_d, own_d + 0.1 * across_d, dim=0) > 0.999


async def test_with_agreement_as_many_as_the_buffer_must_agree_and_fewer_wait() -> None:
    """Else one of a crowd that opposes had the whole of what visitors may move, for whatever lies across."""
    host = VisitedHost(agreement=True, buffer=3)
    host.close_round()
    host.close_round()
    own_d = torch.nn.functional.normalize(noise(1), dim=0)
    for number in range(4):
        await host.take(host.left_by(f"opposes {number}", -own_d))
    lie_d = noise(9) - (noise(9) @ own_d) * own_d + 0.01 * own_d
    await host.take(host.left_by("liar", lie_d))
    assert host.close_round() is None
    assert await refusal_of(host, host.left_by("liar", lie_d)) is Refusal.SECOND, "its difference still waits"
    await host.take(host.left_by("opposes 0", -own_d))  # those that oppose are gone, and keep no place
    for name in ("one", "two"):
        await host.take(host.left_by(name, 0.1 * own_d))
    visited_d = host.close_round()
    assert visited_d is not None
    assert torch.cosine_similarity(visited_d, own_d, dim=0) > 0.4
    assert host.close_round() is None, "each counts once"


async def test_with_agreement_those_that_wait_are_dropped_with_their_model_and_never_more_than_the_buffer() -> None:
    host = VisitedHost(agreement=True, buffer=3)
    host.close_round()
    host.close_round()
    own_d = torch.nn.functional.normalize(noise(1), dim=0)
    for number in range(2):
        await host.take(host.left_by(f"agrees {number}", own_d))
    await host.take(host.left_by("opposes", -own_d))
    for _ in range(VERSIONS_KEPT):
        assert host.close_round() is None
    await host.take(host.left_by("late", own_d))
    assert host.close_round() is None, "the two are gone"


async def test_with_agreement_a_crowd_does_not_undo_them_by_values_that_are_trimmed() -> None:
    """Each goes against the host's own steps but in a fifth of the coordinates, where it is so long that it agrees as a
    whole. Those are another fifth for each, and the largest of five: all are trimmed."""
    host = VisitedHost(agreement=True)
    host.close_round()
    host.close_round()
    own_d = torch.nn.functional.normalize(noise(1), dim=0)
    for liar in range(5):
        lie_d, along = -own_d, float(own_d[liar::5].square().sum())
        lie_d[liar::5] = own_d[liar::5] * 1.05 * (1 - along) / along
        await host.take(host.left_by(f"liar {liar}", lie_d))
    visited_d = host.close_round()
    assert visited_d is not None
    assert float(visited_d @ own_d) > -1e-3
    assert float(visited_d.norm()) < 0.2


async def test_with_agreement_nothing_counts_while_own_steps_are_not_known_and_nothing_is_lost() -> None:
    host = VisitedHost(agreement=True)
    host.close_round()
    host.close_round()
    host.visitors.follow(1)
    await host.take(host.left_by("one", noise(1)))
    assert host.close_round() is None
    assert host.close_round() is not None, "it waits for a round whose steps are known"


async def test_the_models_that_visitors_get_are_without_what_this_host_s_visitors_left(host: VisitedHost) -> None:
    await host.take(host.left_by("one", noise(3)))
    after_d = host.model_d + torch.nn.functional.normalize(noise(1), dim=0)
    closed = host.visitors.begin_closing().close(after_d, torch.zeros(NUMEL), round=host.round)
    assert closed.visited_d is not None
    assert not torch.equal(closed.base_d, after_d)
    assert closed.version.payload == CODEC.encode(after_d), "they are in the next round's model"


async def test_the_newest_model_is_whole_or_a_difference_or_nothing(host: VisitedHost) -> None:
    async def offload(function):  # type: ignore[no-untyped-def]
        return function()

    older = host.newest()
    whole = await host.visitors.model_for(b"", "127.0.0.1", offload)
    assert (whole.form, whole.payload) == ("whole", older.payload)
    same = await host.visitors.model_for(older.digest, "127.0.0.1", offload)
    assert (same.form, same.payload) == ("same", b"")
    host.close_round()
    change = await host.visitors.model_for(older.digest, "127.0.0.1", offload)
    assert change.form == "difference"
    assert apply_difference(older.payload, change.payload, NUMEL) == host.newest().payload
    again = await host.visitors.model_for(older.digest, "127.0.0.1", offload)
    assert again.payload is change.payload, "computed once"


async def test_two_at_a_time_do_not_compute_the_same_difference(host: VisitedHost) -> None:
    older = host.newest()
    host.close_round()
    begun, go_on, calls = trio.Event(), trio.Event(), []

    async def waits(function):  # type: ignore[no-untyped-def]
        calls.append(function)
        begun.set()
        await go_on.wait()
        return function()

    forms: list[str] = []

    async def first() -> None:
        forms.append((await host.visitors.model_for(older.digest, "127.0.0.1", waits)).form)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await begun.wait()
        forms.append((await host.visitors.model_for(older.digest, "127.0.0.1", waits)).form)
        go_on.set()
    assert forms == ["whole", "difference"]
    assert len(calls) == 1


# -- what a liar gets


async def test_a_difference_without_finite_values(host: VisitedHost) -> None:
    payload = struct.pack("<f", float("nan")) + DIFFERENCES.encode(noise(1))[4:]
    hurt = host.left_by("liar", payload=payload)
    assert await refusal_of(host, hurt) is Refusal.FORGED
    assert await refusal_of(host, signed_by("liar", hurt)) is Refusal.NOT_FINITE
    assert await refusal_of(host, host.left_by("liar")) is Refusal.SECOND, "it has taken the place"


async def test_a_huge_one_is_clipped_to_the_share(host: VisitedHost) -> None:
    await host.take(host.left_by("liar", 1e6 * noise(3)))
    visited_d = host.close_round()
    assert visited_d is not None
    assert float(visited_d.norm()) == pytest.approx(0.5, rel=1e-4)


async def test_a_crowd_of_keys_moves_the_host_no_further_than_one() -> None:
    host = VisitedHost(most_a_round=64, most_of_network=64)
    host.close_round()
    host.close_round()
    before_d = host.model_d
    for number in range(64):
        await host.take(host.left_by(f"liar {number}", -1e3 * noise(3)), f"10.{number}.0.1")
    visited_d = host.close_round()
    assert visited_d is not None
    assert float(visited_d.norm()) <= 0.5 * (1 + 1e-4)
    assert float((host.model_d - before_d).norm()) <= 1.5 * (1 + 1e-4)


@pytest.mark.parametrize("field", ["key", "signature", "payload"])
async def test_what_another_key_signed_or_nobody(field: str, host: VisitedHost) -> None:
    other = host.left_by("another", noise(9))
    assert await refusal_of(host, host.left_by("liar", **{field: getattr(other, field)})) is Refusal.FORGED
    assert host.visitors.counts["accepted"] == 0
    await host.take(host.left_by("another"))  # a forged one takes no place of the key that it names


@pytest.mark.parametrize("change", [{"model": b"m" * 32}, {"round": 99}, {"round": (1 << 64) - 1}])
async def test_a_model_that_is_not_one_of_the_hosts(change: dict[str, object], host: VisitedHost) -> None:
    assert await refusal_of(host, host.left_by("liar", **change)) is Refusal.UNKNOWN_MODEL


async def test_a_model_that_did_not_move_counts_with_each_round_that_it_had(host: VisitedHost) -> None:
    earlier, before = host.left_by("one"), host.newest()
    for _ in range(2):
        closing = host.visitors.begin_closing()
        closed = closing.close(host.model_d, torch.zeros(NUMEL), round=host.round)
        host.visitors.finish_closing(closed)
        host.round += 1
    assert (host.newest().digest, host.newest().round) == (before.digest, before.round + 2)
    await host.take(earlier)
    for wrong in (before.round - 1, host.newest().round + 1):
        assert await refusal_of(host, host.left_by("liar", round=wrong)) is Refusal.UNKNOWN_MODEL


async def test_a_model_that_is_too_old(host: VisitedHost) -> None:
    left = host.left_by("late")
    for _ in range(VERSIONS_KEPT):
        host.close_round()
    assert await refusal_of(host, left) is Refusal.UNKNOWN_MODEL


async def test_a_difference_again_in_the_same_round_or_the_next(host: VisitedHost) -> None:
    left = host.left_by("one")
    await host.take(left)
    assert await refusal_of(host, left, "10.0.0.1") is Refusal.SECOND
    assert await refusal_of(host, host.left_by("one", noise(5))) is Refusal.SECOND
    host.close_round()
    assert await refusal_of(host, left) is Refusal.SECOND, "a replay"
    await host.take(host.left_by("one"))


async def test_a_flood_is_bounded_by_network_and_in_all() -> None:
    host = VisitedHost(most_a_round=5, most_of_network=2)
    host.close_round()
    host.close_round()
    for number in range(2):
        await host.take(host.left_by(f"of one network {number}"), f"192.0.2.{number}")
    assert await refusal_of(host, host.left_by("third"), "192.0.2.200") is Refusal.NETWORK_FULL
    with pytest.raises(RefusedVisitError):
        host.visitors.expect(host.visitors.body_bytes, "192.0.2.9")
    for number in range(3):
        await host.take(host.left_by(f"of others {number}"), f"198.51.{number}.1")
    assert await refusal_of(host, host.left_by("sixth"), "203.0.113.1") is Refusal.FULL
    host.close_round()
    await host.take(host.left_by("sixth"), "203.0.113.1")


async def test_who_asks_first_is_told_what_a_difference_would_be_told() -> None:
    host = VisitedHost(buffer=2, most_a_round=2, most_of_network=2)

    def told(name: str, caller: str = "192.0.2.1") -> Refusal | None:
        try:
            host.visitors.check_turn(key_of(name).public_key, caller)
        except RefusedVisitError as error:
            return error.refusal
        return None

    assert told("one") is Refusal.NO_MODEL
    host.close_round()
    host.close_round()
    assert [told("one") for _ in range(9)] == [None] * 9, "nothing is reserved"
    await host.take(host.left_by("one"), "192.0.2.1")
    host.close_round()
    assert told("one") is Refusal.SECOND, "its difference waits"
    assert told("two") is None
    await host.take(host.left_by("two"), "198.51.100.1")
    assert told("three", "203.0.113.1") is Refusal.FULL
    host.close_round()
    assert told("one") is None
    host.visitors.end()
    assert told("one") is Refusal.OVER


def test_models_are_bounded_as_well() -> None:
    bounds = VisitBounds(most=3, most_of_network=1)
    for host in ("192.0.2.1", "198.51.100.1"):
        for _ in range(MODELS_EACH):
            bounds.check_models(host)
            bounds.count_model(host)
        with pytest.raises(RefusedVisitError):
            bounds.check_models(host)
    bounds.begin_round(lambda model: True)
    bounds.check_models("192.0.2.1")


def test_keys_are_forgotten_with_the_model_that_they_started_from() -> None:
    bounds = VisitBounds(most=1000, most_of_network=1000)
    for number in range(500):
        bounds.count(bytes([number % 256, number // 256]), b"old", bounds.reserve("192.0.2.1"))
    bounds.begin_round(lambda model: model != b"old")
    assert not bounds._left
    assert not bounds._keys


async def test_forged_bodies_are_bounded_by_network_and_in_all() -> None:
    host = VisitedHost(most_a_round=3, most_of_network=2)
    host.close_round()
    host.close_round()
    for caller, most in (("192.0.2.1", 2 * BODIES_EACH), ("198.51.100.1", BODIES_EACH)):
        for number in range(most):
            forged = host.left_by(f"{number}", signature=bytes(64))
            assert await refusal_of(host, forged, caller) is Refusal.FORGED
    assert await refusal_of(host, host.left_by("one"), "203.0.113.1") is Refusal.FULL
    host.close_round()
    for number in range(2 * BODIES_EACH):
        forged = host.left_by(f"{number}", signature=bytes(64))
        assert await refusal_of(host, forged, "192.0.2.1") is Refusal.FORGED
    assert await refusal_of(host, host.left_by("one"), "192.0.2.2") is Refusal.NETWORK_FULL
    await host.take(host.left_by("one"), "203.0.113.1")


async def test_a_difference_on_its_way_has_a_place() -> None:
    host = VisitedHost(most_a_round=3, most_of_network=2)
    host.close_round()
    size = host.visitors.body_bytes
    with host.visitors.expect(size, "192.0.2.1"), host.visitors.expect(size, "192.0.2.2"):
        with pytest.raises(RefusedVisitError, match="this network"):
            host.visitors.expect(size, "192.0.2.3")
        host.close_round()
        with pytest.raises(RefusedVisitError, match="this network"):
            host.visitors.expect(size, "192.0.2.3")
        with host.visitors.expect(size, "198.51.100.1"), pytest.raises(RefusedVisitError, match="enough visitors came"):
            host.visitors.expect(size, "203.0.113.1")
    await host.take(host.left_by("one"), "192.0.2.3")


async def test_what_comes_while_a_round_closes_is_one_of_the_next_as_well() -> None:
    host = VisitedHost(buffer=1, most_of_network=2)
    host.close_round()
    host.close_round()
    closing = host.visitors.begin_closing()
    await host.take(host.left_by("one"))
    await host.take(host.left_by("two"))
    host.visitors.finish_closing(closing.close(host.model_d + noise(1), torch.zeros(NUMEL), round=host.round))
    assert await refusal_of(host, host.left_by("three")) is Refusal.NETWORK_FULL
    assert await refusal_of(host, host.left_by("one"), "192.0.2.1") is Refusal.SECOND
    assert len(host.visitors.begin_closing().visits) == 2


async def test_a_difference_that_is_decoded_while_a_round_closes_is_one_of_the_next(host: VisitedHost) -> None:
    left = host.left_by("one")

    async def closes_a_round(function):  # type: ignore[no-untyped-def]
        host.close_round()
        return function()

    with host.visitors.expect(host.visitors.body_bytes, "127.0.0.1") as place:
        await host.visitors.take(left.to_bytes(), place, closes_a_round)
    assert await refusal_of(host, host.left_by("one")) is Refusal.SECOND
    assert host.close_round() is not None


async def test_one_network_does_not_fill_a_buffer_that_waits() -> None:
    host = VisitedHost(buffer=6, most_of_network=2)
    host.close_round()
    host.close_round()
    for number in range(2):
        await host.take(host.left_by(f"{number}"))
    host.close_round()
    assert await refusal_of(host, host.left_by("third")) is Refusal.NETWORK_FULL


async def test_a_round_that_closes_while_a_signature_is_checked(
    host: VisitedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "VERIFIED_HERE", 0)
    left, seen = host.left_by("one"), []

    async def twice(function):  # type: ignore[no-untyped-def]
        seen.append(function)
        if len(seen) == 1:
            await host.take(left, "192.0.2.1")
        return function()

    place = host.visitors.expect(host.visitors.body_bytes, "127.0.0.1")
    with place, pytest.raises(RefusedVisitError) as refused:
        await host.visitors.take(left.to_bytes(), place, twice)
    assert refused.value.refusal is Refusal.SECOND
    assert host.visitors.counts["accepted"] == 1


def test_a_network_is_what_one_customer_has() -> None:
    assert visitor_network("192.0.2.1") == visitor_network("192.0.2.250") != visitor_network("192.0.3.1")
    assert visitor_network("::ffff:192.0.2.1") == visitor_network("192.0.2.1")
    assert visitor_network("2001:db8:1:2::1") == visitor_network("2001:db8:1:ffff::1")
    assert visitor_network("no address") == ""


async def test_nothing_is_taken_before_the_first_round_or_after_the_last(host: VisitedHost) -> None:
    left = host.left_by("one")
    assert await refusal_of(VisitedHost(), left) is Refusal.NO_MODEL
    host.visitors.end()
    assert await refusal_of(host, left) is Refusal.OVER


def test_every_result_is_counted_from_the_first_scrape_on() -> None:
    assert set(VisitedHost().visitors.counts) == set(RESULTS)


# -- settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listen": "8443"}, "is no address"),
        ({"listen": "0.0.0.0:0"}, "is no address"),
        ({"listen": "0.0.0.0:70000"}, "is no address"),
        ({"listen": "0.0.0.0:8443"}, "there is no certificate"),
        ({"listen": "127.0.0.1:8443", "certificate": "a.pem"}, "give both"),
        ({"listen": "127.0.0.1:8443", "buffer": 65}, "above visits.most_a_round"),
    ],
)
def test_a_mistake_is_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as wrong:
        from_raw({"visits": changes})
    assert words in wrong.value.line()


def test_addresses_with_and_without_https() -> None:
    assert not settings(listen="").on
    assert (settings(listen="[::1]:9").host, settings(listen="[::1]:9").port) == ("::1", 9)
    assert settings(listen="0.0.0.0:8443", plain=True).on


def test_a_private_swarm_s_model_is_given_to_nobody_without_a_token(tmp_path: Path) -> None:
    config = from_raw({"task": {"name": "digits"}, "visits": {"listen": "127.0.0.1:8443"}})
    state = RunState(config=config, pace=Pace("fixed", 5, f=0, own="one", clock=float))
    trainer = own_trainer(config, "one")
    with pytest.raises(UsageError, match="private swarm"):
        visitors_for(config, RUN.run_id, trainer, state, private=True)
    found = visitors_for(config, RUN.run_id, trainer, state)
    assert found is not None
    with_token = from_raw({"visits": {"listen": "127.0.0.1:8443", "token_file": str(tmp_path / "token")}})
    assert visitors_for(with_token, RUN.run_id, trainer, state, private=True) is not None
