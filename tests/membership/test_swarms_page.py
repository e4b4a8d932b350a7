"""docs/private-swarms.md says what the code does: bounds, examples, reasons."""

import re
from pathlib import Path

from swarms_page import bounds, examples

from gossip.membership import (
    Role,
    ShortInvite,
    parse_any,
    parse_certificate,
    parse_invite_code,
    parse_manifest,
    parse_revocation,
    parse_rotation,
)
from gossip.membership.invite import parse_invite
from gossip.membership.manifest import Policy
from gossip.membership.signed import SignedKind

PAGE = (Path(__file__).parents[2] / "docs" / "private-swarms.md").read_text(encoding="utf-8")


def shown() -> dict[str, bytes]:
    blocks = re.findall(r"^```hex (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return {name: bytes.fromhex(text) for name, text in blocks}


def shown_line(prefix: str = "p2p1") -> str:
    start = PAGE.index(f"    {prefix}")
    return "".join(PAGE[start:].partition("\n\n")[0].split())


def test_every_bound_stands_in_the_page():
    rows = re.findall(r"^\| `(\w+\.[A-Z_]+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: int(value) for name, value in rows} == bounds()
    assert set(re.findall(r"`((?:limits|membership_limits|keyfile)\.[A-Z_]+)`", PAGE)) == set(bounds())


def test_the_examples_are_what_the_code_makes():
    assert {**shown(), "line": shown_line(), "short line": shown_line("p2p2")} == examples()


def test_the_examples_are_what_the_code_reads():
    blocks = shown()
    read = parse_invite_code(shown_line())
    assert read.chain.newest == parse_manifest(blocks["manifest"])
    assert read.invite == parse_invite(blocks["invite"])
    assert parse_invite(blocks["bound"]).region == "east"
    short = parse_any(shown_line("p2p2"))
    assert isinstance(short, ShortInvite)
    assert short.invite == read.invite
    assert short.complete(read.chain).chain is read.chain
    assert parse_certificate(blocks["certificate"]).root == parse_rotation(blocks["rotation"]).old
    assert parse_revocation(blocks["revocation"]).target == parse_rotation(blocks["rotation"]).new


def test_every_name_stands_in_the_page():
    for name in (*SignedKind, *Role, *Policy):
        assert f"`{name.value}`" in PAGE, name
