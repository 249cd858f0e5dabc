"""What the suites see with: a whole directory as a value, a refusal, another process."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from atoll.host import locks, process
from atoll.model.plan import Lease

Seen = dict[str, tuple[int, bytes]]
"""Mode and content by path; a link's content is its target, a directory has none."""

ODD = 'it\'s "a" b\nc é -x'
"""A directory name that breaks naive quoting and line splitting."""

_ELSEWHERE = """
import json, sys
from importlib import import_module
from pathlib import Path
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from atoll.model.plan import Lease
driver = getattr(import_module(request["module"]), request["class"])()
plan = Lease.parse(request["kind"], request["plan"]).plan
driver.release(plan, home=Path(request["home"]), **request["options"])
"""


class Named(Protocol):
    @property
    def name(self) -> str: ...


def look(place: Path, *, without: str | None = None) -> Seen:
    """Everything below `place`, links not followed; `without` names one top-level entry."""
    seen: Seen = {}
    for directory, directories, names in os.walk(place):
        if directory == str(place) and without in directories:
            directories.remove(str(without))
        for name in sorted((*directories, *names)):
            path = Path(directory, name)
            if path.parent == place and name == without:
                continue
            seen[str(path.relative_to(place))] = _entry(path)
    return seen


def _entry(path: Path) -> tuple[int, bytes]:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return mode, os.fsencode(path.readlink())
    return mode, path.read_bytes() if stat.S_ISREG(mode) else b""


@contextmanager
def refused(kind: type[BaseException]) -> Iterator[None]:
    """Fails unless the block raises `kind`."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


@contextmanager
def held_lock(place: Path) -> Iterator[int]:
    """The descriptor of a lock that `apply` can hand to its tools."""
    with locks.Lock(place / "lock") as lock:
        lock.acquire(wait=True)
        yield lock.fd


def release_elsewhere(
    driver: Named, lease: Lease, *, home: Path, options: Mapping[str, object] | None = None
) -> None:
    """Calls `release` in a fresh interpreter that knows nothing but the lease.

    The driver's class must be importable by name and need no argument.
    """
    request = {
        "path": sys.path,
        "module": type(driver).__module__,
        "class": type(driver).__qualname__,
        "kind": lease.kind,
        "plan": lease.payload(),
        "home": str(home),
        "options": dict(options or {}),
    }
    process.run((sys.executable, "-c", _ELSEWHERE), stdin=json.dumps(request).encode())
