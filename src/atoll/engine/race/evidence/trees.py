"""Trees and commits that Atoll composes in the owner's repository, from objects that are there.

No branch and no file of the owner's changes: an index in Atoll's home is used, and a ref below
`refs/atoll/races/` keeps git from collecting a commit as long as its race is stored.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from atoll.engine.race.evidence.suites import TreeFile
from atoll.engine.state.session import Session
from atoll.host import files, git
from atoll.model.race import Race, race_ref

_DIRECTORY = "trees"
"""Below Atoll's home: indexes that are in use."""
_STALE_S = 86_400.0
_NOBODY = {"NAME": "Atoll", "EMAIL": "atoll@localhost"}


def load_listing(tree: str, *, repository: str) -> dict[str, TreeFile]:
    """Every file of a tree, or of a commit's."""
    answer = git.git("ls-tree", "-r", "-z", "--full-tree", tree, cwd=repository)
    found = {}
    for line in answer.text.split("\0"):
        head, tab, path = line.partition("\t")
        if tab:
            mode, _, blob = head.split(" ")
            found[path] = TreeFile(mode, blob)
    return found


def tree_of(commit: str, *, repository: str) -> str:
    return git.git("rev-parse", "--verify", f"{commit}^{{tree}}", cwd=repository).text.strip()


def write_tree(
    session: Session, tree: str, changes: Mapping[str, TreeFile | None], *, repository: str
) -> str:
    """The tree that differs from another one in these paths; None removes a path."""
    if not changes:
        return tree
    absent = "0" * len(tree)
    # Removals first: a file may take the place of a directory that becomes empty.
    ordered = sorted(changes.items(), key=lambda item: item[1] is not None)
    lines = "".join(
        f"0 {absent}\t{path}\0" if entry is None else f"{entry.mode} {entry.blob}\t{path}\0"
        for path, entry in ordered
    )
    with _scratch(session) as place:
        # Git wants a working tree to add to an index, also of a repository without one.
        env = {"GIT_INDEX_FILE": f"{place}/index", "GIT_DIR": repository, "GIT_WORK_TREE": place}
        plain = ("-c", "index.sparse=false", "-c", "core.splitIndex=false",
                 "-c", "core.untrackedCache=false")  # fmt: skip
        git.git(*plain, "read-tree", tree, cwd=repository, env=env)
        git.git(
            *plain, "update-index", "-z", "--index-info",
            cwd=repository, env=env, stdin=os.fsencode(lines),
        )  # fmt: skip
        return git.git(*plain, "write-tree", cwd=repository, env=env).text.strip()


def write_commit(
    tree: str,
    message: str,
    *,
    parent: str,
    at: float,
    repository: str,
    author: tuple[str, str] = ("", ""),
) -> str:
    """A commit with one parent; the same for the same arguments."""
    name, email = (word or other for word, other in zip(author, _NOBODY.values(), strict=True))
    env = {
        f"GIT_{role}_{part}": word
        for role in ("AUTHOR", "COMMITTER")
        for part, word in (("NAME", name), ("EMAIL", email), ("DATE", f"@{int(at)} +0000"))
    }
    return git.git(
        "-c", "commit.gpgSign=false", "-c", "i18n.commitEncoding=UTF-8",
        "commit-tree", tree, "-p", parent,
        cwd=repository, env=env, stdin=os.fsencode(message) + b"\n",
    ).text.strip()  # fmt: skip


def keep(race: Race, commit: str, *, repository: str) -> None:
    """Protects a commit as long as the race is stored, with the refs of which it goes."""
    ref = race_ref(race.id, commit)
    if git.find_ref(ref, cwd=repository) != commit:
        git.set_ref(ref, commit, cwd=repository)


@contextmanager
def _scratch(session: Session) -> Iterator[str]:
    """An empty directory for an index."""
    place = session.home / _DIRECTORY
    files.make_private_directory(place)
    _sweep(place)
    with tempfile.TemporaryDirectory(dir=place) as made:
        yield made


def _sweep(place: Path) -> None:
    """Removes what killed commands left."""
    for left in place.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                files.remove_tree(left, within=place)
