"""The trees of cgroups that are mounted here, and where in each of them this process is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple


class Hierarchy(NamedTuple):
    """One mounted tree of groups."""

    controllers: frozenset[str]
    """Those of version 1; in version 2 each directory tells its own."""
    is_unified: bool
    mount: str
    own: str
    """The directory of the process, or the mount if that cannot be seen."""

    def candidates(self) -> list[str]:
        """The directories from the mount down to our own."""
        found = [self.mount]
        for part in PurePosixPath(self.own).relative_to(self.mount).parts:
            found.append(os.path.join(found[-1], part))
        return found


def parse_hierarchies(mountinfo: str, cgroup: str) -> list[Hierarchy]:
    """From the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`."""
    ours: dict[frozenset[str], str] = {}
    for line in filter(None, cgroup.split("\n")):
        _, listed, path = line.split(":", 2)
        ours[frozenset(listed.split(",")) - {""}] = path
    found = []
    for line in mountinfo.split("\n"):
        left, _, right = line.partition(" - ")
        kind = right.partition(" ")[0]
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = (_unescaped(field) for field in left.split(" ")[3:5])
        is_unified = kind == "cgroup2"
        options = frozenset(right.rpartition(" ")[2].split(","))
        for names, path in ours.items():
            if not names if is_unified else names and names <= options:
                found.append(Hierarchy(names, is_unified, mount, _seen_at(mount, root, path)))
    return found


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _seen_at(mount: str, root: str, path: str) -> str:
    """Where the group `path` shows if the group `root` is what is mounted."""
    if ".." in path.split("/") or not PurePosixPath(path).is_relative_to(root):
        return mount
    return str(mount / PurePosixPath(path).relative_to(root))


def load_hierarchies(pid: int | str = "self") -> list[Hierarchy]:
    """As this process sees them; `own` is that of the process `pid`, or nothing if it is gone."""
    texts = []
    for place in ("self/mountinfo", f"{pid}/cgroup"):
        try:
            with open(f"/proc/{place}", encoding="utf-8", errors="surrogateescape") as stream:
                texts.append(stream.read())
        except (FileNotFoundError, ProcessLookupError):
            return []
    return parse_hierarchies(*texts)


def find_unified(pid: int | str = "self") -> str | None:
    """The directory of a process in the hierarchy of version 2, if that is mounted."""
    return next((tree.own for tree in load_hierarchies(pid) if tree.is_unified), None)


def can_enter(directories: Iterable[str]) -> bool:
    """Whether this process can move to these groups of version 2: the kernel wants it to have the
    right to move processes in the group that is above both.
    """
    own = find_unified()
    return own is not None and all(
        os.access(os.path.join(os.path.commonpath([own, place]), "cgroup.procs"), os.W_OK)
        for place in directories
    )
