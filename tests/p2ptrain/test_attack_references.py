"""Every attack against a slow float64 twin that shares no code with it (attack_reference.py), and what it does to the
aggregators and graphs that it was made for."""

import doctest
import math
from collections.abc import Callable
from contextlib import suppress

import attack_reference as slow
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain import aggregate, attacks
from p2ptrain.attacks import EdgeAttack, HonestGraph, ModelAttack
from p2ptrain.attacks.label_flip import count_classes, flipped
from p2ptrain.attacks.mimic import furthest_out
from p2ptrain.attacks.searched import LADDER, Defence, strongest
from p2ptrain.tasks import Batch, TaskError

EPS = 2.0**-23
LEAST = 2.0**-149  # fp32's least number: what is below rounds to it, or to nothing
NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 3.0, LEAST, -7 * LEAST, 1e-38]),  # ties, zeros, denormals
    st.floats(-(2.0**60), 2.0**60, width=32),  # squares of deviations fit in fp32
    st.floats(-10, 10, width=32),
)


@st.composite
def honest_vectors(draw: st.DrawFn, largest_n: int = 64, largest_d: int = 7) -> torch.Tensor:
    n, d = draw(st.integers(1, largest_n)), draw(st.integers(1, largest_d))
    pool = draw(st.lists(NUMBERS, min_size=1, max_size=24))
    picks = torch.tensor(draw(st.lists(st.integers(0, len(pool) - 1), min_size=n * d, max_size=n * d)))
    return torch.tensor(pool)[picks].view(n, d)


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 0.5


@pytest.mark.parametrize("name", ["sign_flip", "scaled", "ipm", "alie"])
@settings(deadline=None, max_examples=examples(60))
@given(honest_nd=honest_vectors(), f=st.integers(1, 8))
def test_equals_its_slow_twin(name: str, honest_nd: torch.Tensor, f: int) -> None:
    expected = getattr(slow, name)(honest_nd.tolist(), f)
    n = honest_nd.shape[0]
    factor = {"sign_flip": 4.0, "ipm": 2.0, "scaled": n / f, "alie": 2.0 + 2.0 * slow.alie_z(n, f)}[name]
    # fp32 sums of n numbers, whose error goes with the largest of them and not with the sum.
    allowed_d = honest_nd.double().abs().amax(dim=0) * factor * (n + 8) * EPS + (n + 2) * factor * LEAST
    lie_fd = attacks.get(name)(honest_nd, f)
    assert lie_fd.shape == (f, honest_nd.shape[1])
    for lie_d in lie_fd:
        assert ((lie_d.double() - torch.tensor(expected, dtype=torch.float64)).abs() <= allowed_d).all()


def test_options_are_the_factors() -> None:
    honest_nd = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert attacks.get("scaled")(honest_nd, 1).tolist() == [[-4.0, -8.0]]
    assert attacks.get("scaled")(honest_nd, 2).tolist() == [[-2.0, -4.0]] * 2
    assert attacks.get("scaled", times=2.0)(honest_nd, 1).tolist() == [[-8.0, -16.0]]


@settings(deadline=None, max_examples=examples(60))
@given(honest_nd=honest_vectors(largest_n=20), f=st.integers(1, 8))
def test_scaled_liars_undo_the_honest_in_a_mean(honest_nd: torch.Tensor, f: int) -> None:
    with_lies_d = torch.cat([honest_nd, attacks.get("scaled")(honest_nd, f)]).double().sum(dim=0)
    allowed_d = honest_nd.double().abs().amax(dim=0) * honest_nd.shape[0] * 40 * EPS + 1000 * LEAST
    assert (with_lies_d.abs() <= allowed_d).all()


# -- the line search


def trimmed(f: int) -> Defence:
    return lambda x_nd: torch.tensor(slow.trimmed_mean(x_nd.tolist(), f))


def krum(f: int) -> Defence:
    return lambda x_nd: torch.tensor(slow.krum(x_nd.tolist(), f))


RULES = {"trimmed_mean": (trimmed, slow.trimmed_mean), "krum": (krum, slow.krum)}


LINES: dict[str, tuple[str, Callable[[slow.Rows, float], slow.Vector]]] = {
    "searched_ipm": ("ipm", lambda rows, factor: slow.times(-factor, slow.mean(rows))),
    "searched_alie": (
        "alie",
        lambda rows, factor: [
            at - factor * spread for at, spread in zip(slow.mean(rows), slow.deviation(rows), strict=True)
        ],
    ),
}
on_each_line = pytest.mark.parametrize("searched", LINES)


@pytest.mark.slow
@on_each_line
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("n", "f", "seed"), [(7, 2, 0), (9, 3, 1), (5, 1, 2)])
def test_the_line_search_moves_the_defence_further_than_the_fixed_factor(
    rule: str, searched: str, n: int, f: int, seed: int
) -> None:
    make, reference = RULES[rule]
    fixed, line = LINES[searched]
    honest_nd = normal(n, 11, seed)
    rows = honest_nd.tolist()
    lie = attacks.get(searched, defence=make(f))(honest_nd, f)[0].tolist()
    reached = slow.moved(rows, lie, f, reference)
    assert reached > slow.moved(rows, getattr(slow, fixed)(rows, f), f, reference)
    for step in range(1, 400):  # nor does a fine comb find much more
        assert reached >= 0.95 * slow.moved(rows, line(rows, step / 20), f, reference)


@on_each_line
@settings(deadline=None, max_examples=examples(25))
@given(honest_nd=honest_vectors(largest_n=9, largest_d=3), f=st.integers(1, 3))
def test_the_line_search_is_never_worse_and_stays_on_its_line(searched: str, honest_nd: torch.Tensor, f: int) -> None:
    assume(honest_nd.shape[0] > f)
    assume(float(honest_nd.abs().max()) < 1e6)  # beyond it, rounding is all that moves
    fixed, line = LINES[searched]
    rows = honest_nd.tolist()
    lie = attacks.get(searched, defence=trimmed(f))(honest_nd, f)[0].tolist()
    largest = float(honest_nd.abs().max())
    at_fixed = slow.moved(rows, getattr(slow, fixed)(rows, f), f, slow.trimmed_mean)
    assert slow.moved(rows, lie, f, slow.trimmed_mean) >= at_fixed - 1e-4 * largest - 1e-40
    origin, at_one = line(rows, 0.0), line(rows, 1.0)
    longest = max(range(len(origin)), key=lambda k: abs(at_one[k] - origin[k]))
    along = at_one[longest] - origin[longest]
    if abs(along) > 1e-3 * largest > 1e-30:
        factor = (lie[longest] - origin[longest]) / along
        assert factor > 0
        assert lie == pytest.approx(line(rows, factor), abs=1e-3 * max(1.0, factor) * largest)


def aggregators(f: int) -> list[str]:
    """Those that can be built without options of their own."""
    made = []
    for name in aggregate.names():
        with suppress(ValueError):
            aggregate.get(name, f=f)
            made.append(name)
    return made


@pytest.mark.slow
@on_each_line
@pytest.mark.parametrize("name", aggregators(f=2))
def test_no_aggregator_is_moved_less_than_by_the_fixed_factor(searched: str, name: str) -> None:
    honest_nd, rule = normal(9, 40), aggregate.get(name, f=2)
    mean_d = honest_nd.mean(dim=0)

    def moved(lie_fd: torch.Tensor) -> float:
        return float((rule(torch.cat([honest_nd, lie_fd])) - mean_d).norm())

    fixed = attacks.get(LINES[searched][0])(honest_nd, 2)
    assert moved(attacks.get(searched, defence=name)(honest_nd, 2)) >= moved(fixed) - 1e-5


def test_a_name_is_built_with_the_liars_that_the_members_allow() -> None:
    honest_nd = normal(7, 5)
    by_name = attacks.get("searched_alie", defence="trimmed_mean")(honest_nd, 2)
    assert torch.allclose(by_name, attacks.get("searched_alie", defence=trimmed(2))(honest_nd, 2), rtol=1e-3)
    assert attacks.get("searched_alie")(normal(1, 5), 3).shape == (3, 5), "four members allow f = 1"
    with pytest.raises(ValueError, match="unknown aggregator 'crum'"):
        attacks.get("searched_ipm", defence="crum")


def test_where_too_few_are_there_for_any_rule_the_factor_is_the_fixed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Demanding:
        def minimum(self) -> int:
            return 5

    monkeypatch.setattr(aggregate, "get", lambda name, f: Demanding())
    for searched, (fixed, _) in LINES.items():
        honest_nd = normal(3, 5)
        assert torch.allclose(attacks.get(searched)(honest_nd, 1), attacks.get(fixed)(honest_nd, 1))


def test_the_search_climbs_what_has_one_top_and_takes_the_last_factor_before_a_cliff() -> None:
    for top in (LADDER[0] / 1.3, 0.3, 1.0, 7.7, 1.3 * LADDER[-1]):
        found = strongest(lambda factor, top=top: -abs(math.log(factor / top)), 2.0)
        assert found == pytest.approx(top, rel=0.012)
    for cliff in (0.9, 3.3, 20.0):
        found = strongest(lambda factor, cliff=cliff: factor if factor <= cliff else 0.0, 2.0)
        assert 0.97 * cliff < found <= cliff


def test_a_defence_that_gives_nan_counts_as_unmoved() -> None:
    def breaks(x_nd: torch.Tensor) -> torch.Tensor:
        return torch.full((x_nd.shape[1],), math.nan) if x_nd.min() < -1.5 else x_nd.mean(dim=0)

    lie_fd = attacks.get("searched_ipm", defence=breaks)(torch.ones(3, 4), 1)  # breaks at the fixed factor, too
    assert -1.5 <= float(lie_fd[0, 0]) < -1.4


# -- mimic


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(100))
@given(honest_nd=honest_vectors(), f=st.integers(1, 3))
def test_mimic_copies_one_who_stands_furthest_out(honest_nd: torch.Tensor, f: int) -> None:
    lie_fd = attacks.get("mimic", target="furthest")(honest_nd, f)
    assert all(torch.equal(lie_d, lie_fd[0]) for lie_d in lie_fd)
    victims = [i for i, row in enumerate(honest_nd) if torch.equal(row, lie_fd[0])]
    assert victims
    parts, lead = slow.principal_parts(honest_nd.tolist())
    assume(lead > 1.1)  # two directions of equal spread: either will do
    assert max(parts[i] for i in victims) >= (1 - 1e-3) * max(parts) - 1e-6


def test_mimic_is_not_fooled_by_overflow_and_takes_the_first_of_equals() -> None:
    honest_nd = torch.tensor([[1e30, 0.0], [3e30, 1e29], [1e30, 0.0], [1e30, 0.0]])
    assert furthest_out(honest_nd) == 1
    assert furthest_out(honest_nd * 1e-30 * 2.0**-140) == 1
    assert furthest_out(torch.tensor([[1.0], [-1.0]])) == 0
    assert furthest_out(torch.zeros(3, 2)) == 0
    assert furthest_out(torch.zeros(2, 0)) == 0


def test_mimic_takes_the_target_that_is_named() -> None:
    honest_nd = normal(5, 3)
    assert torch.equal(attacks.get("mimic", target=3)(honest_nd, 2), honest_nd[[3, 3]])
    assert torch.equal(attacks.get("mimic", target=8)(honest_nd, 1), honest_nd[[3]])
    assert torch.equal(attacks.get("mimic")(honest_nd, 1), honest_nd[[0]])
    with pytest.raises(ValueError, match="a number or \"furthest\", not 'nearest'"):
        attacks.get("mimic", target="nearest")


# -- delay


@given(rounds=st.integers(1, 5), count=st.integers(1, 12))
def test_delay_says_what_was_true_so_many_rounds_ago(rounds: int, count: int) -> None:
    attack = attacks.find("delay", rounds=rounds)
    assert isinstance(attack, ModelAttack)
    theta_d = torch.zeros(3)
    for number in range(count):
        theta_d.fill_(number)  # the caller's buffer may be used again
        assert attack.say(theta_d).tolist() == [max(0, number - rounds)] * 3


# -- label flip


@given(st.lists(st.integers(-100, 300), max_size=20), st.integers(1, 256))
def test_labels_are_flipped_one_by_one(labels: list[int], classes: int) -> None:
    told = flipped(torch.tensor(labels, dtype=torch.int64), classes).tolist()
    assert told == [slow.flipped(label, classes) for label in labels]


class _Held:
    """A task as far as its held-out targets."""

    name = "held"

    def __init__(self, *targets: torch.Tensor) -> None:
        self.batches: list[Batch] = [(torch.zeros(len(each)), each) for each in targets]

    def eval_batches(self, limit: int) -> list[Batch]:
        return self.batches


def test_classes_are_counted_in_what_is_held_out() -> None:
    assert count_classes(_Held(torch.tensor([1, 4]), torch.tensor([7, -100]), torch.tensor([], dtype=torch.int64))) == 8
    assert count_classes(_Held(torch.tensor([-100]))) == 1
    for wrong in (_Held(), _Held(torch.tensor([1.5])), _Held(torch.tensor([]))):
        with pytest.raises(TaskError, match="needs class labels"):
            count_classes(wrong)


# -- on graphs


@st.composite
def graphs(draw: st.DrawFn) -> tuple[torch.Tensor, HonestGraph]:
    h, d = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    weight_hh = torch.rand(h, h, generator=generator) * (torch.rand(h, h, generator=generator) < 0.6)
    liars_h = torch.rand(h, generator=generator) * (torch.rand(h, generator=generator) < 0.8)
    x_hd = torch.randn(h, d, generator=generator) * 10 ** draw(st.integers(-3, 3))
    return x_hd, HonestGraph(weight_hh=weight_hh + weight_hh.T, liar_weight_h=liars_h.clamp_min(0.05) * (liars_h > 0))


@settings(deadline=None, max_examples=examples(100))
@given(graphs(), st.sampled_from([0.5, 1.5]))
def test_dissensus_equals_its_slow_twin(drawn: tuple[torch.Tensor, HonestGraph], eps: float) -> None:
    x_hd, graph = drawn
    expected = slow.dissensus(x_hd.tolist(), graph.weight_hh.tolist(), graph.liar_weight_h.tolist(), eps)
    told_hd = edge("dissensus", eps=eps).lies(x_hd, graph)
    assert torch.allclose(told_hd.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-3 * size(x_hd))


@settings(deadline=None, max_examples=examples(100))
@given(graphs(), st.sampled_from([0.5, 1.5]))
def test_spectral_equals_its_slow_twin(drawn: tuple[torch.Tensor, HonestGraph], eps: float) -> None:
    x_hd, graph = drawn
    told_hd = edge("spectral", eps=eps).lies(x_hd, graph)
    if len(x_hd) == 1:
        assert torch.equal(told_hd, x_hd)
        return
    weights, liars = graph.weight_hh.tolist(), graph.liar_weight_h.tolist()
    expected, clear = slow.spectral(x_hd.tolist(), weights, liars, eps)
    assume(clear > 1e-2)
    assert torch.allclose(told_hd.double(), torch.tensor(expected, dtype=torch.float64), atol=2e-3 * size(x_hd))


def test_spectral_says_nothing_where_it_cannot_push() -> None:
    """The middle of three in a row is no part of the direction that parts the ends."""
    weight_hh = torch.tensor([[0.0, 0.3, 0.0], [0.3, 0.0, 0.3], [0.0, 0.3, 0.0]])
    x_hd = torch.tensor([[1.0], [2.0], [-5.0]])
    graph = HonestGraph(weight_hh=weight_hh, liar_weight_h=torch.tensor([0.0, 0.3, 0.0]))
    assert torch.equal(edge("spectral").lies(x_hd, graph), x_hd)
    in_two = HonestGraph(weight_hh=torch.zeros(3, 3), liar_weight_h=torch.full((3,), 0.3))
    assert torch.equal(edge("spectral").lies(x_hd, in_two), x_hd)


def size(x_hd: torch.Tensor) -> float:
    return max(1e-6, float(x_hd.abs().max()))


def edge(name: str, **options: float) -> EdgeAttack:
    attack = attacks.find(name, **options)
    assert isinstance(attack, EdgeAttack)
    return attack


def dumbbell(clique: int = 5, weight: float = 0.1) -> HonestGraph:
    """Two cliques joined by one edge, and a liar beside each of its ends."""
    weight_hh = torch.zeros(2 * clique, 2 * clique)
    weight_hh[:clique, :clique] = weight_hh[clique:, clique:] = weight
    weight_hh[clique - 1, clique] = weight_hh[clique, clique - 1] = weight
    liar_weight_h = torch.zeros(2 * clique)
    liar_weight_h[clique - 1] = liar_weight_h[clique] = weight
    return HonestGraph(weight_hh=weight_hh.fill_diagonal_(0.0), liar_weight_h=liar_weight_h)


def gap_after(attack: EdgeAttack | None, graph: HonestGraph, steps: int = 60) -> float:
    """Plain gossip between nodes that begin on either side of a cut: how far apart the sides are in the end."""
    half = len(graph.liar_weight_h) // 2
    x_hd = torch.cat([torch.ones(half, 3), -torch.ones(half, 3)])
    for _ in range(steps):
        told_hd = x_hd if attack is None else attack.lies(x_hd, graph)
        x_hd = x_hd - graph.laplacian() @ x_hd + graph.liar_weight_h.view(-1, 1) * (told_hd - x_hd)
    return float((x_hd[:half].mean() - x_hd[half:].mean()).abs())


@pytest.mark.parametrize("name", ["dissensus", "spectral"])
def test_honest_nodes_agree_and_liars_at_the_bottleneck_keep_them_apart(name: str) -> None:
    graph = dumbbell()
    assert gap_after(None, graph) < 0.5
    assert gap_after(edge(name, eps=0.0), graph) == pytest.approx(gap_after(None, graph), rel=1e-4)
    assert gap_after(edge(name), graph) > 1.9


def test_liars_everywhere_drive_apart_by_what_eps_says() -> None:
    """Along the Fiedler vector gossip shrinks by 1 - mu_2 a step; with eps it grows by (eps - 1) mu_2 instead."""
    graph = HonestGraph(weight_hh=dumbbell().weight_hh, liar_weight_h=torch.full((10,), 0.1))
    values, vectors = torch.linalg.eigh(graph.laplacian().double())
    x_hd = vectors[:, 1:2].float()
    for name in ("dissensus", "spectral"):
        told_hd = edge(name, eps=1.5).lies(x_hd, graph)
        after_hd = x_hd - graph.laplacian() @ x_hd + 0.1 * (told_hd - x_hd)
        assert torch.allclose(after_hd, x_hd * (1 + 0.5 * float(values[1])), atol=1e-5)


# -- on the wire, and the page


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("delay", {"rounds": 0}),
        ("equivocation", {"twins": 0}),
        ("flood", {"announcements": 0}),
        ("label_flip", {"classes": 0}),
    ],
)
def test_numbers_that_would_be_no_attack_are_refused(name: str, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{name}: .* must be at least 1, not 0"):
        attacks.find(name, **options)


def test_the_examples_of_the_package_hold() -> None:
    outcome: Callable[..., doctest.TestResults] = doctest.testmod
    assert outcome(attacks) == (0, 7)
