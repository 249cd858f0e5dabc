"""The launcher of each kind of walls: builds them around a command, and starts it there."""

from __future__ import annotations

from atoll.keeper.bubblewrap import BubblewrapLauncher
from atoll.model.enclosure import Bwrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from atoll.model.enclosure import Walls

_LAUNCHERS = {Bwrap: BubblewrapLauncher}


def launcher_of(walls: Walls) -> BubblewrapLauncher:
    return _LAUNCHERS[type(walls)](walls)
