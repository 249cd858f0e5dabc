"""Where values of secrets are read from: variables, files, commands, keyring entries.

Whatever a source says, no message quotes it: it may contain the value.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from atoll.drivers.contracts import SourceRequest
from atoll.drivers.secret import os_keyring
from atoll.host import files, programs
from atoll.host.process import Program, stream
from atoll.model.errors import SecretUnavailable
from atoll.model.names import printable

LIMIT_BYTES = 64 << 10
_COMMAND_S = 30.0


class VariableSource:
    def read(self, request: SourceRequest) -> bytes:
        value = request.owner.get(request.of)
        if value is None:
            raise SecretUnavailable(
                f"the variable `{request.of}` is not set in your environment",
                hint=f"export {request.of}, then try again",
            )
        content = os.fsencode(value)
        if len(content) > LIMIT_BYTES:
            raise SecretUnavailable(f"the variable `{request.of}` is larger than {_limit()}")
        return content


class FileSource:
    def read(self, request: SourceRequest) -> bytes:
        path, shown = os.path.normpath(request.of), printable(request.of)
        if request.root and programs.is_below(path, [request.root]):
            content = _read_in_project(request.root, path)
        else:
            content = _read_own(path, shown)
        if content is None:
            raise SecretUnavailable(
                f"`{shown}` is not a regular file of at most {_limit()}", hint=f"ls -l '{shown}'"
            )
        return content


def _read_in_project(root: str, path: str) -> bytes | None:
    """Agents may have written there, so no link is followed."""
    try:
        relative = os.path.relpath(path, root)
        return files.read_beneath(Path(root), relative, limit_bytes=LIMIT_BYTES)
    except OSError:
        return None


def _read_own(path: str, shown: str) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            # `open` fails on the descriptor of a directory.
            os.close(handle)
            return None
        with open(handle, "rb") as opened:
            content = opened.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise SecretUnavailable(
            f"`{shown}` cannot be read: {error.strerror}", hint=f"ls -l '{shown}'"
        ) from None
    return content if len(content) <= LIMIT_BYTES else None


class CommandSource:
    """A shell command, in the owner's home directory. Its whole process group is killed when it
    takes too long or prints too much.
    """

    def read(self, request: SourceRequest) -> bytes:
        shown = f"the command `{printable(request.of)}`"
        home = request.owner.get("HOME", "/")
        path = programs.trusted_path(request.path, avoid=(request.root,))
        program = Program(
            ("sh", "-c", request.of),
            cwd=home if os.path.isdir(home) else "/",
            env={**request.owner, "PATH": path},
        )
        printed = bytearray()
        done = stream(program, printed.extend, limit_bytes=LIMIT_BYTES, timeout_s=_COMMAND_S)
        if done.ended == "size":
            raise SecretUnavailable(f"{shown} prints more than {_limit()}")
        if done.ended == "time":
            raise SecretUnavailable(f"{shown} did not end within {_COMMAND_S:.0f} s")
        if done.completed.code != 0:
            raise SecretUnavailable(
                f"{shown} failed with exit code {done.completed.code}",
                hint="run it in a shell: its messages are not shown here, since they may hold "
                "the value",
            )
        return bytes(printed)


class KeyringSource:
    """`service/user`; the service may contain slashes."""

    def read(self, request: SourceRequest) -> bytes:
        service, _, user = request.of.rpartition("/")
        text = os_keyring.read(service, user)
        if text is None:
            raise SecretUnavailable(
                f"your keyring has no entry `{printable(request.of)}`",
                hint=f"keyring set '{printable(service)}' '{printable(user)}'",
            )
        content = text.encode()
        if len(content) > LIMIT_BYTES:
            raise SecretUnavailable(f"`{printable(request.of)}` is larger than {_limit()}")
        return content


def _limit() -> str:
    return f"{LIMIT_BYTES >> 10} KiB"
