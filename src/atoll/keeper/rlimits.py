"""What the kernel limits for each process of a capsule by itself."""

from __future__ import annotations

import resource

from atoll.model.enclosure import LIMITS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import Limits

_OPEN_FILES = next(int(kind.default or 0) for kind in LIMITS if kind.field == "files")
_SPARE = 1_024
_given: dict[int, int] = {}
"""The soft limits that this process was started with, of those that it has changed."""
_NO_CORE = 1
"""One byte: too little for a file, and the one value at which the kernel asks no handler."""


def rlimits(
    limits: Limits, *, memory_is_held: bool, in_user_namespace: bool
) -> list[tuple[int, int]]:
    """What a child sets for itself before exec, as soft and hard limit: `(resource, value)`.

    `memory_is_held`: by a group; else each process alone may have as much as all together.
    `in_user_namespace`: of the capsule's own, entered already, and not as the kernel's user 0.
    Elsewhere the kernel counts all that the user runs, or nothing.
    """
    wanted = [
        (resource.RLIMIT_CORE, _NO_CORE),
        (resource.RLIMIT_NOFILE, files_limit(limits.files or _OPEN_FILES)),
        (resource.RLIMIT_FSIZE, limits.disk_bytes),
        (resource.RLIMIT_DATA, None if memory_is_held else limits.memory_bytes),
        (resource.RLIMIT_NPROC, limits.pids if in_user_namespace else None),
    ]
    return [(kind, _allowed(kind, value)) for kind, value in wanted if value is not None]


def raise_open_files() -> None:
    """Let this process, and what it forks, open as many files as it may. What is executed gets
    back what was given: `restore_soft_limits`.
    """
    _change_soft(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def dump_no_core() -> None:
    """Let a crash of this process, and of what it forks, leave no copy of its memory, which may
    hold secrets. What is executed gets back what was given: `restore_soft_limits`.
    """
    _change_soft(resource.RLIMIT_CORE, _allowed(resource.RLIMIT_CORE, _NO_CORE))


def _change_soft(kind: int, value: int) -> None:
    soft, hard = resource.getrlimit(kind)
    if soft != value:
        _given.setdefault(kind, soft)
        resource.setrlimit(kind, (value, hard))


def restore_soft_limits() -> None:
    """For a child before it executes a command: many programs do badly with a high soft limit on
    open files, and the owner may want core dumps.
    """
    for kind, soft in _given.items():
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY or soft <= hard:
            resource.setrlimit(kind, (soft, hard))


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
