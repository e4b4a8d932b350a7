"""All checks within a bound of time: those of this machine one by one, those that wait for others side by side."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from node.config.schema import Config
from node.doctor import contribution, machine, network, peer_checks, relay_checks, router
from node.doctor.contribution import Contribution, Measurement
from node.doctor.finding import Finding, Measuring, Model, Subject
from node.system import text
from node.system.errors import P2PTrainError, translate
from node.system.left_threads import in_thread

MODEL_S: Final = 10.0
"""For building the model: seconds for those of up to 100M parameters. A larger one is not waited for."""

ALL_S: Final = 20.0
"""The page is there by then, whatever does not answer; measuring is not counted."""

A_STEP_S: Final = 10.0
"""Beyond the seconds that are measured for, for the steps that begin and end them. A slower machine is not waited
for."""

TELL_S: Final = 2.0
"""Seconds between two lines about what is still waited for: short enough that nobody doubts that it goes on. Chosen."""

CLOSING_S: Final = 1.5
"""Of them for the goodbyes to peers, so that what was found of some is not lost with those that take too long."""


Tell = Callable[[str], None]
"""Told what is looked at now."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """Every finding, in the order of the page, and what the machine would contribute; None where that was not
    measured."""

    findings: list[Finding]
    contribution: Contribution | None


def examine(subject: Subject, tell: Tell = lambda line: None) -> Examination:
    """Examine the machine."""
    return trio.run(_examine, subject, tell)


async def _examine(subject: Subject, tell: Tell) -> Examination:
    ends_at = trio.current_time() + ALL_S
    found = [machine.python_and_packages(), machine.open_files(subject), machine.clock(subject)]
    alone = subject.network.behind_relay and subject.node.role != "relay"
    found += [*network.ports(subject), *(() if alone else (network.addresses(subject),))]
    if subject.learning is not None:
        tell(f"building the model of {subject.learning.task.name}, for {MODEL_S:g} seconds at most")
    model, why = await _model(subject)
    found += why
    found.append(machine.disk(subject, model))
    if model is not None:
        found += [] if model.trial is None else [machine.task_of(model.trial)]
        found += [machine.device_and_cores(subject, model), machine.memory(subject, model)]
        within = machine.budget(subject, model)
        found += [] if within is None else [within]
    began = trio.current_time()
    given, more = await _contribution(subject, model, tell)
    found += more
    ends_at += trio.current_time() - began
    checks: dict[str, Callable[[], Awaitable[list[Finding]]]] = {}
    if subject.network.behind_relay:
        checks["relay"] = partial(relay_checks.relay, subject)
    if not alone:
        within_s = ends_at - trio.current_time() - CLOSING_S
        checks["peers"] = partial(peer_checks.peers, subject, model.run if model else None, within_s)
        checks |= {"router": partial(router.router, subject), "multicast": _multicast}
    waited = await _side_by_side(checks, ends_at, tell)
    return Examination(
        findings=[*found, *(it for check in checks for it in waited[check])],
        contribution=given,
    )


async def _contribution(subject: Subject, model: Model | None, tell: Tell) -> tuple[Contribution | None, list[Finding]]:
    """What is measured, and what is to be said of it; nothing where nobody asks, or where there is no model."""
    config, asked = subject.learning, subject.measuring
    if model is None or model.trainer is None or config is None or asked is None:
        return None, []
    if config.site.needs_ranks:
        seen = f"not measured: with site.{config.site.needs_ranks} the ranks of torchrun train together"
        return None, [Finding(check="speed", level="unknown", seen=seen)]
    tell(f"training for {asked.for_s:g} seconds, to see what this machine contributes")
    trainer, for_s, logits = model.trainer, asked.for_s, model.logits

    def measure() -> Measurement:
        machine.as_planned(subject, model)
        if logits is None:
            return contribution.measured(trainer, config, for_s)
        logits.load_vector(logits.initial_vector())  # a consensus: from the second round on, steps go towards one
        return contribution.measured(trainer, config, for_s, step=logits.take_step)

    found: Measurement | None = None
    try:
        with trio.move_on_after(asked.for_s + A_STEP_S):
            found = await in_thread(measure)
    except Exception as error:  # as in `_model`
        known: P2PTrainError = translate(error)
        return None, [Finding(check="speed", level="problem", seen=known.message, fix=known.hint)]
    if found is None:
        return None, [_too_slow(config, asked)]
    given = contribution.contribution(config, model.shared, found, asked)
    return given, contribution.findings_of(given, config, model, asked)


def _too_slow(config: Config, asked: Measuring) -> Finding:
    waited = asked.for_s + A_STEP_S
    examples = config.train.batch_size * config.train.grad_accumulation
    seen = f"slower than {waited:g} s for a first step of {text.plural(examples, 'example')} or for the one after it"
    fix = f"measure for longer, --measure {round(4 * waited)}s, or take another train.device"
    return Finding(check="speed", level="unknown", seen=seen, fix=fix)


async def _multicast() -> list[Finding]:
    return [await trio.to_thread.run_sync(network.multicast, abandon_on_cancel=True)]


async def _model(subject: Subject) -> tuple[Model | None, list[Finding]]:
    """The model, and what is to be said where there is none."""
    if subject.learning is None:
        return None, []
    model: Model | None = None
    try:
        with trio.move_on_after(MODEL_S):
            model = await in_thread(partial(machine.model_of, subject))
    except Exception as error:  # a task is anybody's code: whatever it raises keeps a node from starting
        known: P2PTrainError = translate(error)
        return None, [Finding(check="model", level="problem", seen=known.message, fix=known.hint)]
    if model is None:
        seen = f"not built within {MODEL_S:g} s: memory, device and the peers' run were not looked at"
        return None, [Finding(check="model", level="unknown", seen=seen)]
    return model, []


async def _side_by_side(
    checks: dict[str, Callable[[], Awaitable[list[Finding]]]], ends_at: float, tell: Tell
) -> dict[str, list[Finding]]:
    late = f"not done within {ALL_S:g} s"
    found = {name: [Finding(check=name, level="unknown", seen=late)] for name in checks}

    waiting = list(checks)

    async def run(name: str) -> None:
        found[name] = await checks[name]()
        waiting.remove(name)

    async def tell_on() -> None:
        while True:
            tell(f"asking {', '.join(waiting)}, for {max(0.0, ends_at - trio.current_time()):.0f} seconds at most")
            await trio.sleep(TELL_S)

    with trio.move_on_at(ends_at):
        async with trio.open_nursery() as telling:
            telling.start_soon(tell_on)
            async with trio.open_nursery() as asking:
                for name in checks:
                    asking.start_soon(run, name)
            telling.cancel_scope.cancel()
    return found
