"""The large mode: what it takes from the nodes' own code is theirs, and what it works out is what links would do."""

import json
import math
import random
import subprocess
import sys
from collections import deque
from pathlib import Path
from statistics import fmean, stdev

import pytest
from simulated import FAITHFUL, LIBRARY

from gossip.core.envelope import Scope
from gossip.core.ids import PeerId, RunId, SwarmId
from node.simulation.large.large import play_large
from node.simulation.large.payload_times import Receiver, exchange_s
from node.simulation.large.ring_graph import RingGraph
from node.simulation.scenario import LinkClass
from node.simulation.scenario_file import load_scenario
from node.simulation.twin import play
from node.simulation.verdict import judged
from node.system.errors import UsageError
from p2ptrain.tasks.digits import Digits

SMALL = """
mode = "large"
until_s = 600.0
[train]
rounds = 6
inner_steps = 3
batch_size = 8
warmup_steps = 3
eval_every = 2
[sync]
f = 1
[network]
degree = 6
[[nodes]]
name = "home"
count = 14
region = "europe"
link = "dsl"
device = "card"
[links.dsl]
up = "10 Mbit/s"
down = "50 Mbit/s"
[devices.card]
step_s = 0.1
sigma = 0.1
"""


LARGE = [path for path in LIBRARY if path not in FAITHFUL]


def scenario(tmp_path: Path, more: str = "", *sets: str):
    file = tmp_path / "small.toml"
    file.write_text(SMALL + more)
    return load_scenario(file, sets)


def honest(swarm):
    return [node for node in swarm.nodes if not node.lied]


# -- who is whose neighbour


def test_neighbours_are_mutual_and_reach_everybody():
    names = [f"n-{index}" for index in range(200)]
    graph = RingGraph(names, Scope(swarm=SwarmId(bytes(16)), run=RunId(bytes(16))), 8)
    drawn = graph.draw(range(200), random.Random(1))
    assert all(node in drawn[other] and other != node for node, others in drawn.items() for other in others)
    assert max(map(len, drawn.values())) <= 8
    assert fmean(map(len, drawn.values())) > 7.5
    reached, queue = {0: 0}, deque([0])
    while queue:
        node = queue.popleft()
        for other in drawn[node] - reached.keys():
            reached[other] = reached[node] + 1
            queue.append(other)
    assert len(reached) == 200
    assert max(reached.values()) <= 5


def test_few_are_all_neighbours():
    graph = RingGraph(["a-0", "a-1", "a-2"], Scope(swarm=SwarmId(bytes(16)), run=RunId(bytes(16))), 8)
    assert graph.draw([0, 2], random.Random(1)) == {0: {2}, 2: {0}}


# -- how long a payload is on its way


def taken(size: int, link: LinkClass, others: list[Receiver]) -> float:
    return exchange_s(size, link, others, lambda: 0.0)


def test_copies_share_the_uplink_and_payloads_the_downlink():
    fast = LinkClass(slow_start=False)
    eight = [Receiver(link=fast, one_way_s=0.0, payloads=8)] * 8
    assert taken(1000, LinkClass(up=500.0, slow_start=False), eight) == pytest.approx(8 * 1000 / 500)
    slow_down = [Receiver(link=LinkClass(down=100.0), one_way_s=0.0, payloads=8)]
    assert taken(1000, fast, slow_down) == pytest.approx(8 * 1000 / 100)


def test_latency_counts_there_back_and_there_again():
    far = [Receiver(link=LinkClass(), one_way_s=0.1, payloads=1), Receiver(link=LinkClass(), one_way_s=0.2, payloads=1)]
    assert taken(1000, LinkClass(), far) == pytest.approx(0.6)
    assert taken(1_000_000, LinkClass(), far) == pytest.approx(0.6 + 2 * 0.2 * 6)  # 14.6 kB doubled six times
    assert taken(1_000_000, LinkClass(slow_start=False), far) == pytest.approx(0.6)


def test_loss_is_mathis_ceiling():
    lossy = LinkClass(loss=0.01, slow_start=False)
    there = [Receiver(link=LinkClass(), one_way_s=0.05, payloads=1)]
    rate = 1.22 * 1460 / (0.1 * math.sqrt(0.01))
    assert taken(1_000_000, lossy, there) == pytest.approx(0.15 + 1_000_000 / rate)


# -- whole swarms


def test_all_come_to_the_end_and_learn(tmp_path):
    outcome = play_large(scenario(tmp_path))
    swarm = outcome.swarm
    assert swarm.over
    assert all(node.round == 6 for node in swarm.nodes)
    assert all(len(node.neighbours) <= 6 for node in swarm.nodes)
    first = float(swarm.trainer.evaluate(swarm.trainer.genesis_d[None]))
    assert fmean(node.told.loss for node in swarm.nodes) < first - 0.1
    assert 6 * 3 * 0.1 * 0.7 < outcome.virtual_s < 6 * 3 * 0.1 * 2


@pytest.mark.thorough
def test_the_same_file_gives_the_same_run_in_another_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from node.simulation.scenario_file import load_scenario\n"
        "from node.simulation.large.large import play_large\n"
        "out = play_large(load_scenario(Path(sys.argv[1])))\n"
        "print(*(node.told.digest.hexdigest() for node in out.swarm.nodes))"
    )
    loaded = scenario(tmp_path)
    here = [node.told.digest.hexdigest() for node in play_large(loaded).swarm.nodes]
    there = subprocess.run(
        [sys.executable, "-c", code, str(loaded.path)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert here == there
    other = play_large(scenario(tmp_path, "", "seed=2")).swarm.nodes
    assert here != [node.told.digest.hexdigest() for node in other]


def test_a_loss_that_draws_gives_the_same_run_again(tmp_path, monkeypatch):
    """As dropout does: from the generator that a whole process shares."""
    loss = Digits.loss
    monkeypatch.setattr(Digits, "loss", lambda *of: loss(*of) * (1 + 0.1 * random.random()))
    one, again, other = (
        judged(play_large(scenario(tmp_path, "", "train.rounds=2", f"seed={seed}"))).events_digest for seed in (1, 1, 2)
    )
    assert one == again != other


def test_a_slow_node_does_shorter_rounds_and_stays(tmp_path):
    more = '\n[[nodes]]\nname = "slow"\ndevice = "phone"\n[devices.phone]\nstep_s = 0.6\n'
    swarm = play_large(scenario(tmp_path, more)).swarm
    slow = swarm.nodes[-1]
    assert slow.name == "slow-0"
    assert slow.finished
    assert slow.global_step < 6 * 3


def test_steps_of_a_round_are_slow_together(tmp_path):
    sets = ("devices.card.sigma=0.0", "devices.card.round_sigma=0.5")
    node = play_large(scenario(tmp_path, "", *sets)).swarm.nodes[0]
    rounds = []
    for _ in range(200):
        taken = []
        for node.steps in range(3):
            node.begin_step(0.0)
            taken.append(node.step_s)
        rounds.append(set(taken))
    assert all(len(taken) == 1 for taken in rounds)
    assert stdev(math.log(*taken) for taken in rounds) == pytest.approx(0.5, rel=0.2)


def test_who_was_away_takes_the_others_model(tmp_path):
    more = """
[[events]]
kind = "kill"
nodes = ["home-0"]
at_s = 0.5
[[events]]
kind = "restart"
nodes = ["home-0"]
at_s = 2.0
[[events]]
kind = "join"
nodes = ["late"]
at_s = 2.0
[[nodes]]
name = "late"
device = "card"
"""
    swarm = play_large(scenario(tmp_path, more, "train.rounds=12")).swarm
    back, late = swarm.nodes[0], swarm.nodes[-1]
    others = fmean(node.told.loss for node in swarm.nodes[1:-1])
    for node in (back, late):
        assert node.finished
        assert node.global_step < 12 * 3
        assert node.told.loss < others + 0.1
    assert (back.starts, late.starts) == (2, 1)


@pytest.mark.parametrize(("sets", "members"), [((), 4), (("sync.aggregator=mean",), 5), (("sync.f=0",), 6)])
def test_of_those_far_ahead_as_many_are_members_as_in_the_engine(tmp_path, sets, members):
    """Two of six neighbours claim to be far ahead of all others: a round before any was held against liars."""
    swarm = play_large(scenario(tmp_path, "", *sets)).swarm
    me = swarm.nodes[0]
    far = list(me.around)[:2]
    for node in (me, *me.around):
        node.round, node.arrived, node.announced = (40, 39, 39) if node in far else (6, 5, 5)
    names = {PeerId(node.name) for node in far}
    withstood, degree = names <= me.stood_with, len(names) + len(me.around) - len(far)
    me.stood_with -= names
    before = len(swarm._standing(me).staleness)
    me.stood_with |= names
    after = len(swarm._standing(me).staleness)
    assert (withstood, degree) == (members != 5, 6), "under a plain mean no round withstands a liar"
    assert (before, after) == (members, max(5, members))


def test_of_those_who_may_join_later_the_others_are_there_from_the_start(tmp_path):
    join = '[[events]]\nkind = "join"\nat_s = 1.0\nnodes = ["*"]\nshare = 0.5\n'
    swarm = play_large(scenario(tmp_path, join, "train.rounds=4")).swarm
    assert all(node.started and node.finished for node in swarm.nodes)


def test_halves_that_are_parted_heal(tmp_path):
    few, others = (json.dumps([f"home-{number}" for number in numbers]) for numbers in (range(3), range(3, 14)))
    more = f"""
[[events]]
kind = "partition"
groups = [{few}, {others}]
at_s = 0.5
for_s = 1.0
"""
    seen: list[int] = []
    swarm = play_large(
        scenario(tmp_path, more, "train.rounds=12"),
        lambda swarm: seen.append(len(swarm.nodes[0].neighbours & {0, 1, 2})),
    ).swarm
    assert swarm.over
    apart = swarm.nodes[0].told
    assert len(swarm.nodes[0].neighbours) > 2  # again
    assert apart.loss < fmean(node.told.loss for node in swarm.nodes) + 0.1


def test_trimmed_mean_holds_liars_and_the_mean_does_not(tmp_path):
    more = '\n[[nodes]]\nname = "liar"\ncount = 3\ndevice = "card"\nlies = true\n[attack]\nname = "sign_flip"\n'
    sets = ("train.rounds=8", "nodes.home.count=12")
    held, carried = (
        fmean(node.told.loss for node in honest(play_large(scenario(tmp_path, more, *sets, *rule)).swarm))
        for rule in ((), ("sync.aggregator=mean", "sync.f=0"))
    )
    assert held < carried


def test_liars_that_turn_after_the_last_round_are_as_honest_ones(tmp_path):
    more = '\n[[nodes]]\nname = "liar"\ncount = 3\ndevice = "card"\nlies = true\n[attack]\nname = "sign_flip"\n'
    sets = ("train.rounds=4", "nodes.home.count=6", "sync.aggregator=mean", "sync.f=0")
    never, late, soon = (
        [node.told.loss for node in play_large(scenario(tmp_path, more, *sets, *turns)).swarm.nodes[:6]]
        for turns in (("nodes.liar.lies=false",), ("attack.from_round=4",), ())
    )
    assert late == never
    assert fmean(soon) > 1.03 * fmean(never)


def test_bytes_are_payloads_and_announcements(tmp_path):
    swarm = play_large(scenario(tmp_path)).swarm
    payload = len(swarm.nodes[0].sync.encode(swarm.trainer.x_nd[0], round=6).payload)
    for node in swarm.nodes:
        assert node.payload_bytes == pytest.approx(6 * len(node.neighbours) * payload, rel=0.05)
        assert node.bytes_sent == swarm.bytes_sent(node) > node.payload_bytes


@pytest.mark.parametrize(
    ("sets", "what"),
    [
        (("sync.strategy=allreduce",), "track their neighbours' models"),
        (("train.optimizer=muon",), "adamw and sgd"),
        (("node.pace=dylu",), "node.pace"),
        (("node.overlap=false",), "overlaps"),
        (("nodes.home.settings={selection={policy='useful'}}",), "selection.policy"),
        (("links.dsl.nat=symmetric",), "nat"),
        (('sync.layers=["int8"]',), "sync.layers"),
        (("sync.regions=['east','west']",), "sync.regions"),
        (("crypto=each",), "crypto"),
        (("nodes.home.lies=true", "attack.name=sign_flip"), "every node lies"),
    ],
)
def test_what_it_has_not_is_refused(tmp_path, sets, what):
    with pytest.raises(UsageError, match=what):
        play_large(scenario(tmp_path, "", *sets))


def test_a_partition_names_all_nodes(tmp_path):
    more = '\n[[events]]\nkind = "partition"\ngroups = [["home-0"]]\nat_s = 1.0\n'
    with pytest.raises(UsageError, match="every node is in a group"):
        play_large(scenario(tmp_path, more))


def test_heal_ends_no_stall(tmp_path):
    stall = '\n[[events]]\nkind = "stall"\nnodes = ["home-0"]\nat_s = 0.5\nfor_s = 600.0\n'
    heal = '\n[[events]]\nkind = "heal"\nat_s = 0.8\n'
    one, other = (play_large(scenario(tmp_path, more)).swarm for more in (stall, stall + heal))
    assert [it.told.digest.hexdigest() for it in one.nodes] == [it.told.digest.hexdigest() for it in other.nodes]
    assert not one.nodes[0].neighbours


def test_time_after_the_end_is_no_idle_time(tmp_path):
    more = '\n[sessions.long]\nkind = "trace"\nintervals_s = [[0, 8.0]]\n[[nodes]]\nname = "slow"\ndevice = "slow"\n'
    more += "[devices.slow]\nstep_s = 1.2\n"
    sets = ("nodes.home.session=long", "node.catch_up_rounds=100", "network.max_staleness=100")
    swarm = play_large(scenario(tmp_path, more, *sets)).swarm
    assert min(node.told.utilization for node in swarm.nodes[:-1]) > 0.5


def test_groups_that_train_otherwise_are_refused(tmp_path):
    more = '\n[[nodes]]\nname = "other"\n[nodes.settings.train]\nbatch_size = 4\n'
    with pytest.raises(UsageError, match="all nodes have one"):
        play_large(scenario(tmp_path, more))


def test_an_event_of_processes_is_refused(tmp_path):
    more = '\n[[events]]\nkind = "disk_full"\nnodes = ["*"]\nat_s = 1.0\n'
    with pytest.raises(UsageError, match="disk_full"):
        play_large(scenario(tmp_path, more))


@pytest.mark.thorough
def test_it_comes_to_what_the_faithful_mode_comes_to(tmp_path):
    """Real nodes and this mode from one file. What differs: real ones say hello, and learn of each other by and by."""
    sets = ("nodes.home.count=8", "train.rounds=8", "train.eval_every=8")
    large = judged(play_large(scenario(tmp_path, "", *sets)))
    with_nodes = judged(play(scenario(tmp_path, "", "mode=faithful", *sets)))
    assert large.finished == with_nodes.finished == 8
    assert large.loss_mean == pytest.approx(with_nodes.loss_mean, rel=0.03)
    assert large.bytes_sent_mean == pytest.approx(with_nodes.bytes_sent_mean, rel=0.2)
    assert large.virtual_s == pytest.approx(with_nodes.virtual_s, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
def test_large_scenarios_of_the_library_hold_for_a_few_nodes(path):
    sets = ("nodes.home.count=28", "nodes.liar.count=1", "train.rounds=20", "train.warmup_steps=5")
    result = judged(play_large(load_scenario(path, (*sets, "assert.loss_max=2.1"))))
    assert result.broken == ()
