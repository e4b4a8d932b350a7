"""The text of a systemd user unit. Pure functions.

systemd has a quoting of its own (systemd.syntax(7), systemd.service(5)): specifiers as `%h` are expanded everywhere,
escapes as C has them inside quotes, and variables as `$HOME` in the arguments of a command. The prefix `:` turns off
the last one for the whole line, so a `$` stands for itself.
"""

from typing import Final

from node.services.service_record import NO_INVITE, ServiceRecord
from node.system.errors import UsageError

SECTION: Final = "[X-p2ptrain]"
"""systemd ignores sections whose names begin with X-."""
KEY: Final = "Service="

RESTART_S: Final = 30
"""Seconds before another start: a port is free again by then, and starting costs a small share of a core. Chosen."""

STARTS: Final = 20
WITHIN_S: Final = 6 * 3600
"""At most STARTS starts in WITHIN_S seconds: ten minutes and more for a network or a disk to come back, and an end for
what no start mends, such as a diverged run or a revoked membership. Chosen."""

STOP_S: Final = 600
"""Seconds for the end of a step, the goodbye and the checkpoint before systemd kills the node: 60 GB at 100 MB/s.
Chosen. A small model takes five. At log-out and shutdown the user's manager has two minutes of its own for all."""

_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "%": "%%"}


_UNSAFE: Final = frozenset("\"'\\")
"""What a program's path may not have, beside control characters (systemd's `string_is_safe`): the unit would have a
fatal error."""


def quoted(word: str) -> str:
    """Return the word as it stands in a unit file: in quotes, and on one line. UsageError for bytes that are not
    UTF-8."""
    if any("\ud800" <= char <= "\udfff" for char in word):
        raise UsageError(f"{word!r} is not valid UTF-8", "a unit file cannot hold it: give it another name")
    return '"' + "".join(map(_escaped, word)) + '"'


def command_line(argv: tuple[str, ...]) -> str:
    """Return the value of ExecStart= that starts these words, each as it is. UsageError for a program that systemd does
    not start, in quotes or not."""
    if any(char in _UNSAFE or ord(char) < 0x20 or ord(char) == 0x7F for char in argv[0]):
        hint = "have the environment in a folder without quotes and backslashes in its name"
        raise UsageError(f"systemd starts no program of this name: {argv[0]}", hint)
    return ":" + " ".join(map(quoted, argv))


def unit(record: ServiceRecord, env_file: str) -> str:
    """Return the unit file. `env_file`: a file of variables that the owner may write, for secrets. UsageError for a
    folder that cannot stand in it."""
    environment = "".join(
        f"Environment={quoted(f'{name}={value}')}\n" for name, value in sorted(record.environment.items())
    )
    return f"""\
# Written by `p2ptrain service install`, which --replace writes anew. To change it: systemctl --user edit.
[Unit]
Description=p2ptrain node {record.name}
StartLimitIntervalSec={WITHIN_S}
StartLimitBurst={STARTS}

[Service]
Type=exec
WorkingDirectory={_path(str(record.folder))}
ExecStart={command_line(record.argv)}
{environment}EnvironmentFile=-{_path(env_file)}
UnsetEnvironment={NO_INVITE}
# events.jsonl in the run folder has what a node prints. Errors go to the journal.
StandardOutput=null
# 130: stopped by a signal, with a checkpoint. 2: a mistake in the options, which no other start mends.
SuccessExitStatus=130
Restart=on-failure
RestartSec={RESTART_S}
RestartPreventExitStatus=2
# SIGTERM to the node alone: it ends its trainer itself.
KillMode=mixed
TimeoutStopSec={STOP_S}
# The user of this machine comes first.
Nice=10
CPUWeight=20
IOWeight=20
IOSchedulingPriority=7
OOMScoreAdjust=500
LimitNOFILE=4096
# What a user's manager can do without namespaces, which some systems deny it.
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
SystemCallArchitectures=native

[Install]
WantedBy=default.target

{SECTION}
{KEY}{record.to_json()}
"""


def record_line(text: str) -> str | None:
    """Return the record in a unit file; None where it is not one of ours."""
    _, found, after = text.partition(f"\n{SECTION}\n{KEY}")
    return after.splitlines()[0] if found and after else None


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\x{ord(char):02x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def _path(folder: str) -> str:
    """A path that stands alone after `=`: systemd reads no quotes there."""
    if (
        folder != folder.strip()
        or folder.endswith("\\")
        or any(ord(char) < 0x20 or "\ud800" <= char <= "\udfff" for char in folder)
    ):
        raise UsageError(f"the folder {folder!r} cannot stand in a unit file", "run this in a folder with a plain name")
    return folder.replace("%", "%%")
