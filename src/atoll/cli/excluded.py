"""The line of `atoll new` that says what a capsule does not contain, and how to include it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.model import units
from atoll.model.names import printable

if TYPE_CHECKING:
    from atoll.engine.excluded import Excluded

_NAMED = 3


def render_excluded(found: Excluded, *, dirty: bool) -> str:
    """One line; empty when nothing was left out."""
    parts = []
    if found.uncommitted:
        what = units.counted(len(found.uncommitted), "uncommitted change")
        parts.append(f"{what} ({_names(found.uncommitted)}), include with --dirty")
    if found.secrets:
        count = len(found.secrets)
        what = "1 that looks like a secret" if count == 1 else f"{count} that look like secrets"
        wish = json.dumps(["**", printable(found.secrets[0])], ensure_ascii=False)
        first = found.secrets[0] in found.untracked_secrets and not dirty
        option = f"{'--dirty and ' if first else ''}`carry = {wish}` under [project] in atoll.toml"
        parts.append(f"{what} ({_names(found.secrets)}), include with {option}")
    if found.unreadable:
        parts.append(f"{len(found.unreadable)} that cannot be read ({_names(found.unreadable)})")
    if found.submodules:
        what = units.counted(len(found.submodules), "submodule")
        parts.append(
            f"changes in {what} ({_names(found.submodules)}), which --dirty does not include"
        )
    return f"left out: {'; '.join(parts)}" if parts else ""


def _names(paths: Sequence[str]) -> str:
    shown = ", ".join(printable(path) for path in paths[:_NAMED])
    return f"{shown}, …" if len(paths) > _NAMED else shown
