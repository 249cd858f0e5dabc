"""The git layer: the private repository that every capsule of one state of the project starts with.

Own refs, config and hooks; history comes through alternates from a history store, which a view
shows read-only. The layer lists the refs whose commits are reachable from the base commit, and the
store holds the objects that are: the owner's other branches are deliberately not visible, since
they may be unfinished work or the work of other capsules. The base commit is pinned in the owner's
repository by one hidden ref, so that `git gc` there does not remove it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers import history
from atoll.drivers.layers.pool import WORKSPACE, Layer, Pool
from atoll.host import files, git
from atoll.model.errors import StateError
from atoll.model.plan import Refs

PIN_PREFIX = "refs/atoll/pins/"
_PINS = "pins"
"""In the pool: a file for every pin that was made for it. Other pools have theirs."""
UNBORN_HEAD = "ref: refs/heads/atoll/unborn\n"
"""What HEAD says in the layer: every capsule has its own above it."""
_FORMAT = "history-1"
"""Part of a layer's id: layers of earlier versions list other refs and have no history store."""
_REFS_LIMIT = 100_000
_FILE_LIMIT_BYTES = 16 << 20
_WATCHED = ("config", "shallow", "info/exclude", "info/sparse-checkout", "info/attributes", "hooks")
"""What the layer is made of besides refs, as paths in the owner's git directory."""

_KEPT_SETTINGS = (
    r"core\.(autocrlf|eol|safecrlf|filemode|symlinks|ignorecase|precomposeunicode|quotepath"
    r"|whitespace|sparsecheckout|sparsecheckoutcone|hookspath|commentchar|abbrev)"
    r"|extensions\.objectformat"
    r"|index\.sparse"
    r"|(remote|branch)\..+\.(url|fetch|remote|merge|rebase|tagopt)"
    r"|submodule\..+\.(url|active|branch)"
    r"|filter\.lfs\.(clean|smudge|process|required)"
    r"|(diff|merge|pull|rebase|fetch|push)\.[a-z]+"
)
"""Settings that say how the project is worked on. Nothing here is a credential or a program of
the owner's, but for git-lfs, without which such a project cannot be checked out."""


def load_refs(checkout: str) -> Refs:
    """One git process. HEAD is None when it is detached, or has no commit yet."""
    answer = git.git("for-each-ref", "--format=%(objectname) %(refname) %(HEAD)", cwd=checkout)
    rows = [line.split(" ", 2) for line in answer.lines]
    head = next(((ref, commit) for commit, ref, mark in rows if mark == "*"), (None, None))
    pairs = tuple((commit, ref) for commit, ref, _ in rows)
    return Refs(pairs=pairs, head_ref=head[0], head_commit=head[1])


class Source(NamedTuple):
    """The owner's repository as a capsule starts from it."""

    checkout: str
    repository: str
    """The common git directory."""
    git_dir: str
    """The checkout's own: another one in a linked worktree."""
    refs: Refs
    commit: str
    extra: tuple[str, ...] = ()
    """Commits that the capsule can read besides those that are reachable from `commit`, such as
    the recovery point that it starts with."""


def find_git_layer(pool: Pool, source: Source) -> tuple[str, Layer | None]:
    """The id that the layer has or would have, and the layer if it is there. Starts nothing."""
    import hashlib  # noqa: PLC0415 - needed when something is made, not when it is run

    digest = hashlib.blake2b(digest_size=8)
    digest.update("\n".join([_FORMAT, *source.extra, ""]).encode())
    for commit, ref in _visible(source.refs):
        digest.update(f"{commit} {ref}\n".encode(errors="surrogateescape"))
    digest.update(f"{source.commit}\n{pool.objects}\n".encode(errors="surrogateescape"))
    for place in (source.repository, source.git_dir):
        for name in _WATCHED:
            digest.update(_stamp(Path(place, name)))
    layer = f"g{digest.hexdigest()}"
    return layer, pool.find(layer)


def _visible(refs: Refs) -> list[tuple[str, str]]:
    return [(commit, ref) for commit, ref in refs.pairs if history.is_visible(ref)]


def _stamp(path: Path) -> bytes:
    try:
        status = path.stat()
    except OSError:
        return b"-"
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}".encode()


def freeze_git_layer(pool: Pool, source: Source) -> Layer:
    """Pins the base commit, builds the history store, then makes the layer.

    The pool's turn must be held.
    """
    layer, found = find_git_layer(pool, source)
    if found is not None:
        return found
    settings = _load_settings(source)
    _require_whole(settings)
    # Known before it is done, so that the pin of a layer that is never finished can go, too.
    files.make_private_directory(pool.root / _PINS)
    files.write_atomic(pool.root / _PINS / layer, b"")
    _pin(source, layer)
    listed = history.reachable_refs(source.repository, source.commit)
    # As they were when the layer's id was computed: a ref that has moved since is left out.
    seen = set(_visible(source.refs))
    pairs = [pair for pair in listed.pairs if pair in seen]
    if len(pairs) > _REFS_LIMIT:
        raise StateError(
            f"the repository has {len(pairs):,} refs, more than the {_REFS_LIMIT:,} that a "
            "capsule can be given",
            hint="atoll new NAME --level worktree",
        )
    recipe = history.Recipe(commits=(source.commit, *source.extra), tags=listed.tags)
    history.ensure_store(pool, layer, source.repository, recipe)
    with pool.building() as place:
        private = place / "tree" / WORKSPACE / ".git"
        _write_repository(pool, source, private, pairs, settings)
        about = f"refs and settings at {source.commit[:10]}"
        return pool.freeze(place, Layer(id=layer, kind="git", about=about))


def _require_whole(settings: list[tuple[str, str]]) -> None:
    names = {key.lower() for key, _ in settings}
    if "extensions.partialclone" in names or any(n.endswith(".promisor") for n in names):
        raise StateError(
            "the repository is a partial clone: its missing objects cannot be fetched in a capsule",
            hint="git fetch --refetch --filter=blob:limit=1t, or atoll new NAME --level worktree",
        )
    if "extensions.refstorage" in names:
        raise StateError(
            "the repository keeps its refs in a format that capsules do not know yet",
            hint="atoll new NAME --level worktree",
        )


def _pin(source: Source, layer: str) -> None:
    """One commit whose parent is the base commit keeps it from `git gc`."""
    tree = _store(source, "tree", b"")
    lines = [
        f"tree {tree}",
        f"parent {source.commit}",
        "author Atoll <atoll@localhost> 0 +0000",
        "committer Atoll <atoll@localhost> 0 +0000",
        "",
        "atoll: keeps what capsules start from",
        "",
    ]
    commit = _store(source, "commit", "\n".join(lines).encode())
    with git.turn(source.repository):
        git.set_ref(PIN_PREFIX + layer, commit, cwd=source.repository)


def _store(source: Source, kind: str, content: bytes) -> str:
    """Stores an object in the owner's repository; it is on disk then."""
    answer = git.git(
        *git.DURABLE, "hash-object", "-t", kind, "-w", "--stdin",
        cwd=source.repository, stdin=content,
    )  # fmt: skip
    return answer.text.strip()


def unpin_unused(pool: Pool, repository: str) -> None:
    """Removes the pins of layers that are not there. Only when the pool's turn is ours alone."""
    places = (pool.root / _PINS).iterdir() if (pool.root / _PINS).is_dir() else ()
    for note in [path for path in places if not (pool.layers / path.name).exists()]:
        ref = PIN_PREFIX + note.name
        if (pin := git.find_ref(ref, cwd=repository)) is not None:
            git.delete_ref(ref, cwd=repository, old=pin)
        note.unlink()


def _load_settings(source: Source) -> list[tuple[str, str]]:
    """What the owner set for this project and for all, in git's own order."""
    answer = git.git("config", "--list", "-z", "--includes", cwd=source.checkout)
    pairs = [entry.partition("\n") for entry in answer.text.split("\0") if entry]
    return [(key, value) for key, _, value in pairs]


def _write_repository(
    pool: Pool,
    source: Source,
    private: Path,
    visible: list[tuple[str, str]],
    settings: list[tuple[str, str]],
) -> None:
    for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks"):
        (private / name).mkdir(parents=True)
    _write(private / "objects/info/alternates", f"{_quoted_path(str(pool.objects))}\n")
    _write(private / "HEAD", UNBORN_HEAD)
    _write(private / "packed-refs", "".join(f"{commit} {ref}\n" for commit, ref in visible))
    _write(private / "config", _render_settings(settings))
    _write(private / "info/exclude", _excludes(source, settings))
    for place, name in (
        (source.repository, "shallow"),
        (source.repository, "info/attributes"),
        (source.git_dir, "info/sparse-checkout"),
    ):
        content = files.read_regular(Path(place, name), limit_bytes=_FILE_LIMIT_BYTES)
        if content is not None:
            (private / name).write_bytes(content)
    _copy_hooks(Path(source.repository, "hooks"), private / "hooks")


def _write(path: Path, text: str) -> None:
    path.write_bytes(os.fsencode(text))


def _quoted_path(path: str) -> str:
    """An alternate that git reads as this path, whatever it holds."""
    if path[:1] not in ('"', "#") and "\n" not in path:
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _render_settings(settings: list[tuple[str, str]]) -> str:
    """The private config: the format of the repository, and what is kept of the owner's."""
    kept = [(key, without_password(value)) for key, value in settings if _is_kept(key, value)]
    is_plain = not any(key.lower() == "extensions.objectformat" for key, _ in kept)
    lines = ["[core]", f"\trepositoryformatversion = {0 if is_plain else 1}", "\tbare = false"]
    lines += ["\tlogallrefupdates = true"]
    for key, value in kept:
        section, _, rest = key.partition(".")
        name, _, variable = rest.rpartition(".")
        head = f"[{section} {_quoted(name)}]" if name else f"[{section}]"
        lines += [head, f"\t{variable} = {_quoted(value)}"]
    if any(key.lower().startswith("filter.lfs.") for key, _ in kept):
        # Else git-lfs writes it, into the frozen layer when that is built.
        lines += ["[lfs]", "\trepositoryformatversion = 0"]
    return "\n".join(lines) + "\n"


def _is_kept(key: str, value: str) -> bool:
    if not re.fullmatch(_KEPT_SETTINGS, key, re.IGNORECASE):
        return False
    # A hook directory of the owner's own machine is no part of the project.
    return key.lower() != "core.hookspath" or not value.startswith(("/", "~"))


def without_password(value: str) -> str:
    # Up to the last `@` before the path: a password may hold one itself.
    return re.sub(r"^(\w[\w+.-]*://)[^/]*@", r"\1", value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t") + '"'


def _excludes(source: Source, settings: list[tuple[str, str]]) -> str:
    """The project's own excludes, after those that the owner has for all projects."""
    chosen = next((value for key, value in settings if key.lower() == "core.excludesfile"), None)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    general = Path(os.path.expanduser(chosen) if chosen else f"{config}/git/ignore")
    texts = []
    for path in (general, Path(source.repository, "info/exclude")):
        # The owner may well keep the general one as a link to somewhere else.
        real = Path(os.path.realpath(path))
        content = (
            files.read_regular(real, limit_bytes=_FILE_LIMIT_BYTES) if real.is_file() else None
        )
        texts += [os.fsdecode(content)] if content is not None else []
    return "\n".join(texts)


def _copy_hooks(source: Path, target: Path) -> None:
    if not source.is_dir():
        return
    for path in source.iterdir():
        if path.suffix == ".sample" or not path.is_file() or not os.access(path, os.X_OK):
            continue
        content = files.read_regular(Path(os.path.realpath(path)), limit_bytes=_FILE_LIMIT_BYTES)
        copy = target / path.name
        copy.write_bytes(content or b"")
        copy.chmod(0o755)
