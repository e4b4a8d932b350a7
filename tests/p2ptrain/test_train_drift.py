"""Drift corrections against their papers (drift_references.py), where they converge to, and what a late round does."""

import drift_references as references
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import examples, thorough_but

from p2ptrain import drift

D = 4
ROUNDS = 12
sizes = st.tuples(st.integers(1, 6), st.integers(0, 50))


class Swarm:
    """Nodes with plain gradient steps in float64, each with a drift correction of its own; W averages the snapshots."""

    def __init__(self, name, grads, w, *, rate, steps, strength=None, late=0):
        self.grads, self.w, self.rate, self.steps, self.late = grads, torch.from_numpy(w), rate, steps, late
        self.theta_nd = torch.zeros(len(grads), D, dtype=torch.float64)
        self.pending_nd = None
        options = {} if strength is None else {"strength": strength}
        self.corrections = [drift.get(name, **options) for _ in grads]
        for correction, theta_d in zip(self.corrections, self.theta_nd, strict=True):
            correction.attach(theta_d)

    def round(self):
        """The nodes' anchors (n, d) after a round that is closed `late` steps into the next one."""
        for index in range(self.steps + 1):
            if index == self.late:
                self._close()
            if index < self.steps:
                self._step()
        for correction, theta_d in zip(self.corrections, self.theta_nd, strict=True):
            correction.begin_round(theta_d)
        snapshot_nd = self.theta_nd.clone()
        self.pending_nd = self.w @ snapshot_nd - snapshot_nd
        if self.late == 0:
            self._close()
        return (self.w @ snapshot_nd).numpy()

    def _step(self):
        for grad, correction, theta_d in zip(self.grads, self.corrections, self.theta_nd, strict=True):
            grad_d = torch.from_numpy(grad(theta_d.numpy().copy()))
            correction.adjust(grad_d, theta_d)
            theta_d.sub_(grad_d, alpha=self.rate)
            correction.nudge(theta_d, self.rate)

    def _close(self):
        if self.pending_nd is None:
            return
        for correction, theta_d, pending_d in zip(self.corrections, self.theta_nd, self.pending_nd, strict=True):
            theta_d.add_(pending_d)
            correction.close_round(pending_d)
        self.pending_nd = None


def mean_of_all(nodes):
    return np.full((nodes, nodes), 1 / nodes)


def same_paths(swarm, path):
    for expected in path:
        np.testing.assert_allclose(swarm.round(), expected, rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=examples(30))
@given(sizes, st.integers(1, 7), st.floats(0.001, 0.1), st.floats(0, 2))
def test_fedprox_is_fedprox(size, steps, rate, mu):
    nodes, seed = size
    grads, _ = references.quadratics(nodes, D, seed)
    path = references.fedavg(grads, np.zeros(D), rate=rate, steps=steps, rounds=ROUNDS, mu=mu)
    same_paths(Swarm("fedprox", grads, mean_of_all(nodes), rate=rate, steps=steps, strength=mu), path)


@settings(deadline=None, max_examples=examples(30))
@given(sizes, st.integers(1, 7), st.floats(0.001, 0.05))
def test_scaffold_is_scaffold_with_a_server(size, steps, rate):
    nodes, seed = size
    grads, _ = references.quadratics(nodes, D, seed)
    path = references.scaffold(grads, np.zeros(D), rate=rate, steps=steps, rounds=ROUNDS)
    same_paths(Swarm("scaffold", grads, mean_of_all(nodes), rate=rate, steps=steps, strength=1.0), path)


@settings(deadline=None, max_examples=examples(30))
@given(st.tuples(st.integers(3, 8), st.integers(0, 50)), st.floats(0.001, 0.05))
def test_scaffold_of_one_step_a_round_on_a_graph_is_d_squared(size, rate):
    nodes, seed = size
    grads, _ = references.quadratics(nodes, D, seed)
    w = references.ring(nodes, own=0.5)
    path = references.d_squared(grads, np.zeros(D), w, rate=rate, rounds=ROUNDS)
    same_paths(Swarm("scaffold", grads, w, rate=rate, steps=1, strength=1.0), path)


@settings(deadline=None, max_examples=examples(30))
@given(st.tuples(st.integers(3, 6), st.integers(0, 50)), st.integers(1, 5), st.floats(0.001, 0.02), st.floats(0, 0.9))
def test_qgm_is_qgm(size, steps, rate, beta):
    nodes, seed = size
    grads, _ = references.quadratics(nodes, D, seed)
    w = references.ring(nodes, own=0.4)
    path = references.qgm(grads, np.zeros(D), w, rate=rate, steps=steps, rounds=ROUNDS, beta=beta)
    same_paths(Swarm("qgm", grads, w, rate=rate, steps=steps, strength=beta), path)


class Heavy:
    """A node's gradients with momentum, as sgd steps by them."""

    def __init__(self, grad, beta):
        self.grad, self.beta, self.u = grad, beta, 0.0

    def __call__(self, x):
        self.u = self.beta * self.u + self.grad(x)
        return self.u.copy()


@settings(deadline=None, max_examples=examples(30))
@given(sizes, st.floats(0.001, 0.03), st.floats(0, 0.95))
def test_momentum_tracking_is_the_papers_where_averaging_is_exact(size, rate, beta):
    nodes, seed = size
    grads, _ = references.quadratics(nodes, D, seed)
    w = mean_of_all(nodes)
    path = references.momentum_tracking(grads, np.zeros(D), w, rate=rate, rounds=ROUNDS, beta=beta)
    heavy = [Heavy(grad, beta) for grad in grads]
    same_paths(Swarm("momentum_tracking", heavy, w, rate=rate, steps=1, strength=1.0), path)


@settings(deadline=None, max_examples=examples(30))
@given(st.tuples(st.integers(3, 8), st.integers(0, 50)), st.floats(0.001, 0.02), st.floats(0, 0.95))
def test_momentum_tracking_on_a_graph_is_d_squared_of_momentum(size, rate, beta):
    nodes, seed = size
    grads, _ = references.quadratics(nodes, D, seed)
    w = references.ring(nodes, own=0.5)
    path = references.momentum_d_squared(grads, np.zeros(D), w, rate=rate, rounds=ROUNDS, beta=beta)
    heavy = [Heavy(grad, beta) for grad in grads]
    same_paths(Swarm("momentum_tracking", heavy, w, rate=rate, steps=1, strength=1.0), path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "steps", "late", "strength"),  # exact averaging at every step has no drift
    thorough_but(
        {(0.5, 10, 10, 0.5)},
        [(0.5, 1, 0, 1.0), (0.5, 10, 0, 0.5), (0.5, 10, 10, 0.5), (None, 10, 0, 0.5), (None, 10, 10, 0.5)],
    ),
)
def test_momentum_stops_short_on_unlike_data_and_tracked_it_does_not(own, steps, late, strength):
    grads, optimum = references.quadratics(5, D, seed=3)
    w = mean_of_all(5) if own is None else references.ring(5, own)
    off = {}
    for name in ("none", "momentum_tracking"):
        heavy = [Heavy(grad, 0.9) for grad in grads]
        options = {} if name == "none" else {"strength": strength}
        swarm = Swarm(name, heavy, w, rate=0.005, steps=steps, late=late, **options)
        for _ in range(4000 // steps):
            anchors = swarm.round()
        off[name] = float(np.linalg.norm(anchors - optimum))
    assert off["none"] > 0.02
    assert off["momentum_tracking"] < 1e-5


def distance_after(name, rounds, *, strength=None, late=0, nodes=5, own=None):
    """How far the mean of the anchors is from the optimum of the mean loss, over 10 steps a round."""
    grads, optimum = references.quadratics(nodes, D, seed=3)
    w = mean_of_all(nodes) if own is None else references.ring(nodes, own)
    swarm = Swarm(name, grads, w, rate=0.05, steps=10, strength=strength, late=late)
    for _ in range(rounds):
        anchors = swarm.round()
    return float(np.linalg.norm(anchors.mean(axis=0) - optimum))


@pytest.mark.slow
def test_local_steps_on_unlike_data_stop_short_and_scaffold_does_not():
    plain = distance_after("none", 300)
    assert plain > 0.05
    assert distance_after("fedprox", 300, strength=1.0) < plain
    assert distance_after("scaffold", 300) < 1e-6
    assert distance_after("scaffold", 300, strength=1.0) < 1e-6
    assert distance_after("scaffold", 600, own=0.5) < 1e-6  # on a ring, too


@pytest.mark.slow
@pytest.mark.parametrize("late", thorough_but({5}, [1, 5, 10]))
def test_scaffold_with_its_default_stands_rounds_that_close_late(late):
    assert distance_after("scaffold", 600, late=late) < 1e-6


def test_scaffold_at_full_strength_does_not_stand_a_whole_round_of_lateness():
    """Why the default is a half. The drift is constant here, so that nothing but the sum itself can swing."""
    grads = [lambda x, b=b: b * np.ones(D) for b in (-1.0, 1.0)]
    swings = {}
    for strength in (0.5, 1.0):
        swarm = Swarm("scaffold", grads, mean_of_all(2), rate=0.1, steps=10, strength=strength, late=10)
        corrections = []
        for _ in range(60):
            swarm.round()
            corrections.append(float(swarm.pending_nd.abs().max()))
        swings[strength] = max(corrections[-6:])  # a swing of 6 rounds
    assert swings[0.5] < 1e-6
    assert swings[1.0] > 0.5


def two_full_sides(side):
    """The Metropolis mixing matrix of K(side, side); its least eigenvalue is (1 - side) / (1 + side)."""
    across = np.kron(1 - np.eye(2), np.ones((side, side)))
    return (np.eye(2 * side) + across) / (side + 1)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strength"),
    thorough_but(
        {("scaffold", 0.5)},
        [("scaffold", 0.5), ("scaffold", 1.0), ("momentum_tracking", 0.5), ("momentum_tracking", 1.0)],
    ),
)
def test_control_variates_stand_every_graph_at_their_largest_consensus_step(name, strength):
    grads, optimum = references.quadratics(16, D, seed=3)
    gamma, w = drift.get(name, strength=strength).largest_gamma, two_full_sides(8)
    ends = {}
    for step in (gamma, 1.0):
        swarm = Swarm(name, grads, np.eye(16) + step * (w - np.eye(16)), rate=0.02, steps=5, strength=strength)
        for _ in range(400):
            anchors = swarm.round()
        ends[step] = float(np.abs(anchors - optimum).max())
    assert ends[gamma] < 1e-4
    assert not ends[1.0] < 1e3


def pulls_of(correction, theta_d, rounds):
    """Rounds given as (rates of the steps, correction): the pull after them."""
    correction.attach(theta_d)
    for rates, correction_d in rounds:
        for rate in rates:
            correction.nudge(theta_d, rate)
        correction.begin_round(theta_d)
        correction.close_round(correction_d)
    return correction.buffers["pull"]


@pytest.mark.parametrize("name", ["scaffold", "momentum_tracking"])
@pytest.mark.parametrize(("last", "most"), [([0.1], 1.0), ([0.1] * 60, 1.0), ([1e-9] * 20, 1 / 0.7), ([], 1 / 0.7)])
def test_a_round_of_few_steps_or_small_rates_moves_the_pull_by_no_more_than_a_whole_one(name, last, most):
    """A correction is then the others' progress, or what is left of earlier rounds."""
    ones_d = torch.ones(D, dtype=torch.float64)
    whole, correction = drift.get(name), drift.get(name)
    whole.round_steps = correction.round_steps = 20
    usual = pulls_of(whole, ones_d.clone(), [([0.1] * 20, ones_d)])
    pull_d = pulls_of(correction, ones_d.clone(), [([0.1] * 20, ones_d), (last, ones_d)])
    assert 0 < float((pull_d - usual).max()) <= (most + 1e-9) * float(usual.max())


@pytest.mark.parametrize("name", ["scaffold", "momentum_tracking"])
def test_rounds_without_a_step_divide_by_the_rates_of_the_last_one_that_had_any(name):
    """Each of them would else count for more than the one before, without end."""
    ones_d = torch.ones(D, dtype=torch.float64)
    turns = [([], ones_d * (-1) ** round) for round in range(21)]
    pull_d = pulls_of(drift.get(name, strength=1.0), ones_d.clone(), [([0.1] * 20, ones_d), *turns])
    torch.testing.assert_close(pull_d, 2 * ones_d / (0.1 * 20))


@pytest.mark.thorough
def test_pulls_sum_to_nothing_where_some_take_fewer_steps():
    """Else the mean of all models would be pulled away from where gradients take it."""
    grads, optimum = references.quadratics(5, D, seed=3)
    theta_nd, corrections = torch.zeros(5, D, dtype=torch.float64), [drift.get("scaffold") for _ in grads]
    for correction, theta_d in zip(corrections, theta_nd, strict=True):
        correction.attach(theta_d)
        correction.round_steps = 10
    for round in range(600):
        for node, (grad, correction, theta_d) in enumerate(zip(grads, corrections, theta_nd, strict=True)):
            for _ in range(1 if node == round % 7 else 10):
                theta_d.sub_(torch.from_numpy(grad(theta_d.numpy().copy())), alpha=0.05)
                correction.nudge(theta_d, 0.05)
            correction.begin_round(theta_d)
        moves_nd = theta_nd.mean(0) - theta_nd
        theta_nd += moves_nd
        for correction, move_d in zip(corrections, moves_nd, strict=True):
            correction.close_round(move_d)
    pulls_nd = torch.stack([correction.buffers["pull"] for correction in corrections])
    assert float(pulls_nd.abs().max()) > 1
    assert float(pulls_nd.sum(0).abs().max()) < 1e-9
    assert float((theta_nd[0] - torch.from_numpy(optimum)).norm()) < 0.5


@pytest.mark.parametrize("name", ["scaffold", "momentum_tracking"])
def test_a_pull_stays_its_size_when_rates_rise_again_after_the_end_of_a_cosine(name):
    """Rates that end at zero and rise again, as a run that is prolonged has them, with what is left of earlier rounds'
    differences in the corrections."""
    steps, total = 20, 600
    rounds, left = [], 0.0
    for first in range(0, total, steps):
        rates = [0.1 * (1 + np.cos(np.pi * step / total)) / 2 for step in range(first, first + steps)]
        left = 0.5 * left + sum(rates)  # consensus halves what there was
        rounds.append((rates, left * torch.ones(D, dtype=torch.float64) * (-1) ** len(rounds)))
    pull_d = pulls_of(drift.get(name), torch.zeros(D, dtype=torch.float64), rounds)
    assert float(pull_d.abs().max()) < 2


def test_rates_that_rise_divide_by_their_own_round():
    ones_d = torch.ones(D, dtype=torch.float64)
    rounds = [([0.01], ones_d), ([0.02], ones_d), ([0.1], ones_d)]
    pull_d = pulls_of(drift.get("scaffold", strength=1.0), ones_d.clone(), rounds)
    torch.testing.assert_close(pull_d, ones_d * (1 / 0.01 + 1 / 0.02 + 1 / 0.1))
