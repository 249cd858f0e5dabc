"""Reads figures from the output of a check: lines `name value [unit] [lower|higher]`, or JSON.

The output is hostile: everything is bounded, only finite numbers count, and lines that are no
figures are skipped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from atoll.model.check import Figure
from atoll.model.names import printable

MOST = 100
LINE_BYTES = 64 << 10
"""A longer line is no figure."""
JSON_BYTES = 1 << 20
"""Of the end of the output, which may be one JSON object of several lines."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/@+\[\]-]{0,63}")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?"
)
_UNIT_LENGTH = 16
_BETTER = ("lower", "higher")


def parse_line(text: str) -> Figure | None:
    """The figure in a line; None if it is none."""
    words = text.split()
    if not 2 <= len(words) <= 4:
        return None
    name, number, *rest = words
    better = rest.pop() if rest and rest[-1] in _BETTER else ""
    if len(rest) > 1 or not _NAME.fullmatch(name) or not _NUMBER.fullmatch(number):
        return None
    return _figure(name, float(number), rest[0] if rest else "", better)


def parse_object(text: str) -> list[Figure]:
    """The figures in a JSON object of numbers, or of objects with `value`, `unit` and `better`."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, dict):
        return []
    figures = (_member(name, value) for name, value in list(found.items())[: MOST * 4])
    return [figure for figure in figures if figure is not None][:MOST]


def parse_figures(lines: Iterable[str], whole: str = "") -> tuple[Figure, ...]:
    """The figures in the lines of an output, in the order of their first appearance.

    `whole` is the output itself, if it may be one JSON object. The last value of a name counts.
    """
    found: dict[str, Figure] = {}
    for line in lines:
        for figure in parse_one(line):
            keep(found, figure)
    if not found and whole.lstrip().startswith("{"):
        for figure in parse_object(whole):
            keep(found, figure)
    return tuple(found.values())


def parse_one(line: str) -> list[Figure]:
    """The figures in one line, which may be a JSON object."""
    if line.lstrip().startswith("{"):
        return parse_object(line)
    figure = parse_line(line)
    return [] if figure is None else [figure]


def keep(found: dict[str, Figure], figure: Figure) -> None:
    """Adds a figure, unless there are too many."""
    if figure.name in found or len(found) < MOST:
        found[figure.name] = figure


def _member(name: str, value: object) -> Figure | None:
    if not _NAME.fullmatch(name):
        return None
    unit = better = ""
    if isinstance(value, Mapping):
        unit, better = (_word(value.get(key)) for key in ("unit", "better"))
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return _figure(name, float(value), unit, better if better in _BETTER else "")
    except OverflowError:
        return None


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _figure(name: str, value: float, unit: str, better: str) -> Figure | None:
    if not math.isfinite(value):
        return None
    return Figure(name, value, printable(unit[:_UNIT_LENGTH]), better)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
