"""The parts under the aggregators: networks, chunks, composed names, and graphs."""

import itertools
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from p2ptrain import aggregate
from p2ptrain.aggregate import Rows, columns
from p2ptrain.aggregate.sorting_networks import Program, middle, ordered
from p2ptrain.aggregate.topology import algebraic_connectivity, honest_connectivity, known_connectivity, robust_margin
from p2ptrain.registry import BadOptionError, UnknownMemberError


def perform(program: Program, values: tuple[int, ...]) -> list[int]:
    held = [*values, *[-1] * program.scratch]
    kinds = {"min": min, "max": max, "clamp": lambda a, b, c: min(max(a, b), c)}
    for step in program.steps:
        held[program.n + step.out] = kinds[step.kind](*(held[each] for each in step.of))
    return held[program.n : program.n + program.left]


@pytest.mark.slow
@pytest.mark.parametrize("n", range(3, 12))
def test_networks_leave_the_middle(n: int) -> None:
    """Zeros and ones suffice: minima and maxima commute with every threshold."""
    for f in range(1, (n - 1) // 2 + 1):
        program = middle(n, f)
        assert program.left == n - 2 * f
        for values in itertools.product((0, 1), repeat=n):
            assert sorted(perform(program, values)) == sorted(values)[f : n - f]


@pytest.mark.slow
@pytest.mark.parametrize("n", range(3, 12))
def test_networks_order_the_ends_and_the_centre(n: int) -> None:
    for f in range(1, (n - 1) // 2 + 1):
        centre = 2 - n % 2
        program = ordered(n, f, centre)
        exact = [*range(f), *range(n - f, n), *range((n - centre) // 2, (n + centre) // 2)]
        for values in itertools.product((0, 1), repeat=n):
            got = perform(program, values)
            assert sorted(got) == sorted(values)
            assert [got[rank] for rank in exact] == [sorted(values)[rank] for rank in exact]


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(n=st.integers(12, 64), share=st.floats(0.0, 1.0), data=st.data())
def test_large_networks(n: int, share: float, data: st.DataObject) -> None:
    f = 1 + int(share * ((n - 1) // 2 - 1))
    values = tuple(data.draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)))
    assert sorted(perform(middle(n, f), values)) == sorted(values)[f : n - f]


NUMBERS = [*range(3, 34), 40, 47, 48, 49, 56, 63, 64]
"""All that are small, and then those beside powers of two and their sums."""


@pytest.mark.slow
@pytest.mark.parametrize("n", thorough_but({3, 4, 5, 7, 8, 9, 16, 17, 33, 48}, NUMBERS))
def test_networks_are_as_small_as_they_should_be(n: int) -> None:
    """Never more than sorting, and for small f about log f comparators a value, where sorting takes log^2 n."""
    sorting = len(ordered(n, (n - 1) // 2, 2 - n % 2).steps)
    for f in range(1, (n - 1) // 2 + 1):
        program = middle(n, f)
        assert len(program.steps) <= sorting
        assert program.scratch <= n + f + 2
        if n >= 4 * f:
            assert len(program.steps) <= 2 * (n - f) * (1 + math.log2(f + 1) ** 2 / 2 + math.log2(f + 1) / 2)


def test_the_networks_that_were_measured() -> None:
    assert [len(middle(n, f).steps) for n, f in ((3, 1), (8, 2), (8, 3), (64, 2))] == [3, 22, 23, 330]


@pytest.mark.parametrize("threads", [1, 4, 64])
@pytest.mark.parametrize("n", [3, 8, 64])
def test_scratch_is_bounded(monkeypatch: pytest.MonkeyPatch, threads: int, n: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    rows = Rows(n, 25_000_000, lambda part: torch.empty(n, 0))
    used = columns.threads_for(rows)
    assert used <= columns.MAX_THREADS
    width = columns.width_for(rows, n + 2, torch.device("cpu"))
    assert 1000 < width < columns.GRAIN
    assert 4 * width * (3 * n + 2) * used <= 32 << 20


def test_small_matrices_stay_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert columns.threads_for(Rows(4, 100_000, lambda part: torch.empty(4, 0))) == 1
    assert columns.threads_for(Rows(4, 1_000_000, lambda part: torch.empty(4, 0))) == 3


@given(start=st.integers(0, 9), length=st.integers(0, 50), width=st.integers(1, 12))
def test_parts_cover_everything_once(start: int, length: int, width: int) -> None:
    parts = columns.parts(start, start + length, width)
    assert [column for part in parts for column in range(part.start, part.stop)] == [*range(start, start + length)]
    assert all(1 <= part.stop - part.start <= width for part in parts)


@pytest.mark.parametrize("name", ["trimmed_mean", "krum", "geometric_median", "nnm+median"])
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    x_nd = torch.randn(7, 300_000, generator=torch.Generator().manual_seed(2))
    alone_d = aggregate.get(name, f=2)(x_nd)
    monkeypatch.setattr(columns, "threads_for", lambda rows: 4)
    for _ in range(3):
        assert torch.equal(aggregate.get(name, f=2)(x_nd), alone_d)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope", "'nope' is no rule"),
        ("nnm", "'nnm' is a stage, and needs a rule after it"),
        ("nnm+", "'' is no rule"),
        ("krum+nnm", "'krum' is a rule, and stands last"),
        ("krum+mean", "'krum' is a rule, and stands last"),
        ("nope+mean", "'nope' is no stage"),
        ("nnm+nnm+mean", "a stage stands once"),
        ("arc+clipping+bucketing+nnm+mean", "4 parts at most"),
        ("nnm+gts", "nnm mixes rows, and gts must find the own one"),
        ("clipping+bucketing+ios", "bucketing mixes rows, and ios must find the own one"),
    ],
)
def test_names_that_cannot_be_are_refused(name: str, says: str) -> None:
    with pytest.raises(UnknownMemberError, match="unknown aggregator") as told:
        aggregate.get(name, f=1)
    assert says in str(told.value)
    if "mixes" not in says:
        assert "stages: arc, bucketing, clipping, nnm; rules: caf, centered_clipping" in str(told.value)
        with pytest.raises(UnknownMemberError):
            aggregate.check(name)


def test_names_that_can_be_are_known_without_being_built() -> None:
    for name in ("krum", "zeno", "nnm+bucketing+clipping+krum"):
        aggregate.check(name)
    assert aggregate.stages() == ["arc", "bucketing", "clipping", "nnm"]
    assert set(aggregate.names()) >= {"mean", "trimmed_mean", "zeno"}
    assert not set(aggregate.names()) & set(aggregate.stages())


def test_options_go_to_the_part_that_takes_them() -> None:
    assert aggregate.get("bucketing+krum", f=2, size=3).minimum() == 3 * 6 + 1
    assert aggregate.get("bucketing+krum", f=2, **{"bucketing.size": 1}).minimum() == 7
    assert aggregate.get("bucketing+nnm+krum", f=2, size=2).minimum() == 2 * 6 + 1
    assert aggregate.get("bucketing+krum", f=1, size=2).breakdown == 0.25
    assert aggregate.get("clipping+nnm+faba", f=1).breakdown == pytest.approx(1 / 3)
    assert aggregate.get("clipping+ios", f=1).own_first
    assert aggregate.get("nnm+krum", f=3).f == 3


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("krum", {"size": 2}, "no part takes the option 'size'; its options: krum.f"),
        ("nnm+krum", {"tau": 2.0}, "no part takes the option 'tau'; its options: nnm.f, krum.f"),
        ("nnm+krum", {"arc.f": 2}, "no part takes the option 'arc.f'"),
        ("clipping+centered_clipping", {"tau": 2.0}, "write clipping.tau or centered_clipping.tau"),
        ("clipping+krum", {"tau": 2.0, "clipping.tau": 3.0}, "clipping.tau is given twice"),
        ("zeno", {"f": 1}, "zeno needs the option score, a callable"),
        ("nnm+zeno", {"f": 1}, "zeno needs the option score, a callable"),
    ],
)
def test_options_that_cannot_be_are_refused(name: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(BadOptionError) as told:
        aggregate.get(name, **options)
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *[(name, {"tau": tau}) for name in ("centered_clipping", "clipped_gossip") for tau in (0, -1.0, math.nan)],
        *[("clipped_gossip", {"tau_times": times}) for times in (0.0, -1.0, math.inf, math.nan)],
        ("clipping+mean", {"tau": math.inf}),
        ("centered_clipping", {"steps": 0}),
        ("bucketing+mean", {"size": 0}),
        ("mda", {"f": 17}),
    ],
)
def test_values_that_cannot_be_meant_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        aggregate.get(name, **options)


def test_bucketing_draws_anew_in_every_call() -> None:
    x_nd = torch.randn(9, 200, generator=torch.Generator().manual_seed(4))
    rule, twin = (aggregate.get("bucketing+trimmed_mean", f=1, seed=5) for _ in range(2))
    first_d, second_d = rule(x_nd), rule(x_nd)
    assert not torch.equal(first_d, second_d)
    assert torch.equal(twin(x_nd), first_d)
    assert torch.equal(twin(x_nd), second_d)


def test_clipping_nothing_leaves_out_what_has_no_direction() -> None:
    x_nd = torch.randn(5, 20, generator=torch.Generator().manual_seed(6))
    x_nd[3, 3] = torch.nan
    cleared_nd = x_nd.clone()
    cleared_nd[3] = 0
    torch.testing.assert_close(aggregate.get("arc+mean", f=0)(x_nd), cleared_nd.mean(0))


@pytest.mark.parametrize("name", ["clipped_gossip", "cs_plus", "gts"])
def test_gossip_follows_nobody_who_is_lost_even_at_f_0(name: str) -> None:
    x_nd = torch.randn(4, 20, generator=torch.Generator().manual_seed(7))
    x_nd[2, 3] = torch.inf
    expected_d = (2 * x_nd[0] + x_nd[1] + x_nd[3]) / 4  # its weight stays with the own vector
    torch.testing.assert_close(aggregate.get(name, f=0)(x_nd), expected_d)


@pytest.mark.slow
def test_after_an_error_no_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "threads_for", lambda rows: 2)
    raised, done = threading.Event(), []

    def work(part: slice) -> None:
        if part.start == 0:
            raised.set()
            raise OSError("gone")
        raised.wait(10)
        done.append(part)

    parts = columns.parts(0, 100_000, 1)
    with pytest.raises(OSError, match="gone"):
        columns.sweep(Rows.of(torch.empty(1, 0)), parts, lambda: work, torch.device("cpu"))
    assert len(done) < len(parts) / 2


def complete(n: int) -> torch.Tensor:
    return torch.ones(n, n) - torch.eye(n)


def ring(n: int) -> torch.Tensor:
    return complete(n) * 0 + torch.eye(n).roll(1, 0) + torch.eye(n).roll(-1, 0)


def dumbbell(n: int) -> torch.Tensor:
    """Two complete halves and one edge between them."""
    graph_nn = torch.block_diag(complete(n // 2), complete(n // 2))
    graph_nn[0, -1] = graph_nn[-1, 0] = 1
    return graph_nn


def test_algebraic_connectivity_of_known_graphs() -> None:
    assert algebraic_connectivity(complete(7)) == pytest.approx(7)
    assert algebraic_connectivity(2 * complete(7) + torch.eye(7)) == pytest.approx(14)
    assert algebraic_connectivity(ring(10)) == pytest.approx(2 - 2 * math.cos(2 * math.pi / 10))
    assert algebraic_connectivity(torch.block_diag(complete(3), complete(3))) == pytest.approx(0, abs=1e-9)
    assert 0 < algebraic_connectivity(dumbbell(20)) < 0.2
    assert honest_connectivity(complete(9), [2, 5]) == pytest.approx(7)
    assert honest_connectivity(dumbbell(8), [0]) == pytest.approx(0, abs=1e-9)


@settings(max_examples=examples(50), deadline=None, derandomize=True)
@given(n=st.integers(3, 12), density=st.floats(0.2, 1.0), seed=st.integers(0, 1000), gone=st.integers(0, 2))
def test_a_vertex_takes_one_from_mu_2_at_most(n: int, density: float, seed: int, gone: int) -> None:
    upper_nn = (torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < density).double().triu(1)
    graph_nn = upper_nn + upper_nn.T
    assert honest_connectivity(graph_nn, [gone]) >= algebraic_connectivity(graph_nn) - 1 - 1e-9


@pytest.mark.parametrize(
    "graph_nn",
    [torch.ones(1, 1), torch.ones(2, 3), -complete(3), torch.eye(3).roll(1, 0), complete(3) * torch.inf, torch.ones(4)],
)
def test_what_is_no_graph_is_refused(graph_nn: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="graph"):
        algebraic_connectivity(graph_nn)


def test_robust_margin_is_that_of_the_tighter_condition() -> None:
    rule = aggregate.get("cs_plus", f=2)
    assert robust_margin(9, 2, math.inf, needed=rule.minimum()) == 4
    assert robust_margin(9, 2, 10.0, needed=rule.minimum()) == 4
    assert robust_margin(9, 2, 6.5, needed=rule.minimum()) == 2
    assert robust_margin(9, 2, 4.5, needed=rule.minimum()) == 0
    assert robust_margin(9, 2, 4.0, needed=rule.minimum()) == -1  # mu_2 <= 2b: impossible
    assert robust_margin(9, 2, 4.0 + 1e-13, needed=rule.minimum()) == -1
    assert robust_margin(9, 2, 0.3, needed=rule.minimum()) == -4
    assert robust_margin(3, 2, math.inf, needed=rule.minimum()) == -2


def test_as_many_may_leave_a_complete_graph_as_the_margin_says() -> None:
    f, n = 1, 9
    margin = robust_margin(n - 1, f, algebraic_connectivity(complete(n)), needed=3)
    mu_2 = [algebraic_connectivity(complete(n - left)) for left in (margin, margin + 1)]
    members = [n - left for left in (margin, margin + 1)]
    assert mu_2[0] > 2 * f
    assert members[0] >= 3
    assert mu_2[1] <= 2 * f or members[1] < 3


@pytest.mark.parametrize(
    ("degree", "f", "mu_2", "needed"), [(-1, 0, 1, 1), (3, -1, 1, 1), (3, 1, math.nan, 1), (3, 1, -1, 1)]
)
def test_margins_of_nothing_are_refused(degree: int, f: int, mu_2: float, needed: int) -> None:
    with pytest.raises(ValueError, match="neighbourhood"):
        robust_margin(degree, f, mu_2, needed=needed)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_full_mesh_is_known_from_what_neighbours_say(n: int) -> None:
    assert known_connectivity(n - 1, [n - 1] * (n - 1), n - 1) == pytest.approx(algebraic_connectivity(complete(n)))
    assert known_connectivity(n - 1, [n - 1] * (n - 1), n - 2) == n, "an address that was not told is no other node"


@pytest.mark.parametrize(
    ("neighbours", "theirs", "peers"),
    [(0, [], 0), (2, [2, 1], 2), (2, [2, 3], 2), (2, [2, 2], 3), (2, [0, 0], 2)],
)
def test_where_a_full_mesh_is_not_certain_members_are_counted(neighbours: int, theirs: list[int], peers: int) -> None:
    assert known_connectivity(neighbours, theirs, peers) == math.inf


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 neighbours"):
        known_connectivity(2, [2], 2)


@pytest.mark.parametrize("f", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["trimmed_mean", "krum", "bucketing+trimmed_mean", "clipped_gossip", "ios"])
def test_in_a_full_mesh_the_graph_asks_no_more_than_the_rule(name: str, f: int) -> None:
    needed = aggregate.get(name, f=f).minimum()
    for n in range(1, 12):
        by_graph = robust_margin(n - 1, f, float(n), needed=needed)
        assert by_graph == robust_margin(n - 1, f, math.inf, needed=needed) == n - needed
