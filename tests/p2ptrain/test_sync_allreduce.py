"""All-reduce of differences: anchors stay alike, nothing learned is lost, and who came apart is alike again in time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from node.bench.swarm import simulated_allreduce
from node.bench.swarm.simulated_allreduce import Round, SimulatedMember
from p2ptrain import compress
from p2ptrain.sync import AllReduceStrategy, Reduced, RoundResult, SyncConfig, build
from p2ptrain.sync.allreduce import OUTERS, DifferenceAllReduce
from p2ptrain.sync.difference_packing import DifferencePacking, counting
from p2ptrain.sync.group_allreduce import LARGEST_GROUP
from p2ptrain.sync.packing import DIFFERENCE_PACKERS

D = 3000
REFRESH = 4

every_outer = pytest.mark.parametrize(
    "outer", [{"outer": "nesterov", "alpha": 0.9, "beta": 0.7}, *({"outer": name} for name in OUTERS)]
)
every_codec = pytest.mark.parametrize("codec", DIFFERENCE_PACKERS)


def genesis(numel: int = D) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(0))


def member(own: str = "own", numel: int = D, **options: object) -> DifferenceAllReduce:
    made = build(SyncConfig(**{"strategy": "allreduce", "refresh": REFRESH} | options), genesis(numel), own)
    assert isinstance(made, DifferenceAllReduce)
    assert isinstance(made, AllReduceStrategy)
    return made


def counted(sync: DifferenceAllReduce, part: bytes) -> int:
    return sync.packing.counted(part, 0)


class Members:
    """A group that trains: each one's model moves from where it is, by a common step and noise of its own."""

    def __init__(self, count: int, numel: int = D, **options: object) -> None:
        names = [f"peer{number}" for number in range(count)]
        self.syncs = {own: member(own, numel, **options) for own in names}
        self.nodes = {own: SimulatedMember(sync, set(names) - {own}) for own, sync in self.syncs.items()}
        self.thetas = dict.fromkeys(names, genesis(numel))
        self.generator = torch.Generator().manual_seed(1)
        self.rounds = 0
        self.learned_d = torch.zeros(numel)
        """The mean of all members' steps so far."""

    def train(self) -> None:
        common_d = torch.randn(len(self.learned_d), generator=self.generator)
        for own, theta_d in self.thetas.items():
            step_d = 0.01 * (common_d + torch.randn(len(common_d), generator=self.generator))
            self.thetas[own] = theta_d + step_d
            self.learned_d += step_d / len(self.thetas)

    def round(self, spoil: str = "", *, train: bool = True) -> dict[str, RoundResult]:
        """`spoil`: a member that no part reaches."""
        if train:
            self.train()
        came = simulated_allreduce.exchange(self.nodes, self.thetas, self.rounds)
        return self.close(came, spoil)

    def close(self, came: Round, spoil: str = "") -> dict[str, RoundResult]:
        results = {}
        for own, sync in self.syncs.items():
            parts = [part._replace(data=None) if own == spoil else part for part in came.parts[own]]
            results[own] = sync.finish(self.thetas[own], came.groups[own], parts, round=self.rounds)
            self.thetas[own] = self.thetas[own] + results[own].correction_d
        self.rounds += 1
        return results

    def apart(self) -> float:
        first_d = self.syncs["peer0"].anchor_d
        return max(float((sync.anchor_d - first_d).abs().max()) for sync in self.syncs.values())


@every_codec
@every_outer
def test_anchors_are_the_same_bits_at_all(codec: str, outer: dict[str, object]) -> None:
    members = Members(5, compressor=codec, **outer)
    for _ in range(2 * REFRESH):
        results = members.round()
        assert members.apart() == 0
        assert {result.members for result in results.values()} == {5}
        for own, sync in members.syncs.items():
            torch.testing.assert_close(members.thetas[own], sync.anchor_d)
            assert results[own].snapshot_d is sync.anchor_d


def test_it_is_the_mean_where_nothing_is_lost() -> None:
    members = Members(5, compressor="none")
    for _ in range(6):
        members.round()
    for theta_d in members.thetas.values():
        torch.testing.assert_close(theta_d - genesis(), members.learned_d, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("codec", "lost"), [("int4", 0.011), ("q2", 0.12), ("sign1", 0.37)])
def test_what_a_codec_lost_is_told_later(codec: str, lost: float) -> None:
    """Members that stop training tell what is left. What the owner's codec loses of the mean, this share of its square
    in each round, is lost."""
    members = Members(5, compressor=codec)
    for _ in range(20):
        members.round()
    left = {own: float(sync.residual_d.norm()) for own, sync in members.syncs.items()}
    assert min(left.values()) > 0
    gap_d = members.syncs["peer0"].anchor_d - genesis() - members.learned_d
    owed_d = sum(sync.residual_d for sync in members.syncs.values()) / 5
    assert float((gap_d + owed_d).norm()) < 1.2 * (lost * 20 * D * (1 + 1 / 5)) ** 0.5 * 0.01
    for _ in range(20):
        members.round(train=False)
    for own, sync in members.syncs.items():
        assert float(sync.residual_d.norm()) < 0.25 * left[own]


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**20), codec=st.sampled_from(DIFFERENCE_PACKERS), size=st.floats(1e-6, 1e3))
def test_all_that_was_told_and_what_is_left_are_all_that_was_learned(seed: int, codec: str, size: float) -> None:
    members = Members(3, 600, compressor=codec)
    members.generator.manual_seed(seed)
    told_d, learned_d, own = torch.zeros(600), torch.zeros(600), members.syncs["peer0"]
    for _ in range(5):
        before_d = members.thetas["peer0"]
        members.train()
        members.thetas["peer0"] = before_d + size * (members.thetas["peer0"] - before_d)
        learned_d += members.thetas["peer0"] - own.anchor_d
        told_d += own.packing.split(own.packing.unpack(own.packed(members.thetas["peer0"], round=members.rounds)))[0]
        members.round(train=False)
    torch.testing.assert_close(told_d + own.residual_d, learned_d, atol=1e-5 * size + 1e-5, rtol=1e-4)


def test_who_misses_a_part_keeps_what_it_learned_and_tells_it_next() -> None:
    members = Members(4, compressor="none", refresh=64)
    members.train()
    theta_d = members.thetas["peer2"].clone()
    results = members.round(spoil="peer2", train=False)
    torch.testing.assert_close(members.thetas["peer2"], theta_d)
    torch.testing.assert_close(members.syncs["peer2"].anchor_d, genesis())
    assert results["peer2"].members == 1
    snapshot_d = results["peer2"].snapshot_d
    assert snapshot_d is not None
    torch.testing.assert_close(snapshot_d, theta_d, msg="what is saved and evaluated has it too")
    moved_d = members.syncs["peer2"].packing.unpack(members.syncs["peer2"].packed(theta_d, round=1))[:D]
    torch.testing.assert_close(moved_d, theta_d - genesis())


@every_outer
@pytest.mark.parametrize("codec", ["none", "q2"])
def test_a_part_that_comes_before_the_next_round_leaves_no_trace(codec: str, outer: dict[str, object]) -> None:
    missing, whole = (Members(4, compressor=codec, **outer) for _ in range(2))
    for members in (missing, whole):
        members.round()
    missing.train()
    came = simulated_allreduce.exchange(missing.nodes, missing.thetas, 1)
    missing.close(came, spoil="peer2")
    assert missing.apart() > 0
    for _ in range(2):
        missing.syncs["peer2"].take_missed(came.parts["peer2"])
        assert missing.apart() == 0, "a part is taken once"
    whole.round()
    # The one is where it was and has trained on from there; what it has not told is the same.
    told = [
        members.thetas["peer2"] - members.syncs["peer2"].anchor_d + members.syncs["peer2"].residual_d
        for members in (missing, whole)
    ]
    torch.testing.assert_close(*told, atol=1e-6, rtol=0)
    for members in (missing, whole):
        members.round()
    assert missing.apart() == whole.apart() == 0
    torch.testing.assert_close(missing.syncs["peer2"].anchor_d, whole.syncs["peer2"].anchor_d, atol=2e-3, rtol=0)


def test_what_comes_after_the_next_round_began_is_too_late() -> None:
    members = Members(3)
    members.train()
    came = simulated_allreduce.exchange(members.nodes, members.thetas, 0)
    members.close(came, spoil="peer2")
    late = members.syncs["peer2"]
    late.pack(members.thetas["peer2"], round=1)
    late.take_missed(came.parts["peer2"])
    assert torch.equal(late.anchor_d, genesis())
    member("new").take_missed(came.parts["peer2"])


@pytest.mark.parametrize("rule", ["mean", "trimmed_mean"])
def test_anchors_that_came_apart_are_alike_again_after_so_many_rounds(rule: str) -> None:
    members = Members(5, aggregator=rule)
    for _ in range(3):
        members.round(spoil="peer2")
    apart = members.apart()
    assert apart > 0.01
    for _ in range(REFRESH):
        members.round()
    assert members.apart() < 2**-10 * 4, "fp16 of parameters as large as four"
    assert members.apart() < 0.1 * apart


def test_a_newcomer_with_another_anchor_is_alike_in_time() -> None:
    members = Members(5, aggregator="trimmed_mean", f=1)
    members.syncs["peer4"]._restart_at(genesis() + 0.5)
    members.thetas["peer4"] = genesis() + 0.5
    members.round(train=False)
    told = members.syncs["peer0"].anchor_d - genesis()
    assert not told.any(), "it says that it has learned nothing, whatever its anchor is"
    for _ in range(REFRESH):
        members.round(train=False)
    assert members.apart() < 2**-10 * 4, "fp16 of parameters as large as four"


def test_who_came_too_late_is_not_counted_and_tells_it_again() -> None:
    members = Members(4, compressor="none")
    members.train()
    packed = {own: sync.pack(members.thetas[own], round=0) for own, sync in members.syncs.items()}
    group = members.syncs["peer0"].peer_selection(members.nodes["peer0"].known, round=0)
    part = slice(0, len(packed["peer0"]))
    in_time = {own: packed[own] for own in group if own != "peer3"}
    reduced = members.syncs["peer0"].reduce(in_time, group=group, part=part)
    assert counted(members.syncs["peer0"], reduced) == 0b1111 & ~(1 << group.index("peer3"))
    late, early = members.syncs["peer3"], members.syncs["peer1"]
    for sync in (late, early):
        result = sync.finish(members.thetas[sync._own], group, [Reduced("peer0", part, reduced)], round=0)
        assert result.members == 3
    torch.testing.assert_close(late.anchor_d, early.anchor_d)
    torch.testing.assert_close(late.residual_d, members.thetas["peer3"] - genesis())
    assert not early.residual_d.any()


@pytest.mark.parametrize(
    "say", [0, 1 << 63, (1 << 64) - 1], ids=["nobody", "nobody of the group", "all there could be"]
)
def test_what_an_owner_says_of_whom_it_counted_moves_no_more_than_its_part(say: int) -> None:
    members = Members(2, compressor="none")
    members.train()
    group, part = ["peer0", "peer1"], slice(0, len(members.syncs["peer0"].pack(members.thetas["peer0"], round=0)))
    own = members.syncs["peer0"]
    other = members.syncs["peer1"].pack(members.thetas["peer1"], round=0)
    honest = own.reduce({"peer0": own._packed, "peer1": other}, group=group, part=part)
    result = own.finish(members.thetas["peer0"], group, [Reduced("peer1", part, counting(honest, say))], round=0)
    heard = say & 0b11
    assert result.members == (2 if heard else 1)
    assert bool(result.correction_d.any()) == bool(heard)


def test_whom_nobody_else_told_anything_stays() -> None:
    """Its part, reduced of itself alone, would set its anchor apart from all others."""
    members = Members(3)
    members.train()
    own = members.syncs["peer0"]
    part = slice(0, len(own.pack(members.thetas["peer0"], round=0)))
    reduced = own.reduce({"peer0": own._packed}, group=list(members.syncs), part=part)
    result = own.finish(members.thetas["peer0"], list(members.syncs), [Reduced("peer0", part, reduced)], round=0)
    assert not result.correction_d.any()
    assert torch.equal(own.anchor_d, genesis())


def test_momentum_does_not_grow_what_two_bits_lose() -> None:
    """Tracked models drift apart without end under DiLoCo's momentum (checks.py): here nobody's model keeps a loss."""
    members = Members(8, compressor="sign1", outer="nesterov", alpha=0.9, beta=0.7)
    left = []
    for _ in range(60):
        members.round()
        left.append(max(float(sync.residual_d.norm()) for sync in members.syncs.values()))
    assert max(left[30:]) < 1.5 * max(left[:30])
    assert members.apart() == 0


def test_its_state_is_the_anchor_the_residual_and_the_momentum() -> None:
    members = Members(3, outer="nesterov", alpha=0.5, beta=0.7)
    for _ in range(3):
        members.round()
    kept = {name: value.clone() for name, value in members.syncs["peer0"].state_dict().items()}
    assert kept.keys() == {"anchor", "residual", "outer.0.momentum"}
    back = member("peer0", outer="nesterov", alpha=0.5, beta=0.7)
    back.load_state_dict(kept)
    members.train()
    went_on, came_back = (sync.pack(members.thetas["peer0"], round=3) for sync in (members.syncs["peer0"], back))
    assert went_on == came_back
    back.load_state_dict({"anchor": kept["anchor"]})
    assert not back.residual_d.any()
    for wrong in (torch.zeros(7), torch.zeros(D, dtype=torch.float64)):
        with pytest.raises(ValueError, match="another model"):
            back.load_state_dict({**kept, "residual": wrong})


def test_the_old_anchor_stays_as_it_was_returned() -> None:
    members = Members(3)
    first = members.round()["peer0"].anchor_d
    kept_d = first.clone()
    members.round()
    assert torch.equal(first, kept_d)


def test_more_than_an_exchange_takes_are_cut_into_equal_groups() -> None:
    names = [f"peer{number:03}" for number in range(2 * LARGEST_GROUP + 3)]
    found = {tuple(member(own, 10).peer_selection(set(names) - {own}, round=5)) for own in names[::7]}
    assert {len(group) for group in found} <= {43, 44}
    assert len(found) == 3
    assert len(set(names)) == sum(map(len, found)) == len(set().union(*found))


@settings(max_examples=examples(40), deadline=None)
@given(
    codec=st.sampled_from(DIFFERENCE_PACKERS),
    refresh=st.integers(1, 70),
    numel=st.integers(1, 2500),
    seed=st.integers(0),
)
def test_a_packed_piece_is_read_as_it_was_written(codec: str, refresh: int, numel: int, seed: int) -> None:
    packing = DifferencePacking(compress.get(codec), numel, refresh)
    (at,) = packing.spans
    assert (at.start, at.stop) == (0, numel)
    seen = set()
    for round in range(refresh):
        share = packing.refreshed(at, round)
        assert 0 <= share.start < share.stop <= numel
        seen |= set(range(share.start, share.stop))
    assert seen == set(range(numel)), "all of the anchor"
    x_p = torch.randn(packing.numel, generator=torch.Generator().manual_seed(seed % 2**31))
    moved_p, anchor_p = packing.split(packing.unpack(packing.pack(x_p)))
    assert moved_p.shape == (numel,)
    torch.testing.assert_close(moved_p, compress.get(codec).decode(compress.get(codec).encode(x_p[:numel]), numel))
    torch.testing.assert_close(anchor_p, x_p[numel:].half().float())


@settings(max_examples=examples(40), deadline=None)
@given(junk=st.binary(max_size=400))
def test_what_is_no_packed_difference_is_refused(junk: bytes) -> None:
    packing = DifferencePacking(compress.get("q2"), 500, 64)
    size = len(packing.pack(torch.zeros(packing.numel)))
    for data in (junk, junk.ljust(size, b"\xff")[:size]):
        try:
            read = packing.unpack(data)
        except compress.PayloadError:
            continue
        assert read.isfinite().all()


@pytest.mark.parametrize(
    ("codec", "refresh"),
    [
        ("q2", 12),
        ("sign1", 12),
        ("sign1", 64),
        ("fp16", 2),
        ("none", 1),
        ("int4", 8),
        ("q2", 64),
    ],
)
@pytest.mark.parametrize("less", [0, 1, 3])
def test_pieces_are_read_alone_whatever_the_last_one_has(codec: str, refresh: int, less: int) -> None:
    """Also where the last one has nearly as many parameters as the full ones."""
    width = DifferencePacking(compress.get(codec), 200_000, refresh).spans[0].stop
    numel = 2 * width - less
    packing = DifferencePacking(compress.get(codec), numel, refresh)
    assert [at.stop - at.start for at in packing.spans] == [width, width - less]
    x_d = torch.linspace(-1, 1, packing.numel)
    packed = packing.pack(x_d)
    assert packing.numel_of(len(packed)) == packing.numel
    for index, at in enumerate(packing.spans):
        moved_p, anchor_p = packing.split(packing.piece(packed, index))
        assert moved_p.numel() == at.stop - at.start
        assert anchor_p.numel() == packing.refreshed(at, 0).stop - at.start


def test_pieces_lie_where_parts_do() -> None:
    numel = 10_000_000
    packing = DifferencePacking(compress.get("q2"), numel, 64)
    width = packing.part_bytes
    size = (len(packing.spans) - 1) * width
    assert packing.span(slice(0, width)) == packing.spans[0]
    assert packing.span(slice(width, size + 1)) == slice(packing.spans[1].start, numel)
    assert 2.2 < 8 * width / packing.spans[0].stop < 2.3, "two bits, and a quarter of one for the anchor"


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"compressor": "topk"}, "does not make equally long"),
        ({"compressor": "lossless+q2"}, "does not make equally long"),
        ({"gamma": 0.5}, "has no gamma"),
        ({"aggregator": "zeno"}, "which zeno cannot try"),
        ({"aggregator": "clipped_gossip"}, "looks from one's own"),
        ({"refresh": 0}, "at least 1"),
        ({"outer": "delayed_nesterov"}, "counts its rounds"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(settings_: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        SyncConfig(**{"strategy": "allreduce"} | settings_)
    assert "\n" not in str(refused.value)


def test_members_who_would_pack_or_step_otherwise_are_in_another_run() -> None:
    keys = {
        SyncConfig(**{"strategy": "allreduce"} | more).run_key()
        for more in (
            {},
            {"refresh": 32},
            {"compressor": "int4"},
            {"outer": "nesterov"},
            {"outer": "nesterov", "alpha": 0.3},
        )
    }
    assert len(keys) == 5


def reduced_of(moved: list[torch.Tensor], **options: object) -> tuple[DifferenceAllReduce, bytes]:
    """Members that moved so from one anchor, and what an owner of everything makes of that."""
    syncs = {f"peer{number}": member(f"peer{number}", **options) for number in range(len(moved))}
    packed = {
        own: sync.pack(genesis() + moved_d, round=0) for (own, sync), moved_d in zip(syncs.items(), moved, strict=True)
    }
    owner = syncs["peer0"]
    return owner, owner.reduce(packed, group=[*syncs], part=slice(0, len(packed["peer0"])))


def read(owner: DifferenceAllReduce, part: bytes) -> torch.Tensor:
    return owner.packing.split(owner.packing.piece(part, 0))[0]


@pytest.mark.parametrize("codec", ["int8", "rotated+int8"])
def test_a_mean_is_that_of_the_vectors_in_whatever_basis_it_is_taken(codec: str) -> None:
    generator = torch.Generator().manual_seed(3)
    moved = [0.01 * torch.randn(D, generator=generator) for _ in range(4)]
    found_d = read(*reduced_of(moved, compressor=codec, aggregator="mean", f=0))
    wanted_d = torch.stack(moved).mean(0)
    assert float((found_d - wanted_d).norm()) < 0.02 * float(wanted_d.norm())


def test_what_one_member_alone_says_outlives_trimming_where_the_codec_rotates() -> None:
    """In a vector's own coordinates it is the extreme, and left out."""
    generator = torch.Generator().manual_seed(4)
    moved = [0.001 * torch.randn(D, generator=generator) for _ in range(8)]
    for number, moved_d in enumerate(moved):
        moved_d[100 * number : 100 * number + 20] += 0.05
    wanted_d = torch.stack(moved).mean(0)
    left = {
        codec: float((read(*reduced_of(moved, compressor=codec, aggregator="trimmed_mean", f=1)) - wanted_d).norm())
        for codec in ("int8", "rotated+int8")
    }
    assert left["int8"] > 0.8 * float(wanted_d.norm())
    assert left["rotated+int8"] < 0.4 * float(wanted_d.norm())


@pytest.mark.parametrize("lie", thorough_but({1e9}, [1e4, -1e4, 1e9]))
def test_a_lie_is_bounded_in_the_codecs_basis_too(lie: float) -> None:
    generator = torch.Generator().manual_seed(5)
    moved = [0.01 * torch.randn(D, generator=generator) for _ in range(7)]
    longest = max(float(moved_d.norm()) for moved_d in moved)
    for lied_d in (torch.full((D,), lie), lie * torch.randn(D, generator=generator)):
        found_d = read(*reduced_of([*moved, lied_d], compressor="rotated+q2", aggregator="trimmed_mean", f=1))
        assert float(found_d.norm()) < 1.2 * longest


@pytest.mark.parametrize("rule", ["geometric_median", "nnm+trimmed_mean", "krum", "centered_clipping"])
def test_rules_that_read_distances_reduce_differences(rule: str) -> None:
    generator = torch.Generator().manual_seed(7)
    base_d = 0.01 * torch.randn(D, generator=generator)
    moved = [base_d + 0.001 * torch.randn(D, generator=generator) for _ in range(7)]
    found_d = read(*reduced_of([*moved, torch.full((D,), 5.0)], compressor="int8", aggregator=rule, f=1))
    assert float((found_d - base_d).norm()) < 0.2 * float(base_d.norm())


def test_what_is_turned_by_another_matrix_is_not_counted() -> None:
    generator = torch.Generator().manual_seed(6)
    syncs = {own: member(own, compressor="rotated+q2") for own in ("a", "b", "c")}
    moved_d = 0.01 * torch.randn(D, generator=generator)
    packed = {own: sync.pack(genesis() + moved_d, round=0) for own, sync in syncs.items()}
    other = member("c", compressor="rotated+q2", seed=9)
    packed["c"] = other.pack(genesis() + moved_d, round=0)
    part = syncs["a"].reduce(packed, group=["a", "b", "c"], part=slice(0, len(packed["a"])))
    assert counted(syncs["a"], part) == 0b011


@pytest.mark.parametrize("strategy", ["allreduce", "mime"])
def test_members_that_rotate_otherwise_are_in_another_run(strategy: str) -> None:
    def key(**options: object) -> str:
        return SyncConfig(**{"strategy": strategy, "compressor": "rotated+q2"} | options).run_key()  # type: ignore[arg-type]

    assert len({key(), key(seed=9), key(block=256)}) == 3
