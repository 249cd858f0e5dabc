"""The submodule layer: what the owner has checked out of them, at the commits that are recorded.

Each has a repository of its own under `.git/modules`, copied from the owner's: its history does
not come through alternates, since the view covers the place where the owner's lies.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.drivers.layers.repository import Source, without_password
from atoll.host import files, git
from atoll.model.errors import StateError

_GITLINK = "160000"


class Submodule(NamedTuple):
    path: str
    commit: str
    git_dir: str
    """The owner's own."""

    @property
    def name(self) -> str:
        """What git files it under; by default its path."""
        return self.git_dir.partition("/modules/")[2] or self.path


def find_submodules(source: Source, links: list[tuple[str, str]]) -> list[Submodule]:
    """Those of (path, commit) that the owner has checked out, with the commit that is wanted."""
    found = []
    for path, commit in links:
        place = os.path.join(source.checkout, path)
        if not os.path.lexists(os.path.join(place, ".git")):
            continue
        own = git.git("rev-parse", "--absolute-git-dir", cwd=place).text.removesuffix("\n")
        if git.find_commit(commit, cwd=place) is not None:
            found.append(Submodule(path=path, commit=commit, git_dir=own))
    return found


def freeze_submodules(pool: Pool, source: Source, links: list[tuple[str, str]]) -> Layer | None:
    """None when there is nothing to freeze."""
    found = find_submodules(source, links)
    if not found:
        return None
    digest = hashlib.blake2b(repr(found).encode(errors="surrogateescape"), digest_size=8)
    name = f"m{digest.hexdigest()}"
    if (known := pool.find(name)) is not None:
        return known
    with pool.building() as place:
        tree = place / "tree" / WORKSPACE
        for submodule in found:
            _check_out(tree, submodule)
        about = "submodules " + ", ".join(submodule.path for submodule in found)
        return pool.freeze(place, Layer(id=name, kind="submodules", about=about))


def _check_out(tree: Path, submodule: Submodule) -> None:
    place = tree / submodule.path
    private = tree / ".git" / "modules" / submodule.name
    if private.resolve() != Path(os.path.abspath(private)) or ".." in Path(submodule.name).parts:
        raise StateError(f"the submodule `{submodule.path}` has a name that leaves its place")
    place.mkdir(parents=True)
    private.parent.mkdir(parents=True, exist_ok=True)
    # Objects are copied, not linked: the owner's may be written by nobody else.
    git.git(
        "clone", "--quiet", "--bare", "--local", "--no-hardlinks", "--",
        submodule.git_dir, str(private), cwd=str(tree), env={"GIT_ALLOW_PROTOCOL": "file"},
    )  # fmt: skip
    url = git.setting("remote.origin.url", cwd=submodule.git_dir)
    settings = {
        "core.bare": "false",
        "core.worktree": os.path.relpath(place, private),
        "remote.origin.url": without_password(url) if url else None,
        "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
    }
    for key, value in settings.items():
        words = ["config", key, value] if value is not None else ["config", "--unset-all", key]
        git.git(*words, cwd=str(private), env={"GIT_DIR": str(private)}, allowed=(0, 5))
    (place / ".git").write_text(f"gitdir: {os.path.relpath(private, place)}\n")
    env = {"GIT_DIR": str(private), "GIT_WORK_TREE": str(place)}
    git.git("update-ref", "--no-deref", "HEAD", submodule.commit, cwd=str(place), env=env)
    files.write_atomic(private / "HEAD", f"{submodule.commit}\n".encode(), durable=False)
    git.git("read-tree", "--reset", "-u", submodule.commit, cwd=str(place), env=env)


def parse_links(listing: str) -> list[tuple[str, str]]:
    """(path, commit) of the submodules in what `ls-tree -r -z --long` printed."""
    rows = [entry.partition("\t") for entry in listing.split("\0") if entry]
    heads = [(head.split(), path) for head, _, path in rows]
    return [(path, words[2]) for words, path in heads if words[0] == _GITLINK]
