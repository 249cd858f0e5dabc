"""What bwrap reports about a start."""

from __future__ import annotations

import pytest

from atoll.keeper.bubblewrap import BubblewrapLauncher
from atoll.keeper.start_error import NO_WALLS

PLACES = b'{ "child-pid": 32463, "mnt-namespace": 4026532179 }\n'


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (PLACES + b'{ "exit-code": 0 }\n', True),
        (PLACES + b'{ "exit-code": 137 }\n', True),
        (PLACES, False),
        (b"", False),
    ],
)
def test_was_executed(record, expected):
    assert BubblewrapLauncher.was_executed(record) is expected


ABSENT = "No such file or directory"
LOST = ": its interpreter is not visible inside"


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (b"bwrap: execvp x: No such file or directory\n", 127, f"`x`: {ABSENT}{LOST}"),
        (b"bwrap: execvp x: Not a directory\n", 127, f"`x`: Not a directory{LOST}"),
        (b"bwrap: execvp a: b: Permission denied\n", 126, "`a: b`: Permission denied"),
        (b"bwrap: execvp x: Argument list too long\n", 126, "`x`: Argument list too long"),
        (b"bwrap: Can't chdir to /x: Not a directory\n", 126, "cannot enter `/x`: Not a directory"),
        (b"bwrap: no namespaces\n\n", NO_WALLS, "bwrap: no namespaces"),
        (b"one\r\ntwo\r\n", NO_WALLS, "two"),
        (b"", NO_WALLS, "bwrap printed no message"),
        (b"\xff\n", NO_WALLS, "\ufffd"),
    ],
)  # fmt: skip
def test_find_cause(said, code, message):
    cause = BubblewrapLauncher.find_cause(said)
    assert (cause.exit_code, cause.message) == (code, message)
