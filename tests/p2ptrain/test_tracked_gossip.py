"""The learning rule's own algebra: tracking, weights, gamma, momentum, and what a liar can do to it."""

import itertools

import pytest
import torch
from sizes import thorough_but

from p2ptrain import attacks, compress
from p2ptrain.compress import PayloadError
from p2ptrain.compress.dense import Dense
from p2ptrain.sync import Byzantine, ModelAveraging, SyncConfig, build

D = 2500
LIES = attacks.names(attacks.VectorAttack)


def genesis() -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(0))


def near(seed: int, size: float = 0.1) -> torch.Tensor:
    return genesis() + size * torch.randn(D, generator=torch.Generator().manual_seed(seed))


def make(**options: object) -> ModelAveraging:
    strategy = build(SyncConfig(**options), genesis())  # type: ignore[arg-type]
    assert isinstance(strategy, ModelAveraging)
    return strategy


def hearing(models: dict[str, torch.Tensor], **options: object) -> ModelAveraging:
    """A node at genesis that tracks these models exactly."""
    node = make(**options)
    for peer, model_d in models.items():
        node.track(peer, model_d.numpy().tobytes())
    return node


@pytest.mark.parametrize("codec", compress.names())
def test_all_replicas_of_an_estimate_hold_the_same_bits(codec: str) -> None:
    sender, receivers = make(compressor=codec), [make() for _ in range(2)]
    for receiver in receivers:
        receiver.track("sender", None)
    for seed in range(30):
        message = sender.encode(near(seed), round=seed)
        assert message.codec.startswith(codec), "a stage says what it wraps"
        for receiver in receivers:
            receiver.apply("sender", *message)
    for receiver in receivers:
        assert torch.equal(receiver.estimates["sender"], sender.public_d)
    late = make()
    late.track("sender", sender.snapshot())
    assert torch.equal(late.estimates["sender"], sender.public_d)


@pytest.mark.parametrize("codec", ["int8", "q2", "sign1", "topk"])
def test_the_estimate_follows_a_model_that_rests(codec: str) -> None:
    sender, model_d = make(compressor=codec), near(1)
    for _ in range(40):
        sender.encode(model_d, round=0)
    assert (sender.public_d - model_d).norm() < 0.1 * (genesis() - model_d).norm()


@pytest.mark.slow
def test_exact_full_mesh_with_the_mean_is_plain_averaging() -> None:
    models = {str(i): near(i) for i in range(5)}
    nodes = {own: make(compressor="none", aggregator="mean", f=0, gamma=1.0) for own in models}
    messages = {own: node.encode(models[own], round=0) for own, node in nodes.items()}
    mean_d = torch.stack(list(models.values())).mean(0)
    for own, node in nodes.items():
        for peer in models.keys() - {own}:
            node.track(peer, None)
            node.apply(peer, *messages[peer])
        result = node.aggregate(models[own], dict.fromkeys(models, 0), round=0)
        torch.testing.assert_close(models[own] + result.correction_d, mean_d, atol=1e-5, rtol=0)
        torch.testing.assert_close(node.anchor_d, mean_d, atol=1e-5, rtol=0)
        spread = torch.stack([model_d - mean_d for model_d in models.values()]).square().sum() / 5
        assert result.consensus_distance == pytest.approx(spread.sqrt().item(), rel=1e-3)
        assert result.robust


def test_gamma_shortens_the_step() -> None:
    theta_d, other_d = near(1), near(2)
    node = hearing({"a": other_d}, aggregator="mean", f=0, gamma=0.25, compressor="none")
    node.encode(theta_d, round=0)
    expected_d = 0.25 * (other_d - theta_d) / 2
    torch.testing.assert_close(node.aggregate(theta_d, {"a": 0}, round=0).correction_d, expected_d, atol=1e-5, rtol=0)


def test_stale_neighbours_weigh_less() -> None:
    node = hearing({"a": genesis() + 1, "b": genesis() - 1}, aggregator="mean", f=0, staleness_exponent=0.5)
    moved_d = node.aggregate(genesis(), {"a": 0, "b": 3}, round=0).correction_d
    torch.testing.assert_close(moved_d, torch.full((D,), (1 - 0.5) / 3), atol=1e-5, rtol=0)


def test_a_staleness_exponent_of_zero_weighs_all_alike() -> None:
    node = hearing({"a": genesis() + 1, "b": genesis() - 1}, aggregator="mean", f=0, staleness_exponent=0.0)
    assert node.aggregate(genesis(), {"a": 0, "b": 9}, round=0).correction_d.abs().max() < 1e-5


@pytest.mark.parametrize("lie", [100.0, -100.0, 1e9])
def test_a_liar_is_held_by_the_trimmed_mean_and_ruins_the_mean(lie: float) -> None:
    models = {str(i): near(i) for i in range(4)} | {"liar": genesis() + lie}
    staleness = dict.fromkeys(models, 0)
    trimmed = hearing(models).aggregate(genesis(), staleness, round=0)
    assert trimmed.robust
    assert trimmed.correction_d.abs().max() < 1
    assert hearing(models, aggregator="mean").aggregate(genesis(), staleness, round=0).correction_d.abs().min() > 10


@pytest.mark.parametrize(
    ("neighbours", "f", "robust"),
    [(0, 1, False), (1, 1, False), (2, 1, True), (3, 2, False), (4, 2, True), (0, 0, True)],
)
def test_robust_says_whether_members_suffice(neighbours: int, f: int, robust: bool) -> None:
    node = hearing({str(i): near(i) for i in range(neighbours)}, f=f)
    result = node.aggregate(genesis(), {str(i): 0 for i in range(neighbours)}, round=0)
    assert (result.robust, result.members) == (robust, neighbours + 1)


def test_the_mean_is_never_called_robust_against_liars() -> None:
    models = {str(i): near(i) for i in range(4)}
    assert not hearing(models, aggregator="mean", f=1).aggregate(genesis(), dict.fromkeys(models, 0), round=0).robust


def test_too_few_for_f_runs_with_the_f_they_allow() -> None:
    models = {"a": genesis() + 1, "b": genesis() + 2, "liar": genesis() + 1e6}
    moved_d = hearing(models, f=5).aggregate(genesis(), dict.fromkeys(models, 0), round=0).correction_d
    torch.testing.assert_close(moved_d, torch.full((D,), 1.5), atol=1e-4, rtol=0)  # of 0, 1, 2, 1e6 with f = 1


def test_noloco_keeps_moving() -> None:
    node = hearing({"a": genesis() + 1}, aggregator="mean", f=0, outer="noloco", alpha=0.5, beta=0.7)
    theta_d = genesis()
    target, phi, delta = 0.5, 0.0, 0.0
    for _ in range(4):
        result = node.aggregate(theta_d, {"a": 0}, round=0)
        delta = 0.5 * delta + 0.7 * (target - phi)
        phi += delta
        torch.testing.assert_close(theta_d + result.correction_d, genesis() + phi, atol=1e-4, rtol=0)


def test_state_keeps_the_momentum() -> None:
    node = hearing({"a": genesis() + 1}, outer="noloco", f=0)
    node.aggregate(near(1), {"a": 0}, round=0)
    restarted = hearing({"a": genesis() + 1}, outer="noloco", f=0)
    restarted.load_state_dict(node.state_dict())
    assert torch.equal(restarted.public_d, node.anchor_d)
    assert torch.equal(restarted.state_dict()["outer.0.delta"], node.state_dict()["outer.0.delta"])


def test_adopting_trusts_no_single_donor() -> None:
    models = {str(i): near(i, 0.01) for i in range(3)} | {"liar": genesis() + 1e9}
    node = hearing(models, outer="noloco", aggregator="mean")
    node.aggregate(near(9), {"0": 0}, round=0)
    adopted_d = node.adopt(dict.fromkeys(models, 0))
    assert (adopted_d - genesis()).abs().max() < 0.1
    assert torch.equal(node.anchor_d, adopted_d)
    assert node.snapshot() == adopted_d.numpy().tobytes()
    assert node.state_dict().keys() == {"anchor"}


@pytest.mark.parametrize("lie", [-1e6, 1e6])
def test_of_two_donors_the_lying_one_takes_nobody_beyond_the_honest_one_and_where_it_stood(lie: float) -> None:
    models = {"honest": genesis() + 1, "liar": genesis() + lie}
    adopted_d = hearing(models, f=1).adopt(dict.fromkeys(models, 0))
    torch.testing.assert_close(adopted_d, genesis() + min(1.0, max(0.0, lie)))


def test_a_codecs_memory_ends_with_the_chain_that_it_is_of() -> None:
    config = SyncConfig(compressor="powersgd", aggregator="mean", f=0)
    node, fresh = (build(config, genesis(), "own") for _ in range(2))
    node.encode(genesis() + torch.randn(genesis().numel()), round=0)
    node.track("peer", None)
    adopted_d = node.adopt({"peer": 0}).clone()
    moved_d = adopted_d + torch.linspace(-1, 1, adopted_d.numel())
    assert node.encode(moved_d, round=1) == fresh.encode(moved_d, round=1)


def test_adopting_from_few_takes_their_median() -> None:
    models = {"a": genesis(), "b": genesis() + 1, "liar": genesis() - 1e9}
    torch.testing.assert_close(hearing(models, f=4).adopt(dict.fromkeys(models, 0)), genesis())


def test_refusals_name_their_reason() -> None:
    node = hearing({"a": near(1)})
    good = make(compressor="none").encode(near(2), round=0).payload
    huge = compress.get("none").encode(torch.full((D,), 1e20))
    for codec, payload, reason in [
        ("none", good[:-4], "wrong_shape"),
        ("zip", good, "unknown_codec"),
        ("x" * 10_000, good, "unknown_codec"),
        ("none", b"\xff" * len(good), "nonfinite"),
        ("none", huge, "nonfinite"),
    ]:
        with pytest.raises(PayloadError) as refused:
            node.apply("a", codec, payload)
        assert refused.value.reason == reason
        assert torch.equal(node.estimates["a"], near(1))
    for base, reason in [(b"\0" * 4, "wrong_shape"), (huge, "nonfinite"), (b"\xff" * 4 * D, "nonfinite")]:
        with pytest.raises(PayloadError) as refused:
            node.track("a", base)
        assert refused.value.reason == reason


def test_a_codec_that_needs_options_is_unknown_to_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Demanding(Dense):
        def __init__(self, *, level: int) -> None:
            self.level = level

    monkeypatch.setitem(compress.COMPRESSORS._factories, "demanding", Demanding)
    node = hearing({"a": near(1)})
    with pytest.raises(PayloadError, match="unknown_codec"):
        node.apply("a", "demanding", b"")


def test_an_estimate_cannot_be_walked_out_of_bounds() -> None:
    node = make()
    node.track("a", None)
    step = compress.get("none").encode(torch.full((D,), 2.0**39))
    node.apply("a", "none", step)
    with pytest.raises(PayloadError, match="out of all bounds"):
        node.apply("a", "none", compress.get("none").encode(torch.full((D,), 2.0**40)))
    assert torch.isfinite(torch.tensor(node.aggregate(genesis(), {"a": 0}, round=0).consensus_distance))


class TestLiar:
    """Byzantine: what it publishes, and that it stays well."""

    @staticmethod
    def liar(attack: str, **options: object) -> Byzantine:
        inner = hearing({str(i): near(i) for i in range(4)}, **options)
        return Byzantine(inner, attacks.get(attack), generator=torch.Generator().manual_seed(1))

    def test_publishes_the_attack_on_everyones_movement(self) -> None:
        theta_d = near(8)
        payload = self.liar("sign_flip", compressor="none").encode(theta_d, round=0).payload
        moved_nd = torch.stack([near(i) - genesis() for i in (0, 1, 2, 3, 8)])
        torch.testing.assert_close(compress.get("none").decode(payload, D), -4 * moved_nd.mean(0), atol=1e-4, rtol=0)

    @pytest.mark.parametrize("attack", LIES)
    def test_its_snapshot_is_what_others_track(self, attack: str) -> None:
        liar, victim = self.liar(attack), make()
        victim.track("liar", None)
        for seed in range(5):
            message = liar.encode(near(seed), round=seed)
            if attack in {"inf", "nan"}:
                with pytest.raises(PayloadError, match="nonfinite"):
                    victim.apply("liar", *message)
            else:
                victim.apply("liar", *message)
        assert victim.estimates["liar"].numpy().tobytes() == liar.snapshot()

    @pytest.mark.slow
    @pytest.mark.parametrize("attack", LIES)
    def test_learns_like_an_honest_node(self, attack: str) -> None:
        liar, honest = self.liar(attack), hearing({str(i): near(i) for i in range(4)})
        for seed in range(5):
            results = []
            for node in (liar, honest):
                node.encode(near(seed), round=seed)
                node.apply("0", *make().encode(near(seed), round=seed))
                results.append(node.aggregate(near(seed), {str(i): 0 for i in range(4)}, round=seed))
            assert torch.equal(results[0].correction_d, results[1].correction_d)
        assert torch.equal(liar.state_dict()["anchor"], honest.state_dict()["anchor"])

    def test_takes_part_in_everything_else(self) -> None:
        liar = self.liar("ipm")
        liar.encode(near(1), round=0)
        liar.forget("3")
        adopted_d = liar.adopt({str(i): 0 for i in range(4)})
        assert liar.snapshot() == adopted_d.numpy().tobytes()
        liar.track("0", None)
        liar.encode(near(2), round=1)
        liar.load_state_dict({"anchor": near(3)})
        assert liar.snapshot() == near(3).numpy().tobytes()


class Quadratic:
    """Six nodes, the last a liar, in rounds without a network: each descends towards nearly the same goal.

    The swarm's optimum is the mean of the honest goals; `off` is how far the honest models end from it, in units of
    how far they began.
    """

    def __init__(self, attack: str, **options: object) -> None:
        self.goals = [near(50, 0.3) + near(i, 0.03) - genesis() for i in range(6)]
        liar = Byzantine(make(**options), attacks.get(attack), generator=torch.Generator().manual_seed(1))
        self.members = [*(make(**options) for _ in range(5)), liar]
        self.thetas = [genesis() for _ in self.members]
        self.refusals: set[tuple[int, str]] = set()
        for own, peer in itertools.permutations(range(6), 2):
            self.members[own].track(str(peer), None)

    def run(self, rounds: int) -> float:
        for round in range(rounds):
            self.thetas = [theta_d.lerp(goal_d, 0.3) for theta_d, goal_d in zip(self.thetas, self.goals, strict=True)]
            self._exchange(round)
            for own, member in enumerate(self.members):
                peers = {str(peer): 0 for peer in range(6) if peer != own}
                result = member.aggregate(self.thetas[own], peers, round=round)
                self.thetas[own] = self.thetas[own] + result.correction_d
        best_d = torch.stack(self.goals[:5]).mean(0)
        ends = [float((theta_d - best_d).norm()) for theta_d in self.thetas[:5]]
        return sum(ends) / 5 / float((genesis() - best_d).norm())

    def _exchange(self, round: int) -> None:
        speaking = zip(self.members, self.thetas, strict=True)
        messages = [member.encode(theta_d, round=round) for member, theta_d in speaking]
        for own, peer in itertools.permutations(range(6), 2):
            try:
                self.members[own].apply(str(peer), *messages[peer])
            except PayloadError as refused:
                self.refusals.add((peer, refused.reason))


@pytest.mark.slow
@pytest.mark.parametrize("attack", thorough_but({"alie", "nan", "sign_flip"}, LIES))
def test_honest_nodes_learn_beside_a_liar(attack: str) -> None:
    swarm = Quadratic(attack)
    assert swarm.run(20) < 0.05
    assert swarm.refusals == ({(5, "nonfinite")} if attack in {"inf", "nan"} else set())


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign_flip", "gaussian"])
def test_under_the_plain_mean_they_do_not(attack: str) -> None:
    """Noise leaves the models far off; four steps back for every step forward leave them far behind."""
    assert Quadratic(attack, aggregator="mean").run(8) > 1.5 * Quadratic(attack).run(8)
