"""`Swarm.load_state_dict` takes a state whole, or refuses it with nothing changed: what users hand it is a claim."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_join import ALONE, joined, model_of, train
from torch import nn

from node.system.errors import UsageError
from p2ptrain.integrations.swarm import Swarm

pytestmark = [pytest.mark.paired, pytest.mark.slow]

DILOCO: dict[str, object] = {**ALONE, "sync.strategy": "diloco", "node.checkpoint_every": 0}
"""A strategy with an outer momentum: more than one vector in its state."""

State = dict[str, Any]


def state_in(folder: Path, model: nn.Module, steps: int, **more: Any) -> State:
    """The state of a member that has trained so many steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with joined(model, optimizer, folder, **{"settings": DILOCO, **more}) as swarm:
        train(model, optimizer, range(steps))
    with joined(model, optimizer, folder, **{"settings": DILOCO, **more}) as swarm:
        return swarm.state_dict()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Swarm, nn.Module, State]]:
    """A member that has joined and not trained yet, its model, and an earlier state of its own."""
    folder = tmp_path_factory.mktemp("there")
    state = state_in(folder, model_of(), 9)
    model = model_of(seed=4)
    with joined(model, torch.optim.SGD(model.parameters(), lr=0.05), folder, settings=DILOCO) as swarm:
        yield swarm, model, state


def wrong_values() -> st.SearchStrategy[object]:
    return st.sampled_from([None, -1, 2**70, 1.5, True, "x", b"x", [], {}, torch.ones(2)])


@st.composite
def damages(draw: st.DrawFn) -> Callable[[State], None]:
    """A change after which a state is none of this member's."""
    key = draw(st.sampled_from(["format", "round", "meta", "model", "names", "tensors"]))
    wrong = draw(wrong_values())
    kind = draw(st.sampled_from(["lose", "wrong", "more", "meta", "lose tensor", "more tensors", "tensor", "counters"]))
    number = draw(st.integers(0, 99))
    how = draw(st.sampled_from(["nan", "inf", "short", "long", "dtype", "sparse", "list", "complex", "reshaped"]))
    about = draw(st.sampled_from(["peer_id", "genesis", "steps", "wall_s", "first", "epoch"]))

    def damage(state: State) -> None:
        names = sorted(state["tensors"])
        name = names[number % len(names)]
        match kind:
            case "lose":
                del state[key]
            case "wrong":
                state[key] = wrong
            case "more":
                state["more"] = wrong
            case "meta":
                state["meta"][about] = "nonsense" if isinstance(wrong, float | dict | torch.Tensor) else wrong
            case "lose tensor":
                del state["tensors"][name]
                if name in ("sync.anchor", "trainer.counters"):  # others are missing before the first round, too
                    state["names"].remove(name)
            case "more tensors":
                state["tensors"][["sync.more", "more", "trainer.parameters", "sync.outer.0.more"][number % 4]] = (
                    torch.ones(3)
                )
                state["names"] = sorted(state["tensors"])
            case "tensor":
                state["tensors"][name] = spoilt(state["tensors"][name], how)
            case "counters":
                state["tensors"]["trainer.counters"] = torch.tensor([3, -1, 0])

    return damage


def spoilt(value: torch.Tensor, how: str) -> object:
    match how:
        case "nan" | "inf":
            return torch.full_like(value, float(how), dtype=torch.float32)
        case "short":
            return value[:-1]
        case "long":
            return torch.cat([value, value])
        case "dtype":
            return value.to(torch.float16)
        case "sparse":
            return value.to_sparse()
        case "complex":
            return value.to(torch.complex64)
        case "reshaped":
            return value[None]
        case _:
            return value.tolist()


@settings(deadline=None)
@given(damage=damages())
def test_a_damaged_state_is_refused_and_nothing_changes(
    there: tuple[Swarm, nn.Module, State], damage: Callable[[State], None]
) -> None:
    swarm, model, state = there
    damaged = copy.deepcopy(state)
    damage(damaged)
    before = swarm.addresses, swarm.round, swarm.global_step, [each.clone() for each in model.parameters()]
    with pytest.raises(UsageError) as refused:
        swarm.load_state_dict(damaged)
    assert refused.value.hint, "it says what to do"
    assert swarm.is_joined
    assert (swarm.addresses, swarm.round, swarm.global_step) == before[:3], "the same node runs on"
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before[3], strict=True))


def test_states_of_others_are_refused_by_what_they_are_of(
    there: tuple[Swarm, nn.Module, State], tmp_path: Path
) -> None:
    swarm, _, state = there
    at = swarm.addresses
    shape = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1, bias=False))
    for other, words in (
        (state_in(tmp_path / "another", model_of(), 2), "give the run_dir that it was made with"),
        ({**state, "model": state_in(tmp_path / "shape", shape, 2)["model"]}, "is of another model"),
        ({**state, "meta": {**state["meta"], "genesis": "0" * 16}}, "began with another initial model"),
    ):
        with pytest.raises(UsageError, match=words):
            swarm.load_state_dict(other)
        assert swarm.addresses == at
    swarm.load_state_dict(state)  # after all that is refused
    assert swarm.global_step == 9


@pytest.mark.parametrize("wrong", ["folder", "model"])
def test_before_the_block_it_is_found_as_the_block_is_entered(tmp_path: Path, wrong: str) -> None:
    state = state_in(tmp_path / "a", model_of(), 5)
    before = model_of(seed=8)
    if wrong == "model":
        before.append(nn.Linear(1, 1))
    model = copy.deepcopy(before)
    folder = tmp_path / ("b" if wrong == "folder" else "a")
    if wrong == "folder":
        state_in(folder, model_of(), 1)
    swarm = joined(model, torch.optim.SGD(model.parameters(), lr=0.05), folder, settings=DILOCO)
    swarm.load_state_dict(state)
    with (
        pytest.raises(UsageError, match={"folder": "run_dir", "model": "another model"}[wrong]),
        swarm,
    ):
        pass
    assert not swarm.is_joined
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("sync.outer.0.momentum", lambda value: value * torch.inf, "momentum is not finite"),
        ("sync.outer.0.momentum", lambda value: value.double(), "have other sizes or types"),
        ("sync.outer.0.momentum", lambda value: value.half(), "have other sizes or types"),
        ("sync.outer.0.momentum", lambda value: value.int(), "have other sizes or types"),
        ("sync.anchor", lambda value: value * torch.nan, "anchor is not finite"),
        ("sync.anchor", lambda value: value[None], "no vector of 161 parameters"),
        ("sync.anchor", lambda value: value.double(), "flat fp32 CPU vector"),
        ("sync.voice.more", lambda value: torch.ones(3), "does not fit these settings, or is damaged;"),
        ("trainer.counters", lambda value: value.int(), "its counters are none"),
        ("trainer.counters", lambda value: value - 2**40, "counters are out of bounds"),
    ],
)
def test_each_damage_is_named(
    there: tuple[Swarm, nn.Module, State], name: str, damage: Callable[[Any], Any], words: str
) -> None:
    swarm, _, state = there
    damaged = copy.deepcopy(state)
    damaged["tensors"][name] = damage(damaged["tensors"].get(name))
    damaged["names"] = sorted(damaged["tensors"])
    at = swarm.addresses
    with pytest.raises(UsageError, match=words):
        swarm.load_state_dict(damaged)
    assert swarm.addresses == at, "the same node runs on"


def test_an_anchor_of_another_size_is_refused_where_the_state_has_no_other_vector(tmp_path: Path) -> None:
    plain: dict[str, object] = {**ALONE, "sync.strategy": "tracked_gossip", "node.checkpoint_every": 0}
    state = state_in(tmp_path, model_of(), 9, settings=plain)
    state["tensors"]["sync.anchor"] = torch.ones(162)
    model = model_of()
    with joined(model, torch.optim.SGD(model.parameters(), lr=0.05), tmp_path, settings=plain) as swarm:
        at = swarm.addresses
        with pytest.raises(UsageError, match="no vector of 161 parameters"):
            swarm.load_state_dict(state)
        assert swarm.addresses == at


@pytest.mark.parametrize("wrong", [-1, 2**70, True, 1.5, "1", None])
def test_a_round_that_is_none_is_named(there: tuple[Swarm, nn.Module, State], wrong: object) -> None:
    swarm, _, state = there
    with pytest.raises(UsageError, match="its round is"):
        swarm.load_state_dict({**state, "round": wrong})
    assert swarm.is_joined


def test_the_mean_of_late_weights_goes_with_it(tmp_path: Path) -> None:
    more: State = {"settings": {**DILOCO, "train.late_average": 1.0}, "rounds": 20}
    state = state_in(tmp_path, model_of(), 9, **more)
    assert state["tensors"]["late.mean"].shape == state["tensors"]["sync.anchor"].shape
    model = model_of(seed=4)
    with joined(model, torch.optim.SGD(model.parameters(), lr=0.05), tmp_path, **more) as swarm:
        swarm.load_state_dict(state)
        again = swarm.state_dict()["tensors"]
        for name in ("late.mean", "late.rounds"):
            assert torch.equal(again[name], state["tensors"][name])
        short = {**state, "tensors": {**state["tensors"], "late.mean": torch.ones(3)}}
        with pytest.raises(UsageError, match="average of late weights"):
            swarm.load_state_dict(short)
