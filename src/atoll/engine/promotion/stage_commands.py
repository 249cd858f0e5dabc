"""The commands of stages: `run`, `undo` and `health`, which run on the host as the owner.

They come from the project file, which the owner has approved by its content; the programs that they
start in the checkout are listed among the risky files when a promotion changes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from atoll.engine.state import kept_logs
from atoll.engine.state.session import Session
from atoll.host import files, process
from atoll.model.state import ProjectRecord

_GIT_PLACES = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX",
)  # fmt: skip
_LOG_BYTES = 16 << 20
_TAIL_BYTES = 4000
_MOST_BYTES = 4 << 30
"""Of output, after which the command is killed."""


class StageCommand(NamedTuple):
    """A command, and what its environment says."""

    command: str
    stage: str
    timeout_s: float
    variables: Mapping[str, str]


class CommandEnd(NamedTuple):
    code: int | None
    """None when it was killed because of its time or its output."""
    message: str
    """Why it failed, in one line; empty when it succeeded."""
    output: str
    """The end of it."""
    log: str
    took_s: float

    @property
    def is_good(self) -> bool:
        return not self.message


def run_command(
    session: Session,
    project: ProjectRecord,
    spec: StageCommand,
    *,
    on_start: Callable[[int], object] | None = None,
) -> CommandEnd:
    """Runs a command to its end in the root of the owner's checkout, with its own process group,
    which is killed afterwards. A command that fails is a result. `on_start` gets its process id.
    """
    path = kept_logs.new_path(session.home, "promotions", project.id)
    tail = bytearray()
    began = time.monotonic()
    with open(path, "xb", opener=_private, buffering=0) as log:
        left = [_LOG_BYTES]

        def take(piece: bytes) -> None:
            kept = piece[: left[0]]
            left[0] -= len(kept)
            try:
                files.write_all(log, kept)
            except OSError:
                # A full disk is no reason to end the command in the middle.
                left[0] = 0
            tail.extend(piece)
            del tail[:-_TAIL_BYTES]

        program = process.Program(
            argv=("/bin/sh", "-c", f"exec 2>&1\n{spec.command}"),
            cwd=project.root,
            env={**environment(session.owner), **spec.variables},
            is_owners=True,
        )
        done = process.stream(
            program, take, limit_bytes=_MOST_BYTES, timeout_s=spec.timeout_s, until_exit=True,
            on_start=on_start,
        )  # fmt: skip
    kept_logs.prune(path.parent)
    code = done.completed.code if done.ended == "whole" else None
    return CommandEnd(
        code=code,
        message=_message(done, spec.timeout_s),
        output=tail.decode(errors="replace"),
        log=str(path),
        took_s=time.monotonic() - began,
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _message(done: process.Streamed, timeout_s: float) -> str:
    if done.ended == "time":
        return f"it took longer than {timeout_s:g} s and was killed"
    if done.ended == "size":
        return "it wrote too much output and was killed"
    code = done.completed.code
    if code < 0:
        return f"it was killed by signal {-code}"
    return f"exit code {code}" if code else ""


def environment(owner: Mapping[str, str]) -> dict[str, str]:
    """The owner's, without what would move git and without the passphrase of the vault."""
    left_out = (*_GIT_PLACES, "ATOLL_PASSPHRASE")
    return {key: value for key, value in owner.items() if key not in left_out}
