"""The page's colours: what is read against what it stands on has the contrast of WCAG 2.1 AA, in both themes."""

import re

import pytest

from node.page.status_server import FOLDER

CSS = (FOLDER / "page.css").read_text(encoding="utf-8")
TEXT = ("text", "muted", "accent", "good", "warn", "bad")
DRAWN = ("accent", "held-out", "edge", "good", "warn", "bad", *(f"s{n}" for n in range(1, 9)))
GROUNDS = ("ground", "panel")
AA_TEXT, AA_DRAWN = 4.5, 3.0
"""WCAG 2.1, success criteria 1.4.3 and 1.4.11."""


def palettes() -> dict[str, dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks)
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_is_wcags():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize(("names", "least"), [(TEXT, AA_TEXT), (DRAWN, AA_DRAWN)], ids=["text", "drawn"])
def test_contrast_is_aa(theme, ground, names, least):
    palette = palettes()[theme]
    for name in names:
        assert contrast(palette[name], palette[ground]) >= least, name


def test_both_themes_have_every_colour_and_there_are_no_others():
    light, dark = palettes().values()
    assert light.keys() == dark.keys() == {*TEXT, *DRAWN, *GROUNDS, "line"}
    rest = re.sub(r":root \{.*?\}", "", CSS, flags=re.DOTALL)
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)|rgb|hsl", rest)
    scripts = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js") if path.name != "uplot.js")
    used = set(re.findall(r'"--([\w-]+)"', scripts)) | set(re.findall(r"var\(--([\w-]+)\)", CSS))
    assert used <= light.keys()


def test_what_moves_asks_first():
    assert "transition" not in CSS.partition("@media (prefers-reduced-motion: no-preference)")[0]
    assert "animation" not in CSS
