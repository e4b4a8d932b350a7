"""Inner optimizers as their papers write them, in float64 numpy, one matrix or vector at a time, nothing in place.

A reference takes `grad(point) -> list of arrays` and a list of learning rates, and returns the parameters that a user
would evaluate after each step.
"""

import numpy as np


def adamw(start, grad, rates, *, betas, weight_decay, decayed, epsilon=1e-8):
    """Loshchilov & Hutter, 1711.05101, algorithm 2."""
    theta = [np.array(x, dtype=np.float64) for x in start]
    m = [np.zeros_like(x) for x in theta]
    v = [np.zeros_like(x) for x in theta]
    path = []
    for t, rate in enumerate(rates, start=1):
        g = grad(theta)
        for i in range(len(theta)):
            m[i] = betas[0] * m[i] + (1 - betas[0]) * g[i]
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g[i] ** 2
            mean, square = m[i] / (1 - betas[0] ** t), v[i] / (1 - betas[1] ** t)
            shrink = weight_decay if decayed[i] else 0.0
            theta[i] = theta[i] - rate * (mean / (np.sqrt(square) + epsilon) + shrink * theta[i])
        path.append([x.copy() for x in theta])
    return path


def sgd(start, grad, rates, *, momentum, nesterov, weight_decay, decayed):
    """Heavy ball, or Nesterov's momentum in the form that every library has (Sutskever et al. 2013)."""
    theta = [np.array(x, dtype=np.float64) for x in start]
    velocity = [np.zeros_like(x) for x in theta]
    path = []
    for rate in rates:
        g = grad(theta)
        for i in range(len(theta)):
            velocity[i] = momentum * velocity[i] + g[i]
            move = g[i] + momentum * velocity[i] if nesterov else velocity[i]
            shrink = weight_decay if decayed[i] else 0.0
            theta[i] = theta[i] - rate * (move + shrink * theta[i])
        path.append([x.copy() for x in theta])
    return path


def schedule_free(start, grad, rates, *, betas, weight_decay, decayed):
    """Defazio et al., 2405.15682, algorithm 1: z, x and y each by name."""
    x = [np.array(value, dtype=np.float64) for value in start]
    z = [value.copy() for value in x]
    v = [np.zeros_like(value) for value in x]
    squares, path = 0.0, []
    for t, rate in enumerate(rates, start=1):
        y = [(1 - betas[0]) * zi + betas[0] * xi for zi, xi in zip(z, x, strict=True)]
        g = grad(y)
        step = rate * np.sqrt(1 - betas[1] ** t)
        squares += step**2
        c = step**2 / squares
        for i in range(len(x)):
            v[i] = betas[1] * v[i] + (1 - betas[1]) * g[i] ** 2
            shrink = weight_decay if decayed[i] else 0.0
            z[i] = z[i] - step * g[i] / (np.sqrt(v[i]) + 1e-8) - step * shrink * y[i]
            x[i] = (1 - c) * x[i] + c * z[i]
        path.append([value.copy() for value in x])
    return path


def newton_schulz(matrix, steps=5):
    """Jordan et al. 2024: the quintic iteration towards U V^T, with their coefficients."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = np.asarray(matrix, dtype=np.float64)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / max(np.linalg.norm(x), 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def muon_move(grads, *, momentum, nesterov):
    """The move of one matrix at rate 1 after these gradients, the last one included (2502.16982's scale)."""
    buffer = np.zeros_like(np.asarray(grads[0], dtype=np.float64))
    for g in grads:
        buffer = momentum * buffer + (1 - momentum) * g
    update = (1 - momentum) * grads[-1] + momentum * buffer if nesterov else buffer
    return -0.2 * np.sqrt(max(update.shape)) * newton_schulz(update)
