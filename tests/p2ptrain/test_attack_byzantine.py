"""The liar's strategy (sync/byzantine.py): what it takes for the honest movement, whenever updates come."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples

from p2ptrain import attacks
from p2ptrain.compress import PayloadError
from p2ptrain.sync import Byzantine, SyncConfig, SyncStrategy, build, liar_of
from p2ptrain.sync.base import AllReduceStrategy

D = 5
GENESIS_D = torch.arange(D, dtype=torch.float32)
EXACT = SyncConfig(compressor="none", aggregator="mean", f=0)
PEERS = ("a", "b", "c")
ROUNDS = 7


class Seen:
    """An attack that only writes down the movements that it is shown, and tells its own as it is."""

    name = "seen"

    def __init__(self) -> None:
        self.honest_nd = torch.zeros(0, D)

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        self.honest_nd = honest_nd.clone()
        return honest_nd[-1:].clone()


class Stage:
    """A liar whose neighbours publish the models that a test says, each in its round; and what it has of them."""

    def __init__(self) -> None:
        self.attack = Seen()
        self.liar = Byzantine(build(EXACT, GENESIS_D, "liar"), self.attack)
        self.voices: dict[str, SyncStrategy] = {peer: build(EXACT, GENESIS_D, peer) for peer in PEERS}
        self.models: dict[str, list[torch.Tensor]] = {peer: [] for peer in PEERS}
        self.heard = dict.fromkeys(PEERS, -1)
        self.anchors: list[torch.Tensor] = []
        for peer in PEERS:
            self.liar.track(peer, None)

    def tell(self, peer: str) -> None:
        """The next update of `peer` arrives."""
        number = len(self.models[peer])
        model_d = (
            GENESIS_D + 0.5 * number + torch.randn(D, generator=torch.Generator().manual_seed(100 * ord(peer) + number))
        )
        message = self.voices[peer].encode(model_d, round=number)
        self.models[peer].append(model_d)
        self.heard[peer] = number
        self.liar.apply(peer, message.codec, message.payload)

    def speak(self, round: int) -> None:
        self.anchors.append(self.liar.state_dict()["anchor"])
        self.liar.encode(self.anchors[-1] + 1.0, round=round)

    def close(self, round: int) -> None:
        """With the staleness as a network has it: by signed numbers, and a genesis is signed as of round 0."""
        behind = {peer: max(0, round - max(0, at)) for peer, at in self.heard.items()}
        self.liar.aggregate(self.anchors[-1] + 1.0, {p: s for p, s in behind.items() if s <= 4}, round=round)

    def expected(self, round: int) -> list[torch.Tensor]:
        known = [(peer, at) for peer, at in self.heard.items() if at >= max(0, round - 1)]
        return [*(self.models[peer][at] - self.anchors[min(at, round)] for peer, at in known), torch.ones(D)]


LAGS = st.lists(st.integers(-2, 5), min_size=ROUNDS, max_size=ROUNDS)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(st.tuples(LAGS, LAGS, LAGS))
def test_each_is_measured_from_the_anchor_of_its_models_round(lags: tuple[list[int], ...]) -> None:
    """Update k comes `lag` half rounds after its round was spoken in: before or after some round was closed."""
    it = Stage()
    for half in range(2 * ROUNDS):
        round_ = half // 2
        if half % 2 == 0:
            it.speak(round_)
            expected = it.expected(round_)
            assert it.attack.honest_nd.shape[0] == len(expected)
            assert torch.allclose(it.attack.honest_nd, torch.stack(expected), atol=1e-4)
        for peer, waits in zip(PEERS, lags, strict=True):
            while (number := it.heard[peer] + 1) < ROUNDS and 2 * number + waits[number] <= half:
                it.tell(peer)
        if half % 2 == 0:
            it.close(round_)


def test_who_speaks_last_sees_this_rounds_movements() -> None:
    """As in a simulation, where liars are told everything first."""
    it = Stage()
    for number in range(3):
        for peer in PEERS:
            it.tell(peer)
        it.speak(number)
        moved_nd = torch.stack([it.models[peer][number] for peer in PEERS]) - it.anchors[number]
        assert torch.allclose(it.attack.honest_nd, torch.cat([moved_nd, torch.ones(1, D)]), atol=1e-4)
        it.close(number)


def test_whose_round_is_not_known_is_left_out_until_the_network_says_it() -> None:
    it = Stage()
    it.speak(0)
    for peer in PEERS:
        it.tell(peer)
    it.close(0)
    it.liar.track("b", it.voices["b"].snapshot())
    it.speak(1)
    assert it.attack.honest_nd.shape[0] == 3
    it.tell("b")
    it.close(1)
    it.tell("a")
    it.tell("c")
    it.speak(2)
    assert torch.allclose(it.attack.honest_nd, torch.stack(it.expected(2)), atol=1e-4)
    it.liar.forget("c")
    it.speak(2)
    assert it.attack.honest_nd.shape[0] == 3


@pytest.mark.parametrize("how", ["adopt", "load"])
def test_who_takes_another_model_begins_anew_from_there(how: str) -> None:
    it = Stage()
    it.speak(0)
    for peer in PEERS:
        it.tell(peer)
    it.close(0)
    if how == "adopt":
        adopted_d = it.liar.adopt(dict.fromkeys(PEERS, 0))
    else:
        adopted_d = GENESIS_D * 2.0
        it.liar.load_state_dict({"anchor": adopted_d})
    assert it.liar.snapshot() == adopted_d.numpy().tobytes()
    it.speak(9)
    assert torch.allclose(it.attack.honest_nd, torch.ones(1, D)), "what the others did before is of another beginning"


@pytest.mark.parametrize("compressor", ["none", "q2"])
def test_sign_flip_is_minus_four_movements_through_a_codec(compressor: str) -> None:
    config = SyncConfig(compressor=compressor)
    genesis_d = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    step_d = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    liar = Byzantine(build(config, genesis_d, "liar"), attacks.get("sign_flip"))
    liar.encode(genesis_d + step_d, round=0)
    told_d = torch.frombuffer(bytearray(liar.snapshot()), dtype=torch.float32) - genesis_d
    assert torch.cosine_similarity(told_d, step_d, dim=0) < -0.9
    assert float(told_d.norm() / step_d.norm()) == pytest.approx(4.0, rel=0.15)


def test_a_model_attack_is_asked_for_a_model() -> None:
    liar = Byzantine(build(EXACT, GENESIS_D, "liar"), attacks.find("delay", rounds=1))  # type: ignore[arg-type]
    for number in range(3):
        liar.encode(GENESIS_D + number, round=number)
        assert liar.snapshot() == (GENESIS_D + max(0, number - 1)).numpy().tobytes()


def test_what_must_be_refused_moves_nothing() -> None:
    liar = Byzantine(build(EXACT, GENESIS_D, "liar"), attacks.get("nan"))
    honest = build(EXACT, GENESIS_D, "honest")
    honest.track("liar", None)
    message = liar.encode(GENESIS_D + 1.0, round=0)
    with pytest.raises(PayloadError):
        honest.apply("liar", message.codec, message.payload)
    assert liar.snapshot() == GENESIS_D.numpy().tobytes()


def test_a_strategy_that_hides_its_vectors_cannot_be_attacked() -> None:
    class Closed:
        name = "closed"

    with pytest.raises(ValueError, match="'closed' cannot be attacked"):
        Byzantine(Closed(), attacks.get("ipm"))  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ["sign_flip", "scaled"])
def test_before_its_first_round_a_liar_sends_what_an_honest_one_does(attack: str) -> None:
    honest, liar = (
        build(EXACT, GENESIS_D, "a"),
        liar_of(build(EXACT, GENESIS_D, "a"), attacks.get(attack), from_round=2),
    )
    for round in range(4):
        theta_d = GENESIS_D + round + 1
        true, said = (each.encode(theta_d, round=round) for each in (honest, liar))
        assert (said == true) == (round < 2)


@pytest.mark.parametrize("strategy", ["moshpit", "allreduce"])
def test_an_all_reduce_member_that_turns_packs_and_gives_newcomers_the_truth_until_then(strategy: str) -> None:
    config = SyncConfig(strategy=strategy, aggregator="mean", f=0)
    liar, honest = (build(config, GENESIS_D, "a") for _ in range(2))
    turned = liar_of(liar, attacks.get("sign_flip"), from_round=2)
    assert isinstance(turned, AllReduceStrategy)
    assert isinstance(honest, AllReduceStrategy)
    for round in range(4):
        theta_d = GENESIS_D + round + 1
        begun = turned.snapshot() == honest.snapshot()
        packed = turned.pack(theta_d, round=round) == honest.pack(theta_d, round=round)
        given = turned.snapshot() == bytes(turned.snapshot_view()) == honest.snapshot()
        assert (begun, packed, given) == (round < 3, round < 2, round < 2)
        for each in (turned, honest):
            each.finish(theta_d, ["a"], [], round=round)
