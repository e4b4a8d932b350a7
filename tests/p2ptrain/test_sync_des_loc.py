"""Moments averaged beside differences: the mean of all members' by shares, whatever one of them says within bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from node.bench.swarm import simulated_allreduce
from node.bench.swarm.presets import asked
from node.bench.swarm.simulated_allreduce import Round, SimulatedMember
from node.bench.swarm.simulation import Swarm
from p2ptrain import compress, tasks
from p2ptrain.inner import BufferPart, InnerState, Moment, MomentBuffer
from p2ptrain.inner.adamw import AdamW
from p2ptrain.inner.base import MOST_STEEP, bound_, steepest
from p2ptrain.sync import AllReduceStrategy, AveragesMoments, Reduced, RoundResult, SyncConfig, build
from p2ptrain.sync.allreduce import DifferenceAllReduce
from p2ptrain.sync.des_loc import MomentAllReduce
from p2ptrain.sync.difference_packing import DifferencePacking, Rotation, counting
from p2ptrain.sync.moment_packing import LARGEST, LONGEST, STEEPEST, MomentPacking, PowersOfTwo

D = 3000
HIDDEN = 1800

ADAMW = (
    MomentBuffer(name="exp_avg", numel=D, moment=Moment(order="first", scaled_by="exp_avg_sq")),
    MomentBuffer(name="exp_avg_sq", numel=D, moment=Moment(order="second")),
)
MUON = (
    MomentBuffer(name="exp_avg", numel=D - HIDDEN, moment=Moment(order="first", scaled_by="exp_avg_sq")),
    MomentBuffer(name="exp_avg_sq", numel=D - HIDDEN, moment=Moment(order="second")),
    MomentBuffer(name="momentum", numel=HIDDEN, moment=Moment(order="first")),
)
SGD = (MomentBuffer(name="momentum", numel=D, moment=Moment(order="first")),)

STEEPEST_OF_TWO = 1.001 * 2**0.5 * STEEPEST

every_optimizer = pytest.mark.parametrize("buffers", [ADAMW, MUON, SGD], ids=["adamw", "muon", "sgd"])

Buffers = tuple[MomentBuffer, ...]
State = dict[str, torch.Tensor]


def genesis() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(0))


def drawn(buffers: Buffers, generator: torch.Generator) -> State:
    """Moments as optimizers have them: of many orders of magnitude, each first one well below the root of its second
    one."""
    return {
        buffer.name: torch.randn(buffer.numel, generator=generator) * 1e-3
        if buffer.moment.order == "first"
        else (1 + torch.rand(buffer.numel, generator=generator)) * 1e-4
        for buffer in buffers
    }


def member(own: str = "own", buffers: Buffers = ADAMW, **options: object) -> MomentAllReduce:
    config = SyncConfig(**{"strategy": "des_loc", "refresh": 4} | options)
    made = build(config, genesis(), own, moments=buffers)
    assert isinstance(made, MomentAllReduce)
    assert isinstance(made, AllReduceStrategy)
    assert isinstance(made, AveragesMoments)
    return made


def with_parts(moments: State, parts: tuple[BufferPart, ...] | list[BufferPart]) -> State:
    changed = {name: value.clone() for name, value in moments.items()}
    for part in parts:
        assert part.at is not None
        changed[part.name][part.at] = part.values
    return changed


class Members:
    """A group whose models move by steps of their own. Moments change as they are told to."""

    def __init__(self, count: int, buffers: Buffers = ADAMW, **options: object) -> None:
        self.names = [f"peer{number}" for number in range(count)]
        self.syncs = {own: member(own, buffers, **options) for own in self.names}
        self.nodes = {own: SimulatedMember(sync, set(self.names) - {own}) for own, sync in self.syncs.items()}
        self.thetas = dict.fromkeys(self.names, genesis())
        self.generator = torch.Generator().manual_seed(1)
        self.moments = {own: drawn(buffers, self.generator) for own in self.names}
        self.rounds = 0

    def exchange(self) -> Round:
        for own, sync in self.syncs.items():
            self.thetas[own] = self.thetas[own] + 0.01 * torch.randn(D, generator=self.generator)
            sync.take_inner_state(InnerState(moments={name: it.clone() for name, it in self.moments[own].items()}))
        return simulated_allreduce.exchange(self.nodes, self.thetas, self.rounds)

    def round(self, *, spoil: str = "") -> dict[str, RoundResult]:
        """`spoil`: a member that no part reaches."""
        came, results = self.exchange(), {}
        for own, sync in self.syncs.items():
            parts = [part._replace(data=None) if own == spoil else part for part in came.parts[own]]
            results[own] = sync.finish(self.thetas[own], came.groups[own], parts, round=self.rounds)
            self.thetas[own] = self.thetas[own] + results[own].correction_d
            self.moments[own] = with_parts(self.moments[own], list(results[own].optimizer_state))
        self.rounds += 1
        return results

    def mean(self, name: str) -> torch.Tensor:
        """As bf16 has the members' values."""
        return torch.stack([moments[name].bfloat16().float() for moments in self.moments.values()]).mean(0)

    def alike(self) -> dict[str, float]:
        """The share of each buffer's values that all members have alike."""
        first = self.moments["peer0"]
        return {
            name: float(torch.stack([it[name] == first[name] for it in self.moments.values()]).all(0).float().mean())
            for name in first
        }


@every_optimizer
def test_what_travelled_becomes_the_mean_and_all_else_stays(buffers: Buffers) -> None:
    members = Members(4, buffers, compressor="none")
    before = members.moments
    means = {buffer.name: members.mean(buffer.name) for buffer in buffers}
    means = {name: value.bfloat16().float() for name, value in means.items()}
    results = members.round()
    for own, result in results.items():
        expected = with_parts(
            before[own], [part._replace(values=means[part.name][part.at]) for part in result.optimizer_state]
        )
        for name, value in expected.items():
            torch.testing.assert_close(members.moments[own][name], value, rtol=2**-7, atol=1e-5)
    shares = {part.name: 0 for part in results["peer0"].optimizer_state}
    for part in results["peer0"].optimizer_state:
        shares[part.name] += len(part.values)
    firsts = sum(shares.get(buffer.name, 0) for buffer in buffers if buffer.moment.order == "first")
    seconds = sum(shares.get(buffer.name, 0) for buffer in buffers if buffer.moment.order == "second")
    assert firsts == D // 3
    assert seconds == sum(buffer.numel for buffer in buffers if buffer.moment.order == "second") // 6


@every_optimizer
@pytest.mark.parametrize("codec", ["none", "q2"])
def test_all_moments_are_alike_after_their_periods(buffers: Buffers, codec: str) -> None:
    members = Members(3, buffers, compressor=codec)
    for _ in range(3):
        members.round()
    orders = {buffer.name: buffer.moment.order for buffer in buffers}
    for name, share in members.alike().items():
        assert share == 1 if orders[name] == "first" else 0.4 < share < 0.6, name
    for _ in range(3):
        members.round()
    assert set(members.alike().values()) == {1.0}


def test_four_bits_keep_what_moments_are() -> None:
    members = Members(5)
    means = {name: members.mean(name) for name in ("exp_avg", "exp_avg_sq")}
    for _ in range(6):
        members.round()
    ends = members.moments["peer0"]
    first, second = ends["exp_avg"] - means["exp_avg"], (ends["exp_avg_sq"] / means["exp_avg_sq"]).log2()
    assert float(first.norm()) < 0.25 * float(means["exp_avg"].norm()), "rounded twice, and of a mean that is shorter"
    assert float(second.abs().max()) <= 1.01, "half a power of two by each member, half by the owner"
    assert float(second.abs().mean()) < 0.4


@pytest.mark.parametrize("codec", ["none", "q2", "rotated+q2"])
def test_models_are_averaged_as_by_allreduce(codec: str) -> None:
    members, plain = Members(3, compressor=codec), {}
    for own in members.names:
        plain[own] = build(SyncConfig(strategy="allreduce", refresh=4, compressor=codec), genesis(), own)
        assert isinstance(plain[own], DifferenceAllReduce)
    nodes = {own: SimulatedMember(sync, members.nodes[own].known) for own, sync in plain.items()}  # type: ignore[arg-type]
    for _ in range(5):
        came = members.exchange()
        also = simulated_allreduce.exchange(nodes, members.thetas, members.rounds)
        for own, sync in members.syncs.items():
            one = sync.finish(members.thetas[own], came.groups[own], came.parts[own], round=members.rounds)
            other = plain[own].finish(members.thetas[own], also.groups[own], also.parts[own], round=members.rounds)  # type: ignore[attr-defined]
            assert torch.equal(one.anchor_d, other.anchor_d)
            assert torch.equal(one.correction_d, other.correction_d)
            members.thetas[own] = members.thetas[own] + one.correction_d
        members.rounds += 1


def test_without_moments_it_is_allreduce() -> None:
    bare, plain = (build(SyncConfig(strategy=name), genesis(), "own") for name in ("des_loc", "allreduce"))
    assert isinstance(bare, MomentAllReduce)
    assert isinstance(plain, DifferenceAllReduce)
    assert bare.pack(genesis() + 0.1, round=0) == plain.pack(genesis() + 0.1, round=0)


def test_a_rounds_bytes_are_the_same_in_each_and_few() -> None:
    sync, generator = member(refresh=64), torch.Generator().manual_seed(2)
    sizes = set()
    for round in range(8):
        sync.take_inner_state(InnerState(moments=drawn(ADAMW, generator)))
        sizes.add(len(sync.pack(genesis(), round=round)))
    (size,) = sizes
    assert 8 * size / D == pytest.approx(2.03 + 16 / 64 + 4.13 / 3 + 4.13 / 6, abs=0.1)


# -- what one member, or an owner, says


@pytest.mark.parametrize("lie", [0.0, 1e3, -1e3])
def test_a_lying_contribution_is_bounded_by_the_rule(lie: float) -> None:
    members = Members(4, aggregator="trimmed_mean", f=1, compressor="none")
    honest = {
        name: torch.stack([members.moments[own][name] for own in members.names[:3]])
        for name in ("exp_avg", "exp_avg_sq")
    }
    for name in honest:
        members.moments["peer3"][name] = torch.full((D,), lie)
    results = members.round()
    for part in results["peer0"].optimizer_state:
        told_np = honest[part.name][:, part.at]
        assert bool((part.values >= told_np.min(0).values - 1e-5).all())
        assert bool((part.values <= told_np.max(0).values + 1e-5).all())


def of_an_owner(own: State, buffers: Buffers, said: torch.Tensor) -> list[BufferPart]:
    """What becomes of own moments where an owner says this of all that travel in a round."""
    sync = member(buffers=buffers, compressor="none")
    sync.take_inner_state(InnerState(moments={name: it.clone() for name, it in own.items()}))
    packed = sync.pack(genesis(), round=0)
    piece_p = sync.packing.unpack(packed)
    travelling = sum(map(len, sync.packing.sections(piece_p)[2:]))
    piece_p[-travelling:] = said[:travelling]
    lie = counting(sync.packing.pack(piece_p), 0b11)
    result = sync.finish(genesis(), ["own", "other"], [Reduced("other", slice(0, len(packed)), lie)], round=0)
    return list(result.optimizer_state)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**20), size=st.floats(-30, 12), buffers=st.sampled_from([ADAMW, MUON, SGD]))
def test_what_an_owner_says_of_moments_makes_no_step_much_longer(seed: int, size: float, buffers: Buffers) -> None:
    generator = torch.Generator().manual_seed(seed)
    own, said = drawn(buffers, generator), 10.0**size * torch.randn(2 * D, generator=generator)
    parts = of_an_owner(own, buffers, said)
    after, orders = with_parts(own, parts), {buffer.name: buffer.moment for buffer in buffers}
    assert {part.name for part in parts} <= orders.keys()
    for part in parts:
        assert bool(part.values.isfinite().all())
        if orders[part.name].order == "second":
            assert bool((part.values >= 0).all())
            assert float(part.values.max()) <= LARGEST * float(own[part.name][part.at].max()) * 1.001
        elif not orders[part.name].scaled_by:
            assert float(part.values.norm()) <= LONGEST * float(own[part.name][part.at].norm()) * 1.001
    for name, moment in orders.items():
        if moment.scaled_by:
            assert bool((after[name].abs() <= after[moment.scaled_by].sqrt() * STEEPEST_OF_TWO).all())


def test_where_no_gradient_was_met_what_others_met_makes_no_step_endless() -> None:
    """A token that own data have not: its second moment is 0, and a first one alone would be divided by epsilon."""
    own = drawn(ADAMW, torch.Generator().manual_seed(0))
    for name in own:
        own[name][:50] = 0.0
    after = with_parts(own, of_an_owner(own, ADAMW, torch.full((2 * D,), 1e-5)))
    assert bool((after["exp_avg"].abs() <= after["exp_avg_sq"].sqrt() * STEEPEST_OF_TWO).all())
    assert bool((after["exp_avg_sq"][:50] > 0).all()), "and it takes the others' second moments"


# -- who was late, away, or is new


def test_who_misses_a_part_keeps_own_moments_and_late_ones_are_not_taken() -> None:
    members = Members(3)
    before = members.moments["peer1"]
    came = members.exchange()
    late = members.syncs["peer1"]
    parts = [part._replace(data=None) for part in came.parts["peer1"]]
    assert not late.finish(members.thetas["peer1"], came.groups["peer1"], parts, round=0).optimizer_state
    assert members.moments["peer1"] is before
    late.take_missed(came.parts["peer1"])
    members.rounds += 1
    results = members.round()
    shares = {part.name: part.at for part in results["peer1"].optimizer_state}
    assert shares.keys() == {"exp_avg", "exp_avg_sq"}
    assert all(at.start > 0 for at in shares.values()), "those of its round alone"
    late_anchor_d, other_d = late.anchor_d, members.syncs["peer0"].anchor_d
    assert late_anchor_d.shape == other_d.shape


def test_a_newcomers_moments_are_the_others_after_a_period() -> None:
    """It has taken a round's steps by then: 0.3 of what squares come to, after seven at 0.95."""
    members = Members(4)
    new = members.moments["peer3"]
    new["exp_avg"], new["exp_avg_sq"] = 0.5 * new["exp_avg"], 0.3 * new["exp_avg_sq"]
    for _ in range(6):
        members.round()
    assert set(members.alike().values()) == {1.0}


def test_alone_nothing_becomes_of_moments() -> None:
    sync = member()
    sync.take_inner_state(InnerState(moments=drawn(ADAMW, torch.Generator().manual_seed(0))))
    sync.pack(genesis() + 1, round=0)
    assert not sync.finish(genesis() + 1, ["own"], [], round=0).optimizer_state


def test_its_state_is_that_of_allreduce_and_it_goes_on_from_there() -> None:
    """Moments are in the trainer's part of a checkpoint."""
    members = Members(3)
    for _ in range(3):
        members.round()
    kept = {name: value.clone() for name, value in members.syncs["peer0"].state_dict().items()}
    assert kept.keys() == {"anchor", "residual"}
    back = member("peer0")
    back.load_state_dict(kept)
    told = []
    for sync in (members.syncs["peer0"], back):
        sync.take_inner_state(InnerState(moments=dict(members.moments["peer0"])))
        told.append(sync.pack(members.thetas["peer0"], round=3))
    assert told[0] == told[1]


# -- bytes


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**20), numel=st.integers(1, 700), spread=st.floats(0, 12), zeros=st.booleans())
def test_powers_of_two_keep_a_value_to_half_a_power_and_none_becomes_nothing(
    seed: int, numel: int, spread: float, zeros: bool
) -> None:
    generator, codec = torch.Generator().manual_seed(seed), PowersOfTwo()
    x_d = (torch.randn(numel, generator=generator) * spread - 5).exp2()
    if zeros:
        x_d[::3] = 0
    payload = codec.encode(x_d)
    assert len(payload) == codec.size(numel)
    read_d = codec.decode(payload, numel)
    assert codec.encode(read_d) == payload, "what was read is told alike"
    for start in range(0, numel, codec.block):
        x_b, read_b = x_d[start : start + codec.block], read_d[start : start + codec.block]
        peak = float(x_b.max())
        if peak == 0:
            assert not read_b.any()
            continue
        assert float(read_b.min()) >= peak * 2**-15
        is_kept = x_b >= peak * 2**-15
        assert float((read_b[is_kept] / x_b[is_kept]).log2().abs().max()) <= 0.5001
        assert bool((read_b[~is_kept] == peak * 2**-15).all())


@settings(max_examples=examples(60), deadline=None)
@given(junk=st.binary(max_size=300))
def test_bytes_that_are_no_powers_of_two_are_refused(junk: bytes) -> None:
    codec = PowersOfTwo()
    for data in (junk, junk.ljust(codec.size(100), b"\xff")[: codec.size(100)]):
        try:
            read_d = codec.decode(data, 100)
        except compress.PayloadError:
            continue
        assert bool(read_d.isfinite().all())
        assert bool((read_d >= 0).all())


def test_values_that_are_none_are_told_as_such() -> None:
    for value in (torch.nan, torch.inf):
        x_d = torch.ones(300)
        x_d[7] = value
        with pytest.raises(compress.PayloadError, match="nonfinite"):
            PowersOfTwo().decode(PowersOfTwo().encode(x_d), 300)


@settings(max_examples=examples(60), deadline=None)
@given(
    parameters=st.integers(1, 4000),
    numel=st.integers(1, 4000),
    rounds=st.integers(1, 12),
    width=st.integers(1, 4000),
)
def test_all_of_a_rotating_vector_travels_in_its_rounds(parameters: int, numel: int, rounds: int, width: int) -> None:
    numel, width = min(numel, parameters), min(width, parameters)
    rotation, seen = Rotation(numel, parameters, rounds), set()
    for start in range(0, parameters, width):
        piece = slice(start, min(start + width, parameters))
        for round in range(rounds):
            at = rotation.at(piece, round)
            assert 0 <= at.start <= at.stop <= numel
            assert at.stop - at.start == rotation.count(piece.stop - piece.start) <= piece.stop - piece.start
            seen |= set(range(at.start, at.stop))
    assert seen == set(range(numel))


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**20), periods=st.tuples(st.integers(1, 9), st.integers(1, 9)), round=st.integers(0, 30))
def test_moments_are_read_as_they_were_told(seed: int, periods: tuple[int, int], round: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    own = drawn(MUON, generator)
    moments = MomentPacking(MUON, D, periods=periods, fine=True)
    packing = DifferencePacking(compress.get("none"), D, 4, moments.sections)
    (at,) = packing.spans
    told_p = torch.cat([torch.zeros(D + D // 4), moments.read(own, at, round)])
    _, _, *means = packing.sections(packing.unpack(packing.pack(told_p)))
    for part in moments.take_({name: it.clone() for name, it in own.items()}, means, at, round, members=2):
        assert torch.equal(part.values, own[part.name][part.at].bfloat16().float())


def test_pieces_of_a_large_model_have_their_share_of_moments_each() -> None:
    numel = 3_000_000
    buffers = tuple(MomentBuffer(name=it.name, numel=numel, moment=it.moment) for it in ADAMW)
    moments = MomentPacking(buffers, numel, periods=(3, 6), fine=False)
    packing = DifferencePacking(compress.get("q2"), numel, 64, moments.sections)
    assert len(packing.spans) > 10
    own = {name: torch.arange(numel, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")}
    for at in packing.spans:
        assert float(moments.read(own, at, 0)[0]) == at.start
    size = len(packing.pack(torch.zeros(packing.numel)))
    assert 8 * size / numel == pytest.approx(2.03 + 0.25 + 4.125 / 2, rel=0.01)


# -- mistakes, and a whole swarm


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ({"first_period": 0}, "first_period must be at least 1"),
        ({"second_period": -1}, "second_period must be at least 1"),
        ({"refresh": 0}, "at least 1"),
        ({"compressor": "topk"}, "does not make equally long"),
        ({"outer": "delayed_nesterov"}, "counts its rounds"),
        ({"gamma": 0.5}, "no gamma"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(sync: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        SyncConfig(**{"strategy": "des_loc"} | sync)
    assert "\n" not in str(refused.value)


def test_members_who_would_pack_otherwise_are_in_another_run() -> None:
    changes: list[dict[str, object]] = [{}, {"first_period": 2}, {"second_period": 2}, {"refresh": 2}]
    assert len({SyncConfig(**{"strategy": "des_loc"} | more).run_key() for more in changes}) == 4


def test_moments_that_are_none_of_this_model_or_no_numbers_are_our_mistake() -> None:
    sync, own = member(), drawn(ADAMW, torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="not those of this model"):
        sync.take_inner_state(InnerState(moments={**own, "exp_avg": torch.zeros(7)}))
    with pytest.raises(ValueError, match="not finite"):
        sync.take_inner_state(InnerState(moments={**own, "exp_avg": torch.full((D,), torch.nan)}))


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_swarm_that_averages_all_in_every_round_has_one_optimizer(optimizer: str) -> None:
    """Local Adam: whose members go on alike from each round."""
    words: dict[str, object] = {"task": "digits", "nodes": 3, "rounds": 6, "inner_steps": 3, "strategy": "des_loc"}
    words |= {"compressor": "none", "aggregator": "mean"}
    words["set_"] = [f"train.optimizer={optimizer}", "sync.first_period=1", "sync.second_period=1"]
    (found,) = asked("strategies", words, quick=False).recipes({})
    swarm = Swarm(found, tasks.get("digits", **found.config.task.options))
    first, *others = swarm.nodes
    for _ in range(3):
        swarm.round()
        for other in others:
            for name, buffer in first.trainer.optimizer.buffers.items():
                assert buffer.any()
                assert torch.equal(other.trainer.optimizer.buffers[name], buffer)


@pytest.mark.parametrize("late", [1, 30])
@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_no_step_is_long_where_steps_went_on_while_moments_travelled(name: str, late: int) -> None:
    """A place that is first met meanwhile has a first moment, and the members' second one is 0; one that was met before
    and no more has a second one that faded, and the members' first one is of before."""
    optimizer = AdamW(weight_decay=0.0)
    parameters = _Flat(512)
    optimizer.attach(parameters)
    meets = name == "exp_avg_sq"
    for step in range(1 + late):
        parameters.grad_d.fill_(float(step == (late if meets else 0)))
        optimizer.step(1.0)
    value = 0.0 if meets else 0.1
    part = BufferPart(name, slice(256, 512), torch.full((256,), value), 2)
    optimizer.buffers[name][part.at] = part.values
    bound_(optimizer, [part])
    before_d = parameters.data_d.clone()
    parameters.grad_d.zero_()
    optimizer.step(1.0)
    assert float((parameters.data_d - before_d).abs().max()) < 2.3 * STEEPEST_OF_TWO  # 2.3: of its first steps, at most
    assert bool((optimizer.buffers["exp_avg"][:256] == optimizer.buffers["exp_avg"][0]).all())


def test_steepest_is_what_betas_allow() -> None:
    generator = torch.Generator().manual_seed(0)
    for betas in [(0.9, 0.95), (0.9, 0.999), (0.95, 0.95), (0.9, 0.85)]:
        decayed_t = betas[0] ** torch.arange(200.0) / betas[1] ** torch.arange(200.0)
        assert steepest(betas) <= MOST_STEEP
        for gradient_t in (decayed_t.clamp(max=1e6), torch.randn(200, generator=generator), torch.ones(200)):
            first = second = 0.0
            for gradient in gradient_t.flip(0).tolist():
                first = betas[0] * first + (1 - betas[0]) * gradient
                second = betas[1] * second + (1 - betas[1]) * gradient**2
            assert abs(first) <= steepest(betas) * second**0.5 + 1e-12


class _Flat:
    """Parameters in a row."""

    def __init__(self, numel: int) -> None:
        self.data_d, self.grad_d = torch.zeros(numel), torch.zeros(numel)
        self.decayed, self.places = (), ()
