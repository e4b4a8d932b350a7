"""The swarm's page in a real browser; charts that answer the mouse and the keys; and both pages before axe-core."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from browser_harness import CHROMIUM, Browser
from js_harness import FOLDER as JS
from swarm_folders import make_run, member_events, member_round
from typed_events import typed

from node.events.progress import NodeProgress
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed, LiveSnapshot
from node.page.status_server import Listening, StatusServer, SwarmServer
from node.page.swarm_feed import SwarmFeed

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")

AXE = JS / "node_modules" / "axe-core" / "axe.min.js"
TEXT = "document.getElementById('{}')?.textContent"
FINDINGS = """axe.run(document, {resultTypes: ['violations']}).then(found =>
    found.violations.map(each => `${each.id}: ${each.nodes.map(node => node.html).slice(0, 3).join(' | ')}`))"""
PAINTED = """(id => { const canvas = document.querySelector(`#${id} canvas`);
    return Boolean(canvas?.width) && canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
        .data.some(value => value > 0); })"""


async def beside(run: Callable[..., object], look: Callable[[str], None]) -> None:
    """Serve a page, and look at it on a thread."""
    async with trio.open_nursery() as nursery:
        url = await nursery.start(run)
        await trio.to_thread.run_sync(look, url)
        nursery.cancel_scope.cancel()


def check_axe(browser: Browser) -> None:
    """Nothing found in either theme, nor on a phone. Nothing is asked where axe-core is not there (make interop)."""
    if not AXE.is_file():
        return
    browser.evaluate(AXE.read_text(encoding="utf-8") + "; true")
    for width, dark in ((1200, False), (1200, True), (390, True)):
        browser.resize(width, 800)
        browser.theme(dark=dark)
        browser.until(f"innerWidth === {width}")
        browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate(FINDINGS) == []


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not there: make interop")
def test_axe_finds_what_is_wrong(tmp_path: Path) -> None:
    """The measure itself: it is not silent about everything."""
    with Browser(tmp_path / "browser") as browser:
        browser.open("data:text/html,<input><img src=x>")
        browser.until("document.images.length === 1")
        browser.evaluate(AXE.read_text(encoding="utf-8") + "; true")
        assert len(browser.evaluate(FINDINGS)) >= 2


async def test_the_page_of_a_swarm(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "first", 4, dead=1)
    make_run(tmp_path / "runs" / "second", 3, rounds=5, finished=True)

    def look(url: str) -> None:
        with Browser(tmp_path / "browser") as browser:
            browser.open(url)
            browser.until(f"{TEXT.format('link')} === 'live' && document.getElementById('members')?.rows.length === 7")
            first = "document.getElementById('members').rows[0]"
            assert browser.evaluate(f"{first}.cells[0].textContent") == "first/node-3"
            assert browser.evaluate(f"{first}.cells[1].textContent") == "dead"
            links = browser.evaluate("[...document.querySelectorAll('#members a')].map(link => link.href)")
            assert links == [f"http://127.0.0.1:940{n}/" for n in range(3)]
            browser.until("document.querySelectorAll('#exchanges .member').length === 7")
            assert browser.evaluate("document.querySelectorAll('#exchanges .member.bad').length") == 1
            assert browser.evaluate("document.querySelectorAll('#runs tr').length") == 2
            bits = "a member: 0.109 bits per parameter and inner step, 0.035 published"
            assert browser.evaluate(TEXT.format("sent_bits")) == bits
            browser.until(f"{PAINTED}('train-chart') && {PAINTED}('held-out-chart')")
            assert browser.evaluate("document.querySelectorAll('#train-chart-title ~ *').length") >= 1
            names = "[...document.querySelectorAll('#charts .chart:first-child .key')].filter(key => !key.hidden)"
            names += ".map(key => key.children[1].textContent)"
            assert browser.evaluate(names) == ["first", "second"]
            browser.evaluate("document.getElementById('by-members').click()")
            browser.until(f"{names}.length === 7")
            browser.evaluate(f"{first}.querySelector('input').click()")
            browser.until(f"{names}.join() === 'all,first/node-3'")
            check_axe(browser)
            assert not browser.complaints

    await beside(SwarmServer(SwarmFeed([tmp_path / "runs"]), Listening()).run, look)


async def test_a_run_that_is_deleted_leaves_the_open_page(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "runs" / "first", 2), make_run(tmp_path / "runs" / "second", 3)
    rows = "[...(document.getElementById('members')?.rows ?? [])]"

    def look(url: str) -> None:
        with Browser(tmp_path / "browser") as browser:
            browser.open(url)
            browser.until(f"{rows}.length === 5 && {PAINTED}('train-chart')")
            browser.evaluate(f"{rows}[0].querySelector('input').click()")
            browser.evaluate(f"{rows}[2].querySelector('input').click()")
            shutil.rmtree(first)
            browser.until(f"{rows}.map(row => row.cells[0].textContent).join() === 'node-0,node-1,node-2'")
            browser.until("document.querySelectorAll('#exchanges .member').length === 3")
            assert browser.evaluate(f"{rows}.every(row => !row.querySelector('input').checked)")
            assert browser.evaluate(TEXT.format("name")) == "second"
            shutil.rmtree(second)
            browser.until(f"{rows}.length === 0 && document.querySelectorAll('#exchanges .member').length === 0")
            assert not browser.complaints

    await beside(SwarmServer(SwarmFeed([tmp_path / "runs"]), Listening()).run, look)


@pytest.mark.thorough
async def test_a_thousand_members_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1000, rounds=2, dead=1)

    def look(url: str) -> None:
        with Browser(tmp_path / "browser") as browser:
            browser.open(url)
            browser.until("document.querySelectorAll('#exchanges .member').length === 1000")
            browser.until(f"{PAINTED}('train-chart')")
            assert browser.evaluate("document.querySelectorAll('#members tr').length") == 100
            assert "900 more" in browser.evaluate(TEXT.format("members-note"))
            assert not browser.complaints

    await beside(SwarmServer(SwarmFeed([run]), Listening()).run, look)


@pytest.mark.thorough
async def test_a_chart_of_ten_thousand_rounds_answers_mouse_and_keys(tmp_path: Path) -> None:
    progress = NodeProgress("node-0", run_dir="/runs/x/node-0", join_command="p2ptrain node --peer x")
    feed = Feed(
        progress,
        moment=lambda: LiveSnapshot(peers={"p": {"here": True, "score": 0, "accepted": 1}}),
        settings={"train": {"rounds": 10_000}},
        names=lambda: {"p": "node-1"},
    )
    for event in member_events(0, rounds=10_000):
        progress.observe(typed(event))
        feed.observe(typed(event))
    at = "document.querySelector('#loss').closest('section').querySelector('.at').textContent"
    zoomed = "!document.querySelector('#loss').closest('section').querySelector('.head .tool').hidden"

    def look(url: str) -> None:
        with Browser(tmp_path / "browser") as browser:
            browser.open(url)
            browser.until(f"{PAINTED}('loss')")
            over = browser.evaluate("""(() => {
                const box = document.querySelector('#loss .u-over').getBoundingClientRect();
                return [box.left, box.top, box.width, box.height]; })()""")
            mouse = partial(point, browser, over)
            mouse("mouseMoved", 0.5)
            browser.until(f"/^round (49|50)[0-9]{{2}}$/.test({at})")
            mouse("mousePressed", 0.5)
            mouse("mouseMoved", 0.7)
            mouse("mouseReleased", 0.7)
            browser.until(zoomed)
            mouse("mousePressed", 0.5, clicks=2)
            mouse("mouseReleased", 0.5, clicks=2)
            browser.until(f"!({zoomed})")
            browser.evaluate("document.querySelector('#loss').focus()")
            key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', cancelable: true}}))"
            for done in range(10_001, 10_401):  # a chart that is not zoomed goes on with the rounds
                trio.from_thread.run_sync(feed.observe, typed(member_round(done)))
            newest = "document.querySelector('#loss').getAttribute('aria-label')"
            end = key.format("End")
            browser.until(f"({end}, {at}) === 'round 10400'")
            assert "training 1.000" in browser.evaluate(newest)
            browser.evaluate(key.format("Home"))
            first = browser.evaluate(at)
            browser.evaluate(key.format("ArrowRight"))
            assert int(first.split()[1]) < int(browser.evaluate(at).split()[1]) < 100
            browser.evaluate(key.format("+"))
            browser.until(zoomed)
            browser.evaluate(key.format("0"))
            browser.until(f"!({zoomed})")
            log = "[...document.querySelectorAll('.head .tool')].find(each => each.textContent === 'log scale')"
            browser.evaluate(f"{log}.click()")
            assert browser.evaluate(f"{log}.getAttribute('aria-pressed')") == "true"
            browser.until(f"{PAINTED}('loss')")
            check_axe(browser)
            assert not browser.complaints

    await beside(StatusServer(Metrics(), feed).run, look)


def point(browser: Browser, over: list[float], kind: str, share: float, *, clicks: int = 1) -> None:
    left, top, width, height = over
    pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": clicks}
    held = {"buttons": 1} if kind == "mousePressed" else {}
    browser.ask("Input.dispatchMouseEvent", type=kind, x=left + share * width, y=top + height / 2, **pressed, **held)
