"""Whether a command that is shown somewhere has arguments and settings that there are. Nothing is run."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

from node.cli.app import commands
from node.config.schema import known_keys
from node.config.toml_source import parse_set
from node.participation import PARTICIPATION
from node.simulation.scenario_file import load_scenario
from node.system.errors import UsageError

ROOT = Path(__file__).parents[1]
SETS = {"--set", "-s"}
OWN = {"sync.step", "KEY", "..."}
"""Settings that a page declares itself, in the plug-in that it shows; and the words that stand for any."""


def shown(text: str) -> list[str]:
    """The commands of a page: lines of a block that begin with the program, and what stands between backticks."""
    joined = text.replace("\\\n", " ")
    blocks = re.findall(r"^(?: {4,}|\$ |\t)(?:\$ )?(?:\.venv/bin/)?(p2ptrain (?:--)?[a-z].*)$", joined, re.MULTILINE)
    spans = re.findall(r"`(p2ptrain (?:--)?[a-z][^`]*)`", joined.replace("\n", " "))
    return [*blocks, *spans]


def wrong(command: str) -> str:
    """Say what is wrong with a command, in one line; empty: nothing."""
    words = shlex.split(command, comments=True)[1:]
    found: Any = commands()
    context = found.make_context("p2ptrain", [], resilient_parsing=True)
    context.resilient_parsing = False  # from here on it raises
    context.allow_interspersed_args = True  # options after arguments, as commands take them and groups do not
    while words and not words[0].startswith("-") and hasattr(found, "commands"):
        name = words.pop(0)
        if name not in found.commands:
            return f"no command {name}"
        found = found.commands[name]
    try:
        found.make_parser(context).parse_args(list(words))
    except Exception as error:  # typer's own copy of click has the class
        return f"{type(error).__name__}: {error}"
    if command.startswith("p2ptrain simulate "):
        return scenario_mistake(words)
    keys = [after.partition("=")[0] for before, after in pairwise(words) if before in SETS]
    return ", ".join(f"no setting {key}" for key in keys if key not in OWN and not known(key))


def scenario_mistake(words: list[str]) -> str:
    """A scenario's keys are its own: what is shown is read, where it names one of the library."""
    path = ROOT / words[0]
    if not path.is_file():
        return f"no scenario {words[0]}" if "/" in words[0] else ""  # else a word for any file
    try:
        load_scenario(path, [after for before, after in pairwise(words) if before in SETS])
    except UsageError as error:
        return error.message
    return ""


def known(key: str) -> bool:
    """Whether a setting of this name exists. Every key of a section that passes on options of its member does."""
    section, name, _ = parse_set(f"{key}=0")
    sections = known_keys()
    policy, _, option = name.partition(".")
    if section == "participation" and option and policy in PARTICIPATION.names():
        return option in PARTICIPATION.options(policy)
    return section in sections and ((names := sections[section]) is None or name in names)
