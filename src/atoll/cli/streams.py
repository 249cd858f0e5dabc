"""Standard input, output and error, also where the caller has closed them.

A cron job, a daemon or `>&-` can start a command without descriptors 0, 1 or 2. The next file that
is opened would then get such a number, and output would go into it. As git does, a closed stream
is opened on the null device first: what would be read is empty, what would be written is dropped.
"""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Opens those of descriptors 0 to 2 that are closed, before anything else is opened."""
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number, which is this one.
            null = os.open(os.devnull, flags)
            # Child processes need it open, too.
            os.set_inheritable(null, True)  # noqa: FBT003 - its only form
    # Python has set those to None that were closed when it started.
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for all of the run
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
