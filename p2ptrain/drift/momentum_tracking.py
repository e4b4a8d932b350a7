"""Momentum Tracking (Takezawa et al., 2209.15505): each node's momentum, less what sets it apart from the others'.

    u_i <- b u_i + g_i                          own momentum: that of the inner optimizer, sgd with momentum b
    x_i <- sum_j w_ij (x_j - rate (u_i - c_i))  the step, and averaging
    c_i <- sum_j w_ij (c_j - u_j) + u_i         how far own momentum is from the mean

It is gradient tracking with momentum in the gradients' place, and its rate of convergence is proven not to depend on
how unlike the data are, whatever b is. As written it sends a second vector every round, c_i - u_i: twice the bytes, and
a second estimate of each neighbour to hold. Where averaging is exact it need not be sent. The c_j sum to 0, so the mean
momentum of a round is the way that the mean model went, over the sum R of its learning rates; with it

    c_i' = c_i + (phi_new - theta) / R

which is SCAFFOLD's rule (scaffold.py), whose p is c: **that rule tracks whatever the inner optimizer steps by**. Under
sgd with momentum it is Momentum Tracking, under plain sgd gradient tracking. On a graph, where averaging is not exact,
the two differ by (sum_j w_ij phi_j - phi_i) / R: ours is to the paper's what D^2 (1803.07068) is to gradient tracking,
and has D^2's condition on the mixing matrix. The paper's proof is for its own rule; that ours comes to rest at the
optimum of the mean loss, too, a test shows on rings.

State and cost: those of scaffold; no byte on the wire. Memory: the momentum is the inner optimizer's own.
"""

from p2ptrain.drift.scaffold import Scaffold


class MomentumTracking(Scaffold):
    """For `sgd` with momentum (0.9), or another optimizer that has one: scaffold.py and docs/decisions/0075 say what it
    gains with which. `strength`: as scaffold's; 1 is the paper's,
    0.5 stands corrections that come up to a whole round late."""

    name = "momentum_tracking"
