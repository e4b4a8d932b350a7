"""Cells that are scenarios of `p2ptrain simulate`: real nodes on a virtual clock, or thousands without their protocol.

Figures are those of its `--json` line. The curve is read off the honest nodes' logs: steps and bytes are counted there,
and seconds are virtual.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from node.config.toml_source import MAX_FILE_BYTES
from node.events.event_types import Evaluated, LearnerStarted, RoundTrained, Started
from node.events.log import read_events
from node.planning.calibrated import as_measured
from node.simulation.course import check_course, play_course
from node.simulation.scenario_file import load_scenario
from node.simulation.sealed import hashes_are_fixed
from node.simulation.verdict import judged
from node.sweep.base import CellRow, Settings
from node.system.errors import EXIT_FAILED, RunError, UsageError
from node.system.run_dir import EVENTS, make_dir

TOP: Final = "scenario."
"""Before the keys of a scenario that stand in no table: mode, day_s, until_s."""

FILE: Final = TOP + "file"
UNTIL: Final = TOP + "until_s"
CALIBRATION: Final = TOP + "calibration"
SETS: Final = TOP + "sets"
"""Settings as the texts of `simulate --set`, which come last."""
NO_SETTINGS: Final = (FILE, UNTIL, CALIBRATION, SETS)
"""Keys that are laid over the file in another way than the rest."""

PROGRAM: Final = """
import sys
from node.system.parent_death import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from p2ptrain.__main__ import main
sys.exit(main())
"""
"""`p2ptrain` as a process that ends with the one that started it."""

Figures = tuple[int, float, float]
"""Inner steps of a node, bytes that it sent, held-out loss."""


class ScenarioCells:
    """A scenario file with settings over it, as `--set` has them: `scenario.file`, `scenario.mode` or any other key
    of it that stands in no table, and those that do; `scenario.sets` has a list of its texts, `scenario.calibration` a
    file. The seed is the scenario's and, unless a setting says otherwise (None: as the file says), training's.

    It runs in this process where hashes are fixed (PYTHONHASHSEED=0), and else in one of its own.
    """

    name = "scenario"

    def document(self, settings: Settings, seed: int) -> Mapping[str, Any]:
        """Return the file's content by its digest, and what is set over it. Mistakes in settings are found when it is
        run."""
        rest = {key: value for key, value in settings.items() if key not in (FILE, CALIBRATION)}
        found = {"file": _digest_of(_file_of(settings), "scenario", FILE), "seed": seed, **rest}
        if isinstance(measured := settings.get(CALIBRATION), str):
            found["calibration"] = _digest_of(Path(measured), "calibration", CALIBRATION)
        return found

    def run(self, settings: Settings, seed: int) -> CellRow:
        """Simulate it. `broken`: invariants of the file that do not hold, which are findings. UsageError on what the
        scenario cannot be, RunError on what failed."""
        with tempfile.TemporaryDirectory(prefix="p2ptrain-cell-") as folder:
            out = Path(folder) / "run"
            found = _here(settings, seed, out) if hashes_are_fixed() else _elsewhere(settings, seed, out)
            curve, steps, published, metric = _measured(found, out)
        return {
            **{key: found.get(key) for key in KEPT},
            "loss": found.get("loss_mean"),
            "metric": metric,
            "sent_bytes": found.get("bytes_sent_mean"),
            "published_bytes": published,
            "steps": steps,
            "seconds": found.get("virtual_s"),
            "curve": curve,
        }


KEPT: Final = (
    "events_digest", "mode", "crypto", "wall_s", "nodes", "honest", "finished", "rounds_min", "rounds_max",
    "bytes_sent_max", "staleness_max", "honest_bans", "broken",
)  # fmt: skip
"""What is kept of the result as it stands."""


def _file_of(settings: Settings) -> Path:
    path = settings.get(FILE)
    if not isinstance(path, str):
        raise UsageError(f"a scenario needs its file: {FILE}", "such as configs/scenarios/campus.toml")
    return Path(path)


def _digest_of(path: Path, what: str, key: str) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is too large for a {what}")
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}", f"set {key} in [base]") from None


def _sets(settings: Settings, seed: int) -> list[str]:
    """Return the settings as texts of `--set`."""
    told = [
        # JSON and TOML write numbers, texts, booleans and lists alike.
        f"{key.removeprefix(TOP)}={json.dumps(value, ensure_ascii=False)}"
        for key, value in {"train.seed": seed, **settings}.items()
        if key not in NO_SETTINGS and value is not None
    ]
    return [*told, *settings.get(SETS, ())]


def _here(settings: Settings, seed: int, out: Path) -> dict[str, Any]:
    """Simulate in this process; return the result as JSON values."""
    until_s = settings.get(UNTIL)
    loaded = load_scenario(_file_of(settings), _sets(settings, seed), seed=seed, until_s=until_s)
    if CALIBRATION in settings:
        loaded = as_measured(loaded, Path(settings[CALIBRATION]))
    check_course(loaded)
    make_dir(out)
    return judged(play_course(loaded, out)).to_json()


def _elsewhere(settings: Settings, seed: int, out: Path) -> dict[str, Any]:
    """Simulate in a process of its own, whose hashes are fixed."""
    words = ["simulate", str(_file_of(settings)), "--seed", str(seed), "--json"]
    for option, key in (("--until", UNTIL), ("--calibration", CALIBRATION)):
        words += [option, str(settings[key])] if key in settings else []
    for text in _sets(settings, seed):
        words += ["--set", text]
    return _simulated([*words, "--out", str(out)])


def _simulated(words: list[str]) -> dict[str, Any]:
    """Return the result's JSON. It ends with this process, however that ends."""
    its_life, life = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(its_life), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            pass_fds=(its_life,),
            process_group=0,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
    finally:
        os.close(its_life)
        os.close(life)
    try:
        found = json.loads(done.stdout) if done.returncode in (0, EXIT_FAILED) else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    said = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1].removeprefix("error: ")
    raise UsageError(said) if done.returncode == 2 else RunError(said)


def _measured(found: Mapping[str, Any], out: Path) -> tuple[list[list[float]], int | None, float | None, str]:
    """Return the curve, the inner steps and the bytes published of a node, means over the honest nodes' logs; and what
    losses are measured in."""
    liars = tuple(f"{each['group']}-" for each in found.get("groups", ()) if each.get("byzantine"))
    logs = [log for log in sorted(out.glob(f"*/{EVENTS}")) if not log.parent.name.startswith(liars or ("\0",))]
    by_round: dict[int, list[Figures]] = {}
    ends: list[tuple[int, int]] = []
    metric = ""
    for log in logs:
        evaluated, end, metric = _read(log)
        ends.append(end)
        for closed, figures in evaluated.items():
            by_round.setdefault(closed, []).append(figures)
    curve = [
        [_mean(steps), _mean(sent), _mean(losses)]
        for closed in sorted(by_round)
        for steps, sent, losses in [zip(*by_round[closed], strict=True)]
        if 2 * len(by_round[closed]) > len(logs)
    ]
    if not ends:
        return curve, None, None, metric
    return curve, round(fmean(steps for steps, _ in ends)), fmean(published for _, published in ends), metric


def _mean(values: Iterable[float]) -> float:
    return round(fmean(values), 6)


def _read(log: Path) -> tuple[dict[int, Figures], tuple[int, int], str]:
    """Return what the node was when it was evaluated, by round; its steps and bytes published at the end; and what its
    loss is measured in."""
    metric = ""
    steps = sent = before = published = 0
    found: dict[int, Figures] = {}
    for event in read_events(log):
        match event:
            case Started():
                before, sent = before + sent, 0
                metric = (isinstance(event, LearnerStarted) and event.metric) or metric
            case RoundTrained():
                steps += event.steps
                sent = event.bytes_sent or 0
                published += event.payload_bytes
            case Evaluated() if event.eval_loss is not None:
                found[event.round] = (steps, before + sent, event.eval_loss)
    return found, (steps, published), metric
