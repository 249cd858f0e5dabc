"""Stand-in repositories: they store the work of capsules whose original repository is gone.

A stand-in is a bare repository in `standins/` below Atoll's home. It holds the history that the
capsules were given, copied from their history stores, and recovery points like any other
repository. Only `atoll recover --drop` removes a point from it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from atoll.drivers.layers import history
from atoll.drivers.layers.pool import WORKSPACE, Pool
from atoll.drivers.layers.repository import PIN_PREFIX
from atoll.host import files, git
from atoll.host.intake.lfs_objects import LfsStore, copy_objects, find_pointers
from atoll.host.intake.store import OwnerSettings, load_settings, make_repository, open_store
from atoll.host.recovery import recovery_points
from atoll.model.errors import DriverError, StateError
from atoll.model.names import short_hash, slug
from atoll.model.plan import WorkspacePlan

_PLACE = "standins"
BASE_PREFIX = "refs/atoll/bases/"
_BUILDING = ".building-"
_REFS_BYTES = 1 << 28
COMMITS = "refs/atoll/commits/"
"""Submodule commits that commits of the project record."""


def has_repository(plan: WorkspacePlan) -> bool:
    """Whether the repository of a workspace still exists: not if it was removed, moved or replaced.
    Raises DriverError or StateError if git cannot read the repository, which proves nothing.
    """
    if not os.path.isdir(plan.repository):
        return False
    # Pinned when the workspace was created: one file usually shows it.
    if plan.is_layered and os.path.isfile(
        os.path.join(plan.repository, PIN_PREFIX + history.layer_of(plan))
    ):
        return True
    try:
        if git.find_commit(plan.base_commit, cwd=plan.repository) is not None:
            return True
        # The commit is missing, or git cannot read the repository at all.
        git.git("rev-parse", "--git-dir", cwd=plan.repository)
    except (DriverError, StateError):
        if _is_repository(Path(plan.repository)):
            raise
    return False


def stored_in(plan: WorkspacePlan, home: Path) -> WorkspacePlan:
    """The plan with the repository for its work: the original, or a stand-in."""
    if has_repository(plan):
        return plan
    place = ensure_standin(plan, home)
    # What is at the checkout's path now does not matter.
    return plan._replace(repository=str(place), checkout=str(place / "checkout"))


def is_standin(plan: WorkspacePlan) -> bool:
    """Whether a plan's repository is a stand-in."""
    place = Path(plan.repository)
    return place.parent.name == _PLACE and plan.checkout == str(place / "checkout")


def all_standins(home: Path) -> list[str]:
    place = home / _PLACE
    found = place.iterdir() if place.is_dir() else ()
    return sorted(str(path) for path in found if path.name.endswith(".git"))


def stands_for(place: str, repository: str) -> bool:
    """Whether a stand-in was created for the repository that was at this path."""
    return place.endswith(f"-{short_hash(repository)}.git")


def ensure_standin(plan: WorkspacePlan, home: Path) -> Path:
    """Creates the stand-in for a workspace's repository, or adds the workspace's history."""
    name = slug(Path(plan.checkout).name) or "project"
    place = home / _PLACE / f"{name}-{short_hash(plan.repository)}.git"
    files.make_private_directory(place.parent)
    layer = (
        Pool(plan.pool).tree(history.layer_of(plan)) / WORKSPACE / ".git"
        if plan.is_layered
        else None
    )
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
    store = history.find_store(Pool(plan.pool), history.layer_of(plan)) if plan.is_layered else None
    if store is not None and layer is not None:
        _add_history(place, store, settings.shallow)
        _add_lfs_objects(place, store.parent / "lfs" / "objects")
        _add_refs(place, layer)
    if git.find_commit(plan.base_commit, cwd=str(place)) is not None:
        git.set_ref(BASE_PREFIX + plan.base_commit, plan.base_commit, cwd=str(place))
    return place


def _add_history(place: Path, store: Path, shallow: bytes) -> None:
    packs = place / "objects" / "pack"
    # The index of a pack is copied last: git uses a pack once its index exists.
    for path in sorted((store / "pack").iterdir(), key=lambda path: path.suffix != ".pack"):
        if not os.path.lexists(packs / path.name):
            history.link(path, packs / path.name)
    files.sync_directory(packs)
    if shallow:
        known = files.read_regular(place / "shallow", limit_bytes=_REFS_BYTES) or b""
        lines = dict.fromkeys([*known.splitlines(), *shallow.splitlines()])
        files.write_atomic(place / "shallow", b"\n".join(lines) + b"\n")


def _add_lfs_objects(place: Path, source: Path) -> None:
    """Links or copies the Git LFS objects that the capsule could read."""
    target, given = LfsStore.of(str(place)), LfsStore(source)
    for pointer in given.all():
        target.add(pointer, given)


def _add_refs(place: Path, layer: Path) -> None:
    """Adds the branches and tags that the capsule could see, if their commits exist."""
    content = files.read_regular(layer / "packed-refs", limit_bytes=_REFS_BYTES) or b""
    rows = [line.partition(b" ") for line in content.splitlines() if line[:1] not in b"#^"]
    lines = [b"update %s %s\n" % (ref, commit) for commit, _, ref in rows if _is_kept(ref)]
    if lines:
        git.git("update-ref", "--stdin", cwd=str(place), stdin=b"".join(lines), allowed=(0, 128))


def _is_kept(ref: bytes) -> bool:
    return ref.startswith((b"refs/heads/", b"refs/tags/"))


def copy_refs(standin: str, git_dir: str, refs: Sequence[str]) -> None:
    """Fetches refs of a stand-in, each given as `REF:REF`, into a repository of the owner."""
    git.git(
        "-c", "protocol.file.allow=always", "fetch", "--quiet", "--no-tags", "--no-auto-gc",
        "--no-write-fetch-head", "--update-head-ok", "--update-shallow", standin, *refs,
        cwd=git_dir, env={"GIT_ALLOW_PROTOCOL": "file", "GIT_DIR": git_dir},
    )  # fmt: skip


def copy_lfs_objects(
    standin: str, git_dir: str, tips: Sequence[str], *, scratch: Path
) -> tuple[str, ...]:
    """Copies the Git LFS objects of commits into a repository of the owner that has these commits.
    Returns the paths of objects that the stand-in lacks.
    """
    source = LfsStore.of(standin)
    with open_store(git_dir, scratch=scratch) as store:
        target = LfsStore.of(git_dir, store.settings.lfs_storage)
        try:
            found = find_pointers(store, tips, known=())
        except StateError:
            # Too many to list: copy all of them.
            found = dict.fromkeys(source.all())
        return copy_objects([source], target, found.items())


def copy_modules(standin: str, git_dir: str, *, scratch: Path) -> tuple[str, ...]:
    """Copies submodule commits of a stand-in into the owner's submodule repositories. Returns the
    names of submodules, and of Git LFS files in them, that could not be copied.
    """
    missing: list[str] = []
    top = Path(standin, "modules")
    for source in sorted(top.rglob("HEAD")) if top.is_dir() else ():
        name = source.parent.relative_to(top)
        if not _is_repository(source.parent):
            continue
        target = Path(os.path.realpath(git_dir), "modules", name)
        if not _is_usable(target, git_dir):
            missing.append(str(name))
            continue
        if not target.is_dir():
            make_repository(target, load_settings(str(source.parent)))
            # It gets a work tree when the owner checks it out.
            git.git("config", "core.bare", "false", cwd=str(target), env={"GIT_DIR": str(target)})
        copy_refs(str(source.parent), str(target), [f"+{COMMITS}*:{COMMITS}*"])
        tips = [commit for _, commit in git.refs_below(COMMITS, cwd=str(source.parent))]
        lost = copy_lfs_objects(str(source.parent), str(target), tips, scratch=scratch)
        missing += [f"{name}/{path}" for path in lost]
    return tuple(missing)


def _is_repository(place: Path) -> bool:
    return (place / "HEAD").is_file() and (place / "objects").is_dir()


def _is_usable(target: Path, git_dir: str) -> bool:
    """Whether a submodule's repository exists at `target` or can be created there: no link on the
    path, and not inside another repository except below its `modules`.
    """
    if os.path.realpath(target) != str(target):
        return False
    below = target
    for above in target.parents:
        if str(above) == os.path.join(os.path.realpath(git_dir), "modules"):
            return _is_repository(target) or not target.exists()
        if _is_repository(above) and below.name != "modules":
            return False
        below = above
    return False


def remove_unused(standin: str, home: Path) -> None:
    """Removes a stand-in without recovery points."""
    if standin not in all_standins(home):
        return
    with git.turn(standin):
        if git.refs_below(recovery_points.PREFIX, cwd=standin):
            return
        # A removal that stores work there right now fails, and is repeated later.
        aside = Path(standin).with_name(f"{_BUILDING}{os.urandom(6).hex()}")
        os.rename(standin, aside)
        if git.refs_below(recovery_points.PREFIX, cwd=str(aside)):
            os.rename(aside, standin)
            return
    files.remove_tree(aside, within=aside.parent)
