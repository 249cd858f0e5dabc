"""Values that came from inside a capsule or from a repository: hostile until validated.

`Untrusted` holds raw bytes and `InsidePath` a path. Neither is a string or a path, so neither can
be joined to a path of the host, passed to a program, stored or compared with trusted text: mypy
refuses it, and formatting one raises TypeError. Use the validator for the intended purpose.
Validators never raise: None means "not acceptable".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import total_ordering
from typing import NewType, NoReturn

from atoll.model.names import printable

ObjectId = NewType("ObjectId", str)
"""A full object id in lower-case hexadecimal: safe as an argument and in a path."""
RefName = NewType("RefName", str)
"""A full ref name below `refs/`, by git's own rules."""
ModuleName = NewType("ModuleName", str)
"""The directory of a submodule's repository below `.git/modules`: safe for terminals and git."""

_OBJECT_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF_NAME = re.compile(r"refs(/[^\x00-\x20\x7f~^:?*\[\\/]+)+")
_REF_BYTES = 1024
_PATH_BYTES = 4096
_SHOWN_CHARACTERS = 400
_NOT_PLAIN = frozenset({b"", b".", b".."})
_NAME_BYTES = 255
_MODULE_BYTES = 1024
_OF_GIT = frozenset({
    ".git", "branches", "commondir", "config", "config.worktree", "description", "gitdir", "head",
    "hooks", "index", "info", "logs", "objects", "packed-refs", "refs", "shallow", "worktrees",
})  # fmt: skip
"""Names that git uses in a repository, except `modules`, which holds nested submodules."""


class Untrusted:
    """Bytes from inside a capsule. Only the validators of this module read them."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    def __repr__(self) -> str:
        return f"<untrusted, {len(self._raw)} bytes>"

    def __str__(self) -> NoReturn:
        raise TypeError("an untrusted value has to be validated before it is used as text")

    def __format__(self, format_spec: str) -> NoReturn:
        raise TypeError("an untrusted value has to be validated before it is used as text")


@total_ordering
class InsidePath:
    """A relative path in a capsule's workspace or in a git tree: plain names separated by `/`.

    Created by `find_path`, or by adding a name from a directory listing. It never has an empty
    part, `.`, `..` or a NUL, so it stays beneath the directory in which it is resolved, provided
    that no link is followed: open it only with `atoll.host.beneath`.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        if not _is_plain(raw):
            raise ValueError("not a plain relative path")
        self._raw = raw

    @property
    def raw(self) -> bytes:
        """For NUL-separated input of a program and for descriptor-relative calls."""
        return self._raw

    @property
    def name(self) -> bytes:
        return self._raw.rpartition(b"/")[2]

    @property
    def parts(self) -> list[bytes]:
        return self._raw.split(b"/")

    @property
    def parent(self) -> InsidePath | None:
        """The directory that holds it; None at the top."""
        above = self._raw.rpartition(b"/")[0]
        return _made(above) if above else None

    def parents(self) -> Iterator[InsidePath]:
        """From the innermost to the outermost."""
        place = self.parent
        while place is not None:
            yield place
            place = place.parent

    def child(self, name: bytes) -> InsidePath:
        if b"/" in name:
            raise ValueError("a name has no `/`")
        if len(self._raw) + len(name) >= _PATH_BYTES or not _is_plain(name):
            raise ValueError("not a plain relative path")
        return _made(self._raw + b"/" + name)

    def is_below(self, other: InsidePath) -> bool:
        return self._raw == other.raw or self._raw.startswith(other.raw + b"/")

    def quoted(self) -> bytes:
        """Quoted as in git's machine formats: safe on a line of its own."""
        escaped = b"".join(_escaped(byte) for byte in self._raw)
        return b'"' + escaped + b'"'

    def shown(self) -> str:
        """For people, logs and JSON: no control characters, bounded length."""
        return show(Untrusted(self._raw))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InsidePath) and self._raw == other.raw

    def __lt__(self, other: InsidePath) -> bool:
        return self._raw < other.raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        return f"<inside: {self.shown()}>"

    def __str__(self) -> NoReturn:
        raise TypeError("a path from inside a capsule is shown with `shown()`")

    def __format__(self, format_spec: str) -> NoReturn:
        raise TypeError("a path from inside a capsule is shown with `shown()`")


def directories_of(paths: Iterable[InsidePath]) -> set[InsidePath]:
    """All parent directories of these paths."""
    found: set[InsidePath] = set()
    for path in paths:
        place = path.parent
        while place is not None and place not in found:
            found.add(place)
            place = place.parent
    return found


def _made(raw: bytes) -> InsidePath:
    """Builds a path that is known to be plain."""
    path = InsidePath.__new__(InsidePath)
    path._raw = raw  # noqa: SLF001 - its constructor, without the check
    return path


def _is_plain(raw: bytes) -> bool:
    if not 0 < len(raw) <= _PATH_BYTES or b"\0" in raw:
        return False
    return _NOT_PLAIN.isdisjoint(raw.split(b"/"))


def _escaped(byte: int) -> bytes:
    if byte in b'"\\':
        return b"\\" + bytes([byte])
    return bytes([byte]) if 0x20 <= byte < 0x7F else f"\\{byte:03o}".encode()


def find_path(value: Untrusted) -> InsidePath | None:
    """A path that stays beneath the directory in which it is resolved."""
    return InsidePath(value._raw) if _is_plain(value._raw) else None  # noqa: SLF001 - a validator


def find_link_target(value: Untrusted) -> bytes | None:
    """The target for a copy of a symbolic link. It may point anywhere: never follow it."""
    raw = value._raw  # noqa: SLF001 - a validator
    return raw if 0 < len(raw) < _PATH_BYTES and b"\0" not in raw else None


def find_object_id(value: Untrusted) -> ObjectId | None:
    raw = value._raw  # noqa: SLF001 - a validator
    return ObjectId(raw.decode("ascii")) if _OBJECT_ID.fullmatch(raw) else None


def find_ref_name(value: Untrusted) -> RefName | None:
    """A full ref name as `git check-ref-format` accepts it."""
    raw = value._raw  # noqa: SLF001 - a validator
    text = os.fsdecode(raw)
    if len(raw) > _REF_BYTES or not _REF_NAME.fullmatch(text):
        return None
    parts = text.split("/")
    if any(part.startswith(".") or part.endswith((".", ".lock")) for part in parts):
        return None
    return None if ".." in text or "@{" in text else RefName(text)


def find_module_name(value: Untrusted) -> ModuleName | None:
    """A directory name below the owner's `.git/modules`, possibly with `/`: no control character,
    no leading `-`, no `.lock`, and no name that git uses itself.
    """
    raw = value._raw  # noqa: SLF001 - a validator
    text = os.fsdecode(raw)
    if len(raw) > _MODULE_BYTES or not _is_plain(raw) or not text.isprintable() or "\\" in text:
        return None
    parts = text.lower().split("/")
    if any(part in _OF_GIT or part.startswith("-") or part != part.strip(" ") for part in parts):
        return None
    if any(part.endswith((".lock", ".")) or len(os.fsencode(part)) > _NAME_BYTES for part in parts):
        return None
    return ModuleName(text)


def find_number(value: Untrusted, *, most: int) -> int | None:
    """A decimal number from 0 to `most`."""
    raw = value._raw  # noqa: SLF001 - a validator
    if not 0 < len(raw) <= len(str(most)) or not raw.isdigit():
        return None
    number = int(raw)
    return number if number <= most else None


def as_content(value: Untrusted) -> bytes:
    """The bytes as content of a git object, where any byte is allowed."""
    return value._raw  # noqa: SLF001 - a validator


def show(value: Untrusted, *, most: int = _SHOWN_CHARACTERS) -> str:
    """For people, logs and JSON: no control characters, at most `most` characters."""
    text = printable(os.fsdecode(value._raw[: most * 4]))  # noqa: SLF001 - a validator
    return text if len(text) <= most else text[: most - 1] + "…"
