"""Every `p2ptrain` command that README and the pages of docs/ show has arguments and settings that there are.

Nothing is run here. That the shown output is what they print was looked at when the pages were written.
"""

from pathlib import Path

import pytest
from shown_commands import shown, wrong

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/how-to/*.md")),
]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shown_commands_have_arguments_that_there_are(page: Path) -> None:
    found = {command: wrong(command) for command in shown(page.read_text(encoding="utf-8"))}
    assert {command: why for command, why in found.items() if why} == {}


def test_every_how_to_page_shows_a_command_and_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    guides = sorted(ROOT.glob("docs/how-to/*.md"))
    assert len(guides) > 10
    for guide in guides:
        assert shown(guide.read_text(encoding="utf-8")), guide.name
        assert f"](how-to/{guide.name})" in index, guide.name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("    p2ptrain up --nodes 2 --taks digits\n", "--taks"),
        ("run `p2ptrain\nswram create x` once", "swram"),
        ("    p2ptrain node --set sync.compresor=q2   # a comment\n", "sync.compresor"),
        ("    p2ptrain node ... --listen\n", "--listen"),
        ("    p2ptrain simulate configs/scenarios/campus.toml --set assert.all_finis=false", "all_finis"),
        ("    p2ptrain simulate configs/scenarios/compus.toml", "compus"),
        ("    p2ptrain export runs/first --oot model.safetensors\n", "--oot"),
    ],
)
def test_a_misspelt_word_is_found(text: str, why: str) -> None:
    (command,) = shown(text)
    assert why in wrong(command)
