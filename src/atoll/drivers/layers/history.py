"""History stores: the git objects that a capsule can read, and no others of the owner's.

    ROOT/history/hID/objects       an object directory: packs, never changed once written
    ROOT/history/hID/lfs           Git LFS objects of its commits: see `lfs.py`
    ROOT/history/hID/history.json  the commits from which its packs were made
    ROOT/history/gID               the store that belongs to the git layer of that name

A store holds the objects that are reachable from the commits of its recipe, and the annotated tags
among its refs. Other capsules' branches, recovery points, the owner's stashes, unmerged branches
and unreachable objects are not in it, so a capsule cannot read them, even by id.

A later store hard-links the packs of an earlier one whose commits it contains and adds one pack
with the difference. Every store is complete by itself, so any of them can be removed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import lfs, packs
from atoll.drivers.layers.pool import WORKSPACE, Pool, sync
from atoll.host import files, git
from atoll.host.recovery.recovery_points import PREFIX
from atoll.model.errors import StateError
from atoll.model.layers import LayerKind
from atoll.model.plan import WorkspacePlan

_NOTE_LIMIT_BYTES = 1 << 24
_REFS_LIMIT_BYTES = 1 << 28
_SHALLOW_LIMIT_BYTES = 1 << 24
_MOST_STEPS = 16
"""A store with more packs than this is not extended: git searches packs one by one."""
_MOST_CANDIDATES = 8
_PRIVATE_REFS = ("refs/atoll/", "refs/heads/atoll/", "refs/stash")


def is_visible(ref: str) -> bool:
    """Whether capsules may see a ref: not Atoll's own, other capsules' branches or the stash."""
    return not ref.startswith(_PRIVATE_REFS)


class Listed(NamedTuple):
    """Refs that a capsule sees."""

    pairs: list[tuple[str, str]]
    """Commit or tag, and full name."""
    tags: tuple[str, ...]
    """The objects that are annotated tags."""


def reachable_refs(repository: str, commit: str) -> Listed:
    """The visible refs whose commits are reachable from `commit`."""
    answer = git.git(
        "for-each-ref", f"--merged={commit}", "--format=%(objectname) %(objecttype) %(refname)",
        cwd=repository, env=packs.CONSTANT,
    )  # fmt: skip
    rows = [line.split(" ", 2) for line in answer.lines]
    seen = [row for row in rows if is_visible(row[2])]
    tags = dict.fromkeys(name for name, kind, _ in seen if kind == "tag")
    return Listed(pairs=[(name, ref) for name, _, ref in seen], tags=tuple(tags))


class Recipe(NamedTuple):
    """The contents of a store."""

    commits: tuple[str, ...]
    """Everything that is reachable from these; the base commit is the first."""
    tags: tuple[str, ...] = ()
    """Annotated tags, which are reachable from no commit."""
    is_final: bool = False
    """Whether no store may extend it, because some of `commits` are not commits: refs of an
    earlier version may name trees and blobs."""


class _Step(NamedTuple):
    commits: tuple[str, ...]
    """The packs of this step and the earlier ones hold everything reachable from `commits`."""
    packs: tuple[str, ...]


class _Store(NamedTuple):
    """The content of `history.json`."""

    about: str
    shallow: str
    steps: tuple[_Step, ...]
    """Empty in a store that must not be extended."""
    tags: tuple[str, ...] = ()
    """The packs of annotated tags, which no other store uses: a tag that the owner removes does
    not prevent later stores from extending this one."""


def ensure_store(pool: Pool, layer: str, repository: str, recipe: Recipe) -> Path:
    """Builds the store of a git layer unless it exists, and links it to the layer.

    The caller must hold the pool's lock. Raises DriverError when the repository lacks an object
    of the recipe.
    """
    files.make_private_directory(pool.history)
    name = _name(recipe, _shallow(repository))
    if not (pool.history / name).is_dir():
        _build(pool, name, repository, recipe)
    note = {"store": name, **recipe._asdict()}
    files.write_atomic(pool.history / layer, json.dumps(note).encode())
    return _objects(pool, name)


def find_store(pool: Pool, layer: str) -> Path | None:
    """The object directory that belongs to a git layer, or None. Runs no program."""
    noted = _load_note(pool, layer)
    found = _objects(pool, noted[0]) if noted is not None else None
    return found if found is not None and found.is_dir() else None


def require_store(plan: WorkspacePlan, *, extra: Sequence[str] = ()) -> Path:
    """The object directory for a workspace's view.

    Builds it for a git layer of an earlier version, which has none, and for a damaged store.
    `extra` are commits that a layer of an earlier version does not name. Refs whose objects are
    missing in the owner's repository are left out. Raises StateError when the base commit itself is
    missing.
    """
    pool, layer = Pool(plan.pool), layer_of(plan)
    found = find_store(pool, layer)
    if found is not None:
        return found
    with pool.turn(shared=True):
        noted = _load_note(pool, layer)
        if noted is not None:
            recipe = _without_lost(plan.repository, noted[1])
        else:
            recipe = _recipe_of_refs(plan, layer, extra)
        return ensure_store(pool, layer, plan.repository, recipe)


def missing_base(plan: WorkspacePlan) -> list[str]:
    """The input of `pack-objects --revs` that adds a missing base commit to a workspace; empty
    when its store has the commit.
    """
    noted = _load_note(Pool(plan.pool), layer_of(plan))
    if noted is None:
        require_store(plan)
        return []
    if plan.base_commit in noted[1].commits:
        return []
    known = _without_lost(plan.repository, noted[1]).commits
    return [plan.base_commit, *(f"^{commit}" for commit in known)]


def adopt_recovered(plan: WorkspacePlan, name: str) -> None:
    """Builds the store of a capsule that an earlier version made from a recovery point.

    That version did not record which point. Points with the capsule's name that start at its base
    commit are used, or else the only one that starts there.
    """
    pool = Pool(plan.pool)
    if _load_note(pool, layer_of(plan)) is not None:
        return
    found = dict(git.refs_below(PREFIX, cwd=plan.repository))
    parents = packs.first_parents(plan.repository, list(found.values()))
    begun = {commit for commit in found.values() if parents.get(commit) == plan.base_commit}
    own = {found[ref] for ref in found if ref.startswith(f"{PREFIX}{name}/")} & begun
    extra = own or (begun if len(begun) == 1 else set())
    require_store(plan, extra=sorted(extra))


def unused(pool: Pool, used: set[str]) -> list[Path]:
    """Links of layers that neither exist nor are `used`, and stores that no other link names.

    The caller must hold the pool's lock exclusively.
    """
    if not pool.history.is_dir():
        return []
    entries = [path for path in pool.history.iterdir() if _is_known(path.name)]
    kept = {
        name for path in entries if (name := path.name) in used or (pool.layers / name).exists()
    }
    kept |= {noted[0] for name in kept if (noted := _load_note(pool, name)) is not None}
    return sorted(path for path in entries if path.name not in kept)


def _is_known(name: str) -> bool:
    return LayerKind.GIT.matches(name) or LayerKind.HISTORY.matches(name)


class StoreState(NamedTuple):
    """A store as checked by `warm --check`."""

    path: Path
    about: str
    packs: int
    size_bytes: int
    damaged: list[str]
    layers: list[str]
    """The git layers that use it."""


def check_stores(pool: Pool) -> list[StoreState]:
    """Reads every pack and compares it with the checksum at its end."""
    if not pool.history.is_dir():
        return []
    names = sorted(path.name for path in pool.history.iterdir())
    notes = {name: _load_note(pool, name) for name in names if LayerKind.GIT.matches(name)}
    found = []
    for name in filter(LayerKind.HISTORY.matches, names):
        layers = [layer for layer, noted in notes.items() if noted is not None and noted[0] == name]
        found.append(_check_store(pool, name, layers))
    return found


def _check_store(pool: Pool, name: str, layers: list[str]) -> StoreState:
    place, store = _objects(pool, name) / "pack", _load_store(pool, name)
    found = sorted(place.glob("*.pack")) if place.is_dir() else []
    steps = store.steps if store is not None else ()
    wanted = {pack for step in steps for pack in step.packs} | set(store.tags if store else ())
    damaged = ["history.json"] if store is None else []
    damaged += sorted(f"{pack}.pack" for pack in wanted - {path.stem for path in found})
    for path in found:
        damaged += [p.name for p in (path, path.with_suffix(".idx")) if not packs.is_sound(p)]
    return StoreState(
        path=pool.history / name,
        about=store.about if store is not None else "",
        packs=len(found),
        size_bytes=sum(path.stat().st_size for path in found),
        damaged=damaged,
        layers=layers,
    )


def _objects(pool: Pool, name: str) -> Path:
    return pool.history / name / "objects"


def layer_of(plan: WorkspacePlan) -> str:
    """The git layer whose store is mounted in a workspace's view.

    A workspace that was rolled back by an earlier version may name none: its store then has a
    name derived from its base commit.
    """
    found = next(filter(LayerKind.GIT.matches, plan.layers), plan.git)
    return found or LayerKind.GIT.layer(plan.base_commit)


def _name(recipe: Recipe, shallow: str) -> str:
    import hashlib  # noqa: PLC0415 - only to build

    parts = [*sorted(recipe.commits), "", *sorted(recipe.tags), "", shallow]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=12)
    return LayerKind.HISTORY.layer(digest.hexdigest())


def _shallow(repository: str) -> str:
    """A digest of a shallow clone's boundary; empty for a complete history."""
    import hashlib  # noqa: PLC0415 - only to build

    path = Path(repository, "shallow")
    content = files.read_regular(path, limit_bytes=_SHALLOW_LIMIT_BYTES)
    return hashlib.blake2b(content, digest_size=12).hexdigest() if content else ""


def _load_note(pool: Pool, layer: str) -> tuple[str, Recipe] | None:
    content = files.read_regular(pool.history / layer, limit_bytes=_NOTE_LIMIT_BYTES)
    try:
        raw = json.loads(content or b"")
        recipe = Recipe(tuple(raw["commits"]), tuple(raw["tags"]), bool(raw["is_final"]))
        return str(raw["store"]), recipe
    except (ValueError, TypeError, KeyError):
        return None


def _load_store(pool: Pool, name: str) -> _Store | None:
    path = pool.history / name / "history.json"
    content = files.read_regular(path, limit_bytes=_NOTE_LIMIT_BYTES)
    try:
        raw = json.loads(content or b"")
        steps = tuple(_Step(tuple(commits), tuple(made)) for commits, made in raw["steps"])
        return _Store(str(raw["about"]), str(raw["shallow"]), steps, tuple(raw["tags"]))
    except (ValueError, TypeError, KeyError):
        return None


def _build(pool: Pool, name: str, repository: str, recipe: Recipe) -> None:
    shallow = _shallow(repository)
    origin, steps = _find_earlier(pool, repository, recipe, shallow)
    with pool.building() as place:
        target = place / "tree" / "objects" / "pack"
        target.mkdir(parents=True, mode=0o755)
        (target.parent / "info").mkdir(mode=0o755)
        for pack in [pack for step in steps for pack in step.packs]:
            for suffix in ("pack", "idx"):
                link(origin / f"{pack}.{suffix}", target / f"{pack}.{suffix}")
        known = [f"^{commit}" for commit in steps[-1].commits] if steps else []
        made = packs.pack(repository, target, [*recipe.commits, *known])
        known = [f"^{commit}" for commit in recipe.commits]
        tags = packs.pack(repository, target, [*recipe.tags, *known]) if recipe.tags else []
        lfs.link_objects(repository, recipe.commits, place / "tree" / "lfs")
        steps = () if recipe.is_final else (*steps, _Step(recipe.commits, tuple(made)))
        about = f"history of {recipe.commits[0][:10]}"
        record = _Store(about, shallow, steps, tuple(tags))
        (place / "tree" / "history.json").write_text(json.dumps(record._asdict()))
        sync(place / "tree")
        try:
            os.rename(place / "tree", pool.history / name)
        except OSError:
            # Two builders made the same store at the same time.
            if not (pool.history / name).is_dir():
                raise
    files.sync_directory(pool.history)


def link(source: Path, target: Path) -> None:
    """Hard-links a pack, or copies it where that is not possible."""
    try:
        os.link(source, target)
    except OSError:
        # Some filesystems have no hard links.
        import shutil  # noqa: PLC0415

        shutil.copyfile(source, target)
        target.chmod(0o444)


def _find_earlier(
    pool: Pool, repository: str, recipe: Recipe, shallow: str
) -> tuple[Path, tuple[_Step, ...]]:
    """The packs of the newest store whose commits are all reachable from those of the recipe."""
    places = [path for path in pool.history.iterdir() if LayerKind.HISTORY.matches(path.name)]
    places.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for place in places[:_MOST_CANDIDATES]:
        store = _load_store(pool, place.name)
        if store is None or store.shallow != shallow or not store.steps:
            continue
        # If there are many packs, all but the first are packed again as one.
        steps = store.steps if len(store.steps) < _MOST_STEPS else store.steps[:1]
        if packs.contains(repository, recipe.commits, steps[-1].commits):
            return _objects(pool, place.name) / "pack", steps
    return pool.history, ()


def _recipe_of_refs(plan: WorkspacePlan, layer: str, extra: Sequence[str]) -> Recipe:
    """The recipe for the refs of a layer made by an earlier version."""
    path = Pool(plan.pool).tree(layer) / WORKSPACE / ".git" / "packed-refs"
    content = files.read_regular(path, limit_bytes=_REFS_LIMIT_BYTES)
    if content is None:
        # In a rolled-back copy an agent may have written the refs.
        refs = git.refs_below("refs/", cwd=plan.repository)
    else:
        rows = [line.partition(" ") for line in os.fsdecode(content).split("\n") if line]
        refs = [(ref, name) for name, _, ref in rows]
    named = [name for ref, name in refs if is_visible(ref)]
    words = [word for name in (*named, *extra) for word in (name, f"{name}^{{}}")]
    kinds = packs.kinds(plan.repository, [plan.base_commit, *words])
    _require_base(plan.repository, plan.base_commit, kinds)
    tags = sorted(name for name, kind in kinds.items() if kind == "tag")
    others = sorted(kinds.keys() - {plan.base_commit, *tags})
    is_final = any(kinds[name] != "commit" for name in others)
    return Recipe((plan.base_commit, *others), tuple(tags), is_final)


def _without_lost(repository: str, recipe: Recipe) -> Recipe:
    """The recipe without the objects that the repository no longer has."""
    kinds = packs.kinds(repository, [*recipe.commits, *recipe.tags])
    _require_base(repository, recipe.commits[0], kinds)
    return recipe._replace(
        commits=tuple(name for name in recipe.commits if name in kinds),
        tags=tuple(name for name in recipe.tags if name in kinds),
    )


def _require_base(repository: str, commit: str, kinds: dict[str, str]) -> None:
    if kinds.get(commit) != "commit":
        raise StateError(
            f"the repository `{repository}` no longer has the commit `{commit}`",
            hint="atoll rm --force saves the capsule's files",
        )


_OBJECTS = (WORKSPACE, ".git", "objects")
_CHUNK_BYTES = 8 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OBJECT = re.compile("[0-9a-f]{38}([0-9a-f]{24})?")


def restore_base(plan: WorkspacePlan) -> None:
    """Repairs a workspace whose branch was lost in a power failure: adds its base commit.

    The exported commit is in the owner's repository but not in the capsule's history store. An
    agent could write to these files before: no link is followed.
    """
    wanted = missing_base(plan)
    if not wanted:
        return
    pool = Pool(plan.pool)
    tree = pool.tree(plan.upper)
    _remove_empty_objects(tree)
    with pool.building() as place:
        for name in packs.pack(plan.repository, place, wanted):
            # The index is copied last: git uses a pack once its index exists.
            for suffix in ("pack", "idx"):
                _copy(place / f"{name}.{suffix}", tree, f"{name}.{suffix}")


def _copy(source: Path, tree: Path, name: str) -> None:
    relative = "/".join((*_OBJECTS, "pack", name))
    with source.open("rb") as stream:
        files.write_beneath(tree, relative, stream.read(_CHUNK_BYTES))
        while chunk := stream.read(_CHUNK_BYTES):
            files.write_beneath(tree, relative, chunk, append=True)


def _remove_empty_objects(tree: Path) -> None:
    """Removes empty loose objects, left by a power failure, which git would take for present."""
    opened = [os.open(tree, _DIRECTORY)]
    try:
        with suppress(OSError):
            for name in _OBJECTS:
                opened.append(os.open(name, _DIRECTORY, dir_fd=opened[-1]))
            for number in range(256):
                _remove_empty_in(f"{number:02x}", opened[-1])
    finally:
        for handle in opened:
            os.close(handle)


def _remove_empty_in(name: str, parent: int) -> None:
    try:
        handle = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        return
    try:
        for entry in [entry for entry in os.listdir(handle) if _OBJECT.fullmatch(entry)]:
            status = os.stat(entry, dir_fd=handle, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_size == 0:
                os.unlink(entry, dir_fd=handle)
    finally:
        os.close(handle)
