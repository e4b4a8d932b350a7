"""`swarm members` on a terminal of 80 columns: who is a member is readable, whatever people were named."""

from typing import Any

import pytest

from node.cli.swarm_text import listed, out
from node.swarm.parsing import day, moment

JOINED, ENDS = 1_790_000_000, 1_830_000_000


def row(number: int, **changed: Any) -> dict[str, Any]:
    common = {"role": "trainer", "name": "", "since": JOINED, "expires": None, "grant": "ab" * 32, "revoked": None}
    return {"peer": f"12D3KooW{number:044d}", **common, "state": "member", "connected": True, "keys": 1, **changed}


@pytest.mark.parametrize("ends", [None, ENDS])
def test_states_and_days_are_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: int | None
):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        row(1, name="the admin's own node", expires=ends),
        row(2, role="bootstrap", name="a name of several words that is too long", state="expired"),
        row(3, role="observer", revoked="it left in a hurry", state="revoked"),
    ]
    out(listed(rows, "lab"), json=False)
    said = capsys.readouterr().out
    assert "…" not in said
    assert all(len(line.rstrip()) <= 80 for line in said.splitlines())
    for word in ("member", "expired", "revoked:", "hurry", "bootstrap", "observer", day(JOINED), "abababab"):
        assert word in said
    assert (day(ENDS) in said) is ("ends" in said.split()) is (ends is not None), "shown where there is one"
    assert listed(rows, "lab")[0]["members"][0]["since"] == JOINED, "and programs have the second"


def test_a_member_that_claims_to_have_joined_beyond_all_calendars_hides_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Members pass on what a redeemer signed, whatever time it claims; an admin is to see whom to revoke."""
    rows = [row(1), row(2, since=2**53 - 1, expires=2**53 - 1)]
    out(listed(rows, "lab"), json=False)
    said = capsys.readouterr().out
    assert said.count("after 9999") == 2
    assert len(said.splitlines()) == 3
    assert moment(2**53 - 1) == f"second {2**53 - 1}"
    assert moment(JOINED) == "2026-09-21 14:13 UTC"
