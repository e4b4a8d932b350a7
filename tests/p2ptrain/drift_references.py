"""Drift corrections as their papers write them, with a server's view of all nodes, in float64 numpy.

Node i's loss is 1/2 (x - b_i)^T A_i (x - b_i), its gradient exact. `grads[i](x)` is node i's gradient. Every reference
returns the nodes' models (n, d) after each round.
"""

import numpy as np


def quadratics(nodes, dimension, seed):
    """Gradients of unlike convex quadratics, and the optimum of their mean."""
    rng = np.random.default_rng(seed)
    curvatures, targets = [], []
    for _ in range(nodes):
        root = rng.normal(size=(dimension, dimension))
        curvatures.append(root @ root.T / dimension + 0.5 * np.eye(dimension))
        targets.append(3 * rng.normal(size=dimension))
    grads = [lambda x, a=a, b=b: a @ (x - b) for a, b in zip(curvatures, targets, strict=True)]
    pull = sum(a @ b for a, b in zip(curvatures, targets, strict=True))
    return grads, np.linalg.solve(sum(curvatures), pull)


def ring(nodes, own):
    """The mixing matrix of a ring: `own` for oneself, the rest for both neighbours. Symmetric, rows sum to 1."""
    w = own * np.eye(nodes)
    for i in range(nodes):
        for j in (i - 1, i + 1):
            w[i, j % nodes] += (1 - own) / 2
    return w


def fedavg(grads, start, *, rate, steps, rounds, mu=0.0):
    """FedAvg, and FedProx (1812.06127) with mu > 0: the server averages all."""
    phi, path = np.array(start, dtype=np.float64), []
    for _ in range(rounds):
        ends = []
        for grad in grads:
            x = phi.copy()
            for _ in range(steps):
                x = x - rate * (grad(x) + mu * (x - phi))
            ends.append(x)
        phi = np.mean(ends, axis=0)
        path.append(np.tile(phi, (len(grads), 1)))
    return path


def scaffold(grads, start, *, rate, steps, rounds):
    """SCAFFOLD (1910.06378), algorithm 1, option II, all clients in every round, a server step of 1."""
    n = len(grads)
    x, c = np.array(start, dtype=np.float64), np.zeros(len(start))
    c_local, path = [np.zeros(len(start)) for _ in range(n)], []
    for _ in range(rounds):
        moves, changes = [], []
        for i in range(n):
            y = x.copy()
            for _ in range(steps):
                y = y - rate * (grads[i](y) - c_local[i] + c)
            fresh = c_local[i] - c + (x - y) / (steps * rate)
            moves.append(y - x)
            changes.append(fresh - c_local[i])
            c_local[i] = fresh
        x = x + np.mean(moves, axis=0)
        c = c + np.mean(changes, axis=0)
        path.append(np.tile(x, (n, 1)))
    return path


def d_squared(grads, start, w, *, rate, rounds):
    """D^2 (1803.07068): x_1 = W (x_0 - rate g_0), then x <- W (2 x - x_before - rate (g - g_before))."""
    n = len(grads)
    x = np.tile(np.array(start, dtype=np.float64), (n, 1))
    before = g_before = None
    path = []
    for _ in range(rounds):
        g = np.array([grads[i](x[i]) for i in range(n)])
        half = x - rate * g if before is None else 2 * x - before - rate * (g - g_before)
        before, g_before = x, g
        x = w @ half
        path.append(x)
    return path


def qgm(grads, start, w, *, rate, steps, rounds, beta):
    """QG-DSGDm (2102.04761), algorithm 1, with mu = beta; several local steps share one buffer, as in its appendix."""
    n = len(grads)
    x = np.tile(np.array(start, dtype=np.float64), (n, 1))
    m, path = np.zeros_like(x), []
    for _ in range(rounds):
        half = x.copy()
        for _ in range(steps):
            half = np.array([half[i] - rate * (beta * m[i] + grads[i](half[i])) for i in range(n)])
        mixed = w @ half
        m = beta * m + (1 - beta) * (x - mixed) / (rate * steps)
        x = mixed
        path.append(x)
    return path


def momentum_tracking(grads, start, w, *, rate, rounds, beta):
    """Momentum Tracking (2209.15505), algorithm 1: the model and c - u are mixed, one step a round."""
    n = len(grads)
    x = np.tile(np.array(start, dtype=np.float64), (n, 1))
    u, c, path = np.zeros_like(x), np.zeros_like(x), []
    for _ in range(rounds):
        u = beta * u + np.array([grads[i](x[i]) for i in range(n)])
        x, c = w @ (x - rate * (u - c)), w @ (c - u) + u
        path.append(x)
    return path


def momentum_d_squared(grads, start, w, *, rate, rounds, beta):
    """D^2 (1803.07068) with momentum in the gradients' place."""
    n = len(grads)
    u = [np.zeros(len(start)) for _ in range(n)]

    def step(i):
        def momentum(x):
            u[i] = beta * u[i] + grads[i](x)
            return u[i]

        return momentum

    return d_squared([step(i) for i in range(n)], start, w, rate=rate, rounds=rounds)
