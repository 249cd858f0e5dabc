"""Finds changed files that can run code on the owner's machine or widen its trust.

They need a yes before they reach the owner's checkout. The list errs on the side of too many, but
ordinary source, test and documentation files are not on it. Hostile content never raises.
"""

from __future__ import annotations

import os
import shlex
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from atoll.engine.change.changes import GITLINK, ChangeKind, Changes, FileChange, show_path
from atoll.engine.change.objects import ObjectReader, open_objects
from atoll.engine.change.risk_rules import WHY, RiskKind, find_kinds, find_link_kinds, plain
from atoll.engine.change.risky_contents import binary_content, rules_for
from atoll.engine.change.sources import SOURCE_BYTES
from atoll.engine.change.tree_links import find_escape
from atoll.host import git
from atoll.model.errors import StateError

_BINARY_BYTES = 8 << 20
_EXAMINED_BYTES = 256 << 20
"""How much content is examined in all."""
_WORD_CHARACTERS = 4096


class RiskyFile(NamedTuple):
    """One reason why one file needs a yes; a file may be listed for several."""

    path: str
    """As in `FileChange`; `change.shown` is for people."""
    kind: RiskKind
    why: str
    change: FileChange


class _Programs(NamedTuple):
    """What the commands of stages name, as plain paths."""

    files: frozenset[str]
    anywhere: frozenset[str]
    """Files that a command may name from another directory than the top."""
    modules: frozenset[str]
    """Python modules or packages, as paths without a suffix."""


def find_risky(
    changes: Changes, *, also: Sequence[str] = (), hooks_path: str | None = None
) -> list[RiskyFile]:
    """The changed files that need a yes, sorted by path.

    `also` are commands of stages, or paths in the project: the files that these name are risky.
    `hooks_path` is `core.hooksPath`; None: what the repository says. Raises DriverError or
    StateError if the repository cannot be read.
    """
    if not changes.is_complete:
        whole = FileChange("", ChangeKind.MODIFIED)
        return [RiskyFile("", RiskKind.UNLISTED, WHY[RiskKind.UNLISTED], whole)]
    if not changes.files:
        return []
    if hooks_path is None:
        hooks_path = _hooks_path(changes.repository)
    programs = _parse_programs(also)
    hooks = _below(changes.repository, hooks_path)
    found = []
    with open_objects(changes.repository) as objects:
        finder = _Finder(changes, objects)
        for change in changes.files:
            reasons = {
                **{kind: WHY[kind] for kind in _kinds(change)},
                **dict(_from_settings(change, programs, hooks)),
                **dict(finder.reasons(change)),
            }
            found += [RiskyFile(change.path, k, why, change) for k, why in reasons.items()]
    return sorted(found, key=lambda risky: (os.fsencode(risky.path), risky.kind))


def _kinds(change: FileChange) -> list[RiskKind]:
    """By the path alone. A link stands for everything below it."""
    return find_link_kinds(change.path) if _is_or_was_link(change) else find_kinds(change.path)


def _is_or_was_link(change: FileChange) -> bool:
    return stat.S_ISLNK(change.old_mode) or stat.S_ISLNK(change.new_mode)


def _parse_programs(also: Iterable[str]) -> _Programs:
    files, anywhere, modules = set(), set(), set()
    for command in also:
        words = _words(command)
        for before, word in zip(["", *words], words, strict=False):
            name = word if before == "-m" else word[2:] if word.startswith("-m") else ""
            parts = plain(name).split(".")
            # Python runs the packages above a module, too.
            modules |= {"/".join(parts[: end + 1]) for end in range(len(parts)) if name}
            file = plain(os.path.normpath(word))
            files.add(file)
            if word.startswith(("/", "$", "~")):
                # Some directory above is the project.
                files |= {file[end + 1 :] for end, c in enumerate(file) if c == "/"}
            elif "." in word or "/" in word:
                anywhere.add(file.removeprefix("../"))
    nothing = {".", "..", ""}
    return _Programs(
        frozenset(files - nothing), frozenset(anywhere - nothing), frozenset(modules - nothing)
    )


def _words(command: str) -> list[str]:
    """The words of a shell command, also those in nested quotes: any may be a program."""
    found = []
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        words = command.split()
    for word in words:
        parts = word[:_WORD_CHARACTERS].split()
        found += [word] if len(parts) < 2 else [word, *parts]
        found += [word.partition("=")[2]] if "=" in word else []
    return [word for word in found if word and "\0" not in word]


def _hooks_path(repository: str) -> str:
    """`core.hooksPath` of the owner; empty for the default."""
    words = ("config", "-z", "--show-scope", "--get-all", "core.hooksPath")
    fields = git.git(*words, cwd=repository, allowed=(0, 1)).text.split("\0")
    # Atoll itself runs every git without hooks: that is of the scope `command`.
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return next((value for scope, value in reversed(list(pairs)) if scope != "command"), "")


def _below(repository: str, hooks_path: str) -> str:
    """The directory of hooks as a plain path in the project; empty if it is elsewhere."""
    if not hooks_path:
        return ""
    root = os.path.dirname(repository)
    place = os.path.relpath(os.path.join(root, os.path.expanduser(hooks_path)), root)
    return "" if place.startswith("..") else plain(place)


def _from_settings(
    change: FileChange, programs: _Programs, hooks: str
) -> Iterator[tuple[RiskKind, str]]:
    path = plain(change.path)
    stem = path.removesuffix(".py").removesuffix("/__main__").removesuffix("/__init__")
    tails = {path[end + 1 :] for end, c in enumerate(path) if c == "/"}
    above = {path[:end] for end, c in enumerate(path) if c == "/"}
    if (
        path in programs.files
        or stem in programs.modules
        or not programs.files.isdisjoint(above)
        or not programs.anywhere.isdisjoint(tails)
    ):
        yield RiskKind.STAGE, WHY[RiskKind.STAGE]
    if hooks and (hooks in {".", path} or path.startswith(f"{hooks}/")):
        yield RiskKind.GIT_HOOK, WHY[RiskKind.GIT_HOOK]
    if _is_or_was_link(change):
        # The link may stand for a directory above these.
        if any(file.startswith(f"{path}/") for file in programs.files | programs.modules):
            yield RiskKind.STAGE, WHY[RiskKind.STAGE]
        if hooks.startswith(f"{path}/"):
            yield RiskKind.GIT_HOOK, WHY[RiskKind.GIT_HOOK]


class _Finder:
    """Finds what needs the content of a file, or its surroundings."""

    def __init__(self, changes: Changes, objects: ObjectReader) -> None:
        self._changes, self._objects = changes, objects
        self._left_bytes = _EXAMINED_BYTES
        self._plain_names: dict[tuple[bytes, ...], Mapping[str, list[bytes]]] = {}

    def reasons(self, change: FileChange) -> Iterator[tuple[RiskKind, str]]:
        if GITLINK in (change.old_mode, change.new_mode):
            yield RiskKind.SUBMODULE, WHY[RiskKind.SUBMODULE]
        if not change.is_deleted:
            if change.is_executable and not _was_executable(change):
                yield RiskKind.EXECUTABLE, WHY[RiskKind.EXECUTABLE]
            why = conceals(change.path) or self._twin(change)
            if why:
                yield RiskKind.NAME, why
        if change.is_link:
            yield from ((rule.kind, "it is a link") for rule in rules_for(change.path))
            why = self._escape(change)
            if why:
                yield RiskKind.LINK, why
        elif change.is_file or change.is_deleted:
            yield from self._content(change)

    def _content(self, change: FileChange) -> Iterator[tuple[RiskKind, str]]:
        for rule in rules_for(change.path):
            old = self._read_old(change, SOURCE_BYTES)
            new = self._read_new(change, SOURCE_BYTES)
            if old is None or new is None:
                yield rule.kind, "it is too large to be compared"
            elif why := rule.judge(old, new):
                yield rule.kind, why
        if change.is_file and change.new_id != change.old_id:
            content = self._read_new(change, _BINARY_BYTES)
            why = "it is too large to be examined" if content is None else binary_content(content)
            if why:
                yield RiskKind.BINARY, why

    def _read_old(self, change: FileChange, limit_bytes: int) -> bytes | None:
        """As `_read_new`, of the version before."""
        if not change.old_id or change.old_mode == GITLINK:
            return b""
        return self._read(change.old_id, change.old_size, limit_bytes)

    def _read_new(self, change: FileChange, limit_bytes: int) -> bytes | None:
        """Empty for what is not there or is no file; None if it is too large."""
        if not change.new_id or change.new_mode == GITLINK:
            return b""
        return self._read(change.new_id, change.new_size, limit_bytes)

    def _read(self, name: str, size_bytes: int | None, limit_bytes: int) -> bytes | None:
        limit_bytes = min(limit_bytes, self._left_bytes)
        content = self._objects.find_blob(name, limit_bytes=limit_bytes, known_bytes=size_bytes)
        self._left_bytes -= len(content or b"")
        return content

    def _escape(self, change: FileChange) -> str:
        try:
            return find_escape(self._objects, self._changes.tip, os.fsencode(change.path))
        except StateError as error:
            return error.message

    def _twin(self, change: FileChange) -> str:
        """Whether another path takes the place of this one where case is ignored."""
        if change.kind is not ChangeKind.ADDED:
            return ""
        parts = os.fsencode(change.path).split(b"/")
        for depth, part in enumerate(parts):
            twins = self._names(tuple(parts[:depth])).get(plain(os.fsdecode(part)), ())
            other = next((name for name in twins if name != part), None)
            if other is not None:
                return f"another name differs only in its form: `{show_path(os.fsdecode(other))}`"
        return ""

    def _names(self, directory: tuple[bytes, ...]) -> Mapping[str, list[bytes]]:
        """The names in a directory of the tip by their plain form."""
        if directory not in self._plain_names:
            found: dict[str, list[bytes]] = {}
            for name in self._objects.names(self._changes.tip, directory):
                found.setdefault(plain(os.fsdecode(name)), []).append(name)
            self._plain_names[directory] = found
        return self._plain_names[directory]


def _was_executable(change: FileChange) -> bool:
    return change.old_mode == change.new_mode


def conceals(path: str) -> str:
    """Why a path is not what it seems; empty for an ordinary one."""
    if any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in path):
        return "its name has control or invisible characters, or is no UTF-8"
    for part in path.split("/"):
        if part != part.rstrip(". ") or part.startswith(" "):
            return "its name begins or ends with a space, or ends with a dot"
        if "\\" in part or ":" in part:
            return "its name has a backslash or colon, which separate names on some systems"
        if is_git_like(part):
            return "some filesystems take its name for `.git`"
    return ""


def is_git_like(part: str) -> bool:
    """Whether a filesystem may take a name for `.git`."""
    name = plain(part)
    return name == ".git" or (name.startswith("git~") and name[4:].isdigit())
