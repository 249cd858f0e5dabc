"""The commit layer: the tree of one commit, with an index whose stat data fits.

The first one is checked out whole; a later one is a delta that git itself makes, in an overlay
over the last. A file that the owner's checkout has unchanged keeps the owner's time of change, so
that build caches which are carried beside it stay valid.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import lfs, submodules
from atoll.drivers.layers.packs import quoted_path
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool, Tell
from atoll.drivers.layers.repository import Source
from atoll.drivers.layers.workbench import OverlayWay, open_bench
from atoll.host import files, git
from atoll.host.nursery import Nursery
from atoll.host.process import own_environment
from atoll.model.errors import DriverError
from atoll.model.plan import Enclosure

_DEEPEST = 8
"""Deltas are stacked this high; then the tree is checked out whole again."""
_PORTION = 1000
_SETTLED_NS = 2_000_000_000
"""Git does not trust the stat data of a file that is as young as its index."""


class Builder(NamedTuple):
    """What it takes to build layers on this host."""

    pool: Pool
    nursery: Nursery
    way: OverlayWay | None
    """None where overlays cannot be mounted: then nothing is built by delta."""
    tell: Tell | None = None


class Committed(NamedTuple):
    """A commit as layers."""

    layer: Layer
    submodules: Layer | None = None

    @property
    def stack(self) -> tuple[str, ...]:
        more = () if self.submodules is None else (self.submodules.id,)
        return (*self.layer.stack, *more)


def find_committed(pool: Pool, source: Source) -> Committed | None:
    """The layers of a commit that was frozen before. Starts nothing."""
    content = files.read_regular(_note(pool, source), limit_bytes=1 << 10)
    if content is None:
        return None
    first, *missing = content.decode(errors="surrogateescape").split("\0")
    if any(os.path.lexists(os.path.join(source.checkout, path, ".git")) for path in missing):
        # A submodule that was not checked out then is now.
        return None
    names = first.split()
    if any(name[0] == "m" and not name.startswith(submodules.PREFIX) for name in names):
        return None
    found = [layer for name in names if (layer := pool.find(name)) is not None]
    return Committed(*found) if found and len(found) == len(names) else None


def _note(pool: Pool, source: Source) -> Path:
    return pool.root / "commits" / f"{source.commit}-{_recipe(source)}"


def _recipe(source: Source) -> str:
    """How a commit becomes files: with other sparse patterns it is another tree."""
    return hashlib.blake2b(_sparse(source), digest_size=4).hexdigest()


def _sparse(source: Source) -> bytes:
    path = Path(source.git_dir, "info/sparse-checkout")
    return files.read_regular(path, limit_bytes=1 << 24) or b""


def freeze_commit(builder: Builder, source: Source, git_layer: Layer) -> Committed:
    pool = builder.pool
    found = find_committed(pool, source)
    if found is not None:
        return found
    tree = git.git("rev-parse", f"{source.commit}^{{tree}}", cwd=source.repository).text.strip()
    key = hashlib.blake2b(f"{tree}\0".encode() + _sparse(source), digest_size=8).hexdigest()
    layer = pool.find(f"c{key}") or _build(builder, source, git_layer, f"c{key}")
    listing = git.git("ls-tree", "-r", "-z", "--long", source.commit, cwd=source.repository).text
    links = submodules.parse_links(listing)
    modules = submodules.freeze_submodules(pool, source, links)
    missing = [p for p, _ in links if not os.path.lexists(f"{source.checkout}/{p}/.git")]
    made = Committed(layer, modules)
    names = [layer.id] if modules is None else [layer.id, modules.id]
    files.make_private_directory(pool.root / "commits")
    note = "\0".join([" ".join(names), *missing])
    files.write_atomic(_note(pool, source), note.encode(errors="surrogateescape"))
    latest = f"{layer.id} {source.commit} {_recipe(source)}"
    files.write_atomic(pool.root / "latest", latest.encode())
    return made


def _latest(builder: Builder, source: Source) -> tuple[Layer, str] | None:
    """The layer to build a delta on, and its commit."""
    content = files.read_regular(builder.pool.root / "latest", limit_bytes=1 << 10)
    if content is None or builder.way is None:
        return None
    try:
        name, commit, recipe = content.decode().split()
    except ValueError:
        # Torn, or of another version: then the tree is checked out whole.
        return None
    layer = builder.pool.find(name)
    if layer is None or recipe != _recipe(source) or len(layer.below) >= _DEEPEST:
        return None
    # The owner may have dropped the commit since, and collected it.
    is_there = git.find_commit(commit, cwd=source.repository) is not None
    return (layer, commit) if is_there else None


def current_layers(pool: Pool) -> tuple[str, ...]:
    """What the next capsule will probably start from: the commit and the refs frozen last."""
    content = files.read_regular(pool.root / "latest", limit_bytes=1 << 10)
    names = [] if content is None else content.decode(errors="replace").split()
    found = pool.find(names[0]) if names else None
    refs = [name for name in pool.all() if name.startswith("g")]
    refs.sort(key=lambda name: (pool.layers / name).stat().st_mtime_ns)
    modules = [name for name in pool.all() if name.startswith("m")]
    return (*(found.stack if found is not None else ()), *refs[-1:], *modules[-1:])


def _build(builder: Builder, source: Source, git_layer: Layer, name: str) -> Layer:
    try:
        options = lfs.build_options(source.repository)
        return _build_with(builder, source, git_layer, name, options)
    except DriverError as error:
        if not lfs.is_at_fault(error.message):
            raise
        # Then its files stay pointers.
        return _build_with(builder, source, git_layer, name, lfs.WITHOUT)


def _build_with(
    builder: Builder, source: Source, git_layer: Layer, name: str, options: tuple[str, ...]
) -> Layer:
    pool = builder.pool
    before = _latest(builder, source)
    below = before[0].stack if before is not None else ()
    changed = _changed(source, before[1] if before is not None else None)
    started_ns = time.time_ns()
    with pool.building() as place:
        with _open(builder, place, below) as inside:
            Path(inside.cwd, ".git").mkdir(parents=True, exist_ok=True)
            scene = _Scene(pool, source, git_layer, inside, options)
            if before is not None:
                scene.git("read-tree", "-m", "-u", before[1], source.commit)
            else:
                _check_out(builder, scene, changed)
        _keep_times(source, place / "tree" / WORKSPACE, changed, before_ns=started_ns)
        with _open(builder, place, below) as inside:
            # What has changed since it was refreshed is told by exit code 1.
            scene = _Scene(pool, source, git_layer, inside, options)
            scene.git("update-index", "-q", "--refresh")
        about = f"commit {source.commit[:10]}"
        layer = Layer(id=name, kind="commit", below=below, files=len(changed), about=about)
        return pool.freeze(place, layer)


class _Scene(NamedTuple):
    """Where git makes the files of a layer."""

    pool: Pool
    source: Source
    git_layer: Layer
    inside: Enclosure
    options: tuple[str, ...]
    """How git treats files of Git LFS."""

    def git(self, *args: str, stdin: bytes | None = None) -> None:
        place = self.inside.cwd
        env = {
            "GIT_DIR": str(self.pool.tree(self.git_layer.id) / WORKSPACE / ".git"),
            "GIT_WORK_TREE": place,
            "GIT_INDEX_FILE": f"{place}/.git/index",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_path(f"{self.source.repository}/objects"),
        }
        git.git(*self.options, *args, cwd=place, within=self.inside, env=env, stdin=stdin)


def _check_out(builder: Builder, scene: _Scene, paths: dict[str, int]) -> None:
    """All files of a commit, in portions, so that it can be told how far it is."""
    if _sparse(scene.source):
        scene.git("read-tree", "--reset", "-u", scene.source.commit)
        return
    scene.git("read-tree", "--reset", scene.source.commit)
    names, size = list(paths), sum(paths.values())
    portion = max(_PORTION, len(names) // 20)
    done = done_bytes = 0
    for start in range(0, len(names), portion):
        chosen = names[start : start + portion]
        fed = os.fsencode("".join(f"{name}\0" for name in chosen))
        scene.git("checkout-index", "-q", "-z", "--stdin", stdin=fed)
        done += len(chosen)
        done_bytes += sum(paths[name] for name in chosen)
        if builder.tell is not None:
            builder.tell("tracked files", done, len(names), done_bytes, size)


@contextmanager
def _open(builder: Builder, place: Path, below: tuple[str, ...]) -> Iterator[Enclosure]:
    if not below or builder.way is None:
        yield Enclosure(env=own_environment(), cwd=str(place / "tree" / WORKSPACE))
        return
    with open_bench(builder.pool, builder.nursery, builder.way, place, below) as inside:
        yield inside._replace(cwd=f"{inside.cwd}/{WORKSPACE}")


def _changed(source: Source, before: str | None) -> dict[str, int]:
    """The files that a delta from `before` holds, all of the commit's when there is none; with
    their sizes, as far as they are told.
    """
    if before is not None:
        answer = git.git(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d",
            before, source.commit, cwd=source.repository,
        )  # fmt: skip
        return {path: 0 for path in answer.text.split("\0") if path}
    answer = git.git("ls-tree", "-r", "-z", "--long", source.commit, cwd=source.repository)
    rows = [entry.partition("\t") for entry in answer.text.split("\0") if entry]
    sizes = [(path, head.split()[3]) for head, _, path in rows]
    return {path: int(size) if size.isdigit() else 0 for path, size in sizes}


def _keep_times(source: Source, tree: Path, changed: Iterable[str], *, before_ns: int) -> None:
    """Files that the owner's checkout holds unchanged get the owner's times."""
    other = git.git(
        "diff-index", "-z", "--name-only", "--no-renames", "--no-ext-diff", source.commit, "--",
        cwd=source.checkout,
    )  # fmt: skip
    differing = set(other.text.split("\0"))
    youngest = before_ns - _SETTLED_NS
    root = os.path.realpath(tree)
    for path in changed:
        if not _is_beneath(root, os.path.dirname(path)):
            continue
        try:
            mine = os.lstat(tree / path)
            mtime_ns = mine.st_mtime_ns
            theirs = os.path.join(source.checkout, path)
            if path not in differing:
                mtime_ns = os.lstat(theirs).st_mtime_ns
            elif os.path.lexists(theirs):
                # Git compares whole seconds: the owner's version, which `--dirty` puts in its
                # place, must not have the same one.
                mtime_ns = os.lstat(theirs).st_mtime_ns - _SETTLED_NS
        except (FileNotFoundError, NotADirectoryError):
            # Left out of a sparse checkout, on either side.
            continue
        stamp = (mine.st_atime_ns, min(mtime_ns, youngest))
        os.utime(tree / path, ns=stamp, follow_symlinks=False)


@functools.lru_cache(maxsize=4096)
def _is_beneath(root: str, directory: str) -> bool:
    """Whether no link or `..` of a hostile tree leads to another place."""
    return os.path.realpath(os.path.join(root, directory)) == os.path.join(root, directory).rstrip(
        "/"
    )
