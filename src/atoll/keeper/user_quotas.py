"""A capsule's share of what the kernel counts per user.

Inotify and fanotify objects are counted per user and per user namespace, in every namespace up to
the first. A capsule of an ordinary user is in a namespace of that user, so without its own limit
one capsule could use up the quota of all programs of the user.
"""

from __future__ import annotations

import os
import resource

_DIRECTORY = "/proc/sys/user"
_COUNTED = {
    "max_inotify_instances": "/proc/sys/fs/inotify/max_user_instances",
    "max_inotify_watches": "/proc/sys/fs/inotify/max_user_watches",
    "max_fanotify_groups": "/proc/sys/fs/fanotify/max_user_groups",
    "max_fanotify_marks": "/proc/sys/fs/fanotify/max_user_marks",
}
"""A namespace's own limits, which are not inherited, and those of the whole machine."""
_PART = 4
_LEAST = 16
_RESOURCES = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE)


def share_of(whole: int) -> int:
    """A quarter, but not so little that ordinary programs fail."""
    return max(whole // _PART, min(whole, _LEAST))


def limit_namespace() -> None:
    """Limit the calling process's user namespace, in which it has all capabilities.

    OSError where a limit that exists cannot be set. A kernel without one of them has nothing that
    could be used up.
    """
    for name, of_machine in _COUNTED.items():
        path = f"{_DIRECTORY}/{name}"
        wholes = [whole for place in (path, of_machine) if (whole := _read(place)) is not None]
        if os.path.exists(path) and wholes:
            with open(path, "w", encoding="ascii") as file:
                file.write(str(share_of(min(wholes))))


def _read(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read(32))
    except FileNotFoundError:
        return None


def resource_limits() -> list[tuple[int, int]]:
    """Limits of each process on what the kernel counts per user: `(resource, value)`.

    Queued signals (with timers) and POSIX message queues.
    """
    found = []
    for kind in _RESOURCES:
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            found.append((kind, share_of(hard)))
    return found
