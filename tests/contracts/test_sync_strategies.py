"""What every sync strategy must hold towards the runtime: replicas agree, bad input changes nothing, state survives.

All of it under two codecs, one exact and one that loses; int4, since some strategies refuse coarser ones, and int8 for
those that meet. What these do beside it is test_meetings.py. A strategy that averages gradients is no SyncStrategy:
that is test_sync_gradient.py.
"""

import itertools

import pytest
import torch
from sizes import thorough_but

from p2ptrain.compress import PayloadError
from p2ptrain.sync import (
    ALLREDUCE,
    SECURE,
    SYNC_STRATEGIES,
    Message,
    SyncConfig,
    SyncStrategy,
    averages_gradients,
    build,
)
from p2ptrain.sync.base import HasAnchor

D = 3000
NAMES = [name for name in SYNC_STRATEGIES.names() if not averages_gradients(name)]
CODECS = ("none", "int4")
MOVES_THE_MEAN = {"sparse_loco"}
"""It clips members to the median one, and forgets some of what did not fit into a message."""

every_strategy = pytest.mark.parametrize("name", NAMES)
every_codec = pytest.mark.parametrize("codec", CODECS)
one_codec = pytest.mark.parametrize("codec", thorough_but({"int4"}, CODECS))


def genesis() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(0))


def make(name: str, own: str = "own", **options: object) -> SyncStrategy:
    if SYNC_STRATEGIES.get(name).averager == ALLREDUCE and options.get("compressor") == "int4":
        options["compressor"] = "int8"
    if SYNC_STRATEGIES.get(name).averager == SECURE:  # its messages are masked whole numbers: it has no other codec
        options.pop("compressor", None)
    return build(SyncConfig(strategy=name, **options), genesis(), own)  # type: ignore[arg-type]


def swarm(name: str, count: int, **options: object) -> dict[str, SyncStrategy]:
    nodes = {f"peer{i}": make(name, f"peer{i}", **options) for i in range(count)}
    for own, node in nodes.items():
        for peer in nodes.keys() - {own}:
            node.track(peer, None)
    return nodes


Models = dict[str, torch.Tensor]


def one_round(nodes: dict[str, SyncStrategy], thetas: Models, round: int) -> Models:
    messages = {own: node.encode(thetas[own], round=round) for own, node in nodes.items()}
    corrected = {}
    for own, node in nodes.items():
        peers = sorted(nodes.keys() - {own})
        for peer in peers:
            node.apply(peer, messages[peer].codec, messages[peer].payload)
        result = node.aggregate(thetas[own], dict.fromkeys(peers, 0), round=round)
        corrected[own] = thetas[own] + result.correction_d
    return corrected


def run(nodes: dict[str, SyncStrategy], thetas: Models, rounds: int, first: int = 0) -> Models:
    for round in range(first, first + rounds):
        thetas = one_round(nodes, thetas, round)
    return thetas


def scattered(nodes: dict[str, SyncStrategy]) -> Models:
    generator = torch.Generator().manual_seed(5)
    return {own: genesis() + torch.randn(D, generator=generator) for own in nodes}


def mean_of(models: Models) -> torch.Tensor:
    return torch.stack(list(models.values())).double().mean(0)


def spread_of(models: Models) -> float:
    stacked_nd = torch.stack(list(models.values())).double()
    return float((stacked_nd - stacked_nd.mean(0)).norm())


@pytest.mark.slow
@one_codec
@every_strategy
def test_rounds_without_training_reach_consensus(name: str, codec: str) -> None:
    nodes = swarm(name, 4, compressor=codec, outer="average")
    assert all(isinstance(node, SyncStrategy) for node in nodes.values())
    thetas = scattered(nodes)
    before, mean_d = spread_of(thetas), mean_of(thetas)
    thetas = run(nodes, thetas, 30)
    assert spread_of(thetas) < 0.05 * before
    assert (mean_of(thetas) - mean_d).norm() < 0.5 * before


@pytest.mark.slow
@pytest.mark.parametrize("name", thorough_but({"tracked_gossip", "allreduce", "secure_average"}, NAMES))
def test_the_own_outer_step_reaches_consensus_too(name: str) -> None:
    nodes = swarm(name, 4)
    thetas = scattered(nodes)
    before = spread_of(thetas)
    assert spread_of(run(nodes, thetas, 60)) < 0.2 * before, "noise of two bits stays, where two bits are the default"


@every_strategy
def test_averaging_leaves_the_mean_where_it_is(name: str) -> None:
    nodes = swarm(name, 5, compressor="none", outer="average", aggregator="mean", f=0)
    thetas = scattered(nodes)
    before = mean_of(thetas)
    for round in range(9):
        thetas = one_round(nodes, thetas, round)
        if name not in MOVES_THE_MEAN:
            torch.testing.assert_close(mean_of(thetas), before, atol=1e-5, rtol=0)


@every_codec
@every_strategy
def test_a_round_moves_the_anchor_and_the_model_to_it(name: str, codec: str) -> None:
    """Where all of the correction is taken and the whole model is averaged, theta is the anchor after every round."""
    nodes = swarm(name, 3, compressor=codec)
    thetas = scattered(nodes)
    for round in range(3):
        messages = {own: node.encode(thetas[own], round=round) for own, node in nodes.items()}
        for own, peer in itertools.permutations(nodes, 2):
            nodes[own].apply(peer, *messages[peer])
        result = nodes["peer0"].aggregate(thetas["peer0"], {"peer1": 0, "peer2": 0}, round=round)
        assert torch.equal(nodes["peer0"].state_dict()["anchor"], result.anchor_d)
        assert torch.isfinite(result.correction_d).all()
        assert 1 <= result.members <= 3
        if "fragments" not in SyncConfig(strategy=name).options:
            torch.testing.assert_close(thetas["peer0"] + result.correction_d, result.anchor_d, atol=1e-5, rtol=0)


@every_codec
@every_strategy
def test_all_replicas_of_an_estimate_hold_the_senders_bits(name: str, codec: str) -> None:
    """Of every strategy's messages, whatever the receiver's own strategy is."""
    nodes = swarm(name, 3, compressor=codec)
    foreigner = make("tracked_gossip")
    foreigner.track("peer0", None)
    thetas = scattered(nodes)
    for round in range(9):
        message = nodes["peer0"].encode(thetas["peer0"], round=round)
        assert isinstance(message, Message)
        assert 0 < len(message.codec) <= 32, "docs/protocol.md"
        for receiver in (nodes["peer1"], nodes["peer2"], foreigner):
            receiver.apply("peer0", *message)
    for receiver in (nodes["peer1"], nodes["peer2"], foreigner):
        held_d = receiver.adopt({"peer0": 0})  # of one donor, its estimate
        assert held_d.numpy().tobytes() == nodes["peer0"].snapshot()


@every_codec
@every_strategy
def test_a_snapshot_is_what_neighbours_track(name: str, codec: str) -> None:
    """A node tracked by deltas and one tracked from a snapshot decide alike, to the last bit."""
    nodes = swarm(name, 3, compressor=codec)
    thetas = run(nodes, scattered(nodes), 3)
    by_deltas = nodes["peer0"]
    state = by_deltas.state_dict()
    results = []
    for with_snapshots in (False, True):
        if with_snapshots:
            for peer in ("peer1", "peer2"):
                by_deltas.track(peer, nodes[peer].snapshot())
        by_deltas.load_state_dict(state)
        results.append(by_deltas.aggregate(thetas["peer0"], {"peer1": 0, "peer2": 1}, round=3))
    assert torch.equal(results[0].correction_d, results[1].correction_d)
    assert results[0].members == results[1].members


@every_codec
@every_strategy
def test_bad_payloads_change_nothing(name: str, codec: str) -> None:
    nodes = swarm(name, 3, compressor=codec)
    thetas = run(nodes, scattered(nodes), 1)
    node, other = nodes["peer0"], nodes["peer1"]
    state = node.state_dict()
    node.load_state_dict(state)
    before = node.aggregate(thetas["peer0"], {"peer1": 0, "peer2": 0}, round=1)
    wire, good = other.encode(thetas["peer1"], round=1)
    wrong = [
        "nosuch",
        "",
        "part0of2",
        "part2of2+q2",
        "part0of1+q2",
        "part00of2+q2",
        "part0of99+q2",
        "part0of2+part0of2+q2",
    ]
    for name_told, payload in [
        (wire, good[:-1]),
        (wire, b""),
        (wire, b"\xff" * len(good)),
        *((name_told, good) for name_told in wrong),
    ]:
        with pytest.raises(PayloadError):
            node.apply("peer1", name_told, payload)
    with pytest.raises(PayloadError):
        node.apply("stranger", wire, good)
    for base in (b"", b"\0" * (4 * D - 1), b"\xff" * (4 * D)):
        with pytest.raises(PayloadError):
            node.track("peer1", base)
    node.load_state_dict(state)
    after = node.aggregate(thetas["peer0"], {"peer1": 0, "peer2": 0}, round=1)
    assert torch.equal(after.correction_d, before.correction_d)


@every_strategy
def test_what_is_held_is_never_changed_in_place(name: str) -> None:
    nodes = swarm(name, 3)
    thetas = run(nodes, scattered(nodes), 2)
    node = nodes["peer0"]
    anchor_d = node.state_dict()["anchor"]
    handed = [genesis(), thetas["peer0"], anchor_d]
    copies = [x_d.clone() for x_d in handed]
    snapshot = node.snapshot()
    kept = bytes(snapshot)
    run(nodes, thetas, 2, first=2)
    assert all(torch.equal(x_d, copy_d) for x_d, copy_d in zip(handed, copies, strict=True))
    assert snapshot == kept


@every_strategy
def test_alone_it_keeps_what_it_learned(name: str) -> None:
    node = make(name, outer="average")
    theta_d = genesis()
    for round in range(5):
        theta_d = theta_d + 0.1
        node.encode(theta_d, round=round)
        result = node.aggregate(theta_d, {}, round=round)
        assert result.members == 1
        assert result.robust == (SyncConfig(strategy=name).f == 0)
        assert not result.correction_d.any()


@every_strategy
def test_the_anchor_is_not_the_callers_vector(name: str) -> None:
    """Trainers move their parameters in place."""
    node = make(name, outer="average")
    node.track("peer", None)
    for round in range(5):
        theta_d = genesis() + 0.1 * round
        node.encode(theta_d, round=round)
        result = node.aggregate(theta_d, {} if round % 2 else {"peer": 0}, round=round)
        before_d = result.anchor_d.clone()
        theta_d.add_(1)
        result.correction_d.add_(1)
        assert torch.equal(node.state_dict()["anchor"], before_d)


@every_strategy
def test_forgotten_and_unknown_peers_are_passed_over(name: str) -> None:
    nodes = swarm(name, 3)
    node = nodes["peer0"]
    node.forget("peer2")
    node.forget("stranger")
    for round in range(4):
        assert node.aggregate(genesis(), {"peer1": 0, "peer2": 0, "stranger": 0}, round=round).members <= 2
    with pytest.raises(PayloadError, match="not tracked"):
        node.apply("peer2", *nodes["peer2"].encode(genesis(), round=0))


@pytest.mark.slow
@every_codec
@every_strategy
def test_state_returns_with_every_buffer_and_counter(name: str, codec: str) -> None:
    nodes = swarm(name, 4, compressor=codec)
    thetas = run(nodes, scattered(nodes), 6)
    saved = {key: value.clone() for key, value in nodes["peer0"].state_dict().items()}
    restarted = [make(name, "peer0", compressor=codec) for _ in range(2)]
    for node in restarted:
        node.load_state_dict(saved)
        assert node.state_dict().keys() == saved.keys()
        assert all(torch.equal(node.state_dict()[key], value) for key, value in saved.items())
        assert node.snapshot() == saved["anchor"].numpy().tobytes(), "the base of a new chain"
        for peer in ("peer1", "peer2", "peer3"):
            node.track(peer, nodes[peer].snapshot())
    one, other = (run({"peer0": node}, {"peer0": thetas["peer0"] + 0.1}, 5, first=6) for node in restarted)
    assert torch.equal(one["peer0"], other["peer0"])


@every_strategy
def test_the_outer_buffers_matter_to_what_comes_next(name: str) -> None:
    """Where a strategy's own outer step has a memory, a restart without it goes elsewhere."""
    nodes = swarm(name, 4)
    thetas = run(nodes, scattered(nodes), 8)
    whole = nodes["peer0"].state_dict()
    ends = []
    for state in (whole, {key: value for key, value in whole.items() if not key.startswith("outer.")}):
        node = make(name, "peer0")
        node.load_state_dict(state)
        ends.append(run({"peer0": node}, {"peer0": thetas["peer0"] + 0.1}, 4, first=8)["peer0"])
    assert torch.equal(*ends) == (not any(key.startswith("outer.") for key in whole))


@every_strategy
def test_another_models_state_is_refused(name: str) -> None:
    for state in (
        {},
        {"anchor": torch.zeros(D + 1)},
        {"anchor": torch.zeros(D), "outer.0.momentum": torch.zeros(D + 1)},
        {"anchor": torch.zeros(D), "outer.99.momentum": torch.zeros(D)},
        {"anchor": torch.zeros(D), "stray": torch.zeros(D)},
    ):
        with pytest.raises(ValueError, match="another model"):
            make(name).load_state_dict(state)


@pytest.mark.slow
@one_codec
@every_strategy
def test_a_late_joiner_takes_the_neighbours_model(name: str, codec: str) -> None:
    nodes = swarm(name, 4, compressor=codec, outer="average")
    thetas = run(nodes, scattered(nodes), 30)
    late = make(name, "late", compressor=codec)
    with pytest.raises(ValueError, match="no model to adopt"):
        late.adopt({"peer0": 0})
    for peer, node in nodes.items():
        late.track(peer, node.snapshot())
    adopted_d = late.adopt(dict.fromkeys(nodes, 0))
    mean_d = mean_of(thetas).float()
    assert (adopted_d - mean_d).norm() < 0.1 * (genesis() - mean_d).norm()
    assert torch.equal(late.state_dict()["anchor"], adopted_d)
    watcher = make(name, "watcher", compressor=codec)
    watcher.track("late", late.snapshot())
    assert torch.equal(watcher.adopt({"late": 0}), adopted_d)


@every_strategy
def test_wrong_parameters_are_our_mistake(name: str) -> None:
    node = make(name)
    with pytest.raises(ValueError, match="shape"):
        node.encode(torch.zeros(D + 1), round=0)
    with pytest.raises(ValueError, match="shape"):
        node.aggregate(torch.zeros(D + 1), {}, round=0)
    with pytest.raises(ValueError, match="diverged"):
        node.encode(torch.full((D,), torch.nan), round=0)
    for genesis_d in (torch.zeros(2, 2), torch.zeros(0), torch.zeros(5, dtype=torch.float64)):
        with pytest.raises(ValueError, match="flat fp32"):
            build(SyncConfig(strategy=name), genesis_d)


@every_codec
@pytest.mark.parametrize("name", [name for name in NAMES if SYNC_STRATEGIES.get(name).ends_at_anchor])
def test_a_round_takes_the_model_to_the_anchor_where_the_strategy_says_so(name: str, codec: str) -> None:
    nodes = swarm(name, 3, compressor=codec)
    thetas = scattered(nodes)
    for round in range(3):
        messages = {own: node.encode(thetas[own], round=round) for own, node in nodes.items()}
        for own, node in nodes.items():
            peers = sorted(nodes.keys() - {own})
            for peer in peers:
                node.apply(peer, messages[peer].codec, messages[peer].payload)
            result = node.aggregate(thetas[own], dict.fromkeys(peers, 0), round=round)
            assert isinstance(node, HasAnchor)
            thetas[own] = thetas[own] + result.correction_d
            assert torch.allclose(thetas[own], node.anchor_d, atol=1e-5)
            assert result.snapshot_d is not None
            assert torch.equal(result.snapshot_d, node.anchor_d)
