"""Attacks: what liars do. They exist so that a defence is shown to work, and a test to have teeth.

Most act on vectors, and are functions of what the honest ones sent (an omniscient, colluding adversary):

    >>> import torch
    >>> from p2ptrain import attacks
    >>> honest_nd = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    >>> attacks.get("sign_flip", scale=2.0)(honest_nd, 1)
    tensor([[-4., -8.]])

They take and give *differences*: honest_nd holds every honest movement from one common reference, and what comes back
is the movement that the f liars pretend to have made. `aggregate` is what they are held against:

    >>> from p2ptrain import aggregate
    >>> rule = aggregate.get("trimmed_mean", f=1)
    >>> lie_fd = attacks.get("searched_alie", defence=rule)(honest_nd, 1)

| name            | hook     | what the liar does                                                    |
|-----------------|----------|-----------------------------------------------------------------------|
| sign_flip       | vectors  | -4 times the honest mean                                              |
| scaled          | vectors  | -(h/f) times it: liars undo the honest                                |
| ipm, alie       | vectors  | -2 times it; the mean less z deviations                               |
| searched_ipm    | vectors  | ipm with the factor that moves the option `defence` furthest          |
| searched_alie   | vectors  | alie, likewise                                                        |
| mimic           | vectors  | what one honest node sends                                            |
| gaussian        | vectors  | noise                                                                 |
| inf, nan        | vectors  | no numbers                                                            |
| delay           | model    | its own model of some rounds ago, as if it were new                   |
| label_flip      | data     | trains on wrong labels                                                |
| equivocation    | wire     | signs two histories                                                   |
| flood           | wire     | broadcasts hundreds of announcements a round                          |
| dissensus       | edges    | tells each neighbour to move away from the others; simulators only    |
| spectral        | edges    | the same along the graph's weakest direction; simulators only         |

`get` gives those on vectors, `find` any; base.py has the hooks.
"""

from p2ptrain.attacks.alie import ALittleIsEnough
from p2ptrain.attacks.base import (
    Attack,
    DataAttack,
    EdgeAttack,
    HonestGraph,
    Misdeeds,
    ModelAttack,
    VectorAttack,
    WireAttack,
)
from p2ptrain.attacks.constant import Infinity, NotANumber
from p2ptrain.attacks.delay import Delay
from p2ptrain.attacks.dissensus import Dissensus
from p2ptrain.attacks.equivocation import Equivocation
from p2ptrain.attacks.flood import Flood
from p2ptrain.attacks.gaussian import Gaussian
from p2ptrain.attacks.label_flip import LabelFlip
from p2ptrain.attacks.mimic import Mimic
from p2ptrain.attacks.reversal import InnerProduct, Scaled, SignFlip
from p2ptrain.attacks.searched import SearchedALIE, SearchedInnerProduct
from p2ptrain.attacks.spectral import Spectral
from p2ptrain.registry import Registry

__all__ = [
    "ATTACKS",
    "Attack",
    "DataAttack",
    "EdgeAttack",
    "HonestGraph",
    "Misdeeds",
    "ModelAttack",
    "NoVectorsError",
    "VectorAttack",
    "WireAttack",
    "find",
    "get",
    "names",
]

ATTACKS: Registry[Attack] = Registry("attacks")
for _on_vectors in (
    SignFlip,
    Scaled,
    InnerProduct,
    ALittleIsEnough,
    SearchedInnerProduct,
    SearchedALIE,
    Mimic,
    Gaussian,
    Infinity,
    NotANumber,
):
    ATTACKS.register(_on_vectors.name)(_on_vectors)
for _otherwise in (Delay, LabelFlip, Equivocation, Flood, Dissensus, Spectral):
    ATTACKS.register(_otherwise.name)(_otherwise)


class NoVectorsError(ValueError):
    """An attack that does not act on vectors, where one that does is wanted."""


def get(name: str, **options: object) -> VectorAttack:
    """Return the attack `name` on vectors. Raises UnknownMemberError (a ValueError) that lists the names there are, or
    NoVectorsError for one of another kind."""
    attack = ATTACKS.get(name, **options)
    if not isinstance(attack, VectorAttack):
        there_are = ", ".join(names(VectorAttack))
        raise NoVectorsError(f"the attack {name!r} does not act on vectors; there are: {there_are}")
    return attack


def find(name: str, **options: object) -> Attack:
    """Return the attack `name` of whatever kind; `isinstance` with the hooks says which. Raises UnknownMemberError."""
    return ATTACKS.get(name, **options)


def names(hook: type[object] | None = None) -> list[str]:
    """Every attack there is, plug-ins included, sorted; or those that have `hook`, one of the Protocols in base.py."""
    every = ATTACKS.names()
    return every if hook is None else [name for name in every if isinstance(find(name), hook)]
