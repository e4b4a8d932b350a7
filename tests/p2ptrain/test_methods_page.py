"""docs/methods.md speaks of every method there is, and its sizes are what payloads weigh."""

import re
from pathlib import Path

import pytest
import torch

from p2ptrain import aggregate, compress, drift, graphs, inner, outer, privacy, step_normalization, step_schedules
from p2ptrain.sync import SYNC_STRATEGIES

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
TOLD = set(re.findall(r"`([\w+.]+)`", PAGE))
NUMEL = 1 << 18


@pytest.mark.parametrize(
    ("point", "names"),
    [
        ("compressors", compress.names()),
        ("aggregators", aggregate.names()),
        ("stages before aggregators", aggregate.stages()),
        ("strategies", SYNC_STRATEGIES.names()),
        ("outer optimizers", outer.names()),
        ("inner optimizers", inner.names()),
        ("drift corrections", drift.names()),
        ("graphs", graphs.names()),
        ("step schedules", step_schedules.names()),
        ("step normalizations", step_normalization.names()),
        ("privatizers", privacy.names()),
    ],
)
def test_every_method_is_on_the_page(point, names):
    known = TOLD | {part for name in TOLD for part in name.split("+")}
    assert [name for name in names if name not in known] == [], f"{point} that docs/methods.md does not speak of"


@pytest.mark.parametrize("name", [name for name in compress.names() if re.search(rf"\| `{name}` \| [\d.]+ \|", PAGE)])
def test_sizes_are_what_payloads_weigh(name):
    bits, kept = re.search(rf"\| `{name}` \| ([\d.]+) \| (\S+)", PAGE).groups()  # type: ignore[union-attr]
    x_d, codec = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0)), compress.get(name)
    payload = codec.encode(x_d)
    assert 8 * len(payload) / NUMEL == pytest.approx(float(bits), rel=0.01)
    if re.fullmatch(r"[\d.]+", kept):
        seen_d = codec.decode(payload, NUMEL)
        arrived = 1 - float((x_d - seen_d).square().sum() / x_d.square().sum())
        assert arrived == pytest.approx(float(kept), abs=0.006)
