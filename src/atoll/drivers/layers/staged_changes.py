"""The owner's staged changes, for capsules created with `--dirty`.

The index of such a capsule is that of the commit plus the owner's staged changes: added, modified,
renamed and deleted files, files with intent to add, and the sides of a conflict. Staged contents
are copied as loose objects. Files that `--dirty` leaves out as secrets are not staged either.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from atoll.drivers.layers.carry_selection import CarryList, Dirty
from atoll.drivers.layers.packs import CONSTANT, quoted_path
from atoll.drivers.layers.pool import WORKSPACE
from atoll.host import files, git
from atoll.model import secretfiles
from atoll.model.plan import FileSelection

_GITLINK = "160000"
_NO_MODE = "000000"
_EMPTY = {hashlib.new(name, b"blob 0\0").hexdigest() for name in ("sha1", "sha256")}
"""The object id of a file with intent to add: that of an empty file."""
_INDEX_BYTES = 1 << 30
_LOOSE_BYTES = 64 << 20
"""The largest pack that is unpacked into loose objects."""


class StagedEntry(NamedTuple):
    """One entry of the owner's index that differs from the commit."""

    path: str
    mode: str
    object_id: str
    stage: int = 0

    @property
    def is_removal(self) -> bool:
        return self.mode == _NO_MODE

    def line(self) -> bytes:
        """In the input format of `git update-index --index-info`."""
        return os.fsencode(f"{self.mode} {self.object_id} {self.stage}\t{self.path}\0")


class StagedChanges(NamedTuple):
    """The differences between the owner's index and a commit."""

    entries: tuple[StagedEntry, ...] = ()
    intended: tuple[str, ...] = ()
    """Files with intent to add (`git add --intent-to-add`)."""

    def digest(self) -> str:
        """Part of the layer's id; empty when nothing is staged."""
        if not self.entries and not self.intended:
            return ""
        lines = [entry.line() for entry in self.entries]
        lines += [os.fsencode(f"intended {path}\0") for path in self.intended]
        return hashlib.blake2b(b"".join(lines), digest_size=8).hexdigest()


def find_staged(
    checkout: str, commit: str, dirty: Dirty, selection: FileSelection
) -> StagedChanges:
    """What in the owner's index differs from `commit` and may be copied. Runs git once, or twice
    with conflicts or with empty new files.
    """
    found = _differences(checkout, commit, "--ita-visible-in-index")
    conflicts = {path for path, _, status in found if status == "U"}
    entries = [entry for path, entry, status in found if status != "U" and path not in conflicts]
    empty = [e.path for e in entries if e.object_id in _EMPTY]
    intended: set[str] = set()
    if empty:
        real = _differences(checkout, commit, "--ita-invisible-in-index", paths=empty)
        intended = set(empty) - {path for path, _, _ in real}
    if conflicts:
        entries += _conflicting(checkout)
    judge = _StagedJudge(checkout, dirty, selection)
    kept = [entry for entry in entries if entry.path not in intended and judge.lets_out(entry)]
    present = {path for path in dirty.changed if path in intended}
    return StagedChanges(tuple(kept), tuple(sorted(present)))


def _differences(
    checkout: str, commit: str, how: str, *, paths: Sequence[str] = ()
) -> list[tuple[str, StagedEntry, str]]:
    answer = git.git(
        "--literal-pathspecs", "diff", "--cached", "--raw", "-z", "--no-abbrev", "--no-renames",
        "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative",
        "--ignore-submodules=dirty", how, "--end-of-options", commit, "--", *paths,
        cwd=checkout,
    )  # fmt: skip
    fields = answer.text.split("\0")
    rows = []
    for head, path in zip(fields[0::2], fields[1::2], strict=False):
        _, mode, _, object_id, status = head.removeprefix(":").split(" ")
        rows.append((path, StagedEntry(path, mode, object_id), status[0]))
    return rows


def _conflicting(checkout: str) -> list[StagedEntry]:
    """The sides of all conflicts."""
    listed = git.git("ls-files", "--unmerged", "--full-name", "-z", cwd=checkout).text
    entries: dict[str, list[StagedEntry]] = {}
    for row in filter(None, listed.split("\0")):
        head, _, path = row.partition("\t")
        mode, object_id, stage = head.split(" ")
        entries.setdefault(path, []).append(StagedEntry(path, mode, object_id, int(stage)))
    removed = [
        StagedEntry(path, _NO_MODE, "0" * len(sides[0].object_id))
        for path, sides in entries.items()
    ]
    # The commit's entry is removed before the sides of the conflict are added.
    return [*removed, *(side for sides in entries.values() for side in sides)]


class _StagedJudge:
    """Decides which staged contents are left out, as `carry_selection` does for files."""

    def __init__(self, checkout: str, dirty: Dirty, selection: FileSelection) -> None:
        self._checkout = checkout
        self._changed = frozenset(dirty.changed)
        self._left_out = frozenset(entry.path for entry in dirty.left_out)
        self._never = secretfiles.Globs(selection.never) if selection.never else None
        self._listed = CarryList(checkout, selection.carry)

    def lets_out(self, entry: StagedEntry) -> bool:
        *parents, name = entry.path.split("/")
        above = ["/".join(parents[:count]) for count in range(1, len(parents) + 1)]
        if entry.mode == _GITLINK or not self._left_out.isdisjoint((*above, entry.path)):
            return False
        if entry.is_removal:
            return True
        if self._never is not None and (
            self._never.find(entry.path, is_directory=False)
            or any(self._never.find(place, is_directory=True) for place in above)
        ):
            return False
        if self._listed.names([*parents, name]):
            return True
        if any(map(secretfiles.find_directory_rule, parents)) and entry.path not in self._changed:
            return False
        return not self._is_secret(entry, name, parents)

    def _is_secret(self, entry: StagedEntry, name: str, parents: Sequence[str]) -> bool:
        """Decides by name and by the staged content, which may differ from the file's."""
        rule = secretfiles.find_rule(name)
        parent = parents[-1].lower() if parents else ""
        if rule is None or (rule.within and parent not in rule.within):
            return False
        if rule.content is None:
            return True
        content = git.git("cat-file", "blob", entry.object_id, cwd=self._checkout).stdout
        return rule.fits(content[: secretfiles.READ_BYTES])


def write_staged(
    place: Path, staged: StagedChanges, *, repository: str, git_dir: Path, index: Path
) -> None:
    """Writes the index and the objects that it needs into a layer under construction.

    `index` is that of the commit, whose stat data is kept for unchanged entries; `git_dir` is the
    capsules' repository in the git layer.
    """
    private = place / "tree" / WORKSPACE / ".git"
    private.mkdir(parents=True, exist_ok=True, mode=0o755)
    content = files.read_regular(index, limit_bytes=_INDEX_BYTES)
    if content is None:
        return
    _copy_objects(private / "objects", staged, repository)
    (private / "index").write_bytes(content)
    env = {
        **CONSTANT,
        "GIT_DIR": str(git_dir),
        "GIT_WORK_TREE": str(private.parent),
        "GIT_INDEX_FILE": str(private / "index"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_path(f"{repository}/objects"),
    }
    whole = ("-c", "index.sparse=false", "-c", "core.splitIndex=false")
    if staged.entries:
        lines = b"".join(entry.line() for entry in staged.entries)
        git.git(*whole, "update-index", "-z", "--index-info",
                cwd=str(private.parent), env=env, stdin=lines)  # fmt: skip
    if staged.intended:
        names = os.fsencode("".join(f"{path}\0" for path in staged.intended))
        git.git(
            *whole, "--literal-pathspecs", "add", "--intent-to-add", "--force", "--sparse",
            "--pathspec-from-file=-", "--pathspec-file-nul",
            cwd=str(private.parent), env=env, stdin=names,
        )  # fmt: skip


def _copy_objects(target: Path, staged: StagedChanges, repository: str) -> None:
    """Copies the staged contents as loose objects, or as a pack when they are large."""
    wanted = dict.fromkeys(e.object_id for e in staged.entries if not e.is_removal)
    if not wanted:
        return
    (target / "info").mkdir(parents=True, mode=0o755)
    (target / "pack").mkdir(mode=0o755)
    alternates = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quoted_path(f"{repository}/objects")}
    env = {**CONSTANT, "GIT_OBJECT_DIRECTORY": str(target)}
    git.git(
        "pack-objects", "-q", "--window=0", str(target / "pack" / "pack"),
        cwd=repository, env={**env, **alternates},
        stdin="".join(f"{name}\n" for name in wanted).encode(),
    )  # fmt: skip
    packs = list((target / "pack").glob("*.pack"))
    for pack in [path for path in packs if path.stat().st_size <= _LOOSE_BYTES]:
        content = pack.read_bytes()
        # Git does not unpack objects that it already has in a pack.
        for path in (target / "pack").glob(f"{pack.stem}.*"):
            path.unlink()
        git.git("unpack-objects", "-q", cwd=repository, env=env, stdin=content)
