"""Nodes behind NAT in simulated swarms: by which names, and how they come to each other through relays that may die."""

from pathlib import Path
from typing import Any

import pytest
from simulated import ran, scenario_in

from node.events.event_types import Event, NeighbourLost, NeighbourUp, ReachabilityTold
from node.events.log import read_events
from node.simulation.member import UNIX_START
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import Played, play
from node.simulation.verdict import judged
from node.system.errors import UsageError
from node.system.run_dir import EVENTS, node_dirs

NAT = """
[links.router]
up = "5 Mbit/s"
down = "20 Mbit/s"
nat = "symmetric"

[[nodes]]
name = "behind"
count = 3
link = "router"
device = "desktop"
settings = { node = { wait_for = 2 } }
"""
RELAYS = (
    "train.rounds=40",
    "train.eval_every=40",
    "nodes.home.count=2",
    "nodes.home.settings={network={relay=true}, node={wait_for=2}}",
)
LONG_ROUNDS = ("devices.desktop.step_s=0.25", "train.rounds=18", "train.eval_every=18")
"""As much time in fewer rounds: what is looked at are connections."""
DIES = '\n[[events]]\nkind = "kill"\nat_s = 10.0\nnodes = ["home-1"]\n'


def left_by(folder: Path, text: str, *sets: str) -> tuple[Played, dict[str, list[Event]]]:
    folder.mkdir(exist_ok=True)
    found = play(scenario_in(folder, text, *sets), folder=folder / "out")
    return found, {node.name: list(read_events(node / EVENTS)) for node in node_dirs(folder / "out")}


def neighbours_at(time: float, events: list[Event], names: dict[str, str]) -> set[str]:
    """Whom a node had then."""
    there: set[str] = set()
    for event in events:
        if event.ts - UNIX_START <= time and isinstance(event, NeighbourUp | NeighbourLost):
            (there.add if isinstance(event, NeighbourUp) else there.discard)(names[event.peer])
    return there


def told(events: list[Event]) -> list[str]:
    return [event.detail for event in events if isinstance(event, ReachabilityTold)]


@pytest.mark.thorough
def test_two_behind_nat_train_together_through_a_relay_and_through_another_when_it_dies(tmp_path: Path) -> None:
    found, events = left_by(tmp_path, NAT + DIES, *RELAYS, *LONG_ROUNDS)
    result = judged(found)
    assert result.broken == ()
    assert result.finished == 4, "all but the relay that was killed"
    names = {member.peer_id: name for name, member in found.members.items()}
    behind = {f"behind-{number}" for number in range(3)}
    for name in behind:
        assert "nobody can dial this node" in told(events[name])[0]
        assert told(events[name])[1] == "others reach this node through 2 of its neighbours, which relay for it"
        assert neighbours_at(9.9, events[name], names) >= behind - {name}
        assert neighbours_at(10.1, events[name], names) < {"home-0", "home-1", *behind}, "circuits ended with the relay"
        assert neighbours_at(12.5, events[name], names) == {"home-0", *behind} - {name}
    assert "others can dial this node" in told(events["home-0"])[0]


@pytest.mark.thorough
def test_who_has_lost_its_last_relay_says_so_and_goes_on_with_those_it_can_dial(tmp_path: Path) -> None:
    more = ("train.rounds=24", "train.eval_every=24")
    one = (*RELAYS, "nodes.home.settings={node={wait_for=2}}", *LONG_ROUNDS, *more)
    relay = '\n[[nodes]]\nname = "relay"\nlink = "home"\ndevice = "desktop"\nsettings.network.relay = true\n'
    found, events = left_by(
        tmp_path, NAT + relay + DIES.replace("home-1", "relay-0").replace("10.0", "14.0"), *one, "nodes.behind.count=2"
    )
    assert judged(found).finished == 4
    names = {member.peer_id: name for name, member in found.members.items()}
    for name, other in (("behind-0", "behind-1"), ("behind-1", "behind-0")):
        assert told(events[name])[-1].startswith("nobody relays for this node any more")
        assert other in neighbours_at(13.9, events[name], names)
        assert neighbours_at(15.0, events[name], names) == {"home-0", "home-1"}


@pytest.mark.thorough
def test_a_relays_link_carries_circuits_both_ways(tmp_path: Path) -> None:
    """The same swarm, but that a relay may carry next to nothing: what two behind NAT send is what is left out."""
    sent: list[Any] = []
    for rate in ("1e6", "100.0"):
        found, _ = left_by(tmp_path / rate, NAT, *RELAYS, f"network.relay_bytes_per_s={rate}")
        sent.append(sum(member.bytes_sent for name, member in found.members.items() if name.startswith("home")))
    assert sent[0] > 1.3 * sent[1], sent  # 1.46 times


@pytest.mark.thorough
def test_another_process_gives_the_same_events(tmp_path: Path) -> None:
    path = tmp_path / "nat.toml"
    path.write_text(scenario_in(tmp_path, NAT, *RELAYS, "train.rounds=25").to_toml(), encoding="utf-8")
    one, other = (ran(str(path), "--json", hash_seed=seed).stdout for seed in ("3", "4"))
    digests = [text.partition('"events_digest": "')[2][:32] for text in (one, other)]
    assert digests[0] == digests[1] != ""


@pytest.mark.parametrize("nat", ["full_cone", "address_restricted", "port_restricted", "symmetric"])
def test_every_nat_lets_nobody_in_until_its_port_is_forwarded(tmp_path: Path, nat: str) -> None:
    for forwarded in (False, True):
        loaded = scenario_in(tmp_path, "", f"links.home.nat={nat}", f"links.home.forwarded={str(forwarded).lower()}")
        assert loaded.scenario.links["home"].lets_in is forwarded
    assert scenario_in(tmp_path).scenario.links["home"].lets_in


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('nat = "hairpin"', "symmetric"),
        ("forwarded = true", "that a router forwards a port"),
        ("hidden = true", "unknown key links.home.hidden"),
    ],
)
def test_a_mistake_in_a_router_is_one_line(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f'[[nodes]]\nname = "home"\ncount = 2\nlink = "home"\n\n[links.home]\n{text}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=what):
        load_scenario(path)
