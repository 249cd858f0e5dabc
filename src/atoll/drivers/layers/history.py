"""History stores: the git objects that a capsule can read, and no others of the owner's.

    ROOT/history/hID/objects       an object directory: packs, never changed once it is there
    ROOT/history/hID/history.json  from which commits its packs were made
    ROOT/history/gID               which store belongs to the git layer of that name

A store holds the objects that are reachable from the commits of its recipe, and the annotated tags
among its refs. Other capsules' branches, recovery points, the owner's stashes, unmerged branches
and unreachable objects are not in it, so a capsule cannot read them, whatever ids it knows.

A later store hard-links the packs of an earlier one whose commits it contains and adds one pack
with the difference. Every store is complete by itself, so that any of them can be removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import WORKSPACE, Pool, sync
from atoll.host import files, git
from atoll.model.errors import StateError
from atoll.model.plan import WorkspacePlan

_NOTE_LIMIT_BYTES = 1 << 24
_REFS_LIMIT_BYTES = 1 << 28
_SHALLOW_LIMIT_BYTES = 1 << 24
_CHUNK_BYTES = 8 << 20
_CHECKSUM_BYTES = 32
"""Of the longest checksum that git writes: SHA-256."""
_MOST_STEPS = 16
"""A store with more packs than this is not extended: git searches packs one by one."""
_MOST_CANDIDATES = 8
_FIELDS = 2
_KINDS = ("commit", "tag", "tree", "blob")
_PRIVATE_REFS = ("refs/atoll/", "refs/heads/atoll/", "refs/stash")
CONSTANT = {
    # The objects themselves count, not what the owner has put in their place.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
}
_PACK = (
    *git.DURABLE, "-c", "pack.packSizeLimit=0", "-c", "pack.writeReverseIndex=false",
    "pack-objects", "-q", "--revs", "--non-empty", "--delta-base-offset", "--window=0",
)  # fmt: skip
"""Deltas that the owner's packs have are reused; new ones are not searched for."""


def is_visible(ref: str) -> bool:
    """Whether capsules may see a ref: not Atoll's own, other capsules' branches or the stash."""
    return not ref.startswith(_PRIVATE_REFS)


class Recipe(NamedTuple):
    """What a store is made of."""

    commits: tuple[str, ...]
    """Everything that is reachable from these; the base commit is the first."""
    tags: tuple[str, ...] = ()
    """Annotated tags, which no commit leads to."""
    is_final: bool = False
    """Whether no store may be built on it, because not all of `commits` are commits: refs of an
    earlier version may name trees and files."""


class _Step(NamedTuple):
    commits: tuple[str, ...]
    """What is reachable from these is in the packs of this step and of those before it."""
    packs: tuple[str, ...]


class _Store(NamedTuple):
    """What `history.json` says."""

    about: str
    shallow: str
    steps: tuple[_Step, ...]
    """Empty in a store that no other may be built on."""


def ensure_store(pool: Pool, layer: str, repository: str, recipe: Recipe) -> Path:
    """Builds the store of a git layer unless it exists, and notes that it belongs to the layer.

    The pool's turn must be held. Raises DriverError when the repository lacks an object of the
    recipe.
    """
    files.make_private_directory(pool.history)
    name = _name(recipe, _shallow(repository))
    if not (pool.history / name).is_dir():
        _build(pool, name, repository, recipe)
    note = {"store": name, **recipe._asdict()}
    files.write_atomic(pool.history / layer, json.dumps(note).encode())
    return _objects(pool, name)


def find_store(pool: Pool, layer: str) -> Path | None:
    """The object directory that belongs to a git layer, or None. Starts no process."""
    noted = _load_note(pool, layer)
    found = _objects(pool, noted[0]) if noted is not None else None
    return found if found is not None and found.is_dir() else None


def require_store(plan: WorkspacePlan, *, extra: Sequence[str] = ()) -> Path:
    """The object directory that a workspace's view shows.

    Built here for a git layer of an earlier version, which has none, and for one whose store was
    found damaged. `extra` are commits that a layer of an earlier version does not name. Refs whose
    objects the owner's repository has lost by now are left out. Raises StateError when the base
    commit itself is lost.
    """
    pool, layer = Pool(plan.pool), _git_layer(plan)
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


def has_store(plan: WorkspacePlan) -> bool:
    return find_store(Pool(plan.pool), _git_layer(plan)) is not None


def complete(plan: WorkspacePlan) -> None:
    """Copies into the workspace's repository what its base commit needs beyond the store.

    Only needed after a power cut, when a branch is restored from what had been exported.
    """
    pool = Pool(plan.pool)
    noted = _load_note(pool, _git_layer(plan))
    if noted is None:
        require_store(plan)
        return
    if plan.base_commit in noted[1].commits:
        return
    known = [f"^{commit}" for commit in _without_lost(plan.repository, noted[1]).commits]
    with pool.building() as place:
        for name in _pack(plan.repository, place, [plan.base_commit, *known]):
            for suffix in ("pack", "idx"):
                target = f"{WORKSPACE}/.git/objects/pack/{name}.{suffix}"
                _copy_beneath(place / f"{name}.{suffix}", pool.tree(plan.upper), target)


def unused(pool: Pool) -> list[Path]:
    """Notes of layers that no longer exist, and stores that no other note names.

    The pool's turn must be exclusive.
    """
    if not pool.history.is_dir():
        return []
    entries = [path for path in pool.history.iterdir() if path.name[0] in "gh"]
    stale = [p for p in entries if p.name[0] == "g" and not (pool.layers / p.name).exists()]
    layers = [p.name for p in entries if p.name[0] == "g" and p not in stale]
    needed = {noted[0] for name in layers if (noted := _load_note(pool, name)) is not None}
    return sorted([*stale, *(p for p in entries if p.name[0] == "h" and p.name not in needed)])


class StoreState(NamedTuple):
    """A store as `warm --check` finds it."""

    path: Path
    about: str
    packs: int
    size_bytes: int
    damaged: list[str]
    layers: list[str]
    """The git layers that it belongs to."""


def check_stores(pool: Pool) -> list[StoreState]:
    """Reads every pack and compares it with the checksum at its end."""
    if not pool.history.is_dir():
        return []
    names = sorted(path.name for path in pool.history.iterdir())
    notes = {name: _load_note(pool, name) for name in names if name[0] == "g"}
    found = []
    for name in [name for name in names if name[0] == "h"]:
        layers = [layer for layer, noted in notes.items() if noted is not None and noted[0] == name]
        found.append(_check_store(pool, name, layers))
    return found


def _check_store(pool: Pool, name: str, layers: list[str]) -> StoreState:
    place = _objects(pool, name) / "pack"
    packs = sorted(place.glob("*.pack")) if place.is_dir() else []
    store = _load_store(pool, name)
    wanted = {f"{pack}.pack" for step in store.steps for pack in step.packs} if store else set()
    damaged = [] if store is not None else ["history.json"]
    damaged += sorted(wanted - {pack.name for pack in packs})
    for pack in packs:
        damaged += [p.name for p in (pack, pack.with_suffix(".idx")) if not _is_sound(p)]
    return StoreState(
        path=pool.history / name,
        about=store.about if store is not None else "",
        packs=len(packs),
        size_bytes=sum(pack.stat().st_size for pack in packs),
        damaged=damaged,
        layers=layers,
    )


def _is_sound(path: Path) -> bool:
    """Whether a pack or its index ends with the checksum of what comes before."""
    digests = (hashlib.sha1(usedforsecurity=False), hashlib.sha256())
    held = b""
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                held += chunk
                for digest in digests:
                    digest.update(held[:-_CHECKSUM_BYTES])
                held = held[-_CHECKSUM_BYTES:]
    except OSError:
        return False
    if len(held) < _CHECKSUM_BYTES:
        return False
    for digest in digests:
        digest.update(held[: -digest.digest_size])
    return any(held.endswith(digest.digest()) for digest in digests)


def _objects(pool: Pool, name: str) -> Path:
    return pool.history / name / "objects"


def _git_layer(plan: WorkspacePlan) -> str:
    for layer in plan.layers:
        if layer.startswith("g"):
            return layer
    raise StateError("the workspace has no git layer", hint="atoll rm --force keeps its files")


def _name(recipe: Recipe, shallow: str) -> str:
    parts = [*sorted(recipe.commits), "", *sorted(recipe.tags), "", shallow]
    return f"h{hashlib.blake2b(chr(10).join(parts).encode(), digest_size=12).hexdigest()}"


def _shallow(repository: str) -> str:
    """Where the history of a shallow clone ends, as a digest; empty when it is complete."""
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
        steps = tuple(_Step(tuple(commits), tuple(packs)) for commits, packs in raw["steps"])
        return _Store(about=str(raw["about"]), shallow=str(raw["shallow"]), steps=steps)
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
                os.link(origin / f"{pack}.{suffix}", target / f"{pack}.{suffix}")
        known = [f"^{commit}" for commit in steps[-1].commits] if steps else []
        made = _pack(repository, target, [*recipe.commits, *known])
        if recipe.tags:
            # Apart, so that a tag that is removed does not keep later stores from linking packs.
            _pack(repository, target, [*recipe.tags, *(f"^{c}" for c in recipe.commits)])
        steps = () if recipe.is_final else (*steps, _Step(recipe.commits, tuple(made)))
        about = f"history of {recipe.commits[0][:10]}"
        record = _Store(about=about, shallow=shallow, steps=steps)
        (place / "tree" / "history.json").write_text(json.dumps(record._asdict()))
        sync(place / "tree")
        try:
            os.rename(place / "tree", pool.history / name)
        except OSError:
            # Built by two at the same time: both are the same.
            if not (pool.history / name).is_dir():
                raise
    files.sync_directory(pool.history)


def _find_earlier(
    pool: Pool, repository: str, recipe: Recipe, shallow: str
) -> tuple[Path, tuple[_Step, ...]]:
    """The packs of the newest store whose commits are all reachable from those of the recipe."""
    places = [path for path in pool.history.iterdir() if path.name[0] == "h"]
    places.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for place in places[:_MOST_CANDIDATES]:
        store = _load_store(pool, place.name)
        if store is None or store.shallow != shallow or not store.steps:
            continue
        # When they are many, all but the first are packed again, as one.
        steps = store.steps if len(store.steps) < _MOST_STEPS else store.steps[:1]
        if _contains(repository, recipe.commits, steps[-1].commits):
            return _objects(pool, place.name) / "pack", steps
    return pool.history, ()


def _contains(repository: str, commits: Sequence[str], parts: Sequence[str]) -> bool:
    if set(parts) <= set(commits):
        return True
    answer = git.git(
        "rev-list", "--max-count=1", "--stdin",
        cwd=repository, env=CONSTANT, allowed=(0, 128),
        stdin=_lines([*parts, *(f"^{commit}" for commit in commits)]),
    )  # fmt: skip
    return answer.code == 0 and not answer.text


def _pack(repository: str, directory: Path, wanted: Sequence[str]) -> list[str]:
    """Packs what is reachable from `wanted`; the names of the packs, none if all was excluded."""
    answer = git.git(
        *_PACK, str(directory / "pack"), cwd=repository, env=CONSTANT, stdin=_lines(wanted)
    )
    return [f"pack-{line}" for line in answer.text.splitlines()]


def _recipe_of_refs(plan: WorkspacePlan, layer: str, extra: Sequence[str]) -> Recipe:
    """What the refs of a layer name that was made by an earlier version."""
    path = Pool(plan.pool).tree(layer) / WORKSPACE / ".git" / "packed-refs"
    content = files.read_regular(path, limit_bytes=_REFS_LIMIT_BYTES) or b""
    rows = [line.split(" ", 1) for line in os.fsdecode(content).splitlines()]
    named = [row[0] for row in rows if len(row) > 1 and is_visible(row[1])]
    words = [word for name in (*named, *extra) for word in (name, f"{name}^{{}}")]
    kinds = _kinds(plan.repository, [plan.base_commit, *words])
    _require_base(plan.repository, plan.base_commit, kinds)
    tags = sorted(name for name, kind in kinds.items() if kind == "tag")
    others = sorted(kinds.keys() - {plan.base_commit, *tags})
    is_final = any(kinds[name] != "commit" for name in others)
    return Recipe((plan.base_commit, *others), tuple(tags), is_final)


def _without_lost(repository: str, recipe: Recipe) -> Recipe:
    """The recipe without what the repository has lost."""
    kinds = _kinds(repository, [*recipe.commits, *recipe.tags])
    _require_base(repository, recipe.commits[0], kinds)
    return recipe._replace(
        commits=tuple(name for name in recipe.commits if name in kinds),
        tags=tuple(name for name in recipe.tags if name in kinds),
    )


def _kinds(repository: str, names: Sequence[str]) -> dict[str, str]:
    """What the named objects are; those that are not in the repository are left out."""
    answer = git.git(
        "cat-file", "--batch-check=%(objectname) %(objecttype)",
        cwd=repository, env=CONSTANT, stdin=_lines(names),
    )  # fmt: skip
    rows = [line.split(" ") for line in answer.text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == _FIELDS and row[1] in _KINDS}


def _require_base(repository: str, commit: str, kinds: dict[str, str]) -> None:
    if kinds.get(commit) != "commit":
        raise StateError(
            f"the repository `{repository}` has lost the commit `{commit}`",
            hint="atoll rm --force keeps the files of the capsule",
        )


def _copy_beneath(source: Path, root: Path, relative: str) -> None:
    with source.open("rb") as stream:
        files.write_beneath(root, relative, stream.read(_CHUNK_BYTES))
        while chunk := stream.read(_CHUNK_BYTES):
            files.write_beneath(root, relative, chunk, append=True)


def _lines(words: Iterable[str]) -> bytes:
    return "".join(f"{word}\n" for word in words).encode()
