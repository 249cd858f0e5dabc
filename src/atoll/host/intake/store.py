"""A temporary repository for one operation on a capsule's files.

It is bare, is created in a scratch directory that is removed afterwards, has access to the owner's
objects and uses constant settings, except those of the owner that affect the conversion of files to
blobs. Every git that runs in it is limited in time, memory and output.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from atoll.host import disk_space, files
from atoll.host.git import git
from atoll.host.intake.object_database import ObjectDatabase
from atoll.host.intake.transfer import failure_of
from atoll.host.process import Program, stream
from atoll.model.errors import StateError
from atoll.model.units import render_size

_KEYS = (
    r"^(core\.(autocrlf|eol|ignorecase|filemode|attributesfile|excludesfile)"
    r"|filter\.lfs\.(clean|process)|lfs\.storage|extensions\.objectformat)$"
)
_SAFE = (
    "git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
    "-c", "core.safecrlf=false", "-c", "core.fsync=none", "-c", "core.bigFileThreshold=64m",
)  # fmt: skip
_TRUE = ("", "true", "yes", "on", "1")
_TIMEOUT_S = 600.0
_MEMORY_BYTES = 1 << 30
_OUTPUT_BYTES = 256 << 20
_OWN_FILE_BYTES = 1 << 20


class OwnerSettings(NamedTuple):
    """The part of the owner's configuration that affects files."""

    algorithm: str = "sha1"
    autocrlf: str = "false"
    eol: str = "native"
    ignore_case: bool = False
    file_mode: bool = True
    has_lfs: bool = False
    lfs_storage: str = ""
    """The owner's LFS storage; empty for the default."""
    excludes: bytes = b""
    """The content of `info/exclude`."""
    personal_excludes: bytes = b""
    """The content of `core.excludesFile`."""
    attributes: bytes = b""
    personal_attributes: bytes = b""
    shallow: bytes = b""


def load_settings(repository: str) -> OwnerSettings:
    """Runs the owner's git in the owner's repository."""
    answer = git("config", "-z", "--get-regexp", _KEYS, cwd=repository, allowed=(0, 1))
    found = {}
    for entry in answer.text.split("\0"):
        key, _, value = entry.partition("\n")
        # A key without `=` has no value and means "true".
        found[key] = value
    autocrlf = found.get("core.autocrlf", "false").lower()
    eol = found.get("core.eol", "native").lower()
    return OwnerSettings(
        algorithm=_chosen(found.get("extensions.objectformat", "sha1"), ("sha1", "sha256")),
        autocrlf="input" if autocrlf == "input" else str(autocrlf in _TRUE).lower(),
        eol=eol if eol in ("lf", "crlf") else "native",
        ignore_case=found.get("core.ignorecase", "false").lower() in _TRUE,
        file_mode=found.get("core.filemode", "true").lower() in _TRUE,
        has_lfs=bool(found.get("filter.lfs.clean") or found.get("filter.lfs.process")),
        lfs_storage=found.get("lfs.storage", ""),
        excludes=_own_file(os.path.join(repository, "info", "exclude")),
        personal_excludes=_own_file(_personal(found.get("core.excludesfile"), "ignore")),
        attributes=_own_file(os.path.join(repository, "info", "attributes")),
        personal_attributes=_own_file(_personal(found.get("core.attributesfile"), "attributes")),
        shallow=_own_file(os.path.join(repository, "shallow")),
    )


def _chosen(value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise StateError(f"the repository's object format is not supported: not {', '.join(known)}")
    return value


def _personal(configured: str | None, name: str) -> str:
    if configured is not None:
        return os.path.expanduser(configured)
    place = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(place, "git", name)


def _own_file(path: str) -> bytes:
    """A file of the owner, possibly a link; empty if there is none."""
    real = Path(os.path.realpath(path))
    try:
        return files.read_regular(real, limit_bytes=_OWN_FILE_BYTES) or b""
    except (StateError, OSError):
        return b""


class IntakeRepository(NamedTuple):
    place: Path
    """A private directory of Atoll."""
    repository: str
    """The owner's repository, the source of objects and the target of published commits."""
    settings: OwnerSettings
    objects: ObjectDatabase

    @property
    def git_dir(self) -> Path:
        return self.place / "store"

    @property
    def staging(self) -> Path:
        """The work tree: copies of single files that git has to convert."""
        return self.place / "staging"

    @property
    def large_files(self) -> Path:
        """Contents of Git LFS files to be published, named by SHA-256."""
        return self.place / "lfs"

    def env(self) -> dict[str, str]:
        nowhere = str(self.place / "nowhere")
        return {
            "HOME": nowhere,
            "XDG_CONFIG_HOME": nowhere,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_DIR": str(self.git_dir),
            "GIT_WORK_TREE": str(self.staging),
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
        }

    def program(
        self, *args: str, stdin: bytes | FileIO = b"", env: dict[str, str] | None = None
    ) -> Program:
        if isinstance(stdin, FileIO):
            stdin.seek(0)
        return Program(
            (*_SAFE, *args),
            cwd=str(self.staging),
            env={**self.env(), **(env or {})},
            stdin=stdin.fileno() if isinstance(stdin, FileIO) else stdin,
            memory_bytes=_MEMORY_BYTES,
        )

    def flush(self) -> None:
        """Makes what was written to `objects` visible to git."""
        made = self.objects.take_pack()
        if made is not None:
            self.run("index-pack", "--stdin", stdin=made.file)

    def has_other_objects(self) -> bool:
        """Whether git itself has written objects to the store."""
        place = self.git_dir / "objects"
        names = {path.name for path in place.iterdir()} - {"info", "pack"}
        return bool(names) or any((place / "pack").iterdir())

    def run(
        self,
        *args: str,
        stdin: bytes | FileIO = b"",
        env: dict[str, str] | None = None,
        limit_bytes: int = _OUTPUT_BYTES,
        allowed: Sequence[int] = (0,),
    ) -> bytes:
        """The output of git, which does not see what was written to `objects` since the last
        `flush`. Raises StateError if the output is too large or takes too long, and DriverError if
        git fails.
        """
        answer = bytearray()
        program = self.program(*args, stdin=stdin, env=env)
        done = stream(program, answer.extend, limit_bytes=limit_bytes, timeout_s=_TIMEOUT_S)
        if done.ended == "size":
            raise StateError(f"`git {args[0]}` printed more than {render_size(limit_bytes)}")
        if done.ended == "time":
            raise StateError(f"`git {args[0]}` took longer than {_TIMEOUT_S:g} s")
        if done.completed.code not in allowed:
            raise failure_of(done.completed, args[0], str(self.git_dir))
        return bytes(answer)


@contextmanager
def open_store(repository: str, *, scratch: Path) -> Iterator[IntakeRepository]:
    """A temporary store in a new directory below `scratch`."""
    found = load_settings(repository)
    with scratch_directory(scratch) as place, make_store(place, repository, found) as store:
        alternates = os.path.realpath(os.path.join(repository, "objects"))
        (store.git_dir / "objects" / "info" / "alternates").write_bytes(_quoted(alternates))
        yield store


@contextmanager
def make_store(place: Path, repository: str, settings: OwnerSettings) -> Iterator[IntakeRepository]:
    """A store in `place` without access to other objects."""

    def reader() -> Program:
        return store.program("cat-file", "--batch")

    store = IntakeRepository(
        place, repository, settings, ObjectDatabase(reader, place, settings.algorithm)
    )
    store.staging.mkdir()
    make_repository(store.git_dir, settings)
    try:
        yield store
    finally:
        store.objects.close()


@contextmanager
def scratch_directory(within: Path) -> Iterator[Path]:
    """A private temporary directory below `within`, or in the system's temporary directory if the
    filesystem of `within` is read-only.
    """
    if disk_space.is_read_only(within):
        within = Path(tempfile.gettempdir())
    else:
        files.make_private_directory(within)
    place = within / f".intake-{os.urandom(6).hex()}"
    place.mkdir(mode=0o700)
    try:
        yield place
    finally:
        files.remove_tree(place, within=within)


def make_repository(path: Path, settings: OwnerSettings) -> None:
    """Writes what `git init --bare` would, with the owner's settings for files."""
    for name in ("objects/info", "objects/pack", "refs/heads", "info"):
        (path / name).mkdir(parents=True)
    version = 1 if settings.algorithm == "sha256" else 0
    lines = [
        "[core]",
        f"\trepositoryformatversion = {version}",
        "\tbare = true",
        f"\tautocrlf = {settings.autocrlf}",
        f"\teol = {settings.eol}",
        f"\tignorecase = {str(settings.ignore_case).lower()}",
        f"\tfilemode = {str(settings.file_mode).lower()}",
    ]
    if version:
        lines += ["[extensions]", f"\tobjectformat = {settings.algorithm}"]
    (path / "config").write_text("\n".join(lines) + "\n")
    (path / "HEAD").write_text("ref: refs/heads/none\n")
    (path / "info" / "exclude").write_bytes(settings.excludes)
    (path / "info" / "attributes").write_bytes(settings.attributes)
    for name, content in (
        ("personal-excludes", settings.personal_excludes),
        ("personal-attributes", settings.personal_attributes),
    ):
        (path / "info" / name).write_bytes(content)
    if settings.shallow:
        (path / "shallow").write_bytes(settings.shallow)


def personal_files(git_dir: Path) -> tuple[str, ...]:
    """Options that name the owner's personal excludes and attributes in a temporary store."""
    place = git_dir / "info"
    return (
        "-c", f"core.excludesFile={place / 'personal-excludes'}",
        "-c", f"core.attributesFile={place / 'personal-attributes'}",
    )  # fmt: skip


def _quoted(path: str) -> bytes:
    raw = os.fsencode(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + raw + b'"\n'
