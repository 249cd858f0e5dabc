"""The submodule layer: what the owner has checked out of them, at the commits that are recorded.

Each has a repository of its own under `.git/modules`, with the objects that are reachable from the
recorded commit and the refs among them, and no other objects of the owner's.

The paths come from a tree of the repository, which may be hostile: only plain relative ones count,
and only those that lead through no link.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import history, packs
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.drivers.layers.repository import Source, without_password
from atoll.host import files, git
from atoll.model import untrusted
from atoll.model.errors import StateError

PREFIX = "mn"
"""Of the layers' names. Those of earlier versions, `mh`, lack submodules of submodules, and `m` and
a hexadecimal digit hold all objects of the owner's submodules."""
_DEEPEST = 8
_GITLINK = "160000"
_FILE_LIMIT_BYTES = 16 << 20


class Submodule(NamedTuple):
    path: str
    commit: str
    git_dir: str
    """The owner's own."""
    name: str
    """What git files it under, below `.git/modules`; by default its path."""


def find_submodules(source: Source, links: list[tuple[str, str]]) -> list[Submodule]:
    """Those of (path, commit) that the owner has, at the commit that is wanted, and the submodules
    of these; whatever holds another comes first.
    """
    repository = os.path.realpath(source.repository)
    top = Submodule("", source.commit, repository, "")
    return _find_below(source, top, links, depth=0)


def _find_below(
    source: Source, outer: Submodule, links: list[tuple[str, str]], *, depth: int
) -> list[Submodule]:
    found: list[Submodule] = []
    names: dict[str, str] | None = None
    for inner, commit in links if depth < _DEEPEST else []:
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
    """The git directory of the submodule that the owner has checked out at a path."""
    place = os.path.join(source.checkout, path)
    if not os.path.lexists(os.path.join(place, ".git")):
        return None
    if os.path.realpath(place) != os.path.join(os.path.realpath(source.checkout), path):
        return None
    own = git.git("rev-parse", "--absolute-git-dir", cwd=place).text.removesuffix("\n")
    return os.path.realpath(own)


def _load_names(outer: Submodule) -> dict[str, str]:
    """The names of submodules by their paths, as `.gitmodules` of a commit says."""
    answer = git.git(
        "config", "-z", "--blob", f"{outer.commit}:.gitmodules",
        "--get-regexp", r"^submodule\..*\.path$", cwd=outer.git_dir, allowed=(0, 1, 128),
    )  # fmt: skip
    pairs = [entry.partition("\n") for entry in answer.text.split("\0") if entry]
    return {path: key.removeprefix("submodule.").removesuffix(".path") for key, _, path in pairs}


def _named(outer: Submodule, name: str) -> str | None:
    """The repository of a submodule that the owner has, but not checked out at this path: it was
    moved in a capsule, or made there.
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
        for submodule in found:
            _check_out(tree, submodule)
        about = "submodules " + ", ".join(submodule.path for submodule in found)
        return pool.freeze(place, Layer(id=name, kind="submodules", about=about))


def _check_out(tree: Path, submodule: Submodule) -> None:
    place = tree / submodule.path
    private = tree / ".git" / "modules" / submodule.name
    if private.resolve() != Path(os.path.abspath(private)) or ".." in Path(submodule.name).parts:
        raise StateError(f"the submodule `{submodule.path}` has a name that leaves its place")
    if place.resolve() != Path(os.path.abspath(place)):
        raise StateError(f"the submodule `{submodule.path}` lies behind a link")
    # Git has made the directory of a submodule in a submodule.
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
    git.git("read-tree", "--reset", "-u", submodule.commit, cwd=str(place), env=env)


def _inner_urls(submodule: Submodule) -> list[tuple[str, str]]:
    """Where the submodules of a submodule come from, as the owner has set it."""
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
    """(path, commit) of the submodules in what `ls-tree -r -z --long` printed."""
    rows = [entry.partition("\t") for entry in listing.split("\0") if entry]
    heads = [(head.split(), path) for head, _, path in rows]
    links = [(path, words[2]) for words, path in heads if words[0] == _GITLINK]
    return [link for link in links if _is_plain(link[0])]


def _is_plain(path: str) -> bool:
    found = untrusted.find_path(untrusted.Untrusted(os.fsencode(path)))
    return found is not None and b".git" not in [part.lower() for part in found.parts]
