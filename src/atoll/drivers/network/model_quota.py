"""When a model's quota is reset, from an answer with status 429. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

TOO_MANY = 429
LONGEST_S = 8 * 86_400.0
"""Vendors' longest quotas are weekly; a later time is a mistake."""
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(?:([0-9.]{1,12})(ms|d|h|m|s))")
_WHOLE_DURATION = re.compile(r"(?:[0-9.]{1,12}(?:ms|d|h|m|s)){1,5}")
_FINAL = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
"""Kinds of errors that waiting does not change."""


def find_wait_s(
    status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, *, now: float
) -> float | None:
    """After how many seconds the request can be repeated; None when the answer does not say."""
    if status != TOO_MANY:
        return None
    error = _error_of(body)
    if _FINAL.intersection(_texts(error)):
        return None
    known = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    candidates = (
        *_from_retry_after(known, now),
        *_from_body(error, now),
        *_from_moment(known.get(b"anthropic-ratelimit-unified-reset", ""), now),
        *_from_limits(known, now),
    )
    wait = next(iter(candidates), None)
    return None if wait is None else max(0.0, wait)


def _from_retry_after(headers: Mapping[bytes, str], now: float) -> Iterator[float]:
    yield from _bounded(_number(headers.get(b"retry-after-ms", "")), 0.001)
    text = headers.get(b"retry-after", "")
    number = _number(text)
    if number is not None:
        yield from _bounded(number)
    elif text:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        yield from _bounded(moment.timestamp() - now)


def _from_body(error: Mapping[str, Any], now: float) -> Iterator[float]:
    yield from _bounded(_number(error.get("resets_in_seconds")))
    resets_at = _number(error.get("resets_at"))
    if resets_at is not None:
        yield from _bounded(resets_at - now)
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get("retryDelay"), str):
            yield from _bounded(_duration_s(detail["retryDelay"]))


def _from_moment(text: str, now: float) -> Iterator[float]:
    """From a time: seconds of the epoch, or a date."""
    number = _number(text)
    if number is not None:
        yield from _bounded(number - now)
    elif text:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        yield from _bounded(moment.timestamp() - now)


def _from_limits(headers: Mapping[bytes, str], now: float) -> Iterator[float]:
    """From the limits that are used up, the latest reset; of the others, the earliest."""
    used_up, others = list[float](), list[float]()
    for name, text in headers.items():
        match = re.fullmatch(
            rb"(x-ratelimit)-reset(-[a-z-]+)?|(anthropic-ratelimit-[a-z-]+)-reset", name
        )
        if match is None or name == b"anthropic-ratelimit-unified-reset":
            continue
        if match[3]:
            remaining, waits = match[3] + b"-remaining", list(_from_moment(text, now))
        else:
            remaining = match[1] + b"-remaining" + (match[2] or b"")
            waits = list(_bounded(_duration_s(text))) or list(_from_reset(text, now))
        (used_up if headers.get(remaining) == "0" else others).extend(waits)
    if used_up:
        yield max(used_up)
    elif others:
        yield min(others)


def _from_reset(text: str, now: float) -> Iterator[float]:
    """From a plain number, which some vendors mean as a time and others as a duration."""
    number = _number(text)
    if number is not None:
        yield from _bounded(number - now if number > LONGEST_S else number)


def _bounded(wait: float | None, factor: float = 1.0) -> Iterator[float]:
    if wait is not None and math.isfinite(wait) and wait * factor <= LONGEST_S:
        yield wait * factor


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e15 else None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]{1,9})?", value):
        return float(value)
    return None


def _duration_s(text: str) -> float | None:
    """`1h2m3.5s`, `20ms`; None for anything else."""
    if not _WHOLE_DURATION.fullmatch(text):
        return None
    try:
        return sum(float(number) * _UNITS_S[unit] for number, unit in _DURATION.findall(text))
    except ValueError:
        return None


def _error_of(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, list) and value:
        value = value[0]
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {}


def _texts(error: Mapping[str, Any]) -> set[str]:
    return {value for key in ("type", "code") if isinstance(value := error.get(key), str)}
