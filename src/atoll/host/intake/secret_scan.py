"""Refuses commits that contain a known secret, before their objects reach the owner's repository.

Every object that the commits add to what the owner's branches have is read by a git of the host and
searched while it streams by. Messages name commit, file and line, never the value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator

from atoll.host.intake.transfer import Transfer, failure_of
from atoll.host.process import Program, stream
from atoll.model.errors import StateError
from atoll.model.secretvalues import SecretSearch, StreamSearch
from atoll.model.untrusted import Untrusted, find_path

_LIST = (
    # The oldest commit first, so that a file is reported with the commit that added it.
    "git", "rev-list", "--objects", "--in-commit-order", "--reverse", "--ignore-missing",
    "--single-worktree", "--stdin", "--not", "--branches", "--tags", "--remotes",
)  # fmt: skip
_READ = (
    "git", "-c", "core.bigFileThreshold=16m", "cat-file", "--buffer",
    "--batch=%(objectname) %(objecttype) %(objectsize) %(rest)",
)  # fmt: skip
_MOST_BYTES = 1 << 44
"""Only the time is limited."""
_HEAD_BYTES = 1 << 20


_PERSONS = (b"author", b"committer", b"tagger")
Starter = Callable[[tuple[str, ...], Transfer, bytes], Program]
"""A git in a repository, or in its quarantine, with this input."""


def require_clean(program: Starter, transfer: Transfer) -> None:
    """Raises StateError if what the tips add contains a known secret, or cannot be searched."""
    search = transfer.search
    if not search:
        return
    # The list can be long, and the second program reads it as its input.
    with tempfile.TemporaryFile(buffering=0) as listed:
        asked = [*transfer.tips, *(f"^{name}" for name in transfer.known)]
        given = "".join(f"{name}\n" for name in asked).encode()
        _run(program(_LIST, transfer, given), listed.write, transfer)
        found = _ObjectSearch(search, transfer)
        listed.seek(0)
        reading = program(_READ, transfer, b"")._replace(stdin=listed.fileno())
        _run(reading, found.take, transfer)
        found.require_end()


def searched(pieces: Iterable[bytes], search: SecretSearch | None, shown: str) -> Iterator[bytes]:
    """The pieces of a Git LFS object. Raises StateError at the piece that contains a secret."""
    if not search:
        yield from pieces
        return
    content = StreamSearch(search)
    for piece in pieces:
        found = content.find(piece)
        if found is not None:
            raise refusal(found[0], f"the Git LFS file `{shown}`, line {found[1]}")
        yield piece


def refusal(secret: str, where: str) -> StateError:
    return StateError(
        f"{where} contains the secret `{secret}`; nothing was exported",
        hint="inside the capsule, remove it from all commits: git commit --amend, or git rebase -i",
    )


def _run(program: Program, take: Callable[[bytes], object], transfer: Transfer) -> None:
    done = stream(program, take, limit_bytes=_MOST_BYTES, timeout_s=transfer.left_s())
    if done.ended == "time":
        raise transfer.too_late()
    if not done.is_good:
        raise failure_of(done.completed, program.argv[1], str(program.cwd))


class _ObjectSearch:
    """Reads the output of `git cat-file --batch` piece by piece."""

    def __init__(self, search: SecretSearch, transfer: Transfer) -> None:
        self._search, self._transfer = search, transfer
        self._head = b""
        self._began = b""
        """The beginning of a commit or tag, as far as it has been read, up to its message."""
        self._left = 0
        """How much is missing of the present object, and of the newline after it."""
        self._content = StreamSearch(search)
        self._commit = self._kind = ""
        self._path = b""

    def take(self, chunk: bytes) -> None:
        while chunk:
            if self._left:
                piece, chunk = chunk[: self._left], chunk[self._left :]
                self._left -= len(piece)
                self._examine(piece)
            else:
                chunk = self._take_head(chunk)

    def require_end(self) -> None:
        if self._left or self._head:
            raise self._transfer.incomplete("it could not be searched for secrets")

    def _take_head(self, chunk: bytes) -> bytes:
        """Returns what comes after the line."""
        line, is_whole, rest = chunk.partition(b"\n")
        self._head += line
        if len(self._head) > _HEAD_BYTES:
            raise self._transfer.incomplete("a path in it is too long")
        if is_whole:
            self._begin(self._head)
            self._head = b""
        return rest

    def _begin(self, head: bytes) -> None:
        words = head.split(b" ", 3)
        if len(words) != 4 or not words[2].isdigit():
            raise self._transfer.incomplete("an object in it could not be read")
        self._kind, self._path = words[1].decode("ascii", "replace"), words[3]
        if self._kind == "commit":
            self._commit = words[0].decode("ascii", "replace")
        self._left = int(words[2]) + 1
        self._content = StreamSearch(self._search)
        self._began = b""
        found = self._search.find(self._path)
        if found is not None:
            raise self._refuse(found.secret, "the name of a file")

    def _examine(self, piece: bytes) -> None:
        found = self._content.find(piece)
        if self._kind in ("commit", "tag") and b"\n\n" not in self._began:
            self._began = (self._began + piece)[:_HEAD_BYTES]
        if found is None:
            return
        secret, line = found
        match self._kind:
            case "blob":
                raise self._refuse(secret, f"`{self._shown_path()}`, line {line}")
            case "tree":
                place = f"in `{self._shown_path()}`" if self._path else "at the top"
                raise self._refuse(secret, f"the name of a file {place}")
            case "tag":
                raise refusal(secret, f"the {self._part_at(line)} of a tag")
        raise self._refuse(secret, f"its {self._part_at(line)}")

    def _part_at(self, line: int) -> str:
        """What a commit or tag has in this line."""
        head, _, _ = self._began.partition(b"\n\n")
        lines = head.split(b"\n")
        if line > len(lines):
            return "message"
        field = lines[line - 1].split(b" ")[0]
        return field.decode() if field in _PERSONS else "header"

    def _refuse(self, secret: str, where: str) -> StateError:
        return refusal(secret, f"commit {self._commit[:10]} ({where})")

    def _shown_path(self) -> str:
        """The path was searched before: it has no secret."""
        path = find_path(Untrusted(self._path))
        return "a file" if path is None else path.shown()
