"""`python -m atoll` and the `atoll` script."""

from __future__ import annotations

import sys


def main() -> None:
    # Imported late, so that importing this module costs nothing.
    from atoll.cli.app import run  # noqa: PLC0415

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
