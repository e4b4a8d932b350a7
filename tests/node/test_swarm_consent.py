"""What an admin may not decide for a member's machine: which code it runs, where it listens, what it writes."""

from pathlib import Path
from typing import Any

import pytest
from swarm_harness import founded, joined, line_of

from gossip.membership import Role
from node.swarm import agreed_settings
from node.swarm.accept_invite import membership, read_invite
from node.system.errors import UsageError

CODE = "os:system"
TASK: dict[str, Any] = {"name": CODE, "options": {"command": "true"}}
RECIPE: dict[str, Any] = {"task": TASK, "train": {"rounds": 3}}


def of_strange_settings(monkeypatch: pytest.MonkeyPatch, section: str, key: str, value: object) -> None:
    real = agreed_settings.settings_of

    def settings(*given: Any) -> agreed_settings.Table:
        table = real(*given)
        return {**table, section: {**table.get(section, {}), key: value}}  # type: ignore[dict-item]

    monkeypatch.setattr("node.swarm.agreed_settings.settings_of", settings)


def test_a_line_runs_no_code_that_the_newcomer_has_not_named(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab", RECIPE)
    with pytest.raises(UsageError, match="os:system on your machine") as refused:
        membership(tmp_path / "a" / "node", {}, read_invite(made.line))
    assert "--task os:system" in str(refused.value.hint)
    assert not (tmp_path / "a").exists()
    with pytest.raises(UsageError, match="contradicts the swarm"):
        membership(tmp_path / "a" / "node", {"task": {"name": "os:popen"}}, read_invite(made.line))


def test_who_has_named_it_once_is_not_asked_again(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab", RECIPE)
    assert membership(made.folder.node_dir, {}, None) is not None
    joined(tmp_path / "a" / "node", made.line, {"task": {"name": CODE}})
    again = membership(tmp_path / "a" / "node", {}, None)
    assert again is not None
    assert again.raw["task"]["name"] == CODE


def test_nodes_that_train_nothing_run_no_task(tmp_path: Path) -> None:
    made = founded(tmp_path / "lab", RECIPE)
    joined(tmp_path / "a" / "node", line_of(made.folder, role=Role.BOOTSTRAP))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("node", "metrics_host", "0.0.0.0"), ("network", "relay", True), ("train", "device", "cuda"), ("logs", "to", "x")],
)
def test_a_manifest_sets_nothing_of_a_machine_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str, key: str, value: object
) -> None:
    of_strange_settings(monkeypatch, section, key, value)
    made = founded(tmp_path / "lab")
    with pytest.raises(UsageError, match=rf"{section}\.{key}, which is each machine's own"):
        membership(tmp_path / "a" / "node", {}, read_invite(made.line))
