"""`p2ptrain privacy`: what a run would tell of a node's data, and what it has told."""

import json as jsonlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli import options
from node.system.errors import UsageError
from node.system.run_dir import node_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from node.privacy.privacy_report import PrivacyReport, VisitorsReport

app = typer.Typer(help="Count what training tells of a node's data (differential privacy).", no_args_is_help=True)

PIP = "pip install 'p2ptrain[privacy]'"


@app.command()
def epsilon(
    steps: Annotated[int, typer.Option(min=0, help="Steps; with privatizer update: rounds.")],
    noise: Annotated[float | None, typer.Option(help="Standard deviation of the noise over the clipping norm.")] = None,
    noise_for: Annotated[
        float | None, typer.Option(metavar="EPSILON", help="Instead: the least noise with which no more is spent.")
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Probability with which an example is in a step; with privatizer update: 1.")
    ] = 1.0,
    delta: Annotated[float, typer.Option(help="Probability with which the bound may fail.")] = 1e-5,
    tight: Annotated[
        bool, typer.Option("--tight", help="Also by privacy loss distributions, which takes seconds (opacus).")
    ] = False,
    json: options.Json = False,
) -> None:
    """Foretell the epsilon of so many steps with so much noise, as a node's budget counts it (privacy.epsilon)."""
    from p2ptrain.privacy.accounting import epsilon_of
    from p2ptrain.privacy.accounting import noise_for as least_noise
    from p2ptrain.privacy.accounting.loss_distributions import is_installed, tight_epsilon_of
    from p2ptrain.privacy.base import Release

    if (noise is None) == (noise_for is None):
        raise UsageError("an epsilon is of some noise, and a noise is for some epsilon", "give --noise or --noise-for")
    if tight and not is_installed():
        raise UsageError("--tight: opacus is not installed", f"it comes with: {PIP}")
    try:
        if noise is None:
            assert noise_for is not None, "one of them is given"
            noise = least_noise(noise_for, delta, rate=rate, steps=steps)
        releases = [Release(mechanism="", noise=noise, rate=rate, count=steps)]
        spent = epsilon_of(releases, delta)
        tighter = tight_epsilon_of(releases, delta) if tight else None
    except ValueError as error:
        raise UsageError(f"{error}") from None
    if json:
        found = {
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": delta,
            "noise": noise,
            "rate": rate,
            "steps": steps,
        }
        typer.echo(jsonlib.dumps(found | ({"tight_epsilon": tighter} if tight else {})))
        return
    typer.echo(f"epsilon {spent:.4g} at delta {delta:g}: noise {noise:.4g}, rate {rate:g}, {steps} steps")
    if tight:
        typer.echo("by privacy loss distributions: " + ("not to be told" if tighter is None else f"{tighter:.4g}"))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a node's folder.")],
    json: options.Json = False,
) -> None:
    """Show what each node's data have told: what is spent, what left the machine, what is covered and what is not.

    It reads, and changes nothing.
    """
    from node.privacy.privacy_report import report_of

    for folder in node_dirs(run):
        found = report_of(folder)
        if json:
            typer.echo(jsonlib.dumps(found.as_json()))
        else:
            typer.echo("\n".join(_lines(found)))


def _lines(it: "PrivacyReport") -> "Iterator[str]":
    from node.system.text import plural, size

    yield f"{it.name}: privatizer {it.privatizer}"
    if it.entries or it.torn:
        budget = "no budget" if it.budget is None else f"of {it.budget:g}"
        stopped = ", and training stopped there" if it.refused else ""
        yield f"  epsilon {it.epsilon:.4g} {budget} at delta {it.delta:g} (RDP){stopped}"
        yield f"  {_tight(it)}"
        for each in it.releases:
            yield f"    {each.mechanism}: {each.count} times, noise {each.noise:g}, rate {each.rate:g}"
        yield f"  the ledger has {('1 entry' if it.entries == 1 else f'{it.entries} entries')}" + (
            f", and {plural(it.torn, 'line')} that cannot be read, charged as spent" if it.torn else ""
        )
    if it.visitors is not None:
        yield from _visitors(it.visitors)
    sent = f"{'at least ' if it.sends else ''}{size(it.bytes_sent)} to peers in all"
    yield f"  left the machine: {sent}, with updates of {plural(it.rounds, 'round')}"
    for gap in it.gaps:
        yield f"  ! {gap}"
    for told in it.disclosures:
        yield f"  {told.coverage.value:<12}{told.what}: {told.why}"


def _visitors(it: "VisitorsReport") -> "Iterator[str]":
    from node.system.text import plural

    budget = "no budget" if it.budget is None else f"of {it.budget:g}"
    sums = f"{plural(it.keys, 'key')} in {plural(it.sums, 'sum')}"
    yield f"  visitors: epsilon {it.epsilon:.4g} {budget} at delta {it.delta:g} at most of a key (RDP), {sums}"
    if it.torn:
        yield f"    their ledger has {plural(it.torn, 'line')} that cannot be read, charged to every key"


def _tight(it: "PrivacyReport") -> str:
    from p2ptrain.privacy.accounting.loss_distributions import is_installed

    if it.tight_epsilon is not None:
        return f"epsilon {it.tight_epsilon:.4g} by privacy loss distributions (PRV)"
    return "too large for PRV" if is_installed() else f"a tighter one by PRV comes with: {PIP}"
