"""Parts of a model: every parameter is in one of them, none is much larger than another, names say which."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sync_reference import fragment

from p2ptrain.sync.fragments import MAX_FRAGMENTS, RUN, Fragment, parse


@given(total=st.integers(1, 60_000), count=st.integers(1, 9))
def test_parts_share_the_model_out(total: int, count: int) -> None:
    if count > total:
        with pytest.raises(ValueError, match="no part"):
            Fragment(total, 0, count)
        return
    parts = [Fragment(total, index, count) for index in range(count)]
    places = torch.arange(total, dtype=torch.float64)
    taken = torch.cat([part.of(places) for part in parts])
    assert torch.equal(taken.sort().values, places)
    sizes = [part.numel for part in parts]
    assert max(sizes) <= total / count + total / (count * RUN) + 1
    assert min(sizes) > 0
    assert [part.of(places).numel() for part in parts] == sizes


@pytest.mark.parametrize(("total", "count"), [(10, 4), (9, 4), (5000, 1), (20_000, 3), (4 * RUN + 5, 2)])
def test_places_are_those_of_the_reference(total: int, count: int) -> None:
    places = torch.arange(total)
    for index in range(count):
        assert Fragment(total, index, count).of(places).tolist() == fragment(total, index, count)


def test_putting_replaces_a_part_and_nothing_else() -> None:
    x_d = torch.arange(10.0)
    part = Fragment(10, 1, 3)
    put_d = part.put(x_d, -part.of(x_d) - 1)
    assert torch.equal(x_d, torch.arange(10.0)), "not in place"
    assert torch.equal(part.of(put_d), -part.of(x_d) - 1)
    for other in (Fragment(10, 0, 3), Fragment(10, 2, 3)):
        assert torch.equal(other.of(put_d), other.of(x_d))


def test_the_whole_is_no_copy() -> None:
    x_d, y_d = torch.arange(3.0), torch.ones(3)
    assert Fragment(3).of(x_d) is x_d
    assert Fragment(3).put(x_d, y_d) is y_d
    assert Fragment(3).prefix == ""


@given(count=st.integers(2, MAX_FRAGMENTS), data=st.data())
def test_names_come_back(count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    part = Fragment(10_000, index, count)
    assert parse(part.prefix + "rotated+q2", 10_000) == (part, "rotated+q2")


@pytest.mark.parametrize(
    "name", ["part2of2+q2", "part0of1+q2", "part9of8+q2", "part0of65+q2", "part0of99+q2", "part5of7+q2"]
)
def test_parts_that_there_are_not_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"no part|the whole"):
        parse(name, 6)


@given(name=st.text(max_size=40))
def test_any_name_is_read_or_refused(name: str) -> None:
    try:
        part, codec = parse(name, 100)
    except ValueError:
        return
    assert part.prefix + codec == name
