"""What is kept of an output: bounded, however it is cut into pieces."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from atoll.engine.check import observed_output
from atoll.engine.check.observed_output import LOG_BYTES, TAIL_BYTES, ObservedOutput
from atoll.model.check import Figure


def observed(*pieces, **options):
    output = ObservedOutput(**options)
    for piece in pieces:
        output.add(*(("out", piece) if isinstance(piece, bytes) else piece))
    output.close()
    return output


def test_figures_and_warnings_are_found_across_pieces():
    output = observed(
        b"spe", b"ed 3 m", b"s\nwarn", b"ing: old\n",
        ("err", b"x.py:1: DeprecationWarning\nfast 1\n"),
        b"WARN it\nno warnings\nlast 5", has_figures=True,
    )  # fmt: skip
    assert output.figures == (Figure("speed", 3.0, "ms"), Figure("last", 5.0))
    assert output.warnings == 3


def test_a_json_object_of_several_lines_is_read():
    output = observed(b'\n{\n "a": 1,\n', b' "b": 2\n}\n', has_figures=True)
    assert [figure.name for figure in output.figures] == ["a", "b"]


def test_an_endless_output_is_bounded():
    output = ObservedOutput(has_figures=True)
    for _ in range(200):
        output.add("out", b"{" + b"x" * 65_535)
        output.add("err", b"\xff" * 65_536)
        assert len(output._end) <= 2 * LOG_BYTES + 65_536
    output.close()
    assert len(output.log) == LOG_BYTES
    assert output.dropped_bytes == 200 * 2 * 65_536 - LOG_BYTES
    assert len(output.tail) <= TAIL_BYTES
    assert output.figures == ()


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_pieces_do_not_matter(data, cuts):
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[one:other] for one, other in itertools.pairwise(places)]
    whole, cut = (observed(*parts, has_figures=True) for parts in ([data], pieces))
    assert (whole.log, whole.tail, whole.figures, whole.warnings) == (
        cut.log, cut.tail, cut.figures, cut.warnings,
    )  # fmt: skip


def test_the_tail_has_a_bounded_number_of_lines():
    output = observed(b"".join(b"%d\n" % number for number in range(500)))
    assert output.tail.splitlines()[-1] == "499"
    assert len(output.tail.splitlines()) == observed_output._TAIL_LINES
