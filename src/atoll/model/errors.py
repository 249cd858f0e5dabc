"""The exception tree.

AtollError
├── SpecError          the request must change                 exit 2
├── PrerequisiteError  the host lacks something                exit 3
├── StateError         no such thing, exists, or wrong state   exit 4
│   └── SecretUnavailable  a value cannot be read now
├── DriverError        a tool failed                           exit 5
│   └── Unanswered     content of the capsule prevents the tool from answering
├── IsolationError     a promised wall could not be built      exit 6
└── Interrupted        a signal ended the work                 exit 128+n

A command that fails inside a capsule is a result, not an error. Messages put literals in
backticks, carry no final full stop, and `hint` is the exact next command where there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from atoll.model.shapes import ErrorShape


class Mistake(NamedTuple):
    """One mistake in user input, with its location."""

    source: str
    """The file (or `command line`, `environment`) that holds the value."""
    key: str
    """The dotted path of the value, such as `services.web.port`; empty for the whole file."""
    message: str
    line: int | None = None
    suggestion: str | None = None
    """A suggestion, if there is a similar valid value."""

    def render(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        head = f"{place}: `{self.key}`: {self.message}" if self.key else f"{place}: {self.message}"
        return f"{head}; did you mean `{self.suggestion}`?" if self.suggestion else head


class AtollError(Exception):
    """Root of the tree; only subclasses are raised."""

    exit_code = 5
    kind = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def shape(self) -> ErrorShape:
        return {
            "type": self.kind,
            "message": self.message,
            "hint": self.hint,
            "exit_code": self.exit_code,
            "mistakes": [mistake.render() for mistake in getattr(self, "mistakes", ())],
        }


class SpecError(AtollError):
    """The request itself is wrong; `mistakes` lists all of them at once."""

    exit_code = 2
    kind = "spec"

    def __init__(
        self, message: str, *, hint: str | None = None, mistakes: tuple[Mistake, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.mistakes = mistakes


class PrerequisiteError(AtollError):
    """The host lacks something that the request needs."""

    exit_code = 3
    kind = "prerequisite"


class StateError(AtollError):
    """The thing does not exist, exists already, or is in the wrong state."""

    exit_code = 4
    kind = "state"


class SecretUnavailable(StateError):  # noqa: N818 - a state of affairs
    """The value of a secret cannot be read now: locked, expired, or gone from its source."""


class DriverError(AtollError):
    """A tool failed. The message names the tool and includes the end of its output."""

    exit_code = 5
    kind = "driver"


class Unanswered(DriverError):  # noqa: N818 - what came of a question
    """Content of a capsule prevents a tool from answering; the tool itself works."""


class IsolationError(AtollError):
    """A promised wall could not be built. Nothing was run: this always fails closed."""

    exit_code = 6
    kind = "isolation"


class Interrupted(AtollError):  # noqa: N818 - not an error, but a signal
    """A signal ended the work; half-made state is undone now or by the next command."""

    kind = "interrupted"

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"interrupted by signal {signal_number}")
        self.exit_code = 128 + signal_number
