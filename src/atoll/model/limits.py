"""Limits as text, derived from their declaration in `atoll.model.enclosure`."""

from __future__ import annotations

from atoll.model import units
from atoll.model.enclosure import LimitKind


def parse_limit(kind: LimitKind, text: str) -> float:
    """A limit as it is typed. Raises ValueError for anything else and for what is out of bounds."""
    match kind.unit:
        case "size":
            return units.parse_size_bytes(text, minimum_bytes=int(kind.lowest))
        case "duration":
            return units.parse_duration_s(text)
        case "cpus":
            return units.parse_number(text, lowest=kind.lowest, highest=kind.highest)
        case _:
            return units.parse_count(text, lowest=int(kind.lowest), highest=int(kind.highest))


def render_limit(kind: LimitKind, value: float) -> str:
    """The form that `parse_limit` reads."""
    match kind.unit:
        case "size":
            return units.render_size(int(value))
        case "duration":
            return units.render_duration(value)
        case "cpus":
            return f"{value:g}"
        case _:
            return str(int(value))
