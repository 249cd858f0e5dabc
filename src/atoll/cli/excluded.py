"""The line of `atoll new` that lists what a capsule does not contain, and how to include it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.model import units
from atoll.model.names import printable

if TYPE_CHECKING:
    from atoll.engine.project.excluded import Excluded

_NAMED = 3
_MOST_LISTED = 12
"""A longer list is not repeated in a hint."""


def render_excluded(found: Excluded, *, dirty: bool) -> str:
    """One line; empty when nothing was left out."""
    parts = []
    if found.uncommitted:
        what = units.counted(len(found.uncommitted), "uncommitted change")
        parts.append(f"{what} ({_names(found.uncommitted)}), include with --dirty")
    if found.secrets:
        count = len(found.secrets)
        what = "1 that looks like a secret" if count == 1 else f"{count} that look like secrets"
        wishes = ["--dirty"] if found.untracked_secrets and not dirty else []
        wishes += filter(None, [_wish(found)])
        parts.append(f"{what} ({_names(found.secrets)}), include with {' and '.join(wishes)}")
    if found.unreadable:
        parts.append(f"{len(found.unreadable)} that cannot be read ({_names(found.unreadable)})")
    if found.submodules:
        what = units.counted(len(found.submodules), "submodule")
        parts.append(
            f"changes in {what} ({_names(found.submodules)}), which --dirty does not include"
        )
    return f"left out: {'; '.join(parts)}" if parts else ""


def _wish(found: Excluded) -> str:
    """The line for the project file that names the secrets and keeps what is listed there; empty
    when it lists them all.
    """
    listed = ("**",) if found.carry is None else found.carry
    missing = [path for path in found.secrets if path not in listed]
    if not missing:
        return ""
    fresh = missing[:_MOST_LISTED]
    more = f", and so on ({len(missing)})" if len(missing) > len(fresh) else ""
    if len(listed) > _MOST_LISTED:
        return f"`{_quoted(fresh)}` added to `carry` under [project] in atoll.toml{more}"
    return f"`carry = [{_quoted([*listed, *fresh])}]` under [project] in atoll.toml{more}"


def _quoted(paths: Sequence[str]) -> str:
    return ", ".join(json.dumps(printable(path), ensure_ascii=False) for path in paths)


def _names(paths: Sequence[str]) -> str:
    shown = ", ".join(printable(path) for path in paths[:_NAMED])
    return f"{shown}, …" if len(paths) > _NAMED else shown
