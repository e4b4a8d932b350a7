"""The library of detectors, imported where a node uses one: it takes seconds, and is an extra."""

from typing import Any

from node.system.errors import UsageError


def detectors_of_river() -> Any:
    """Return river's detectors. Raises UsageError where it is not installed."""
    try:
        from river import drift
    except ImportError as error:
        raise UsageError(
            "shift detectors are river's, which is not installed", "pip install 'p2ptrain[shift]'"
        ) from error
    return drift
