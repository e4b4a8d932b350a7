"""How a simulated liar carries out an attack, by the hooks that the attack has (p2ptrain/attacks/base.py)."""

from typing import Protocol, runtime_checkable

import torch

from node.bench.swarm import graph
from node.bench.swarm.run_spec import RunSpec
from p2ptrain import attacks
from p2ptrain.attacks import Attack, DataAttack, EdgeAttack, HonestGraph, ModelAttack, VectorAttack
from p2ptrain.compress import PayloadError
from p2ptrain.sync import SyncStrategy, liar_of
from p2ptrain.sync.base import Message, UpdateEncoder
from p2ptrain.tasks import Task

LIAR_SEED = 1_000_003
"""Added to a liar's seed: its noise is nobody's data order."""


Simulated = VectorAttack | ModelAttack | DataAttack | EdgeAttack
"""Hooks that need no network."""


@runtime_checkable
class HasEncoder(Protocol):
    """A strategy whose encoder can be forked."""

    encoder: UpdateEncoder


def simulated() -> list[str]:
    """Return the attacks that a simulation can show."""
    return [name for name in attacks.names() if isinstance(attacks.find(name), Simulated)]


class Conspiracy:
    """The liars' common plan. ValueError on an attack that only a network can show."""

    def __init__(self, recipe: RunSpec) -> None:
        self._recipe = recipe
        self._find()

    def task(self, task: Task) -> Task:
        """Return what a liar trains on. TaskError where the data cannot be attacked so."""
        attack = self._find()
        return attack.poison(task) if isinstance(attack, DataAttack) else task

    def member(self, sync: SyncStrategy, index: int) -> SyncStrategy:
        """Return a liar's strategy. Each has an attack of its own, which may remember what it sent."""
        attack = self._find()
        if not isinstance(attack, VectorAttack | ModelAttack):
            return sync
        if isinstance(attack, VectorAttack):
            attack = Colluding(attack, self._recipe, index)
        generator = torch.Generator().manual_seed(LIAR_SEED + self._recipe.config.train.seed + index)
        return liar_of(sync, attack, generator=generator)

    def edge_lies(self) -> "EdgeLies | None":
        """Return the edge attack, where every victim is sent something else; None for other attacks."""
        attack = self._find()
        return EdgeLies(attack, self._recipe) if isinstance(attack, EdgeAttack) else None

    def _find(self) -> Attack | None:
        section, options = self._recipe.config.attack, self._recipe.config.attack.options
        if not self._recipe.shape.byzantine:
            return None
        attack = attacks.find(section.name, **options)
        if not isinstance(attack, Simulated):
            raise ValueError(f"the attack {section.name} is on the network, which a simulation has not: p2ptrain up")
        if hasattr(attack, "defence") and "defence" not in options:  # the liar knows what it is up against
            attack = attacks.find(section.name, **options, defence=self._recipe.config.sync.aggregator)
        return attack


class Colluding:
    """One liar's part of an attack on vectors that all liars carry out together.

    A `Byzantine` takes other liars for honest, as a node that is alone with its lie must. Here they know each other:
    the attack is given the honest neighbours' movements alone, and how many lie.
    """

    def __init__(self, attack: VectorAttack, recipe: RunSpec, index: int) -> None:
        self.name = attack.name
        self._attack = attack
        self._liars = recipe.shape.byzantine
        honest = recipe.shape.nodes - self._liars
        self._part = index - honest
        self._known = sum(peer < honest for peer in recipe.neighbours[index])

    def __call__(self, honest_nd: torch.Tensor, f: int, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the f vectors sent, fp32 (f, d), from the honest differences (n, d). Rows are in the order of the
        nodes' names: liars, and the own model, come last."""
        return self._attack(honest_nd[: self._known], self._liars, generator)[self._part : self._part + 1]


class EdgeLies:
    """An edge attack: for each liar and each of its victims an encoder of its own."""

    def __init__(self, attack: EdgeAttack, recipe: RunSpec) -> None:
        self._attack = attack
        self._honest = recipe.shape.nodes - recipe.shape.byzantine
        self._neighbours = recipe.neighbours
        self._graph = honest_graph(self._neighbours, self._honest)
        self._encoders: dict[tuple[int, int], UpdateEncoder] = {}

    def open(self, liar: int, sync: SyncStrategy) -> None:
        """Fork the encoders of a liar, from the initial model. ValueError when the strategy has none to fork."""
        if not isinstance(sync, HasEncoder):
            raise ValueError(f"the strategy {sync.name} cannot be attacked on its edges: it has no encoder to fork")
        for victim in self._neighbours[liar]:
            if victim < self._honest:
                self._encoders[liar, victim] = sync.encoder.fork()

    def messages(self, x_hd: torch.Tensor, round: int) -> dict[tuple[int, int], Message]:
        """Return, by liar and victim, what the one sends the other, from the honest nodes' models (h, d)."""
        lies_hd = self._attack.lies(x_hd, self._graph)
        said: dict[tuple[int, int], Message] = {}
        for (liar, victim), encoder in self._encoders.items():
            message = encoder.draft(lies_hd[victim], anchor_d=encoder.public_d, round=round)
            said[liar, victim] = message
            try:
                encoder.commit(message)
            except PayloadError:
                continue  # the victim refuses it as well
        return said


def honest_graph(neighbours: graph.Neighbours, honest: int) -> HonestGraph:
    """Return equal weights for all edges and for oneself, as a mean over the largest neighbourhood has them."""
    weight = 1 / (1 + max(map(len, neighbours)))
    weight_hh = torch.zeros(honest, honest)
    liar_weight_h = torch.zeros(honest)
    for node in range(honest):
        for other in neighbours[node]:
            if other < honest:
                weight_hh[node, other] = weight
            else:
                liar_weight_h[node] += weight
    return HonestGraph(weight_hh=weight_hh, liar_weight_h=liar_weight_h)
