"""Commit layers: the tree of one commit, with an index whose stat data matches.

The first layer is a full checkout; a later one is a delta that git writes through an overlay
mounted over the previous one. A file that is unchanged in the owner's checkout keeps its
modification time there, so that carried build caches stay valid.

Submodules are checked out at their recorded commits. Each has a repository below `.git/modules`
with the objects reachable from that commit, and no others of the owner's. Submodule paths come from
a tree that may be hostile: only plain relative paths that cross no symbolic link are used.
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

from atoll.drivers.layers import history, lfs, packs
from atoll.drivers.layers.build_view import OverlayMode, open_build_view
from atoll.drivers.layers.packs import quoted_path
from atoll.drivers.layers.pool import WORKSPACE, FreezeProgress, Layer, Pool
from atoll.drivers.layers.repository import Source, without_password
from atoll.host import files, git
from atoll.host.forkserver import ForkServer
from atoll.host.process import own_environment
from atoll.model import untrusted
from atoll.model.enclosure import Enclosure
from atoll.model.errors import DriverError, StateError
from atoll.model.layers import LayerKind

PREFIX = LayerKind.SUBMODULES.layer("n")
"""Prefix of layer ids. Earlier versions used `mh` (without nested submodules) and `m` with a
hexadecimal digit (with all objects of the owner's submodules)."""
_MOST_NESTED_SUBMODULES = 8
_GITLINK = "160000"
_FILE_LIMIT_BYTES = 16 << 20


class Submodule(NamedTuple):
    path: str
    commit: str
    git_dir: str
    """The owner's git directory."""
    name: str
    """Its name below `.git/modules`; by default its path."""


def find_submodules(source: Source, links: list[tuple[str, str]]) -> list[Submodule]:
    """The submodules among `links` that the owner has at the recorded commit, and the submodules
    nested in them; outer ones come first.
    """
    repository = os.path.realpath(source.repository)
    top = Submodule("", source.commit, repository, "")
    return _find_below(source, top, links, depth=0)


def _find_below(
    source: Source, outer: Submodule, links: list[tuple[str, str]], *, depth: int
) -> list[Submodule]:
    found: list[Submodule] = []
    names: dict[str, str] | None = None
    for inner, commit in links if depth < _MOST_NESTED_SUBMODULES else []:
        path = f"{outer.path}/{inner}" if outer.path else inner
        own = _checked_out(source, path)
        if own is None:
            names = _load_names(outer) if names is None else names
            own = _named(outer, names.get(inner, ""))
        if own is None or git.find_commit(commit, cwd=own) is None:
            continue
        modules = os.path.realpath(source.repository) + "/modules/"
        name = own.removeprefix(modules) if own.startswith(modules) else path
        module = Submodule(path, commit, own, name)
        found.append(module)
        found += _find_below(source, module, _load_links(module), depth=depth + 1)
    return found


def _checked_out(source: Source, path: str) -> str | None:
    """The git directory of the owner's submodule that is checked out at a path."""
    place = os.path.join(source.checkout, path)
    if not os.path.lexists(os.path.join(place, ".git")):
        return None
    if os.path.realpath(place) != os.path.join(os.path.realpath(source.checkout), path):
        return None
    own = git.git("rev-parse", "--absolute-git-dir", cwd=place).text.removesuffix("\n")
    return os.path.realpath(own)


def _load_names(outer: Submodule) -> dict[str, str]:
    """Submodule names by path, from the `.gitmodules` of a commit."""
    answer = git.git(
        "config", "-z", "--blob", f"{outer.commit}:.gitmodules",
        "--get-regexp", r"^submodule\..*\.path$", cwd=outer.git_dir, allowed=(0, 1, 128),
    )  # fmt: skip
    pairs = [entry.partition("\n") for entry in answer.text.split("\0") if entry]
    return {path: key.removeprefix("submodule.").removesuffix(".path") for key, _, path in pairs}


def _named(outer: Submodule, name: str) -> str | None:
    """The owner's repository of a submodule that is not checked out at this path: it was moved or
    added in a capsule.
    """
    if untrusted.find_path(untrusted.Untrusted(os.fsencode(name))) is None:
        return None
    place = os.path.join(outer.git_dir, "modules", name)
    is_plain = os.path.realpath(place) == place and os.path.isfile(os.path.join(place, "HEAD"))
    return place if is_plain else None


def _load_links(module: Submodule) -> list[tuple[str, str]]:
    words = ("ls-tree", "-r", "-z", "--long", "--full-tree", module.commit)
    return parse_links(git.git(*words, cwd=module.git_dir, env={"GIT_DIR": module.git_dir}).text)


def freeze_submodules(pool: Pool, source: Source, links: list[tuple[str, str]]) -> Layer | None:
    """None when there is nothing to freeze."""
    found = find_submodules(source, links)
    if not found:
        return None
    digest = hashlib.blake2b(repr(found).encode(errors="surrogateescape"), digest_size=8)
    name = f"{PREFIX}{digest.hexdigest()}"
    if (known := pool.find(name)) is not None:
        return known
    with pool.building() as place:
        tree = place / "tree" / WORKSPACE
        options = git.untrusted_options(source.repository)
        for submodule in found:
            _check_out_submodule(tree, submodule, options)
        about = "submodules " + ", ".join(submodule.path for submodule in found)
        return pool.freeze(place, Layer(id=name, kind="submodules", about=about))


def _check_out_submodule(tree: Path, submodule: Submodule, options: tuple[str, ...]) -> None:
    place = tree / submodule.path
    private = tree / ".git" / "modules" / submodule.name
    if private.resolve() != Path(os.path.abspath(private)) or ".." in Path(submodule.name).parts:
        raise StateError(f"the name of submodule `{submodule.path}` leads outside `.git/modules`")
    if place.resolve() != Path(os.path.abspath(place)):
        raise StateError(f"the path of submodule `{submodule.path}` crosses a symbolic link")
    # Git has created the directory of a nested submodule.
    place.mkdir(parents=True, exist_ok=True)
    private.parent.mkdir(parents=True, exist_ok=True)
    _make_repository(private, submodule)
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
    for key, url in _inner_urls(submodule):
        git.git("config", key, url, cwd=str(private), env={"GIT_DIR": str(private)})
    (place / ".git").write_text(f"gitdir: {os.path.relpath(private, place)}\n")
    env = {"GIT_DIR": str(private), "GIT_WORK_TREE": str(place)}
    git.git("update-ref", "--no-deref", "HEAD", submodule.commit, cwd=str(place), env=env)
    files.write_atomic(private / "HEAD", f"{submodule.commit}\n".encode(), durable=False)
    git.git(*options, "read-tree", "--reset", "-u", submodule.commit, cwd=str(place), env=env)


def _inner_urls(submodule: Submodule) -> list[tuple[str, str]]:
    """URLs of nested submodules, as configured by the owner."""
    answer = git.git(
        "config", "-z", "--get-regexp", r"^submodule\..*\.url$",
        cwd=submodule.git_dir, env={"GIT_DIR": submodule.git_dir}, allowed=(0, 1),
    )  # fmt: skip
    pairs = [entry.partition("\n") for entry in answer.text.split("\0") if entry]
    return [(key, without_password(url)) for key, _, url in pairs]


def _make_repository(private: Path, submodule: Submodule) -> None:
    owner = submodule.git_dir
    kind = git.git("rev-parse", "--show-object-format", cwd=owner).text.strip()
    git.git(
        "init", "--quiet", "--bare", "--template=", f"--object-format={kind}", str(private),
        cwd=str(private.parent),
    )  # fmt: skip
    listed = history.reachable_refs(owner, submodule.commit)
    packs.pack(owner, private / "objects" / "pack", [submodule.commit, *listed.tags])
    refs = "".join(f"{name} {ref}\n" for name, ref in listed.pairs)
    (private / "packed-refs").write_bytes(os.fsencode(refs))
    shallow = files.read_regular(Path(owner, "shallow"), limit_bytes=_FILE_LIMIT_BYTES)
    if shallow is not None:
        (private / "shallow").write_bytes(shallow)


def parse_links(listing: str) -> list[tuple[str, str]]:
    """(path, commit) of the submodules in the output of `ls-tree -r -z --long`."""
    rows = [entry.partition("\t") for entry in listing.split("\0") if entry]
    heads = [(head.split(), path) for head, _, path in rows]
    links = [(path, words[2]) for words, path in heads if words[0] == _GITLINK]
    return [link for link in links if _is_plain(link[0])]


def _is_plain(path: str) -> bool:
    found = untrusted.find_path(untrusted.Untrusted(os.fsencode(path)))
    return found is not None and b".git" not in [part.lower() for part in found.parts]


_MOST_LAYERS = 8
"""The maximum height of a stack of deltas; then the tree is checked out in full again."""
_PORTION = 1000
_SETTLED_NS = 2_000_000_000
"""Git does not trust the stat data of a file as recent as its index."""


class CommitLayerBuilder(NamedTuple):
    """What is needed to build commit layers on this host."""

    pool: Pool
    forkserver: ForkServer
    mode: OverlayMode | None
    """None where overlays cannot be mounted: then no deltas are built."""
    on_progress: FreezeProgress | None = None


class CommitLayer(NamedTuple):
    """A commit as layers."""

    layer: Layer
    submodules: Layer | None = None

    @property
    def stack(self) -> tuple[str, ...]:
        more = () if self.submodules is None else (self.submodules.id,)
        return (*self.layer.stack, *more)


def find_committed(pool: Pool, source: Source) -> CommitLayer | None:
    """The layers of a commit that was frozen before. Runs no program."""
    content = files.read_regular(_note(pool, source), limit_bytes=1 << 10)
    if content is None:
        return None
    first, *missing = content.decode(errors="surrogateescape").split("\0")
    if any(os.path.lexists(os.path.join(source.checkout, path, ".git")) for path in missing):
        # A submodule that was not checked out at that time is now.
        return None
    names = first.split()
    if any(LayerKind.SUBMODULES.matches(name) and not name.startswith(PREFIX) for name in names):
        return None
    found = [layer for name in names if (layer := pool.find(name)) is not None]
    return CommitLayer(*found) if found and len(found) == len(names) else None


def _note(pool: Pool, source: Source) -> Path:
    return pool.root / "commits" / f"{source.commit}-{_recipe(source)}"


def _recipe(source: Source) -> str:
    """Everything besides the tree that determines the files, such as sparse patterns."""
    return hashlib.blake2b(_sparse(source) + _variant(source), digest_size=4).hexdigest()


def _variant(source: Source) -> bytes:
    """Marks a tree in which filters of the owner did not run."""
    return b"\0without filters" if source.is_passing and _filters(source) else b""


def _filters(source: Source) -> list[str]:
    return git.filter_names(cwd=source.repository)


def _sparse(source: Source) -> bytes:
    path = Path(source.git_dir, "info/sparse-checkout")
    return files.read_regular(path, limit_bytes=1 << 24) or b""


def freeze_commit(builder: CommitLayerBuilder, source: Source, git_layer: Layer) -> CommitLayer:
    pool = builder.pool
    found = find_committed(pool, source)
    if found is not None:
        return found
    tree = git.git("rev-parse", f"{source.commit}^{{tree}}", cwd=source.repository).text.strip()
    content = f"{tree}\0".encode() + _sparse(source) + _variant(source)
    key = hashlib.blake2b(content, digest_size=8).hexdigest()
    name = LayerKind.COMMIT.layer(key)
    layer = pool.find(name) or _build(builder, source, git_layer, name)
    listing = git.git("ls-tree", "-r", "-z", "--long", source.commit, cwd=source.repository).text
    links = parse_links(listing)
    modules = freeze_submodules(pool, source, links)
    missing = [p for p, _ in links if not os.path.lexists(f"{source.checkout}/{p}/.git")]
    made = CommitLayer(layer, modules)
    names = [layer.id] if modules is None else [layer.id, modules.id]
    files.make_private_directory(pool.root / "commits")
    note = "\0".join([" ".join(names), *missing])
    files.write_atomic(_note(pool, source), note.encode(errors="surrogateescape"))
    if not source.is_passing:
        latest = f"{layer.id} {source.commit} {_recipe(source)}"
        files.write_atomic(pool.root / "latest", latest.encode())
    return made


def _latest(builder: CommitLayerBuilder, source: Source) -> tuple[Layer, str] | None:
    """The layer to build a delta on, and its commit."""
    content = files.read_regular(builder.pool.root / "latest", limit_bytes=1 << 10)
    if content is None or builder.mode is None:
        return None
    try:
        name, commit, recipe = content.decode().split()
    except ValueError:
        # Truncated, or written by another version: check out in full.
        return None
    layer = builder.pool.find(name)
    # Nothing is built on a passing one, which may therefore be higher by one.
    most = _MOST_LAYERS + source.is_passing
    own = _recipe(source._replace(is_passing=False))
    if layer is None or recipe != own or len(layer.below) >= most:
        return None
    # The owner may have dropped the commit and run `git gc`.
    is_there = git.find_commit(commit, cwd=source.repository) is not None
    return (layer, commit) if is_there else None


def current_layers(pool: Pool) -> tuple[str, ...]:
    """The likely layers of the next capsule: of the commit and refs frozen last."""
    content = files.read_regular(pool.root / "latest", limit_bytes=1 << 10)
    names = [] if content is None else content.decode(errors="replace").split()
    found = pool.find(names[0]) if names else None
    refs = [name for name in pool.all() if LayerKind.GIT.matches(name)]
    refs.sort(key=lambda name: (pool.layers / name).stat().st_mtime_ns)
    modules = [name for name in pool.all() if LayerKind.SUBMODULES.matches(name)]
    return (*(found.stack if found is not None else ()), *refs[-1:], *modules[-1:])


def _build(builder: CommitLayerBuilder, source: Source, git_layer: Layer, name: str) -> Layer:
    safe: tuple[str, ...] = ()
    if source.is_passing:
        safe = git.without_filters(_filters(source))
    try:
        options = (*safe, *lfs.build_options(source.repository))
        return _build_with(builder, source, git_layer, name, options)
    except DriverError as error:
        if not lfs.is_at_fault(error.message):
            raise
        # Without git-lfs its files stay pointers.
        options = (*safe, *lfs.pointer_options(source.repository))
        return _build_with(builder, source, git_layer, name, options)


def _build_with(
    builder: CommitLayerBuilder,
    source: Source,
    git_layer: Layer,
    name: str,
    options: tuple[str, ...],
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
            # Exit code 1 means that files changed since the index was refreshed.
            scene = _Scene(pool, source, git_layer, inside, options)
            scene.git("update-index", "-q", "--refresh")
        about = f"commit {source.commit[:10]}"
        layer = Layer(id=name, kind="commit", below=below, files=len(changed), about=about)
        return pool.freeze(place, layer)


class _Scene(NamedTuple):
    """Where git writes the files of a layer."""

    pool: Pool
    source: Source
    git_layer: Layer
    inside: Enclosure
    options: tuple[str, ...]
    """Git options for filters."""

    def git(self, *args: str, stdin: bytes | None = None) -> None:
        place = self.inside.cwd
        env = {
            "GIT_DIR": str(self.pool.tree(self.git_layer.id) / WORKSPACE / ".git"),
            "GIT_WORK_TREE": place,
            "GIT_INDEX_FILE": f"{place}/.git/index",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_path(f"{self.source.repository}/objects"),
        }
        git.git(*self.options, *args, cwd=place, within=self.inside, env=env, stdin=stdin)


def _check_out(builder: CommitLayerBuilder, scene: _Scene, paths: dict[str, int]) -> None:
    """Checks out all files of a commit in batches, so that progress can be reported."""
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
        if builder.on_progress is not None:
            builder.on_progress("tracked files", done, len(names), done_bytes, size)


@contextmanager
def _open(builder: CommitLayerBuilder, place: Path, below: tuple[str, ...]) -> Iterator[Enclosure]:
    if not below or builder.mode is None:
        yield Enclosure(env=own_environment(), cwd=str(place / "tree" / WORKSPACE))
        return
    with open_build_view(builder.pool, builder.forkserver, builder.mode, place, below) as inside:
        yield inside._replace(cwd=f"{inside.cwd}/{WORKSPACE}")


def _changed(source: Source, before: str | None) -> dict[str, int]:
    """The files that differ from `before`, or all files of the commit; sizes if known."""
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
    """Copies modification times from files that are unchanged in the owner's checkout."""
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
                # Git compares whole seconds: the owner's version, which `--dirty` copies, must
                # not have the same one.
                mtime_ns = os.lstat(theirs).st_mtime_ns - _SETTLED_NS
        except (FileNotFoundError, NotADirectoryError):
            # Left out by a sparse checkout, on either side.
            continue
        stamp = (mine.st_atime_ns, min(mtime_ns, youngest))
        os.utime(tree / path, ns=stamp, follow_symlinks=False)


@functools.lru_cache(maxsize=4096)
def _is_beneath(root: str, directory: str) -> bool:
    """Whether a path of a hostile tree stays below `root`: no link, no `..`."""
    return os.path.realpath(os.path.join(root, directory)) == os.path.join(root, directory).rstrip(
        "/"
    )
