"""What a plan is asked for, by options and by settings of [sync], and what is recommended of all that is not."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from node.cli.plan_liars import check_withstands
from node.system.errors import UsageError

if TYPE_CHECKING:
    from node.cli.plan_liars import Withstands
    from node.planning.advice import PlanAdvice, PlanConstraints
    from node.planning.forecast import PlanRequest, RunForecast

MEMBERS: Final = ("strategy", "compressor")
"""Of [sync], of which options say as well which to take."""


def asked_for(given: dict[str, Any], **options: Any) -> "tuple[PlanConstraints, PlanConstraints]":
    """Return what `given`, the settings of [sync], ask for, and the same with the options strategy, compressor,
    inner_steps and degree. UsageError where both name a member, and not the same, and for one that cannot be
    planned."""
    from node.planning.advice import PlanConstraints

    for key in MEMBERS:
        if None is not options[key] != given.get(key, options[key]):
            raise UsageError(
                f"--{key} {options[key]} and sync.{key} = {given[key]}: a plan has one", "give one of them"
            )
    settings = PlanConstraints(
        **{key: given.get(key) for key in MEMBERS},
        sync={key: value for key, value in given.items() if key not in MEMBERS},
    )
    asked = replace(settings, **{key: value for key, value in options.items() if value is not None})
    for key in MEMBERS:
        if options[key] is not None:
            _check_member(key, asked)
    return settings, asked


def _check_member(key: str, asked: "PlanConstraints") -> None:
    """Raise UsageError that names the option, for a strategy or a compressor that cannot be planned."""
    from node.config.schema import from_raw
    from node.planning.payload_sizes import check_plannable

    named = MEMBERS[: MEMBERS.index(key) + 1]  # another strategy has a compressor of its own
    try:
        check_plannable(from_raw({"sync": {each: getattr(asked, each) for each in named if getattr(asked, each)}}).sync)
    except UsageError as error:
        raise UsageError(f"--{key}: {error.message}", error.hint) from None
    except ValueError as error:
        raise UsageError(f"--{key}: {error}") from None


def found(
    request: "PlanRequest", settings: "PlanConstraints", asked: "PlanConstraints", withstands: "Withstands"
) -> "tuple[RunForecast, PlanAdvice]":
    """Return what is asked for, the rest being recommended; and what would be recommended by the settings alone.
    UsageError where that cannot be planned."""
    from node.planning.advice import advise, runnable

    check_withstands(withstands, request.config.sync, degree=asked.degree, nodes=request.nodes)

    def advised(asked: "PlanConstraints") -> "PlanAdvice":
        return advise(
            request, liars=withstands.liars, aggregator=withstands.aggregator, asked=asked, rule=withstands.is_asked
        )

    try:
        best = advised(asked)
        try:
            advice = best if asked == settings else advised(settings)
        except (UsageError, ValueError):  # the settings are options of a member that --strategy or --compressor names
            advice = best
        return runnable(best.best), advice
    except ValueError as error:
        raise UsageError(str(error)) from None
