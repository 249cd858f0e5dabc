"""Stand-in repositories: where the work of capsules is stored whose own repository is gone.

A stand-in is a bare repository in `standins/` below Atoll's home. It holds the history that the
capsules were given, copied from their history stores, and recovery points as any other repository
does. Nothing but `atoll recover --drop` removes a point from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers import history
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.repository import PIN_PREFIX
from atoll.host import files, git
from atoll.host.intake.store import OwnerSettings, load_settings, make_repository
from atoll.model.errors import DriverError, StateError
from atoll.model.names import short_hash, slug
from atoll.model.plan import WorkspacePlan

_PLACE = "standins"
BASE_PREFIX = "refs/atoll/bases/"
_BUILDING = ".building-"
_REFS_BYTES = 1 << 28


def has_repository(plan: WorkspacePlan) -> bool:
    """Whether the repository that a workspace was made of is still where it was: not when it was
    removed, moved, or replaced by another one. Raises DriverError or StateError when there is one
    that git cannot read, which says nothing about that.
    """
    if not os.path.isdir(plan.repository):
        return False
    # Pinned when the workspace was made: a look at one file mostly does.
    if plan.pool and os.path.isfile(
        os.path.join(plan.repository, PIN_PREFIX + history.layer_of(plan))
    ):
        return True
    try:
        if git.find_commit(plan.base_commit, cwd=plan.repository) is not None:
            return True
        # It has no such commit, or git cannot read it at all.
        git.git("rev-parse", "--git-dir", cwd=plan.repository)
    except (DriverError, StateError):
        if _is_repository(plan.repository):
            raise
    return False


def _is_repository(place: str) -> bool:
    """Whether a directory looks like a repository, whatever is wrong with it."""
    return os.path.lexists(os.path.join(place, "HEAD")) and os.path.isdir(
        os.path.join(place, "objects")
    )


def stored_in(plan: WorkspacePlan, home: Path) -> WorkspacePlan:
    """The plan with the repository that its work is stored in: its own, or a stand-in."""
    if has_repository(plan):
        return plan
    place = ensure_standin(plan, home)
    # Whatever is at the checkout's place now says nothing about the work.
    return plan._replace(repository=str(place), checkout=str(place / "checkout"))


def all_standins(home: Path) -> list[str]:
    place = home / _PLACE
    found = place.iterdir() if place.is_dir() else ()
    return sorted(str(path) for path in found if path.name.endswith(".git"))


def ensure_standin(plan: WorkspacePlan, home: Path) -> Path:
    """Makes the stand-in for the repository of a workspace, or adds the workspace's history."""
    name = slug(Path(plan.checkout).name) or "project"
    place = home / _PLACE / f"{name}-{short_hash(plan.repository)}.git"
    files.make_private_directory(place.parent)
    layer = Pool(plan.pool).tree(history.layer_of(plan)) / WORKSPACE / ".git" if plan.pool else None
    settings = OwnerSettings()
    if layer is not None and layer.is_dir():
        settings = load_settings(str(layer))
    elif len(plan.base_commit) > 40:
        settings = OwnerSettings(algorithm="sha256")
    if not place.is_dir():
        building = place.with_name(f"{_BUILDING}{os.urandom(6).hex()}")
        make_repository(building, settings)
        os.rename(building, place)
        files.sync_directory(place.parent)
    store = history.find_store(Pool(plan.pool), history.layer_of(plan)) if plan.pool else None
    if store is not None and layer is not None:
        _add_history(place, store, settings.shallow)
        _add_refs(place, layer)
    if git.find_commit(plan.base_commit, cwd=str(place)) is not None:
        git.set_ref(BASE_PREFIX + plan.base_commit, plan.base_commit, cwd=str(place))
    return place


def _add_history(place: Path, store: Path, shallow: bytes) -> None:
    packs = place / "objects" / "pack"
    # The index of a pack comes last: git sees a pack when its index is there.
    for path in sorted((store / "pack").iterdir(), key=lambda path: path.suffix != ".pack"):
        if not os.path.lexists(packs / path.name):
            history.link(path, packs / path.name)
    files.sync_directory(packs)
    if shallow:
        known = files.read_regular(place / "shallow", limit_bytes=_REFS_BYTES) or b""
        lines = dict.fromkeys([*known.splitlines(), *shallow.splitlines()])
        files.write_atomic(place / "shallow", b"\n".join(lines) + b"\n")


def _add_refs(place: Path, layer: Path) -> None:
    """The branches and tags that the capsule saw, as far as their commits are there."""
    content = files.read_regular(layer / "packed-refs", limit_bytes=_REFS_BYTES) or b""
    rows = [line.partition(b" ") for line in content.splitlines() if line[:1] not in b"#^"]
    lines = [b"update %s %s\n" % (ref, commit) for commit, _, ref in rows if _is_kept(ref)]
    if lines:
        git.git("update-ref", "--stdin", cwd=str(place), stdin=b"".join(lines), allowed=(0, 128))


def _is_kept(ref: bytes) -> bool:
    return ref.startswith((b"refs/heads/", b"refs/tags/"))


def copy_refs(standin: str, repository: str, refs: Sequence[str]) -> None:
    """Brings refs of a stand-in, with all that they need, into a repository of the owner's. Each
    is given as `REF:REF`.
    """
    git.git(
        "-c", "protocol.file.allow=always", "fetch", "--quiet", "--no-tags", "--no-auto-gc",
        "--no-write-fetch-head", "--update-head-ok", "--update-shallow", standin, *refs,
        cwd=repository, env={"GIT_ALLOW_PROTOCOL": "file"},
    )  # fmt: skip
