"""Finds browsers among the owner's programs."""

from __future__ import annotations

from collections.abc import Iterable

from atoll.host.programs import find_program


def find(names: Iterable[str], path: str, avoid: str) -> str | None:
    """The first of `names` on the owner's PATH, except below `avoid`, the project's directory."""
    found = (find_program(name, path=path, avoid=(avoid,)) for name in names)
    return next(filter(None, found), None)
