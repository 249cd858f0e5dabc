"""Starting the command: a session of its own, on pipes or on a terminal, and nothing inherited."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import struct
import termios

from atoll.keeper import calls
from atoll.keeper.child_process import close_all_but
from atoll.keeper.launchers import launcher_of
from atoll.keeper.loop import HANDLED_SIGNALS
from atoll.keeper.rlimits import restore_soft_limits
from atoll.keeper.start_error import NO_WALLS, NOT_EXECUTABLE, NOT_FOUND, StartError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.keeper.launchers import Launcher
    from atoll.keeper.limits import RunLimits
    from atoll.model.enclosure import KeeperSpec, Walls

_IUTF8 = 0o40000  # the termios module does not name it before Python 3.13


class Child:
    """The command's process and the keeper's ends of its plumbing, all non-blocking."""

    __slots__ = ("failure", "pid", "stderr", "stdin", "stdout", "terminal")

    def __init__(self, plumbing: Plumbing, pid: int, failure: int) -> None:
        self.pid = pid
        self.failure = failure
        """Reports why the command was not started; end of file if it was."""
        self.stdin = plumbing.stdin
        self.stdout = plumbing.stdout
        self.stderr = plumbing.stderr
        self.terminal = plumbing.terminal
        """The command's side of its terminal. Held open, so that a command which closes and
        reopens it causes no hang-up."""


class Plumbing:
    """Descriptors of both sides; `theirs` become 0, 1 and 2 of the command."""

    __slots__ = ("stderr", "stdin", "stdout", "terminal", "theirs")

    def __init__(self, theirs: tuple[int, int, int]) -> None:
        self.theirs = theirs
        self.stdin: int | None = None
        self.stdout = -1
        self.stderr: int | None = None
        self.terminal: int | None = None


def start_command(
    spec: KeeperSpec, size: tuple[int, int], limits: RunLimits | None = None
) -> Child:
    """Fork and let the child become the command; `size` is for its terminal, (rows, cols).

    Returns before it has: `read_failure` reports the result later. StartError if not even the
    fork was possible.
    """
    try:
        plumbing = _open_terminal(spec, size) if spec.tty else _open_pipes(spec)
    except OSError as error:
        raise StartError(NOT_EXECUTABLE, f"no pipes or terminal: {error.strerror}") from error
    pid, failure = fork_command(spec, plumbing.theirs, limits=limits, terminal=plumbing.terminal)
    for fd in set(plumbing.theirs) - {plumbing.terminal}:
        os.close(fd)
    ours = (plumbing.stdin, plumbing.stdout, plumbing.stderr)
    for fd in {fd for fd in ours if fd is not None}:
        os.set_blocking(fd, False)
    return Child(plumbing, pid, failure)


def fork_command(
    spec: KeeperSpec,
    streams: tuple[int, int, int],
    *,
    limits: RunLimits | None,
    last_signal: int = signal.SIGKILL,
    terminal: int | None = None,
    kept: tuple[int, ...] = (),
) -> tuple[int, int]:
    """Fork and let the child become the command, with `streams` as 0, 1 and 2.

    The child inherits no other descriptor but `kept`, and gets `last_signal` when this process
    dies. Returns its process id and the descriptor for `read_failure`, which does not block.
    StartError if the fork was not possible.
    """
    parent = os.getpid()
    try:
        failure_read, failure_write = os.pipe()
    except OSError as error:
        raise StartError(NOT_EXECUTABLE, f"no pipe: {error.strerror}") from error
    inherited = _Inherited(streams, failure_write, parent, last_signal, terminal, kept)
    # The keeper's handlers must not run in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
    try:
        pid = os.fork() if limits is None else limits.fork()
        if pid == 0:
            _become_command(spec, inherited, limits)
    except OSError as error:
        os.close(failure_read)
        raise StartError(NOT_EXECUTABLE, f"no new process: {error.strerror}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(failure_write)
    os.set_blocking(failure_read, False)
    return pid, failure_read


def read_failure(fd: int, launcher: Launcher | None) -> StartError | None:
    """Why the command was not started; None if it was, or if it was killed before it could be.

    `launcher` is that of walls whose process has exited. An empty message then means that it has
    written the cause where the command would have written (`Launcher.find_cause`).
    """
    try:
        record = os.read(fd, 65536)
    except BlockingIOError:
        return None
    if record.startswith(b"["):
        exit_code, message = json.loads(record)
        return StartError(exit_code, message)
    is_missing = launcher is not None and not launcher.was_executed(record)
    return StartError(NO_WALLS, "") if is_missing else None


def resize(fd: int, rows: int, cols: int) -> None:
    """Set the size of the terminal; impossible sizes are ignored."""
    if 0 < rows < 65536 and 0 < cols < 65536:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", rows, cols, 0, 0))


def _open_pipes(spec: KeeperSpec) -> Plumbing:
    if spec.stdin_is_client:
        stdin_read, stdin_write = os.pipe()
    else:
        stdin_read, stdin_write = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), None
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    plumbing = Plumbing((stdin_read, stdout_write, stderr_write))
    plumbing.stdin = stdin_write
    plumbing.stdout = stdout_read
    plumbing.stderr = stderr_read
    return plumbing


def _open_terminal(spec: KeeperSpec, size: tuple[int, int]) -> Plumbing:
    ours, theirs = os.openpty()
    attributes = termios.tcgetattr(theirs)
    attributes[0] |= _IUTF8
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    resize(ours, *size)
    stdin = theirs
    if not spec.stdin_is_client:
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    plumbing = Plumbing((stdin, theirs, theirs))
    plumbing.stdin = ours if spec.stdin_is_client else None
    plumbing.stdout = ours
    plumbing.terminal = theirs
    return plumbing


class _Inherited:
    """What the child takes from its parent."""

    __slots__ = ("failure", "kept", "last_signal", "parent", "streams", "terminal")

    def __init__(
        self,
        streams: tuple[int, int, int],
        failure: int,
        parent: int,
        last_signal: int,
        terminal: int | None,
        kept: tuple[int, ...],
    ) -> None:
        self.streams = streams
        self.failure = failure
        self.parent = parent
        self.last_signal = last_signal
        self.terminal = terminal
        self.kept = kept


def _become_command(spec: KeeperSpec, inherited: _Inherited, limits: RunLimits | None) -> None:
    """Runs in the child, up to the command. Never returns."""
    exit_code = NOT_EXECUTABLE
    try:
        try:
            if limits is None:
                restore_soft_limits()
            else:
                limits.enter()
            _enter(spec, inherited)
            if spec.walls is None:
                _execute(spec)
            else:
                _execute_behind(spec.walls, spec, inherited.failure)
        except StartError as error:
            exit_code = error.exit_code
            message = error.message
        except (OSError, ValueError) as error:
            if spec.walls is not None and isinstance(error, OSError):
                exit_code = NO_WALLS
            message = f"`{spec.argv[0]}`: {error}"
        message = message.encode("utf-8", "backslashreplace").decode()[:2000]
        os.write(inherited.failure, json.dumps([exit_code, message]).encode("ascii"))
    finally:
        os._exit(exit_code)


def _enter(spec: KeeperSpec, inherited: _Inherited) -> None:
    os.setsid()
    if spec.walls is not None:
        launcher = launcher_of(spec.walls)
        launcher.narrow()
        launcher.drop()
    # After the change of user, which would reset it.
    if not calls.die_with_parent(inherited.last_signal, inherited.parent):
        os._exit(NOT_EXECUTABLE)
    if inherited.terminal is not None and spec.walls is None:
        fcntl.ioctl(inherited.terminal, termios.TIOCSCTTY, 0)
    for number, fd in enumerate(inherited.streams):
        os.dup2(fd, number, inheritable=True)
    close_all_but({inherited.failure, *inherited.kept})
    for fd in inherited.kept:
        os.set_inheritable(fd, True)  # noqa: FBT003
    _reset_signals()
    os.umask(spec.umask)
    if spec.walls is not None:
        return
    try:
        os.chdir(os.fsencode(spec.cwd))
    except OSError as error:
        message = f"cannot enter `{spec.cwd}`: {error.strerror}"
        raise StartError(NOT_EXECUTABLE, message) from error


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    # Plain numbers: the module's own set of names takes longer to make than a process.
    for number in range(1, signal.NSIG):
        # None is a handler outside of Python: of a signal that libc keeps for itself.
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _execute(spec: KeeperSpec) -> None:
    """Become the command as `execvp` would; StartError reports why that was not possible."""
    name = spec.argv[0]
    argv = [os.fsencode(argument) for argument in spec.argv]
    env = {os.fsencode(key): os.fsencode(value) for key, value in spec.env.items()}
    failure: OSError | None = None
    for path in _candidates(argv[0], env.get(b"PATH", os.fsencode(os.defpath))):
        try:
            try:
                os.execve(path, argv, env)  # noqa: S606  this is the spawner
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                # A script without `#!`: every shell runs it, so do we.
                os.execve(b"/bin/sh", [b"sh", path, *argv[1:]], env)  # noqa: S606  likewise
        except (FileNotFoundError, NotADirectoryError) as error:
            failure = failure or error
        except PermissionError as error:
            # A directory of PATH that we may not search does not hold the command for us.
            if b"/" in argv[0] or os.path.lexists(path):
                failure = error
        except OSError as error:
            failure = error
            break
    if failure is None or failure.errno in (errno.ENOENT, errno.ENOTDIR):
        raise StartError(NOT_FOUND, f"`{name}`: {_absence(argv[0])}")
    raise StartError(NOT_EXECUTABLE, f"`{name}`: {failure.strerror}")


def _execute_behind(walls: Walls, spec: KeeperSpec, news: int) -> None:
    launcher = launcher_of(walls)
    launcher.require(spec.argv[0], spec.env.get("PATH", os.defpath), spec.cwd)
    words, _ = launcher.words(spec.argv, spec.env, spec.cwd, news=news, tty=spec.tty)
    os.set_inheritable(news, True)  # noqa: FBT003 - and the launcher keeps it from the command
    os.execve(words[0], [os.fsencode(word) for word in words], {})  # noqa: S606  likewise


def _candidates(name: bytes, search_path: bytes) -> list[bytes]:
    if b"/" in name:
        return [name]
    return [os.path.join(directory or b".", name) for directory in search_path.split(b":")]


def _absence(name: bytes) -> str:
    if b"/" not in name:
        return "command not found"
    # The file is there: it is the interpreter in its first line that is missing.
    return "its interpreter does not exist" if os.path.exists(name) else "no such file"
