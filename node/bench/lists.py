"""Lists as they are written on the command line: `a,b`, `all`, `0,1,2`, `0-2`."""

import argparse
import math
from collections.abc import Sequence

from node.system.errors import UsageError


def names_in(text: str, every: Sequence[str], option: str, *, also: Sequence[str] = ()) -> list[str]:
    """Parse `a,b` as a list, each once; `all` is every one there is, but for those `also` known. UsageError on a name
    that does not exist, or none at all.

    A composition (`nnm+trimmed_mean`) is left to the caller, who builds it.
    """
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise UsageError(f"{option} names nothing", f"there are: {', '.join(every)}")
    for name in found:
        if name != "all" and "+" not in name and name not in (*every, *also):
            raise UsageError(f"{option}: there is no {name!r}", f"there are: {', '.join((*every, *also))}, all")
    return list(dict.fromkeys(each for name in found for each in (every if name == "all" else [name])))


def numbers_in(text: str, option: str, minimum: int = 0) -> list[int]:
    """Parse `0,1,2` or `0-2` as a list, each once. UsageError when it is none."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.strip().partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError:
        found = []
    if not found or min(found) < minimum:
        raise UsageError(f"{option} {text!r} is no list of numbers from {minimum} on", f"for example {option} 1,2,3")
    return list(dict.fromkeys(found))


def some_numbers(text: str) -> list[int]:
    """Parse as `numbers_in`, for argparse's `type`. ArgumentTypeError when it is none."""
    try:
        return numbers_in(text, "")
    except UsageError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 0-4 or 1,2,3") from None


def decimals_in(text: str, option: str) -> list[float]:
    """Parse `2.0,1.9` as a list of numbers above 0, each once. UsageError when it is none."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise UsageError(f"{option} {text!r} is no list of numbers above 0", f"for example {option} 5,20")
    return list(dict.fromkeys(found))
