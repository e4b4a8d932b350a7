"""Quantities: what is written right comes back as a number, everything else is one clear line."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.planning.model_shape import shape_of_size
from node.planning.quantities import QuantityError, bits_per_second, bytes_in, count, seconds, share

PARSERS = (bits_per_second, bytes_in, count, seconds, share)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (bits_per_second, "20Mbit", 20e6),
        (bits_per_second, "20 Mbit/s", 20e6),
        (bits_per_second, "2.5MB", 20e6),
        (bits_per_second, "2.5MB/s", 20e6),
        (bits_per_second, "1MiB", 8 * 2**20),
        (bits_per_second, "1GiB/s", 8 * 2**30),
        (bits_per_second, "500kbit", 5e5),
        (bytes_in, "24GB", 24e9),
        (bytes_in, "24GiB", 24 * 2**30),
        (seconds, "80ms", 0.08),
        (seconds, "1.5s", 1.5),
        (seconds, "20min", 1200),
        (seconds, "0", 0.0),
        (count, "7e9", 7e9),
        (count, "7B", 7e9),
        (count, "350M", 350e6),
        (count, "1.5T", 1.5e12),
        (share, "90%", 0.9),
        (share, "0.35", 0.35),
    ],
)
def test_what_is_written_right_comes_back(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (bits_per_second, "20", "name bit or B"),
        (bits_per_second, "20Mb", "may be bits or bytes: write Mbit or MB"),
        (bits_per_second, "20mbit", "no unit 'mbit'"),
        (bits_per_second, "0Mbit", "above 0"),
        (bits_per_second, "-3Mbit", "must not be negative"),
        (bits_per_second, "fast", "no rate"),
        (bytes_in, "24", "name bit or B"),
        (seconds, "80", "end it with"),
        (seconds, "80Mbit", "end it with"),
        (count, "7e999", "no number"),
        (count, "7G", "k, M, B or T"),
        (count, "0", "above 0"),
        (share, "0", "above 0"),
        (share, "101%", "up to 1"),
        (share, "half", "no share"),
    ],
)
def test_what_is_wrong_is_one_line_that_says_what_would_be_right(parse, text, said):
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.sampled_from(PARSERS), st.text(max_size=80))
def test_any_text_is_a_finite_number_or_one_short_line(parse, text):
    said, value = "", 1.0
    try:
        value = parse(text)
    except QuantityError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1
    assert len(said) < 300
    assert math.isfinite(value)
    assert value >= 0


@given(st.floats(min_value=1e-3, max_value=1e6), st.sampled_from(["kbit", "Mbit", "Gbit", "kB", "MB", "MiB"]))
def test_a_byte_is_eight_bits_and_a_prefix_is_what_it_is(value, unit):
    size = {"k": 1e3, "M": 1e6, "G": 1e9}[unit[0]] * (1 if unit.endswith("bit") else 8)
    size = 8 * 2**20 if unit == "MiB" else size
    assert bits_per_second(f"{value!r}{unit}") == pytest.approx(value * size)


def test_a_time_without_end_is_none() -> None:
    with pytest.raises(QuantityError, match="no time that ends"):
        seconds("1e308d")


def test_a_model_has_one_parameter_at_least() -> None:
    with pytest.raises(ValueError, match="one parameter at least"):
        shape_of_size(0.4)
    small = shape_of_size(0.6)
    assert small.flops(1, 1) > 0
    for trained in (0.4, small.parameters):
        with pytest.raises(ValueError, match=r"fewer than .* one at least"):
            shape_of_size(100).with_trained(trained if trained < 1 else 100)
