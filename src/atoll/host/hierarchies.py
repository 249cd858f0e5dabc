"""The trees of cgroups that are mounted here, and where in each of them this process is."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import NamedTuple


class Hierarchy(NamedTuple):
    """One mounted tree of groups."""

    controllers: frozenset[str]
    """Those of version 1; in version 2 each directory tells its own."""
    is_unified: bool
    mount: str
    own: str
    """The directory of this process, or the mount if that cannot be seen."""

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


def load_hierarchies() -> list[Hierarchy]:
    texts = []
    for name in ("mountinfo", "cgroup"):
        with open(f"/proc/self/{name}", encoding="utf-8", errors="surrogateescape") as stream:
            texts.append(stream.read())
    return parse_hierarchies(*texts)
