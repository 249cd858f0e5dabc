"""The bwrap launcher: started with an empty environment, with its arguments in a file.

Used between fork and exec, by the keeper for runs and for short commands of the engine. Nothing of
a capsule is in a command line that others can read, and bwrap itself never sees a variable that the
capsule chose.
"""

from __future__ import annotations

import errno
import os
import stat

from atoll.keeper import calls, write_restriction
from atoll.keeper.start_error import NO_WALLS, NOT_EXECUTABLE, NOT_FOUND, StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from atoll.model.enclosure import Bwrap

_MOST_WORDS = 8900
"""bwrap takes 9000 in all, from its file and its command line."""

_EXECUTED = b'"exit-code"'
_NOT_EXECUTED = b"bwrap: execvp "
_NOT_ENTERED = b"bwrap: Can't chdir to "
_ABSENCES = tuple(os.strerror(number) for number in (errno.ENOENT, errno.ENOTDIR))
_SAID_BYTES = 2000
_LAST_DIGIT = 9
_UNSEEN = "its interpreter is not visible inside"
_MOST_LINKS = 40
_FIRST_LINE_BYTES = 256
_PATH_CHARACTERS = 200


class BubblewrapLauncher:
    """Starts commands in a bwrap sandbox (`atoll.keeper.launchers.Launcher`)."""

    __slots__ = ("_walls",)

    def __init__(self, walls: Bwrap) -> None:
        self._walls = walls

    def words(
        self,
        argv: Iterable[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        news: int | None = None,
        tty: bool = False,
    ) -> tuple[list[str], list[int]]:
        """What to execute, and the descriptors that it needs, which are made here.

        `news`, a pipe, gets what `was_executed` understands; the command itself never has it.
        """
        filter_fd = _file("filter", self._walls.filter)
        options = [*self._walls.options, "--seccomp", str(filter_fd)]
        options += ["--unshare-net"] if self._walls.alone else []
        options += [] if news is None else ["--json-status-fd", str(news)]
        options += ["--chdir", cwd, *([] if tty else ["--new-session"])]
        for name, value in env.items():
            options += ["--setenv", name, value]
        if len(options) > _MOST_WORDS:
            raise StartError(
                NOT_EXECUTABLE, f"{len(env)} variables are more than a command can get"
            )
        content = b"\0".join(map(os.fsencode, options)) + b"\0"
        words_fd = _file("words", content)
        handles = [filter_fd, words_fd]
        command = list(argv)
        if len(options) + len(command) > _MOST_WORDS:
            # bwrap counts those of the command, too: they reach it by way of a shell.
            handles.append(_script(command))
            command = ["/bin/sh", f"/proc/self/fd/{handles[-1]}"]
        # A session of its own with the terminal: signals typed there must not reach bwrap.
        leader = ["setsid", "--ctty"] if tty else []
        return [self._walls.program, "--args", str(words_fd), "--", *leader, *command], handles

    def narrow(self) -> None:
        """Before `drop`: it needs the privileges. StartError when a pattern matches nothing."""
        if self._walls.write:
            try:
                write_restriction.narrow(self._walls.root, self._walls.workspace, self._walls.write)
            except (OSError, write_restriction.NothingThere) as error:
                raise StartError(NOT_EXECUTABLE, str(error)) from error

    def drop(self) -> None:
        """Become the user that the capsule's processes are to the kernel, never root."""
        if self._walls.uid is not None:
            os.setgroups([])
            os.setresgid(self._walls.uid, self._walls.uid, self._walls.uid)
            os.setresuid(self._walls.uid, self._walls.uid, self._walls.uid)

    def require(self, name: str, search_path: str, cwd: str) -> None:
        """StartError when a command or its place is missing in the sandbox root."""
        root = os.open(self._walls.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(_mode(root, cwd)):
                raise StartError(
                    NOT_EXECUTABLE, f"cannot enter `{cwd}`: there is no such directory"
                )
            if "/" in name:
                self._judge(root, name, [os.path.join(cwd, name)], "no such file")
            else:
                places = [os.path.join(cwd, part, name) for part in search_path.split(":")]
                self._judge(root, name, places, "command not found")
        finally:
            os.close(root)

    @staticmethod
    def was_executed(record: bytes) -> bool:
        """bwrap reports the end of a command to `news` only if that was executed."""
        return _EXECUTED in record

    @staticmethod
    def find_cause(said: bytes) -> StartError:
        """Why a command was not executed, from the error output, which is all bwrap's own."""
        for mark in (_NOT_EXECUTED, _NOT_ENTERED):
            _, is_it, cause = said[-_SAID_BYTES:].partition(mark)
            name, _, reason = cause.decode("utf-8", "replace").strip().rpartition(": ")
            if is_it and mark == _NOT_ENTERED:
                return StartError(NOT_EXECUTABLE, f"cannot enter `{name}`: {reason}")
            if is_it and reason in _ABSENCES:
                # The file itself was found before: see `require`.
                return StartError(NOT_FOUND, f"`{name}`: {reason}: {_UNSEEN}")
            if is_it:
                return StartError(NOT_EXECUTABLE, f"`{name}`: {reason}")
        lines = said.decode("utf-8", "replace").split("\n")
        last = next(
            (line.strip() for line in reversed(lines) if line.strip()), "bwrap printed no message"
        )
        return StartError(NO_WALLS, last)

    @staticmethod
    def _judge(root: int, name: str, places: list[str], absence: str) -> None:
        modes = {place: _mode(root, place) for place in places}
        if not any(modes.values()):
            raise StartError(NOT_FOUND, f"`{name}`: {absence}{_explain_absence(root, places)}")
        found = [p for p, mode in modes.items() if stat.S_ISREG(mode) and mode & 0o111]
        if not found:
            raise StartError(NOT_EXECUTABLE, f"`{name}`: Permission denied")
        interpreter = _find_interpreter(root, found[0])
        if interpreter and not _mode(root, interpreter):
            text = os.strerror(errno.ENOENT)
            raise StartError(NOT_FOUND, f"`{name}`: {text}: {_UNSEEN}: `{_printable(interpreter)}`")


def _explain_absence(root: int, places: list[str]) -> str:
    """Explains that one of these paths is a link to something that is not visible inside.

    A fix is suggested only for links on a read-only mount, which belong to the owner: an agent must
    not be able to suggest what to make visible.
    """
    for place in places:
        target = place
        is_owners = False
        for _ in range(_MOST_LINKS):
            link = _read_link(root, target)
            if link is None:
                break
            is_owners = link[1] if target == place else is_owners and link[1]
            target = os.path.normpath(os.path.join(os.path.dirname(target), link[0]))
        if target != place:
            shown, above = _printable(target), _printable(os.path.dirname(target))
            at = _printable(os.path.normpath(place))
            said = f": `{at}` is a link to `{shown}`, which is not visible inside"
            if is_owners:
                said += f"; `{above}` is, once it is on your PATH and holds programs only"
            return said
    return ""


def _read_link(root: int, path: str) -> tuple[str, bool] | None:
    """The target of a link, and whether it is on a read-only mount; None without a link."""
    try:
        handle = calls.open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW, links=True)
    except OSError:
        return None
    try:
        is_read_only = bool(os.fstatvfs(handle).f_flag & os.ST_RDONLY)
        return os.readlink("", dir_fd=handle), is_read_only
    except OSError:
        return None
    finally:
        os.close(handle)


def _find_interpreter(root: int, path: str) -> str:
    """The absolute path in the first line of a script; empty if there is none."""
    try:
        handle = calls.open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK, links=True)
    except OSError:
        return ""
    try:
        begin = os.read(handle, _FIRST_LINE_BYTES) if _is_regular(handle) else b""
    except OSError:
        return ""
    finally:
        os.close(handle)
    line, is_whole, _ = begin.partition(b"\n")
    words = line.removeprefix(b"#!").split()
    is_script = line.startswith(b"#!") and is_whole and words and words[0].startswith(b"/")
    return os.fsdecode(words[0]) if is_script else ""


def _is_regular(handle: int) -> bool:
    return stat.S_ISREG(os.fstat(handle).st_mode)


def _printable(path: str) -> str:
    """Paths from inside may hold anything: nothing that a terminal would act upon."""
    shown = "".join(c if c.isprintable() else "?" for c in path[:_PATH_CHARACTERS])
    return shown + ("…" if len(path) > _PATH_CHARACTERS else "")


def _mode(root: int, path: str) -> int:
    """0 when there is nothing; links are followed as inside."""
    try:
        handle = calls.open_beneath(root, path, os.O_PATH, links=True)
    except OSError:
        return 0
    try:
        return os.fstat(handle).st_mode
    finally:
        os.close(handle)


def _script(command: list[str]) -> int:
    """A file that becomes the command, and closes itself first: the command inherits nothing."""
    handle = os.memfd_create("atoll-command", 0)
    # Not every shell can name a descriptor of two digits; a minder has none so high.
    close = b"exec %d<&-\n" % handle if handle <= _LAST_DIGIT else b""
    quoted = (os.fsencode(word).replace(b"'", b"'\\''") for word in command)
    _fill(handle, close + b"exec '" + b"' '".join(quoted) + b"'\n")
    return handle


def _file(name: str, content: bytes) -> int:
    handle = os.memfd_create(f"atoll-{name}", 0)
    _fill(handle, content)
    return handle


def _fill(handle: int, content: bytes) -> None:
    with os.fdopen(os.dup(handle), "wb") as stream:
        stream.write(content)
    os.lseek(handle, 0, os.SEEK_SET)
