"""Combinations that cannot work, refused where a configuration is made, in one line each."""

from typing import TYPE_CHECKING, Final

from p2ptrain import aggregate, compress
from p2ptrain.compress.adaptive import adaptive_in
from p2ptrain.sync.packing import DIFFERENCE_PACKERS, PACKERS

if TYPE_CHECKING:
    from p2ptrain.sync.sync_config import SyncConfig

STEADY_OUTERS: Final = ("average", "noloco")
"""Outer steps that do not swing between two members who agree half-way (outer/noloco_momentum.py)."""

SWINGING_OUTERS: Final = ("nesterov", "delayed_nesterov")
LARGEST_CALM_MOMENTUM: Final = 0.5
CALM_CONTRACTION: Final = 0.95
"""Under a tracked estimate a member's model keeps what its codec lost, and a step beyond theta' moves away from the
estimate by more than that again. Eight members with momentum 0.9 drift apart without end under sign1 (contraction 0.63)
and q2 (0.88), and close up under int4 (0.97); under q2 they close up with 0.5, not with 0.7 (tests hold these)."""


def check_momentum(config: "SyncConfig") -> None:
    """ValueError where the outer step's momentum makes grow what the codec loses."""
    momentum = config.outer_options().get("alpha", 0.9)
    if config.outer in SWINGING_OUTERS and momentum > LARGEST_CALM_MOMENTUM and _is_coarse(config):
        raise ValueError(
            f"{config.outer} makes grow what {config.compressor} loses: use int4 or a finer compressor, "
            f"alpha <= {LARGEST_CALM_MOMENTUM}, or the strategy sparse_loco, which does not keep it in the model"
        )


def check_pairs(config: "SyncConfig") -> None:
    """ValueError on what pairs cannot do."""
    if config.f > 0:
        raise ValueError(
            f"{config.strategy} averages pairs, of whom none can outvote the other: set f to 0, or use tracked_gossip"
        )
    if config.outer not in STEADY_OUTERS:
        raise ValueError(f"{config.strategy} swings under {config.outer}: use one of {', '.join(STEADY_OUTERS)}")


def check_meeting(config: "SyncConfig") -> None:
    """ValueError on what a part of a group's models cannot be packed in or reduced by."""
    if config.compressor not in PACKERS:
        raise ValueError(
            f"{config.strategy} exchanges whole models by parts, which {config.compressor} does not keep: "
            f"use one of {', '.join(PACKERS)}"
        )
    check_reducing(config)


def check_differences(config: "SyncConfig") -> None:
    """ValueError on what a part of a group's differences cannot be packed in or reduced by."""
    if config.compressor.removeprefix("rotated+") not in DIFFERENCE_PACKERS:
        raise ValueError(
            f"{config.strategy} reduces differences by parts, which {config.compressor} does not make equally long: "
            f"use one of {', '.join(DIFFERENCE_PACKERS)}, or rotated+ before it"
        )
    check_reducing(config)


def check_reducing(config: "SyncConfig") -> None:
    """ValueError on a rule that the owner of a part cannot reduce it by."""
    name = config.strategy
    if config.needs_judge:
        raise ValueError(
            f"{name} reduces parts of models, which {config.aggregator} cannot try: use another aggregator"
        )
    stages, rule = config.aggregator.split("+")[:-1], config.aggregator.split("+")[-1]
    by_origin = any(aggregate.PRE_AGGREGATORS.get(stage).from_origin for stage in stages)
    if by_origin or aggregate.get(rule, f=config.f, **config.rule_options()).own_first:
        raise ValueError(
            f"{name} reduces models of which none is its own: {config.aggregator} looks from one's own; "
            "use a rule such as trimmed_mean"
        )


def check_alternation(config: "SyncConfig") -> None:
    """`check_pairs`, and ValueError on a codec too coarse to follow a model that a global round has moved far."""
    check_pairs(config)
    if _is_coarse(config):
        raise ValueError(
            f"{config.strategy} moves models further in a global round than {config.compressor} can tell in the next: "
            "use int4 or a finer compressor"
        )


def check_no_gamma(config: "SyncConfig") -> None:
    """ValueError on a consensus step where there is none."""
    if config.gamma is not None:
        raise ValueError(f"{config.strategy} goes to what was told, all the way: it has no gamma")


def _is_coarse(config: "SyncConfig") -> bool:
    codec = compress.get(config.compressor, **config.codec_options())
    adaptive = adaptive_in(codec)
    codecs = [codec] if adaptive is None else [rung.codec for rung in adaptive.ladder]  # a slow link may take any
    return min(each.contraction for each in codecs) < CALM_CONTRACTION
