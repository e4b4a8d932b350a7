"""Refinements of an update: what an edge gains by them, and what a liar does not."""

from collections.abc import Callable

import pytest
import torch
from sizes import thorough_but

from p2ptrain.compress import PayloadError
from p2ptrain.sync import Message, ModelAveraging, SyncConfig, build
from p2ptrain.sync.refinements import LONGEST, Refinements

D = 5000
NODES = 6
TOPK = {"compressor": "topk", "ratio": 1 / 32, "aggregator": "mean", "f": 0}
LAYERS = ("q2", "int8")

Depth = Callable[[int, int], int]
"""How many layers node i has of node j."""


def vector(seed: int) -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


def make(**options: object) -> ModelAveraging:
    strategy = build(SyncConfig(**{**TOPK, **options}), torch.zeros(D))  # type: ignore[arg-type]
    assert isinstance(strategy, ModelAveraging)
    return strategy


def full_mesh(depth: Depth, rounds: int, **options: object) -> list[torch.Tensor]:
    """The models of nodes that begin apart, learn nothing, and average over a full mesh."""
    nodes = [make(**options) for _ in range(NODES)]
    models = [vector(number) for number in range(NODES)]
    others = [[other for other in range(NODES) if other != node] for node in range(NODES)]
    for node in range(NODES):
        for other in others[node]:
            nodes[node].track(str(other), None)
    for round_ in range(rounds):
        told = [(node.encode(model_d, round=round_), node.layers) for node, model_d in zip(nodes, models, strict=True)]
        for number, node in enumerate(nodes):
            for other in others[number]:
                node.apply(str(other), *told[other][0])
                for layer, refinement in enumerate(told[other][1][: depth(number, other)], start=1):
                    node.refine(str(other), layer, *refinement)
            node.refined_by({str(other): depth(other, number) for other in others[number]})
        for number, node in enumerate(nodes):
            result = node.aggregate(models[number], dict.fromkeys(map(str, others[number]), 0), round=round_)
            models[number] = models[number] + result.correction_d
    return models


def apart(models: list[torch.Tensor]) -> float:
    stacked_nd = torch.stack(models)
    return float((stacked_nd - stacked_nd.mean(dim=0)).norm())


def mean_moved(models: list[torch.Tensor]) -> float:
    start_d = torch.stack([vector(number) for number in range(NODES)]).mean(dim=0)
    return float((torch.stack(models).mean(dim=0) - start_d).norm())


def least_class(one: int, other: int) -> int:
    """Two nodes on slow links, two on faster ones, two on the fastest."""
    return min(one, other) // 2


@pytest.mark.thorough
def test_the_edges_that_take_layers_agree_sooner_and_the_others_no_later() -> None:
    base = apart(full_mesh(lambda one, other: 0, 20))
    mixed = apart(full_mesh(least_class, 20, layers=LAYERS))
    all_of_them = apart(full_mesh(lambda one, other: 2, 20, layers=LAYERS))
    assert all_of_them < 0.01 * base
    assert mixed < 0.7 * base


@pytest.mark.parametrize(
    "depth",
    [
        pytest.param(least_class, marks=pytest.mark.thorough),
        lambda one, other: other // 2,
        pytest.param(lambda one, other: one // 2, marks=pytest.mark.thorough),
    ],
)
def test_the_members_mean_stays_whoever_takes_what(depth: Depth) -> None:
    models = full_mesh(depth, 30, layers=LAYERS)
    assert mean_moved(models) < 1e-3 * apart([vector(number) for number in range(NODES)])


@pytest.mark.thorough
def test_models_that_rest_come_to_rest_together() -> None:
    assert apart(full_mesh(least_class, 400, layers=LAYERS)) < 1e-3 * apart([vector(i) for i in range(NODES)])


def test_messages_and_estimates_are_the_same_bits_with_layers_and_without() -> None:
    plain, layered, receiver = make(), make(layers=LAYERS), make(layers=LAYERS)
    receiver.track("sender", None)
    for seed in range(10):
        message = plain.encode(vector(seed), round=seed)
        assert layered.encode(vector(seed), round=seed) == message
        receiver.apply("sender", *message)
        for layer, refinement in enumerate(layered.layers, start=1):
            receiver.refine("sender", layer, *refinement)
        assert torch.equal(receiver.estimates["sender"], plain.public_d)
    assert torch.equal(layered.public_d, plain.public_d)


def test_layers_leave_less_out_each() -> None:
    node, model_d = make(layers=LAYERS), vector(1)
    node.encode(model_d, round=0)
    left_d = model_d - node.public_d
    errors = [float(left_d.norm())]
    for refinement in node.layers:
        _, codec = node.encoder.decoder.reader(refinement.codec)
        left_d = left_d - codec.decode(refinement.payload, D)
        errors.append(float(left_d.norm()))
    assert errors[1] < 0.4 * errors[0]
    assert errors[2] < 0.02 * errors[1]


def sent(seed: int = 1) -> tuple[Message, tuple[Message, ...]]:
    sender = make(layers=LAYERS)
    return sender.encode(vector(seed), round=0), sender.layers


def test_what_is_no_refinement_is_refused_and_nothing_is_taken() -> None:
    node, (base, (first, second)) = make(layers=LAYERS), sent()
    node.track("peer", None)
    not_finite = Message("q2", b"\x00\x00\xc0\x7f" * 5 + first.payload[20:])
    with pytest.raises(PayloadError, match="protocol"):
        node.refine("peer", 1, *first)  # before its update
    node.apply("peer", *base)
    for layer, refinement, reason in (
        (2, second, "protocol"),
        (1, second, "unknown_codec"),
        (1, Message("none", first.payload), "unknown_codec"),
        (1, Message("q2", first.payload[:-1]), "wrong_shape"),
        (1, not_finite, "nonfinite"),
    ):
        with pytest.raises(PayloadError, match=reason):
            node.refine("peer", layer, *refinement)
    node.refine("peer", 1, *first)
    node.refine("peer", 2, *second)
    with pytest.raises(PayloadError, match="unknown_codec"):
        node.refine("peer", 3, *second)
    with pytest.raises(PayloadError, match="unknown_codec"):
        make().refine("peer", 1, *first)


def moved(node: ModelAveraging, peers: list[str]) -> torch.Tensor:
    start_d = node.anchor_d.clone()
    return node.aggregate(start_d, dict.fromkeys(peers, 0), round=0).anchor_d - start_d


def test_a_refinement_counts_for_its_own_update_alone() -> None:
    (base, (first, _)), (after, _) = sent(), sent(2)
    results = []
    for refined in (False, True):
        node = make(layers=LAYERS)
        node.track("peer", None)
        node.apply("peer", *base)
        if refined:
            node.refine("peer", 1, *first)
        node.apply("peer", *after)
        node.encode(torch.zeros(D), round=0)
        node.refined_by({"peer": 2})
        results.append(moved(node, ["peer"]))
    assert torch.equal(*results)


def test_refinements_end_with_the_estimate_that_they_refine() -> None:
    base, (first, _) = sent()
    results = []
    for refined in (False, True):
        node = make(layers=LAYERS)
        node.track("peer", None)
        node.apply("peer", *base)
        if refined:
            node.refine("peer", 1, *first)
        snapshot = node.estimate("peer")
        assert snapshot is not None
        node.track("peer", snapshot)
        with pytest.raises(PayloadError, match="protocol"):
            node.refine("peer", 1, *first)
        node.encode(torch.zeros(D), round=0)
        node.refined_by({"peer": 2})
        results.append(moved(node, ["peer"]))
    assert torch.equal(*results)


def scaled(refinement: Message, factor: float) -> Message:
    """A payload of q2 that stands for values so many times as large: its scales are."""
    blocks = -(-D // 1024)
    scales = torch.frombuffer(bytearray(refinement.payload[: 4 * blocks]), dtype=torch.float32) * factor
    return Message("q2", scales.numpy().tobytes() + refinement.payload[4 * blocks :])


def with_refinements(refinements: dict[str, Message], base: Message, **options: object) -> torch.Tensor:
    node = make(layers=LAYERS, **options)
    for peer, refinement in refinements.items():
        node.track(peer, None)
        node.apply(peer, *base)
        node.refine(peer, 1, *refinement)
    node.encode(torch.zeros(D), round=0)
    node.refined_by(dict.fromkeys(refinements, 2))
    return moved(node, list(refinements))


def test_a_huge_refinement_is_shortened_to_what_a_codec_leaves_out() -> None:
    base, (first, _) = sent()
    sender = make()
    _, codec = sender.encoder.decoder.reader(base.codec)
    longest = LONGEST * float(codec.decode(base.payload, D).norm())
    huge_d = with_refinements({"liar": scaled(first, 1e6)}, base)
    assert float(huge_d.norm()) < 0.51 * (longest + float(codec.decode(base.payload, D).norm()))


def test_the_robust_rule_sees_a_refined_model_as_one_value() -> None:
    """One liar of five neighbours: each value stays within those of the honest."""
    base, (first, _) = sent()
    honest = {f"honest{number}": first for number in range(4)}
    of_honest = with_refinements(honest, base, aggregator="trimmed_mean", f=1)
    lied_to = with_refinements({**honest, "liar": scaled(first, 1e6)}, base, aggregator="trimmed_mean", f=1)
    one_d = with_refinements({"honest0": first}, base, aggregator="mean", f=0) * 2  # half the way to one of two
    least_d, most_d = torch.minimum(one_d, torch.zeros(D)), torch.maximum(one_d, torch.zeros(D))
    for moved_d in (of_honest, lied_to):
        assert bool((moved_d >= least_d - 1e-5).all())
        assert bool((moved_d <= most_d + 1e-5).all())


Shown = Callable[[int, int], int]
"""How many layers a liar shows in a round to an honest node."""

SHOWN: dict[str, Shown] = {
    "to half of them": lambda round_, node: 2 * (node % 2),
    "to one after the other": lambda round_, node: 2 * (round_ % (NODES - 1) == node),
    "in every second round": lambda round_, node: 2 * (round_ % 2),
}


def beside_a_liar(shown: Shown, *, lie: float, depth: int) -> list[torch.Tensor]:
    """The models of five honest nodes after 8 rounds that average with `depth` layers of each other, by a trimmed
    mean. The last node's bases go to their mean, and its layers say `lie` times what these leave out."""
    nodes = [make(layers=LAYERS, aggregator="trimmed_mean", f=1) for _ in range(NODES)]
    models, liar = [vector(number) for number in range(NODES - 1)], NODES - 1
    others = [[other for other in range(NODES) if other != node] for node in range(NODES)]
    for node in range(NODES):
        for other in others[node]:
            nodes[node].track(str(other), None)
    for round_ in range(8):
        told = [(nodes[node].encode(models[node], round=round_), nodes[node].layers) for node in range(liar)]
        target_d = torch.stack(models).mean(dim=0)
        base = nodes[liar].encode(target_d, round=round_)
        teller = Refinements(LAYERS, nodes[liar].encoder.decoder)
        told.append((base, teller.encode(lie * (target_d - nodes[liar].public_d))))
        for node in range(liar):
            for other in others[node]:
                nodes[node].apply(str(other), *told[other][0])
                of_them = shown(round_, node) if other == liar else depth
                for layer, refinement in enumerate(told[other][1][:of_them], start=1):
                    nodes[node].refine(str(other), layer, *refinement)
            nodes[node].refined_by({str(other): 2 for other in others[node]})
        for node in range(liar):
            staleness = dict.fromkeys(map(str, others[node]), 0)
            models[node] = models[node] + nodes[node].aggregate(models[node], staleness, round=round_).correction_d
    return models


def honest_mean_moved(models: list[torch.Tensor]) -> float:
    start_d = torch.stack([vector(number) for number in range(NODES - 1)]).mean(dim=0)
    return float((torch.stack(models).mean(dim=0) - start_d).norm())


@pytest.mark.parametrize("depth", [2, pytest.param(0, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("lie", thorough_but({1000.0}, [-4.0, 1000.0]))
def test_a_liar_that_shows_its_layers_to_some_gains_nothing_over_one_that_shows_them_to_all(
    depth: int, lie: float
) -> None:
    """Honest nodes come as near to each other as beside one that shows none, and are moved no further than by one that
    shows none or all."""
    none, everything = (beside_a_liar(shown, lie=lie, depth=depth) for shown in (lambda *_: 0, lambda *_: 2))
    furthest = max(honest_mean_moved(none), honest_mean_moved(everything))
    start = apart([vector(number) for number in range(NODES - 1)])
    for how, shown in SHOWN.items():
        models = beside_a_liar(shown, lie=lie, depth=depth)
        assert apart(models) <= apart(none) + 1e-3 * start, how
        assert honest_mean_moved(models) <= furthest, how


def test_layers_are_checked_where_they_are_set() -> None:
    for options, words in (
        ({"strategy": "diloco"}, "layers are for tracked_gossip, not for diloco"),
        ({"layers": ("q2",) * 5}, "at most 4 codecs, not 5"),
        ({"layers": ("powersgd",)}, "cannot have powersgd"),
        ({"layers": ("adaptive",)}, "cannot have adaptive"),
    ):
        with pytest.raises(ValueError, match=words):
            SyncConfig(**{"layers": LAYERS, **options})  # type: ignore[arg-type]
    assert SyncConfig().run_key() == ""
    assert SyncConfig(layers=LAYERS).run_key() == "layers q2,int8"
