"""Files that Atoll hands to a capsule's processes: on a tmpfs in the view, which only its holder
can write.

Inside, the tmpfs is mounted read-only. Each file is replaced as a whole, and removed at its
deadline by the holder itself, so that this depends on no other process. Everything is gone with the
view, and nothing of it is ever in a layer.
"""

from __future__ import annotations

import os
import stat
import time

from atoll.keeper.handles import Opened
from atoll.keeper.wire import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PLACE = "/run/atoll"
"""Inside."""
LIMIT_BYTES = 1 << 20
OPTIONS = "mode=755,size=16m,nr_inodes=2k"
SECRET_MODE = 0o400
"""Only for the capsule's user."""
PUBLIC_MODE = 0o444
_SHARED = 0o755
_MOST_FILES = 500
_PART_CHARACTERS = 200
_MOST_PARTS = 2
_EXTRA = frozenset("._-")
_NEW = ".new"
"""No name begins with a dot, so that no file can have this one."""
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFiles:
    """`top` is a descriptor of the writable mount, and `uid` the capsule's user, if that is not
    ours.
    """

    __slots__ = ("_top", "_uid", "_until")

    def __init__(self, top: int, uid: int | None) -> None:
        self._top = top
        self._uid = uid
        self._until: dict[str, float | None] = {}

    def serve(self, request: Mapping[str, object], fds: list[int]) -> dict[str, object]:
        """Answers a request; what the host refuses, such as a file on a full tmpfs, is an answer,
        too. Raises WireError for a request that is malformed.
        """
        try:
            match request:
                case {"put": str(name), "public": bool(is_public)} if len(fds) == 1:
                    until = _parse_deadline(request.get("until"))
                    mode = PUBLIC_MODE if is_public else SECRET_MODE
                    self.put(name, _load(fds[0]), mode=mode, until=until)
                    return {}
                case {"drop": str(name)}:
                    return {"dropped": self.drop(name)}
                case {"list": _}:
                    return {"files": dict(self._until)}
        except OSError as error:
            return {"error": error.strerror or "unknown error"}
        raise WireError("no such request")

    def put(self, name: str, content: bytes, *, mode: int, until: float | None = None) -> None:
        """Creates or replaces a file. One with the same content stays, so that a process that has
        it open keeps no second copy alive. Raises OSError.
        """
        parts = _parse_name(name)
        if name not in self._until and len(self._until) >= _MOST_FILES:
            raise OSError(0, "there are too many files")
        with Opened(self._reach(parts[:-1])) as parent:
            if not _holds(parent, parts[-1], content, mode):
                self._replace(parent, parts[-1], content, mode)
        self._until[name] = until

    def drop(self, name: str) -> bool:
        """Removes a file; returns whether there was one. A process that has it open can go on
        reading it.
        """
        parts = _parse_name(name)
        if name not in self._until:
            return False
        with Opened(self._reach(parts[:-1])) as parent:
            _remove(parent, parts[-1])
        del self._until[name]
        return True

    def expire(self) -> None:
        """Removes the files whose deadline has passed."""
        now = time.time()
        over = [name for name, until in self._until.items() if until is not None and now >= until]
        for name in over:
            self.drop(name)

    def wait_s(self) -> float | None:
        """How long until `expire` has something to do; None: not until another request."""
        deadlines = [until for until in self._until.values() if until is not None]
        return max(0.0, min(deadlines) - time.time()) if deadlines else None

    def _reach(self, names: list[str]) -> int:
        """A descriptor of the directory, which is made if it is missing."""
        place = os.dup(self._top)
        for name in names:
            try:
                os.mkdir(name, _SHARED, dir_fd=place)
                os.chmod(name, _SHARED, dir_fd=place)  # despite our umask
            except FileExistsError:
                pass
            below = os.open(name, _DIRECTORY, dir_fd=place)
            os.close(place)
            place = below
        return place

    def _replace(self, parent: int, name: str, content: bytes, mode: int) -> None:
        try:
            self._write(parent, content, mode)
            os.rename(_NEW, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            _remove(parent, _NEW)
            raise

    def _write(self, parent: int, content: bytes, mode: int) -> None:
        handle = os.open(_NEW, _CREATE, 0o600, dir_fd=parent)
        with open(handle, "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            if self._uid is not None:
                os.fchown(handle, self._uid, self._uid)
            os.fchmod(handle, mode)


def _parse_name(name: str) -> list[str]:
    """The parts of a name such as `secrets/TOKEN`. Raises WireError for any other form."""
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or not all(map(_is_plain, parts)):
        raise WireError("not the name of a private file")
    return parts


def _is_plain(part: str) -> bool:
    return (
        0 < len(part) <= _PART_CHARACTERS
        and part.isascii()
        and part[0] not in ".-"
        and all(c.isalnum() or c in _EXTRA for c in part)
    )


def _parse_deadline(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise WireError("not a deadline")
    return float(value)


def _load(fd: int) -> bytes:
    """The content of a memfd. Raises WireError if it is too large, or no regular file."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > LIMIT_BYTES:
        raise WireError("not a file, or too large")
    found = bytearray()
    while len(found) <= LIMIT_BYTES and (piece := os.pread(fd, 1 << 16, len(found))):
        found += piece
    if len(found) > LIMIT_BYTES:
        raise WireError("too large")
    return bytes(found)


def _holds(parent: int, name: str, content: bytes, mode: int) -> bool:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return False
    with open(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        is_same = (stat.S_IMODE(status.st_mode), status.st_size) == (mode, len(content))
        return is_same and file.read(len(content) + 1) == content


def _remove(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
