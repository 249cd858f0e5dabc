"""File operations with guarantees: atomic writes, and a removal that never leaves Atoll's home and
never follows a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from io import FileIO
from pathlib import Path

from atoll.host.beneath import open_by_parts
from atoll.keeper.handles import Opened
from atoll.model.errors import PrerequisiteError, StateError


def make_private_directory(path: Path) -> None:
    """Creates a directory and its missing parents with mode 0700."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    for place in (*reversed(missing), path):
        while not _is_made(place):
            continue


def _is_made(place: Path) -> bool:
    """Makes one directory; False when another process removed it at this moment."""
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        if not place.is_dir():
            if os.path.lexists(place):
                raise
            return False
    return True


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replaces `path` atomically; with `durable`, also across a power failure."""
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sync_directory(path: Path) -> None:
    """Syncs the entries of a directory to disk."""
    _sync(path, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Syncs the content of a file to disk."""
    _sync(path, os.O_NOFOLLOW)


def _sync(path: Path, flag: int) -> None:
    with Opened(os.open(path, os.O_RDONLY | flag | os.O_CLOEXEC)) as handle:
        os.fsync(handle)


def write_all(file: FileIO, content: bytes | memoryview) -> None:
    """Writes to an unbuffered file, which may take less than all at once."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def write_new(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Creates `path` without overwriting. Raises StateError if it exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError as error:
        raise StateError(f"`{path}` exists already") from error
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)


def read_regular(path: Path, *, limit_bytes: int) -> bytes | None:
    """The content of a regular file, or None if there is none.

    Does not follow a final link or block on a fifo. Raises StateError for anything but a regular
    file, and for one larger than the limit.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise StateError(f"`{path}` is a symbolic link, which is not followed") from error
        if error.errno == errno.ENXIO:
            raise StateError(f"`{path}` is not a regular file") from error
        raise
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise StateError(f"`{path}` is not a regular file")
    with os.fdopen(handle, "rb") as stream:
        if status.st_size > limit_bytes:
            raise StateError(f"`{path}` is larger than {limit_bytes} bytes")
        return stream.read(limit_bytes)


def read_beneath(root: Path, relative: str, *, limit_bytes: int) -> bytes | None:
    """The content of a regular file below `root`, which a hostile process may be changing.

    Follows no link in any component. Returns None if there is no such file, or if it is larger
    than the limit.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    handle = _open_plain(root)
    try:
        leaf = open_by_parts(handle, os.fsencode(relative), flags)
    except OSError:
        return None
    finally:
        os.close(handle)
    status = os.fstat(leaf)
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
        # `open` fails on the descriptor of a directory.
        os.close(leaf)
        return None
    with os.fdopen(leaf, "rb") as stream:
        content = stream.read(limit_bytes + 1)
    return content if len(content) <= limit_bytes else None


def write_beneath(root: Path, relative: str, data: bytes, *, append: bool = False) -> None:
    """Writes a file below `root`, which a hostile process may have written to before.

    Creates missing directories. Raises StateError if a link or another obstacle is on the path:
    nothing outside `root` is ever written.
    """
    handle = _open_plain(root)
    try:
        leaf = _open_to_write(handle, os.fsencode(relative))
    except OSError as error:
        raise StateError(f"`{root / relative}` cannot be written: {error.strerror}") from error
    finally:
        os.close(handle)
    with os.fdopen(leaf, "ab" if append else "wb") as stream:
        status = os.fstat(leaf)
        if not stat.S_ISREG(status.st_mode):
            raise StateError(f"`{root / relative}` is not a regular file")
        if not append:
            # Truncated only after its type is known.
            os.ftruncate(leaf, 0)
        stream.write(data)


def _open_to_write(root: int, path: bytes) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
    above, _, name = path.rpartition(b"/")
    parent = os.dup(root)
    try:
        for part in above.split(b"/") if above else ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=parent)
            below = open_by_parts(parent, part, os.O_RDONLY | os.O_DIRECTORY)
            os.close(parent)
            parent = below
        return open_by_parts(parent, name, flags, 0o644)
    finally:
        os.close(parent)


def remove_beneath(root: Path, relative: str, *, whiteout: bool = False) -> None:
    """Removes a file below `root`, which a hostile process may have written to before; a missing
    one is fine. With `whiteout`, an overlay hides the path in its lower layers as well.

    Raises StateError if a link is on the path: nothing outside `root` is changed.
    """
    *parents, name = relative.split("/")
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        above = open_by_parts(handle, os.fsencode("/".join(parents)), os.O_PATH | os.O_DIRECTORY)
    except OSError as error:
        raise StateError(f"`{root / relative}` cannot be removed: {error.strerror}") from error
    finally:
        os.close(handle)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=above)
        if whiteout:
            os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=above)
    finally:
        os.close(above)


def require_own_directory(path: Path, *, writable: bool = True) -> None:
    """Creates Atoll's home if it is missing, and refuses one that other users control."""
    try:
        make_private_directory(path)
        status = path.stat()
    except OSError as error:
        raise PrerequisiteError(
            f"`{path}` cannot be used as Atoll's home: {error.strerror}",
            hint="set ATOLL_HOME to a directory that you can write to",
        ) from error
    if status.st_uid != os.geteuid():
        raise PrerequisiteError(
            f"`{path}` belongs to user id {status.st_uid}, not to {os.geteuid()}",
            hint="set ATOLL_HOME to a directory that you own",
        )
    if status.st_mode & 0o022:
        raise PrerequisiteError(f"`{path}` can be written by others", hint=f"chmod go-w '{path}'")
    if writable and not os.access(path, os.W_OK | os.X_OK):
        raise PrerequisiteError(
            f"`{path}` is not writable", hint="set ATOLL_HOME to a directory that you can write to"
        )


def move(source: Path, target: Path) -> None:
    """Renames within one filesystem and creates the target's parent."""
    make_private_directory(target.parent)
    os.rename(source, target)


def discard(path: Path, *, home: Path) -> None:
    """Moves a tree to the trash atomically; a missing one is fine. `gc` reclaims it later."""
    target = home / "trash" / f"{path.name}-{os.urandom(6).hex()}"
    while os.path.lexists(path):
        make_private_directory(target.parent)
        # A concurrent `gc` removes an empty trash: create it again.
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, target)


def remove_tree(path: Path, *, within: Path) -> None:
    """Removes `path` and everything below it; a missing one is fine.

    Refuses to leave `within` and to remove a tree that contains a mount point, never follows a
    link, and handles trees of any depth and directories without permissions.
    """
    home = Path(os.path.realpath(within))
    place = Path(os.path.realpath(path.parent)) / path.name
    if home not in place.parents or place.name == "..":
        raise StateError(f"`{path}` is not below `{within}`: not removed")
    try:
        status = os.lstat(place)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(place)
        return
    for point in _mount_points():
        # A bind mount has the same device: only this list distinguishes it from a directory.
        if place in (point, *point.parents):
            raise StateError(f"`{point}` is a mount point: not removed")
    with Opened(_open_plain(place.parent)) as parent:
        root = _open_directory(place.name, parent)
    with Opened(root):
        _empty(root, device=status.st_dev)
    os.rmdir(place)


def _mount_points() -> list[Path]:
    with open("/proc/self/mountinfo", "rb") as stream:
        fields = [line.split(b" ")[4] for line in stream]
    # The kernel escapes blanks and backslashes as `\040`.
    return [
        Path(os.fsdecode(re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), field)))
        for field in fields
    ]


def _open_plain(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_directory(name: str, parent: int) -> int:
    """Opens a directory to empty it, and changes a mode that forbids it."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
    with Opened(os.open(name, flags, dir_fd=parent)) as handle:
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)


def _empty(root: int, *, device: int) -> None:
    """Empties a directory without recursion: subdirectories are first moved to the top.

    This keeps the number of open descriptors and the length of paths constant.
    """
    counter = 0
    while names := _names(root):
        for name in names:
            if not _unlink_plain(name, root):
                counter = _dissolve(name, root, device=device, counter=counter)


def _names(directory: int) -> list[str]:
    """The entries of a directory: on btrfs an open one does not list later ones."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with Opened(os.open(".", flags, dir_fd=directory)) as handle:
        return os.listdir(handle)


def _unlink_plain(name: str, parent: int) -> bool:
    if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
        return False
    os.unlink(name, dir_fd=parent)
    return True


def _dissolve(name: str, root: int, *, device: int, counter: int) -> int:
    """Removes one directory of `root`: deletes its files, moves its subdirectories to `root`."""
    with Opened(_open_directory(name, root)) as handle:
        own = os.fstat(handle).st_dev
        if own != device:
            # No mount point, so it is a subvolume of the same filesystem, from which nothing can be
            # moved out.
            _empty(handle, device=own)
        for child in _names(handle):
            if _unlink_plain(child, handle):
                continue
            # Moving a directory changes its `..`, so it must be writable itself.
            os.close(_open_directory(child, handle))
            counter = _lift(child, handle, root, counter)
    os.rmdir(name, dir_fd=root)
    return counter


def _lift(child: str, handle: int, root: int, counter: int) -> int:
    while True:
        counter += 1
        target = f".atoll-{counter}"
        try:
            os.stat(target, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(child, target, src_dir_fd=handle, dst_dir_fd=root)
            return counter


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
