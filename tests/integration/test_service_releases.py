"""A service under a real systemd, upgraded in place by a real pip from one release to others, made of this tree.

Where no systemd can be had, the same upgrades run without one: then pip and the checks are real, and no node is.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from systemd_harness import can_run, in_systemd
from wheels_harness import OFFLINE, environment, release, wheel_of

from gossip.core.limits import PROTOCOL_VERSION

pytestmark = [pytest.mark.thorough, pytest.mark.paired]

LIMITS = "gossip/core/limits.py"
NEXT_WIRE = {
    LIMITS: (f"PROTOCOL_VERSION: Final = {PROTOCOL_VERSION}", f"PROTOCOL_VERSION: Final = {PROTOCOL_VERSION + 1}")
}
FAILS = {
    "node/roles/trainer.py": (
        "    config = with_kept_region(config, node_dir)\n    held",
        "    raise RunError('broken')\n    held",
    )
}
DOES_NOT_IMPORT = {"node/cli/app.py": ("import traceback\n", "import traceback\nimport not_there_at_all\n")}

NODE = "--run-dir 'a run' --task digits --rounds 1000000 --set train.threads=1 --listen /ip4/127.0.0.1/tcp/0"
TRICKY = "'100% of $HOME \"\\x41 ; %h'"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("releases")
    changes = {"0.1.0": {}, "0.1.1": {}, "0.2.0": NEXT_WIRE, "0.1.2": FAILS, "0.1.3": DOES_NOT_IMPORT}
    return {it: wheel_of(release(folder / it, it, changed), folder / "wheels") for it, changed in changes.items()}


def a_user(home: Path) -> dict[str, str]:
    """Whose service it is."""
    (home / "work").mkdir(parents=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "PYTHON", "SUDO_"))}
    return {**kept, **OFFLINE, "HOME": str(home), "COLUMNS": "200"}


@pytest.mark.skipif(not can_run(), reason="no systemd of one's own can be had here")
def test_a_service_is_upgraded_in_place_and_what_does_not_do_is_taken_back(tmp_path: Path, wheels) -> None:
    program = environment(tmp_path / "an env", wheels["0.1.0"]).with_name("p2ptrain")
    script = f"""
cd "$HOME/work"; p='{program}'
status() {{ "$p" service status --json > "$HOME/$1"; }}
"$p" service install -- {NODE} --set network.swarm={TRICKY}
until grep -q '"event": *"round"' 'a run'/node/events.jsonl; do sleep 0.2; done
status first
for to in {wheels["0.2.0"]} {wheels["0.1.1"]} {wheels["0.1.2"]} {wheels["0.1.3"]}; do
    code=0; "$p" service upgrade --to "$to" >> "$HOME/out" 2> "$HOME/err" || code=$?
    echo "$code $("$p" --version) $(tail -n 1 "$HOME/err")" >> "$HOME/told"
done
until [ "$(tail -n 1 'a run'/node/events.jsonl | grep -c '"event": *"round"')" = 1 ]; do sleep 0.2; done
status last
systemctl --user kill --signal=KILL --kill-who=main p2ptrain-node
until [ "$(systemctl --user show -P SubState p2ptrain-node)" = auto-restart ]; do sleep 0.2; done
status killed
"$p" service remove
[ -z "$(systemctl --user list-units --all --plain --no-legend 'p2ptrain-*')" ]
"""
    done = in_systemd(script, a_user(tmp_path / "home"))
    assert done.returncode == 0, done.stdout + done.stderr
    home = tmp_path / "home"
    told = (home / "told").read_text().splitlines()
    assert [line.split(" ", 3)[:3] for line in told] == [
        ["2", "p2ptrain", "0.1.0"],
        ["0", "p2ptrain", "0.1.1"],
        ["1", "p2ptrain", "0.1.1"],
        ["1", "p2ptrain", "0.1.1"],
    ]
    assert (
        f"p2ptrain 0.2.0 speaks wire version {PROTOCOL_VERSION + 1}, and the run speaks {PROTOCOL_VERSION}" in told[0]
    )
    assert "p2ptrain 0.1.2 does not do: node failed (broken); p2ptrain 0.1.1 is back and started" in told[2]
    assert "No module named 'not_there_at_all'); p2ptrain 0.1.1 is back and started" in told[3]
    assert "started again: node" in (home / "out").read_text()
    (first,), (last,), (killed,) = (json.loads((home / name).read_text()) for name in ("first", "last", "killed"))
    assert first["service"]["state"] == last["service"]["state"] == "running"
    assert last["answers"] is True
    assert (killed["service"]["state"], killed["node"]["state"]) == ("waiting", "dead")
    log = home / "work" / "a run" / "node" / "events.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    rounds = [it["round"] for it in events if it["event"] == "resumed"]
    assert len(rounds) >= 3
    assert rounds == sorted(rounds)
    assert first["node"]["rounds_done"] <= rounds[0]
    assert last["node"]["rounds_done"] >= rounds[-1]
    assert not [it for it in events if it["event"] == "checkpoint_skipped"]
    assert 'swarm = "100% of $HOME \\"\\\\x41 ; %h"' in (log.parent / "config.toml").read_text()
    assert not list((home / ".config").rglob("*.service"))


def test_pip_replaces_the_release_and_what_does_not_do_is_taken_back(tmp_path: Path, wheels) -> None:
    program = environment(tmp_path / "env", wheels["0.1.0"]).with_name("p2ptrain")
    user = a_user(tmp_path / "home")

    def ran(*words: object) -> tuple[int, str]:
        done = subprocess.run([program, *map(str, words)], env=user, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def upgraded(to: object) -> tuple[int, str, str]:
        code, said = ran("service", "upgrade", "--to", to)
        return code, said, ran("--version")[1].strip()

    assert upgraded(wheels["0.2.0"])[::2] == (2, "p2ptrain 0.1.0")
    code, said, version = upgraded(wheels["0.1.1"])
    assert (code, version) == (0, "p2ptrain 0.1.1")
    kept = tmp_path / "home" / ".local" / "state" / "p2ptrain" / "before" / "p2ptrain-0.1.0-py3-none-any.whl"
    assert str(kept) in said
    code, said, version = upgraded(wheels["0.1.3"])
    assert (code, version) == (1, "p2ptrain 0.1.1")
    assert "p2ptrain 0.1.1 is back" in said
    assert upgraded("9.9.9")[::2] == (1, "p2ptrain 0.1.1")
    assert upgraded(wheels["0.1.1"].parents[1] / "0.1.1")[::2] == (0, "p2ptrain 0.1.1")  # a folder with the sources
