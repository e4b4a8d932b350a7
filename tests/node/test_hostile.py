"""How an attack reaches a node: refused where no node can carry it out, and what a forger signs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossip.core.api import Head, RunInfo
from gossip.core.digests import digest_of, swarm_id_of
from gossip.core.envelope import Scope, open_envelope
from gossip.core.errors import Reason, RemoteError
from gossip.core.identity import Identity
from gossip.core.ids import RunId
from gossip.core.statements import UpdateHeaderBody, parse_update_header
from gossip.service import GossipService
from node.config.schema import from_raw, load
from node.roles.byzantine import ByzantineService, Forger, attack_of, lying, poisoned, service_type
from node.system.errors import UsageError
from node.up.plan import make_plan
from p2ptrain import attacks, tasks
from p2ptrain.attacks import EdgeAttack, Misdeeds, WireAttack

LIVE = sorted(set(attacks.names()) - set(attacks.names(EdgeAttack)))


@pytest.mark.parametrize("name", LIVE)
def test_a_node_can_carry_out(name: str) -> None:
    attack = attack_of(from_raw({"attack": {"name": name}}).attack)
    assert attack is not None
    assert attack.name == name
    made = service_type(attack)
    assert (made is GossipService) == (not isinstance(attack, WireAttack))


def test_none_is_honest() -> None:
    attack = attack_of(load().attack)
    assert attack is None
    task = tasks.get("digits")
    assert poisoned(task, attack) is task
    strategy = object()
    assert lying(strategy, attack, 0) is strategy  # type: ignore[arg-type]
    assert service_type(attack) is GossipService


def test_who_trains_on_other_data_does_so_from_the_start() -> None:
    with pytest.raises(UsageError, match="label_flip trains on other data from the start"):
        attack_of(from_raw({"attack": {"name": "label_flip", "from_round": 3}}).attack)


@pytest.mark.parametrize("name", attacks.names(EdgeAttack))
def test_up_refuses_at_once_what_tells_each_neighbour_something_else(name: str) -> None:
    config = load([], [f"attack.name={name}"])  # a simulation may read the same file
    with pytest.raises(UsageError, match=f"{name} tells each neighbour something else.*one chain"):
        make_plan(config, run_dir=Path("run"), nodes=4, byzantine=1, cores=2)


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["attack.name=alie", "attack.scale=2"], r"\[attack\]: attack 'alie'.*its options: z"),
        (["attack.name=delay", "attack.rounds=0"], r"\[attack\]: delay: rounds must be at least 1"),
        (["attack.name=delay", "attack.rounds=many"], r"\[attack\]: "),
        (["attack.name=searched_ipm", "attack.defence=crum"], r"\[attack\]: unknown aggregator 'crum'"),
    ],
)
def test_a_wrong_option_is_one_line(sets: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load([], sets)


# -- the forger

KEY = Identity(bytes(31) + b"\x01")
RUN = RunInfo(run_id=RunId(b"r" * 16), genesis=digest_of(b"the initial model"))
SCOPE = Scope(swarm=swarm_id_of("p2ptrain"), run=RUN.run_id)
BEFORE = Head(epoch=1000, seq=3, digest=digest_of(b"before"))
BODY = UpdateHeaderBody(round=4, kind="delta", codec="q2", size=100, steps=5, tokens=80)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_every_broadcast_is_another_one_and_what_it_was_to_be(twins: int, epochs: int, forgeries: int) -> None:
    misdeeds = Misdeeds(twins=twins, epochs=epochs, forgeries=forgeries)
    raws = list(Forger(KEY, SCOPE, RUN.genesis).broadcasts(misdeeds, BEFORE, BODY))
    assert len(set(raws)) == len(raws) == twins + epochs + forgeries
    signed = [parse_update_header(open_envelope(raw, SCOPE)) for raw in raws[: twins + epochs]]
    assert {link.peer for link in signed} <= {KEY.peer_id}
    for link in signed[:twins]:
        assert (link.place, link.prev, link.body) == ((1000, 4), BEFORE.digest, BODY)
    for link in signed[twins:]:
        assert link.epoch > 1000
        assert (link.seq, link.body.kind, link.body.genesis, link.body.round) == (0, "genesis", RUN.genesis, 4)
    for raw in raws[twins + epochs :]:
        with pytest.raises(RemoteError) as caught:
            open_envelope(raw, SCOPE)
        assert caught.value.reason is Reason.FORGED


def test_rounds_repeat_nothing() -> None:
    forger, misdeeds = Forger(KEY, SCOPE, RUN.genesis), Misdeeds(twins=2, epochs=2, forgeries=2)
    raws = [raw for _ in range(3) for raw in forger.broadcasts(misdeeds, BEFORE, BODY)]
    assert len(set(raws)) == len(raws) == 18


def test_a_hostile_service_is_one_of_the_kind_that_is_asked_for() -> None:
    attack = attacks.find("flood")
    made = service_type(attack)
    assert getattr(made, "func", None) is ByzantineService
