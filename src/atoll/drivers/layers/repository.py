"""Git layers: the private repository that capsules of one state of the project start with.

It has its own refs, config and hooks; history comes through alternates from a history store, which
a view mounts read-only. The layer lists the refs whose commits are reachable from the base commit,
and the store holds the objects reachable from it: the owner's other branches are deliberately not
visible, since they may be unfinished work or the work of other capsules. A hidden ref in the
owner's repository pins the base commit, so that `git gc` does not remove it.
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
from atoll.model.layers import LayerKind
from atoll.model.plan import Refs

PIN_PREFIX = "refs/atoll/pins/"
_PINS = "pins"
"""In the pool: one file per pin. Other pools have their own."""
UNBORN_HEAD = "ref: refs/heads/atoll/unborn\n"
"""HEAD in the layer: every capsule replaces it."""
_FORMAT = "history-2"
"""Part of a layer's id: layers of earlier versions list other refs and have no history store."""
_REFS_LIMIT = 100_000
_FILE_LIMIT_BYTES = 16 << 20
_WATCHED = ("config", "shallow", "info/exclude", "info/sparse-checkout", "info/attributes", "hooks")
"""Sources of the layer besides refs, as paths in the owner's git directory."""

_KEPT_SETTINGS = (
    r"core\.(autocrlf|eol|safecrlf|filemode|symlinks|ignorecase|precomposeunicode|quotepath"
    r"|whitespace|sparsecheckout|sparsecheckoutcone|hookspath|commentchar|abbrev)"
    r"|extensions\.objectformat"
    r"|user\.(name|email)"
    r"|index\.sparse"
    r"|(remote|branch)\..+\.(url|fetch|remote|merge|rebase|tagopt)"
    r"|submodule\..+\.(url|active|branch)"
    r"|filter\.lfs\.(clean|smudge|process|required)"
    r"|(diff|merge|pull|rebase|fetch|push)\.[a-z]+"
)
"""Settings that affect work on the project. None of them is a credential or names a program,
except for git-lfs, without which such a project cannot be checked out."""


def load_refs(checkout: str) -> Refs:
    """Runs one git process. HEAD is None when it is detached or unborn."""
    answer = git.git("for-each-ref", "--format=%(objectname) %(refname) %(HEAD)", cwd=checkout)
    rows = [line.split(" ", 2) for line in answer.lines]
    head = next(((ref, commit) for commit, ref, mark in rows if mark == "*"), (None, None))
    pairs = tuple((commit, ref) for commit, ref, _ in rows)
    return Refs(pairs=pairs, head_ref=head[0], head_commit=head[1])


class Source(NamedTuple):
    """The state of the owner's repository that a capsule starts from."""

    checkout: str
    repository: str
    """The common git directory."""
    git_dir: str
    """The git directory of the checkout; differs from `repository` in a linked worktree."""
    refs: Refs
    commit: str
    extra: tuple[str, ...] = ()
    """Further commits that the capsule can read, such as the recovery point that it starts
    with."""
    is_passing: bool = False
    """Whether `commit` comes from a capsule and is only looked at: later commits are not built on
    it, and no filter of the owner's but git-lfs runs on what it changes.
    """


def find_git_layer(pool: Pool, source: Source) -> tuple[str, Layer | None]:
    """The layer's id, and the layer if it exists. Runs no program."""
    import hashlib  # noqa: PLC0415 - needed when something is made, not when it is run

    digest = hashlib.blake2b(digest_size=8)
    digest.update("\n".join([_FORMAT, *source.extra, ""]).encode())
    for commit, ref in _visible(source.refs):
        digest.update(f"{commit} {ref}\n".encode(errors="surrogateescape"))
    digest.update(f"{source.commit}\n{pool.objects}\n".encode(errors="surrogateescape"))
    for place in (source.repository, source.git_dir):
        for name in _WATCHED:
            digest.update(_stamp(Path(place, name)))
    for path in _global_settings():
        digest.update(_stamp(path))
    layer = LayerKind.GIT.layer(digest.hexdigest())
    return layer, pool.find(layer)


def _global_settings() -> tuple[Path, Path]:
    """The owner's own settings files, which may hold the identity."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(os.path.expanduser("~/.gitconfig")), Path(config, "git/config")


def _visible(refs: Refs) -> list[tuple[str, str]]:
    return [(commit, ref) for commit, ref in refs.pairs if history.is_visible(ref)]


def _stamp(path: Path) -> bytes:
    try:
        status = path.stat()
    except OSError:
        return b"-"
    return f"{status.st_mtime_ns} {status.st_size} {status.st_ino}".encode()


def freeze_git_layer(pool: Pool, source: Source) -> Layer:
    """Pins the base commit, builds the history store, then builds the layer.

    The caller must hold the pool's lock.
    """
    layer, found = find_git_layer(pool, source)
    if found is not None:
        return found
    settings = _load_settings(source)
    _require_whole(settings)
    # Recorded first, so that the pin of a layer that is never finished can be removed.
    files.make_private_directory(pool.root / _PINS)
    files.write_atomic(pool.root / _PINS / layer, b"")
    _pin(source, layer)
    listed = history.reachable_refs(source.repository, source.commit)
    # The refs as of when the layer's id was computed: refs that moved since are left out.
    seen = set(_visible(source.refs))
    pairs = [pair for pair in listed.pairs if pair in seen]
    if len(pairs) > _REFS_LIMIT:
        raise StateError(
            f"the repository has {len(pairs):,} refs; capsules support at most {_REFS_LIMIT:,}",
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
            "the repository uses a ref storage format that capsules do not support",
            hint="atoll new NAME --level worktree",
        )


def _pin(source: Source, layer: str) -> None:
    """Creates a commit whose parent is the base commit, which protects it from `git gc`."""
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
    """Writes an object to the owner's repository and syncs it."""
    answer = git.git(
        *git.DURABLE, "hash-object", "-t", kind, "-w", "--stdin",
        cwd=source.repository, stdin=content,
    )  # fmt: skip
    return answer.text.strip()


def unpin_unused(pool: Pool, repository: str) -> None:
    """Removes pins of missing layers. The caller must hold the pool's lock exclusively."""
    places = (pool.root / _PINS).iterdir() if (pool.root / _PINS).is_dir() else ()
    for note in [path for path in places if not (pool.layers / path.name).exists()]:
        ref = PIN_PREFIX + note.name
        if (pin := git.find_ref(ref, cwd=repository)) is not None:
            git.delete_ref(ref, cwd=repository, old=pin)
        note.unlink()


def _load_settings(source: Source) -> list[tuple[str, str]]:
    """The owner's project and global settings, in git's order."""
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
    """A path quoted as an alternate."""
    if path[:1] not in ('"', "#") and "\n" not in path:
        return path
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _render_settings(settings: list[tuple[str, str]]) -> str:
    """The private config: the repository format and the owner's settings that are kept."""
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
        # Otherwise git-lfs writes it, into the frozen layer.
        lines += ["[lfs]", "\trepositoryformatversion = 0"]
    return "\n".join(lines) + "\n"


def _is_kept(key: str, value: str) -> bool:
    if not re.fullmatch(_KEPT_SETTINGS, key, re.IGNORECASE):
        return False
    # A hook directory of the owner's machine is not part of the project.
    return key.lower() != "core.hookspath" or not value.startswith(("/", "~"))


def without_password(value: str) -> str:
    # Up to the last `@` before the path: a password may contain one.
    return re.sub(r"^(\w[\w+.-]*://)[^/]*@", r"\1", value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t") + '"'


def _excludes(source: Source, settings: list[tuple[str, str]]) -> str:
    """The project's excludes, preceded by the owner's global ones."""
    chosen = next((value for key, value in settings if key.lower() == "core.excludesfile"), None)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    general = Path(os.path.expanduser(chosen) if chosen else f"{config}/git/ignore")
    texts = []
    for path in (general, Path(source.repository, "info/exclude")):
        # The global file may be a symbolic link.
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
