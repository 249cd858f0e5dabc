"""The launcher of each kind of walls: builds them around a command, and starts it there.

A new kind of walls is a class in `atoll.model.enclosure`, its launcher, and a line in the table of
each of these two modules.
"""

from __future__ import annotations

from atoll.keeper.bubblewrap import BubblewrapLauncher
from atoll.model.enclosure import Bwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Protocol

    from atoll.keeper.start_error import StartError
    from atoll.model.enclosure import Walls
else:
    Protocol = object


class Launcher(Protocol):
    """Starts commands behind one kind of walls.

    The forked child calls `narrow`, `drop`, `require` and `words`, in this order, and executes what
    the last one returns; the parent calls `was_executed` and `find_cause` when that has exited.
    """

    def narrow(self) -> None:
        """Restricts writes to the patterns of this run, with the rights that `drop` gives up.

        Raises StartError when a pattern matches nothing.
        """

    def drop(self) -> None:
        """Becomes the user that the capsule's processes are to the kernel."""

    def require(self, name: str, search_path: str, cwd: str) -> None:
        """Raises StartError when a command or its directory does not exist behind the walls."""

    def words(
        self,
        argv: Iterable[str],
        env: Mapping[str, str],
        cwd: str,
        *,
        news: int | None = None,
        tty: bool = False,
    ) -> tuple[list[str], list[int]]:
        """The program to execute with its arguments, and the open descriptors that it needs.

        It writes to the pipe `news` what `was_executed` reads, and keeps it from the command.
        Raises StartError.
        """

    def was_executed(self, record: bytes) -> bool:
        """Whether the command was reached, by what was written to `news`."""

    def find_cause(self, said: bytes) -> StartError:
        """Why it was not reached, by what was written to the command's output meanwhile."""


_LAUNCHERS: dict[type, Callable[[Any], Launcher]] = {Bwrap: BubblewrapLauncher}


def launcher_of(walls: Walls) -> Launcher:
    return _LAUNCHERS[type(walls)](walls)


def find_launcher(walls: Walls | None) -> Launcher | None:
    return None if walls is None else launcher_of(walls)
