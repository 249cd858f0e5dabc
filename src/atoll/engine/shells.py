"""Which shell `atoll shell` starts."""

from __future__ import annotations

import os

from atoll.host.programs import find_program


def find_shell() -> str:
    """The owner's, or else the first that is installed."""
    for candidate in (os.environ.get("SHELL"), "bash", "sh"):
        found = find_program(candidate) if candidate else None
        if found is not None:
            return found
    return "/bin/sh"
