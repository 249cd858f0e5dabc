"""Selects what a capsule gets from the owner's checkout besides the commit. Copies nothing.

Candidates are the entries that git reports as ignored, changed or untracked, and dependency
directories even where no rule ignores them. `project.carry` selects among the ignored ones. Files
that look like secrets are left out unless `project.carry` names them; `project.never` always wins.
Every entry left out is reported with a reason.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.dependency_detection import find_dependency_directories
from atoll.host import git
from atoll.host.files import read_regular
from atoll.host.tree.manifests import LeftOut, Skip, is_gone
from atoll.model import secretfiles
from atoll.model.errors import SpecError, StateError
from atoll.model.names import printable
from atoll.model.rules import require_inner_path
from atoll.model.secretfiles import find_directory_rule, fits, names_secret, stands_for

_BEYOND_A_LINK = 128


class CarryList:
    """The paths and patterns of `project.carry`; without that key everything is selected."""

    def __init__(self, checkout: str, carry: Sequence[str] | None) -> None:
        self._root = checkout
        self._all = carry is None
        self._patterns = tuple(_parse_wish(text) for text in carry or ())
        self._met: set[tuple[str, ...]] = set()

    def chosen(self, entries: Iterable[str]) -> list[str]:
        """The selected ones of these ignored entries, or what is listed inside them."""
        if self._all:
            return list(topmost(entries))
        found: set[str] = set()
        for entry in entries:
            parts = entry.split("/")
            above = [parts[:count] for count in range(1, len(parts) + 1)]
            for wish in self._patterns:
                inner = [entry] if any(fits(at, wish) for at in above) else self._inner(parts, wish)
                if inner:
                    found.update(inner)
                    self._met.add(wish)
        return list(topmost(found))

    def _inner(self, parts: Sequence[str], wish: tuple[str, ...]) -> list[str]:
        """Matches of a pattern below an ignored directory; `**` is not searched there."""
        if "**" in wish or len(wish) <= len(parts) or not fits(parts, wish[: len(parts)]):
            return []
        found = ["/".join(parts)]
        for piece in wish[len(parts) :]:
            found = [
                f"{place}/{name}"
                for place in found
                for name in _names_in(f"{self._root}/{place}")
                if stands_for(piece, name) and name.lower() != ".git"
            ]
        return found

    def unmet(self) -> Iterator[str]:
        """Listed paths that git does not ignore: untracked files, which only `--dirty` copies."""
        paths = ["/".join(wish) for wish in self._patterns if wish not in self._met]
        there = [path for path in paths if os.path.lexists(f"{self._root}/{path}")]
        if there:
            listed = git.git(
                "--literal-pathspecs", "ls-files", "--others", "--exclude-standard", "--directory",
                "-z", "--", *there, cwd=self._root, allowed=(0, _BEYOND_A_LINK),
            )  # fmt: skip
            yield from (path.removesuffix("/") for path in listed.text.split("\0") if path)

    def names(self, parts: Sequence[str]) -> bool:
        """Whether a secret is listed, by itself or by its secret directory."""
        return any(
            fits(parts[:count], wish) and names_secret(wish[-1])
            for wish in self._patterns
            for count in range(1, len(parts) + 1)
            if count == len(parts) or find_directory_rule(parts[count - 1])
        )


def _parse_wish(text: str) -> tuple[str, ...]:
    try:
        return tuple(require_inner_path(text).split("/"))
    except ValueError as error:
        raise SpecError(f"`project.carry`: `{printable(text)}` {error}") from error


def _names_in(place: str) -> list[str]:
    """The names in a directory; empty for a link and for one that cannot be listed."""
    try:
        return sorted(os.listdir(place)) if stat.S_ISDIR(os.lstat(place).st_mode) else []
    except OSError:
        return []


def topmost(paths: Iterable[str]) -> Iterator[str]:
    """The paths in order, without those that are below another."""
    above = "/"
    for path in sorted(paths, key=lambda path: f"{path}/"):
        if not path.startswith(above):
            above = f"{path}/"
            yield path


def above(path: str) -> Iterator[str]:
    """The parent directories of a path, nearest first, without the root."""
    parent = path.rpartition("/")[0]
    while parent:
        yield parent
        parent = parent.rpartition("/")[0]


UNREADABLE = "it cannot be read"
SUBMODULE = "a submodule"
_UNLISTED = "not listed in `project.carry`"
_UNTRACKED = "not ignored by git, so only `--dirty` copies it"
_REPOSITORY = "a nested repository"

_HEAD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNOPENED = re.compile(rb"^warning: could not open directory '(.+)/': ", re.MULTILINE)
_LOOKED_AT = 256
_SUBMODULE_MODE = "160000"


class CarrySelection(NamedTuple):
    """Paths from the checkout's root; none is below another."""

    directories: tuple[str, ...]
    """Ignored directories directly in the root: each becomes a layer."""
    rest: tuple[str, ...]
    """All other ignored entries, directories or files: together one layer."""
    left_out: tuple[LeftOut, ...]
    """Of these entries only: `skipper` gives the reasons for what is inside them."""
    unignored: tuple[str, ...] = ()
    """Selected dependency directories that no rule ignores."""


class Dirty(NamedTuple):
    """What `--dirty` copies. Removals are applied first; a changed path replaces what exists."""

    changed: tuple[str, ...]
    """Files and symbolic links."""
    removed: tuple[str, ...]
    left_out: tuple[LeftOut, ...]


def find_carried(
    checkout: str, *, carry: Sequence[str] | None, never: Sequence[str], home: str | None = None
) -> CarrySelection:
    """Selects ignored entries and dependency directories: all of them, or those in `carry`.

    `home` is Atoll's home, which may be inside. Raises SpecError for an entry of `carry` that
    leaves the root or is below `.git`.
    """
    judge = _Judge(checkout, carry=carry, never=never, home=home)
    dependencies = _unignored_dependencies(checkout)
    entries = {**_ignored(checkout), **dict.fromkeys(dependencies, True)}
    chosen = judge.listed.chosen(entries)
    covered = {above for path in chosen for above in _upwards(path)}
    left_out = {path: _UNLISTED for path in topmost(entries) if path not in covered}
    directories: list[str] = []
    rest: list[str] = []
    for path in chosen:
        place, reason = judge.find_path_reason(path)
        if reason is not None:
            left_out[place] = reason
        elif entries.get(path) and "/" not in path:
            directories.append(path)
        else:
            rest.append(path)
    left_out.update(dict.fromkeys(judge.listed.unmet(), _UNTRACKED))
    unignored = sorted({*directories, *rest}.intersection(dependencies))
    return CarrySelection(tuple(directories), tuple(rest), _listed(left_out), tuple(unignored))


def skipper(
    checkout: str, *, carry: Sequence[str] | None, never: Sequence[str], home: str | None = None
) -> Skip:
    """A filter for scans of what `find_carried` selected: returns why an entry is left out.

    It takes the path from the checkout's root and the entry. Special files are left to the scan.
    """
    judge = _Judge(checkout, carry=carry, never=never, home=home)

    def skip(path: str, entry: os.DirEntry[str]) -> str | None:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        return judge.find_reason(path, entry.name, mode)

    return skip


def dirty_paths(
    checkout: str,
    commit: str,
    *,
    carry: Sequence[str] | None,
    never: Sequence[str],
    home: str | None = None,
) -> Dirty:
    """What in the owner's checkout differs from `commit`, staged or not, and untracked files.

    A changed file that looks like a secret keeps its committed content. Paths flagged
    `--skip-worktree` or `--assume-unchanged` in the index are skipped here as well.
    """
    judge = _Judge(checkout, carry=carry, never=never, home=home)
    untracked, left_out = _untracked(checkout, judge)
    candidates = set(untracked)
    removed: set[str] = set()
    for path, before, after in _differences(checkout, commit):
        if _SUBMODULE_MODE in {before, after}:
            left_out[path] = SUBMODULE
        elif after.strip("0") or judge.is_there(path):
            candidates.add(path)
        else:
            removed.add(path)
    changed: list[str] = []
    for path in sorted(candidates):
        place, reason = judge.find_path_reason(path)
        if reason is None:
            changed.append(path)
        else:
            left_out[place] = reason
    return Dirty(tuple(changed), tuple(sorted(removed - candidates)), _listed(left_out))


def tracked_secrets(checkout: str) -> list[LeftOut]:
    """Tracked files that look like secrets. They are not left out: they are in the commit."""
    judge = _Judge(checkout)
    found = ((path, judge.find_secret(path)) for path in git.tracked(cwd=checkout))
    return [
        LeftOut(path, f"{reason}, which git tracks") for path, reason in found if reason is not None
    ]


def _listed(left_out: dict[str, str]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(path, reason) for path, reason in sorted(left_out.items()))


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def _ignored(checkout: str) -> dict[str, bool]:
    """The ignored entries, each with whether it is a directory; some are below others.

    `ls-files` instead of `status`: it does not stat tracked files, and it reports a directory
    as ignored when only its own `.gitignore` does so, as in virtual environments.
    """
    listed = git.git(
        "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z",
        cwd=checkout,
    )  # fmt: skip
    entries = filter(None, listed.text.split("\0"))
    return {entry.removesuffix("/"): entry.endswith("/") for entry in entries}


def _unignored_dependencies(checkout: str) -> list[str]:
    """Dependency directories that git neither tracks nor ignores."""
    listed = git.git(
        "ls-files", "--others", "--exclude-standard", "--directory", "-z", cwd=checkout
    )
    untracked = [path[:-1] for path in listed.text.split("\0") if path.endswith("/")]
    return find_dependency_directories(checkout, untracked)


def _untracked(checkout: str, judge: _Judge) -> tuple[list[str], dict[str, str]]:
    """Files that git neither tracks nor ignores, and those that cannot be copied."""
    listed = git.git("ls-files", "--others", "--exclude-standard", "-z", cwd=checkout)
    left_out = {os.fsdecode(name): UNREADABLE for name in _UNOPENED.findall(listed.stderr)}
    files: list[str] = []
    # Entries of dependency layers are not changes.
    dependencies = judge.listed.chosen(_unignored_dependencies(checkout))
    carried = tuple(f"{path}/" for path in dependencies)
    for path in filter(None, listed.text.split("\0")):
        if path.startswith(carried):
            continue
        if path.endswith("/"):
            # Git lists files; it lists a directory only if it is a nested repository.
            place, reason = judge.find_path_reason(path[:-1])
            left_out[place] = reason or _REPOSITORY
        else:
            files.append(path)
    return files, left_out


def _differences(checkout: str, commit: str) -> Iterator[tuple[str, str, str]]:
    """(path, mode before, mode after) of tracked files that differ; `000000` is no file."""
    answer = git.git(
        "diff", "--raw", "-z", "--no-abbrev", "--no-renames", "--no-ext-diff", "--no-textconv",
        "--no-color", "--no-relative", "--ignore-submodules=none", "--end-of-options", commit, "--",
        cwd=checkout,
    )  # fmt: skip
    fields = answer.text.split("\0")
    for head, path in zip(fields[0::2], fields[1::2], strict=False):
        before, after, _ = head.removeprefix(":").split(" ", 2)
        yield path, before, after


class _Judge:
    """Decides what is left out of the capsules of one checkout, and why."""

    def __init__(
        self,
        checkout: str,
        *,
        carry: Sequence[str] | None = None,
        never: Sequence[str] = (),
        home: str | None = None,
    ) -> None:
        self._root = checkout
        self._never = secretfiles.Globs(never) if never else None
        self._blocked = _blocked(checkout, home)
        self._parents: dict[str, str | None] = {}
        self.listed = CarryList(checkout, carry)

    def find_reason(self, path: str, name: str, mode: int) -> str | None:
        """Why one entry is left out, regardless of its parents. Called for every file of a tree."""
        is_directory = mode & 0o170000 == 0o040000
        if reason := self._find_barred(path, is_directory=is_directory):
            return reason
        if reason := self._find_secret(path, name, mode):
            return reason
        # A world-readable file needs no further check.
        needed = 0o555 if is_directory else 0o444
        if mode & needed == needed or stat.S_ISLNK(mode):
            return None
        how = os.R_OK | os.X_OK if is_directory else os.R_OK
        return None if os.access(f"{self._root}/{path}", how) else UNREADABLE

    def find_path_reason(self, path: str) -> tuple[str, str | None]:
        """Why a path listed by git is left out, and which path (itself or a parent) causes it."""
        *parents, name = path.split("/")
        is_named = self.listed.names([*parents, name])
        parent = ""
        for part in parents:
            parent = f"{parent}/{part}" if parent else part
            reason = self._find_barred(parent, is_directory=True)
            if reason is None and not is_named:
                reason = self._find_parent_secret(parent, part)
            if reason is not None:
                return parent, reason
        try:
            mode = os.lstat(f"{self._root}/{path}").st_mode
        except OSError as error:
            return path, None if is_gone(error) else UNREADABLE
        return path, self.find_reason(path, name, mode)

    def find_secret(self, path: str) -> str | None:
        """Why a file is a secret, by its own name or that of a parent directory."""
        *parents, name = path.split("/")
        if any(map(secretfiles.find_directory_rule, parents)) or secretfiles.find_rule(name):
            for count, part in enumerate(parents, 1):
                if reason := self._find_parent_secret("/".join(parents[:count]), part):
                    return reason
            return self._find_secret(path, name, stat.S_IFREG)
        return None

    def is_there(self, path: str) -> bool:
        """Whether a non-directory exists at a path that crosses no symbolic link."""
        place, *below = path.split("/")
        try:
            for part in below:
                if not stat.S_ISDIR(os.lstat(f"{self._root}/{place}").st_mode):
                    return False
                place = f"{place}/{part}"
            return not stat.S_ISDIR(os.lstat(f"{self._root}/{place}").st_mode)
        except OSError as error:
            return isinstance(error, PermissionError)

    def _find_barred(self, path: str, *, is_directory: bool) -> str | None:
        if path in self._blocked:
            return self._blocked[path]
        if self._never and (pattern := self._never.find(path, is_directory=is_directory)):
            return f"`{pattern}` is in `project.never`"
        return None

    def _find_secret(self, path: str, name: str, mode: int) -> str | None:
        reason: str | None
        if mode & 0o170000 == 0o040000:
            directory = secretfiles.find_directory_rule(name)
            if directory is None or self._is_harmless(directory, path):
                return None
            reason = directory.reason
        elif name == ".git":
            return "a link to a repository elsewhere"
        else:
            rule = secretfiles.find_rule(name)
            if rule is None:
                return None
            reason = self._find_file_reason(rule, path, mode)
        return None if reason is None or self.listed.names(path.split("/")) else reason

    def _find_parent_secret(self, path: str, name: str) -> str | None:
        """Checks a parent directory; cached, since many paths share it."""
        if path not in self._parents:
            self._parents[path] = self._find_secret(path, name, stat.S_IFDIR)
        return self._parents[path]

    def _find_file_reason(
        self, rule: secretfiles.SecretFileRule, path: str, mode: int
    ) -> str | None:
        parent = path.lower().rpartition("/")[0].rpartition("/")[2]
        if rule.within and parent not in rule.within:
            return None
        if rule.content is None:
            return rule.reason
        # A link holds nothing itself.
        content = _head(f"{self._root}/{path}") if stat.S_ISREG(mode) else b""
        if content is None:
            return UNREADABLE
        return rule.reason if rule.fits(content) else None

    def _is_harmless(self, rule: secretfiles.DirectoryRule, path: str) -> bool:
        names = islice(_names_below(f"{self._root}/{path}"), _LOOKED_AT)
        return bool(rule.harmless) and any(re.search(rule.harmless, name) for name in names)


def _names_below(place: str) -> Iterator[str]:
    for _, directories, files in os.walk(place):
        yield from files
        yield from directories


def _head(place: str) -> bytes | None:
    """The beginning of a regular file; empty for other types; None without permission."""
    try:
        handle = os.open(place, _HEAD)
    except OSError as error:
        return None if isinstance(error, PermissionError) else b""
    try:
        is_regular = stat.S_ISREG(os.fstat(handle).st_mode)
        return os.read(handle, secretfiles.READ_BYTES) if is_regular else b""
    finally:
        os.close(handle)


def _blocked(checkout: str, home: str | None) -> dict[str, str]:
    """Paths in the project's directory that are not part of the project."""
    root = os.path.realpath(checkout).rstrip("/")
    places: list[tuple[str, str]] = []
    listed = git.git("worktree", "list", "--porcelain", "-z", cwd=checkout).text
    for record in filter(None, listed.split("\0\0")):
        place, *attributes = record.removeprefix("worktree ").split("\0")
        if not any(attribute.startswith("prunable") for attribute in attributes):
            places.append((place, "a worktree of this repository"))
    places.append((f"{root}/.git", "git's own directory"))
    with suppress(StateError):
        # A `.git` file refers to the git directory, which may be inside the checkout.
        link = read_regular(Path(root, ".git"), limit_bytes=1 << 16) or b""
        target = os.fsdecode(link.removeprefix(b"gitdir: ").rstrip(b"\n"))
        places.append((os.path.join(root, target), "git's own directory"))
    if home is not None:
        places.append((home, "Atoll's home directory"))
    real = ((os.path.realpath(place), reason) for place, reason in places)
    return {
        place[len(root) + 1 :]: reason for place, reason in real if place.startswith(f"{root}/")
    }
