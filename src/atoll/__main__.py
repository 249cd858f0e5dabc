"""`python -m atoll` and the `atoll` script."""

from __future__ import annotations

import atexit
import gc
import sys

_OBJECTS = 50_000
"""A command makes many objects and next to no garbage: to look for it more often is in vain."""


def main() -> None:
    gc.set_threshold(_OBJECTS)
    codes: list[int] = []
    # Registered first, so called last.
    atexit.register(_leave, codes)
    # Imported late, so that importing this module costs nothing.
    from atoll.cli.app import run  # noqa: PLC0415

    codes.append(run(sys.argv[1:]))
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    """Not for a command that has no code, such as one that failed: its end is Python's."""
    if codes:
        from atoll.cli.output import leave  # noqa: PLC0415 - loaded by now

        leave(codes[0])


if __name__ == "__main__":
    main()
