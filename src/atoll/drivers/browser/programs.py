"""Which of the owner's programs is a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable


def find(names: Iterable[str], path: str, avoid: str) -> str | None:
    """The first of `names` by absolute directories of `path`. Not one that lies below `avoid`:
    what came with a project is nothing to start on the host.
    """
    own = os.path.realpath(avoid)
    places = [p for p in path.split(":") if os.path.isabs(p) and not _is_below(p, own)]
    for name in names:
        if os.path.isabs(name):
            if os.access(name, os.X_OK) and os.path.isfile(name) and not _is_below(name, own):
                return name
        elif found := shutil.which(name, path=":".join(places)):
            return found
    return None


def _is_below(place: str, own: str) -> bool:
    return f"{os.path.realpath(place)}/".startswith(f"{own}/")
