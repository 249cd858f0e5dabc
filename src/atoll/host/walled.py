"""What the spawner needs for a program behind walls, and how it knows that they stood."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from atoll.host import views
from atoll.model.errors import IsolationError, Unanswered
from atoll.model.plan import Enclosure

_NEWS_BYTES = 1 << 16


class News:
    """What bwrap tells of a program's start. Without walls there is nothing to tell."""

    def __init__(self, within: Enclosure | None) -> None:
        is_walled = within is not None and within.walls is not None
        self._pipe: Sequence[int] = os.pipe() if is_walled else ()
        self._locks: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (*self._pipe, *self._locks):
            os.close(fd)

    def keep(self, lock: int) -> None:
        """Holds the lock of a view until the program is over, in its place."""
        self._locks.append(os.dup(lock))

    @property
    def write(self) -> int:
        """The end that bwrap gets."""
        return self._pipe[1]

    def require_executed(self, program: str, code: int, said: bytes) -> None:
        """For a program that has ended with `code`, and everybody together has `said` this.

        Raises IsolationError when a wall could not be built, Unanswered when the program or its
        place is not there inside: what was said and the code are then bwrap's own.
        """
        if not self._pipe or code < 0:  # who was killed may not have got as far as that
            return
        from atoll.keeper.walls import UNBUILT, find_cause, was_executed  # noqa: PLC0415 - likewise

        os.set_blocking(self._pipe[0], False)
        try:
            record = os.read(self._pipe[0], _NEWS_BYTES)
        except BlockingIOError:
            record = b""
        if was_executed(record):
            return
        cause = find_cause(said)
        if cause.exit_code == UNBUILT:
            raise IsolationError(
                f"the walls around `{program}` cannot be built: {cause.message}",
                hint="atoll doctor",
            )
        raise Unanswered(f"inside of the capsule, {cause.message}")


class Words(NamedTuple):
    """What is really started."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    fds: Sequence[int] = ()
    drop: Callable[[], None] = lambda: None


@contextmanager
def walled(
    within: Enclosure,
    full: tuple[str, ...],
    place: str | None,
    environment: dict[str, str],
    news: News,
) -> Iterator[Words]:
    """A command with the walls of `within` around it, if there are any."""
    if within.walls is None:
        yield Words(full, environment, place)
        return
    from atoll.keeper.walls import Walls  # noqa: PLC0415 - libc is not for every command

    walls = Walls(within.walls)
    words, fds = walls.words(full, environment, place or within.cwd, news=news.write)
    try:
        yield Words(words, {}, None, [*fds, news.write], walls.drop)
    finally:
        for fd in fds:
            os.close(fd)


def limited(
    within: Enclosure, view: views.Borrowed, drop: Callable[[], None]
) -> Callable[[], None]:
    """For the child: what a capsule makes git do is limited, too."""
    if within.limits is None or within.walls is None:
        return drop
    from atoll.keeper.limits import Limits  # noqa: PLC0415 - only with limits

    limits = Limits(within.limits, view.group)

    def enter() -> None:
        limits.enter()
        drop()

    return enter


def last_signal(within: Enclosure) -> int:
    """What a program inside gets when its asker dies: git removes its locks when it is asked to
    end, and nothing behind walls is asked.
    """
    return signal.SIGTERM if within.walls is None else signal.SIGKILL
