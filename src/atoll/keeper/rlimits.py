"""What the kernel limits for each process of a capsule by itself."""

from __future__ import annotations

import resource

from atoll.model.enclosure import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import Limits

_OPEN_FILES = next(int(kind.default or 0) for kind in LIMITS if kind.field == "files")
_SPARE = 1_024
_given: list[int] = []
"""The soft limit on open files that this process was started with, if it has raised it."""


def rlimits(
    limits: Limits, *, memory_is_held: bool, in_user_namespace: bool
) -> list[tuple[int, int]]:
    """What a child sets for itself before exec, as soft and hard limit: `(resource, value)`.

    `memory_is_held`: by a group; else each process alone may have as much as all together.
    `in_user_namespace`: of the capsule's own, entered already, and not as the kernel's user 0.
    Elsewhere the kernel counts all that the user runs, or nothing.
    """
    wanted = [
        # One byte: too little for a file, and the one value at which the kernel asks no handler.
        (resource.RLIMIT_CORE, 1),
        (resource.RLIMIT_NOFILE, files_limit(limits.files or _OPEN_FILES)),
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_DATA, None if memory_is_held else limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.pids if in_user_namespace else None),
    ]
    return [(kind, _allowed(kind, value)) for kind, value in wanted if value is not None]


def raise_open_files() -> None:
    """Let this process, and what it forks, open as many files as it may. What is executed gets
    back what was given: `restore_open_files`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        _given.append(soft)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_open_files() -> None:
    """For a child before it executes a command: many programs do badly with a high soft limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if _given and (hard == resource.RLIM_INFINITY or _given[0] <= hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_given[0], hard))


def files_limit(wanted: int, hard: int | None = None) -> int:
    """How many descriptors a process in a capsule may have, where `hard` (else our own limit) is
    the most that there can be.

    Descriptors in flight are counted per user and compared with the limit of the sending
    process. The capsule's is lower, so that it cannot keep Atoll from sending its own.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - min(hard // 4, _SPARE))


def _allowed(kind: int, value: int) -> int:
    """A hard limit cannot be raised, in many containers not even by root."""
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
