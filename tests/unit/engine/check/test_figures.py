"""Figures in the output of a check, which may be anything."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.check.figures import MOST, parse_figures, parse_line
from atoll.model.check import Figure


@pytest.mark.parametrize(
    ("line", "figure"),
    [
        ("speed 3.5", Figure("speed", 3.5)),
        ("speed 3.5 ms", Figure("speed", 3.5, "ms")),
        ("speed 3.5 lower", Figure("speed", 3.5, "", "lower")),
        ("  speed\t-3e2  req/s higher ", Figure("speed", -300.0, "req/s", "higher")),
        ("a.b:c/d[1] .5", Figure("a.b:c/d[1]", 0.5)),
    ],
)
def test_a_line_is_a_figure(line, figure):
    assert parse_line(line) == figure


@pytest.mark.parametrize(
    "line",
    ["", "speed", "3.5 speed", "speed fast", "speed nan", "speed inf", "speed 1e999",
     "speed 1 2 3 4", "speed 1 ms faster", "speed 0x10", "\x1b[1mspeed 3", "speed ٣",
     "x" * 65 + " 1"],
)  # fmt: skip
def test_other_lines_are_none(line):
    assert parse_line(line) is None


def test_the_last_value_of_a_name_counts_and_other_lines_are_skipped():
    lines = ["collected 3 items in 2 s", "a 1", "what a mess", "b 2 ms", "a 3"]
    assert parse_figures(lines) == (Figure("a", 3.0), Figure("b", 2.0, "ms"))


def test_json_is_read_from_a_line_or_from_the_whole():
    value = {"a": 1, "b": {"value": 2.5, "unit": "ms", "better": "lower"}, "c": "no", "d": True,
             "e": {"value": None}, "f": {"value": 1, "better": "faster"}, "g": [1]}  # fmt: skip
    found = (Figure("a", 1.0), Figure("b", 2.5, "ms", "lower"), Figure("f", 1.0))
    assert parse_figures(["noise", json.dumps(value)]) == found
    whole = json.dumps(value, indent=2)
    assert parse_figures(whole.splitlines(), whole) == found


@pytest.mark.parametrize(
    "text",
    ['{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}",
     '{"a":' * 5000, "{" * 100_000, '{"a": 1', "[1]", "null", '{"\\ud800": 1}'],
)  # fmt: skip
def test_hostile_json_has_no_figures(text):
    assert parse_figures([text], text) == ()


def test_their_number_is_bounded():
    assert len(parse_figures(f"name{number} 1" for number in range(10 * MOST))) == MOST
    many = json.dumps({f"n{number}": 1 for number in range(10 * MOST)})
    assert len(parse_figures([many])) == MOST


@given(st.lists(st.text(max_size=80), max_size=20))
def test_any_output_gives_finite_and_plain_figures(lines):
    for figure in parse_figures(lines, "\n".join(lines)):
        assert math.isfinite(figure.value)
        assert figure.name.isprintable()
        assert figure.unit.isprintable()
        assert figure.better in ("", "lower", "higher")


@given(st.dictionaries(st.text(max_size=20), st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
), max_size=8))  # fmt: skip
def test_any_json_object_is_read(found):
    text = json.dumps(found)
    assert all(math.isfinite(figure.value) for figure in parse_figures([text], text))
