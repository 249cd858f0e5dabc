"""The commit layer: the tree of one commit, with an index whose stat data fits.

The first one is checked out whole; a later one is a delta that git itself makes, in an overlay
over the last. A file that the owner's checkout has unchanged keeps the owner's time of change, so
that build caches which are carried beside it stay valid.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.drivers.layers.repository import Source
from atoll.drivers.layers.workbench import OverlayWay, open_bench
from atoll.host import files, git
from atoll.host.nursery import Nursery
from atoll.host.process import own_environment
from atoll.model.plan import Enclosure

_DEEPEST = 8
"""Deltas are stacked this high; then the tree is checked out whole again."""
_SETTLED_NS = 2_000_000_000
"""Git does not trust the stat data of a file that is as young as its index."""


class Builder(NamedTuple):
    """What it takes to build layers on this host."""

    pool: Pool
    nursery: Nursery
    way: OverlayWay | None
    """None where overlays cannot be mounted: then nothing is built by delta."""


def find_commit_layer(pool: Pool, source: Source) -> Layer | None:
    """The layer of a commit that was frozen before. Starts nothing."""
    content = files.read_regular(_note(pool, source), limit_bytes=1 << 10)
    return pool.find(content.decode()) if content is not None else None


def _note(pool: Pool, source: Source) -> Path:
    sparse = hashlib.blake2b(_sparse(source), digest_size=4).hexdigest()
    return pool.root / "commits" / f"{source.commit}-{sparse}"


def _sparse(source: Source) -> bytes:
    """Patterns of a sparse checkout: with others, the same commit is another tree."""
    path = Path(source.git_dir, "info/sparse-checkout")
    return files.read_regular(path, limit_bytes=1 << 24) or b""


def freeze_commit_layer(builder: Builder, source: Source, git_layer: Layer) -> Layer:
    pool = builder.pool
    found = find_commit_layer(pool, source)
    if found is not None:
        return found
    tree = git.git("rev-parse", f"{source.commit}^{{tree}}", cwd=source.repository).text.strip()
    key = hashlib.blake2b(f"{tree}\0".encode() + _sparse(source), digest_size=8).hexdigest()
    layer = pool.find(f"c{key}") or _build(builder, source, git_layer, f"c{key}")
    files.make_private_directory(pool.root / "commits")
    files.write_atomic(_note(pool, source), layer.id.encode())
    files.write_atomic(pool.root / "latest", f"{layer.id} {source.commit}".encode())
    return layer


def _latest(builder: Builder) -> tuple[Layer, str] | None:
    """The layer to build a delta on, and its commit."""
    pool = builder.pool
    content = files.read_regular(pool.root / "latest", limit_bytes=1 << 10)
    if content is None or builder.way is None:
        return None
    layer, _, commit = content.decode().partition(" ")
    found = pool.find(layer)
    return (found, commit) if found is not None and len(found.below) < _DEEPEST else None


def current_layers(pool: Pool) -> tuple[str, ...]:
    """What the next capsule will probably start from: the commit and the refs frozen last."""
    content = files.read_regular(pool.root / "latest", limit_bytes=1 << 10)
    found = None if content is None else pool.find(content.decode().partition(" ")[0])
    refs = [name for name in pool.all() if name.startswith("g")]
    refs.sort(key=lambda name: (pool.layers / name).stat().st_mtime_ns)
    return (*(found.stack if found is not None else ()), *refs[-1:])


def _build(builder: Builder, source: Source, git_layer: Layer, name: str) -> Layer:
    pool = builder.pool
    before = _latest(builder)
    below = before[0].stack if before is not None else ()
    changed = _changed(source, before[1] if before is not None else None)
    started_ns = time.time_ns()
    with pool.building() as place:
        with _open(builder, place, below) as inside:
            trees = [before[1], source.commit] if before is not None else [source.commit]
            how = "-m" if before is not None else "--reset"
            Path(inside.cwd, ".git").mkdir(parents=True, exist_ok=True)
            _git(pool, source, git_layer, inside, "read-tree", how, "-u", *trees)
        _keep_times(source, place / "tree" / WORKSPACE, changed, before_ns=started_ns)
        with _open(builder, place, below) as inside:
            # What has changed since it was refreshed is told by exit code 1.
            _git(pool, source, git_layer, inside, "update-index", "-q", "--refresh")
        about = f"commit {source.commit[:10]}"
        layer = Layer(id=name, kind="commit", below=below, files=len(changed), about=about)
        return pool.freeze(place, layer)


@contextmanager
def _open(builder: Builder, place: Path, below: tuple[str, ...]) -> Iterator[Enclosure]:
    if not below or builder.way is None:
        yield Enclosure(env=own_environment(), cwd=str(place / "tree" / WORKSPACE))
        return
    with open_bench(builder.pool, builder.nursery, builder.way, place, below) as inside:
        yield inside._replace(cwd=f"{inside.cwd}/{WORKSPACE}")


def _git(pool: Pool, source: Source, git_layer: Layer, inside: Enclosure, *args: str) -> None:
    env = {
        "GIT_DIR": str(pool.tree(git_layer.id) / WORKSPACE / ".git"),
        "GIT_WORK_TREE": inside.cwd,
        "GIT_INDEX_FILE": f"{inside.cwd}/.git/index",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_path(f"{source.repository}/objects"),
    }
    git.git(*args, cwd=inside.cwd, within=inside, env=env)


def _changed(source: Source, before: str | None) -> list[str]:
    """The files that a delta from `before` holds; all of the commit's when there is none."""
    if before is None:
        answer = git.git("ls-tree", "-r", "-z", "--name-only", source.commit, cwd=source.repository)
    else:
        answer = git.git(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d",
            before, source.commit, cwd=source.repository,
        )  # fmt: skip
    return [path for path in answer.text.split("\0") if path]


def _keep_times(source: Source, tree: Path, changed: list[str], *, before_ns: int) -> None:
    """Files that the owner's checkout holds unchanged get the owner's times."""
    other = git.git(
        "diff-index", "-z", "--name-only", "--no-renames", "--no-ext-diff", source.commit, "--",
        cwd=source.checkout,
    )  # fmt: skip
    differing = set(other.text.split("\0"))
    youngest = before_ns - _SETTLED_NS
    for path in changed:
        try:
            mine = os.lstat(tree / path)
            mtime_ns = mine.st_mtime_ns
            if path not in differing:
                mtime_ns = os.lstat(os.path.join(source.checkout, path)).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            # Left out of a sparse checkout, on either side.
            continue
        stamp = (mine.st_atime_ns, min(mtime_ns, youngest))
        os.utime(tree / path, ns=stamp, follow_symlinks=False)


def quoted_path(path: str) -> str:
    """A path as git reads it in a list of object directories."""
    if ":" not in path and not path.startswith('"'):
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
