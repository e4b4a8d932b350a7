"""tests/vectors/*.json, read."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "vectors"
TEXT = {
    *("kind", "codec", "sender", "peer_id", "addresses", "members", "name", "request", "region"),
    *("what", "reason", "detail", "verdict", "place"),
}
"""Keys whose strings are text; those of all others are bytes in hex."""


def meant(value: Any, key: str = "") -> Any:
    """What a vector's JSON stands for: hex is bytes, but for what is text by its key."""
    if isinstance(value, dict):
        return (
            bytes(value["zeros"]) if set(value) == {"zeros"} else {name: meant(it, name) for name, it in value.items()}
        )
    if isinstance(value, list):
        return [meant(item, key) for item in value]
    return bytes.fromhex(value) if isinstance(value, str) and key not in TEXT else value


def of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


def cases(name: str, part: str) -> list[Any]:
    return [pytest.param(meant(case), id=case.get("what", str(place))) for place, case in enumerate(of(name)[part])]
