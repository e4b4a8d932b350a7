"""The packages of the extra `hf`, imported where they are needed: no other task waits for them, or misses them."""

import importlib
import logging
from types import ModuleType
from typing import Final

from p2ptrain.tasks.base import TaskError

QUIET: Final = ("transformers", "peft", "bitsandbytes")
"""Libraries whose warnings are told by us where they matter: a line a layer would bury them."""


def require(module: str, *, install: str = "p2ptrain[hf]") -> ModuleType:
    """Return the imported `module`. TaskError, in one line that says what to install, where it is missing."""
    if module in QUIET:
        for each in QUIET:  # before: bitsandbytes warns while it is imported, which peft does, too
            logging.getLogger(each).setLevel(logging.ERROR)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise TaskError(f"{missing} is not installed; it comes with: pip install '{install}'") from error
    if module == "transformers":
        found.utils.logging.disable_progress_bar()
    return found
