"""Parses and renders sizes, durations, and numbers of tokens.

They are used as limits, so zero is invalid.
"""

from __future__ import annotations

import math
import re

_TEXT_LENGTH = 40
_MULTIPLES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(-?)([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)
SIZE_LIMIT_BYTES = 1 << 62
"""Kernels use signed 64-bit sizes; this leaves room for sums."""

_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile("(-?)" + "".join(f"(?:({_NUMBER}){unit})?" for unit in _MILLISECONDS))
_SECONDS = re.compile(f"(-?)({_NUMBER})")
DURATION_LIMIT_S = 366 * 86_400.0
"""Keeps timers and deadlines within their ranges."""

_TOKENS = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kKmM]?)")
_TOKEN_MULTIPLES = {"": 1, "k": 1_000, "m": 1_000_000}
TOKEN_LIMIT = 10**15

_NOT_POSITIVE = "must be more than zero"


def parse_size_bytes(text: str, *, minimum_bytes: int = 1) -> int:
    """`4G`, `1.5GiB`, `512 MB` or plain bytes; K, M, G and T are binary multiples.

    Raises ValueError for anything else, for less than the minimum and for sizes beyond a kernel's.
    """
    from decimal import Decimal  # noqa: PLC0415 - most commands parse no size

    match = _SIZE.fullmatch(text.strip()) if len(text) <= _TEXT_LENGTH else None
    if match is None:
        raise ValueError("must be a size such as `512M` or `4G`")
    sign, number, letter = match.groups()
    size = int(Decimal(sign + number) * _MULTIPLES[letter.upper()])
    return require_size_bytes(size, minimum_bytes=minimum_bytes)


def require_size_bytes(size_bytes: int, *, minimum_bytes: int = 1) -> int:
    """Raises ValueError unless `size_bytes` can be a limit."""
    if size_bytes < 1:
        raise ValueError(_NOT_POSITIVE)
    if size_bytes < minimum_bytes:
        raise ValueError(f"must be at least `{render_size(minimum_bytes)}`")
    if size_bytes > SIZE_LIMIT_BYTES:
        raise ValueError(f"must be at most `{render_size(SIZE_LIMIT_BYTES)}`")
    return size_bytes


def parse_duration_s(text: str) -> float:
    """`2h`, `1h30m`, `500ms`, or a plain number of seconds.

    Raises ValueError for anything else, for zero and for more than a year.
    """
    stripped = text.strip() if len(text) <= _TEXT_LENGTH else ""
    if plain := _SECONDS.fullmatch(stripped):
        return require_duration_s(float("".join(plain.groups())))
    match = _DURATION.fullmatch(stripped)
    if match is None or not any(match.groups()[1:]):
        raise ValueError("must be a duration such as `90s`, `10m` or `1h30m`")
    from decimal import Decimal  # noqa: PLC0415 - as above

    sign, *numbers = match.groups()
    total_ms = sum(
        Decimal(number or 0) * unit_ms
        for number, unit_ms in zip(numbers, _MILLISECONDS.values(), strict=True)
    )
    return require_duration_s(float(-total_ms if sign else total_ms) / 1000)


def require_duration_s(duration_s: float) -> float:
    """Raises ValueError unless `duration_s` can be a limit."""
    if duration_s > DURATION_LIMIT_S:
        raise ValueError(f"must be at most `{render_duration(DURATION_LIMIT_S)}`")
    # Also refuses NaN. Timers treat less than a millisecond as zero.
    if not duration_s >= 0.001:
        raise ValueError(_NOT_POSITIVE)
    return float(duration_s)


def parse_tokens(text: str) -> int:
    """`200k`, `1.5M` or a plain number; k and M are decimal multiples.

    Raises ValueError for anything else, and for less than one token.
    """
    match = _TOKENS.fullmatch(text.strip()) if len(text) <= _TEXT_LENGTH else None
    if match is None:
        raise ValueError("must be a number of tokens such as `200k` or `1.5M`")
    from decimal import Decimal  # noqa: PLC0415 - as above

    return require_tokens(int(Decimal(match[1]) * _TOKEN_MULTIPLES[match[2].lower()]))


def require_tokens(number: int) -> int:
    """Raises ValueError unless it can be a limit."""
    if not 1 <= number <= TOKEN_LIMIT:
        raise ValueError(f"must be from 1 to {TOKEN_LIMIT:,} tokens")
    return number


def counted(number: int, noun: str) -> str:
    """`1 file`, `1,200 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render_size(size_bytes: int) -> str:
    """The shortest form with at most one decimal: `512B`, `1.5G`."""
    if size_bytes < 0:
        raise ValueError("a size is never negative")
    if size_bytes < 1 << 10:
        return f"{size_bytes}B"
    scaled = size_bytes / (1 << 10)
    letters = iter("KMGT")
    letter = next(letters)
    # Compared after rounding, so that 1023.99K becomes 1M and not 1024K.
    while round(scaled, 1) >= 1024 and letter != "T":
        scaled /= 1024
        letter = next(letters)
    return f"{scaled:.1f}".removesuffix(".0") + letter


def render_duration(duration_s: float) -> str:
    """The form that `parse_duration_s` reads, exact to the millisecond: `1h30m`, `500ms`."""
    if not math.isfinite(duration_s) or duration_s < 0:
        raise ValueError("a duration is finite and never negative")
    left = round(duration_s * 1000)
    parts = []
    for unit, unit_ms in _MILLISECONDS.items():
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_count(text: str, *, lowest: int, highest: int) -> int:
    """A whole number between two bounds."""
    if text.isascii() and text.isdigit() and len(text) <= 12 and lowest <= int(text) <= highest:
        return int(text)
    raise ValueError(f"must be a whole number from {lowest} to {highest}")


def parse_number(text: str, *, lowest: float, highest: float) -> float:
    """A number between two bounds, of which the lower one is positive."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    return require_number(number, lowest=lowest, highest=highest)


def require_number(number: float, *, lowest: float, highest: float) -> float:
    # Compared before `float()`, which overflows on an enormous whole number; NaN fails as well.
    if not lowest <= number <= highest:
        raise ValueError(f"must be a number from {lowest} to {highest}")
    return float(number)


def render_usd(number: float) -> str:
    """`$5.02`; small sums with up to four decimals, such as `$0.0018`."""
    text = f"{number:,.4f}" if number < 1 else f"{number:,.2f}"
    whole, _, decimals = text.partition(".")
    return f"${whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"
