"""Upgrades the package under the services of this environment, and goes back where a node does not come up with it.

Everything that can be found out beforehand is: what is to come, its wire version, and that pip can install it. Then the
nodes are stopped, each with a checkpoint. What was there before is kept as a wheel until the next upgrade.

The modules that this process still needs are imported before pip replaces their files.
"""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from gossip.core.limits import PROTOCOL_VERSION
from gossip.membership import ManifestBody
from node.services.candidate import ASK_S, Candidate, candidate, pip, require_pip
from node.services.installed_package import installed_package, kept_folder, pack
from node.services.service_manager import Run, ServiceManager, run_command
from node.services.service_record import ServiceRecord
from node.swarm.folder import membership_of
from node.swarm.version import check_version
from node.system.errors import RunError, UsageError, is_interrupt, translate
from node.system.run_dir import EVENTS, locked, make_dir

UP_S: Final = 300.0
"""Seconds in which a node must say that it has started: a large model takes minutes to be built. A start that fails is
seen at once."""

STEADY_S: Final = 10.0
"""Seconds for which it must then run on. Chosen: what is broken in a new release mostly shows by the first round."""

LOOK_S: Final = 0.5
"""Seconds between two looks at a node that starts."""

Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Time for the watch over a start."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    """What came of an upgrade."""

    before: str
    after: str
    kept: Path
    """A wheel of the version before."""
    started: tuple[str, ...]
    """Services that were stopped for it, and have come up again."""


@dataclass(frozen=True, kw_only=True)
class _Versions:
    before: str
    """The version that is installed: read once, for pip removes where it stands."""
    kept: Path
    new: Candidate
    packages: dict[str, str]
    """Versions of all packages before."""


def upgrade(
    manager: ServiceManager,
    to: str,
    *,
    wire: int | None = None,
    tell: Tell = print,
    run: Run = run_command,
    clock: Clock | None = None,
) -> Upgraded:
    """Install `to`, a version or a path, in this environment, and start again the services of it that run.

    `wire`: the wire version that the swarm speaks by now; by default that of the version that is installed, or the
    newer one that a private swarm's manifest asks for. UsageError before anything is changed: another wire version, no
    such path, a checkout. RunError: pip failed, or a node did not come up; then the version before is back.
    """
    old = installed_package()
    require_pip(run)
    records = services_here(manager)
    with tempfile.TemporaryDirectory(prefix="p2ptrain-upgrade-") as folder:
        tell(f"looking at p2ptrain {to}")
        new = candidate(run, to, Path(folder))
        check_wire(new, records, wire)
        trial = pip(run, "install", "--dry-run", *_how(old.version, new))
        if trial.code:
            raise RunError(f"pip cannot install p2ptrain {new.version}: {trial.why()}", "nothing was changed")
        keep = make_dir(kept_folder())
        running = [] if manager.absent() else [each for each in records if manager.state(each.name).up]
        with locked(keep), _undisturbed():
            versions = _Versions(before=old.version, kept=pack(old, keep), new=new, packages=_packages(run))
            return _replaced(manager, versions, running, tell=tell, run=run, clock=clock or Clock())


def services_here(manager: ServiceManager) -> list[ServiceRecord]:
    """Return the services that this environment's interpreter runs. UsageError where all are another one's."""
    records = [manager.load(name) for name in manager.names()]
    here = [each for each in records if _prefix(each.python) == _prefix(Path(sys.executable))]
    if records and not here:
        other = records[0]
        if not other.python.exists():
            raise UsageError(f"the interpreter {other.python} of the service {other.name} is gone", "install it again")
        raise UsageError(
            f"the service {other.name} runs in another environment than this command",
            f"call that one's: {other.python} -m p2ptrain service upgrade",
        )
    return here


def check_wire(new: Candidate, records: Sequence[ServiceRecord], wire: int | None) -> None:
    """Raise UsageError for a candidate that could not speak with the run's members: they refuse every message of
    another protocol version, and a private swarm names its least versions."""
    asked = [terms for each in records if (terms := _terms(each.node_dir)) is not None]
    spoken = max(PROTOCOL_VERSION, *(it.min_protocol for it in asked)) if asked else PROTOCOL_VERSION
    wanted = spoken if wire is None else wire
    if new.wire != wanted:
        raise UsageError(
            f"p2ptrain {new.version} speaks wire version {new.wire}, and the run speaks {wanted}: its members would "
            "refuse this node",
            f"upgrade when all of them do (then: --wire {new.wire})" if wire is None else "nothing was changed",
        )
    for terms in asked:
        if terms.min_protocol > new.wire:
            raise UsageError(
                f"the swarm {terms.name} asks for wire version {terms.min_protocol}", "nothing was changed"
            )
        check_version(replace(terms, min_protocol=0), new.version)


def _replaced(
    manager: ServiceManager,
    versions: _Versions,
    running: Sequence[ServiceRecord],
    *,
    tell: Tell,
    run: Run,
    clock: Clock,
) -> Upgraded:
    before, after = versions.before, versions.new.version
    try:
        for each in running:
            tell(f"stopping {each.name}, which saves its model first")
            manager.stop(each.name)
        tell(f"installing p2ptrain {after} over {before}")
        done = pip(run, "install", *_how(before, versions.new))
        if done.code:
            raise RunError(f"pip failed: {done.why()}")
        _check_runs(run, after)
        for each in running:
            tell(f"starting {each.name}")
            _start_watched(manager, each, clock)
    except BaseException as error:
        with _signals(lambda number, frame: None):
            back = _go_back(manager, versions, running, tell=tell, run=run)
        if is_interrupt(error):
            tell(f"interrupted; {back}")
            raise
        why = translate(error)
        raise RunError(f"p2ptrain {after} does not do: {why.message}; {back}", why.hint) from error
    return Upgraded(before=before, after=after, kept=versions.kept, started=tuple(each.name for each in running))


def _go_back(
    manager: ServiceManager, versions: _Versions, running: Sequence[ServiceRecord], *, tell: Tell, run: Run
) -> str:
    """Install what was there before, start what ran before, and return what came of it. RunError where pip cannot. A
    service that does not stop or start keeps back neither the package nor the other services."""
    before = versions.before
    tell(f"going back to p2ptrain {before}")
    troubles = []
    for each in running:
        try:
            if manager.state(each.name).up:
                manager.stop(each.name)
        except RunError as error:
            troubles.append(error.message)
    done = pip(run, "install", "--no-index", "--no-deps", "--force-reinstall", str(versions.kept))
    if done.code:
        by_hand = f"{sys.executable} -m pip install --no-deps --force-reinstall {versions.kept}"
        stopped = "".join(f"; {each.name} is stopped (then: {manager.start_line(each.name)})" for each in running)
        raise RunError(f"pip cannot put p2ptrain {before} back: {done.why()}{stopped}", f"try: {by_hand}")
    others = _others_back(run, versions.packages)
    for each in running:
        try:
            manager.start(each.name)
        except RunError as error:
            troubles.append(error.message)
    started = " and started" if running and not troubles else ""
    missing = f", but for {', '.join(others)}, which pip could not put back" if others else ""
    return "; ".join([f"p2ptrain {before} is back{started}{missing}", *troubles])


def _others_back(run: Run, before: dict[str, str]) -> list[str]:
    """Put back the packages whose versions pip changed on the way, and return those that could not be."""
    now = _packages(run)
    changed = [f"{name}=={version}" for name, version in before.items() if now.get(name) != version]
    if not changed or pip(run, "install", "--no-deps", *changed).code == 0:
        return []
    return changed


def _start_watched(manager: ServiceManager, record: ServiceRecord, clock: Clock) -> None:
    """Start a node, and return when it has said that it started and then ran on. RunError where it did not."""
    log = record.node_dir / EVENTS
    offset = log.stat().st_size if log.is_file() else 0
    manager.start(record.name)
    until, steady = clock.now() + UP_S, None
    while True:
        state = manager.state(record.name)
        if state.state in {"waiting", "failed"} or (state.restarts or 0) > 0:
            raise RunError(f"{record.name} failed ({_failure(log, offset) or state.why or state.state})")
        news = _news(log, offset)
        if "checkpoint_skipped" in news:
            raise RunError(f"{record.name} cannot read its checkpoint")
        if state.state == "stopped":
            if "finished" in news:
                return  # its rounds were done, or nearly
            raise RunError(f"{record.name} ended ({_failure(log, offset) or 'without a word'})")
        if "started" in news and steady is None:
            steady = clock.now() + STEADY_S
        if steady is not None and clock.now() >= steady:
            return
        if clock.now() >= until:
            raise RunError(f"{record.name} did not start within {UP_S:.0f} s")
        clock.sleep(LOOK_S)


def _events(log: Path, offset: int) -> Iterator[dict[str, object]]:
    """What was logged since; all of it where the log was begun anew meanwhile. A line that is half written is none."""
    try:
        with log.open("rb") as file:
            file.seek(offset if log.stat().st_size >= offset else 0)
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield event


def _news(log: Path, offset: int) -> set[str]:
    return {str(event.get("event")) for event in _events(log, offset)}


def _failure(log: Path, offset: int) -> str:
    said = [str(event.get("error")) for event in _events(log, offset) if event.get("event") == "failed"]
    return said[-1] if said else ""


def _check_runs(run: Run, version: str) -> None:
    """Raise RunError where the new program does not even say its version."""
    done = run((sys.executable, "-P", "-m", "p2ptrain", "--version"), timeout_s=ASK_S)
    if done.code or done.out.split()[-1:] != [version]:
        raise RunError(f"it does not run ({done.why()})")


def _how(before: str, new: Candidate) -> list[str]:
    """pip takes a wheel of the version that is installed for that one, unless it is forced."""
    forced = ("--force-reinstall", "--no-deps") if before == new.version else ()
    return [*forced, str(new.wheel)]


def _packages(run: Run) -> dict[str, str]:
    done = pip(run, "list", "--format=json")
    try:
        told = json.loads(done.out)
        return {each["name"]: each["version"] for each in told if each["name"] != "p2ptrain"}
    except (ValueError, KeyError, TypeError):
        return {}


def _terms(node_dir: Path) -> ManifestBody | None:
    files = membership_of(node_dir)
    return files.load_manifests().newest.terms if files.joined else None


def _prefix(python: Path) -> Path:
    """The environment of an interpreter. Its link is not followed: it leads out of the environment."""
    return python.parent.resolve()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Within it Ctrl-C and SIGTERM raise KeyboardInterrupt once, which goes back; what comes after is passed over until
    all is in order again, and so is what comes while it goes back for another reason. Of the main thread."""
    pressed: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        if len(pressed) == 1:
            raise KeyboardInterrupt

    with _signals(interrupt):
        yield


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within it `handler` takes the signals by which a person or the system ends this program."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(each, handler) for each in wanted]
    try:
        yield
    finally:
        for each, former in zip(wanted, before, strict=True):
            signal.signal(each, former)
