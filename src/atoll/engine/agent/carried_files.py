"""The owner's settings and memory files that an agent reads too: copies without credentials.

Files are read with bounds. A link is followed only where it stays inside the directory that the
program keeps its files in: other places of the owner's are not this adapter's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from atoll.drivers.contracts import HomeFile
from atoll.engine.agent.scrubbing import scrub_file
from atoll.host import files
from atoll.host.programs import is_below
from atoll.model import secretfiles
from atoll.model.adapter import Carry, place_inside, place_on_host
from atoll.model.errors import StateError

FILE_LIMIT_BYTES = 1 << 20
TOTAL_LIMIT_BYTES = 16 << 20
MOST_FILES = 2000
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv"})


def carried(wanted: Sequence[Carry], owner: Mapping[str, str]) -> tuple[list[HomeFile], list[str]]:
    """The copies, and what was left out with the reason, for warnings."""
    found: list[HomeFile] = []
    notes: list[str] = []
    for carry in wanted:
        place = place_on_host(carry.path, owner)
        if place is None or not os.path.lexists(place):
            continue
        inside = place_inside(carry.path)
        home = os.path.realpath(owner.get("HOME", "/"))
        fence = _fence(place, home)
        for path, name in _files(place, inside):
            if len(found) >= MOST_FILES or sum(len(f.content) for f in found) > TOTAL_LIMIT_BYTES:
                notes.append(f"`{carry.path}`: too large; not all of it was copied")
                return found, notes
            content = _read(path, name, fence, carry.only)
            if isinstance(content, str):
                notes.append(f"`{path}` was not copied: {content}")
            else:
                found.append(HomeFile(name, content, is_read_only=not carry.writable))
    return found, notes


def _fence(place: str, home: str) -> str:
    """The directory of the program's own files: the first one below the owner's home."""
    parent = os.path.dirname(os.path.abspath(place))
    real = os.path.realpath(parent)
    if is_below(real, [home]) and real != home:
        return os.path.join(home, os.path.relpath(real, home).split("/")[0])
    return real


def _files(place: str, inside: str) -> Iterator[tuple[str, str]]:
    """(path on the host, path below the private home) of a file, or of all files below it."""
    if not os.path.isdir(place):
        yield place, inside
        return
    for directory, names, entries in os.walk(place):
        names[:] = sorted(n for n in names if not _is_skipped_directory(n))
        for entry in sorted(entries):
            path = os.path.join(directory, entry)
            yield path, f"{inside}/{os.path.relpath(path, place)}"


def _is_skipped_directory(name: str) -> bool:
    return name in _SKIPPED or secretfiles.find_directory_rule(name) is not None


def _read(path: str, name: str, fence: str, only: tuple[str, ...]) -> bytes | str:
    """The content for the capsule, or why there is none."""
    real = os.path.realpath(path)
    if not is_below(real, [fence]):
        return "it is a link to another place"
    rule = secretfiles.find_rule(os.path.basename(name))
    if rule is not None and rule.content is None:
        return f"it looks like {rule.reason}"
    try:
        content = files.read_regular(Path(real), limit_bytes=FILE_LIMIT_BYTES)
    except (OSError, StateError):
        return "it cannot be read, or is larger than 1 MiB"
    if content is None:
        return "it has disappeared"
    if rule is not None and not only and rule.fits(content[: secretfiles.READ_BYTES]):
        return f"it looks like {rule.reason}"
    kept = scrub_file(name, content, only=only)
    return "it is not text" if kept is None else kept
