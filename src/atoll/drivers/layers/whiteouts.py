"""Keeps the whiteouts of a dependency layer from hiding what other layers hold.

A delta hides what was removed since the layer below it was frozen. If a path of that kind becomes
tracked, or moves into a layer of its own, the whiteout would hide it there, too: such a delta must
not be used any more, and its directory is copied whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from atoll.drivers.layers.carried import Part
from atoll.drivers.layers.carrylist import above
from atoll.host import git

_MOST = 20_000
"""With more whiteouts than this a part is copied whole."""


class Occupied:
    """The paths that a commit tracks and the directories that have layers of their own."""

    def __init__(self, checkout: str, commit: str, directories: Iterable[str]) -> None:
        self._checkout = checkout
        self._commit = commit
        self._directories = frozenset(directories)
        self._known: tuple[frozenset[str], frozenset[str]] | None = None

    def is_hidden_by(self, part: Part) -> bool:
        """Whether a whiteout in the layers of `part` hides something of another layer."""
        if part.hidden is None:
            # Frozen by a version that did not record its whiteouts.
            return len(part.layers) > 1
        return self.meets(part.hidden, part.name)

    def meets(self, hidden: Iterable[str], own: str) -> bool:
        """Whether one of these paths, hidden by the part `own`, is in use elsewhere."""
        paths = tuple(hidden)
        if len(paths) > _MOST:
            return True
        return any(self._is_taken(path, own) for path in paths)

    def _is_taken(self, path: str, own: str) -> bool:
        top = path.partition("/")[0]
        if top != own and top in self._directories:
            return True
        tracked, parents = self._tracked()
        return path in tracked or path in parents or any(up in tracked for up in above(path))

    def _tracked(self) -> tuple[frozenset[str], frozenset[str]]:
        if self._known is None:
            listed = git.git(
                "ls-tree", "-r", "-z", "--name-only", "--full-tree", self._commit,
                cwd=self._checkout,
            )  # fmt: skip
            tracked = frozenset(filter(None, listed.text.split("\0")))
            self._known = tracked, frozenset(up for path in tracked for up in above(path))
        return self._known
