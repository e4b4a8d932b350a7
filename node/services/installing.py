"""Installs and removes a service: its file whole or not at all, and nothing of the run folder touched."""

from contextlib import suppress
from dataclasses import dataclass

from gossip.core.atomic_file import sync_folder, write_atomic
from node.services.service_manager import ServiceManager
from node.services.service_record import ServiceRecord
from node.system.errors import RunError, UsageError
from node.system.run_dir import LOCK, is_held


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What came of an installation."""

    not_started: str = ""
    """Why the service does not run; empty where it does."""
    linger: str = ""
    """What its owner should know of log-out."""


def check_free(manager: ServiceManager, record: ServiceRecord, *, replace: bool) -> None:
    """Raise UsageError where the name is taken, and RunError where another process or service has the node's folder."""
    name = record.name
    installed = manager.names()
    if not replace and (name in installed or manager.file_of(name).exists()):
        there = manager.load(name)
        raise UsageError(
            f"there is a service {name} already, of the node in {there.node_dir} ({manager.file_of(name)})",
            "give --replace to write it anew, or another one a --name of its own",
        )
    for other in installed:
        if other != name and manager.load(other).node_dir == record.node_dir:
            raise UsageError(f"the service {other} runs the node in {record.node_dir} already", "remove that one first")
    own = record.node_dir
    with suppress(RunError, UsageError):  # there is none, or it is damaged
        own = manager.load(name).node_dir
    if own == record.node_dir and manager.state(name).up:
        return  # it is this service that holds the folder
    with suppress(OSError):
        if is_held(record.node_dir):
            holder = (record.node_dir / LOCK).read_text(errors="replace").strip() or "unknown"
            raise RunError(f"a node runs in {record.node_dir} (process {holder})", "end it (Ctrl-C), and try again")


def install(manager: ServiceManager, record: ServiceRecord) -> Installed:
    """Write the service's file, and start it where a manager answers. Whatever cuts this short, Ctrl-C included, leaves
    the file as it was. RunError, UsageError, OSError."""
    file, new = manager.file_of(record.name), manager.text(record)
    before = file.read_bytes() if file.exists() else None
    absent = manager.absent()
    was_up = not absent and manager.state(record.name).up
    try:
        _write(manager, record.name, new)  # first: a full disk then stops no node
        if absent:
            return Installed(not_started=absent)
        if was_up:
            manager.stop(record.name)
        manager.settle()
        manager.enable(record.name)
    except BaseException:
        with suppress(Exception):  # of this one nothing is said: the first error is
            _put_back(manager, record.name, before, answers=not absent, was_up=was_up)
        raise
    return Installed(linger=manager.linger())


def remove(manager: ServiceManager, name: str) -> ServiceRecord:
    """Stop the service, and remove its file. Return what was installed. RunError, UsageError."""
    record = _loaded_or_damaged(manager, name)
    answers = not manager.absent()
    if answers:
        if manager.state(name).up:
            manager.stop(name)
        manager.forget(name)
    file = manager.file_of(name)
    for wanted in file.parent.glob(f"*.wants/{file.name}"):  # what `enable` made, where no manager answers
        wanted.unlink(missing_ok=True)
    _unlink(manager, name)
    if answers:
        manager.settle()
    return record


def _loaded_or_damaged(manager: ServiceManager, name: str) -> ServiceRecord:
    try:
        return manager.load(name)
    except RunError:  # damaged, and to be removed for just that
        file = manager.file_of(name)
        return ServiceRecord(name=name, argv=("",), folder=file.parent, node_dir=file.parent, environment={})


def _put_back(manager: ServiceManager, name: str, before: bytes | None, *, answers: bool, was_up: bool) -> None:
    """Have the file and the service as they were. RunError."""
    file = manager.file_of(name)
    if before is None:
        if answers and file.exists():
            with suppress(RunError):
                manager.stop(name)
                manager.forget(name)
        _unlink(manager, name)
    elif file.read_bytes() != before:
        _write(manager, name, before)
    if answers:
        manager.settle()
    if was_up:
        manager.start(name)


def _write(manager: ServiceManager, name: str, data: bytes) -> None:
    file = manager.file_of(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, data)
    except OSError as error:
        raise RunError(
            f"cannot write {file}: {error.strerror or error}", "make room there, or let it be written to"
        ) from error


def _unlink(manager: ServiceManager, name: str) -> None:
    file = manager.file_of(name)
    try:
        file.unlink(missing_ok=True)
        sync_folder(file.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"cannot remove {file}: {error.strerror or error}", "remove it by hand") from error
