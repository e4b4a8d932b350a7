"""The file of a report: one, closed to the outside, and no claim in it is markup."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_folders import make_run

from node.cli.app import main
from node.page.status_server import FOLDER
from node.reporting import bundle
from node.reporting.document import ReportDocument
from node.reporting.html_file import as_data, as_html

HOSTILE = '</script><img src=x onerror="window.struck=1"><!--<script>{{script}}\u2028'


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_data(self, data: str) -> None:
        if self.inside in self.raw:
            self.raw[self.inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


def elements(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    return found


def document(words: str) -> ReportDocument:
    return ReportDocument(title=words, about=words, state=words, tiles=[], notes=[words], command=words)


def digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def test_nothing_that_was_told_is_markup() -> None:
    plain, hostile = elements(as_html(document("x"))), elements(as_html(document(HOSTILE)))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in plain.tags]
    assert json.loads(hostile.raw["script"][0])["title"] == HOSTILE
    assert hostile.raw["script"][1] == plain.raw["script"][1]


@given(st.text())
def test_data_come_back_as_they_were_and_hold_no_markup(words: str) -> None:
    told = as_data({words: [words]})
    assert json.loads(told) == {words: [words]}
    assert not set("<>&\u2028\u2029") & set(told)


def test_the_policy_lets_in_the_files_own_script_and_styles_alone() -> None:
    found = elements(as_html(document("x")))
    policy = next(a["content"] for tag, a in found.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    data, script = found.raw["script"]
    (style,) = found.raw["style"]
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'{digest(script)}'",
        "style-src": f"'{digest(style)}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert data.startswith("{")
    types = [attributes.get("type") for tag, attributes in found.tags if tag == "script"]
    assert types == ["application/json", None]


def test_the_file_names_no_other() -> None:
    found = elements(as_html(document("x")))
    named = [(tag, a[key]) for tag, a in found.tags for key in ("src", "href") if a.get(key)]
    assert sorted(named) == [("a", "#main"), ("link", "data:,")]
    assert "@import" not in bundle.styles()
    assert "url(" not in bundle.styles()
    assert not [tag for tag, a in found.tags if any(key.startswith("on") or key == "style" for key in a)]
    script = "".join(path.read_text(encoding="utf-8") for path in bundle.MODULES)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|fetch\(|XMLHttp|https?:", script)


def test_pages_and_reports_share_what_they_share() -> None:
    """Each module and sheet stands once, whole, in what a report is made of."""
    script = bundle.script()
    assert (FOLDER / "uplot.js").read_text(encoding="utf-8") in script
    for path in bundle.MODULES:
        assert script.count(f'modules["{path.name}"] = ') == 1
    assert (FOLDER / "page.css").read_text(encoding="utf-8") in bundle.styles()


@pytest.mark.parametrize(
    "line", ["export default 1;", 'import x from "./words.js";', "export { a };", 'import "./b.js";']
)
def test_a_module_that_cannot_be_carried_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "odd.js"
    path.write_text(f"const a = 1;\n{line}\n")
    with pytest.raises(ValueError, match=r"odd\.js"):
        bundle.script([path])


def test_styles_of_their_own_take_the_pages_colours() -> None:
    own = (bundle.OWN / "report.css").read_text(encoding="utf-8")
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)|rgb|hsl|transition|animation", own)
    known = set(re.findall(r"--([\w-]+):", (FOLDER / "page.css").read_text(encoding="utf-8")))
    scripts = "".join(path.read_text(encoding="utf-8") for path in bundle.OWN.glob("*.js"))
    used = set(re.findall(r"var\(--([\w-]+)\)", own)) | set(re.findall(r'"--([\w-]+)"', scripts))
    assert used
    assert used <= known


def test_the_command_says_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", 2)
    with (tmp_path / "run" / "node-0" / "events.jsonl").open("a") as log:
        log.write("garbage\n")
    assert main(["report", "run"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("report.html: 2 nodes, 18 events, 19 lines; ")
    assert said.err.splitlines()[-1] == "note: node-0: 1 line is no event"
    told = json.loads(elements((tmp_path / "report.html").read_text()).raw["script"][0])
    assert told["command"] == "p2ptrain report run"
    assert main(["report", "nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    log = tmp_path / "run" / "node-0" / "events.jsonl"
    kept = log.read_bytes() if log.is_file() else b""
    (tmp_path / "plan.toml").write_text("a = 1")
    assert main(["report", "run", "--out", "plan.toml"]) == 2
    assert "is no report" in capsys.readouterr().err
    assert (tmp_path / "plan.toml").read_text() == "a = 1"
    assert (log.read_bytes() if log.is_file() else b"") == kept
    assert main(["report", "run", "--out", "new.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == ["node-0: 1 line is no event"]
