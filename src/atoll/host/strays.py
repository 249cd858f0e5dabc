"""Groups of processes whose Atoll home is gone: removed by hand, nobody else would sweep them.

Every group bears the name of its home. One whose home does not exist any more is removed, if it is
of this user, was marked in this mount namespace (elsewhere the same path may be another place) and
is empty. Where the kernel takes no marks nothing is swept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_HOME = "user.atoll.home"
_NAME = re.compile(r"[0-9a-f]{8}-[0-9]+")


def mark(directories: Iterable[str], home: Path) -> None:
    """Writes down for which home the directories of a group were made."""
    value = f"{_namespace()} {home}".encode(errors="surrogateescape")
    for directory in set(directories):
        with suppress(OSError):  # it is only swept less well
            os.setxattr(directory, _HOME, value)


def sweep(parents: Iterable[str]) -> None:
    """Removes what is astray in the directories of groups."""
    namespace = _namespace()
    for parent in set(parents):
        for name in _names(parent):
            path = os.path.join(parent, name)
            if _is_astray(path, namespace):
                # The kernel itself refuses to remove one that holds a process or another group.
                with suppress(OSError):
                    os.rmdir(path)


def _names(parent: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(parent) if _NAME.fullmatch(name))
    except OSError:
        return []


def _is_astray(group: str, namespace: int) -> bool:
    try:
        if os.stat(group).st_uid != os.geteuid():
            return False
        made_in, _, home = os.getxattr(group, _HOME).decode(errors="surrogateescape").partition(" ")
    except OSError:
        return False
    return made_in == str(namespace) and os.path.isabs(home) and _is_gone(home)


def _is_gone(path: str) -> bool:
    """Not what cannot be looked at: only what the kernel says is not there."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _namespace() -> int:
    return os.stat("/proc/self/ns/mnt").st_ino
