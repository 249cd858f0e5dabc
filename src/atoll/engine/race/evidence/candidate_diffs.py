"""Diffs between two trees of the owner's repository, bounded."""

from __future__ import annotations

import os
from typing import NamedTuple

from atoll.host.process import Program, stream
from atoll.model.errors import DriverError

_TIMEOUT_S = 60.0
_MEMORY_BYTES = 1 << 30
_MOST_BYTES = 64 << 20


class BoundedPatch(NamedTuple):
    text: bytes
    is_complete: bool


def load_patch(
    repository: str,
    one: str,
    other: str,
    *,
    limit_bytes: int = _MOST_BYTES,
    stat: bool = False,
    context: int = 3,
) -> BoundedPatch:
    """The difference between two trees as `git diff` prints it; up to its limit, at the end of a
    line. Raises DriverError if git fails.
    """
    form = ("--stat=120",) if stat else ("--patch", f"--unified={context}")
    argv = (
        "git", "-c", "core.quotePath=true", "-c", "core.hooksPath=/dev/null",
        "-c", "core.bigFileThreshold=16m", "-c", f"core.attributesFile={os.devnull}",
        "diff-tree", "-r", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color",
        "--src-prefix=a/", "--dst-prefix=b/", *form, one, other, "--",
    )  # fmt: skip
    env = {
        "GIT_DIR": repository,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
    }
    said = bytearray()
    done = stream(
        Program(argv, cwd=repository, env=env, memory_bytes=_MEMORY_BYTES),
        said.extend,
        limit_bytes=limit_bytes,
        timeout_s=_TIMEOUT_S,
    )
    if done.ended == "whole" and not done.is_good:
        said_wrong = done.completed.stderr.decode(errors="replace").strip()
        raise DriverError(f"git cannot compare two trees: {said_wrong[-300:]}")
    if done.is_good:
        return BoundedPatch(bytes(said), is_complete=True)
    return BoundedPatch(bytes(said[: said.rfind(b"\n") + 1]), is_complete=False)
