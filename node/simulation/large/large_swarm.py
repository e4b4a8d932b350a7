"""A swarm of thousands: real learning rules, on a clock that goes in ticks, with links and membership by arithmetic.

What is the nodes' own code: the sync strategy with its codec, aggregator and outer step (one a node), when a round
closes (gossip/updates/standing.py), whom the rings put beside whom, how phases are cut short or lengthened, attacks.
What is not: there is no protocol. Membership is known to all at once, nobody is scored, a payload reaches all
neighbours of its author when it has reached the last of them (so that each model is decoded once, and held once), and
steps begin and end on ticks of the fastest device's step. The faithful mode has all of that; a test holds the two
together.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import torch

from gossip.core.envelope import Scope
from gossip.core.ids import PeerId, RunId, SwarmId
from gossip.transport.memory.wan import STREAM_BYTES
from gossip.updates.announcer_task import repetitions
from gossip.updates.audits import audit_every, phase_of
from gossip.updates.round_closer_task import EXCHANGE_MARGIN, FIRST_EXCHANGE_S
from gossip.updates.rounds import swarm_round
from gossip.updates.standing import Standing, standing, trusted_far_ahead
from node.simulation.derived import derived, rng_of
from node.simulation.large.large_logs import LargeLogs
from node.simulation.large.large_node import LargeNode, OpenRound
from node.simulation.large.payload_times import Receiver, exchange_s
from node.simulation.large.ring_graph import RingGraph
from node.simulation.scenario import Scenario
from node.training.sync_loop import FINAL_ROUND_PATIENCE
from p2ptrain.protocols import implements
from p2ptrain.sync import SharesEstimates
from p2ptrain.sync.mixing import metropolis_shares
from p2ptrain.training.batched_trainer import BatchedTrainer
from p2ptrain.training.train_config import lr_at

LINK_BYTES: Final = 330
"""A signed header. Who passes which on is as gossip/engine.py has it; the size was measured in the faithful mode."""

HELLO_BYTES: Final = 1_500
"""A hello to a neighbour that knows all others by now: our link and record, and two other records. Measured there
too, as is the next."""

PULL_BYTES: Final = 47
"""What either end sends about a payload that is pulled, beside it."""

EVALUATED: Final = 16
"""Nodes whose held-out loss is measured during the run, drawn by the seed; at the end it is of all."""


@dataclass(frozen=True, order=True)
class _Arrival:
    """A payload has reached its author's neighbours."""

    at_s: float
    number: int
    author: int
    round: int
    chain: int


class LargeSwarm:
    """Plays a scenario's nodes. `step_until` is called with growing times until `over`."""

    def __init__(
        self, scenario: Scenario, nodes: Sequence[LargeNode], trainer: BatchedTrainer, logs: LargeLogs | None = None
    ) -> None:
        """`logs`: where the evaluated nodes' events go; None: nowhere."""
        self.nodes = nodes
        self._logs = logs
        self.trainer = trainer
        self.now = 0.0
        self.taken = 0
        """Steps taken by all nodes."""
        self.refused = 0
        self._latency_s = cache(scenario.latency_s)
        self._seed = scenario.seed
        self._graph_rng = rng_of(scenario.seed, "graph")
        self._jitter_rng = rng_of(scenario.seed, "jitter")
        scope = Scope(swarm=SwarmId(derived(scenario.seed, "swarm")[:16]), run=RunId(bytes(16)))
        self._graph = RingGraph([node.name for node in nodes], scope, nodes[0].config.network.degree)
        self._by_name = {node.name: node for node in nodes}
        self._heard_nd = self._first_estimates()
        self._on_way: dict[int, torch.Tensor] = {}
        self._arrivals: list[_Arrival] = []
        self._number = 0
        self._parts: dict[int, int] = {}
        self._changed = True
        self._part_n = np.full(len(nodes), -1)
        """The part that each node is in, as the neighbours were drawn; -1: it is not there."""
        self._passes_n = np.zeros(len(nodes))
        """How many neighbours each node passes an announcement on to."""
        self._every_n = np.ones(len(nodes), dtype=np.int64)
        """Of links of others, every how many-th each node passes on; `_least_every`: the least of them."""
        self._least_every = 1
        self.control_n = np.zeros(len(nodes))
        """Bytes that each node sent beside payloads and models."""
        honest = [node.index for node in nodes if not node.lied]
        self._watched = frozenset(rng_of(scenario.seed, "evaluated").sample(honest, min(EVALUATED, len(honest))))

    @property
    def over(self) -> bool:
        """Return whether all honest nodes have finished."""
        return all(node.finished for node in self.nodes if not node.lied)

    @property
    def next_s(self) -> float:
        """Return when something happens next, of what the swarm itself does."""
        steps = min((node.next_step_s for node in self.nodes if node.present), default=math.inf)
        ends = min((node.open.ends_s for node in self.nodes if node.present and node.open), default=math.inf)
        return min(steps, ends, self._arrivals[0].at_s if self._arrivals else math.inf)

    def come(self, node: LargeNode, now: float) -> None:
        """A node starts, or is back with what it had."""
        if node.present or node.finished:
            return
        node.returns = node.started or now > 0
        node.present, node.started, node.since_s = True, True, now
        node.starts += 1
        node.chain += 1
        self._changed = True
        node.told_s = now
        if self._logs is not None and node.index in self._watched:
            self._logs.started(node, now)
        if node.returns:
            node.next_step_s = now  # it takes the others' model then
        else:
            node.begin_step(now)

    def go(self, node: LargeNode, now: float) -> None:
        """A node leaves, or is lost: the round that it had open is."""
        if not node.present:
            return
        node.pause(now)
        node.present, node.open, node.steps = False, None, 0
        node.corrections.clear()
        self._changed = True
        self._say_end(node, now)

    def _say_end(self, node: LargeNode, now: float) -> None:
        if self._logs is not None and node.index in self._watched:
            self._logs.ended(node, now)

    def split(self, parts: Mapping[int, int]) -> None:
        """From now on nodes reach each other only where `parts`, by index, has the same number for them; those that are
        not in it have 0."""
        if self._parts != parts:
            self._parts = dict(parts)
            self._changed = True

    def step_until(self, end: float) -> None:
        """Do what happens until this time."""
        if self._changed:
            self._draw_graph()
        self._arrive_until(end)
        self._close_overdue(end)
        self._take_steps(end)
        self.now = end

    def bytes_sent(self, node: LargeNode) -> int:
        """Return all that a node has sent so far."""
        return node.payload_bytes + int(self.control_n[node.index])

    def announce(self, rounds: int, round_s: float) -> float:
        """Count so many more rounds of announcements of all nodes that are there, and nothing else; return the control
        bytes that one of them sent in a round, on average. Of a chain's links only every k-th goes all the way: over
        64 rounds each chain has had its share (gossip/updates/audits.py)."""
        there = [node for node in self.nodes if self._part_n[node.index] >= 0]
        before = self.control_n.sum()
        for number in range(rounds):
            for node in there:
                self._count_link(node, self.now + number * round_s)
        return float(self.control_n.sum() - before) / (rounds * len(there))

    def losses(self, nodes: Sequence[LargeNode]) -> list[float]:
        """Return the held-out loss of each of these nodes' models."""
        if not nodes:
            return []
        models_kd = torch.stack([self._anchor_of(node) for node in nodes])
        return [float(loss) for loss in self.trainer.evaluate(models_kd)]

    # -- neighbours

    def _draw_graph(self) -> None:
        self._changed = False
        parts: dict[int, list[int]] = {}
        for node in self.nodes:
            if node.present:
                parts.setdefault(self._parts.get(node.index, 0), []).append(node.index)
        drawn: dict[int, frozenset[int]] = {}
        for _, members in sorted(parts.items()):
            drawn |= self._graph.draw(members, self._graph_rng)
            for number, believed in self._graph.believed(members).items():
                self._every_n[number] = audit_every(believed)
        self._least_every = int(self._every_n.min())
        for node in self.nodes:
            self._set_neighbours(node, drawn.get(node.index, frozenset()))
            self._part_n[node.index] = self._parts.get(node.index, 0) if node.present else -1
            self._passes_n[node.index] = max(0, len(node.neighbours) - 1)
        for node in self.nodes:  # all have theirs: who takes how many payloads is known
            node.receivers = [self._receiver(node, other) for other in node.around]

    def _set_neighbours(self, node: LargeNode, neighbours: frozenset[int]) -> None:
        for index in sorted(node.neighbours - neighbours):
            node.sync.forget(self.nodes[index].name)
        for index in sorted(neighbours - node.neighbours):
            _sharing(node).share_estimate(self.nodes[index].name, self._heard_nd[index])
        node.neighbours = neighbours
        node.around = [self.nodes[index] for index in sorted(neighbours)]
        node.around_ids = [PeerId(other.name) for other in node.around]

    # -- payloads

    def _publish(self, node: LargeNode, now: float) -> None:
        theta_d = self.trainer.x_nd[node.index].clone()
        message = node.sync.encode(theta_d, round=node.round)
        node.announced = node.round
        began = now + node.device.encode_s
        least = max(self._exchange_of(node), node.config.node.overlap_steps or node.planned * node.device.step_s)
        if node.round + 1 >= node.config.train.rounds:
            least = max(least, FINAL_ROUND_PATIENCE * node.planned * node.device.step_s)
        node.open = OpenRound(began, began + node.deadline.seconds(least, at_least=self._exchange_of(node)), theta_d)
        receivers = node.receivers
        size = node.message_bytes = len(message.payload)
        if not receivers:
            self._close(node, began)
            return
        node.payload_bytes += size * len(receivers)
        self._count_link(node, began)
        took = exchange_s(size, node.link, receivers, self._jitter_rng.random) + node.device.decode_s
        starts = max(began, node.up_free_s)
        node.up_free_s = starts + size * len(receivers) / node.link.up
        node.exchange_s = starts - began + took
        self._number += 1
        self._on_way[self._number] = _published(node)
        arrival = _Arrival(began + node.exchange_s, self._number, node.index, node.round, node.chain)
        heapq.heappush(self._arrivals, arrival)
        self._try_to_close(node, began)

    def _count_link(self, author: LargeNode, now: float) -> None:
        """Count an announcement, and the repetitions of the one before it: neighbours pass on all of them, others a new
        one that goes all the way."""
        beside, around, network = [author.index, *sorted(author.neighbours)], len(author.around), author.config.network
        since = 0.0 if author.announced_s is None else now - author.announced_s
        sent = 1 + repetitions(since, network.reannounce_s, network.heartbeat_s)
        author.announced_s = now
        # As many streams as it opens are opened to it: for a payload of each neighbour, and for its hellos.
        self.control_n[author.index] += 2 * around * (STREAM_BYTES + PULL_BYTES)
        self.control_n[author.index] += 2 * around * (STREAM_BYTES + HELLO_BYTES) * since / network.heartbeat_s
        self.control_n[beside] += LINK_BYTES * sent * self._passes_n[beside]
        self.control_n[author.index] += LINK_BYTES * sent
        place = author.published + phase_of(PeerId(author.name))
        if author.published == 0 or place % self._least_every == 0:
            passing_n = self._part_n == self._part_n[author.index]
            if author.published:
                passing_n &= place % self._every_n == 0
            passing_n[beside] = False
            np.add(self.control_n, LINK_BYTES * self._passes_n, out=self.control_n, where=passing_n)
        author.published += 1

    def _receiver(self, author: LargeNode, other: LargeNode) -> Receiver:
        one_way_s = self._latency_s(author.region, other.region) + other.device.verify_s
        return Receiver(link=other.link, one_way_s=one_way_s, payloads=len(other.neighbours))

    def _exchange_of(self, node: LargeNode) -> float:
        """The least time for which a round is kept open."""
        seconds = FIRST_EXCHANGE_S if node.exchange_s is None else node.exchange_s
        return min(node.config.network.initial_deadline_s, EXCHANGE_MARGIN * seconds)

    def _arrive_until(self, end: float) -> None:
        while self._arrivals and self._arrivals[0].at_s <= end:
            arrival = heapq.heappop(self._arrivals)
            public_d = self._on_way.pop(arrival.number)
            author = self.nodes[arrival.author]
            if not author.present or author.chain != arrival.chain:
                continue
            if not all(math.isfinite(end.item()) for end in public_d.aminmax()):  # NaN wins either
                self.refused += 1
                continue
            self._heard_nd[author.index].copy_(public_d)
            author.arrived = arrival.round
            for other in author.around:
                if arrival.round >= other.round:  # an older one makes nobody's round fresher
                    self._try_to_close(other, arrival.at_s)

    # -- rounds

    def _standing(self, node: LargeNode) -> Standing:
        applied = dict(zip(node.around_ids, [other.arrived for other in node.around], strict=True))
        liars = node.config.sync.f
        trusted = trusted_far_ahead(
            applied.keys(),
            node.stood_with,
            outvoted_liars=bool(node.stood_with),
            liars=liars,
            withstands=node.withstands,
        )
        return standing(
            node.round,
            applied,
            node.config.network.max_staleness,
            liars=liars,
            trusted=trusted,
            swarm=self._swarm_round(node),
        )

    def _swarm_round(self, node: LargeNode) -> int | None:
        said = dict(zip(node.around_ids, [other.announced for other in node.around], strict=True))
        return swarm_round(said, liars=node.config.sync.f)

    def _behind(self, node: LargeNode) -> int:
        """How many rounds a node is behind the swarm's."""
        seen = self._swarm_round(node)
        return 0 if seen is None else max(0, seen - node.round)

    def _try_to_close(self, node: LargeNode, now: float) -> None:
        if node.open is not None:
            now_standing = self._standing(node)
            if now_standing.quorum_reached(node.config.network.quorum):
                self._close(node, max(now, node.open.began_s), now_standing)

    def _close_overdue(self, end: float) -> None:
        for node in self.nodes:
            if node.open is not None and node.open.ends_s <= end:
                self._close(node, node.open.ends_s)

    def _close(self, node: LargeNode, now: float, standing_: Standing | None = None) -> None:
        assert node.open is not None
        seen = self._standing(node) if standing_ is None else standing_
        staleness = {str(peer): rounds for peer, rounds in seen.staleness.items()}
        degrees = {name: len(self._by_name[name].neighbours) for name in staleness}
        shares = metropolis_shares(len(node.neighbours), degrees)
        result = node.sync.aggregate(node.open.theta_d, staleness, round=node.round, shares=shares)
        if result.robust:
            node.stood_with.update(seen.staleness)
        if node.neighbours:
            node.deadline.learn(now - node.open.began_s)
        node.corrections.append(result.correction_d)
        node.open, node.round = None, node.round + 1
        if self._logs is not None and node.index in self._watched:
            by = "alone" if not node.neighbours else "deadline" if standing_ is None else "quorum"
            self._logs.closed(node, now, staleness, result, by=by, sent=self.bytes_sent(node))
        self._tell(node, now, staleness)
        if node.round >= node.config.train.rounds:
            node.finished = True
            node.pause(now)
            self._say_end(node, now)

    def _tell(self, node: LargeNode, now: float, staleness: Mapping[str, int]) -> None:
        told, train = node.told, node.config.train
        told.rounds = node.round
        told.closed.append((now, node.round))
        lags = list(staleness.values())
        told.staleness = max([told.staleness, *lags])
        told.staleness_sum += sum(lags)
        told.staleness_count += len(lags)
        told.digest.update(f"{now:.9f} {node.round} {sorted(staleness.items())}\n".encode())
        last = node.round >= train.rounds
        if node.index in self._watched and (last or node.round % train.eval_every == 0):
            (loss,) = self.losses([node])
            told.losses.append((now, node.round, loss))
            told.digest.update(f"loss {loss!r}\n".encode())
            if self._logs is not None:
                self._logs.evaluated(node, now, loss)

    # -- steps

    def _take_steps(self, end: float) -> None:
        due = [node for node in self.nodes if node.present and node.next_step_s <= end]
        ready = [node for node in due if self._is_level(node)]
        if ready:
            for node in ready:
                self._correct(node)
            train = ready[0].config.train
            rates = [node.rate_factor * lr_at(node.schedule_step, train.total_steps, train) for node in ready]
            losses = self.trainer.step([node.index for node in ready], [node.global_step for node in ready], rates)
            self.taken += len(ready)
            if self._logs is not None:
                for node, loss in zip(ready, losses.tolist(), strict=True):
                    node.loss_sum += loss
                    node.loss_steps += 1
        for node in ready:
            self._after_step(node)

    def _is_level(self, node: LargeNode) -> bool:
        """Whether a node goes on from where it is. One that is too far behind takes its neighbours' model first, and so
        does one that was away."""
        if not node.returns and node.steps > 0:
            return True
        seen = self._swarm_round(node)
        behind = 0 if seen is None else max(0, seen - node.round)
        if not node.returns and behind <= node.config.network.max_staleness:
            return True
        node.returns = False
        return self._adopt(node, seen)

    def _adopt(self, node: LargeNode, seen: int | None) -> bool:
        """Take the neighbours' model; False: nobody has one yet, or it is on its way."""
        now = node.next_step_s
        donors = {it.name: 0 for it in node.around if it.arrived >= 0 and seen is not None}
        if not donors:
            node.begin_step(now)  # nobody is further: it goes on alone
            return False
        assert seen is not None
        model_d = node.sync.adopt(donors)
        self.trainer.x_nd[node.index] = model_d
        self._heard_nd[node.index].copy_(_published(node))
        node.chain += 1
        node.round, node.steps, node.open = min(seen, node.config.train.rounds - 1), 0, None
        node.arrived, node.announced = node.round - 1, node.round - 1
        node.corrections.clear()
        size = model_d.numel() * model_d.element_size()
        for name in donors:
            self._by_name[name].payload_bytes += size
        node.begin_step(now + len(donors) * size / node.link.down)
        return False

    def _correct(self, node: LargeNode) -> None:
        for correction_d in node.corrections:
            self.trainer.x_nd[node.index] += correction_d
        node.corrections.clear()

    def _after_step(self, node: LargeNode) -> None:
        now = node.next_step_s
        node.busy_s += node.step_s
        node.steps += 1
        node.global_step += 1
        if node.enough(lambda: self._behind(node)):
            self._correct(node)
            self._publish(node, now)
            node.steps = 0
        if node.finished or (node.open is not None and node.trained):
            if not node.finished:
                node.pause(now)
            return
        node.begin_step(now)

    # -- vectors

    def _anchor_of(self, node: LargeNode) -> torch.Tensor:
        anchor_d: torch.Tensor = getattr(node.sync, "anchor_d")  # noqa: B009 - of every strategy that shares estimates
        return anchor_d

    def _first_estimates(self) -> torch.Tensor:
        first = _published(self.nodes[0])
        return first.repeat(len(self.nodes), 1)


def _published(node: LargeNode) -> torch.Tensor:
    """A copy of what its neighbours hold for it once its newest payload is there, fp32 or bf16 (d,)."""
    dtype = node.config.sync.estimate_dtype
    return torch.frombuffer(bytearray(node.sync.snapshot()), dtype=dtype)


def _sharing(node: LargeNode) -> SharesEstimates:
    assert implements(node.sync, SharesEstimates), "large.py has checked it"
    return node.sync
