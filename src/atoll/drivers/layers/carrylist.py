"""The list `project.carry`: which of the ignored paths it means, and which secrets it names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from atoll.host import git
from atoll.model.errors import SpecError
from atoll.model.names import printable
from atoll.model.rules import require_inner_path
from atoll.model.secretfiles import find_directory_rule, fits, names_secret, stands_for

_BEYOND_A_LINK = 128


class CarryList:
    """The paths and patterns of `project.carry`; without that key all is wished for."""

    def __init__(self, checkout: str, carry: Sequence[str] | None) -> None:
        self._root = checkout
        self._all = carry is None
        self._patterns = tuple(_parse_wish(text) for text in carry or ())
        self._met: set[tuple[str, ...]] = set()

    def chosen(self, entries: Iterable[str]) -> list[str]:
        """Of the entries that git ignores: those, or what inside of them is listed."""
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
        """What a pattern finds below an ignored directory; `**` is not looked for in there."""
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
        """Listed paths that git does not ignore: untracked files, which wait for `--dirty`."""
        paths = ["/".join(wish) for wish in self._patterns if wish not in self._met]
        there = [path for path in paths if os.path.lexists(f"{self._root}/{path}")]
        if there:
            listed = git.git(
                "--literal-pathspecs", "ls-files", "--others", "--exclude-standard", "--directory",
                "-z", "--", *there, cwd=self._root, allowed=(0, _BEYOND_A_LINK),
            )  # fmt: skip
            yield from (path.removesuffix("/") for path in listed.text.split("\0") if path)

    def names(self, parts: Sequence[str]) -> bool:
        """Whether a path is listed as a secret, itself or with the secret directory it is in."""
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
    """The names in a directory; none when it is a link or cannot be listed."""
    try:
        return sorted(os.listdir(place)) if stat.S_ISDIR(os.lstat(place).st_mode) else []
    except OSError:
        return []


def topmost(paths: Iterable[str]) -> Iterator[str]:
    """The paths in order, without those that lie below another."""
    above = "/"
    for path in sorted(paths, key=lambda path: f"{path}/"):
        if not path.startswith(above):
            above = f"{path}/"
            yield path


def above(path: str) -> Iterator[str]:
    """The directories that hold a path, from the nearest up; not the root."""
    parent = path.rpartition("/")[0]
    while parent:
        yield parent
        parent = parent.rpartition("/")[0]
