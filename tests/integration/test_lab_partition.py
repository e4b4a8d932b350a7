"""A swarm that is cut in two for a minute, and one whose members come and go: it becomes one again, and goes on.

Real processes in network namespaces (lab_harness.py); `make soak` runs them where namespaces can be made.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psutil
import pytest
from lab_harness import Lab, possible
from processes_harness import PACED, Event, Program

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not possible(), reason="needs root, iproute2 and network namespaces"),
]

NODES = 8
CUT_S = 60.0
HEALED_ROUNDS = 10
FAR_APART = 1.5
"""Of what the models were apart before the cut: it falls and rises by a third from round to round by itself."""


def start(lab: Lab, folder: Path, host: int, joining: tuple[str, ...], *words: object) -> Program:
    return lab.node(host, folder / f"host-{host}", *PACED, *words, *joining)


def all_of(nodes: list[Program], found: Callable[[Program], bool], within_s: float, what: str) -> None:
    """Poll: the nodes are processes."""
    deadline = time.monotonic() + within_s
    while not all(map(found, nodes)):
        assert time.monotonic() < deadline, f"{what}: {[node.lines[-1:] for node in nodes]}"
        time.sleep(0.1)


def newest(node: Program) -> Event:
    return node.heard("round")[-1]


def test_a_partition_of_a_minute_heals(tmp_path: Path) -> None:
    """Half of the nodes hear nothing of the others, and the connections hang: nobody is told. When the way is free
    again, all are neighbours of all, and the models are as close as they were."""
    with Lab(NODES, None) as lab, ExitStack() as stack:
        nodes: list[Program] = []
        joining: tuple[str, ...] = ()
        for host in lab.hosts:
            waits = ("--rounds", 2000, "--set", f"node.wait_for={NODES - 1}")  # or the first would begin, and be alone
            nodes.append(stack.enter_context(start(lab, tmp_path, host, joining, *waits)))
            joining = joining or ("--peer", nodes[0].hear("started")["addresses"][0])
        all_of(nodes, lambda node: bool(node.heard("round", neighbours=NODES - 1)), 120, "all know all")
        at = newest(nodes[0])["round"]
        nodes[0].hear_round(at + 20)
        before = median(event["consensus_distance"] for event in nodes[0].heard("round")[-10:])

        far = list(lab.hosts)[NODES // 2 :]
        lab.part(far)
        began = newest(nodes[0])["round"]
        time.sleep(CUT_S)
        lab.heal()
        healed = {id(node): newest(node)["round"] for node in nodes}
        assert newest(nodes[0])["round"] > began + 40, "rounds go on in each half"
        halves = median(event["neighbours"] for event in nodes[0].heard("round")[-3:])
        all_of(nodes, lambda node: newest(node)["members"] == NODES, 150, "one swarm again")
        one_again = newest(nodes[0])["round"]
        nodes[0].hear_round(one_again + HEALED_ROUNDS)
        after = median(event["consensus_distance"] for event in nodes[0].heard("round")[-5:])
        print(f"apart {before:.3f} before, {after:.3f} after; rounds {began}..{healed[id(nodes[0])]} cut off")
        print(f"one swarm again {one_again - healed[id(nodes[0])]} rounds after; neighbours while cut: {halves}")
        assert after < FAR_APART * before
        assert not refusals(nodes)


def refusals(nodes: list[Program]) -> list[Event]:
    """What a node held against another. Silence, and old news passed on in good faith, are counted and cost nothing."""
    told = [event for node in nodes for kind in ("rejected", "banned", "equivocation") for event in node.heard(kind)]
    return [event for event in told if event["reason"] not in ("timeout", "replayed")]


CHURN_NODES = 12
CHURN_S = 300.0
EVERY_S = 5.0
SLOWLY = ("--set", "train.learning_rate=2e-5")
"""Six minutes of the paced digits would else be over before the churn is."""


def test_churn_harms_nobody(tmp_path: Path) -> None:
    """One of twelve is killed or one joins, every five seconds for five minutes."""
    rng = random.Random(1)
    with Lab(CHURN_NODES, None) as lab, ExitStack() as stack:
        together = ("--set", "node.wait_for=3")  # or it would begin alone, and never be one of them
        first = stack.enter_context(start(lab, tmp_path, 0, (), "--rounds", 5000, *SLOWLY, *together))
        joining = ("--peer", first.hear("started")["addresses"][0])
        started: list[Program] = [first]

        def join(host: int) -> Program:
            folder = tmp_path / f"start-{len(started)}"
            started.append(stack.enter_context(start(lab, folder, host, joining, "--rounds", 5000, *SLOWLY)))
            return started[-1]

        living = {host: join(host) for host in list(lab.hosts)[1:]}
        all_of(list(living.values()), lambda node: len(node.heard("round")) > 2, 180, "all have begun")
        descriptors, memory = held(first), newest(first)["rss_bytes"]
        ends = time.monotonic() + CHURN_S
        while time.monotonic() < ends:
            absent = [host for host in lab.hosts if host and host not in living]
            if absent and (len(absent) > 3 or rng.random() < 0.5):
                host = rng.choice(absent)
                living[host] = join(host)
            else:
                host = rng.choice(sorted(living))
                living.pop(host).process.kill()
            time.sleep(EVERY_S)
        time.sleep(60)  # for the newest to have begun, and the dead to have been noticed
        rounds = first.heard("round")
        losses = [event["eval_loss"] for event in first.heard("evaluated")]
        thirds = [median(losses[at : at + len(losses) // 3]) for at in range(0, len(losses) - 2, len(losses) // 3)][:3]
        print(f"{len(started)} starts; {rounds[-1]['round']} rounds; held-out loss by thirds: {thirds}")
        print(f"descriptors {descriptors} -> {held(first)}, rss {memory >> 20} -> {rounds[-1]['rss_bytes'] >> 20} MiB")
        assert median(event["members"] for event in rounds[-100:]) > CHURN_NODES // 2, "it is one of them"
        assert thirds == sorted(thirds, reverse=True)
        assert held(first) <= descriptors + CHURN_NODES
        assert rounds[-1]["rss_bytes"] < 1.2 * memory
        assert not refusals(started)


def held(node: Program) -> int:
    """Open descriptors of the node."""
    return psutil.Process(node.pid).num_fds()
