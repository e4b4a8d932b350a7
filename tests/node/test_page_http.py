"""The node's page over HTTP: what is served, to whom, and what never leaves."""

import ipaddress
import re
import tomllib
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_harness import ask, served
from sizes import examples

from node.page.guard import HEADERS, is_loopback_name
from node.page.status_server import FOLDER, STATIC, SWARM_STATIC
from node.system.page_token import cookie_of

TOKEN = "a-token-of-the-test"
HOSTILE_HOSTS = (
    "[::1].evil.example",
    "[::1].evil.example:9400",
    "[::1]evil.example",
    "[::1]:80.evil.example",
    "[::1]:80:80",
    "[::1]:",
    "[::1]@evil.example",
    "[::1",
    "::1",
    "::1]",
    "[]",
    "[::1%25lo]",
    "[::2]",
    "[127.0.0.1]",
    "[localhost]",
    "[0:0:0:0:0:0:0:1].evil.example",
    "localhost.",
    "localhost:",
    "localhost:port",
    "localhost:123456",
    "localhost:80@evil.example",
    "localhost@evil.example",
    "evil.example:127.0.0.1",
    "evil.example#localhost",
    "evil.example/localhost",
    "localhost/evil.example",
    "localhost, evil.example",
    "localhost evil.example",
    "evil-localhost",
    "localhost.localhost",
    "127.0.0.1.",
    "127.0.0.1:",
    "127.0.0.1:-1",
    "127.0.0.1:80:80",
    "127.0.0.1@evil.example",
    "127.0.0.1evil.example",
    "127.1",
    "127.0.0.01",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "2130706433",
    "127.0.0.256",
    "127.0.0.1.1",
    "0.0.0.0",
    "[::]",
    "[::ffff:192.168.1.4]",
)
"""Names that a hostile page can make its own, and what is no name at all."""

PATHS = ("/", "/page.js", "/metrics", "/status", "/healthz", "/nothing")
SCRIPTS = sorted(path for path in FOLDER.glob("*.js") if path.name != "uplot.js")


@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_says_what_a_browser_may_do_with_it(path):
    async with served() as page:
        answer = await ask(page.url + path)
    assert answer.status_code == (404 if path == "/nothing" else 200)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] in {"no-store", "no-cache"}
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_it_is_read_only(method):
    async with served() as page:
        for path in PATHS:
            answer = await ask(page.url + path, method, content=b"x")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9999", 200),
        ("127.0.0.1", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("LocalHost:9400", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("localhost.evil.example", 421),
        ("192.168.1.4:9400", 421),
        ("", 421),
    ],
)
async def test_a_name_that_a_stranger_chose_is_not_answered(host, status):
    async with served() as page:
        for path in ("/", "/events", "/status") if status != 200 else ("/", "/status"):
            assert (await ask(page.url + path, headers={"host": host})).status_code == status, path


@pytest.mark.slow
async def test_no_name_that_only_looks_like_loopback_is_answered():
    async with served() as page:
        for host in HOSTILE_HOSTS:
            assert (await ask(page.url + "/events", headers={"host": host})).status_code == 421, host


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9400", "127.8.8.8", "[::1]", "[0:0::1]:65535"])
def test_loopback_s_own_names_are_answered(host):
    assert is_loopback_name(host)


@pytest.mark.slow
@given(
    before=st.text(max_size=8),
    name=st.sampled_from(["localhost", "127.0.0.1", "[::1]", "::1", "evil.example", ""]),
    after=st.text(max_size=8) | st.sampled_from([":80", ".evil.example", ":80.evil.example", "]", "@evil.example"]),
)
@settings(max_examples=examples(500))
def test_nothing_stands_beside_a_name_but_a_port(before, name, after):
    host = before + name + after
    if is_loopback_name(host):
        bare = re.sub(r":[0-9]{1,5}$", "", host) if host.startswith("[") or host.count(":") == 1 else host
        assert bare.isascii()
        if bare.lower() != "localhost":
            assert ipaddress.ip_address(bare.strip("[]")).is_loopback
            assert bare.startswith("[") == bare.endswith("]") == (":" in bare)
    assert not is_loopback_name(f"{host}.evil.example")


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/page.js", "/metrics", "/status", "/events", "/nothing"])
async def test_without_the_token_nothing_is_told(path):
    async with served(token=TOKEN) as page:
        for headers in (
            {},
            {"authorization": "Bearer nonsense"},
            {"authorization": f"Basic {TOKEN}"},
            {"authorization": "Bearer"},
            {"cookie": f"p2ptrain-{page.port}={TOKEN}"},
            {"cookie": "p2ptrain=\x01;;="},
        ):
            answer = await ask(page.url + path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.headers["content-security-policy"]
            assert "node-0" not in answer.text
        assert (await ask(f"{page.url}{path}?token=wrong")).status_code == 401
        assert (await ask(f"{page.url}{path}?{'x' * 2000}&token={TOKEN}")).status_code == 401


async def test_prometheus_and_programs_bring_it_as_a_bearer():
    async with served(token=TOKEN) as page:
        for path in ("/metrics", "/status"):
            answer = await ask(page.url + path, headers={"authorization": f"Bearer {TOKEN}"})
            assert answer.status_code == 200
            assert "set-cookie" not in answer.headers
        assert (await ask(f"{page.url}/healthz")).json() == {"ok": True}
        # With a token the name does not matter: a stranger's page has no cookie of ours.
        headers = {"authorization": f"Bearer {TOKEN}", "host": "gpu.home.example:9400"}
        assert (await ask(f"{page.url}/status", headers=headers)).status_code == 200


async def test_a_browser_shows_it_once_and_has_a_cookie_that_no_script_reads():
    async with served(token=TOKEN) as page, httpx.AsyncClient(trust_env=False) as client:
        first = await client.get(f"{page.url}/?token={TOKEN}")
        assert first.status_code == 200
        cookie = first.headers["set-cookie"]
        assert TOKEN not in cookie
        assert cookie.startswith(f"p2ptrain-{page.port}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        for path in ("/", "/page.js", "/status"):
            later = await client.get(page.url + path)
            assert later.status_code == 200
            assert "set-cookie" not in later.headers


@pytest.mark.parametrize("others", ['theme={"dark":true}; ', "a b; ", "path=x; ", 'open="; ', "p2ptrain-1=x; ", "=; ;"])
async def test_cookies_of_other_programs_do_not_hide_the_page_s_own(others):
    """A browser sends every program of a host the cookies of all: cookies know no port."""
    async with served(token=TOKEN) as page:
        headers = {"cookie": f"{others}p2ptrain-{page.port}={cookie_of(TOKEN)}; last"}
        assert (await ask(f"{page.url}/status", headers=headers)).status_code == 200


async def test_the_page_is_whole_and_asks_nobody_else():
    async with served() as page:
        for path, (name, kind) in STATIC.items():
            answer = await ask(page.url + path)
            assert answer.content == (FOLDER / name).read_bytes()
            assert answer.headers["content-type"].startswith(kind)
    for files, page_of_them in ((STATIC, "index.html"), (SWARM_STATIC, "swarm.html")):
        asked = re.findall(r'(?:src|href)="([^"#]+)"', (FOLDER / page_of_them).read_text(encoding="utf-8"))
        assert set(asked) <= {*files, "/metrics", "/status"}
        scripts = [FOLDER / name for name, kind in files.values() if kind == "text/javascript" and name != "uplot.js"]
        imported = {name for script in scripts for name in re.findall(r'from "\./(.+)"', script.read_text())}
        assert {f"/{name}" for name in imported} <= files.keys()
    assert {path.name for path in FOLDER.iterdir()} == {name for name, _ in (STATIC | SWARM_STATIC).values()} | {
        "index.html"
    }
    for path in FOLDER.iterdir():
        if path.name.startswith("uplot"):  # not ours: test_page_charts.py
            continue
        text = path.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "//" not in re.sub(r"(^|\s)//.*$", "", text, flags=re.MULTILINE), path


def test_an_installed_wheel_has_the_page():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert "static/*" in project["tool"]["setuptools"]["package-data"]["node.page"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_make_no_markup_out_of_text(script):
    text = script.read_text(encoding="utf-8")
    ways = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|setHTML|DOMParser|srcdoc|\.style\b"
    )
    assert not re.search(ways, text)
