"""The owner's settings and memory files that an agent reads too: copies without credentials.

Files are read with bounds, and links are followed narrowly: somebody who can write one program's
directory must not be able to have another file of the owner's copied.

- An item that is itself a link, as dotfile managers make them, is followed if the target has the
  same name, or for a file the same suffix; is in the owner's home; and is neither a secret file,
  nor a login, a history or a session, nor below another program's directory.
- A link inside a directory that is carried is followed within that directory only.
- The secret rules hold for the name of the target as well as for that of the link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers import registry
from atoll.drivers.contracts import HomeFile
from atoll.engine.agent.scrubbing import scrub_file
from atoll.host import files
from atoll.host.programs import is_below
from atoll.model import secretfiles
from atoll.model.adapter import AdapterSpec, Carry, place_inside, place_on_host
from atoll.model.names import printable
from atoll.model.secretfiles import SecretFileRule

FILE_LIMIT_BYTES = 1 << 20
TOTAL_LIMIT_BYTES = 16 << 20
MOST_FILES = 2000
"""Files and directories that are looked at, whether they are copied or not."""
MOST_NOTES = 10
_SKIPPED = frozenset({".git", "node_modules", "__pycache__", ".venv"})
_DOTFILES = (".dotfiles", ".local/share/chezmoi")
"""Hidden directories below HOME in which dotfile managers keep the files of other programs."""
_PRIVATE_NAME = re.compile(
    r"(?i)(?<![a-z])(?:o?auth|history|(?:chat|conversation|cookie|credential|keyring|login"
    r"|secret|session|token|transcript)s?)(?![a-z])"
)
_LINK = "it is a link to another place"


class _LeftOutError(Exception):
    """An item or a file that is not copied, with the reason."""


class _Entry(NamedTuple):
    """Something below an item that is a directory."""

    relative: str
    """The path below the item; empty for an item that is a file."""
    is_directory: bool = False


class _Notes:
    """What was left out, for warnings: the first ones in full, then a number."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._more = 0

    def add(self, path: str, reason: object) -> None:
        if len(self._notes) < MOST_NOTES:
            self._notes.append(f"`{printable(path)}` was not copied: {reason}")
        else:
            self._more += 1

    def all(self, *last: str) -> list[str]:
        more = [f"{self._more} more files were not copied"] if self._more else []
        return [*self._notes, *more, *last]


def carried(wanted: Sequence[Carry], owner: Mapping[str, str]) -> tuple[list[HomeFile], list[str]]:
    """The copies, and what was left out with the reason, for warnings."""
    found: list[HomeFile] = []
    notes = _Notes()
    looked = size_bytes = 0
    for carry in wanted:
        place = place_on_host(carry.path, owner)
        if place is None or not os.path.lexists(place):
            continue
        try:
            real = _resolve(place, owner)
        except _LeftOutError as error:
            notes.add(place, error)
            continue
        for entry in _entries(real):
            looked += 1
            if looked > MOST_FILES or size_bytes > TOTAL_LIMIT_BYTES:
                return found, notes.all(f"`{carry.path}`: too large; not all of it was copied")
            try:
                content = _read(place, real, entry, carry.only)
            except _LeftOutError as error:
                notes.add(os.path.join(place, entry.relative).rstrip("/"), error)
                continue
            if content is not None:
                size_bytes += len(content)
                inside = os.path.join(place_inside(carry.path), entry.relative).rstrip("/")
                found.append(HomeFile(inside, content, is_read_only=not carry.writable))
    return found, notes.all()


def _resolve(place: str, owner: Mapping[str, str]) -> str:
    """The real path of an item. Raises _LeftOutError if it is a link that is not followed.

    A directory around the item may be a link: the program itself keeps its files there.
    """
    here = _where_it_is(place)
    if not os.path.islink(here):
        return here
    real = os.path.realpath(here)
    directory, name = os.path.split(here)
    _require_same_kind(name, real)
    home = os.path.realpath(owner.get("HOME", "/"))
    adapters = registry.adapters({})
    is_own = directory != home and is_below(real, [directory])
    if not is_own and (not is_below(real, [home]) or not _is_open(real, home, adapters, owner)):
        raise _LeftOutError(_LINK)
    parts = os.path.relpath(real, directory if is_own else home).split("/")
    # Programs keep conversations below `projects`; elsewhere in HOME it is an ordinary name.
    is_private = (is_own and "projects" in parts) or any(map(_PRIVATE_NAME.search, parts))
    if is_private or any(map(_is_skipped_directory, parts)):
        raise _LeftOutError("it is a link to private files")
    private = _private_places(adapters, owner)
    if is_below(real, private) or any(is_below(one, [real]) for one in private):
        raise _LeftOutError("it is a link to private files of an agent")
    return real


def _where_it_is(place: str) -> str:
    """The path with all links resolved but the last."""
    return os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))


def _require_same_kind(name: str, real: str) -> None:
    """A link to a directory keeps its name, one to a file at least its suffix."""
    suffix = os.path.splitext(name)[1]
    is_kept = os.path.basename(real) == name
    if not is_kept and (os.path.isdir(real) or not suffix or not real.endswith(suffix)):
        raise _LeftOutError("it is a link to a file of another kind")


def _is_open(
    real: str, home: str, adapters: Mapping[str, AdapterSpec], owner: Mapping[str, str]
) -> bool:
    """Whether a path in the owner's home is in no hidden directory of another program.

    What any adapter carries may be shared between agents.
    """
    relative = os.path.relpath(real, home)
    shared = [place_on_host(carry.path, owner) for one in adapters.values() for carry in one.carry]
    return (
        not relative.startswith(".")
        or is_below(relative, _DOTFILES)
        or is_below(real, [_where_it_is(place) for place in shared if place is not None])
    )


def _private_places(adapters: Mapping[str, AdapterSpec], owner: Mapping[str, str]) -> list[str]:
    """The login files of all agents, and the directories of their sessions."""
    home = owner.get("HOME", "/")
    found: list[str] = []
    for spec in adapters.values():
        logins = [login.file for login in spec.logins if login.file is not None]
        places = [place_on_host(login, owner) for login in logins]
        found += [place for place in places if place is not None]
        if glob := spec.session.transcript:
            found.append(os.path.dirname(f"{home}/{glob.partition('*')[0]}"))
    return [os.path.realpath(place) for place in found]


def _entries(root: str) -> Iterator[_Entry]:
    """The item itself if it is a file, otherwise all that is below it."""
    if not os.path.isdir(root):
        yield _Entry("")
        return
    for directory, names, entries in os.walk(root):
        names[:] = sorted(name for name in names if not _is_skipped_directory(name))
        below = os.path.relpath(directory, root)
        for name in names:
            yield _Entry(os.path.normpath(os.path.join(below, name)), is_directory=True)
        for name in sorted(entries):
            yield _Entry(os.path.normpath(os.path.join(below, name)))


def _is_skipped_directory(name: str) -> bool:
    return name in _SKIPPED or secretfiles.find_directory_rule(name) is not None


def _read(place: str, root: str, entry: _Entry, only: tuple[str, ...]) -> bytes | None:
    """The content for the capsule, None for a directory. Raises _LeftOutError."""
    path = os.path.join(root, entry.relative).rstrip("/")
    real = os.path.realpath(path)
    if entry.is_directory:
        if os.path.islink(path):
            raise _LeftOutError("it is a link to a directory")
        return None
    if not is_below(real, [root]):
        raise _LeftOutError(_LINK)
    fence = root if entry.relative else os.path.dirname(root)
    relative = os.path.relpath(real, fence)
    if any(map(_is_skipped_directory, relative.split("/")[:-1])):
        raise _LeftOutError(_LINK)
    name = os.path.basename(entry.relative or place)
    # Of a link, the whole target counts, although some keys alone would be copied.
    named = {os.path.basename(real): False, name: bool(only)}
    rules = [(secretfiles.find_rule(one), is_picked) for one, is_picked in named.items()]
    content = _content(fence, relative, rules)
    kept = scrub_file(name, content, only=only)
    if kept is None and entry.relative:
        # Such as a picture of a skill: credentials could not be found in it.
        return None
    if kept is None:
        raise _LeftOutError("it is not text")
    return kept


def _content(
    fence: str, relative: str, rules: Sequence[tuple[SecretFileRule | None, bool]]
) -> bytes:
    """The content of a file that no rule calls a secret. Raises _LeftOutError.

    The second part of a rule says that its content does not matter: some keys alone are copied.
    """
    for rule, _ in rules:
        if rule is not None and rule.content is None:
            raise _LeftOutError(f"it looks like {rule.reason}")
    try:
        content = files.read_beneath(Path(fence), relative, limit_bytes=FILE_LIMIT_BYTES)
    except OSError:
        content = None
    if content is None:
        raise _LeftOutError("it cannot be read, or is larger than 1 MiB")
    for rule, is_picked in rules:
        if rule is not None and not is_picked and rule.fits(content[: secretfiles.READ_BYTES]):
            raise _LeftOutError(f"it looks like {rule.reason}")
    return content
