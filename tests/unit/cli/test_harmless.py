from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cli.harmless import Cleaner

HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
PIECES = st.sampled_from(
    [b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b\\", b"\x07", b"\x9c", b"\xc2\x9c", b"\xc2\x9b",
     b"52;c;", b"31m", b"31", b"m", b";", b"?", b"\n", b"\r\n", b"\r", b"\t", b"a", b"text",
     "é".encode(), b"\xe2", b"\x80\xae", "\u202e".encode(), b"\xff", b"\0", b" ", b"/", b"c", b"#8"]
)  # fmt: skip
STREAMS = st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=25)


def clean(*pieces):
    cleaner = Cleaner()
    return "".join(cleaner.clean(piece) for piece in pieces)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain é 漢\ttext\n", "plain é 漢\ttext\n"),
        ("two\r\nlines\r\n", "two\nlines\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b[?1049hscreen\x1b[?1049l", "screen"),
        ("\x1b[6n", ""),
        ("a\x1b[3 qb", "ab"),
        ("\x1b]52;c;cm0gLXJmIH4=\x07pasted", "pasted"),
        ("\x1b]52;c;cm0gLXJmIH4=\x1b\\pasted", "pasted"),
        ("\x1b]0;title\x07", ""),
        ("\x1b]8;;http://evil.example\x07link\x1b]8;;\x07", "link"),
        ("\x1bP+q544e\x1b\\after", "after"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\end", "end"),
        ("\x1bcreset", "reset"),
        ("\x1b(0lqk", "lqk"),
        ("\x1b#8", ""),
        ("\x1b7\x1b8", ""),
        ("bell\x07 back\x08space \x7f", "bell backspace "),
        ("over\rwritten", "overwritten"),
        ("\x0e\x0f\x0b\x0c\0", ""),
        ("\x9b31mC1\x9d52;c;x\x9c", "31mC152;c;x"),
        ("\x85\x84next", "next"),
        ("safe\u202etxt.exe\u202c \u2066a\u2069 \u200e\u200f\u061c", "safetxt.exe a "),
        ("\x1b\n", "\n"),
        ("\x1b[2;1Hone\x1b[5Ctwo\x1b[3;1Hthree\x1b[K", "one     two\nthree"),
        ("a\x1b[1Bb\x1b[9Gc\x1b[999999999C", "a\nb c" + 200 * " "),
        ("\x1b[H\x1b[H\x1b[4;2Hx\n\x1b[5;1Hy", "x\ny"),
        ("\x1b\x1b\x1bx", ""),
    ],
)
def test_what_steers_is_taken_out(raw, shown):
    assert clean(raw.encode()) == shown


@pytest.mark.parametrize(
    "raw",
    [
        b"\x1b]52;c;cm0gLXJmIH4=\x07after",
        b"\x1b]52;c;cm0gLXJmIH4=\x1b\\after",
        b"\x1b[38;5;196mafter",
        b"\x1bP1$r0m\x1b\\after",
        b"\x1b(Bafter",
    ],
)
def test_sequence_that_is_cut_in_two_stays_a_sequence(raw):
    for cut in range(len(raw) + 1):
        assert clean(raw[:cut], raw[cut:]) == "after"
    assert clean(*(raw[at : at + 1] for at in range(len(raw)))) == "after"


def test_letter_that_is_cut_in_two_stays_a_letter():
    raw = "é漢🚀".encode()
    assert clean(*(raw[at : at + 1] for at in range(len(raw)))) == "é漢🚀"


def test_bytes_that_are_no_text_are_marked():
    assert clean(b"a\xffb\xc3(") == "a\ufffdb\ufffd("


def test_unfinished_string_cannot_swallow_everything():
    shown = clean(b"\x1b]0;", b"x" * 10_000, b"the end\n")
    assert shown.endswith("the end\n")


@given(STREAMS)
def test_nothing_harmful_comes_through(pieces):
    shown = clean(*pieces)
    assert not HARMFUL.search(shown)
    assert "\x1b" not in shown


@given(STREAMS)
def test_pieces_make_no_difference(pieces):
    assert clean(*pieces) == clean(b"".join(pieces))


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"])))
def test_plain_text_is_left_alone(text):
    assert clean(text.encode()) == text


@pytest.mark.parametrize(
    "unit",
    [b"\x1b]", b"\x1bP", b"\x1b[", b"\x1b", b"\x1b]a\x1b", b"\x1b[1;", b"\x1b ", b"\x1b]\xc2"],
)
def test_hostile_output_does_not_take_for_ever(unit):
    data = unit * (65_536 // len(unit))
    started = time.process_time()
    clean(data, data)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("start", ["\x1b[", "\x1b[0 ", "\x1b]", "\x1b ", "\x1bP"])
def test_a_sequence_without_an_end_is_not_held_back_for_ever(start):
    """As a control, the first pieces of it are: it may still become a sequence."""
    cleaner = Cleaner()
    piece = b" " * 16 if start.endswith(" ") else b"0" * 256
    assert cleaner.clean(start.encode()) == ""
    shown = [cleaner.clean(piece) for _ in range(40)]
    assert shown[-1]
    assert sum(map(len, shown)) >= 30 * len(piece)
    assert not HARMFUL.search("".join(shown))
