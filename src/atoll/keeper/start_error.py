"""Why a command was not started, whatever starts it."""

from __future__ import annotations

NO_WALLS = 6
"""Instead of an exit code: a wall could not be built, and nothing was run."""
NOT_EXECUTABLE = 126
NOT_FOUND = 127


class StartError(Exception):
    """The command could not be started; `exit_code` is what a shell would say, or `NO_WALLS`."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
