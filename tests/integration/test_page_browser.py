"""The node's page in a real browser: live, legible by keyboard, silent on the console, and deaf to what peers write."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from browser_harness import CHROMIUM, Browser
from processes_harness import PACED, up
from typed_events import typed

from node.events.progress import NodeProgress
from node.metrics.node_metrics import Metrics
from node.page.feed import Feed, LiveSnapshot
from node.page.status_server import StatusServer

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)"), pytest.mark.paired]

LIVE = "document.getElementById('link')?.textContent === 'live'"
PAINTED = """(id => {
    const found = document.getElementById(id), canvas = found.querySelector('canvas') || found;
    if (!canvas.width || !canvas.getContext) return false;
    return canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0);
})"""
PEER = "[...document.getElementById('peers').rows[0].cells].map(cell => cell.textContent)"
NAME = "document.querySelector('#peers .name').textContent"
ROUND = "parseInt(document.getElementById('round').textContent)"
FOCUS = "document.activeElement.id || document.activeElement.className || document.activeElement.textContent"
HOSTILE = '<img src=x onerror="window.struck=1"><script>window.struck=1</script>\'"&amp;</td>'


GREEN = """(() => {
    const probe = document.body.appendChild(document.createElement('i'));
    document.documentElement.classList.remove('lost');
    probe.className = 'good';
    const green = getComputedStyle(probe).color;
    document.documentElement.classList.add('lost');
    const all = [...document.querySelectorAll('header *, main *')];
    const found = all.filter(each => getComputedStyle(each).color === green);
    probe.remove();
    return found.map(each => each.id || each.className || each.tagName);
})()"""
"""What is still as green as what is well."""


def says_what_a_paused_neighbour_says(browser: Browser) -> None:
    browser.evaluate("import('/graph.js').then(module => { window.trust = module.trust; }) && 0")
    browser.until("typeof window.trust === 'function'")
    for more, words in (
        ("returns_at: null", "paused"),
        ("returns_at: 7200", r"paused until \d\d:\d\d"),
        ("returns_at: 7200, score: 40", r"charged, paused until \d\d:\d\d"),
        ("returns_at: null, here: false", "no offence"),
    ):
        said = browser.evaluate(f"window.trust({{here: true, paused: true, score: 0, {more}}})[1]")
        assert re.fullmatch(words, said), said


def test_the_page_of_a_live_node(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", 2, *PACED, "--rounds", 400, "--set", "sync.f=0") as program:
        url = program.hear("started", node="node-0")["metrics_url"]
        program.hear_round(2, node="node-0")
        with Browser(tmp_path / "browser") as browser:
            browser.open(url)
            browser.until(f"{LIVE} && {ROUND} >= 2")
            before = browser.evaluate(ROUND)
            browser.until(f"{ROUND} > {before}")
            browser.until(f"{PAINTED}('loss') && {PAINTED}('swarm') && {PAINTED}('distance')")
            assert browser.evaluate("document.querySelectorAll('#log li').length") > 5
            assert browser.evaluate("document.getElementById('loss').getAttribute('aria-label')").startswith(
                "Loss over"
            )
            browser.until("document.getElementById('swarm-note').textContent === '2 members, 1 link known.'")
            browser.until(f"{PEER}[1] === 'no offence' && {PEER}[5] === 'yes' && parseInt({PEER}[6]) > 0")
            browser.until(f"{NAME} === 'node-1'")
            says_what_a_paused_neighbour_says(browser)
            commands = browser.evaluate("[...document.querySelectorAll('.copy code')].map(code => code.textContent)")
            assert commands[0].startswith("p2ptrain node --peer ")
            bits = browser.evaluate("document.getElementById('sent_bits').textContent")
            assert re.fullmatch(r"[\d.]+ bits per parameter and inner step, [\d.]+ published", bits)
            assert commands[1] == f"p2ptrain export {tmp_path}/run/node-0 --out model.safetensors"
            assert "train.rounds" in browser.evaluate("document.getElementById('setting-rows').textContent")
            for chart in ("throughput-chart", "bandwidth", "processor", "memory", "rate"):
                browser.until(f"document.querySelector('#{chart} canvas') && {PAINTED}('{chart}')")
            by_keyboard(browser)
            for width in (390, 320):
                browser.resize(width, 800)
                browser.until(f"innerWidth === {width}")
                assert browser.evaluate("document.documentElement.scrollWidth") <= width
            asked = browser.evaluate(
                "performance.getEntriesByType('resource').map(entry => new URL(entry.name).origin)"
            )
            assert set(asked) == {url}
            assert not browser.complaints
        program.interrupt()
        assert program.end() == 130


def by_keyboard(browser: Browser) -> None:
    """The skip link first, visible once it has the focus; then what scrolls, and the links."""
    reached = []
    while "status as JSON" not in reached:
        browser.press("Tab")
        reached.append(browser.evaluate(FOCUS))
        if reached == ["skip"]:
            assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert len(reached) < 60
    assert reached[0] == "skip"
    assert [name for name in reached if name in {"loss", "scroll", "log", "metrics", "status as JSON"}] == [
        *("loss", "scroll", "log", "metrics", "status as JSON")
    ]
    browser.evaluate("document.querySelector('.skip').focus()")
    browser.press("Enter")
    browser.until("document.activeElement.id === 'main'")


async def shown(
    folder: Path, look: Callable[[Browser, str], None], *, progress: NodeProgress, moment: LiveSnapshot, port: int = 0
) -> str:
    """Serve a page, and let `look` look at it in a browser."""
    feed = Feed(progress, moment=lambda: moment)
    feed.observe(typed({"ts": 1.0, "event": "warning", "message": HOSTILE}))
    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(StatusServer(Metrics(), feed, port=port).run)

        def in_browser() -> None:
            with Browser(folder) as browser:
                browser.open(url)
                browser.until(f"{LIVE} && document.getElementById('peers').rows.length > 0")
                look(browser, url)
                assert not browser.complaints

        await trio.to_thread.run_sync(in_browser)
        nursery.cancel_scope.cancel()
    return url


def peer(n: int, **fields: object) -> dict[str, object]:
    return {
        "here": True,
        "round": n,
        "score": n,
        "rejected": {HOSTILE: 1},
        "address": HOSTILE,
        "neighbours": 8,
    } | fields


async def test_what_peers_write_stays_text(tmp_path: Path) -> None:
    progress = NodeProgress(
        HOSTILE, device=HOSTILE, aggregator=HOSTILE, compressor=HOSTILE, state=HOSTILE, parameters=1
    )
    peers = {HOSTILE: peer(1), "__proto__": peer(2), f"{HOSTILE}{'x' * 20}": peer(100)}

    def look(browser: Browser, url: str) -> None:
        assert browser.evaluate("document.querySelectorAll('img, main script, td td').length") == 0
        assert browser.evaluate("document.scripts.length") == 2
        assert browser.evaluate("window.struck === undefined && {}.struck === undefined")
        assert browser.evaluate("document.getElementById('name').textContent") == HOSTILE
        assert HOSTILE in browser.evaluate("document.getElementById('log').textContent")
        assert browser.evaluate("document.getElementById('peers').rows.length") == len(peers)
        assert HOSTILE in browser.evaluate("document.getElementById('peers').rows[1].cells[0].title")

    await shown(tmp_path, look, progress=progress, moment=LiveSnapshot(peers=peers))


async def test_privacy_that_is_spent_and_the_start_are_told(tmp_path: Path) -> None:
    progress = NodeProgress("node", state="running", epsilon=1.5, epsilon_budget=4.0, visits_epsilon=0.25)
    progress.warmed_up = "8 steps on synthetic examples of 3 members' statistics"

    def look(browser: Browser, url: str) -> None:
        about = browser.evaluate("document.getElementById('about').textContent")
        assert about.split(" · ")[-3:] == [
            "began after 8 steps on synthetic examples of 3 members' statistics",
            "privacy: epsilon 1.5 of 4 spent",
            "visitors' privacy: epsilon 0.25 spent at most",
        ]

    await shown(tmp_path, look, progress=progress, moment=LiveSnapshot(peers={"one": peer(1)}))


async def test_a_thousand_members_are_drawn(tmp_path: Path) -> None:
    tags = [n.to_bytes(8, "big") for n in range(1000)]
    graph = {
        tag: frozenset(tags[(n + step) % 1000] for step in (-97, -31, -7, -1, 1, 7, 31, 97))
        for n, tag in enumerate(tags)
    }
    near = {f"peer-{n}": tags[n] for n in (1, 7, 31, 97, 903, 969, 993, 999)}

    def look(browser: Browser, url: str) -> None:
        browser.until("document.getElementById('swarm-note').textContent === '1000 members, 4000 links known.'")
        browser.until(f"{PAINTED}('swarm')")
        assert browser.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    moment = LiveSnapshot(peers={name: peer(0) for name in near}, graph=graph, tags={"me": tags[0]} | near)
    await shown(tmp_path, look, progress=NodeProgress("node", peer_id="me"), moment=moment)


async def test_a_page_finds_its_node_again(tmp_path: Path) -> None:
    """The node is stopped under the page, and another one started at its place."""
    moment, first = LiveSnapshot(peers={"one": peer(0)}), Feed(NodeProgress("first"))
    first.watch(lambda: moment)
    second = Feed(NodeProgress("second"), moment=lambda: moment)
    with Browser(tmp_path) as browser:

        async def wait(script: str) -> None:
            await trio.to_thread.run_sync(partial(browser.until, script))

        port = 0
        for feed, name in ((first, "first"), (second, "second")):
            async with trio.open_nursery() as nursery:
                url = await nursery.start(StatusServer(Metrics(), feed, port=port).run)
                if not port:
                    port = int(url.rpartition(":")[2])
                    await trio.to_thread.run_sync(browser.open, url)
                await wait(f"{LIVE} && document.getElementById('name').textContent === '{name}'")
                nursery.cancel_scope.cancel()
            await wait(
                "/^no connection since [0-9:]{8}; trying again$/.test(document.getElementById('link').textContent)"
            )
            assert await trio.to_thread.run_sync(browser.evaluate, GREEN) == []
