from pathlib import Path

import pytest

from node.config.schema import load
from node.system.errors import UsageError
from node.up.plan import make_plan

RUN = Path("/runs/x")


def test_each_node_has_a_name_a_shard_and_a_share_of_the_cores():
    plan = make_plan(load(), run_dir=RUN, nodes=4, byzantine=0, cores=10)
    assert [node.name for node in plan.nodes] == ["node-0", "node-1", "node-2", "node-3"]
    assert [node.config.node.shard_index for node in plan.nodes] == [0, 1, 2, 3]
    for node in plan.nodes:
        config = node.config
        assert config.train.threads == 2
        assert config.node.shard_count == 4
        assert config.node.wait_for == 3
        assert config.network.peers_file == RUN / "peers.txt"
        assert config.network.listen == ("/ip4/127.0.0.1/tcp/0",)
        assert config.attack.name == "none"
        assert not node.byzantine


@pytest.mark.parametrize(("nodes", "cores", "threads"), [(4, 2, 1), (1, 8, 8), (3, 8, 2)])
def test_threads(nodes, cores, threads):
    assert make_plan(load(), run_dir=RUN, nodes=nodes, byzantine=0, cores=cores).threads == threads


def test_threads_that_were_set_stay():
    plan = make_plan(load([], ["train.threads=3"]), run_dir=RUN, nodes=4, byzantine=0, cores=2)
    assert plan.threads == plan.nodes[0].config.train.threads == 3


def test_the_last_nodes_lie():
    config = load([], ["attack.name=alie", "attack.z=1.5"])
    plan = make_plan(config, run_dir=RUN, nodes=6, byzantine=2, cores=2)
    assert [node.config.attack.name for node in plan.nodes] == ["none"] * 4 + ["alie"] * 2
    assert plan.nodes[5].config.attack.options == {"z": 1.5}
    assert plan.byzantine == 2


def test_liars_without_an_attack_have_one_by_default():
    plan = make_plan(load(), run_dir=RUN, nodes=2, byzantine=1, cores=2)
    assert plan.nodes[1].config.attack.name == "sign_flip"


def test_a_fixed_metrics_port_cannot_be_every_nodes():
    plan = make_plan(load([], ["node.metrics_port=9400"]), run_dir=RUN, nodes=2, byzantine=0, cores=2)
    assert {node.config.node.metrics_port for node in plan.nodes} == {0}
    off = make_plan(load([], ["node.metrics_port=-1"]), run_dir=RUN, nodes=2, byzantine=0, cores=2)
    assert {node.config.node.metrics_port for node in off.nodes} == {-1}


def test_visitors_have_a_port_of_one_node():
    config = load(sets=["visits.listen=127.0.0.1:8443"])
    plan = make_plan(config, run_dir=RUN, nodes=3, byzantine=0, cores=3)
    assert [node.config.visits.on for node in plan.nodes] == [True, False, False]


def test_no_node_waits_for_more_neighbours_than_it_may_have():
    plan = make_plan(load([], ["network.degree=3"]), run_dir=RUN, nodes=8, byzantine=0, cores=2)
    assert {node.config.node.wait_for for node in plan.nodes} == {3}


def test_a_nodes_settings_survive_their_file(tmp_path):
    plan = make_plan(load([], ["attack.name=sign_flip"]), run_dir=RUN, nodes=2, byzantine=1, cores=2)
    for node in plan.nodes:
        file = tmp_path / "config.toml"
        file.write_text(node.config.to_toml())
        assert load([file]) == node.config


@pytest.mark.parametrize(("nodes", "byzantine"), [(0, 0), (65, 0), (4, 4), (4, -1)])
def test_numbers_that_cannot_be(nodes, byzantine):
    with pytest.raises(UsageError, match="must be between"):
        make_plan(load(), run_dir=RUN, nodes=nodes, byzantine=byzantine, cores=2)
