from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.model.units import (
    DURATION_LIMIT_S,
    SIZE_LIMIT_BYTES,
    parse_duration_s,
    parse_size_bytes,
    parse_tokens,
    render_duration,
    render_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("4GiB", 4 << 30),
        ("4 GB", 4 << 30),
        ("1.5G", 3 << 29),
        ("512M", 512 << 20),
        ("1T", 1 << 40),
        ("7K", 7 << 10),
        ("100B", 100),
        ("100", 100),
        (" 1K ", 1024),
    ],
)
def test_sizes_are_binary_multiples(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "G", "4X", "4 0G", "1e9", "4GG", "٤G", "0x10", "inf", "nan", "4G\n5", "1" * 99]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size such as `512M` or `4G`"):
        parse_size_bytes(text)


@pytest.mark.parametrize("text", ["0", "0G", "-4G", "0.1B"])
def test_a_size_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be more than zero"):
        parse_size_bytes(text)


def test_a_size_beyond_the_kernels_is_refused() -> None:
    assert parse_size_bytes(str(SIZE_LIMIT_BYTES)) == SIZE_LIMIT_BYTES
    with pytest.raises(ValueError, match="must be at most `4194304T`"):
        parse_size_bytes(str(SIZE_LIMIT_BYTES + 1))


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("2h", 7200),
        ("1h30m", 5400),
        ("90s", 90),
        ("500ms", 0.5),
        ("1m500ms", 60.5),
        ("1d", 86_400),
        ("1.5h", 5400),
        ("45", 45),
        ("0.25", 0.25),
    ],
)
def test_durations(text: str, duration_s: float) -> None:
    assert parse_duration_s(text) == duration_s


@pytest.mark.parametrize(
    "text", ["", "h", "1h1h", "30m1h", "2 h 3", "2H", "1e3", "nan", "inf", "1h-5m", "9" * 99]
)
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["0", "0s", "-5s", "-1", "0.0001"])
def test_a_duration_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be more than zero"):
        parse_duration_s(text)


def test_more_than_a_year_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at most `366d`"):
        parse_duration_s("367d")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1K"), (3 << 29, "1.5G"), ((1 << 20) - 1, "1M")],
)
def test_sizes_are_shown_short(size_bytes: int, text: str) -> None:
    assert render_size(size_bytes) == text


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_what_is_no_duration_is_not_shown(bad: float) -> None:
    with pytest.raises(ValueError, match="never negative"):
        render_duration(bad)


@given(st.integers(1, 1023), st.sampled_from("KMGT"))
def test_whole_sizes_come_back(count: int, letter: str) -> None:
    assert render_size(parse_size_bytes(f"{count}{letter}")) == f"{count}{letter}"


@given(st.integers(1, SIZE_LIMIT_BYTES))
def test_a_shown_size_is_close_to_the_real_one(size_bytes: int) -> None:
    assert parse_size_bytes(render_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


@given(st.integers(1, int(DURATION_LIMIT_S * 1000)))
def test_durations_come_back_to_the_millisecond(duration_ms: int) -> None:
    assert parse_duration_s(render_duration(duration_ms / 1000)) == duration_ms / 1000


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("1", 1), ("200k", 200_000), ("200K", 200_000), ("1.5M", 1_500_000), (" 2 m ", 2_000_000)],
)
def test_tokens(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "0", "0.1", "-5", "+5", "1e3", "200kk", "k", "9" * 16, "٣"])
def test_what_is_no_number_of_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_tokens(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_size_bytes, parse_duration_s, parse_tokens):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value > 0
