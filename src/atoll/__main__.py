"""`python -m atoll` and the `atoll` script."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys

from atoll.cli.streams import open_missing

_OBJECTS = 50_000
"""A command creates many objects and almost no garbage, so frequent collections are wasted."""


def main() -> None:
    # Before anything opens a file, which would get the number of a closed stream.
    open_missing()
    gc.set_threshold(_OBJECTS)
    codes: list[int] = []
    # Registered first, so called last.
    atexit.register(_leave, codes)
    # Until `run` is there to say that it was interrupted. A signal that is ignored stays ignored.
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, _end)
    # Imported late, so that importing this module costs nothing.
    from atoll.cli.app import run  # noqa: PLC0415

    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        codes.append(run(sys.argv[1:]))
    except KeyboardInterrupt:
        # Another Ctrl-C, just before further ones are ignored: all is undone by then.
        codes.append(128 + signal.SIGINT)
    sys.exit(codes[0])


def _end(number: int, frame: object) -> None:
    """Ctrl-C while modules are imported: nothing has been started, and nothing has to be undone."""
    del frame
    os._exit(128 + number)


def _leave(codes: list[int]) -> None:
    """Not used for a command without an exit code, such as one that failed: Python ends it."""
    if codes:
        from atoll.cli.output import leave  # noqa: PLC0415 - loaded by now

        leave(codes[0])


if __name__ == "__main__":
    main()
