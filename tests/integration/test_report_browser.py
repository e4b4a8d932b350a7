"""A report in a real browser, as a file on disk: it draws itself, plays, answers the keys, and asks nobody anything."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_harness import CHROMIUM, Browser
from swarm_folders import MEMBER, make_run, member_events, member_round, tell
from test_swarm_browser import check_axe

from node.bench.quality import parquet as tables
from node.events.log import EventLog, to_line
from node.reporting.report import make_report
from node.system.run_dir import EVENTS

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)"), pytest.mark.slow]

DRAWN = "document.getElementById('made')?.textContent.startsWith('Made ')"
NOW = "document.getElementById('now').textContent"
SLIDER = "Number(document.getElementById('slider').value)"
LOOKS = ((1200, False), (1200, True), (390, False), (320, True))
"""Widths and themes: light, dark, a phone, a small one."""
HOSTILE = '</script><img src=x onerror="window.struck=1"><script>window.struck=1</script>'


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        found.ask("Network.enable")
        yield found


def opened(browser: Browser, paths: list[Path], out: Path) -> None:
    make_report(paths, out, command=f"p2ptrain report {HOSTILE}")
    browser.complaints.clear()
    browser.resize(1200, 900)
    browser.theme(dark=False)
    browser.open(out.as_uri())
    browser.until(DRAWN)


def looked_at(browser: Browser) -> None:
    """In every look nothing sticks out; charts are painted; the console is silent; nothing was asked for."""
    for width, dark in LOOKS:
        browser.resize(width, 900)
        browser.theme(dark=dark)
        browser.until(f"innerWidth === {width}")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(16, 21, 26)" if dark else "rgb(255, 255, 255)")
        browser.until("[...document.querySelectorAll('.plot canvas')].every(canvas => canvas.width > 50)")
    check_axe(browser)
    assert browser.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)") == []
    assert browser.evaluate("window.struck === undefined && document.images.length === 0")
    assert browser.evaluate("document.scripts.length") == 2
    assert browser.complaints == []


def run_with_a_hostile_node(run: Path) -> Path:
    make_run(run, 3, rounds=6, finished=True)
    (run / "node-3").mkdir()
    with EventLog(run / "node-3" / EVENTS) as log:
        start: dict[str, Any] = {**next(member_events(3, rounds=0)), "compressor": HOSTILE, "metric": HOSTILE}
        tell(log, start)
        tell(log, {"ts": 1.0, "event": "banned", "peer": HOSTILE, "detail": HOSTILE, "reason": HOSTILE})
        tell(log, {**member_round(4), "staleness": {HOSTILE: 1, "__proto__": 1, f"{MEMBER}1": 0}})
        tell(log, {"ts": 4.0, "event": "failed", "error": HOSTILE, "hint": None})
    return run


def test_a_run(browser: Browser, tmp_path: Path) -> None:
    opened(browser, [run_with_a_hostile_node(tmp_path / "run")], tmp_path / "report.html")
    assert browser.evaluate("document.querySelectorAll('#tiles .tile').length") == 8
    assert browser.evaluate("document.querySelector('#tiles b').textContent") == "688 kB"
    names = "[...document.querySelectorAll('#tables tbody th')].map(head => head.textContent)"
    assert browser.evaluate(names) == [f"node-{index}" for index in range(4)]
    charts = "[...document.querySelectorAll('.panel.chart')]"
    count = browser.evaluate(f"{charts}.filter(panel => panel.querySelector('details table tbody tr')).length")
    assert count == browser.evaluate(f"{charts}.length") >= 5
    assert browser.evaluate("document.querySelectorAll('#exchanges .member').length") == 6, "two have no log here"
    note = browser.evaluate("document.getElementById('timeline-note').textContent")
    assert note == "2 members without a log here, as others see them."
    assert HOSTILE in browser.evaluate("document.getElementById('moments').textContent")
    assert HOSTILE in browser.evaluate("document.querySelector('.copy code').textContent")
    looked_at(browser)


def test_the_timeline_plays(browser: Browser, tmp_path: Path) -> None:
    for index in range(4):
        log = tmp_path / "run" / f"node-{index}" / EVENTS
        log.parent.mkdir(parents=True)
        log.write_text("".join(map(to_line, member_events(index, rounds=30))))
    opened(browser, [tmp_path / "run"], tmp_path / "report.html")
    last = browser.evaluate("Number(document.getElementById('slider').max)")
    assert last > 5
    assert browser.evaluate(SLIDER) == last
    end = browser.evaluate(NOW)
    browser.evaluate("document.getElementById('play').click()")
    browser.until(f"{SLIDER} > 0 && {SLIDER} < {last} && {NOW} !== {end!r}")
    assert browser.evaluate("document.getElementById('play').textContent") == "Pause"
    browser.evaluate("document.getElementById('play').click()")
    at = browser.evaluate(SLIDER)
    browser.evaluate("new Promise(done => setTimeout(done, 300))")
    assert browser.evaluate(SLIDER) == at, "it stands"
    browser.evaluate("document.getElementById('moments').focus()")
    for key, where in (("Home", 0), ("ArrowRight", 1), ("End", last), ("ArrowLeft", last - 1)):
        press(browser, key)
        assert browser.evaluate(SLIDER) == where, key
    press(browser, " ")
    browser.until(f"document.getElementById('play').textContent === 'Play' && {SLIDER} === {last}")
    browser.evaluate("document.querySelector('#moments button').click()")
    assert browser.evaluate(f"{SLIDER} < {last}")
    assert browser.evaluate("document.querySelectorAll('#moments .current').length") == 1
    assert browser.complaints == []


def press(browser: Browser, key: str) -> None:
    code = {"Home": 36, "End": 35, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}[key]
    for kind in ("rawKeyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


def test_a_sweep(browser: Browser, tmp_path: Path) -> None:
    rows = [
        {
            "status": "done",
            "sweep": HOSTILE,
            "seed": seed,
            "varied": {"sync.compressor": name},
            "metric": "nats",
            "loss": loss + seed / 50,
            "sent_bytes": sent,
            "published_bytes": sent / 4,
            "steps": 20,
            "seconds": None,
            "curve": [[step, sent * step / 20, loss + seed / 50 + 2 / step] for step in (5, 10, 20)],
        }
        for seed in range(3)
        for name, loss, sent in (("fp16", 1.0, 1600.0), ("q2", 1.05, 200.0), (HOSTILE, 1.4, 800.0))
    ]
    failed = {
        "status": "failed",
        "sweep": HOSTILE,
        "varied": {"sync.f": 1},
        "seed": 0,
        "error": HOSTILE,
        "replay": HOSTILE,
    }
    tables.write(tmp_path / "rows.parquet", [*rows, failed])
    opened(browser, [tmp_path], tmp_path / "report.html")
    assert browser.evaluate("document.getElementById('name').textContent") == " ".join(HOSTILE.split())
    assert browser.evaluate("document.querySelectorAll('.plane .point').length") == 3
    front = "[...document.querySelectorAll('.plane .front title')].map(each => each.textContent.split(':')[0])"
    assert sorted(browser.evaluate(front)) == ["fp16", "q2"]
    assert browser.evaluate("document.querySelector('.plane .stairs') !== null")
    assert browser.evaluate("document.getElementById('timeline').hidden")
    looked_at(browser)
