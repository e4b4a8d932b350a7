"""Visitors of a host that adds noise: who is in a sum, who pays for it, who is refused, and what liars get."""

import errno
import math
import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from seeded_bytes import seeded_bytes
from visit_harness import ADVICE, NUMEL, RUN, VisitedHost, here, key_of, noise, settings, signed_by

from node.config.schema import from_raw
from node.config.visits_section import LEAST_CLIP, LEAST_NOISE, MOST_CLIP, MOST_NOISE
from node.roles.assembly import own_trainer
from node.system.errors import UsageError
from node.training.pace import Pace
from node.training.run_state import RunState
from node.training.visiting import long_noise, visitors_for
from node.visits import visitor_ledger
from node.visits.difference_head import LeftDifference
from node.visits.refusals import Refusal, RefusedVisitError
from node.visits.visit_noise import VisitNoise
from node.visits.visit_server import VisitServer
from node.visits.visitor_ledger import VisitorLedger
from node.visits.visitors import Visitors
from p2ptrain.privacy.secret_random import SecretRandom
from p2ptrain.visits.model_versions import VERSIONS_KEPT
from p2ptrain.visits.visitor_mean import DIFFERENCES, checked_difference, nothing_left

SUM, CLIP, NOISE, DELTA, EPSILON = 3, 0.2, 1.15, 1e-3, 8.0
ALLOWED = 4
"""Sums that a key may be in."""


class NoisyHost(VisitedHost):
    """A host whose sums have so little noise in place of NOISE that a test sees what they are of."""

    def __init__(self, path: Path, **changes: Any) -> None:
        given = {"buffer": SUM, "noise": NOISE, "clip": CLIP, "delta": DELTA, "epsilon": EPSILON, "trim": 0.0}
        super().__init__(most_of_network=64)
        self.config = settings(**{**given, "most_of_network": 64, "share": 1.0, **changes})
        self.ledger = VisitorLedger(path, noise=NOISE, delta=DELTA, epsilon=self.config.epsilon)
        self.noise = VisitNoise(self.config, self.ledger, SecretRandom(seeded_bytes(3)))
        self.visitors = Visitors(self.config, RUN, lambda: ADVICE, self.noise)
        self.server = VisitServer(self.config, self.visitors, here)
        self.close_round()
        self.close_round()

    def close(self) -> None:
        self.ledger.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NoisyHost]:
    host = NoisyHost(tmp_path / "visitors.jsonl")
    yield host
    host.close()


async def all_leave(host: NoisyHost, *names: str) -> None:
    for name in names:
        await host.take(host.left_by(name))


async def refusal_of(host: NoisyHost, *given: Any) -> Refusal:
    with pytest.raises(RefusedVisitError) as refused:
        await host.take(*given)
    return refused.value.refusal


async def test_a_sum_has_one_size_and_the_others_wait(host: NoisyHost) -> None:
    await all_leave(host, "one", "two")
    assert host.close_round() is None
    assert host.ledger.mark.entries == 0, "nothing was made, nothing is spent"
    await all_leave(host, "three", "four", "five")
    assert host.close_round() is not None
    assert len(host.ledger.contents.by_key) == SUM
    assert host.close_round() is None, "two wait for a third"
    assert sorted(host.ledger.contents.by_key.values()) == [NOISE**-2] * SUM


def test_who_is_in_a_sum_is_drawn_and_not_who_came_first(host: NoisyHost) -> None:
    drawn = Counter(each for _ in range(200) for each in host.noise.chosen("abcdef", SUM))
    assert sum(drawn.values()) == 200 * SUM
    assert set(drawn) == set("abcdef")
    assert min(drawn.values()) > 60, "of the 100 that each has by chance"


async def test_a_full_ledger_takes_no_new_key_and_goes_on_with_known_ones(
    host: NoisyHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await all_leave(host, "one", "two", "three")
    assert host.close_round() is not None
    monkeypatch.setattr(visitor_ledger, "MOST_KEYS", SUM)
    assert await refusal_of(host, host.left_by("new")) is Refusal.CLOSED
    await host.take(host.left_by("one"))


async def test_a_key_is_refused_once_its_budget_is_spent_and_others_are_not(host: NoisyHost) -> None:
    for nth in range(ALLOWED):
        await all_leave(host, "one", f"a{nth}", f"b{nth}")
        assert host.close_round() is not None
    assert await refusal_of(host, host.left_by("one")) is Refusal.SPENT
    with pytest.raises(RefusedVisitError, match="as often as its privacy budget allows"):
        host.visitors.check_turn(key_of("one").public_key, "127.0.0.1")
    await host.take(host.left_by("a0"))
    assert host.ledger.epsilon <= EPSILON


async def test_what_is_told_of_it_over_http(host: NoisyHost) -> None:
    await all_leave(host, "one", "two", "three")
    host.close_round()
    async with host.client() as client:
        for name, spent in (("one", True), ("new", False)):
            told = (await client.get(f"/v1/visit?key={key_of(name).public_key.hex()}")).json()["privacy"]
            assert (told["spent"] > 0) is spent
        told = (await client.get("/v1/visit")).json()["privacy"]
        assert told == {"noise": NOISE, "clip": CLIP, "delta": DELTA, "epsilon": EPSILON}
        for _ in range(ALLOWED - 1):
            host.ledger.charge([key_of("one").public_key])
        answer = await client.get(f"/v1/visit?key={key_of('one').public_key.hex()}")
        assert (answer.status_code, answer.json()["reason"]) == (410, "spent")


async def test_without_noise_nothing_is_told_of_it() -> None:
    plain = VisitedHost()
    plain.close_round()
    assert "privacy" not in plain.visitors.describe()


async def test_what_is_not_finite_is_refused_and_is_in_the_sum_as_zeros(host: NoisyHost) -> None:
    """Else what one visitor has would decide whether a sum is made of the others."""
    nan = struct.pack("<f", float("nan")) * 2 + bytes(NUMEL)
    version = host.newest()
    broken = LeftDifference(
        key=key_of("nan").public_key, round=version.round, model=version.digest, signature=b"", payload=nan
    )
    assert await refusal_of(host, signed_by("nan", broken)) is Refusal.NOT_FINITE
    await all_leave(host, "one", "two")
    visited_d = host.close_round()
    assert visited_d is not None
    assert torch.isfinite(visited_d).all()
    assert key_of("nan").public_key in host.ledger.contents.by_key


async def test_a_crowd_of_liars_moves_the_host_by_its_own_steps_at_most_beside_the_noise(tmp_path: Path) -> None:
    moved = []
    for nth, scale in enumerate((0.0, 1e30)):
        host = NoisyHost(tmp_path / f"{nth}.jsonl", share=0.1)
        for liar in range(SUM):
            await host.take(host.left_by(f"liar {liar}", scale * noise(5)))
        visited_d = host.close_round()
        assert visited_d is not None
        moved.append(visited_d)
        host.close()
    assert float((moved[1] - moved[0]).norm()) == pytest.approx(0.1, rel=1e-2), "own steps have the norm 1"


async def test_with_agreement_what_opposes_is_in_the_sum_as_zeros(tmp_path: Path) -> None:
    moved = []
    for nth, scale in enumerate((0.0, -1.0)):
        host = NoisyHost(tmp_path / f"{nth}.jsonl", agreement=True)
        for liar in range(SUM):
            await host.take(host.left_by(f"liar {liar}", scale * noise(1)))
        visited_d = host.close_round()
        assert visited_d is not None
        moved.append(visited_d)
        assert host.ledger.mark.entries == 1
        host.close()
    assert torch.equal(moved[0], moved[1])


async def test_on_a_full_disk_visitors_end_and_the_host_goes_on(
    host: NoisyHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    await all_leave(host, "one", "two", "three")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        assert host.close_round() is None
    assert await refusal_of(host, host.left_by("four")) is Refusal.CLOSED
    assert host.close_round() is None


def test_the_ledger_is_written_before_noise_is_drawn(host: NoisyHost, monkeypatch: pytest.MonkeyPatch) -> None:
    entries, real = list[int](), host.noise._source.normals

    def noted(count: int) -> torch.Tensor:
        entries.append(host.ledger.mark.entries)
        return real(count)

    monkeypatch.setattr(host.noise._source, "normals", noted)
    host.noise.mean([bytes(32)], [nothing_left(NUMEL)], [1.0], NUMEL)
    assert entries == [1]


def test_settings_that_would_protect_nothing_are_refused(tmp_path: Path) -> None:
    for wrong, words in (
        ({"epsilon": 4.0}, "limits nothing"),
        ({"noise": 1.0}, "a sum with noise leaves nobody out"),
        ({"noise": 1.0, "trim": 0.0, "epsilon": 0.5}, "less than one visit spends"),
        ({"noise": 1e-200, "trim": 0.0}, "visits.noise=1e-200 is not from 1e-06"),
        ({"noise": 1e7, "trim": 0.0}, "visits.noise=1e[+]07 is not"),
        ({"noise": 1.0, "clip": 1e38, "trim": 0.0}, "visits.clip=1e[+]38 is not from 1e-12"),
        ({"noise": 1.0, "clip": 1e-45, "trim": 0.0}, "visits.clip=1e-45 is not"),
    ):
        with pytest.raises(UsageError, match=words):
            settings(**wrong)
    config = from_raw({"task": {"name": "digits"}, "visits": {"listen": "127.0.0.1:1", "noise": 1.0, "trim": 0.0}})
    state = RunState(config=config, pace=Pace("fixed", 5, f=0, own="one", clock=float))
    with pytest.raises(UsageError, match="writes down"):
        visitors_for(config, b"r" * 16, own_trainer(config, ""), state)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_liars_do_nobody_pays_for_another_and_no_sum_is_unpaid(seed: int, tmp_path: Path) -> None:
    """A crowd of keys that come twice, send NaN, huge, stale and forged differences, or stay away, among honest ones,
    in any order: every key's spending is the sums that it is in, within the budget, and sums have one size."""
    host, random = NoisyHost(tmp_path / "visitors.jsonl"), torch.Generator().manual_seed(seed)
    summed, real = Counter[bytes](), host.ledger.charge

    def charge(keys: list[bytes]) -> None:
        assert len(keys) == len(set(keys)) == SUM
        assert all(host.ledger.allows(key) for key in keys)
        summed.update(keys)
        real(keys)

    host.ledger.charge = charge  # type: ignore[method-assign, assignment]

    def drawn(most: int) -> int:
        return int(torch.randint(most, (), generator=random))

    kept = [host.left_by("stale")]
    for _ in range(60):
        move, name = drawn(8), f"{('honest', 'liar')[drawn(2)]} {drawn(6)}"
        scale = (0.01, 1e30, -1e30, 0.0)[drawn(4)] if name.startswith("liar") else 0.01
        left = host.left_by(name, scale * noise(drawn(100)))
        kept.append(left)
        if move == 7:
            host.close_round()
            continue
        again = kept[drawn(len(kept))]
        forged = host.left_by(name, payload=DIFFERENCES.encode(noise(1)))
        for each in ([left], [left, left], [again], [forged], [left, again], [left], [left])[move]:
            with suppress(RefusedVisitError):
                await host.take(each)
    for _ in range(VERSIONS_KEPT + 1):
        host.close_round()
    assert summed
    for key, times in summed.items():
        assert host.ledger.contents.by_key[key] == pytest.approx(times * NOISE**-2)
        assert times <= ALLOWED
    assert host.ledger.contents.by_key.keys() == summed.keys(), "who is in no sum has spent nothing"
    assert torch.isfinite(host.model_d).all()
    host.close()


@pytest.mark.parametrize("noise_over_clip", [LEAST_NOISE, MOST_NOISE])
@pytest.mark.parametrize("clip", [LEAST_CLIP, MOST_CLIP])
def test_at_the_ends_of_what_may_be_set_sums_are_numbers_and_are_paid_for(
    noise_over_clip: float, clip: float, tmp_path: Path
) -> None:
    config = settings(noise=noise_over_clip, clip=clip, trim=0.0, most_of_network=64, buffer=SUM)
    ledger = VisitorLedger(tmp_path / "visitors.jsonl", noise=noise_over_clip, delta=DELTA, epsilon=None)
    mean_d = VisitNoise(config, ledger).mean(
        [bytes([nth]) * 32 for nth in range(SUM)],
        [checked_difference(DIFFERENCES.encode(1e30 * noise(nth)), NUMEL) for nth in range(SUM)],
        [1.0] * SUM,
        NUMEL,
    )
    assert torch.isfinite(mean_d).all()
    assert mean_d.count_nonzero() > NUMEL / 2
    assert 0 <= ledger.epsilon < math.inf
    ledger.close()


def test_a_host_is_warned_of_noise_that_is_much_longer_than_its_own_steps(host: NoisyHost) -> None:
    def said(numel: int, **changes: Any) -> str | None:
        visits = {"listen": "127.0.0.1:1", "noise": 1.0, "trim": 0.0, "share": 0.5, "buffer": 50, **changes}
        return long_noise(from_raw({"task": {"name": "digits"}, "visits": visits}), numel)

    assert said(90_000) is None
    assert "may be 10 times as long" in str(said(1_000_000))
    assert said(1_000_000, noise=None) is None
    assert said(1_000_000, listen="") is None


async def test_a_crowd_that_leaves_nothing_has_the_host_add_no_longer_noise_than_it_is_warned_of(
    tmp_path: Path,
) -> None:
    """Its own steps have the norm 1."""
    host = NoisyHost(tmp_path / "visitors.jsonl", share=0.1)
    for round in range(4):
        for liar in range(SUM):
            await host.take(host.left_by(f"liar {round} {liar}", 0 * noise(1)))
        visited_d = host.close_round()
        assert visited_d is not None
        assert float(visited_d.norm()) == pytest.approx(NOISE * 0.1 * math.sqrt(NUMEL) / SUM, rel=0.1)
    host.close()
