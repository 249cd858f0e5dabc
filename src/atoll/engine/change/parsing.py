"""Parses JSON and TOML that an agent wrote, within bounds; None for what is not acceptable."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping

from atoll.model.tomlkeys import scan_keys

_PARSED_BYTES = 1 << 20
_KEY_DEPTH = 32


class Pairs(tuple[tuple[str, object], ...]):
    """A JSON object with all of its keys, also those that are there twice."""

    __slots__ = ()


def parse_json(
    content: bytes, *, limit_bytes: int = _PARSED_BYTES, as_pairs: bool = False
) -> object | None:
    """A JSON value; an object is a dictionary, or `Pairs` if so asked.

    Without `as_pairs` a key that is there twice is an error: parsers disagree about which counts.
    """
    if len(content) > limit_bytes:
        return None
    try:
        text = content.decode("utf-8-sig")
        found: object = json.loads(text, object_pairs_hook=Pairs if as_pairs else _unique)
        if not as_pairs:
            # What was just shallow enough to be read may be too deep to be compared.
            repr(found)
    except (ValueError, RecursionError):
        return None
    return found


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def parse_toml(content: bytes) -> Mapping[str, object] | None:
    if len(content) > _PARSED_BYTES:
        return None
    try:
        text = content.decode("utf-8-sig")
        # tomllib takes the square of a dotted key's length.
        if any(len(path) > _KEY_DEPTH for path, _ in scan_keys(text)):
            return None
        found = tomllib.loads(text)
        repr(found)
    except (ValueError, RecursionError):
        return None
    return found
