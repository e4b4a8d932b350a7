"""Who is in the swarm and with which settings: decided before anything is started, as plain data."""

from dataclasses import dataclass, replace
from pathlib import Path

from node.config.schema import AttackSection, Config
from node.config.visits_section import VisitsConfig
from node.roles.assembly import check_runnable
from node.roles.secure_check import check_enough
from node.system.errors import UsageError
from node.system.run_dir import PEERS

MAX_NODES = 64
"""Processes on one machine: each holds a model and an interpreter of 300 MB or more."""
DEFAULT_ATTACK = "sign_flip"
"""What a liar does when only their number is given."""
LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """One node of the swarm."""

    name: str
    config: Config
    byzantine: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The swarm."""

    run_dir: Path
    nodes: tuple[NodePlan, ...]
    threads: int
    """CPU threads of each node."""

    @property
    def peers_file(self) -> Path:
        """Return where the nodes find each other's addresses."""
        return self.run_dir / PEERS

    @property
    def byzantine(self) -> int:
        """Return how many of the nodes lie."""
        return sum(node.byzantine for node in self.nodes)


def make_plan(config: Config, *, run_dir: Path, nodes: int, byzantine: int, cores: int) -> Plan:
    """Plan a swarm: the last `byzantine` of `nodes` attack, the others are honest. UsageError on numbers that cannot
    be."""
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError(f"--nodes must be between 1 and {MAX_NODES}, not {nodes}")
    if not 0 <= byzantine < nodes:
        raise UsageError(f"--byzantine must be between 0 and {nodes - 1}, not {byzantine}", "one node must be honest")
    if config.attack.name != "none" and byzantine == 0:
        raise UsageError(f"the attack {config.attack.name} needs nodes that carry it out", "add --byzantine 1")
    check_runnable(config)
    check_enough(config, nodes)
    threads = config.train.threads or max(1, cores // nodes)
    plans = (
        _node(config, run_dir, index, nodes, threads, byzantine=index >= nodes - byzantine) for index in range(nodes)
    )
    return Plan(run_dir=run_dir, nodes=tuple(plans), threads=threads)


def _node(config: Config, run_dir: Path, index: int, count: int, threads: int, *, byzantine: bool) -> NodePlan:
    name = f"node-{index}"
    attack = config.attack if config.attack.name != "none" else AttackSection(name=DEFAULT_ATTACK)
    update = {
        "train": replace(config.train, threads=threads),
        "network": replace(
            config.network, listen=LOOPBACK, announce=(), peers=(), peers_file=(run_dir / PEERS).absolute()
        ),
        "node": replace(
            config.node,
            name=name,
            shard_index=index,
            shard_count=count,
            wait_for=min(count - 1, config.network.degree),
            metrics_port=min(config.node.metrics_port, 0),  # any free one: a fixed port is one node's only
        ),
        "visits": config.visits if index == 0 else VisitsConfig(),  # a port is one node's only
        "attack": attack if byzantine else AttackSection(),
    }
    return NodePlan(name=name, config=config.model_copy(update=update), byzantine=byzantine)
