"""A process of the lowest priority that freezes one project, as `atoll warm` does."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from atoll.engine.projects import open_project
from atoll.engine.state.session import ignore
from atoll.host import kernel
from atoll.keeper import calls
from atoll.model.errors import AtollError

_SPARE_SHARE = 0.1
_SPARE_BYTES = 2 << 30


def main() -> None:
    """`HOME ROOT PARENT`, as `atoll.daemon.checkout_watcher` starts it."""
    home, root, parent = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if not calls.die_with_parent(signal.SIGKILL, parent):
        return
    calls.name_process("atoll-freeze")
    kernel.idle_priority()
    if not has_room(home):
        return
    try:
        open_project(root, home=home, warn=ignore).warm()
    except AtollError as error:
        # Such as a project file that is not approved; a command of the user's will say it.
        sys.exit(error.exit_code)


def has_room(home: Path) -> bool:
    """Whether the disk is far enough from being full to use more of it unasked."""
    status = os.statvfs(home)
    free_bytes = status.f_bavail * status.f_frsize
    inodes = not status.f_files or status.f_favail > status.f_files * _SPARE_SHARE
    share = free_bytes > status.f_blocks * status.f_frsize * _SPARE_SHARE
    return free_bytes > _SPARE_BYTES and share and inodes
